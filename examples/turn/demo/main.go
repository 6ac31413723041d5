// Command demo measures the relay: a client sends channel data to a peer through a TURN server, on three hosts that
// it makes (network namespaces): first with the server in user space, then with its relay in the kernel, then
// through a plain router.
package main

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"runtime"
	"text/tabwriter"
	"time"

	"github.com/fastrelay/fastrelay-gen/examples/turn/lab"
	"github.com/fastrelay/fastrelay-gen/internal/test/measure"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

func main() {
	lab.Main()
	if err := run(os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

const size = 160 // bytes of payload: 20 ms of Opus at 64 kbit/s

const topology = `
    client                    relay                     peer
  192.0.2.2 ———————— 192.0.2.1   203.0.113.1 ———————— 203.0.113.2
      channel data in UDP  →  a TURN server  →  plain UDP

Three network namespaces, joined by veth pairs. The client has allocated a relayed address and bound a channel to the
peer, as any TURN client does. Payloads have %d bytes; the relay has one processor for itself.

`

// stage is a variant and what the demo calls it.
type stage struct {
	variant lab.Variant
	name    string
}

var stages = []stage{
	{lab.UserSpace, "user space (pion/turn)"},
	{lab.InKernel, "the same, with its relay in the kernel"},
	{lab.Forwarding, "for comparison: a plain router"},
}

func run(w io.Writer) error {
	if os.Geteuid() != 0 {
		return testnet.ErrNotRoot
	}
	if runtime.NumCPU() < 2 {
		return errors.New("two processors are needed: one for the relay, one for all others")
	}
	if err := measure.Prefer(os.Getpid(), measure.LoadCPU); err != nil {
		return err
	}
	busy, err := measure.NewBusy(measure.RelayCPU)
	if err != nil {
		return err
	}
	defer busy.Close()
	if err := warnBusy(w); err != nil {
		return err
	}
	fmt.Fprintf(w, topology, size)
	results := map[lab.Variant]measure.Result{}
	var proof string
	for _, s := range stages {
		fmt.Fprintf(w, "  %-42s", s.name)
		start := time.Now()
		r, seen, err := measurePath(s.variant, busy)
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		fmt.Fprintf(w, "%3.0f s\n", time.Since(start).Seconds())
		results[s.variant] = r
		if s.variant == lab.InKernel {
			proof = seen
		}
	}
	report(w, results)
	fmt.Fprintf(w, closing, proof)
	return nil
}

const closing = `
%s

The relay is examples/turn/spec.cue, one page. Begin one of your own:

    bin/fastrelay-gen init hello

`

// measurePath sends traffic from client to peer, and says how much of it the server received.
func measurePath(v lab.Variant, busy *measure.Busy) (r measure.Result, seen string, err error) {
	p, err := lab.NewPath(v, false)
	if err != nil {
		return r, "", err
	}
	defer p.Close()
	if r, err = p.Measure("to_peer", size, busy); err != nil {
		return r, "", err
	}
	s, err := p.Stats()
	const text = "With the relay in the kernel, %s packets were forwarded; the server itself received %d, for setup."
	return r, fmt.Sprintf(text, thousands(float64(s.Packets("to_peer", "sent"))), s.UserReceived), err
}

func report(w io.Writer, results map[lab.Variant]measure.Result) {
	fmt.Fprintln(w)
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "\tpackets/s\tCPU a packet\tdelay p50\tp99\t")
	row := func(name string, v lab.Variant) measure.Result {
		r := results[v]
		cpu := busyMachine
		if measured(r.CPU) {
			cpu = fmt.Sprintf("%.2f µs", r.CPU/1e3)
		}
		fmt.Fprintf(t, "%s\t%s%s\t%s\t%.0f µs\t%.0f µs\t\n",
			name, atLeast(r), thousands(r.Peak), cpu, r.DeviceP50, r.DeviceP99)
		return r
	}
	user := row("user space", lab.UserSpace)
	kernel := row("kernel", lab.InKernel)
	fmt.Fprintf(t, "\t%s%s\t%s\t%s\t\t\n", atLeast(kernel), times(kernel.Peak, user.Peak, "times"),
		times(user.CPU, kernel.CPU, "times less"), times(user.DeviceP50, kernel.DeviceP50, "times less"))
	router := row("plain router", lab.Forwarding)
	t.Flush()
	if kernel.AtLeast || router.AtLeast {
		fmt.Fprintln(w, senderNote)
	}
	fmt.Fprintf(w, delayNote, user.P99, kernel.P99, router.P99)
}

// atLeast marks a rate that the sender was the limit of.
func atLeast(r measure.Result) string {
	if r.AtLeast {
		return "≥ "
	}
	return ""
}

const senderNote = "\n≥: nothing was lost; the sender, which has the other processor, could send no more."

const delayNote = `
Delay: from the client's system call until the packet is at the peer's network device (10,000 packets a second).
The peer's process receives it when the scheduler runs that process: p99 %.0f µs, %.0f µs and %.0f µs.
`

// warnBusy measures for a moment how busy the machine is, and prints a note if that changes the figures.
func warnBusy(w io.Writer) error {
	const enough = 0.1 // of all processors
	share, err := measure.Load(300 * time.Millisecond)
	if err != nil || share < enough {
		return err
	}
	fmt.Fprintf(w, busyNote, 100*share)
	return nil
}

const busyNote = `
Note: other programs use %.0f%% of this machine's processors. Rates are lower and delays higher than on a quiet machine.
`

const busyMachine = "not measurable: the machine is busy"

// measured reports whether a figure is a valid measurement. A packet's cost is the difference between two shares of a
// processor; other work on that processor can make it any number, even less than the least a packet can cost.
func measured(f float64) bool { return f >= leastCost && !math.IsInf(f, 1) }

const leastCost = 5 // ns: less than a single line of memory that isn't in the cache takes

// times says how many times less is in more, or nothing if one of them could not be measured.
func times(more, less float64, unit string) string {
	if !measured(more) || !measured(less) {
		return "–"
	}
	return fmt.Sprintf("%.1f %s", more/less, unit)
}

// thousands writes a whole number with commas.
func thousands(f float64) string {
	s := fmt.Sprintf("%.0f", f)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
