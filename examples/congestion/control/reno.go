package control

// Reno is RFC 5681: a packet more each round trip, half the window after a loss. Slow start is the kernel's.
func Reno(cwnd float64, _ uint32) Flow { return &reno{cwnd} }

type reno struct{ cwnd float64 }

func (f *reno) Rules() Rules { return Rules{Keep: 0.5} }

func (f *reno) Signal(s Signal) Decision {
	if s.SlowStart || s.Reduced {
		f.cwnd = s.Cwnd
		return Decision{}
	}
	if s.Limited {
		f.cwnd += s.Acked / max(f.cwnd, 1)
	}
	return Decision{Cwnd: f.cwnd}
}
