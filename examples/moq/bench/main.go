// Bench measures a MoQ relay, ours beside moq-relay and beside a relay of quinn that knows no MOQT: what a delivered
// object costs and how late it is, how long a subscriber waits for its first object, and how many subscribers there may
// be before objects are late. A publisher and the subscribers are in this process, on a processor of its own; relays
// take turns. It needs root, for a network namespace.
//
//	cd examples/moq && endpoints/build moq-relay && go run ./bench
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/examples/moq/bench/load"
	"github.com/fastrelay/fastrelay-gen/examples/moq/bench/relays"
	"github.com/fastrelay/fastrelay-gen/examples/moq/wire"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// A bench is what all measurements share.
type bench struct {
	host   *testnet.Host
	relays []relays.Relay
	drafts []wire.Draft
	rounds int
	time   time.Duration // of each measurement
}

// The processors of the load, and of the relay.
const (
	loadCPU  = 0
	relayCPU = 1
)

// at is where relays listen, in the namespace.
var at = netip.MustParseAddrPort("127.0.0.1:4433")

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	only := flags.String("only", "cost,join,capacity", "what to `measure`")
	names := flags.String("relays", "ours,moq-relay,quinn", "relays")
	drafts := flags.String("drafts", "22,18", "drafts of MOQT")
	receivers := flags.String("receivers", "1,8,64", "`numbers` of subscribers (cost)")
	kinds := flags.String("media", "audio,video", "audio: 50 objects of 1,000 bytes a second, video: 60 of 4,000 (cost)")
	rate := flags.Int("rate", 8000, "deliveries a second, about: so many tracks are published (cost)")
	took := flags.Duration("time", 8*time.Second, "how long each run is measured (cost)")
	rounds := flags.Int("rounds", 3, "how many runs each has, of which the median counts")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if os.Geteuid() != 0 {
		return testnet.ErrNotRoot
	}
	if runtime.NumCPU() < 2 {
		return errors.New("two processors are needed: one for the load, one for the relay")
	}
	dir, err := os.MkdirTemp("", "moq-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	b := &bench{rounds: *rounds, time: *took}
	if b.relays, err = relays.Prepare(ctx, dir, strings.Split(*names, ",")); err != nil {
		return err
	}
	for name := range strings.SplitSeq(*drafts, ",") {
		number, err := strconv.Atoi(name)
		if draft := wire.Draft(number); err != nil || draft != wire.Draft22 && draft != wire.Draft18 {
			return fmt.Errorf("-drafts: %q is neither 22 nor 18", name)
		}
		b.drafts = append(b.drafts, wire.Draft(number))
	}
	if err := pin(); err != nil {
		return err
	}
	hosts, err := testnet.New()
	if err != nil {
		return err
	}
	defer hosts.Close()
	if b.host, err = hosts.Host("relay"); err != nil {
		return err
	}
	for what := range strings.SplitSeq(*only, ",") {
		switch what {
		case "cost":
			err = b.costs(ctx, *receivers, *kinds, *rate)
		case "join":
			err = b.joins(ctx)
		case "capacity":
			err = b.capacities(ctx)
		default:
			err = fmt.Errorf("-only: there are cost, join and capacity, and no %q", what)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// pin has this process run on the load's processor.
func pin() error {
	runtime.GOMAXPROCS(1)
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return err
	}
	var set unix.CPUSet
	set.Set(loadCPU)
	for _, thread := range threads { // those that begin later begin there
		id, err := strconv.Atoi(thread.Name())
		if err == nil {
			err = unix.SchedSetaffinity(id, &set)
		}
		if err != nil && !errors.Is(err, unix.ESRCH) {
			return err
		}
	}
	return nil
}

// table returns a table with a head.
func table(head string) *tabwriter.Writer {
	out := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(out, head)
	return out
}

// rows measures all relays, with each of the drafts that they know, in turns.
func rows[R any](b *bench, draft wire.Draft, measure func(*relays.Relay, wire.Draft) (R, error)) ([][]R, error) {
	all := make([][]R, len(b.relays))
	for range b.rounds {
		for i := range b.relays {
			r := &b.relays[i]
			spoken := draft
			if r.Name == "quinn" {
				spoken = 0
			}
			one, err := measure(r, spoken)
			if err != nil {
				return nil, fmt.Errorf("%s, draft %d: %w", r.Name, draft, err)
			}
			all[i] = append(all[i], one)
		}
	}
	return all, nil
}

// A media is the traffic of a track.
type media struct {
	name        string
	rate        float64 // objects a second
	size, group int
}

var medias = []media{{"audio", 50, 1000, 50}, {"video", 60, 4000, 60}}

func (b *bench) costs(ctx context.Context, receivers, kinds string, rate int) error {
	out := table("media\tsubscribers\ttracks\tdraft\trelay\tµs an object\tp50 ms\tp99 ms\tdelivered\t/ the last\t")
	for kind := range strings.SplitSeq(kinds, ",") {
		i := slices.IndexFunc(medias, func(m media) bool { return m.name == kind })
		if i < 0 {
			return fmt.Errorf("-media: there are audio and video, and no %q", kind)
		}
		m := medias[i]
		for n := range strings.SplitSeq(receivers, ",") {
			number, err := strconv.Atoi(n)
			if err != nil || number < 1 {
				return fmt.Errorf("-receivers: %q isn't a number", n)
			}
			c := load.Config{Tracks: max(1, int(float64(rate)/m.rate)/number), Rate: m.rate, Size: m.size, Group: m.group}
			for _, draft := range b.drafts {
				all, err := rows(b, draft, func(r *relays.Relay, d wire.Draft) (cost, error) {
					return b.cost(ctx, r, d, c, number)
				})
				if err != nil {
					return err
				}
				last := median(all[len(all)-1], func(c cost) float64 { return c.cpu })
				for i, runs := range all {
					cpu := median(runs, func(c cost) float64 { return c.cpu })
					fmt.Fprintf(out, "%s\t%d\t%d\t%d\t%s\t%.1f\t%.1f\t%.1f\t%.1f%%\t%.2f\t\n", m.name, number, c.Tracks, draft,
						b.relays[i].Name, cpu, median(runs, func(c cost) float64 { return c.p50 }),
						median(runs, func(c cost) float64 { return c.p99 }),
						median(runs, func(c cost) float64 { return c.delivered }), cpu/last)
				}
				if err := out.Flush(); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func (b *bench) joins(ctx context.Context) error {
	out := table("draft\trelay\tfirst object after ms\tround trip ms\tmore ms\t")
	for _, draft := range b.drafts {
		all, err := rows(b, draft, func(r *relays.Relay, d wire.Draft) (join, error) { return b.join(ctx, r, d) })
		if err != nil {
			return err
		}
		for i, runs := range all {
			fmt.Fprintf(out, "%d\t%s\t%.1f\t%.1f\t%.1f\t\n", draft, b.relays[i].Name,
				median(runs, func(j join) float64 { return j.took }),
				median(runs, func(j join) float64 { return j.roundTrip }),
				median(runs, func(j join) float64 { return j.took - j.roundTrip }))
		}
	}
	return out.Flush()
}

func (b *bench) capacities(ctx context.Context) error {
	out := table("draft\trelay\tsubscribers\tprocessors\tthe load's\t")
	for _, draft := range b.drafts {
		all, err := rows(b, draft, func(r *relays.Relay, d wire.Draft) (capacity, error) {
			return b.capacity(ctx, r, d)
		})
		if err != nil {
			return err
		}
		for i, runs := range all {
			fmt.Fprintf(out, "%d\t%s\t%.0f\t%.2f\t%.2f\t\n", draft, b.relays[i].Name,
				median(runs, func(c capacity) float64 { return float64(c.subscribers) }),
				median(runs, func(c capacity) float64 { return c.relay }),
				median(runs, func(c capacity) float64 { return c.load }))
		}
	}
	return out.Flush()
}
