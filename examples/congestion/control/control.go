// Package control runs congestion control algorithms in user space, over the relay of examples/congestion.
package control

import (
	"context"
	"errors"
	"time"

	"github.com/fastrelay/fastrelay-gen/examples/congestion/congestionrelay"
	"github.com/fastrelay/fastrelay-gen/runtime"
)

// Algorithm makes the state of a new flow.
type Algorithm func(cwnd float64, mss uint32) Flow

// Algorithms by name.
var Algorithms = map[string]Algorithm{"reno": Reno, "cubic": Cubic, "bbr": BBR}

// Flow is an algorithm's state of one flow.
type Flow interface {
	// Signal is told what happened in the last round.
	Signal(Signal) Decision
	// Rules are the rules for losses.
	Rules() Rules
}

// Rules are what the kernel does when it detects a loss, until the next signal.
type Rules struct {
	Keep float64 // what remains of the window
	Firm bool    // the decision holds during recovery, too
}

// Signal is what happened in a round of a flow, and how it ended.
type Signal struct {
	Now       time.Duration // a monotonic clock
	Acked     float64       // packets
	Lost      float64
	Cwnd      float64 // packets
	SlowStart bool    // the kernel's rules are in slow start
	Limited   bool    // the window limits what is sent
	Reduced   bool    // there was a loss since the last signal, or the window is being reduced
	RTT       time.Duration
	MinRTT    time.Duration // in the round; 0: none was measured
	Rate      float64       // delivery rate in packets a second
}

// Decision is a window in packets and a pacing rate in packets a second; 0 leaves it to Reno's rules.
type Decision struct{ Cwnd, Pacing float64 }

type flow struct {
	Flow
	losses uint32
}

// Serve controls the flows of a relay until ctx ends or the relay is closed.
func Serve(ctx context.Context, relay *congestionrelay.Relay, algorithm Algorithm) error {
	flows := map[uint64]*flow{}
	for e, err := range relay.Events(ctx) {
		if err != nil {
			if ctx.Err() != nil || errors.Is(err, runtime.ErrClosed) {
				return nil
			}
			return err
		}
		switch e := e.(type) {
		case congestionrelay.CreatedEvent:
			f := &flow{Flow: algorithm(float64(e.Cwnd), e.Mss)}
			flows[e.Flow] = f
			if err := relay.Flows.Put(e.Flow, f.row(Decision{}, 0, 0, 0)); err != nil && !full(err) {
				return err
			}
		case congestionrelay.SignalEvent:
			f := flows[e.Flow]
			if f == nil { // it began with another controller
				f = &flow{Flow: algorithm(float64(e.Cwnd), e.Mss), losses: e.Losses}
				flows[e.Flow] = f
			}
			d := f.Signal(f.signal(&e))
			if err := relay.Flows.Put(e.Flow, f.row(d, e.Round, e.Losses, e.Mss)); err != nil && !full(err) {
				return err
			}
		case congestionrelay.FreedEvent:
			delete(flows, e.Flow)
			if err := relay.Flows.Delete(e.Flow); err != nil && !errors.Is(err, runtime.ErrNotFound) {
				return err
			}
		}
	}
	return nil
}

// full reports whether there are more flows than rows: those without one are left to Reno's rules.
func full(err error) bool { return errors.Is(err, runtime.ErrFull) }

func (f *flow) signal(e *congestionrelay.SignalEvent) Signal {
	reduced := e.Losses != f.losses || e.State >= 2
	f.losses = e.Losses
	return Signal{
		Now: e.Mono, Acked: float64(e.Acked), Lost: float64(e.Lost), Cwnd: float64(e.Cwnd), Limited: e.Limited == 1,
		SlowStart: e.Cwnd < e.Ssthresh, Reduced: reduced, RTT: time.Duration(e.Rtt) * time.Microsecond,
		MinRTT: time.Duration(e.MinRtt) * time.Microsecond, Rate: float64(e.Rate) / float64(max(e.Mss, 1)),
	}
}

func (f *flow) row(d Decision, round, losses, mss uint32) congestionrelay.FlowsRow {
	rules := f.Rules()
	return congestionrelay.FlowsRow{
		Cwnd: uint32(d.Cwnd), Pacing: uint64(d.Pacing * float64(mss)), Round: round, Losses: losses,
		Keep: uint16(1024 * rules.Keep), Firm: rules.Firm,
	}
}
