// Package paths is the experiment with the paths example: video beside other traffic, over two links, and what
// forwarding costs.
package paths

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/fastrelay/fastrelay-gen/examples/paths/lab"
	"github.com/fastrelay/fastrelay-gen/experiment/trial"
)

var segment = flag.Duration("segment", time.Second, "length of a segment of the video (paths); in the paper 4s")

// The variants. What differs is one switch: the routes of the two routers, the other traffic, or the failure.
var (
	variants = map[string]variant{}
	names    []string
)

func init() {
	for _, http := range []int{2, 3} {
		for _, v := range []struct {
			name    string
			variant variant
		}{
			{"unloaded", variant{use: lab.BothPaths}},
			{"both paths", variant{use: lab.BothPaths, cross: true}},
			{"fast path", variant{use: lab.FastOnly, cross: true}},
			{"slow path", variant{use: lab.SlowOnly, cross: true}},
			{"link fails", variant{use: lab.BothPaths, cross: true, fails: true}},
		} {
			v.variant.http = http
			names = append(names, name(http, v.name))
			variants[name(http, v.name)] = v.variant
		}
	}
}

func name(http int, variant string) string { return fmt.Sprintf("HTTP/%d %s", http, variant) }

// Run runs the experiment.
func Run(ctx context.Context, b *trial.Book) error {
	if *segment < time.Second || *segment%time.Second != 0 {
		return fmt.Errorf("-segment %v: whole seconds, 1 or more", *segment)
	}
	for _, only := range b.Only {
		if variants[only] == (variant{}) && !slices.Contains(forwarders, only) {
			return fmt.Errorf("%q is no variant; there are: %s", only, strings.Join(append(names, forwarders...), ", "))
		}
	}
	dir, err := prepare(".cache/experiment", *segment)
	if err != nil {
		return err
	}
	b.Printf("%d segments of %v; links of %v and %v Mbit/s; other traffic of %v Mbit/s.\n", segments, *segment,
		lab.FastRate/1e6, lab.SlowRate/1e6, crossRate/1e6)
	err = b.Alternate(ctx, names, func(ctx context.Context, name string, _ int) (trial.Result, error) {
		return play(ctx, variants[name], dir, *segment)
	})
	if err != nil {
		return err
	}
	b.Parallel = 1
	if err := measureForwarding(ctx, b); err != nil {
		return err
	}
	return summarize(b)
}

// summarize writes the tables, the tests and the plots.
func summarize(b *trial.Book) error {
	err := b.Table(
		trial.Column{Figure: "bitrate", Unit: "Mbit/s", Digits: 2}, trial.Column{Figure: "switches"},
		trial.Column{Figure: "stalls"}, trial.Column{Figure: "stalled", Unit: "s", Digits: 2},
		trial.Column{Figure: "start", Unit: "s", Digits: 2},
		trial.Column{Figure: "video again after", Unit: "s", Digits: 2})
	if err != nil {
		return err
	}
	for _, http := range []int{2, 3} {
		bitrates := func(variant string) []float64 { return b.Values(name(http, variant), "bitrate") }
		mean := func(variant string) float64 { return trial.Summarize(bitrates(variant)).Mean }
		if math.IsNaN(mean("both paths")) {
			continue
		}
		b.Printf("HTTP/%d: both paths / unloaded: %.3f", http, mean("both paths")/mean("unloaded"))
		for _, other := range []string{"fast path", "slow path"} {
			p := trial.Greater(bitrates("both paths"), bitrates(other))
			b.Printf("; both paths over %s: p = %.2g", other, p)
			if p == 0 {
				b.Printf(" (neither varies)")
			}
		}
		b.Printf(".\n")
	}
	if err := b.Table(trial.Column{Figure: "processor", Unit: "ns a packet"}); err != nil {
		return err
	}
	if ratio := b.Median(relay, "processor") / b.Median(routing, "processor"); !math.IsNaN(ratio) {
		b.Printf("%s / %s: %.2f.\n", relay, routing, ratio)
	}
	var errs []error
	for _, http := range []int{2, 3} {
		var shown []string
		for _, variant := range []string{"both paths", "fast path", "slow path"} {
			shown = append(shown, name(http, variant))
		}
		errs = append(errs, b.Lines(fmt.Sprintf("http%d.png", http), "bitrate", "Mbit/s", shown...))
	}
	return errors.Join(append(errs, b.Spread("bitrate.png", "bitrate", "Mbit/s"))...)
}
