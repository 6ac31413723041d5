// Bench measures what a delivered object costs a MoQ relay, ours beside moq-relay, with clients of aiomoqt: one
// publisher, and subscribers on the same machine. It prints CPU time of the relay's process for each object, and what
// the subscribers say of the delay. Relays take turns.
//
//	cd examples/moq && endpoints/build && endpoints/build moq-relay && go run ./bench
//
// With -hops, it measures a relay between one above and some below instead, on hosts of their own: protected, without
// protection, and in the kernel. What programs in the kernel take counts as well.
//
//	sudo go run ./bench -hops 1,8,64
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// A setting is what is measured.
type setting struct {
	draft     string
	receivers int
	rate      int // deliveries a second, of all subscribers
	size      int // bytes of an object
	group     int // objects
	time      time.Duration
}

// A result is what one run gave.
type result struct {
	cost      float64 // µs of CPU for a delivered object
	delay     float64 // ms: the 90th percentile of all objects, the median of a second's
	delivered float64 // of what was published
}

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	receivers := flags.String("receivers", "1,8,64", "`numbers` of subscribers")
	drafts := flags.String("drafts", "22,18", "drafts")
	only := flags.String("relays", "ours,moq-relay", "relays")
	rate := flags.Int("rate", 8000, "deliveries a second, at most 1,000 for each subscriber")
	size := flags.Int("size", 1000, "`bytes` of an object")
	group := flags.Int("group", 50, "objects of a group")
	took := flags.Duration("time", 8*time.Second, "how long each run is measured")
	hops := flags.String("hops", "", "`numbers` of relays below one that is measured, instead of subscribers")
	rounds := flags.Int("rounds", 3, "how many runs each has, of which the median counts")
	if err := flags.Parse(args); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "moq-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if *hops != "" {
		numbers, err := numbersOf(*hops)
		if err != nil {
			return fmt.Errorf("-hops: %w", err)
		}
		program, err := build(ctx, dir)
		if err != nil {
			return err
		}
		for _, n := range numbers {
			s := setting{"22", n, min(*rate, 1000*n), *size, *group, *took}
			if err := compareHops(ctx, dir, program, s, *rounds); err != nil {
				return err
			}
		}
		return nil
	}
	numbers, err := numbersOf(*receivers)
	if err != nil {
		return fmt.Errorf("-receivers: %w", err)
	}
	relays, err := relaysOf(ctx, dir, strings.Split(*only, ","))
	if err != nil {
		return err
	}
	out := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(out, "draft\tsubscribers\trelay\tµs an object\tp90 ms\tdelivered\t/ "+relays[len(relays)-1].name+"\t")
	for _, number := range numbers {
		for _, draft := range strings.Split(*drafts, ",") {
			s := setting{draft, number, min(*rate, 1000*number), *size, *group, *took}
			if err := compare(ctx, out, dir, relays, s, *rounds); err != nil {
				return err
			}
		}
	}
	return nil
}

// numbersOf returns the numbers of a list.
func numbersOf(list string) (all []int, err error) {
	for _, text := range strings.Split(list, ",") {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			return nil, fmt.Errorf("%q isn't a number of at least 1", text)
		}
		all = append(all, n)
	}
	return all, nil
}

// compare measures all relays with one setting.
func compare(ctx context.Context, out *tabwriter.Writer, dir string, relays []relay, s setting, rounds int) error {
	all := make([][]result, len(relays))
	for range rounds {
		for i := range relays {
			r, err := measure(ctx, dir, &relays[i], s)
			if err != nil {
				return fmt.Errorf("%s, draft %s, %d subscribers: %w", relays[i].name, s.draft, s.receivers, err)
			}
			all[i] = append(all[i], r)
		}
	}
	last := median(all[len(all)-1], func(r result) float64 { return r.cost })
	for i, runs := range all {
		cost := median(runs, func(r result) float64 { return r.cost })
		fmt.Fprintf(out, "%s\t%d\t%s\t%.1f\t%.1f\t%.1f%%\t%.2f\t\n", s.draft, s.receivers, relays[i].name, cost,
			median(runs, func(r result) float64 { return r.delay }),
			100*median(runs, func(r result) float64 { return r.delivered }), cost/last)
	}
	return out.Flush()
}

func median[T any](all []T, of func(T) float64) float64 {
	values := make([]float64, len(all))
	for i, one := range all {
		values[i] = of(one)
	}
	slices.SortFunc(values, cmp.Compare)
	return values[len(values)/2]
}

// cache is where endpoints/build puts programs of other implementations.
func cache(name ...string) (string, error) {
	path, err := filepath.Abs(filepath.Join(append([]string{"../../.cache/moq"}, name...)...))
	if err == nil {
		_, err = os.Stat(path)
	}
	if err != nil {
		return "", fmt.Errorf("%w: run endpoints/build first, here in examples/moq", err)
	}
	return path, nil
}
