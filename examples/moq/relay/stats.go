package relay

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync/atomic"
)

// counters are the relay's own.
type counters struct {
	sessions      atomic.Uint64
	failed        atomic.Uint64 // sessions that were closed for a violation
	refused       atomic.Uint64 // requests
	unknown       atomic.Uint64 // streams and datagrams of no known track
	subscriptions atomic.Uint64
}

// ReceivedStats say what came of a track.
type ReceivedStats struct {
	Streams    uint64
	Objects    uint64 // of streams
	Datagrams  uint64
	Bytes      uint64
	Duplicates uint64 // objects of streams that another publisher had sent already
}

// SubscriptionStats say what a subscription got.
type SubscriptionStats struct {
	Streams          uint64
	Bytes            uint64 // of streams, after their headers
	Datagrams        uint64
	DroppedDatagrams uint64
	Dropped          [reasons]uint64 // streams that were given up before all was sent, by reason
}

// DroppedStreams are the streams that were given up, by reason.
func (s *SubscriptionStats) DroppedStreams() map[string]uint64 {
	all := map[string]uint64{}
	for r := kept + 1; r < reasons; r++ {
		all[reasonNames[r]] = s.Dropped[r]
	}
	return all
}

// TrackStats say what a track's publishers have sent, and what its subscribers got.
type TrackStats struct {
	Scope, Name   string // the name as the draft writes it for people (§8.8)
	Publishers    int
	Waiting       int // subscriptions that wait for a publisher
	Subscriptions []SubscriptionStats
	Cached        int // bytes
	Received      ReceivedStats
	Sent          SubscriptionStats // the sum, with subscriptions that are over
}

// Stats are those of the relay.
type Stats struct {
	Sessions       int    // that are open
	AllSessions    uint64 // with those that are over
	FailedSessions uint64 // closed for a violation
	Refused        uint64 // requests
	Unknown        uint64 // streams and datagrams of no known track
	Cached         int64  // bytes
	Tracks         []TrackStats
	Upstreams      []UpstreamStats
}

// Stats returns what the relay did. Tracks that aren't in use any more are forgotten.
func (r *Relay) Stats() Stats {
	all := Stats{
		AllSessions: r.counters.sessions.Load(), FailedSessions: r.counters.failed.Load(),
		Refused: r.counters.refused.Load(), Unknown: r.counters.unknown.Load(), Cached: r.cached.Load(),
	}
	r.mu.Lock()
	all.Sessions = len(r.sessions)
	r.mu.Unlock()
	all.Upstreams = r.upstreamStats()
	for _, t := range r.list() {
		t.mu.Lock()
		one := TrackStats{
			Scope: t.key.scope, Name: t.key.name, Publishers: len(t.sources), Waiting: len(t.waiting),
			Cached: t.cached, Received: t.received, Sent: t.sent,
		}
		for _, u := range t.subs {
			one.Subscriptions = append(one.Subscriptions, u.stats)
		}
		t.mu.Unlock()
		all.Tracks = append(all.Tracks, one)
	}
	slices.SortFunc(all.Tracks, func(a, b TrackStats) int {
		return cmp.Or(strings.Compare(a.Scope, b.Scope), strings.Compare(a.Name, b.Name))
	})
	return all
}

// WriteMetrics writes the counters in Prometheus' text format.
func (s *Stats) WriteMetrics(w io.Writer) error {
	var b strings.Builder
	one := func(name, kind, help string, value any) {
		fmt.Fprintf(&b, "# HELP moq_%s %s\n# TYPE moq_%s %s\nmoq_%s %v\n", name, help, name, kind, name, value)
	}
	one("sessions", "gauge", "Sessions that are open.", s.Sessions)
	one("sessions_total", "counter", "Sessions, with those that are over.", s.AllSessions)
	one("sessions_failed_total", "counter", "Sessions that were closed for a violation of the draft.", s.FailedSessions)
	one("requests_refused_total", "counter", "Requests that were refused.", s.Refused)
	one("unknown_total", "counter", "Streams and datagrams of no known track.", s.Unknown)
	one("cached_bytes", "gauge", "Bytes of objects that are kept.", s.Cached)
	s.writeUpstreams(&b)
	s.writeTracks(&b)
	_, err := io.WriteString(w, b.String())
	return err
}

func (s *Stats) writeTracks(b *strings.Builder) {
	for _, m := range []struct {
		name, kind, help string
		value            func(t *TrackStats) uint64
	}{
		{"track_publishers", "gauge", "Publishers of a track.",
			func(t *TrackStats) uint64 { return uint64(t.Publishers) }},
		{"track_subscriptions", "gauge", "Subscriptions to a track.",
			func(t *TrackStats) uint64 { return uint64(len(t.Subscriptions)) }},
		{"track_received_objects_total", "counter", "Objects that came on streams.",
			func(t *TrackStats) uint64 { return t.Received.Objects }},
		{"track_received_datagrams_total", "counter", "Objects that came in datagrams.",
			func(t *TrackStats) uint64 { return t.Received.Datagrams }},
		{"track_received_bytes_total", "counter", "Bytes of objects that came.",
			func(t *TrackStats) uint64 { return t.Received.Bytes }},
		{"track_sent_streams_total", "counter", "Streams that were opened for subscribers.",
			func(t *TrackStats) uint64 { return t.Sent.Streams }},
		{"track_sent_bytes_total", "counter", "Bytes of objects that were sent on streams.",
			func(t *TrackStats) uint64 { return t.Sent.Bytes }},
		{"track_sent_datagrams_total", "counter", "Objects that were sent in datagrams.",
			func(t *TrackStats) uint64 { return t.Sent.Datagrams }},
		{"track_dropped_datagrams_total", "counter", "Datagrams that a subscriber had no room for, or that were late.",
			func(t *TrackStats) uint64 { return t.Sent.DroppedDatagrams }},
	} {
		fmt.Fprintf(b, "# HELP moq_%s %s\n# TYPE moq_%s %s\n", m.name, m.help, m.name, m.kind)
		for i := range s.Tracks {
			t := &s.Tracks[i]
			fmt.Fprintf(b, "moq_%s{scope=%s,track=%s} %d\n", m.name, label(t.Scope), label(t.Name), m.value(t))
		}
	}
	b.WriteString("# HELP moq_track_dropped_streams_total Streams that were given up, by reason.\n" +
		"# TYPE moq_track_dropped_streams_total counter\n")
	for i := range s.Tracks {
		t := &s.Tracks[i]
		for r := kept + 1; r < reasons; r++ {
			fmt.Fprintf(b, "moq_track_dropped_streams_total{scope=%s,track=%s,reason=%s} %d\n",
				label(t.Scope), label(t.Name), label(reasonNames[r]), t.Sent.Dropped[r])
		}
	}
}

// label quotes a value of a label.
func label(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(s) + `"`
}
