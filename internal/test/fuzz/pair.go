package fuzz

import (
	"errors"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/sample"
	"github.com/fastrelay/fastrelay-gen/internal/testrun"
	"github.com/fastrelay/fastrelay-gen/sim"
)

// Pair is a loaded object and its model, for packets that come from elsewhere.
type Pair struct {
	bench *bench
	net   *testrun.Net // nil: the thread stays where it is
}

// NewPair loads an object with the default settings, and zeros if there are none.
func NewPair(plan *ir.Plan, object []byte) (*Pair, error) {
	settings := map[string][]byte{}
	for _, s := range plan.Settings {
		if s.Default == nil {
			settings[s.Name] = make([]byte, s.Type.Size)
		}
	}
	unpin, err := testrun.Pin()
	if err != nil {
		return nil, err
	}
	p := &Pair{}
	if p.net, err = network(plan); err == nil {
		p.bench, err = newBench(plan, object, settings, p.net)
	}
	return p, errors.Join(err, p.away(unpin))
}

// away moves the thread out of the pair's network.
func (p *Pair) away(unpin func()) error {
	if p.net != nil {
		if err := p.net.Away(); err != nil {
			return err // the thread stays pinned, and ends with its goroutine
		}
	}
	unpin()
	return nil
}

// Close unloads the object.
func (p *Pair) Close() error {
	p.bench.close()
	if p.net == nil {
		return nil
	}
	return p.net.Leave()
}

// One compares the kernel and the model on one packet, which comes to each program on a random state. It returns how
// they differ, or "".
func (p *Pair) One(seed uint64, packet sim.Packet) (text string, err error) {
	unpin, err := testrun.Pin()
	if err != nil {
		return "", err
	}
	if p.net != nil {
		if err := p.net.Back(); err != nil {
			return "", err
		}
	}
	defer func() { err = errors.Join(err, p.away(unpin)) }()
	b := p.bench
	s := sample.NewSource(seed)
	s.State(b.plan, b.model)
	if err := b.start(); err != nil {
		return "", err
	}
	for _, prog := range b.plan.Programs {
		if _, text, err := b.try(prog.Name, packet); text != "" || err != nil && !errors.Is(err, testrun.ErrRefused) {
			return text, err
		}
	}
	return b.finish()
}
