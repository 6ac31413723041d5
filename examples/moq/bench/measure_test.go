package main

import (
	"os"
	"testing"
	"time"
)

// A process' CPU time grows with what it does.
func TestCPU(t *testing.T) {
	before := cpu(os.Getpid())
	for sum := 0; cpu(os.Getpid()) < before+2*tick; sum++ {
	}
	if cpu(1<<30) != 0 {
		t.Error("a process that isn't there has used CPU time")
	}
}

// The median is that of a value.
func TestMedian(t *testing.T) {
	all := []join{{3, 1}, {1, 9}, {2, 5}}
	if m := median(all, func(j join) float64 { return j.took }); m != 2 {
		t.Error(m)
	}
}

func TestQuantile(t *testing.T) {
	delays := []time.Duration{1, 2, 3, 4}
	if a, b, c := quantile(delays, 0), quantile(delays, 0.5), quantile(delays, 1); a != 1 || b != 3 || c != 4 {
		t.Error(a, b, c)
	}
}
