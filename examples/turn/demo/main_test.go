package main

import (
	"strings"
	"testing"

	"github.com/fastrelay/fastrelay-gen/internal/turnlab"
)

func TestReport(t *testing.T) {
	var b strings.Builder
	report(&b, map[turnlab.Variant]turnlab.Result{
		turnlab.UserSpace:  {Peak: 200_000, CPU: 5000, P50: 90, P99: 200},
		turnlab.InKernel:   {Peak: 1_000_000, CPU: 500, P50: 45, P99: 100},
		turnlab.Forwarding: {Peak: 1_000_000, CPU: 500, P50: 45, P99: 100},
	})
	for _, want := range []string{"200,000", "1,000,000", "5.0 times", "10.0 times less", "2.0 times less"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the report doesn't say %q:\n%s", want, b.String())
		}
	}
}

func TestThousands(t *testing.T) {
	for f, want := range map[float64]string{0: "0", 999: "999", 1000: "1,000", 1234567: "1,234,567"} {
		if got := thousands(f); got != want {
			t.Errorf("%v: %q, want %q", f, got, want)
		}
	}
}
