// Package socket is the UDP socket of a server with many QUIC connections of the fork (package quicfork).
//
//	socket.go   reads datagrams in passes, and has connections do what there is to do after each
//	waiter.go   waits for datagrams without Go's poller, which wakes the process for each of them
//	door.go     sockets for the datagrams of one peer, a publisher, which wait less than others
//	outbox.go   what connections send, which leaves together
//	control.go  control data of datagrams: ECN, segments
//	udp.go      how the library sends
//
// Before a datagram that was received is handled, Config.Drain is called: a server whose packets are forwarded by a
// program in the kernel reads the program's ring there, up to where it stands. The program has written its records of a
// datagram when the datagram reaches the socket, so whoever handles it knows all its copies; and whoever handles an ACK
// knows the copies that it is for.
//
// What connections have to do because of what was received, they do one after the other when the next datagrams are
// read, on the goroutine that reads; and what they send leaves then, by one sendmmsg or in segments. Datagrams of one
// size to one peer leave as one message (UDP_SEGMENT). [Socket.Begin] and [Socket.End] do the same for what a server
// gives connections to send, together with what others have begun meanwhile.
//
// ACKs wait for up to 2 ms while they come by the thousand, what publishers send for up to Config.Wait. Being
// woken for each costs more than what is done with it, and of several objects a connection makes fewer packets.
package socket
