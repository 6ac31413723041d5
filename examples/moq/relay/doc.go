// Package relay is a relay for Media over QUIC Transport (MOQT, draft-ietf-moq-transport-22 and -18): publishers and
// players of any implementation connect to it, on QUIC and on WebTransport, and each track goes from its publishers
// to all its subscribers.
//
//	relay.go         the relay: the listener, sessions, drain
//	upstream.go      sessions with upstream relays
//	tree.go          tracks that come from upstream relays
//	interest.go      namespaces to and from upstream relays
//	transport.go     what carries a session: QUIC, or WebTransport
//	connection.go    a QUIC connection: turns of its run loop, fewer ACKs
//	kernel.go        the kernel's part: what comes from upstream relays, to relays below
//	hop.go           a connection with a relay below, on which the kernel sends
//	leased.go        a stream of it
//	sealed.go        packets for protected peers that the library doesn't make, and rounds
//	session.go       a session: SETUP, control streams, GOAWAY, the beginning of requests
//	request.go       requests: bidirectional streams with messages, which never wait for a peer
//	ids.go           request IDs
//	tokens.go        authorization tokens, and the aliases that peers register
//	namespace.go     PUBLISH_NAMESPACE, SUBSCRIBE_NAMESPACE, SUBSCRIBE_TRACKS
//	status.go        TRACK_STATUS
//	fetch.go         FETCH, and what precedes a subscription, from what is kept
//	fetchfrom.go     what isn't kept of that, from publishers
//	spans.go         ranges of locations
//	drafts.go        what differs between drafts
//	track.go         a track: upstream and downstream subscriptions
//	source.go        upstream: the relay's SUBSCRIBE, or a publisher's PUBLISH
//	subscription.go  downstream: a subscriber's SUBSCRIBE, or the relay's PUBLISH
//	incoming.go      a subgroup stream as it comes
//	subgroup.go      what is kept of it, for a while
//	kept.go          what is kept besides: datagrams, what was fetched, and what is known not to exist
//	malformed.go     objects that contradict one another
//	outgoing.go      the same stream as a subscriber gets it
//	filter.go        range filters
//	sieve.go         what a stream has of a subgroup for a subscriber with range filters
//	queue.go         which of a session's streams go first, and which are given up
//	datagram.go      objects in datagrams
//	stats.go         counters
//
// # How objects pass
//
// The relay gives a track one alias for all sessions. So the bytes of a subgroup stream, header and objects, are the
// same for all subscribers, and are kept once: a chunk for each read of the publisher's stream. A header of an object
// is forwarded when it is whole and valid, a payload as it comes. What has come is given to the library for all
// subscribers at once, if all that came before was sent; it leaves by one system call (package examples/quic/socket).
// Each subscriber's stream has a place in these bytes, and a goroutine that writes what couldn't be given at once; it
// waits in the library while the congestion window or the peer's flow control has no room. So the library holds little
// of each stream that isn't sent, and sends what is most urgent. Only a stream that begins within a subgroup differs:
// its header names the subgroup, and its first object's ID is absolute. A subscriber whose range filters leave objects
// out gets the same bytes but for the IDs that follow a gap; a header doesn't say then that the stream ends its group.
//
// # What the relay seals itself
//
// While many datagrams come and go, objects leave in packets that the relay makes and seals itself: a header and a
// STREAM frame with what has come, for each subscriber. That spares a turn of each connection's run loop. The frame is
// taken from the library's stream (quic.SendStream.TakeNext), with its flow control credit, so the library sends again
// what is lost, ends the stream and resets it; the header of a stream, what comes with it, and its end are the
// library's. It learns of the packets before it handles an ACK, else within two dozen milliseconds, at the end of one
// of the socket's rounds. So that they don't come before what is more urgent, and bursts are paced, the library gets
// what comes while something waits for the session, while the congestion window has no room, what takes more than ten
// packets, and what doesn't fill half a packet, which it puts into one with others.
//
// # What the kernel sends
//
// Between relays without protection (Config.Null), a program copies the packets of an upstream relay to relays below
// (Config.Interfaces). All relays' aliases have the same size then, so a subgroup stream below has the same bytes at
// the same offsets, but for its header. When user space has read that, it opens the stream below, on a stream ID that
// it leases of the library, and puts a row into a table of the kernel's: from there on, packets of the one stream are
// copied as packets of the other. No row, no copy.
//
// User space writes to such a stream as to others. A record of each copy is in a ring before the packet is read, so it
// is known what the kernel has sent of what is written; the library gets the rest, as far as the congestion window has
// room, which both share, as they share packet numbers (package examples/quic/outside). What is lost is sent again by
// the library, from what was written. Of flow control, each row has credit up to an offset, which moves on as user
// space does. To reset a stream, user space removes its row, waits until no program is sending, and reads the ring:
// then it knows the final size.
//
// # What a fetch gets
//
// Of each location in the range, an object is kept, or it is known not to exist, or neither. What isn't known is asked
// of publishers by FETCH, a range after the other, when the stream has come that far; what they say is remembered, and
// what they send is kept if it fits. What no publisher says in time is marked.
//
// # What a subscriber loses
//
// A publisher never waits for a subscriber. What waits for a session is bounded (Config.Backlog); beyond that, its
// least urgent streams are reset, the oldest ones first. Delivery timeouts of the publisher and of the subscriber
// reset streams before, and what isn't kept any more can't be sent. Each of these is counted
// (SubscriptionStats.Dropped). No other subscriber is affected. A subscription of which no stream was sent whole for
// Config.Patience, while streams were given up, ends as too far behind.
//
// # Trees of relays
//
// A relay that connects to others (Config.Upstreams) asks them for what no client here publishes: first the one that is
// configured first. It announces to all of them what clients publish: namespaces by PUBLISH_NAMESPACE, tracks by
// PUBLISH, paused. It passes on which namespaces and tracks clients follow, one prefix once. What comes from an
// upstream relay is for clients alone, so what a relay asks for has an end in any tree.
//
// The draft has no means against cycles. A relay asks its upstream relay for a track of a name of its own; if a client
// asks for that, there is a cycle, and the session with the upstream relay is closed. Until then, a track is subscribed
// to once, and few questions about it wait at a time (maxQuestions), each for Config.Patience.
//
// When an upstream relay leaves by GOAWAY, the relay connects anew, and subscribes there, before the old subscription
// ends: each stream that is being forwarded goes on, between two objects, with what comes on the new session. A relay
// that is drained refuses connections, so there may be no new session before the old one is over. Then, or when the
// relay above is gone without a word, subscriptions wait for Config.Patience.
//
// # Locks
//
// A track's mutex guards its subscriptions and what is kept of it, the relay's mutex who is there, a session's mutex
// its queue, a hop's mutex the streams on which the kernel sends. They are taken in this order: track, relay, session,
// outgoing, hop.
package relay
