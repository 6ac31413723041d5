// Package client lets unmodified QUIC clients use a proxy (draft-ietf-masque-quic-proxy). Its agent runs on the
// client's host: a client connects to the agent as if it were the target. The agent opens a tunnel for each
// connection, finds the connection IDs of both sides in unencrypted parts of packets, registers them with the proxy,
// and replaces virtual ones.
//
// It holds no keys, so unlike a client that is written for this it registers an ID when it is first used, not
// before: the packets until then are tunnelled. It doesn't see either when an ID is retired: it closes the least
// recently used ones.
package client
