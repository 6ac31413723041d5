package congestion

import (
	"context"
	"encoding/json"
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

// What iperf3 reports becomes figures and curves.
func TestReport(t *testing.T) {
	const text = `{"start": {"tcp_mss_default": 1000}, "intervals": [
		{"streams": [{"start": 0, "bits_per_second": 2e6, "snd_cwnd": 10000, "rtt": 20000, "retransmits": 3}]},
		{"streams": [{"start": 0.1, "bits_per_second": 4e6, "snd_cwnd": 20000, "rtt": 30000, "retransmits": 4}]}]}`
	var p report
	if err := json.Unmarshal([]byte(text), &p); err != nil {
		t.Fatal(err)
	}
	r := p.result()
	for name, want := range map[string]float64{window: 15, bitrate: 3, roundTrip: 25, lost: 7} {
		if got := r.Figures[name]; got != want {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
	if c := r.Curves[roundTrip]; len(c) != 2 || c[1] != (trial.Point{X: 0.1, Y: 30}) {
		t.Error(c)
	}
}

// The loop counts on the sender's processor, and the longer the further.
func TestLoop(t *testing.T) {
	l, err := startLoop()
	if err != nil {
		t.Fatal(err)
	}
	defer l.close()
	short, err1 := l.count(10 * time.Millisecond)
	long, err2 := l.count(200 * time.Millisecond)
	if err1 != nil || err2 != nil || short <= 0 || long < 2*short {
		t.Error(short, long, err1, err2)
	}
}

// A transfer goes over both ways from the sender to the receiver, and over the link at its rate.
func TestTransfer(t *testing.T) {
	needs.All(t)
	needs.Root(t) // for iperf3 as well
	defer func(was time.Duration) { *length = was }(*length)
	*length = 2 * time.Second
	r, err := measure(t.Context(), variant{kernel: "reno"}, "")
	if err != nil {
		t.Fatal(err)
	}
	if got := r.Figures[bitrate]; got < rate/1e6/3 || got > rate/1e6*1.2 {
		t.Errorf("%.1f Mbit/s over a link of %.1f", got, rate/1e6)
	}
	if r.Figures[fast] < 0.1 || r.Figures[leftCable] <= 0 || r.Figures[leftLink] <= 0 {
		t.Error(r.Figures)
	}
}

// The table compares user space with the kernel, also if variants are missing.
func TestSummarize(t *testing.T) {
	b, err := trial.New(t.TempDir(), 2, false, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	variants := []string{inKernel("cubic"), inUser("cubic"), inKernel("bbr")}
	err = b.Alternate(t.Context(), variants, func(_ context.Context, name string, run int) (trial.Result, error) {
		r := trial.Result{Figures: map[string]float64{}, Curves: map[string]trial.Curve{}}
		for _, figure := range []string{window, bitrate, roundTrip, leftCable, leftLink, fast, lost} {
			r.Figures[figure] = float64(len(name) + run)
			r.Curves[figure] = trial.Curve{{X: 0, Y: 1}, {X: 1, Y: 2}}
		}
		return r, nil
	})
	if err := b.Finish(errors.Join(err, summarize(b))); err != nil {
		t.Fatal(err)
	}
	table, err := os.ReadFile(filepath.Join(b.Dir, "table.md"))
	if err != nil {
		t.Fatal(err)
	}
	want := "cubic, user space / kernel: left 1.320 over the cable, 1.320 over the link (medians); window 1.320; " +
		"bitrate 1.320; round-trip time 1.320 (averages).\n"
	if !strings.Contains(string(table), want) || strings.Contains(string(table), "bbr, user space / kernel") {
		t.Errorf("no %q in:\n%s", want, table)
	}
	for _, name := range []string{"left.png", "cubic-window.png", "cubic-bitrate.png", "cubic-rtt.png"} {
		if _, err := os.Stat(filepath.Join(b.Dir, name)); err != nil {
			t.Error(err)
		}
	}
}
