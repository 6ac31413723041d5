package fanout

import (
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
)

// PrintKernel prints what a copy costs in the kernel.
func PrintKernel(w io.Writer, copies []Copy) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(t, "\none to many, in the kernel\treceivers\tbytes\t")
	var variants []Variant
	for _, v := range Variants {
		if slices.ContainsFunc(copies, func(c Copy) bool { return c.Times[v] > 0 }) {
			variants = append(variants, v)
			fmt.Fprintf(t, "%s ns/copy\t", v)
		}
	}
	for _, v := range variants {
		if v != Bare {
			fmt.Fprintf(t, "%s / %s\t", v, Bare)
		}
	}
	fmt.Fprintln(t)
	for _, c := range copies {
		fmt.Fprintf(t, "\t%d\t%d\t", c.Receivers, c.Size)
		for _, v := range variants {
			fmt.Fprintf(t, "%.0f\t", c.Times[v])
		}
		for _, v := range variants {
			if v != Bare {
				fmt.Fprintf(t, "%.2f\t", c.Times[v]/c.Times[Bare])
			}
		}
		fmt.Fprintln(t)
	}
	t.Flush()
}

// PrintPath prints what each variant did across namespaces, and its processor time and delay beside plain forwarding's.
func PrintPath(w io.Writer, cells []Cell) {
	for _, c := range cells {
		fmt.Fprintf(w, "\none to %d, %d bytes\n", c.Receivers, c.Size)
		t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
		fmt.Fprintln(t, "\tdelivered kpps\tloss-free kpps\tCPU ns/packet\t/ forwarding\tone by one ns\tadded p50 µs\tadded p99 µs\tcalls/packet\tsaturated\t")
		unit := unitOf(cells, c.Size)
		for _, v := range Variants {
			r, ok := c.Results[v]
			if !ok {
				continue
			}
			fmt.Fprintf(t, "%s\t%.0f\t%.0f\t%.0f\t", v, r.Peak/1e3, r.LossFree/1e3, r.CPU)
			if unit.CPU > 0 {
				fmt.Fprintf(t, "%.2f\t%.0f\t%.0f\t%.0f\t", r.CPU/unit.CPU, r.Single, r.P50-unit.P50, r.P99-unit.P99)
			} else {
				fmt.Fprintf(t, "–\t%.0f\t–\t–\t", r.Single)
			}
			fmt.Fprintf(t, "%.4f\t%.4f\t\n", r.Calls, r.Saturated)
		}
		t.Flush()
	}
}

// goodRelays is what user-space relays of this kind have cost before, in units of plain forwarding in the same run: 1,200 bytes,
// 90% of the loss-free rate. A comparison with one that is much dearer says nothing.
var goodRelays = map[int]map[Variant]float64{
	1:  {Mmsg: 6.3, GSO: 3.7},
	8:  {Mmsg: 4.6, GSO: 2.0},
	64: {Mmsg: 4.2, GSO: 3.8},
}

const (
	goodSize = 1200
	tooDear  = 1.2

	leastDelay = 5 // µs: what is less can't be told from chance
)

// PrintVerdict prints whether the user-space relays are good enough to compare with, whether the relay reaches its targets, and
// what it and the SFU example cost beside user space and beside the bare clone.
func PrintVerdict(w io.Writer, copies []Copy, cells []Cell) {
	fmt.Fprintln(w)
	worst, where := 0.0, ""
	for _, c := range cells {
		unit := unitOf(cells, c.Size)
		for _, v := range []Variant{Mmsg, GSO} {
			before, r := goodRelays[c.Receivers][v], c.Results[v]
			if c.Size != goodSize || before == 0 || r.CPU == 0 || unit.CPU == 0 {
				continue
			}
			if x := r.CPU / unit.CPU / before; x > worst {
				worst, where = x, fmt.Sprintf("%s, %d receivers", v, c.Receivers)
			}
		}
	}
	switch {
	case worst > tooDear:
		fmt.Fprintf(w, "VOID: the user-space relay costs up to %.2f times what a good one does (%s), relative to plain forwarding; at most %.1f will do\n", worst, where, tooDear)
	case worst > 0:
		fmt.Fprintf(w, "the user-space relay costs at most %.2f times what a good one does (%s), relative to plain forwarding; up to %.1f will do\n", worst, where, tooDear)
	}
	printTargets(w, copies, cells)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "receivers\tbytes\t\tin the kernel, a copy / bare clone\tprocessor / bare clone\tprocessor / best in user space\tone by one / best in user space\tadded p50 / best in user space\tsystem calls / best in user space\t")
	for _, c := range cells {
		unit := unitOf(cells, c.Size)
		mmsg, gso := c.Results[Mmsg], c.Results[GSO]
		for _, v := range []Variant{Relay, SFU} {
			r, ok := c.Results[v]
			if !ok {
				continue
			}
			fmt.Fprintf(t, "%d\t%d\t%s\t", c.Receivers, c.Size, v)
			if x, ok := ofBareCopy(copies, c, v); ok {
				fmt.Fprintf(t, "%.2f\t", x)
			} else {
				fmt.Fprint(t, "–\t")
			}
			fmt.Fprintf(t, "%.2f\t%.2f\t%.2f\t", r.CPU/c.Results[Bare].CPU, r.CPU/min(mmsg.CPU, gso.CPU), r.Single/min(mmsg.Single, gso.Single))
			if own, best := r.P50-unit.P50, min(mmsg.P50, gso.P50)-unit.P50; own > leastDelay && best > leastDelay {
				fmt.Fprintf(t, "%.2f\t", own/best)
			} else {
				fmt.Fprint(t, "–\t")
			}
			fmt.Fprintf(t, "%.2f\t\n", r.Calls/min(mmsg.Calls, gso.Calls))
		}
	}
	t.Flush()
}

// What the relay is to reach, at the same work.
const (
	ofBareTarget      = 1.25    // a copy in the kernel, of a bare clone
	ofUserSpaceTarget = 1.0 / 3 // processor time, of the better user-space relay's
)

// printTargets prints how far the relay reaches them.
func printTargets(w io.Writer, copies []Copy, cells []Cell) {
	var ofBare, ofUserSpace, oneByOne []float64
	for _, c := range cells {
		if x, ok := ofBareCopy(copies, c, Relay); ok {
			ofBare = append(ofBare, x)
		}
		relay, mmsg, gso := c.Results[Relay], c.Results[Mmsg], c.Results[GSO]
		ofUserSpace = append(ofUserSpace, relay.CPU/min(mmsg.CPU, gso.CPU))
		oneByOne = append(oneByOne, relay.Single/min(mmsg.Single, gso.Single))
	}
	for _, target := range []struct {
		what   string
		most   float64
		ratios []float64
	}{
		{"a copy in the kernel / bare clone", ofBareTarget, ofBare},
		{"processor / best in user space, at 90% of the loss-free rate", ofUserSpaceTarget, ofUserSpace},
		{"processor / best in user space, one by one", ofUserSpaceTarget, oneByOne},
	} {
		if len(target.ratios) == 0 {
			continue
		}
		reached := 0
		for _, x := range target.ratios {
			if x <= target.most {
				reached++
			}
		}
		fmt.Fprintf(w, "relay, %s: %.2f to %.2f; at most %.2f, the target, in %d of %d\n",
			target.what, slices.Min(target.ratios), slices.Max(target.ratios), target.most, reached, len(target.ratios))
	}
}

// ofBareCopy returns what a copy of a variant costs in the kernel, beside a bare clone.
func ofBareCopy(copies []Copy, c Cell, v Variant) (ratio float64, ok bool) {
	for _, k := range copies {
		if k.Receivers == c.Receivers && k.Size == c.Size && k.Times[Bare] > 0 && k.Times[v] > 0 {
			return k.Times[v] / k.Times[Bare], true
		}
	}
	return 0, false
}

// unitOf is what plain forwarding did with packets of a size, to the one receiver that it has.
func unitOf(cells []Cell, size int) Result {
	for _, c := range cells {
		if r, ok := c.Results[Forwarding]; ok && c.Size == size {
			return r
		}
	}
	return Result{}
}
