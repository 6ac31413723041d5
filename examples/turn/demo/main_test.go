package main

import (
	"math"
	"strings"
	"testing"

	"github.com/fastrelay/fastrelay-gen/examples/turn/lab"
	"github.com/fastrelay/fastrelay-gen/internal/test/measure"
)

func TestReport(t *testing.T) {
	var b strings.Builder
	report(&b, map[lab.Variant]measure.Result{
		lab.UserSpace:  {Peak: 200_000, CPU: 5000, P99: 3000, DeviceP50: 90, DeviceP99: 200},
		lab.InKernel:   {Peak: 1_000_000, CPU: 500, P99: 300, DeviceP50: 45, DeviceP99: 100},
		lab.Forwarding: {Peak: 1_000_000, CPU: 500, P99: 301, DeviceP50: 45, DeviceP99: 100},
	})
	for _, want := range []string{
		"200,000", "1,000,000", "5.0 times", "10.0 times less", "2.0 times less", "p99 3000 µs, 300 µs and 301 µs",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the report doesn't say %q:\n%s", want, b.String())
		}
	}
}

// If the sender was the limit, a rate and the ratio are said to be at least that.
func TestReportOfASlowSender(t *testing.T) {
	var b strings.Builder
	report(&b, map[lab.Variant]measure.Result{
		lab.UserSpace:  {Peak: 200_000, CPU: 5000},
		lab.InKernel:   {Peak: 1_000_000, CPU: 500, AtLeast: true},
		lab.Forwarding: {Peak: 900_000, CPU: 500},
	})
	for _, want := range []string{
		"≥ 1,000,000", "≥ 5.0 times", " 900,000", "the sender, which has the other processor",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the report doesn't say %q:\n%s", want, b.String())
		}
	}
}

// A figure that other work on the machine spoilt is not printed, and nothing is compared with it.
func TestReportOfABusyMachine(t *testing.T) {
	for _, cpu := range []float64{0, -40, math.Inf(1)} {
		var b strings.Builder
		report(&b, map[lab.Variant]measure.Result{
			lab.UserSpace:  {Peak: 200_000, CPU: 5000, DeviceP50: 90, DeviceP99: 200},
			lab.InKernel:   {Peak: 1_000_000, CPU: cpu, DeviceP50: 45, DeviceP99: 100},
			lab.Forwarding: {Peak: 1_000_000, CPU: 500, DeviceP50: 45, DeviceP99: 100},
		})
		text := b.String()
		if !strings.Contains(text, busyMachine) || strings.Contains(text, "Inf") || strings.Contains(text, "0.00") ||
			strings.Count(text, "times less") != 1 {
			t.Errorf("with %v ns:\n%s", cpu, text)
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
