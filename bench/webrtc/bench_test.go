package main

import (
	"testing"

	"github.com/fastrelay/fastrelay-gen/examples/segments/sfu"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
)

func TestMain(m *testing.M) {
	serverMain()
	m.Run()
}

// All ways of sending are measured, and all packets come. The figures are those of one machine: no more can be said.
func TestMeasure(t *testing.T) {
	needs.All(t)
	needs.Root(t)
	c, err := measureAll(options{rate: 1000, packets: 64, frame: 8, rounds: 1, steer: true, profiles: t.TempDir()}, 3)
	if err != nil {
		t.Fatal(err)
	}
	for _, sends := range sfu.AllSends {
		if ns := c.copies[sends]; ns < 100 || ns > 10_000_000 {
			t.Errorf("%s: a packet takes %.0f ns", sends, ns)
		}
	}
	if c.seal < 10 || c.seal > 1_000_000 {
		t.Errorf("to encrypt a packet takes %.0f ns", c.seal)
	}
	print(t.Output(), []cell{c})
}
