package trial

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"golang.org/x/sys/unix"
)

// Book has the results of an experiment, in memory and in a folder: results.jsonl (a line for each run), table.md, and
// the plots.
type Book struct {
	Dir      string
	Runs     int      // of each variant
	Parallel int      // runs at the same time
	Only     []string // variants to run; nil: all

	Results []Result

	variants []string // in the order of the experiment
	first    int      // number of the first run

	out  io.Writer // what a person sees
	raw  *os.File
	text strings.Builder // table.md

	mu sync.Mutex
}

// Result is what one run of a variant gave.
type Result struct {
	Variant string             `json:"variant"`
	Run     int                `json:"run"`
	Figures map[string]float64 `json:"figures"`
	Curves  map[string]Curve   `json:"curves,omitempty"` // figures over time
	Detail  any                `json:"detail,omitempty"` // what else is worth keeping
}

// A Curve is a figure over time.
type Curve []Point

// Point is the value of a figure at a time, in seconds.
type Point struct{ X, Y float64 }

// MarshalJSON implements json.Marshaler: a point is [x, y].
func (p Point) MarshalJSON() ([]byte, error) { return json.Marshal([2]float64{p.X, p.Y}) }

// UnmarshalJSON implements json.Unmarshaler.
func (p *Point) UnmarshalJSON(text []byte) error {
	var at [2]float64
	err := json.Unmarshal(text, &at)
	p.X, p.Y = at[0], at[1]
	return err
}

// New starts a book in a folder. It replaces the results that are there, or adds to them.
func New(dir string, runs int, add bool, out io.Writer) (*Book, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	b := &Book{Dir: dir, Runs: runs, Parallel: 1, out: out}
	file, flags := filepath.Join(dir, "results.jsonl"), os.O_WRONLY|os.O_CREATE|os.O_TRUNC
	if add {
		flags = os.O_WRONLY | os.O_CREATE | os.O_APPEND
		if err := b.read(file); err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
	}
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return nil, err
	}
	b.Printf("Linux %s, %s.\n", unix.ByteSliceToString(u.Release[:]), time.Now().UTC().Format(time.DateOnly))
	var err error
	b.raw, err = os.OpenFile(file, flags, 0o644)
	return b, err
}

// read reads the results that are there, which new runs are added to.
func (b *Book) read(file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(text)) {
		var r Result
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			return err
		}
		b.Results = append(b.Results, r)
		b.first = max(b.first, r.Run+1)
	}
	return nil
}

// Printf writes a paragraph into the table's file, and shows it.
func (b *Book) Printf(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	fmt.Fprint(b.out, text)
	b.text.WriteString(text)
}

// Finish writes what is left to write. It returns err, which ended the experiment, and its own errors.
func (b *Book) Finish(err error) error {
	if err == nil {
		err = os.WriteFile(filepath.Join(b.Dir, "table.md"), []byte(b.text.String()), 0o644)
		fmt.Fprintf(b.out, "\nResults are in %s.\n", b.Dir)
	}
	return errors.Join(err, b.raw.Close())
}

// add writes down the result of a run.
func (b *Book) add(r Result) error {
	line, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("%s, run %d: %w", r.Variant, r.Run, err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.Results = append(b.Results, r)
	_, err = b.raw.Write(append(line, '\n'))
	return err
}

// Alternate runs all variants in turns, as often as the book says, so that a machine that is slow for a while is slow
// for all of them, and keeps what they return. An error ends it.
func (b *Book) Alternate(ctx context.Context, variants []string,
	f func(ctx context.Context, variant string, run int) (Result, error),
) error {
	b.variants = append(b.variants, variants...)
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	var wait sync.WaitGroup
	places := make(chan struct{}, b.Parallel)
	for run := b.first; run < b.first+b.Runs; run++ {
		for _, variant := range variants {
			if b.Only != nil && !slices.Contains(b.Only, variant) {
				continue
			}
			places <- struct{}{}
			if ctx.Err() != nil {
				wait.Wait()
				return context.Cause(ctx)
			}
			wait.Go(func() {
				if err := b.once(ctx, variant, run, f); err != nil {
					fail(fmt.Errorf("%s, run %d: %w", variant, run, err))
				}
				<-places
			})
		}
	}
	wait.Wait()
	return context.Cause(ctx)
}

// once runs a variant once, and adds what it returns.
func (b *Book) once(ctx context.Context, variant string, run int,
	f func(ctx context.Context, variant string, run int) (Result, error),
) error {
	began, all := time.Now(), b.first+b.Runs
	r, err := f(ctx, variant, run)
	if err != nil {
		return err
	}
	r.Variant, r.Run = variant, run
	if err := b.add(r); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	_, err = fmt.Fprintf(b.out, "%s, run %d of %d: %.0f s\n", variant, run+1, all, time.Since(began).Seconds())
	return err
}

// with returns the variants that have one of the figures.
func (b *Book) with(figures ...string) (names []string) {
	for _, variant := range b.variants {
		if slices.ContainsFunc(figures, func(figure string) bool { return len(b.Values(variant, figure)) > 0 }) {
			names = append(names, variant)
		}
	}
	return names
}

// Values returns a figure of all runs of a variant that have it.
func (b *Book) Values(variant, figure string) (values []float64) {
	for _, r := range b.Results {
		if v, ok := r.Figures[figure]; ok && r.Variant == variant {
			values = append(values, v)
		}
	}
	return values
}

// Median returns the median of a figure of a variant; NaN if no run has it.
func (b *Book) Median(variant, figure string) float64 {
	return Summarize(b.Values(variant, figure)).Median
}

// Mean returns the average of the curves of that name of a variant's runs, point by point: they have to be at the same
// times. It ends with the shortest.
func (b *Book) Mean(variant, curve string) (mean Curve) {
	n := 0.0
	for _, r := range b.Results {
		c := r.Curves[curve]
		if r.Variant != variant || len(c) == 0 {
			continue
		}
		if n++; n == 1 {
			mean = slices.Clone(c)
			continue
		}
		mean = mean[:min(len(mean), len(c))]
		for i := range mean {
			mean[i].Y += (c[i].Y - mean[i].Y) / n
		}
	}
	return mean
}

// Column is a figure in a table.
type Column struct {
	Figure string
	Unit   string
	Digits int // after the point
}

// Table writes a table with a row for each variant that has one of the figures: the median of each, and the range of
// its runs. Without any, there is no table.
func (b *Book) Table(columns ...Column) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	var figures []string
	for _, c := range columns {
		figures = append(figures, c.Figure)
	}
	variants := b.with(figures...)
	if len(variants) == 0 {
		return nil
	}
	fmt.Fprint(&b.text, "\n|  | runs |")
	for _, c := range columns {
		fmt.Fprintf(&b.text, " %s |", c.title())
	}
	fmt.Fprintf(&b.text, "\n|---|---|%s\n", strings.Repeat("---|", len(columns)))
	fmt.Fprintln(b.out)
	t := tabwriter.NewWriter(b.out, 0, 0, 2, ' ', 0)
	fmt.Fprint(t, "\truns")
	for _, c := range columns {
		fmt.Fprintf(t, "\t%s", c.title())
	}
	fmt.Fprintln(t)
	for _, variant := range variants {
		runs := 0
		for _, figure := range figures {
			runs = max(runs, len(b.Values(variant, figure)))
		}
		fmt.Fprintf(&b.text, "| %s | %d |", variant, runs)
		fmt.Fprintf(t, "%s\t%d", variant, runs)
		for _, c := range columns {
			cell := Summarize(b.Values(variant, c.Figure)).text(c.Digits)
			fmt.Fprintf(&b.text, " %s |", cell)
			fmt.Fprintf(t, "\t%s", cell)
		}
		fmt.Fprintln(&b.text)
		fmt.Fprintln(t)
	}
	fmt.Fprintln(&b.text)
	return t.Flush()
}

func (c Column) title() string {
	if c.Unit == "" {
		return c.Figure
	}
	return c.Figure + ", " + c.Unit
}

// text shows a summary as "median [low–high]".
func (s Summary) text(digits int) string {
	switch {
	case math.IsNaN(s.Median):
		return "–"
	case s.Low == s.High:
		return fmt.Sprintf("%.*f", digits, s.Median)
	}
	return fmt.Sprintf("%.*f [%.*f–%.*f]", digits, s.Median, digits, s.Low, digits, s.High)
}
