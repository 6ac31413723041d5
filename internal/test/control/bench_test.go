package control_test

import (
	"slices"
	"testing"
	"time"

	"github.com/fastrelay/fastrelay-gen/runtime/control/api"
)

// BenchmarkRatios measures how long packets, and callers that open and close a session, take while 64,000 sessions are
// listed, beside how long they took before.
func BenchmarkRatios(b *testing.B) {
	l := start(b)
	c := api.NewClient(l.path)
	defer c.Close()
	const count = 64_000
	for i := range count {
		l.open(i)
	}
	calls := map[string]func(){
		"opened": func() {
			if err := l.open(count).Close(); err != nil {
				b.Fatal(err)
			}
		},
		"packet": func() { l.emit(1) },
	}
	// measure returns how long calls took, the shortest first.
	measure := func(call func(), over func(n int) bool) (all []time.Duration) {
		for !over(len(all)) {
			began := time.Now()
			call()
			all = append(all, time.Since(began))
		}
		slices.Sort(all)
		return all
	}
	for what, call := range calls {
		b.Run(what, func(b *testing.B) {
			var quiet, busy []time.Duration
			for range b.N {
				quiet = measure(call, func(n int) bool { return n == 5000 })
				done := make(chan error, 1)
				go func() {
					_, err := api.All[api.Session](b.Context(), c, "/v1/sessions/call")
					done <- err
				}()
				busy = measure(call, func(n int) bool {
					select {
					case err := <-done:
						if err != nil {
							b.Fatal(err)
						}
						return n > 0
					default:
						return false
					}
				})
			}
			at := func(all []time.Duration, part float64) float64 { return float64(all[int(part*float64(len(all)-1))]) }
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(at(busy, 0.5)/at(quiet, 0.5), "median-of-before")
			b.ReportMetric(at(busy, 0.99)/at(quiet, 0.99), "p99-of-before")
			b.ReportMetric(at(busy, 0.99)/1000, "p99-µs")
		})
	}
}
