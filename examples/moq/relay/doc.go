// Package relay is a relay for Media over QUIC Transport (MOQT, draft-ietf-moq-transport-22 and -18): publishers and
// players of any implementation connect to it, on QUIC and on WebTransport, and each track goes from its publishers
// to all its subscribers.
//
//	relay.go         the relay: the listener, sessions, drain
//	upstream.go      sessions with upstream relays
//	tree.go          tracks that come from upstream relays
//	interest.go      namespaces to and from upstream relays
//	transport.go     what carries a session: QUIC, or WebTransport
//	session.go       a session: SETUP, control streams, GOAWAY, the beginning of requests
//	request.go       requests: bidirectional streams with messages, which never wait for a peer
//	ids.go           request IDs
//	tokens.go        authorization tokens, and the aliases that peers register
//	namespace.go     PUBLISH_NAMESPACE, SUBSCRIBE_NAMESPACE, SUBSCRIBE_TRACKS
//	status.go        TRACK_STATUS
//	fetch.go         FETCH, and what precedes a subscription, from what is kept
//	fetchfrom.go     FETCH, from a publisher
//	drafts.go        what differs between drafts
//	track.go         a track: upstream and downstream subscriptions
//	source.go        upstream: the relay's SUBSCRIBE, or a publisher's PUBLISH
//	subscription.go  downstream: a subscriber's SUBSCRIBE, or the relay's PUBLISH
//	incoming.go      a subgroup stream as it comes
//	subgroup.go      what is kept of it, for a while
//	outgoing.go      the same stream as a subscriber gets it
//	queue.go         which of a session's streams go first, and which are given up
//	datagram.go      objects in datagrams
//	stats.go         counters
//
// # How objects pass
//
// The relay gives a track one alias for all sessions. So the bytes of a subgroup stream, header and objects, are the
// same for all subscribers, and are kept once: a chunk for each read of the publisher's stream. A header of an object
// is forwarded when it is whole and valid, a payload as it comes. Each subscriber's stream has a place in these bytes
// and a goroutine that writes from there; it waits in the library while the congestion window or the peer's flow
// control has no room, so that the library holds no more than a packet of each stream that isn't sent, and sends what
// is most urgent. Only a stream that begins within a subgroup differs: its header names the subgroup, and its first
// object's ID is absolute.
//
// # What a subscriber loses
//
// A publisher never waits for a subscriber. What waits for a session is bounded (Config.Backlog); beyond that, its
// least urgent streams are reset, the oldest ones first. Delivery timeouts of the publisher and of the subscriber
// reset streams before, and what isn't kept any more can't be sent. Each of these is counted
// (SubscriptionStats.Dropped). No other subscriber is affected.
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
