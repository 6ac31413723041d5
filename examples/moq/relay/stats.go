package relay

import (
	"cmp"
	"fmt"
	"io"
	"iter"
	"maps"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/fastrelay/fastrelay-gen/examples/moq/wire"
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
	Streams       uint64
	Objects       uint64 // of streams
	Datagrams     uint64
	Bytes         uint64
	DatagramBytes uint64 // of these, payloads of datagrams
	Duplicates    uint64 // objects of streams that another publisher had sent already
}

func (s *ReceivedStats) add(o *ReceivedStats) {
	s.Streams += o.Streams
	s.Objects += o.Objects
	s.Datagrams += o.Datagrams
	s.Bytes += o.Bytes
	s.DatagramBytes += o.DatagramBytes
	s.Duplicates += o.Duplicates
}

// SubscriptionStats say what a subscription got.
type SubscriptionStats struct {
	Session          uint64 // whose it is; 0: of several
	Streams          uint64 // that were opened
	Whole            uint64 // subgroup streams that were sent to their end
	Bytes            uint64 // of streams, after their headers
	KernelBytes      uint64 // of these, those that the kernel has sent,
	SealedBytes      uint64 // and those in packets that the relay has sealed itself
	Datagrams        uint64
	DatagramBytes    uint64
	DroppedDatagrams uint64
	Dropped          [reasons]uint64 // subgroup streams that were given up before all was sent, by reason
}

func (s *SubscriptionStats) add(o *SubscriptionStats) {
	s.Streams += o.Streams
	s.Whole += o.Whole
	s.Bytes += o.Bytes
	s.KernelBytes += o.KernelBytes
	s.SealedBytes += o.SealedBytes
	s.Datagrams += o.Datagrams
	s.DatagramBytes += o.DatagramBytes
	s.DroppedDatagrams += o.DroppedDatagrams
	for r, n := range o.Dropped {
		s.Dropped[r] += n
	}
}

// DroppedStreams are the streams that were given up, by reason.
func (s *SubscriptionStats) DroppedStreams() map[string]uint64 {
	all := map[string]uint64{}
	for r := kept + 1; r < reasons; r++ {
		all[reasonNames[r]] = s.Dropped[r]
	}
	return all
}

// DropReasons are the reasons for which streams are given up, with a description of each, always in the same order.
func DropReasons() iter.Seq2[string, string] {
	return func(yield func(name, doc string) bool) {
		for r := kept + 1; r < reasons && yield(reasonNames[r], reasonDocs[r]); r++ {
		}
	}
}

// Totals are the sums of all tracks, with those that are forgotten. They never decrease.
type Totals struct {
	Received ReceivedStats
	Sent     SubscriptionStats
}

func (t *Totals) add(o *Totals) {
	t.Received.add(&o.Received)
	t.Sent.add(&o.Sent)
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

// SessionStats say who is connected.
type SessionStats struct {
	ID            uint64 // sessions count from 1
	Remote        string // address and port
	Scope         string // "": SETUP hasn't come
	Draft         wire.Draft
	WebTransport  bool
	Null          bool // packets aren't protected after the handshake
	Leaving       bool // the peer was asked to leave
	Requests      int  // that are open, of both sides
	Subscriptions int  // that are established
	Tracks        int  // that the peer publishes, and the relay is subscribed to
	Backlog       int  // bytes that wait for the peer
	Sent          SubscriptionStats
}

// Stats are those of the relay.
type Stats struct {
	Sessions       int    // that are open
	AllSessions    uint64 // with those that are over
	FailedSessions uint64 // closed for a violation
	Refused        uint64 // requests
	Unknown        uint64 // streams and datagrams of no known track
	Cached         int64  // bytes
	Totals         Totals
	Tracks         []TrackStats
	Upstreams      []UpstreamStats
	Open           []SessionStats // sessions, in the order in which they came
}

// Config returns what the relay was started with, and the defaults.
func (r *Relay) Config() Config { return r.config }

// Counters are the relay's own.
type Counters struct {
	Sessions       uint64 // with those that are over
	FailedSessions uint64 // closed for a violation
	Refused        uint64 // requests
	Unknown        uint64 // streams and datagrams of no known track
}

// Counters returns the relay's own counters.
func (r *Relay) Counters() Counters {
	c := &r.counters
	return Counters{c.sessions.Load(), c.failed.Load(), c.refused.Load(), c.unknown.Load()}
}

// Stats returns what the relay did. Tracks that aren't in use any more are in the totals alone.
func (r *Relay) Stats() Stats {
	all := Stats{
		AllSessions: r.counters.sessions.Load(), FailedSessions: r.counters.failed.Load(),
		Refused: r.counters.refused.Load(), Unknown: r.counters.unknown.Load(), Cached: r.cached.Load(),
	}
	r.mu.Lock()
	sessions := slices.Collect(maps.Keys(r.sessions))
	all.Totals = r.past
	tracks := slices.Collect(maps.Values(r.tracks))
	r.mu.Unlock()
	all.Upstreams = r.upstreamStats()
	all.Sessions = len(sessions)
	slices.SortFunc(sessions, func(a, b *session) int { return cmp.Compare(a.serial, b.serial) })
	open := map[*session]*SessionStats{}
	for _, s := range sessions {
		all.Open = append(all.Open, s.stats())
	}
	for i, s := range sessions {
		open[s] = &all.Open[i]
	}
	for _, t := range tracks {
		one, totals := t.stats(open)
		all.Totals.add(&totals)
		all.Tracks = append(all.Tracks, one)
	}
	slices.SortFunc(all.Tracks, func(a, b TrackStats) int {
		return cmp.Or(strings.Compare(a.Scope, b.Scope), strings.Compare(a.Name, b.Name))
	})
	return all
}

// Totals returns the sums of all tracks; it is cheaper than Stats.
func (r *Relay) Totals() Totals {
	r.mu.Lock()
	sum := r.past
	tracks := slices.Collect(maps.Values(r.tracks))
	r.mu.Unlock()
	for _, t := range tracks {
		t.mu.Lock()
		totals := t.totals()
		t.mu.Unlock()
		sum.add(&totals)
	}
	return sum
}

// totals are the track's, as long as those of the past don't have them. The track's mutex is held.
func (t *track) totals() Totals {
	if t.closed {
		return t.final
	}
	return Totals{t.received, t.sent}
}

// stats returns what the track has, and adds what sessions have of it.
func (t *track) stats(sessions map[*session]*SessionStats) (TrackStats, Totals) {
	t.mu.Lock()
	defer t.mu.Unlock()
	one := TrackStats{
		Scope: t.key.scope, Name: t.key.name, Publishers: len(t.sources), Waiting: len(t.waiting),
		Cached: t.cached, Received: t.received, Sent: t.sent,
	}
	for _, u := range t.subs {
		stats := u.stats
		stats.Session = u.session.serial
		one.Subscriptions = append(one.Subscriptions, stats)
		if s := sessions[u.session]; s != nil {
			s.Subscriptions++
			s.Sent.add(&stats)
		}
	}
	for _, src := range t.sources {
		if s := sessions[src.session]; s != nil {
			s.Tracks++
		}
	}
	return one, t.totals()
}

// stats returns what the session has, but for its tracks.
func (s *session) stats() SessionStats {
	_, http := s.conn.(overHTTP)
	one := SessionStats{ID: s.serial, Remote: s.conn.RemoteAddr().String(), Draft: s.draft, WebTransport: http,
		Null: s.quic.isNull()}
	select {
	case <-s.ready:
		one.Scope = s.scope
	default:
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	one.Leaving, one.Requests, one.Backlog = s.asked, s.requests, s.backlog
	return one
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
		{"track_kernel_bytes_total", "counter", "Of these, bytes that the kernel has copied.",
			func(t *TrackStats) uint64 { return t.Sent.KernelBytes }},
		{"track_sealed_bytes_total", "counter", "Of the bytes sent, those in packets that the relay sealed itself.",
			func(t *TrackStats) uint64 { return t.Sent.SealedBytes }},
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
