// Package capsule reads and writes the capsules (RFC 9297) of a UDP tunnel through an HTTP proxy (RFC 9298) that knows
// the connection IDs of QUIC (draft-ietf-masque-quic-proxy-06 §5).
package capsule
