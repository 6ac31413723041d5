package control

import "time"

// BBR is like BBR's first version: it sends at the rate that the bottleneck delivers, which it takes to be the largest
// of the last ten rounds, and keeps twice the product of that and the lowest round-trip time in flight. It doesn't
// react to losses.
func BBR(cwnd float64, _ uint32) Flow { return &bbr{cwnd: cwnd, gain: startup} }

const (
	startup   = 2.885 // 2/ln 2: the rate doubles each round trip
	minWindow = 4
	rounds    = 10
)

var cycle = [...]float64{1.25, 0.75, 1, 1, 1, 1, 1, 1}

type bbr struct {
	cwnd   float64
	rates  [rounds]float64
	n      int
	minRTT time.Duration
	gain   float64
	full   float64 // the rate that startup has reached
	same   int     // rounds in which it didn't grow by a quarter
	phase  int     // of the cycle; before it starts: 0
	begun  time.Duration
}

func (f *bbr) Rules() Rules { return Rules{Keep: 1, Firm: true} }

func (f *bbr) Signal(s Signal) Decision {
	if s.Rate == 0 || s.MinRTT == 0 && f.minRTT == 0 {
		return Decision{}
	}
	f.rates[f.n%rounds] = s.Rate
	f.n++
	if s.MinRTT > 0 && (f.minRTT == 0 || s.MinRTT < f.minRTT) {
		f.minRTT = s.MinRTT
	}
	rate := 0.0
	for _, r := range f.rates {
		rate = max(rate, r)
	}
	switch {
	case f.gain == startup:
		if rate >= 1.25*f.full {
			f.full, f.same = rate, 0
		} else if f.same++; f.same >= 3 {
			f.gain = 1 / startup // drain the queue
		}
	case f.gain < 0.5 && s.Cwnd > rate*f.minRTT.Seconds() && s.RTT > f.minRTT*5/4:
	case s.Now-f.begun >= f.minRTT:
		f.begun, f.phase = s.Now, (f.phase+1)%len(cycle)
		f.gain = cycle[f.phase]
	}
	f.cwnd = max(2*max(f.gain, 1)*rate*f.minRTT.Seconds(), minWindow)
	return Decision{Cwnd: f.cwnd, Pacing: f.gain * rate}
}
