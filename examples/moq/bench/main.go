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
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/examples/moq/bench/load"
	"github.com/fastrelay/fastrelay-gen/examples/moq/others"
	"github.com/fastrelay/fastrelay-gen/examples/moq/wire"
	"github.com/fastrelay/fastrelay-gen/internal/test/measure"
	"github.com/fastrelay/fastrelay-gen/internal/test/testlink"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

func main() {
	testlink.Main()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// A bench is what all measurements share.
type bench struct {
	dir    string // for what relays say
	relays []others.Relay
	drafts []wire.Draft
	rounds int
	time   time.Duration // of each measurement
}

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	only := flags.String("only", "cost,hops,join,capacity", "what to `measure`")
	names := flags.String("relays", "ours,moq-relay,quinn", "relays")
	drafts := flags.String("drafts", "22,18", "drafts of MOQT")
	receivers := flags.String("receivers", "1,8,64", "`numbers` of subscribers (cost)")
	kinds := flags.String("media", "audio,video",
		"audio: 50 objects of 1,000 bytes a second; video: 60 of 4,000 (cost)")
	ours := flags.String("flags", "", "further `flags` of our relay, separated by spaces")
	rate := flags.Int("rate", 8000, "`kilobytes` a second that are delivered, about: it takes so many tracks (cost)")
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
	b := &bench{dir: dir, rounds: *rounds, time: *took}
	if b.relays, err = others.Relays(ctx, dir, strings.Split(*names, ",")...); err != nil {
		return err
	}
	for i := range b.relays {
		if r := &b.relays[i]; r.Name == "ours" {
			r.Args = strings.Fields(*ours)
		}
	}
	var numbers []int
	for text := range strings.SplitSeq(*receivers, ",") {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			return fmt.Errorf("-receivers: %q isn't a number of at least 1", text)
		}
		numbers = append(numbers, n)
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
	for what := range strings.SplitSeq(*only, ",") {
		switch what {
		case "cost":
			err = b.costs(ctx, numbers, *kinds, *rate)
		case "hops":
			err = b.hops(ctx, numbers, *rate)
		case "join":
			err = b.joins(ctx)
		case "capacity":
			err = b.capacities(ctx)
		default:
			err = fmt.Errorf("-only: there are cost, hops, join and capacity, and no %q", what)
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
	set.Set(measure.LoadCPU)
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

// show prints a line of a table, as soon as it is known.
func show(cells ...any) {
	for _, cell := range cells {
		if f, ok := cell.(float64); ok {
			cell = strconv.FormatFloat(f, 'f', 1, 64)
		}
		fmt.Printf("%12v", cell)
	}
	fmt.Println()
}

// rows measures all relays, with each of the drafts that they know, in turns.
func rows[R any](b *bench, draft wire.Draft, one func(*others.Relay, wire.Draft) (R, error)) ([][]R, error) {
	all := make([][]R, len(b.relays))
	for range b.rounds {
		for i := range b.relays {
			r := &b.relays[i]
			spoken := draft
			if r.Name == "quinn" {
				spoken = 0
			}
			result, err := one(r, spoken)
			if err != nil {
				return nil, fmt.Errorf("%s, draft %d: %w", r.Name, draft, err)
			}
			all[i] = append(all[i], result)
		}
	}
	return all, nil
}

// without is the bench without a relay.
func (b *bench) without(name string) *bench {
	c := *b
	c.relays = slices.DeleteFunc(slices.Clone(b.relays), func(r others.Relay) bool { return r.Name == name })
	return &c
}

// A media is the traffic of a track.
type media struct {
	name        string
	rate        float64 // objects a second
	size, group int
}

var medias = []media{{"audio", 50, 1000, 50}, {"video", 60, 4000, 60}}

// config is as many tracks as make so many kilobytes a second, with all receivers.
func (m *media) config(rate, receivers int) load.Config {
	tracks := max(1, int(1000*float64(rate)/m.rate)/m.size/receivers)
	return load.Config{Tracks: tracks, Rate: m.rate, Size: m.size, Group: m.group}
}

func (b *bench) costs(ctx context.Context, receivers []int, kinds string, rate int) error {
	show("media", "subscribers", "tracks", "draft", "relay", "µs/object", "/ last", "p50 ms", "p99 ms", "delivered %")
	for kind := range strings.SplitSeq(kinds, ",") {
		i := slices.IndexFunc(medias, func(m media) bool { return m.name == kind })
		if i < 0 {
			return fmt.Errorf("-media: there are audio and video, and no %q", kind)
		}
		m := medias[i]
		for _, n := range receivers {
			c := m.config(rate, n)
			for _, draft := range b.drafts {
				all, err := rows(b, draft, func(r *others.Relay, d wire.Draft) (cost, error) {
					return measureCost(ctx, b.dir, r, d, c, n, b.time)
				})
				if err != nil {
					return err
				}
				last := costs(all[len(all)-1]).cpu
				for i, runs := range all {
					r := costs(runs)
					show(m.name, n, c.Tracks, int(draft), b.relays[i].Name, r.cpu, fmt.Sprintf("%.2f", r.cpu/last),
						r.p50, r.p99, r.delivered)
				}
			}
		}
	}
	return nil
}

// costs returns the medians.
func costs(runs []cost) cost {
	return cost{
		median(runs, func(c cost) float64 { return c.cpu }), median(runs, func(c cost) float64 { return c.p50 }),
		median(runs, func(c cost) float64 { return c.p99 }), median(runs, func(c cost) float64 { return c.delivered }),
	}
}

func (b *bench) joins(ctx context.Context) error {
	b = b.without("quinn") // it keeps nothing for who comes late
	show("draft", "relay", "first ms", "round trip", "more ms")
	for _, draft := range b.drafts {
		all, err := rows(b, draft, func(r *others.Relay, d wire.Draft) (join, error) {
			return measureJoin(ctx, b.dir, r, d)
		})
		if err != nil {
			return err
		}
		for i, runs := range all {
			of := func(f func(join) float64) float64 { return median(runs, f) }
			show(int(draft), b.relays[i].Name, of(func(j join) float64 { return j.took }),
				of(func(j join) float64 { return j.roundTrip }),
				of(func(j join) float64 { return j.took - j.roundTrip }))
		}
	}
	return nil
}

func (b *bench) capacities(ctx context.Context) error {
	show("draft", "relay", "subscribers", "CPU %", "load CPU %")
	for _, draft := range b.drafts {
		all, err := rows(b, draft, func(r *others.Relay, d wire.Draft) (capacity, error) {
			return measureCapacity(ctx, b.dir, r, d)
		})
		if err != nil {
			return err
		}
		for i, runs := range all {
			of := func(f func(capacity) float64) float64 { return median(runs, f) }
			show(int(draft), b.relays[i].Name, int(of(func(c capacity) float64 { return float64(c.subscribers) })),
				of(func(c capacity) float64 { return 100 * c.relay }),
				of(func(c capacity) float64 { return 100 * c.load }))
		}
	}
	return nil
}
