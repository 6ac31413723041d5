package control

import (
	"math"
	"time"
)

// Cubic is RFC 9438, with the constants of Linux. Slow start is the kernel's, until round-trip times grow (HyStart).
func Cubic(cwnd float64, _ uint32) Flow { return &cubic{cwnd: cwnd} }

const (
	cubicC    = 0.4
	cubicKeep = 717.0 / 1024
	friendly  = 3 * (1 - cubicKeep) / (1 + cubicKeep) // packets a round trip that are as fast as Reno
)

type cubic struct {
	cwnd   float64
	last   float64 // the window at the last loss
	epoch  time.Duration
	origin float64       // where the curve is flat
	k      float64       // seconds from the epoch until then
	reno   float64       // the window that Reno would have
	base   time.Duration // the lowest round-trip time
	left   bool          // slow start, before a loss
}

func (f *cubic) Rules() Rules { return Rules{Keep: cubicKeep} }

func (f *cubic) Signal(s Signal) Decision {
	switch {
	case s.Reduced:
		if f.epoch != 0 || f.cwnd > s.Cwnd {
			if f.cwnd < f.last { // fast convergence
				f.last = f.cwnd * (1 + cubicKeep) / 2
			} else {
				f.last = f.cwnd
			}
		}
		f.cwnd, f.epoch, f.left = s.Cwnd, 0, false
		return Decision{}
	case s.SlowStart && !f.leaves(s):
		f.cwnd, f.epoch = s.Cwnd, 0
		return Decision{}
	case !s.Limited:
		f.epoch = 0
		return Decision{Cwnd: f.cwnd}
	}
	if f.epoch == 0 {
		f.cwnd, f.reno = s.Cwnd, s.Cwnd
		f.epoch = s.Now
		f.origin = max(f.cwnd, f.last)
		f.k = math.Cbrt((f.origin - f.cwnd) / cubicC)
	}
	f.reno += friendly * s.Acked / max(f.cwnd, 1)
	t := (s.Now - f.epoch + s.MinRTT).Seconds() - f.k
	target := f.origin + cubicC*t*t*t
	// The kernel adds (target - cwnd)/cwnd for each packet that arrives, and at most a half.
	grow := min(max((target-f.cwnd)/f.cwnd, 0.01/f.cwnd), 0.5)
	f.cwnd = max(f.cwnd+grow*s.Acked, f.reno)
	return Decision{Cwnd: f.cwnd}
}

// leaves reports whether slow start is over: the window is not small, and a queue has begun to fill.
func (f *cubic) leaves(s Signal) bool {
	const small, least, most = 16, 4 * time.Millisecond, 16 * time.Millisecond
	if s.MinRTT > 0 && (f.base == 0 || s.MinRTT < f.base) {
		f.base = s.MinRTT
	}
	f.left = f.left || s.Cwnd >= small && s.MinRTT > f.base+min(max(f.base/8, least), most)
	return f.left
}
