//go:build linux

package main

import (
	"testing"

	"github.com/fastrelay/fastrelay-gen/examples/congestion/control"
)

// BenchmarkRatios measures how much of a link each algorithm fills, beside the kernel's own CUBIC in the same run, and
// how much a flow does whose controller is gone.
func BenchmarkRatios(b *testing.B) {
	flow := func(b *testing.B, p *place, name string) (rate float64) {
		c, err := p.dial(name)
		if err != nil {
			b.Fatal(err)
		}
		defer c.Close()
		send(b, c, second)
		return send(b, c, 2*second)
	}
	compare := func(name, algorithm string, gone bool) {
		b.Run(name, func(b *testing.B) {
			p := newPlace(b)
			_, end := controlled(b, "fr_b_"+name, algorithm)
			if gone {
				end()
			}
			var ours, kernels float64
			for range b.N {
				ours += flow(b, p, "fr_b_"+name)
				kernels += flow(b, p, "cubic")
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(ours/kernels, "of-cubic")
			b.ReportMetric(ours/float64(b.N)/rate, "of-the-link")
		})
	}
	for algorithm := range control.Algorithms {
		compare(algorithm, algorithm, false)
	}
	compare("gone", "cubic", true)
}
