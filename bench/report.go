package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"text/tabwriter"

	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/bench/results"
	"github.com/fastrelay/fastrelay-gen/examples/turn/lab"
	"github.com/fastrelay/fastrelay-gen/internal/test/measure"
)

func kernelRelease() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "unknown"
	}
	return unix.ByteSliceToString(u.Release[:])
}

// processor is the model of the machine's processors.
func processor() string {
	file, err := os.Open("/proc/cpuinfo")
	if err != nil {
		return "unknown"
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		if name, value, ok := strings.Cut(lines.Text(), ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return "unknown"
}

// commit is what the working folder has checked out, with "-dirty" if files differ.
func commit() string {
	out, err := exec.Command("git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*").Output()
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(out))
}

// printPath prints each kind of traffic with the ratios that matter: to plain forwarding, and to user space.
func printPath(w io.Writer, list []results.Comparison) {
	for _, c := range list {
		fmt.Fprintf(w, "\n%s, %d bytes\n", c.Direction, c.Size)
		t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
		fmt.Fprintln(t, "\tdelivered kpps\tloss-free kpps\tCPU ns/packet\tp50 µs\tp99 µs\t")
		var measured []lab.Variant
		for _, v := range results.Variants() {
			r, ok := c.Results[v]
			if !ok {
				continue
			}
			measured = append(measured, v)
			fmt.Fprintf(t, "%s\t%.0f\t%s\t%.0f\t%.0f\t%.0f\t\n", v,
				r.Peak/1e3, measure.LossFreeKpps(r.LossFree), r.CPU, r.P50, r.P99)
		}
		relay := c.Results[lab.InKernel]
		for _, v := range measured {
			if v == lab.InKernel {
				continue
			}
			r := c.Results[v]
			fmt.Fprintf(t, "relay / %s\t%s\t%s\t%s\t%s\t%s\t\n", v,
				measure.Ratio(relay.Peak, r.Peak), measure.Ratio(relay.LossFree, r.LossFree),
				measure.Ratio(relay.CPU, r.CPU), measure.Ratio(relay.P50, r.P50), measure.Ratio(relay.P99, r.P99))
		}
		t.Flush()
	}
}
