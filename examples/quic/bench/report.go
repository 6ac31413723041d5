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
		"added p50 µs\tp99 µs\tsystem calls\tCPU µs\t")
	for _, c := range cells {
		for _, v := range variants {
			r := c.Results[v]
			fmt.Fprintf(t, "%d\t%d\t%s\t%.0f\t%.1f%%\t%.0f%%\t%.0f\t%.0f\t%.2f\t%.1f\t\n", c.Subscribers, c.Objects, v,
				r.Rate, r.Missing, r.Share, r.added(), r.P99, r.Calls, r.CPU)
		}
		k, u := c.Results[Kernel], c.Results[UserSpace]
		fmt.Fprintf(t, "\t\tkernel / user space\t%.2f\t\t\t%.2f\t%.2f\t%.2f\t%.2f\t\n", k.Rate/u.Rate,
			k.added()/u.added(), k.P99/u.P99, k.Calls/u.Calls, k.CPU/u.CPU)
	}
	t.Flush()
}
