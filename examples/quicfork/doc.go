// Package quicfork makes a fork of quic-go, with hooks for what sends and receives packets of a connection outside of
// the library. It holds a patch queue and files of our own; command quicfork fetches upstream, applies them, and writes
// the fork into a folder. README.md says how that is done, here and in other modules.
//
// # The hooks
//
// A connection gets hooks by its context (quic.WithHooks): functions that the library calls on the connection's run
// loop. Conn.Outside returns what acts on the connection from outside. A connection without hooks sends what
// upstream's sends.
//
//	hooks := &quic.Hooks{NullProtection: true, Levels: 4, Drain: r.drain, Acked: r.acked, Lost: r.lost, Path: r.path}
//	transport.ConnContext = func(ctx context.Context, _ *quic.ClientInfo) (context.Context, error) {
//		return quic.WithHooks(ctx, hooks), nil
//	}
//	conn, err := listener.Accept(ctx)
//	err = conn.Outside().ShareNumbers(ctx, &counter)
//	first, n := conn.Outside().LeaseUniStreams(100)
//	bytes := conn.Outside().LeaseData(1 << 20)
//
//	what                                hooks                                   methods of Outside
//	packet numbers                      LongNumbers                             ShareNumbers
//	packets that were sent, their fate  Drain, Acked, Lost                      Notify
//	what the library sends instead                                              Send, Reset
//	streams and bytes that may be sent  Limits, StreamLimit, StopSending        LeaseUniStreams, LeaseData, ReturnData
//	the path                            Path, Moved, Closing
//	connection IDs                      Levels, ConnectionID
//	protection                          NullProtection, SendKeys, ReceiveKeys   NullProtection
//	packets that arrive                 StreamFrame, StreamReset, Datagram, Drain
//	what the peer sends                 SparseMaxStreams                        RequestACKs
//
// Four rules hold for everyone who sends outside:
//
//   - A number is allocated from the shared counter, and its packet is registered by the next Drain: an ACK for an
//     unregistered packet closes the connection. So what was allocated has to be readable, in a ring or under a lock,
//     before it is sent.
//   - Sent is at most what PathState.Window, less what isn't registered yet, leases and StreamLimit allow, in packets
//     of at most PathState.MaxPacketSize bytes. The congestion window may be exceeded by what the library sends at
//     the same time; leases can't be.
//   - Each byte of a leased stream is sent once outside, or given to Send; what is lost is returned by Lost, or
//     abandoned by Reset.
//   - When Closing returns, nothing is sent any more.
//
// # The fast relay
//
// A program in the kernel copies a publisher's packets to subscribers, between our own processes, on a network that
// protects itself. Both ends ask for NullProtection; Outside.NullProtection reports those that don't, which are
// served through ordinary streams. Publishers ask for LongNumbers, servers for SparseMaxStreams: most packets are
// then a lone STREAM frame with a number of 4 bytes. Levels make the priority of a packet readable in its first byte
// after the type; ConnectionID fills the relay's table of connection IDs, and empties it.
//
// The counter given to ShareNumbers lies in memory that is mapped from a BPF map, where the program adds to it as
// well. LeaseUniStreams and LeaseData top up the program's credits, each for its receiver; Path sets its window. The
// program's events are what Drain registers: the ring is read up to where it stood when Drain is called, so that a
// packet without an event wasn't sent, and is user space's to send, with Send, or to drop, with Reset. User of an
// OutsidePacket says where its bytes are cached; Lost returns them from there. Drain returns the ACKs that the program
// took, too. StreamFrame gives the publisher's frames to whatever the program didn't forward.
//
// # Media over QUIC
//
// A relay for Media over QUIC (draft-ietf-moq-transport-14) has peers that aren't ours, so packets are protected, and
// the library sends them. It uses the input side: StreamFrame, StreamReset and Datagram hand over objects before
// their streams are whole, and groups map to streams, subgroup by subgroup; the control stream is bidirectional, and
// stays with the library. SparseMaxStreams and SetPriority are of use with any peer. Where an implementation of Media
// over QUIC imports quic-go itself, quicfork -replace gives it the fork. Sealed batches can send its streams.
//
// # Sealed batches
//
// A sender builds, seals and sends packets to stock, encrypted subscribers in batches, outside of the run loop.
// SendKeys hands over a Sealer at each key phase, before a number is allocated for it. {number, keys, connection ID,
// registration} are taken under one lock, which SendKeys, ConnectionID (the active one is followed: registered
// packets count towards its change) and Drain take as well, so that packets with higher numbers never have older keys
// (RFC 9001, section 6.4). Registrations carry their KeyPhase, and count towards key updates and the limits of the
// AEAD. What Window or MaxPacketSize don't allow goes to Send: the library sends it when it may. Streams needn't be
// leased: SendStream.TakeNext takes a frame of a stream that the library sends otherwise, and sends again what is lost
// of it, so that flow control, ends and resets are the library's. With ReceiveKeys the sender opens packets, and Drain
// returns those that are only an ACK; the first packet of each key phase, and what isn't only an ACK, goes to the
// library.
//
// # Fewer ACKs
//
// A peer acknowledges every second packet, and much of what a packet costs its sender is that ACK. RequestACKs asks for
// fewer (draft-ietf-quic-ack-frequency, with the code points of version 07, which quinn has as well: min_ack_delay
// 0xff04de1b, ACK_FREQUENCY 0xaf, IMMEDIATE_ACK 0x1f). It returns false for a peer that doesn't offer it. Each
// connection with hooks offers it, and does as its peer asks; a connection without hooks does neither. The delay of a
// request counts in the timeout for probes from when it is made: the longer it is, the later losses at the end of what
// is sent are found. If ACKs are asked for after more packets than a quarter of the congestion window, what is sent may
// have to wait for them.
package quicfork
