package main

import (
	"context"
	"errors"
	"time"

	"github.com/fastrelay/fastrelay-gen/examples/congestion/congestionrelay"
	"github.com/fastrelay/fastrelay-gen/examples/congestion/control"
	"github.com/fastrelay/fastrelay-gen/runtime"
)

// flow is a TCP flow: its signals are events, and its row has what is decided.
type flow struct {
	*control.Controller
	relay              *congestionrelay.Relay
	id                 uint64
	round, losses, mss uint32 // of the latest signal
}

// Apply implements control.Sender.
func (f *flow) Apply(d control.Decision, rules control.Rules) error {
	err := f.relay.Flows.Put(f.id, congestionrelay.FlowsRow{
		Cwnd: uint32(d.Cwnd), Pacing: uint64(d.Pacing * float64(f.mss)), Round: f.round, Losses: f.losses,
		Keep: uint16(1024 * rules.Keep), Firm: rules.Firm,
	})
	if errors.Is(err, runtime.ErrFull) { // there are more flows than rows: this one is left to Reno's rules
		return nil
	}
	return err
}

// signal is told what happened in a round.
func (f *flow) signal(e *congestionrelay.SignalEvent) error {
	reduced := e.Losses != f.losses || e.State >= 2
	f.round, f.losses, f.mss = e.Round, e.Losses, e.Mss
	return f.Signal(control.Signal{
		Now: e.Mono, Acked: float64(e.Acked), Lost: float64(e.Lost), Cwnd: float64(e.Cwnd), Limited: e.Limited == 1,
		SlowStart: e.Cwnd < e.Ssthresh, Reduced: reduced, RTT: time.Duration(e.Rtt) * time.Microsecond,
		MinRTT: time.Duration(e.MinRtt) * time.Microsecond, Rate: float64(e.Rate) / float64(max(e.Mss, 1)),
	})
}

// serve controls the flows of a relay until ctx ends or the relay is closed.
func serve(ctx context.Context, relay *congestionrelay.Relay, algorithm control.Algorithm) error {
	flows := map[uint64]*flow{}
	begin := func(id uint64, cwnd, mss, losses uint32) (err error) {
		f := &flow{relay: relay, id: id, losses: losses, mss: mss}
		flows[id] = f
		f.Controller, err = control.Start(algorithm, float64(cwnd), mss, f)
		return err
	}
	for e, err := range relay.Events(ctx) {
		if err != nil {
			if ctx.Err() != nil || errors.Is(err, runtime.ErrClosed) {
				return nil
			}
			return err
		}
		switch e := e.(type) {
		case congestionrelay.CreatedEvent:
			err = begin(e.Flow, e.Cwnd, e.Mss, 0)
		case congestionrelay.SignalEvent:
			if flows[e.Flow] == nil { // it began with another controller
				err = begin(e.Flow, e.Cwnd, e.Mss, e.Losses)
			}
			if err == nil {
				err = flows[e.Flow].signal(&e)
			}
		case congestionrelay.FreedEvent:
			delete(flows, e.Flow)
			if err = relay.Flows.Delete(e.Flow); errors.Is(err, runtime.ErrNotFound) {
				err = nil
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}
