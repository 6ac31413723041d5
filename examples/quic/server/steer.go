package server

import (
	"time"

	"github.com/fastrelay/fastrelay-gen/examples/congestion/control"
	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go"
)

// A steering gives an algorithm of examples/congestion a subscriber's window: it signals once a round trip what
// happened to the connection's packets, and what is decided goes into the kernel's credit. Until the first loss, the
// library's slow start decides when the algorithm doesn't.
//
// The library keeps to its own window as well. While it has something to send, such as what was lost, the kernel keeps
// to the smaller one of the two. Copies are not paced: they leave when the publisher's packets come.
type steering struct {
	controller *control.Controller
	rules      control.Rules
	path       quic.PathState
	window     float64 // in bytes; 0: the library's

	start, began time.Time // of all, and of the round
	before, last sums      // when the round began, and now
	most         int       // bytes in flight in the round
	lossy        bool      // there was a loss in the round
	reduced      time.Time // the latest loss
}

// sums are bytes since the connection began. They shrink when a packet arrives that was taken for lost.
type sums struct{ delivered, lost float64 }

func newSteering(algorithm control.Algorithm, path quic.PathState, now time.Time) *steering {
	s := &steering{path: path, start: now, began: now}
	s.controller, _ = control.Start(algorithm, s.packets(float64(path.CongestionWindow)), uint32(s.size()), s)
	return s
}

func (s *steering) size() float64                 { return float64(max(s.path.MaxPacketSize, 1200)) }
func (s *steering) packets(bytes float64) float64 { return bytes / s.size() }

// Apply implements control.Sender. It never fails.
func (s *steering) Apply(d control.Decision, rules control.Rules) error {
	s.rules = rules
	if d.Cwnd > 0 {
		s.window = d.Cwnd * s.size()
	}
	return nil
}

// bytes is the window.
func (s *steering) bytes() int {
	if s.window == 0 {
		return s.path.CongestionWindow
	}
	return int(s.window)
}

// room is how many bytes may be sent.
func (s *steering) room() int { return max(0, s.bytes()-s.path.BytesInFlight) }

// update takes the state of the path, and how many bytes the connection has sent and lost. Losses within a round trip
// are one event.
func (s *steering) update(p quic.PathState, sent, lost uint64, now time.Time) {
	s.path = p
	s.most = max(s.most, p.BytesInFlight)
	was := s.last.lost
	s.last = sums{float64(sent) - float64(lost) - float64(p.BytesInFlight), float64(lost)}
	if s.last.lost > was && now.Sub(s.reduced) > p.SmoothedRTT {
		s.reduced, s.lossy = now, true
		if !s.rules.Firm {
			s.window = max(s.rules.Keep*float64(s.bytes()), 2*s.size())
		}
	}
	if now.Sub(s.began) >= max(p.SmoothedRTT, time.Millisecond) {
		s.signal(now)
	}
}

func (s *steering) signal(now time.Time) {
	window := float64(s.bytes())
	signal := control.Signal{
		Now: now.Sub(s.start), Cwnd: s.packets(window), SlowStart: s.reduced.IsZero(), Reduced: s.lossy,
		Acked:   max(0, s.packets(s.last.delivered-s.before.delivered)),
		Lost:    max(0, s.packets(s.last.lost-s.before.lost)),
		Limited: float64(s.most) > window-s.size(), RTT: s.path.SmoothedRTT, MinRTT: s.path.MinRTT,
	}
	if signal.Limited { // else the publisher has set the rate
		signal.Rate = signal.Acked / now.Sub(s.began).Seconds()
	}
	s.began, s.before, s.most, s.lossy = now, s.last, s.path.BytesInFlight, false
	_ = s.controller.Signal(signal) // which fails if Apply does
}
