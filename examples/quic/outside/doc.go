// Package outside has what a server needs to know of a connection of which packets are sent outside of the QUIC
// library, by a program in the kernel or by the server itself (package quicfork describes the hooks):
//
//	sender.go   packets that were sent and ACKs that were received outside, and when the library learns of them
//	sealer.go   packets that a server makes and seals itself
//	window.go   what the congestion window has room for
//	ack.go      ACK frames of events that a program writes
//	spans.go    which bytes of a stream were sent
package outside
