package control

import (
	"math"
	"time"
)

// Cubic is RFC 9438, with the constants of Linux and without HyStart. Slow start is the kernel's.
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
	origin float64 // where the curve is flat
	k      float64 // seconds from the epoch until then
	reno   float64 // the window that Reno would have
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
		f.cwnd, f.epoch = s.Cwnd, 0
		return Decision{}
	case s.SlowStart:
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
