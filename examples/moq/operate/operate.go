// Package operate shows a relay on a control socket (package control of the runtime), as the relays in the kernel are
// shown: fastrelay-gen ps, show, watch, check, drain, stop, page, and Prometheus.
//
//	programs  publishers: what comes, by objects; subscribers: what is sent, by streams and datagrams
//	sessions  session: who is connected
//	tables    tracks, subscriptions, and upstream relays with what went wrong last
//
// A stream to a subscriber counts when it is over: as "stream" if it was sent to its end, or under the reason why it
// was given up. Bytes of "stream" are those of all streams. Streams of FETCH and of fills aren't counted.
package operate

import (
	"context"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/fastrelay/fastrelay-gen/examples/moq/relay"
	"github.com/fastrelay/fastrelay-gen/runtime/abi"
	"github.com/fastrelay/fastrelay-gen/runtime/control"
	"github.com/fastrelay/fastrelay-gen/runtime/control/api"
)

// A Relay is what an operator sees of a relay.
type Relay struct {
	name     string
	relay    *relay.Relay
	sessions int // at most
	settings api.Object

	mu        sync.Mutex
	was, last sample
}

var _ control.UserSpace = (*Relay)(nil)

// New shows a relay under a name.
func New(name string, r *relay.Relay) *Relay {
	config := r.Config()
	return &Relay{name: name, relay: r, sessions: config.Sessions, settings: object(
		"address", r.Addr().String(),
		"backlog", config.Backlog, "cache", config.Cache, "track_cache", config.TrackCache,
		"keep", config.Keep.String(), "grace", config.Grace.String(), "rendezvous", config.Rendezvous.String())}
}

// object makes an object of names and values in turn.
func object(pairs ...any) (o api.Object) {
	for i := 0; i < len(pairs); i += 2 {
		o = append(o, api.Named{Name: pairs[i].(string), Value: pairs[i+1]})
	}
	return o
}

// sample is what tracks had counted at a time.
type sample struct {
	at     time.Time
	tracks map[trackKey]relay.Totals
}

type trackKey struct{ scope, name string }

// Run computes the rates of tracks, once a second until ctx ends.
func (o *Relay) Run(ctx context.Context) {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for now := time.Now(); ; {
		o.look(now, o.relay.Stats().Tracks)
		select {
		case <-ctx.Done():
			return
		case now = <-ticker.C:
		}
	}
}

// look takes note of what tracks have counted.
func (o *Relay) look(at time.Time, tracks []relay.TrackStats) {
	now := sample{at, map[trackKey]relay.Totals{}}
	for i := range tracks {
		t := &tracks[i]
		now.tracks[trackKey{t.Scope, t.Name}] = relay.Totals{Received: t.Received, Sent: t.Sent}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.was, o.last = o.last, now
}

// rates returns the bits a second that came of a track, and that were sent of it, between the last two looks.
func (o *Relay) rates(t *relay.TrackStats) (in, out uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	key := trackKey{t.Scope, t.Name}
	a, b := o.was.tracks[key], o.last.tracks[key] // of a track that is new, a has nothing
	seconds := o.last.at.Sub(o.was.at).Seconds()
	if o.was.tracks == nil || b.Received.Bytes < a.Received.Bytes || sent(&b) < sent(&a) { // the latter: another one
		return 0, 0
	}
	rate := func(a, b uint64) uint64 { return uint64(8 * float64(b-a) / seconds) }
	return rate(a.Received.Bytes, b.Received.Bytes), rate(sent(&a), sent(&b))
}

func sent(t *relay.Totals) uint64 { return t.Sent.Bytes + t.Sent.DatagramBytes }

// Relay implements [control.UserSpace].
func (o *Relay) Relay() api.Relay {
	stats := o.relay.Stats()
	subscriptions := 0
	for i := range stats.Tracks {
		subscriptions += len(stats.Tracks[i].Subscriptions)
	}
	tracks, upstreams := len(stats.Tracks), len(stats.Upstreams)
	return api.Relay{
		Name: o.name, Draining: o.relay.Draining(), Settings: o.settings,
		Sessions: []api.Kind{{Name: sessionKind, Values: sessionFields, Open: &stats.Sessions, Limit: o.sessions}},
		Tables: []api.Kind{
			{Name: tracksTable, Key: trackMembers, Values: trackValues(), Open: &tracks},
			{Name: subscriptionsTable, Key: subscriptionMembers, Values: subscriptionValues(), Open: &subscriptions},
			{Name: upstreamsTable, Key: upstreamMembers, Values: upstreamValues(), Open: &upstreams},
		},
	}
}

// Programs implements [control.UserSpace].
func (o *Relay) Programs() []api.Program {
	totals, counters := o.relay.Totals(), o.relay.Counters()
	in, out := &totals.Received, &totals.Sent
	reason := func(name string, kind abi.ReasonKind, packets, bytes uint64, doc string) api.Reason {
		return api.Reason{Name: name, Kind: kind.String(), Packets: packets, Bytes: bytes, Doc: doc}
	}
	from := []api.Reason{
		reason("object", abi.ReasonSent, in.Objects, in.Bytes-in.DatagramBytes, "objects that came on streams"),
		reason("datagram", abi.ReasonSent, in.Datagrams, in.DatagramBytes, "objects that came in datagrams"),
		reason("duplicate", abi.ReasonDropped, in.Duplicates, 0, "objects that another publisher had sent already"),
		reason("unknown_track", abi.ReasonDropped, counters.Unknown, 0, "streams and datagrams of no known track"),
	}
	to := []api.Reason{
		reason("stream", abi.ReasonCopied, out.Whole, out.Bytes, "streams that were sent to their end"),
		reason("datagram", abi.ReasonCopied, out.Datagrams, out.DatagramBytes, "objects that were sent in datagrams"),
		reason("datagram_dropped", abi.ReasonDeclined, out.DroppedDatagrams, 0,
			"datagrams that were late, too large, or for which the session had no room"),
	}
	dropped := out.DroppedStreams()
	for name, doc := range relay.DropReasons() {
		to = append(to, reason(name, abi.ReasonDeclined, dropped[name], 0, doc))
	}
	place := []api.Attachment{{Interface: o.relay.Addr().String(), How: "udp", Attached: true}}
	const hook = "user space"
	return []api.Program{
		{Name: "publishers", Hook: hook, Attachments: place, Reasons: from},
		{Name: "subscribers", Hook: hook, Attachments: place, Reasons: to},
	}
}

// Counters implements [control.UserSpace].
func (o *Relay) Counters() api.Object {
	c := o.relay.Counters()
	return object("sessions", c.Sessions, "sessions_failed", c.FailedSessions, "requests_refused", c.Refused)
}

// Drain implements [control.UserSpace].
func (o *Relay) Drain(ctx context.Context) error { return o.relay.Leave(ctx) }

// EndDrain implements [control.UserSpace].
func (o *Relay) EndDrain() { o.relay.EndLeave() }

// CloseSessions implements [control.UserSpace].
func (o *Relay) CloseSessions() int { return o.relay.Expel() }

// WriteMetrics implements [control.UserSpace].
func (o *Relay) WriteMetrics(w io.Writer) error {
	stats := o.relay.Stats()
	return stats.WriteMetrics(w)
}

// id is a session's; lists are in the order of IDs as texts.
func id(session uint64) string { return fmt.Sprintf("%06d", session) }
