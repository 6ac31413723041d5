package control

import (
	"testing"
	"time"
)

// Slow start is the kernel's, until a loss or a queue; then the window grows slowly to where it was, and fast after it.
func TestCubic(t *testing.T) {
	const rtt = 200 * time.Millisecond
	f := Cubic(10, 1448)
	signal := func(n int, cwnd float64, took time.Duration) Signal {
		return Signal{
			Now: time.Duration(n) * rtt, Acked: cwnd, Cwnd: cwnd, SlowStart: true, Limited: true,
			RTT: took, MinRTT: took,
		}
	}
	for n, s := range []Signal{signal(0, 10, rtt), signal(1, 20, rtt+10*time.Millisecond), signal(2, 40, rtt)} {
		if d := f.Signal(s); d != (Decision{}) {
			t.Errorf("%d: in slow start the window is %v", n, d.Cwnd)
		}
	}
	if d := f.Signal(signal(3, 80, rtt+20*time.Millisecond)); d.Cwnd < 80 || d.Cwnd > 82 {
		t.Errorf("a queue begins to fill, and the window of 80 becomes %v", d.Cwnd)
	}
	if d := f.Signal(signal(4, 81, rtt)); d.Cwnd < 80 || d.Cwnd > 83 {
		t.Errorf("after slow start the window of 81 becomes %v", d.Cwnd)
	}
	lost := signal(5, 57, rtt)
	lost.Reduced, lost.SlowStart = true, false
	if d := f.Signal(lost); d != (Decision{}) {
		t.Errorf("after a loss the window is %v", d.Cwnd)
	}
	cwnd, half := 57.0, 0.0
	for n := 6; n < 6+40; n++ { // 8 s
		s := signal(n, cwnd, rtt)
		s.SlowStart = false
		next := f.Signal(s).Cwnd
		if next < cwnd {
			t.Fatalf("the window of %v becomes %v", cwnd, next)
		}
		if cwnd = next; n == 26 {
			half = cwnd
		}
	}
	if half < 75 || half > 95 || cwnd < 100 {
		t.Errorf("the window is %v after 4 s and %v after 8", half, cwnd)
	}
}
