// Package live measures the TURN relay at XDP beside itself at tc/ingress, and beside relays by hand at XDP, without a
// network card: BPF_PROG_TEST_RUN hands live frames to a program, as a driver does. What is redirected leaves by a
// device; what is passed on becomes an skb, which goes the stack's way to the program at tc/ingress.
package live

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"text/tabwriter"

	"github.com/fastrelay/fastrelay-gen/bench/baseline"
	"github.com/fastrelay/fastrelay-gen/internal/test/measure"
)

const (
	framesPerTry = 1 << 16
	tries        = 8
)

// Report is what was measured.
type Report struct {
	Frames  []Cell `json:"frames"`   // from the source to the far end
	InPlace []Cell `json:"in_place"` // the programs alone, on these frames
	Alone   []Cell `json:"alone"`    // the programs alone, one frame a call
}

// Traffic is a kind of frames.
type Traffic struct {
	Direction string `json:"direction"` // "to_peer", "to_client"
	Family    int    `json:"family"`    // 4, 6: on both sides
	Size      int    `json:"size"`      // bytes of payload
	Sessions  int    `json:"sessions"`  // that take turns, in random order
}

// String names it as tables do.
func (t Traffic) String() string {
	s := fmt.Sprintf("%s, IPv%d, %d bytes", t.Direction, t.Family, t.Size)
	if t.Sessions > 1 {
		s += fmt.Sprintf(", %d sessions", t.Sessions)
	}
	return s
}

// Cell is what a frame of a kind takes, in ns, by variant.
type Cell struct {
	Traffic
	Time map[Variant]float64 `json:"ns"`
}

// few and many are numbers of sessions: the rows of few are in the processor's caches, those of many aren't.
const (
	few  = 4096
	many = 1 << 20
)

// Measure measures all. Variants alternate from one try to the next; a round has the least disturbed try of each. root
// is the repository's folder.
func Measure(root string, rounds int, progress io.Writer) (*Report, error) {
	r := &Report{}
	for _, sessions := range []int{1, few, many} {
		families, sizes := []int{4, 6}, []int{120, 1200}
		if sessions > 1 { // few are as many as the relay has room for
			families, sizes = families[:1], sizes[:1]
		}
		fmt.Fprintf(progress, "\r%-50s", fmt.Sprintf("%d sessions", sessions))
		err := with(root, sessions, families, func(l *lab) error {
			for _, family := range families {
				for _, size := range sizes {
					for _, direction := range []string{toPeer, toClient} {
						t, err := l.traffic(direction, family, size)
						if err != nil {
							return err
						}
						fmt.Fprintf(progress, "\r%-50s", t)
						if err := l.measure(r, t, rounds); err != nil {
							return err
						}
					}
				}
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	fmt.Fprintf(progress, "\r%-50s\r", "")
	return r, nil
}

func with(root string, sessions int, families []int, do func(*lab) error) error {
	l, err := newLab(root, sessions, families...)
	if err != nil {
		return err
	}
	defer l.close()
	return do(l)
}

// measure adds a kind of frames to the report, after it was checked that all that relay it send the same.
func (l *lab) measure(r *Report, t *traffic, rounds int) error {
	if err := l.check(t); err != nil {
		return err
	}
	frames, err := alternate(Variants, rounds, func(v Variant) (float64, error) {
		r, err := l.run(v, t, framesPerTry, 0)
		return float64(r.took), err
	})
	if err != nil {
		return err
	}
	r.Frames = append(r.Frames, Cell{t.Traffic, frames})
	if t.Sessions > 1 {
		return nil
	}
	for _, part := range []struct {
		to      *[]Cell
		measure func(*traffic, int) (map[Variant]float64, error)
	}{{&r.InPlace, l.inPlace}, {&r.Alone, l.alone}} {
		ns, err := part.measure(t, rounds)
		if err != nil {
			return err
		}
		*part.to = append(*part.to, Cell{t.Traffic, ns})
	}
	return nil
}

// alternate measures variants in turn.
func alternate(variants []Variant, rounds int, one func(Variant) (float64, error)) (map[Variant]float64, error) {
	all := map[Variant][]float64{}
	for range rounds {
		least := map[Variant]float64{}
		for range tries {
			for _, v := range variants {
				took, err := one(v)
				if err != nil {
					return nil, err
				}
				if best, ok := least[v]; !ok || took < best {
					least[v] = took
				}
			}
		}
		for v, took := range least {
			all[v] = append(all[v], took)
		}
	}
	medians := map[Variant]float64{}
	for v, list := range all {
		medians[v] = measure.Median(list)
	}
	return medians, nil
}

// check has each variant relay some frames, and compares what arrives, byte by byte.
func (l *lab) check(t *traffic) error {
	for _, v := range Variants {
		want := t.out
		switch v {
		case Nothing:
			continue
		case Bare:
			want = t.in
		}
		before, err := l.taken(t.Direction)
		if err != nil {
			return err
		}
		r, err := l.run(v, t, maxKept, maxKept)
		if err != nil {
			return err
		}
		after, err := l.taken(t.Direction)
		if err != nil {
			return err
		}
		took, right := map[Variant]uint64{}, map[Variant]uint64{}
		for who, n := range after {
			took[who], right[who] = n-before[who], 0
		}
		if _, counts := took[v]; counts {
			right[v] = maxKept
		}
		if !maps.Equal(took, right) { // all of them, since a frame that one leaves comes to another
			return fmt.Errorf("%s, %s: they took %v frames", v, t, took)
		}
		frames, err := l.ends.Kept(maxKept)
		if err != nil {
			return err
		}
		for i, f := range frames {
			if w := want[(r.first+i)%len(want)]; !slices.Equal(f, w) {
				return fmt.Errorf("%s, %s: frame %d is\n%x, not\n%x", v, t, i, f, w)
			}
		}
	}
	return nil
}

// taken says how many frames those have sent that count them: so it shows which one a frame came to.
func (l *lab) taken(direction string) (map[Variant]uint64, error) {
	tc, xdp, err1 := baseline.Sent(l.tc[direction])
	byHand, err2 := l.hand.Sent(direction)
	return map[Variant]uint64{TC: tc, XDP: xdp, All: byHand}, errors.Join(err1, err2)
}

// A ratio that the report gives, and the most that is aimed at; 0: nothing is.
type ratio struct {
	of, by Variant
	goal   float64
}

var (
	ofFrames = []ratio{
		{XDP, TC, 0.45}, {XDP, Checks, 1.15}, {XDP, All, 0}, {XDP, Lean, 0}, {XDP, Routes, 0}, {XDP, Bare, 0},
	}
	ofPrograms = []ratio{{XDP, TC, 0.75}, {XDP, Checks, 0}, {XDP, All, 0}, {XDP, Lean, 0}}
)

// Print prints tables, and what came of each aim.
func Print(w io.Writer, r *Report) {
	fmt.Fprintf(w, "\nlive frames, from the source to the far end, ns a frame\n")
	printTimes(w, r.Frames, Variants)
	printRatios(w, r.Frames, ofFrames)
	fmt.Fprintf(w, "\nthe programs alone on these frames, ns\n")
	printTimes(w, r.InPlace, programs)
	printRatios(w, r.InPlace, ofPrograms)
	fmt.Fprintf(w, "\nthe programs alone, one frame a call, ns\n")
	printTimes(w, r.Alone, programs)
	printRatios(w, r.Alone, ofPrograms)
}

func printTimes(w io.Writer, cells []Cell, variants []Variant) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	for _, v := range variants {
		fmt.Fprintf(t, "\t%s", v)
	}
	fmt.Fprintln(t, "\t")
	for _, c := range cells {
		fmt.Fprint(t, c.Traffic)
		for _, v := range variants {
			fmt.Fprintf(t, "\t%.0f", c.Time[v])
		}
		fmt.Fprintln(t, "\t")
	}
	t.Flush()
}

func printRatios(w io.Writer, cells []Cell, ratios []ratio) {
	fmt.Fprintln(w)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	for _, r := range ratios {
		fmt.Fprintf(t, "\t%s / %s", r.of, r.by)
	}
	fmt.Fprintln(t, "\t")
	for _, c := range cells {
		fmt.Fprint(t, c.Traffic)
		for _, r := range ratios {
			fmt.Fprintf(t, "\t%s", measure.Ratio(c.Time[r.of], c.Time[r.by]))
		}
		fmt.Fprintln(t, "\t")
	}
	t.Flush()
	for _, r := range ratios {
		least, most, within, all := math.Inf(1), 0.0, 0, 0
		for _, c := range cells {
			if c.Sessions > 1 {
				continue // how much is in the processor's caches decides
			}
			all++
			x := c.Time[r.of] / c.Time[r.by]
			least, most = min(least, x), max(most, x)
			if x <= r.goal {
				within++
			}
		}
		if r.goal > 0 {
			fmt.Fprintf(w, "%s / %s: %.2f to %.2f times; at most %.2f in %d of %d\n",
				r.of, r.by, least, most, r.goal, within, all)
		}
	}
}
