package main

import (
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/fastrelay/fastrelay-gen/bench/fanout"
)

func printCopies(w io.Writer, list []fanout.Copy) {
	fmt.Fprintln(w)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "receivers\tbare clone ns\trelay ns\trelay / bare clone\t")
	for _, c := range list {
		fmt.Fprintf(t, "%d\t%.0f\t%.0f\t%.2f\t\n", c.Receivers, c.Times[fanout.Bare], c.Times[fanout.Relay],
			c.Times[fanout.Relay]/c.Times[fanout.Bare])
	}
	t.Flush()
}

func printPath(w io.Writer, cells []Cell) {
	fmt.Fprintln(w)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "subscribers\tobjects a stream\t\tdeliveries a second\tmissing\tby the kernel\t"+
		"added p50 µs\tp99 µs\tuntil read p50 µs\tp99 µs\tsystem calls\tCPU µs\t")
	for _, c := range cells {
		for _, v := range variants {
			if r, ok := c.Results[v]; ok {
				added, p99 := "–", "–"
				if v.null() {
					added, p99 = fmt.Sprintf("%.0f", r.added()), fmt.Sprintf("%.0f", r.P99)
				}
				fmt.Fprintf(t, "%d\t%d\t%s\t%.0f\t%.1f%%\t%.0f%%\t%s\t%s\t%.0f\t%.0f\t%.2f\t%.1f\t\n", c.Subscribers,
					c.Objects, v, r.Rate, r.Missing, r.Share, added, p99, r.ReadP50, r.ReadP99, r.Calls, r.CPU)
			}
		}
		for _, pair := range [][2]Variant{
			{Kernel, UserSpace}, {Stock, Quinn}, {StockThinned, QuinnThinned},
			{KernelThinned, Kernel}, {StockThinned, Stock}, {StockSegments, Stock}, {StockWaiting, Quinn},
			{QuinnThinned, Quinn},
		} {
			printRatios(t, c, pair[0], pair[1])
		}
	}
	t.Flush()
}

// printRatios prints what one variant's figures are of another one's, if both were measured.
func printRatios(w io.Writer, c Cell, of, by Variant) {
	a, measured := c.Results[of]
	b, too := c.Results[by]
	if !measured || !too {
		return
	}
	fmt.Fprintf(w, "\t\t%s / %s\t%.2f\t\t\t", of, by, a.Rate/b.Rate)
	if of.null() && by.null() {
		fmt.Fprintf(w, "%.2f\t%.2f\t", a.added()/b.added(), a.P99/b.P99)
	} else {
		fmt.Fprint(w, "\t\t")
	}
	fmt.Fprintf(w, "%.2f\t%.2f\t%.2f\t%.2f\t\n", a.ReadP50/b.ReadP50, a.ReadP99/b.ReadP99, a.Calls/b.Calls, a.CPU/b.CPU)
}
