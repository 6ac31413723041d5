package tree

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fastrelay/fastrelay-gen/experiment/trial"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
)

func TestMain(m *testing.M) {
	Main()
	os.Exit(m.Run())
}

// small is a tree for tests: 7 relays, 40 receivers. The copies of a packet fit into the queue that a machine comes
// with.
var small = shape{middle: 2, edges: 2, receivers: 10}

// A relay in the middle is killed and replaced: its successor has its receivers from what was pinned, and no receiver
// loses a packet; or its controller rebuilds them, and only receivers below it lose packets, until then.
func TestReplaced(t *testing.T) {
	needs.Root(t)
	for _, pin := range []bool{true, false} {
		n, err := build(t.Context(), small, pin)
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := n.close(); err != nil {
				t.Error(err)
			}
		}()
		if err := n.warm(); err != nil {
			t.Fatal(err)
		}
		n.reset()
		first, stop, sent := n.publisher.next, make(chan struct{}), make(chan error, 1)
		go func() {
			for err := error(nil); ; {
				select {
				case <-stop:
					sent <- err
					return
				default:
					err = errors.Join(err, n.publisher.send(20*time.Millisecond, 200))
				}
			}
		}()
		how, err := n.middle[0].replace(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		close(stop)
		if err := errors.Join(<-sent, n.publisher.send(100*time.Millisecond, 200)); err != nil {
			t.Fatal(err)
		}
		want := int(n.publisher.next - first)
		got := n.settle(want)
		lost := want*small.all() - got.packets
		t.Logf("pinned: %v; %d packets, %d copies lost of %d receivers, gap %v; attached after %v, replaced after %v",
			pin, want, lost, got.short, got.gap, how.ready, how.rebuilt)
		if how.adopted != pin || got.doubled > 0 {
			t.Errorf("pinned: %v: adopted: %v; %d copies came twice", pin, how.adopted, got.doubled)
		}
		switch below := small.edges * small.receivers; {
		case pin && how.ready < 700*time.Millisecond && lost > 0: // three quarters of the lease were left
			t.Errorf("%d copies were lost, although the relay was pinned", lost)
		case !pin && (got.short != below || lost == 0):
			t.Errorf("%d receivers have lost %d copies; %d are below the relay", got.short, lost, below)
		}
		// From now on, all is as before.
		if err := n.warm(); err != nil {
			t.Error(err)
		}
	}
}

// All figures are measured.
func TestFigures(t *testing.T) {
	needs.Root(t)
	n, err := build(t.Context(), small, false)
	if err != nil {
		t.Fatal(err)
	}
	figures, err := n.joins(t.Context())
	if err := errors.Join(err, n.close()); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"one by one", "at once", "in one change", "maps", "a receiver's maps", "process"} {
		if figures[name] <= 0 {
			t.Errorf("%s: %v", name, figures)
		}
	}
}

// All tables and plots of results are written.
func TestSummarize(t *testing.T) {
	b, err := trial.New(t.TempDir(), 2, false, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	err = b.Alternate(t.Context(), []string{undisturbed, rebuilt, capacity},
		func(_ context.Context, name string, _ int) (r trial.Result, err error) {
			r.Figures = map[string]map[string]float64{
				undisturbed: {"sent": 200_000, "lost": 0}, rebuilt: {"sent": 200_000, "lost": 1250},
				capacity: {"packets": 300, "copies": 307_200},
			}[name]
			r.Curves = map[string]trial.Curve{"copies below the relay": {{X: 0, Y: 1}, {X: 1, Y: 2}}}
			return r, nil
		})
	if err := b.Finish(errors.Join(err, summarize(b))); err != nil {
		t.Fatal(err)
	}
	table, err := os.ReadFile(filepath.Join(b.Dir, "table.md"))
	if err != nil {
		t.Fatal(err)
	}
	if want := "has lost 5.0 packets, 100 ms of the stream"; !strings.Contains(string(table), want) {
		t.Errorf("no %q in:\n%s", want, table)
	}
	for _, plot := range []string{"tree.png", "copies.png"} {
		if _, err := os.Stat(filepath.Join(b.Dir, plot)); err != nil {
			t.Error(err)
		}
	}
}
