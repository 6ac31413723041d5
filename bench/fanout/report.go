package fanout

import (
	"fmt"
	"io"
	"math"
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

// PrintPath prints what each variant did across namespaces, and its CPU time and delay beside plain forwarding's.
func PrintPath(w io.Writer, cells []Cell) {
	for _, c := range cells {
		fmt.Fprintf(w, "\none to %d, %d bytes\n", c.Receivers, c.Size)
		t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
		fmt.Fprintln(t, "\tdelivered kpps\tloss-free kpps\tCPU ns/packet\t/ forwarding\tone by one ns\tadded p50 "+
			"µs\tadded p99 µs\tcalls/packet\tsaturated\t")
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

// goodRelays is what user-space relays of this kind have cost before, in units of plain forwarding in the same run:
// 1,200 bytes, 90% of the loss-free rate. A comparison with one that is much dearer says nothing.
var goodRelays = map[int]map[Variant]float64{
	1:  {Mmsg: 6.3, GSO: 3.7},
	8:  {Mmsg: 4.6, GSO: 2.0},
	64: {Mmsg: 4.2, GSO: 3.8},
}

const (
	goodSize  = 1200
	tooCostly = 1.2

	leastDelay = 5 // µs: what is less may be chance
)

// PrintVerdict prints whether the user-space relays are good enough to compare with, whether the relay reaches its
// targets, and what it and the SFU example cost beside user space and beside the bare clone.
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
	case worst > tooCostly:
		fmt.Fprintf(w, "VOID: the user-space relay costs up to %.2f times what a good one does (%s), relative to "+
			"plain forwarding; at most %.1f will do\n", worst, where, tooCostly)
	case worst > 0:
		fmt.Fprintf(w, "the user-space relay costs at most %.2f times what a good one does (%s), relative to plain "+
			"forwarding; up to %.1f will do\n", worst, where, tooCostly)
	}
	printTargets(w, copies, cells)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "\t\t\tin the kernel, a copy\tprocessor\tprocessor\tone by one\tadded p50\tsystem calls\t")
	fmt.Fprintln(t, "receivers\tbytes\t\t/ bare clone\t/ bare clone\t/ user space\t/ user space\t/ user space\t/ "+
		"user space\t")
	for _, c := range cells {
		unit, best := unitOf(cells, c.Size), c.userSpace()
		for _, v := range []Variant{Bare, Relay, SFU} {
			r, ok := c.Results[v]
			if !ok {
				continue
			}
			ofBare, ofUserSpace, oneByOne := c.ratios(copies, v)
			fmt.Fprintf(t, "%d\t%d\t%s\t%.2f\t%.2f\t%.2f\t%.2f\t", c.Receivers, c.Size, v, ofBare,
				r.CPU/c.Results[Bare].CPU, ofUserSpace, oneByOne)
			if own, best := r.P50-unit.P50, best.P50-unit.P50; unit.P50 > 0 && own > leastDelay && best > leastDelay {
				fmt.Fprintf(t, "%.2f\t", own/best)
			} else {
				fmt.Fprint(t, "–\t")
			}
			fmt.Fprintf(t, "%.2f\t\n", r.Calls/best.Calls)
		}
	}
	t.Flush()
}

// userSpace is the best that user space did, in each figure that is better if it is less.
func (c *Cell) userSpace() Result {
	a, b := c.Results[Mmsg], c.Results[GSO]
	return Result{
		CPU: min(a.CPU, b.CPU), Single: min(a.Single, b.Single), Calls: min(a.Calls, b.Calls), P50: min(a.P50, b.P50),
	}
}

// ratios returns what a copy of a variant costs in the kernel beside a bare clone, and the CPU time that a
// delivered packet takes beside the best in user space, in bursts and one by one.
func (c *Cell) ratios(copies []Copy, v Variant) (ofBare, ofUserSpace, oneByOne float64) {
	ofBare = math.NaN() // if it wasn't measured
	for _, k := range copies {
		if k.Receivers == c.Receivers && k.Size == c.Size {
			ofBare = k.Times[v] / k.Times[Bare]
		}
	}
	r, best := c.Results[v], c.userSpace()
	return ofBare, r.CPU / best.CPU, r.Single / best.Single
}

// What the relay is to reach, at the same work.
const (
	ofBareTarget      = 1.25    // a copy in the kernel, of a bare clone
	ofUserSpaceTarget = 1.0 / 3 // CPU time, of the better user-space relay's
)

// printTargets prints where the relay reaches them, and where the bare clone would, which no relay in the kernel can be
// below.
func printTargets(w io.Writer, copies []Copy, cells []Cell) {
	var copy, bursts, oneByOne, bareBursts, bareOneByOne []float64
	for _, c := range cells {
		x, y, z := c.ratios(copies, Relay)
		copy, bursts, oneByOne = append(copy, x), append(bursts, y), append(oneByOne, z)
		_, y, z = c.ratios(copies, Bare)
		bareBursts, bareOneByOne = append(bareBursts, y), append(bareOneByOne, z)
	}
	reached := func(ratios []float64, most float64) (n int) {
		for _, x := range ratios {
			if x <= most {
				n++
			}
		}
		return n
	}
	say := func(what string, most float64, ratios []float64) {
		fmt.Fprintf(w, "relay, %s: %.2f to %.2f times; at most %.2f in %d of %d",
			what, slices.Min(ratios), slices.Max(ratios), most, reached(ratios, most), len(ratios))
	}
	say("a copy in the kernel, of a bare clone", ofBareTarget, copy)
	fmt.Fprintln(w)
	say("CPU time at 90% of the loss-free rate, of the best in user space", ofUserSpaceTarget, bursts)
	fmt.Fprintf(w, " (a bare clone: %d)\n", reached(bareBursts, ofUserSpaceTarget))
	say("CPU time one by one, of the best in user space", ofUserSpaceTarget, oneByOne)
	fmt.Fprintf(w, " (a bare clone: %d)\n", reached(bareOneByOne, ofUserSpaceTarget))
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
