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
// ends: each stream that is being forwarded goes on, between two objects, with what comes on the new session. When it
// is gone without a word, subscriptions wait for Config.Patience.
//
// # Locks
//
// A track's mutex guards its subscriptions and what is kept of it, the relay's mutex who is there, a session's mutex
// its queue. They are taken in this order: track, relay, session, outgoing.
package relay
