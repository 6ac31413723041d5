// Package server is a QUIC relay: it takes the unidirectional streams, and the datagrams, of a publisher, and sends
// them to all subscribers of its feed.
//
// A client opens a bidirectional stream and sends a line, "publish NAME" or "subscribe NAME"; the server answers "ok".
// Any QUIC client can. For clients that ask for null protection (quic.Hooks), the kernel does most of the work: it
// copies the publisher's packets to the subscribers before they reach the server, which gets them too (../spec.cue).
//
//	server.go      the server: sockets, feeds, and the ring of events
//	conn.go        connections: the library's hooks, requests, addresses and connection IDs
//	feed.go        streams of a publisher, to its subscribers
//	cache.go       what was received of a stream, for 2 seconds
//	subscriber.go  what a subscriber was sent, and is still to be sent
//	sealed.go      packets for protected subscribers that the library doesn't make
//	credit.go      how much may be sent, by the kernel and by user space
//	steer.go       algorithms that decide it
//	offload.go     the kernel's part
//
// # Who sends what
//
// For each packet the kernel writes a record of all its copies, without which there is none. The record is in the ring
// before the packet reaches the socket, and the server reads the ring before it handles what it has received. So when
// the library hands over a STREAM frame, the record says which subscribers got it from the kernel. The others get it
// from user space, or not at all: then the stream is reset. To reset a stream, user space has the kernel withhold it,
// waits until no program can be sending any more of it, reads the ring, and so knows its final size.
//
// A protected subscriber's packets are sealed by the server itself: a header and a STREAM frame in front of what has
// come. That is done if all that is to be sent fits into ten packets, which the library's pacer lets go at once as
// well, the congestion window has room for them, the library has sent what it was given before, and packets are at
// least half full on average, or there is one. Everything else is given to the library: what was lost, bursts, which it
// paces, and small pieces, which it puts into packets together.
//
// All numbers are shared: packet numbers are allocated from one counter by the kernel's programs and by the library,
// stream IDs from one counter by the programs and by user space, and flow control credit is leased (credit.go). The
// library learns of copies and of sealed packets before it handles an ACK, so that congestion control and loss
// detection include them.
// What was lost is sent again by the library, from the cache.
package server
