package gate

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fastrelay/fastrelay-gen/examples/gate/lab"
	"github.com/fastrelay/fastrelay-gen/experiment/trial"
)

// All tables and plots of results are written, also if variants are missing.
func TestSummarize(t *testing.T) {
	b, err := trial.New(t.TempDir(), 2, false, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	figures := map[string]map[string]float64{
		name(lab.NoGate, none):     {"requests": 1000, "mean": 8},
		name(lab.NoGate, together): {"requests": 100, "mean": 80},
		name(lab.Kernel, together): {"requests": 900, "mean": 4},

		name(lab.UserSpace, together): {"requests": 600, "mean": 6},

		filterName(unread):        {"processor": 100},
		filterName(lab.UserSpace): {"processor": 2100, "system calls": 200},
		filterName(lab.Kernel):    {"processor": 600, "system calls": 1},

		name(unread, string(lab.Flood)):     {"requests": 800, "mean": 10},
		name(lab.Kernel, string(lab.Flood)): {"requests": 600, "mean": 12},
	}
	var variants []string
	for v := range figures {
		variants = append(variants, v)
	}
	err = b.Alternate(t.Context(), variants, func(_ context.Context, name string, _ int) (trial.Result, error) {
		return trial.Result{Figures: figures[name]}, nil
	})
	if err := b.Finish(errors.Join(err, summarize(b))); err != nil {
		t.Fatal(err)
	}
	table, err := os.ReadFile(filepath.Join(b.Dir, "table.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"all together: gate against no gate: throughput +800% (p = 0), mean duration -95%; against user space: " +
			"throughput +50%; 90% of the throughput",
		"500 ns a packet in the gate, 2000 in user space, -75%; system calls -99.5%",
		"80% of the throughput without an attack; the gate has 75% of that",
	} {
		if !strings.Contains(string(table), want) {
			t.Errorf("no %q in:\n%s", want, table)
		}
	}
	if _, err := os.Stat(filepath.Join(b.Dir, "requests.png")); err != nil {
		t.Error(err)
	}
}

// Each attack is measured with each variant.
func TestScenes(t *testing.T) {
	for _, scene := range scenes() {
		if _, ok := attacks(1000)[scene]; !ok {
			t.Errorf("%q is no attack", scene)
		}
	}
}
