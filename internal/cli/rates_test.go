package cli

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

func counted(sent, up uint64) []tally {
	return []tally{
		{program: "to_peer", kind: "sent", reason: "sent", packets: sent, bytes: sent * 125},
		{program: "to_peer", kind: "up", reason: "no_by_channel", doc: "no row in by_channel", packets: up},
		{program: "to_peer", kind: "drop", reason: "over_quota", doc: "dropped, as the spec says"},
		{program: "to_client", kind: "sent", reason: "sent"},
	}
}

func TestTable(t *testing.T) {
	var v view
	start := time.Unix(0, 0)
	v.look(start, counted(1_000_000, 28))
	rates := v.look(start.Add(2*time.Second), counted(1_236_408, 31))
	want := `          packets/s  Mbit/s      total
to_peer     118,204   118.2  1,236,408  sent
                  2     0.0         31  to the stack: no_by_channel (no row in by_channel)
to_client         0     0.0          0  no packet yet
`
	if diff := cmp.Diff(want, table(rates, 0)); diff != "" {
		t.Errorf("table (-want +got):\n%s", diff)
	}
	want = "to_peer: 118,206 packets/s 118.2 Mbit/s, 1,236,408 sent, 31 to the stack (no_by_channel); " +
		"to_client: 0 packets/s 0.0 Mbit/s, no packet yet\n"
	if diff := cmp.Diff(want, line(rates)); diff != "" {
		t.Errorf("line (-want +got):\n%s", diff)
	}
}

// A program whose interface has gone says so, whether it has counted anything or not; one whose interface is there
// says nothing.
func TestTableOfLostInterfaces(t *testing.T) {
	var v view
	rates := v.look(time.Unix(1, 0), []tally{
		{program: "to_peer", kind: kindInterface, reason: "eth0", doc: "not attached to eth0: the interface is gone"},
		{program: "to_peer", kind: kindInterface, reason: "eth1"},
		{program: "to_peer", kind: "sent", reason: "sent", packets: 7},
		{program: "to_client", kind: kindInterface, reason: "eth0", doc: "not attached to eth0: the interface is gone"},
		{program: "to_client", kind: "sent", reason: "sent"},
	})
	want := `          packets/s  Mbit/s  total
to_peer           0     0.0      0  not attached to eth0: the interface is gone
                  0     0.0      7  sent
to_client         0     0.0      0  not attached to eth0: the interface is gone
`
	if diff := cmp.Diff(want, table(rates, 0)); diff != "" {
		t.Errorf("table (-want +got):\n%s", diff)
	}
	want = "to_peer: 0 packets/s 0.0 Mbit/s, not attached to eth0: the interface is gone, 7 sent; " +
		"to_client: 0 packets/s 0.0 Mbit/s, not attached to eth0: the interface is gone\n"
	if diff := cmp.Diff(want, line(rates)); diff != "" {
		t.Errorf("line (-want +got):\n%s", diff)
	}
}

// Copies are no packets that came: they have a rate of their own. Receivers and lost records are after the programs.
func TestTableOfCopies(t *testing.T) {
	at := func(seconds uint64) []tally {
		return []tally{
			{program: "spread", kind: "pass", reason: "pass", doc: "passed to the stack, as the spec says",
				packets: 1_000 * seconds, bytes: 125_000 * seconds},
			{program: "spread", kind: "copy", reason: "copy", doc: "a copy was sent", packets: 1_900 * seconds,
				bytes: 237_500 * seconds},
			{program: "spread", kind: "declined", reason: "refused_credit", doc: "no credit left",
				packets: 100 * seconds, bytes: 12_500 * seconds},
			{program: "spread", kind: "declined", reason: "no_neighbour"},
			{program: "listeners 1", kind: kindReceiver, packets: 1_900 * seconds, bytes: 237_500 * seconds,
				doc: "copies to 203.0.113.2:6000"},
			{program: "listeners 2", kind: kindReceiver, doc: "copies to 203.0.113.3:6000"},
			{program: "events", kind: kindLost, reason: "sent", doc: "lost: sent", packets: 50 * seconds},
			{program: "events", kind: kindLost, reason: "joined", doc: "lost: joined"},
		}
	}
	var v view
	start := time.Unix(0, 0)
	v.look(start, at(1))
	rates := v.look(start.Add(time.Second), at(2))
	want := `            packets/s  Mbit/s  total
spread          1,000     1.0  2,000  pass
                1,900     1.9  3,800  copy
                  100     0.1    200  declined: refused_credit (no credit left)
listeners 1     1,900     1.9  3,800  copies to 203.0.113.2:6000
listeners 2         0     0.0      0  copies to 203.0.113.3:6000
events             50     0.0    100  lost: sent
`
	if diff := cmp.Diff(want, table(rates, 0)); diff != "" {
		t.Errorf("table (-want +got):\n%s", diff)
	}
	want = "spread: 1,000 packets/s 1.0 Mbit/s, 1,900 copies/s, 2,000 pass, 3,800 copy, " +
		"200 declined (refused_credit); events: 100 lost (sent)\n"
	if diff := cmp.Diff(want, line(rates)); diff != "" {
		t.Errorf("line (-want +got):\n%s", diff)
	}
	if got := line(v.look(start, at(0))); got != "spread: 0 packets/s 0.0 Mbit/s, 0 copies/s, no packet yet\n" {
		t.Errorf("nothing yet: %q", got)
	}
}

// What is seen for the first time has no rate, since it may have counted for long; a flow begins when it is seen. What
// has counted less than before is another one of the same name.
func TestRatesOfWhatComesAndGoes(t *testing.T) {
	var v view
	at := func(second int64, all ...tally) (rates []float64) {
		for _, r := range v.look(time.Unix(second, 0), all) {
			rates = append(rates, r.packetsPerSecond)
		}
		return rates
	}
	session := func(name string, n uint64) tally { return tally{program: name, packets: n} }
	flow := func(n uint64) tally { return tally{program: "at peer", kind: kindArrived, packets: n} }
	at(0, session("a 1", 100))
	if got := at(1, session("a 1", 107), session("a 2", 1000), flow(5)); !slices.Equal(got, []float64{7, 0, 5}) {
		t.Errorf("rates %v", got)
	}
	if got := at(2, session("a 1", 3), session("a 2", 1002), flow(6)); !slices.Equal(got, []float64{0, 2, 1}) {
		t.Errorf("rates %v", got)
	}
}

func TestLabel(t *testing.T) {
	for _, c := range []struct {
		tally
		want string
	}{
		{tally{kind: "sent", reason: "sent", doc: "rewritten and sent"}, "sent"},
		{tally{kind: "up", reason: "short", doc: "too short"}, "to the stack: short (too short)"},
		{tally{kind: "up", reason: "short"}, "to the stack: short"},
		{tally{kind: "drop", reason: "over_quota", doc: "dropped, as the spec says"}, "drop: over_quota"},
		{tally{kind: "fault", reason: "fault", doc: "the kernel failed"}, "fault"},
		{tally{kind: "copy", reason: "copy", doc: "a copy was sent"}, "copy"},
		{tally{kind: "declined", reason: "refused_rate", doc: "no rate left"}, "declined: refused_rate (no rate left)"},
		{tally{kind: "declined", reason: "layer", doc: "no copy, as the spec says"}, "declined: layer"},
	} {
		if got := label(c.tally); got != c.want {
			t.Errorf("label %+v: %q, not %q", c.tally, got, c.want)
		}
	}
}

// On a terminal the second table is drawn over the first. What doesn't fit is cut, and the last line says so.
func TestRedraw(t *testing.T) {
	var out bytes.Buffer
	var v view
	for _, text := range []string{"1\n2\n3\n", "a\nb\nc\nd\ne\n"} {
		if err := v.redraw(&out, text, 80, 6); err != nil {
			t.Fatal(err)
		}
	}
	const more = "… 2 lines more; a higher terminal and the end of the run show all\n"
	if want := "1\n2\n3\n\x1b[3A\x1b[Ja\nb\nc\n" + more; want !=
		out.String() {
		t.Errorf("%q, not %q", out.String(), want)
	}
	var forty []tally
	for n := range 40 {
		forty = append(forty, tally{program: fmt.Sprintf("listeners %d", n+1), kind: kindReceiver, doc: "copies"})
	}
	out.Reset()
	v = view{}
	if err := v.redraw(&out, table(v.look(time.Unix(0, 0), forty), 80), 80, 24); err != nil {
		t.Fatal(err)
	}
	if got := out.String(); strings.Count(got, "\n") != 22 || !strings.Contains(got, "listeners 20") ||
		!strings.HasSuffix(got, "show all\n") || !strings.Contains(got, "… 20 lines more") {
		t.Errorf("40 receivers on 24 lines:\n%s", got)
	}
}

// screen is a terminal of some columns and lines, which understands what redraw writes. If the last column of a line
// has a character, the next one begins a line, as on all terminals.
type screen struct {
	width, height int
	lines         [][]rune // what has scrolled off the top as well
	row, column   int
}

func (s *screen) Write(text []byte) (int, error) {
	rest := string(text)
	for rest != "" {
		n, what := 0, ' '
		if strings.HasPrefix(rest, "\x1b[J") {
			s.lines = append(s.lines[:s.row:s.row], s.lines[s.row][:s.column])
			rest = rest[3:]
			continue
		} else if _, err := fmt.Sscanf(rest[:min(len(rest), 8)], "\x1b[%d%c", &n, &what); err == nil && what == 'A' {
			s.row = max(s.row-n, len(s.lines)-s.height, 0)
			s.column = min(s.column, len(s.lines[s.row]))
			rest = rest[len(fmt.Sprint("\x1b[", n, "A")):]
			continue
		}
		for _, c := range rest {
			if c == '\x1b' {
				break
			}
			rest = rest[utf8.RuneLen(c):]
			if c == '\n' || s.column == s.width {
				s.row, s.column = s.row+1, 0
			}
			s.extend()
			if c != '\n' {
				s.lines[s.row] = append(s.lines[s.row][:s.column:s.column], c)
				s.column++
			}
		}
	}
	return len(text), nil
}

func (s *screen) extend() {
	for len(s.lines) <= s.row {
		s.lines = append(s.lines, nil)
	}
}

func (s *screen) String() string {
	var all []string
	for _, l := range s.lines {
		all = append(all, string(l))
	}
	return strings.Join(all, "\n")
}

// On a terminal of any width there is the last table after any number of redraws, and nothing of those before. Each
// program's numbers and labels are whole.
func TestRedrawAtWidths(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	word := func(longest int) string {
		return strings.Repeat("word_", longest)[:1+random.IntN(longest)]
	}
	for width := 40; width <= 120; width++ {
		for _, height := range []int{5, 24, 50} {
			out := &screen{width: width, height: height}
			var v view
			var all []tally
			for i := range 1 + random.IntN(6) {
				program := fmt.Sprint(i, word(20)) // the same name isn't there twice
				for j := range 1 + random.IntN(4) {
					doc := ""
					for range random.IntN(12) {
						doc += word(12) + " "
					}
					all = append(all, tally{program: program, kind: "up", reason: fmt.Sprint(word(30), j),
						doc: strings.TrimSpace(doc)})
				}
				all = append(all, tally{program: "at peer", kind: kindArrived, reason: program,
					doc: "UDP [2001:db8:1111:2222::1]:50000 -> [2001:db8:1111:2222:3333::2]:9000"})
			}
			last := ""
			for n := range 8 {
				for i := range all {
					if n == 0 {
						all[i].packets = random.Uint64N(1 << (8 * (1 + random.IntN(5))))
					}
					all[i].packets += random.Uint64N(1 << (8 * (1 + random.IntN(3))))
					all[i].bytes = all[i].packets * 100
				}
				last = table(v.look(time.Unix(int64(n), 0), all), width)
				if err := v.redraw(out, last, width, height); err != nil {
					t.Fatal(err)
				}
			}
			lines := strings.Split(last, "\n")
			for _, l := range lines {
				if len(l) > width {
					t.Fatalf("%d columns: a line of %d:\n%s", width, len(l), last)
				}
			}
			if more := len(lines) - 1 - (height - 3); more > 1 {
				lines = append(lines[:height-3],
					fmt.Sprintf("… %d lines more; a higher terminal and the end of the run show all", more), "")
				if cut := []rune(lines[height-3]); len(cut) > width {
					lines[height-3] = string(cut[:width-1]) + "…"
				}
			}
			if want := strings.Join(lines, "\n"); out.String() != want {
				t.Fatalf("a terminal of %d columns and %d lines shows\n%s\nnot\n%s", width, height, out, want)
			}
			for _, a := range all {
				for _, want := range []string{thousands(a.packets), label(a)} {
					solid := func(s string) string { return strings.Join(strings.Fields(s), "") }
					if !strings.Contains(solid(last), solid(want)) {
						t.Fatalf("%d columns: %q is not in\n%s", width, want, last)
					}
				}
			}
		}
	}
}

func TestThousands(t *testing.T) {
	for n, want := range map[uint64]string{0: "0", 999: "999", 1000: "1,000", 1204991: "1,204,991"} {
		if got := thousands(n); got != want {
			t.Errorf("%d: %s, not %s", n, got, want)
		}
	}
}
