package main

import (
	"bytes"
	"os/exec"
	"regexp"
	"testing"

	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
)

// TestBottleneck has the base layer arrive whole, whatever the subscriber asks for, and the enhancement layer as well
// unless it may be dropped.
func TestBottleneck(t *testing.T) {
	needs.Root(t)
	t.Chdir("..")
	if out, err := exec.CommandContext(t.Context(), "endpoints/build").CombinedOutput(); err != nil {
		t.Fatalf("endpoints/build: %v\n%s", err, out)
	}
	var out bytes.Buffer
	if err := run(t.Context(), &out, []string{"-relays", "ours", "-groups", "3"}); err != nil {
		t.Fatal(err)
	}
	const number = ` +\d+`
	for _, line := range []string{
		"one priority +100\\.0%" + number + number + " +100\\.0%" + number + number,
		"two priorities +100\\.0%" + number + number + " +100\\.0%" + number + number,
		"and a timeout +100\\.0%" + number + number + " +\\d+\\.\\d%" + number + number,
	} {
		if !regexp.MustCompile("(?m)^ +ours +" + line + "$").Match(out.Bytes()) {
			t.Errorf("no line %q in\n%s", line, out.Bytes())
		}
	}
}

// A layer of which nothing came has no delays.
func TestRow(t *testing.T) {
	for _, tt := range []struct {
		delays []float64
		want   string
	}{
		{nil, "0.0%\t-\t-"},
		{[]float64{30, 10, 20}, "6.0%\t20\t30"},
	} {
		if got := row(tt.delays, 2); got != tt.want {
			t.Errorf("%v: %q, not %q", tt.delays, got, tt.want)
		}
	}
}
