// Package segments sends packets that are alike to many receivers by few system calls. It is for servers that make each
// receiver's copy themselves, as those do that seal it (SRTP, QUIC), so that the kernel can't clone one.
//
//	sender, err := segments.New(segments.Config{Conn: conn}) // the server's own UDP socket
//	defer sender.Close()
//	anna, err := sender.Add(local, annasAddress)
//	…
//	failed := sender.Send([]segments.Packet{{To: anna, Payload: sealedForAnna}, {To: ben, Payload: sealedForBen}})
//
// Copies of one packet have one size. The sender hands as many as it can to the kernel as one datagram with
// UDP_SEGMENT (udp(7), Linux 4.18), by way of a pair of veth devices that it makes: the kernel segments the datagram
// on one of them, and a relay at the other one (examples/segments/spec.cue) gives each segment its receiver's
// addresses, and sends it from the device that leads there. So receivers get what the server's socket would have sent
// them, with the hop limit 64.
//
// # What is sent one by one
//
// By the server's socket, with sendmmsg(2), leave packets whose size no other packet of the call has; those to
// receivers that the kernel has no next hop for (this host's own addresses, routes that encapsulate, IPsec); and all,
// where the devices can't be had (see [Sender.Kernel]). What has come to the relay when a route or the lease was lost
// comes back and is sent by the socket as well. Packets of one receiver leave in the order of the call; what comes
// back may be late.
//
// # Namespaces, privileges and what is left behind
//
// A sender belongs to the network namespace of the thread that calls [New]. It takes CAP_NET_ADMIN, CAP_NET_RAW and
// what loading a relay takes (package runtime). The devices are named frseg0 and frsegpeer0, with the first number
// that is free. They have no IP address, and are deleted by [Sender.Close]. A process that is killed leaves them,
// attached to nothing; the next sender of that namespace removes them. What leaves doesn't go through the firewall's
// output chain.
package segments
