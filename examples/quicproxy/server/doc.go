// Package server is a proxy for QUIC (draft-ietf-masque-quic-proxy): clients reach targets through tunnels, and
// register the connection IDs that they use, so that packets with a short header are forwarded in the kernel.
// Without the kernel it forwards them itself.
package server
