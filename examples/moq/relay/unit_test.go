package relay

import (
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/fastrelay/fastrelay-gen/examples/moq/wire"
	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go"
)

// TestIDs uses request IDs in a random order, some of them twice.
func TestIDs(t *testing.T) {
	var used ids
	seen := map[uint64]bool{}
	r := rand.New(rand.NewPCG(1, 2))
	for range 5000 {
		id := 2 * r.Uint64N(1000)
		if got := used.use(id); got == seen[id] {
			t.Fatalf("ID %d: %v", id, got)
		}
		seen[id] = true
	}
	for id := uint64(0); id < 2000; id += 2 {
		if got := used.use(id); got == seen[id] {
			t.Fatalf("ID %d: %v", id, got)
		}
	}
	same(t, used, ids{{0, 1000}})
}

// TestGaps bounds what is remembered of IDs: the lowest gaps count as used.
func TestGaps(t *testing.T) {
	var used ids
	for i := range uint64(2 * maxGaps) {
		if !used.use(4 * (i + 1)) {
			t.Fatal(i)
		}
	}
	if len(used) > maxGaps {
		t.Fatalf("%d ranges", len(used))
	}
	same(t, used.use(2), false)
	same(t, used.use(4*2*maxGaps+2), true)
	same(t, used.use(1<<63), true)
	same(t, used.use(1<<63), false)
}

// TestTokens registers, uses and deletes aliases (§8.9).
func TestTokens(t *testing.T) {
	var c tokenCache
	steps := []struct {
		tokens []wire.Token
		want   []Token
		err    bool
	}{
		{tokens: []wire.Token{{AliasType: wire.UseValue, Type: 1, Value: "a"}}, want: []Token{{1, "a"}}},
		{tokens: []wire.Token{{AliasType: wire.Register, Alias: 7, Type: 2, Value: "b"}}, want: []Token{{2, "b"}}},
		{tokens: []wire.Token{{AliasType: wire.UseAlias, Alias: 7}}, want: []Token{{2, "b"}}},
		// What is there twice is refused, and what the same message registers is registered.
		{tokens: []wire.Token{
			{AliasType: wire.UseAlias, Alias: 7}, {AliasType: wire.UseValue, Type: 2, Value: "b"},
			{AliasType: wire.Register, Alias: 8, Type: 3, Value: "c"}}, err: true},
		{tokens: []wire.Token{{AliasType: wire.UseAlias, Alias: 8}}, want: []Token{{3, "c"}}},
		{tokens: []wire.Token{{AliasType: wire.DeleteAlias, Alias: 8}, {AliasType: wire.DeleteAlias, Alias: 7}}},
		{tokens: []wire.Token{{AliasType: wire.UseAlias, Alias: 7}}, err: true},
	}
	for i, s := range steps {
		got, err := c.resolve(s.tokens)
		if (err != nil) != s.err {
			t.Fatalf("step %d: %v", i, err)
		}
		if err == nil {
			same(t, got, s.want)
		}
	}
	same(t, c.size, 0)
	// In SETUP, what doesn't fit is used all the same, and not registered (§9.1.4).
	large := strings.Repeat("x", maxTokens-tokenCharged)
	got, err := c.setup([]wire.Token{
		{AliasType: wire.Register, Alias: 1, Value: large}, {AliasType: wire.Register, Alias: 2, Value: "y"}})
	if err != nil {
		t.Fatal(err)
	}
	same(t, got, []Token{{0, large}, {0, "y"}})
	if _, err := c.resolve([]wire.Token{{AliasType: wire.UseAlias, Alias: 2}}); err == nil {
		t.Fatal("a token that doesn't fit was registered")
	}
	var violation *wire.Error
	_, err = c.resolve([]wire.Token{{AliasType: wire.Register, Alias: 3}})
	if !errors.As(err, &violation) || violation.Code != wire.AuthTokenCacheOverflow {
		t.Fatal(err)
	}
}

// queued makes a stream of a session that waits.
func queued(s *session, u *subscription, priority uint8, in, id uint64) *outgoing {
	sg := &subgroup{group: &group{id: in}, priority: priority, header: wire.SubgroupHeader{Subgroup: id}}
	o := &outgoing{
		subscription: u, subgroup: sg, waits: 100, listed: true, stream: ranked{}, urgency: -1, cancel: func() {},
	}
	s.outgoing[o] = struct{}{}
	s.backlog += o.waits
	return o
}

// ranked is a stream whose priority doesn't matter.
type ranked struct{ sendStream }

func (ranked) SetPriority(int8, bool) {}

func (ranked) CancelWrite(quic.StreamErrorCode) {}

// TestRank maps priorities to the library's urgencies, in the draft's order (§5.1.2).
func TestRank(t *testing.T) {
	s := &session{outgoing: map[*outgoing]struct{}{}}
	subscriber := func(serial uint64, priority uint32, order wire.GroupOrder) *subscription {
		u := &subscription{serial: serial, order: wire.Some(order)}
		u.priority.Store(priority)
		return u
	}
	first, second := subscriber(1, 10, wire.Ascending), subscriber(2, 10, wire.Descending)
	third := subscriber(3, 20, wire.Ascending)
	want := []struct {
		o       *outgoing
		urgency int8
	}{
		{queued(s, first, 5, 1, 0), 3}, // the publisher's priority is higher than those below
		{queued(s, first, 7, 1, 0), 4},
		{queued(s, second, 7, 9, 2), 4}, // another subscription takes turns with it
		{queued(s, first, 7, 1, 3), 5},  // a later subgroup of the group
		{queued(s, second, 7, 8, 0), 5}, // descending: an earlier group
		{queued(s, first, 7, 2, 0), 6},  // ascending: a later group
		{queued(s, third, 0, 0, 0), 7},  // the subscriber's priority counts before the publisher's
		{queued(s, third, 9, 0, 0), 7},  // there is no urgency left
	}
	s.assign()
	for i, w := range want {
		if w.o.urgency != w.urgency {
			t.Errorf("stream %d has urgency %d, not %d", i, w.o.urgency, w.urgency)
		}
	}
	for _, w := range want[1:] {
		delete(s.outgoing, w.o)
	}
	want[0].o.urgency = urgencyLeast
	s.assign()
	same(t, want[0].o.urgency, urgencyData)
}

// TestLighten gives up the least urgent streams first, and of these the oldest.
func TestLighten(t *testing.T) {
	r := &Relay{config: Config{Backlog: 250}}
	s := &session{relay: r, outgoing: map[*outgoing]struct{}{}}
	urgent, other := &subscription{}, &subscription{}
	other.priority.Store(1)
	streams := []*outgoing{
		queued(s, urgent, 5, 1, 0), queued(s, urgent, 5, 2, 0), queued(s, other, 5, 1, 0), queued(s, other, 5, 2, 0),
	}
	s.lighten()
	var dropped []int
	for i, o := range streams {
		if o.why == droppedBacklog {
			dropped = append(dropped, i)
		}
	}
	same(t, dropped, []int{2, 3})
	s.wait(streams[1], 100)
	if s.backlog != 200 || streams[0].why != droppedBacklog {
		t.Fatalf("%d bytes wait", s.backlog)
	}
	s.wait(streams[0], 1000) // it isn't in the list any more
	same(t, s.backlog, 200)
}

// TestRange computes what filters pass (§9.20.10).
func TestRange(t *testing.T) {
	at := func(group, object uint64) wire.Location { return wire.Location{Group: group, Object: object} }
	largest := wire.Some(at(5, 3))
	var none wire.Optional[wire.Location]
	for _, tt := range []struct {
		filter      wire.LocationFilter
		largest     wire.Optional[wire.Location]
		first, last wire.Location
	}{
		{wire.LocationFilter{}, largest, at(0, 0), all},
		{wire.LocationFilter{Kind: wire.FilterRelative}, largest, at(6, 0), all},
		{wire.LocationFilter{Kind: wire.FilterRelative, Start: at(1, 0)}, largest, at(5, 0), all},
		{wire.LocationFilter{Kind: wire.FilterRelative, Start: at(9, 0)}, largest, at(0, 0), all},
		{wire.LocationFilter{Kind: wire.FilterRelative}, none, at(0, 0), all},
		{wire.LocationFilter{Kind: wire.FilterNextObject}, largest, at(5, 4), all},
		{wire.LocationFilter{Kind: wire.FilterNextObject}, none, at(0, 0), all},
		{wire.LocationFilter{Kind: wire.FilterStart, Start: at(2, 1)}, largest, at(2, 1), all},
		{wire.LocationFilter{Kind: wire.FilterGroups, Start: at(2, 1), End: at(4, 0)}, largest, at(2, 1),
			at(4, wire.WholeGroup)},
		{wire.LocationFilter{Kind: wire.FilterRange, Start: at(2, 1), End: at(4, 7)}, largest, at(2, 1), at(4, 7)},
	} {
		first, last := rangeOf(tt.filter, tt.largest)
		same(t, []wire.Location{first, last}, []wire.Location{tt.first, tt.last})
	}
}

// TestMetrics writes what is counted, with names that are quoted.
func TestMetrics(t *testing.T) {
	s := Stats{Sessions: 3, Tracks: []TrackStats{{Scope: "/\"x\"\n", Name: "a--b", Publishers: 1}}}
	s.Tracks[0].Sent.Dropped[droppedTimeout] = 4
	var b strings.Builder
	if err := s.WriteMetrics(&b); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(b.String(), "\n")
	for _, want := range []string{
		"moq_sessions 3",
		`moq_track_publishers{scope="/\"x\"\n",track="a--b"} 1`,
		`moq_track_dropped_streams_total{scope="/\"x\"\n",track="a--b",reason="timeout"} 4`,
	} {
		if !slices.Contains(lines, want) {
			t.Errorf("no line %s in\n%s", want, b.String())
		}
	}
}

// TestReadme finds each test that the README's table names.
func TestReadme(t *testing.T) {
	text, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob("../*/*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	var source []byte
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		source = append(source, b...)
	}
	names := regexp.MustCompile("`(Test[A-Za-z]+)`").FindAllStringSubmatch(string(text), -1)
	if len(names) < 50 {
		t.Errorf("the README names %d tests", len(names))
	}
	for _, n := range names {
		if !strings.Contains(string(source), "\nfunc "+n[1]+"(t *testing.T) {") {
			t.Errorf("there is no %s", n[1])
		}
	}
}
