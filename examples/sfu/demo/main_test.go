package main

import (
	"os"
	"strings"
	"testing"

	"github.com/fastrelay/fastrelay-gen/examples/sfu/lab"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
)

func TestMain(m *testing.M) {
	lab.Main()
	os.Exit(m.Run())
}

// The demo runs, and its table has a line for each receiver, none of which has a gap.
func TestRun(t *testing.T) {
	needs.Root(t)
	var b strings.Builder
	if err := run(&b, 3); err != nil {
		t.Fatalf("%v, after:\n%s", err, b.String())
	}
	lines := 0
	for line := range strings.Lines(b.String()) {
		fields := strings.Fields(line)
		if len(fields) < 10 || fields[0] != "anna" && fields[0] != "bert" && fields[0] != "carl" &&
			fields[0] != "dora" {
			continue
		}
		lines++
		if fields[3] == "0" || fields[len(fields)-1] != "0" {
			t.Errorf("nothing came, or there is a gap: %s", line)
		}
	}
	if lines != 4 {
		t.Errorf("%d receivers in\n%s", lines, b.String())
	}
}
