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
		fmt.Fprintln(t, "\tdelivered kpps\tloss-free kpps\tCPU ns/packet\t/ forwarding\tadded p50 µs\tadded p99 µs\tcalls/packet\tsaturated\t")
		unit := unitOf(cells, c.Size)
		for _, v := range Variants {
			r, ok := c.Results[v]
			if !ok {
				continue
			}
			fmt.Fprintf(t, "%s\t%.0f\t%.0f\t%.0f\t", v, r.Peak/1e3, r.LossFree/1e3, r.CPU)
			if unit.CPU > 0 {
				fmt.Fprintf(t, "%.2f\t%.0f\t%.0f\t", r.CPU/unit.CPU, r.P50-unit.P50, r.P99-unit.P99)
			} else {
				fmt.Fprint(t, "–\t–\t–\t")
			}
			fmt.Fprintf(t, "%.4f\t%.4f\t\n", r.Calls, r.Saturated)
		}
		t.Flush()
	}
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
