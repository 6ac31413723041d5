package trial

import (
	"bytes"
	"context"
	"errors"
	"image/png"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// An experiment of two variants leaves a line for each run, a table with medians and ranges, and plots.
func TestBook(t *testing.T) {
	dir, out := filepath.Join(t.TempDir(), "results"), &bytes.Buffer{}
	b, err := New(dir, 3, false, out)
	if err != nil {
		t.Fatal(err)
	}
	var order []string
	err = b.Alternate(t.Context(), []string{"slow", "fast"},
		func(_ context.Context, variant string, run int) (Result, error) {
			order = append(order, variant)
			figure := map[string]float64{"slow": 10, "fast": 20}[variant] + float64(run)
			return Result{
				Figures: map[string]float64{"rate": figure, "lost": 0},
				Curves:  map[string]Curve{"rate": Curve{{0, 0}, {1, figure}, {2, 7}}[:2+run%2]},
			}, nil
		})
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(order, " "); got != "slow fast slow fast slow fast" {
		t.Errorf("variants ran as %q, not in turns", got)
	}
	err = errors.Join(
		b.Table(Column{Figure: "rate", Unit: "Mbit/s", Digits: 1}, Column{Figure: "lost"}, Column{Figure: "none"}),
		b.Spread("rate.png", "rate", "Mbit/s"), b.Lines("lines.png", "rate", "Mbit/s", "slow", "fast"),
		b.Averages("means.png", "rate", "Mbit/s", "slow", "fast"), b.Averages("none.png", "none", "", "slow"),
		b.Spread("none.png", "none", ""), b.Lines("none.png", "none", "", "slow"), b.Table(Column{Figure: "none"}),
		b.Finish(nil))
	if err != nil {
		t.Fatal(err)
	}
	if m := b.Mean("fast", "rate"); len(m) != 2 || m[0] != (Point{0, 0}) || m[1] != (Point{1, 21}) {
		t.Errorf("the average of the curves is %v", m)
	}
	table, err := os.ReadFile(filepath.Join(dir, "table.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range []string{
		"|  | runs | rate, Mbit/s | lost | none |",
		"| slow | 3 | 11.0 [10.0–12.0] | 0 | – |",
		"| fast | 3 | 21.0 [20.0–22.0] | 0 | – |",
	} {
		if !strings.Contains(string(table), row+"\n") {
			t.Errorf("no row %q in:\n%s", row, table)
		}
	}
	raw, err := os.ReadFile(filepath.Join(dir, "results.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	first := `{"variant":"slow","run":0,"figures":{"lost":0,"rate":10},"curves":{"rate":[[0,0],[1,10]]}}` + "\n"
	if !strings.HasPrefix(string(raw), first) || strings.Count(string(raw), "\n") != 6 {
		t.Errorf("results.jsonl:\n%s", raw)
	}
	if _, err := os.Stat(filepath.Join(dir, "none.png")); err == nil {
		t.Error("there is a plot of nothing")
	}
	for _, name := range []string{"rate.png", "lines.png", "means.png"} {
		f, err := os.Open(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := png.Decode(f); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Runs are added to those that are there; without that, they replace them.
func TestAdd(t *testing.T) {
	dir := t.TempDir()
	for i, want := range []int{2, 4, 2} {
		b, err := New(dir, 2, i == 1, &bytes.Buffer{})
		if err != nil {
			t.Fatal(err)
		}
		err = b.Alternate(t.Context(), []string{"a"}, func(_ context.Context, _ string, run int) (Result, error) {
			return Result{Figures: map[string]float64{"x": 7}, Curves: map[string]Curve{"x": {{1, 2}}}}, nil
		})
		if err = b.Finish(err); err != nil {
			t.Fatal(err)
		}
		if n := len(b.Values("a", "x")); n != want || b.Results[n-1].Run != want-1 {
			t.Errorf("%d runs, want %d: %v", n, want, b.Results)
		}
		if b.Results[0].Curves["x"][0] != (Point{1, 2}) {
			t.Error(b.Results[0].Curves)
		}
	}
}

// An error ends the experiment and names the run.
func TestBookErrors(t *testing.T) {
	b, err := New(t.TempDir(), 2, false, &bytes.Buffer{})
	if err != nil {
		t.Fatal(err)
	}
	fails := func(context.Context, string, int) (Result, error) { return Result{}, errors.New("no server") }
	if err := b.Alternate(t.Context(), []string{"a"}, fails); err == nil || err.Error() != "a, run 0: no server" {
		t.Error(err)
	}
	b.Parallel = 2
	if err := b.Alternate(t.Context(), []string{"a"}, fails); err == nil || !strings.HasPrefix(err.Error(), "a, run ") {
		t.Error(err)
	}
	b.Parallel, b.Only = 1, []string{"b"}
	if err := b.Alternate(t.Context(), []string{"a"}, fails); err != nil {
		t.Error("a variant ran that isn't asked for:", err)
	}
}

// The p here was found by integrating the density of Student's t at t = 2.9055 and 4.3033 degrees of freedom.
func TestStatistics(t *testing.T) {
	s := Summarize([]float64{4, 1, 3, 2})
	if s.Median != 2.5 || s.Low != 1 || s.High != 4 || s.Mean != 2.5 || math.Abs(s.Deviation-1.2909944) > 1e-6 {
		t.Errorf("%+v", s)
	}
	if !math.IsNaN(Summarize(nil).Median) {
		t.Error("the median of nothing is a number")
	}
	values, others := []float64{5, 6, 7, 9}, []float64{3, 4, 4, 5}
	if p := Greater(values, others); math.Abs(p-0.0200847) > 1e-6 {
		t.Errorf("p = %v", p)
	}
	if p, q := Greater(values, others), Greater(others, values); math.Abs(p+q-1) > 1e-9 {
		t.Errorf("p = %v one way and %v the other way", p, q)
	}
	same, more := []float64{1, 1}, []float64{2, 2}
	if p, q := Greater(more, same), Greater(same, more); p != 0 || q != 1 {
		t.Errorf("p = %v and %v of values that don't vary", p, q)
	}
	if p := Greater(more, same[:1]); !math.IsNaN(p) {
		t.Errorf("p = %v of a single value", p)
	}
}
