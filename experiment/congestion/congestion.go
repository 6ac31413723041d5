// Package congestion is the experiment with the congestion example: what a congestion control in user space leaves of a
// processor, and how near it is to the kernel's own.
package congestion

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fastrelay/fastrelay-gen/experiment/trial"
)

var (
	length   = flag.Duration("time", 15*time.Second, "length of a transfer (congestion)")
	interval = flag.Duration("interval", 10*time.Millisecond, "between two signals of a flow, at least (congestion)")
)

// The processors: the sender, the congestion control and the loop share one; the receiver, the link and this process
// have the other.
const (
	senderCPU = 0
	otherCPU  = 1
)

// variant is who decides the window.
type variant struct {
	kernel string // the kernel's congestion control; "": user space
	user   string // the algorithm of examples/congestion
}

// The variants. What differs is one switch: the name that iperf3 gives its socket.
var (
	algorithms = []string{"cubic", "reno", "bbr"}
	variants   = map[string]variant{}
	names      []string
)

func init() {
	for _, a := range algorithms {
		names = append(names, inKernel(a), inUser(a))
		variants[inKernel(a)], variants[inUser(a)] = variant{kernel: a}, variant{user: a}
	}
}

func inKernel(algorithm string) string { return "kernel " + algorithm }
func inUser(algorithm string) string   { return "user-space " + algorithm }

// Run runs the experiment.
func Run(ctx context.Context, b *trial.Book) error {
	if *length < 2*time.Second {
		return fmt.Errorf("-time %v: at least 2s", *length)
	}
	if runtime.NumCPU() < 2 {
		return errors.New("the sender and the receiver need a processor each: this machine has one")
	}
	there, err := os.ReadFile("/proc/sys/net/ipv4/tcp_available_congestion_control")
	if err != nil {
		return err
	}
	// BBR is a module that many kernels don't have loaded.
	if !slices.Contains(strings.Fields(string(there)), "bbr") {
		names = slices.DeleteFunc(names, func(name string) bool { return strings.HasSuffix(name, "bbr") })
	}
	for _, only := range b.Only {
		if !slices.Contains(names, only) {
			return fmt.Errorf("%q is no variant; there are: %s", only, strings.Join(names, "; "))
		}
	}
	controller, err := filepath.Abs(filepath.Join(b.Dir, "controller"))
	if err != nil {
		return err
	}
	defer os.Remove(controller)
	for _, command := range [][]string{
		{"go", "build", "-o", controller, "./examples/congestion"},
		{"taskset", "-a", "-c", "-p", strconv.Itoa(otherCPU), strconv.Itoa(os.Getpid())},
	} {
		if out, err := exec.CommandContext(ctx, command[0], command[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", strings.Join(command, " "), err, out)
		}
	}
	b.Parallel = 1
	b.Printf("Transfers of %v by one flow: over a link of %d Mbit/s with a queue of %d bytes, and over a cable. "+
		"At most one signal in %v.\n", *length, rate/1_000_000, queue, *interval)
	err = b.Alternate(ctx, names, func(ctx context.Context, name string, _ int) (trial.Result, error) {
		return measure(ctx, variants[name], controller)
	})
	if err != nil {
		return err
	}
	return summarize(b)
}

// The figures of a run: of the transfer over the link, and of that over the cable.
const (
	window    = "window"
	bitrate   = "bitrate"
	roundTrip = "round-trip time"
	lost      = "sent again"
	leftLink  = "left, link"
	leftCable = "left, cable"
	fast      = "bitrate, cable"
	control   = "controller, cable"
)

// summarize writes the tables and the plots, and compares user space with the kernel.
func summarize(b *trial.Book) error {
	err := b.Table(
		trial.Column{Figure: leftCable, Unit: "% of the processor", Digits: 1},
		trial.Column{Figure: control, Unit: "% of the processor", Digits: 2},
		trial.Column{Figure: fast, Unit: "Gbit/s", Digits: 2},
		trial.Column{Figure: leftLink, Unit: "% of the processor", Digits: 1},
		trial.Column{Figure: window, Unit: "packets", Digits: 1},
		trial.Column{Figure: bitrate, Unit: "Mbit/s", Digits: 2},
		trial.Column{Figure: roundTrip, Unit: "ms", Digits: 1}, trial.Column{Figure: lost, Unit: "packets"})
	if err != nil {
		return err
	}
	var errs []error
	for _, a := range algorithms {
		ours, kernels := inUser(a), inKernel(a)
		if len(b.Values(ours, bitrate)) == 0 || len(b.Values(kernels, bitrate)) == 0 {
			continue
		}
		b.Printf("%s, user space / kernel: left %.3f over the cable, %.3f over the link (medians)", a,
			b.Median(ours, leftCable)/b.Median(kernels, leftCable),
			b.Median(ours, leftLink)/b.Median(kernels, leftLink))
		for _, figure := range []string{window, bitrate, roundTrip} {
			mean := func(variant string) float64 { return trial.Summarize(b.Values(variant, figure)).Mean }
			b.Printf("; %s %.3f", figure, mean(ours)/mean(kernels))
		}
		b.Printf(" (averages).\n")
		for _, plot := range []struct{ file, curve, unit string }{
			{"window", window, "packets"}, {"bitrate", bitrate, "Mbit/s"}, {"rtt", roundTrip, "ms"},
		} {
			file := fmt.Sprintf("%s-%s.png", a, plot.file)
			errs = append(errs, b.Averages(file, plot.curve, plot.unit, kernels, ours))
		}
	}
	return errors.Join(append(errs, b.Spread("left.png", leftCable, "% of the processor"))...)
}
