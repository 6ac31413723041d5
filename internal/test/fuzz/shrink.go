package fuzz

import (
	"slices"

	"github.com/fastrelay/fastrelay-gen/internal/packet"
	"github.com/fastrelay/fastrelay-gen/internal/sample"
	"github.com/fastrelay/fastrelay-gen/internal/testrun"
	"github.com/fastrelay/fastrelay-gen/sim"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// Difference is a case in which the kernel and the model differ (or in which both are wrong), made small.
type Difference struct {
	Text string
	Case *Case
	Err  error // of the model, if the plan contradicts itself

	last logged // the packet that showed it
}

// maxTries bounds the runs that making a case small may take.
const maxTries = 4000

// shrinker makes the last round's log small while it still differs.
type shrinker struct {
	*fuzzer
	state *sim.Relay // the smallest state so far
	log   []logged
	text  string
	tries int
}

// shrink makes the round that differed small, and puts it into the report.
func (f *fuzzer) shrink(text string) error {
	state, err := sim.New(f.bench.model.Plan(), f.bench.settings)
	if err != nil {
		return err
	}
	state.CopyState(f.bench.before)
	if f.Quick {
		f.report.Difference = &Difference{
			Text: text, Case: newCase(f.Plan, f.bench, state, f.bench.log, text), Err: f.bench.wrong,
		}
		if n := len(f.bench.log); n > 0 {
			f.report.Difference.last = f.bench.log[n-1]
		}
		return nil
	}
	s := &shrinker{fuzzer: f, state: state, log: slices.Clone(f.bench.log), text: text}
	s.packets()
	s.rows()
	for i := range s.log {
		s.shorten(i)
		s.cut(i)
		s.zeros(i)
		s.facts(i)
	}
	f.report.Difference = &Difference{
		Text: s.text, Case: newCase(f.Plan, f.bench, s.state, s.log, s.text), Err: f.bench.wrong,
	}
	return nil
}

// differs runs packets on a state, and returns how kernel and model differ, or "". Errors count as no difference:
// making a case small must not end in another one.
func (s *shrinker) differs(state *sim.Relay, log []logged) string {
	if s.tries++; s.tries > maxTries {
		return ""
	}
	b := s.bench
	b.model.CopyState(state)
	if b.start() != nil {
		return ""
	}
	for _, l := range log {
		res, text, err := b.try(l.program, l.packet)
		if err != nil {
			return ""
		}
		if text == "" {
			text = s.examine(l.program, l.packet, res, true)
		}
		if text != "" {
			return text
		}
	}
	text, err := b.finish()
	if err != nil {
		return ""
	}
	return text
}

// keep takes a smaller case if it still differs.
func (s *shrinker) keep(state *sim.Relay, log []logged) bool {
	text := s.differs(state, log)
	if text == "" {
		return false
	}
	s.state, s.log, s.text = state, log, text
	return true
}

// packets drops packets: first all but the last one, then halves, then one by one.
func (s *shrinker) packets() {
	if n := len(s.log); n > 1 && s.keep(s.state, s.log[n-1:]) {
		return
	}
	for size := len(s.log) / 2; size > 0; size /= 2 {
		for at := 0; at+size <= len(s.log) && len(s.log) > 1; {
			if !s.keep(s.state, slices.Delete(slices.Clone(s.log), at, at+size)) {
				at += size
			}
		}
	}
}

// rows drops rows of tables and values of counters.
func (s *shrinker) rows() {
	smaller := func(change func(*sim.Relay)) bool {
		state, err := sim.New(s.bench.model.Plan(), s.bench.settings)
		if err != nil {
			return false
		}
		state.CopyState(s.state)
		change(state)
		return s.keep(state, s.log)
	}
	for _, t := range s.Plan.Tables {
		for _, k := range s.state.Table(t.Name).Keys() {
			smaller(func(r *sim.Relay) { r.Table(t.Name).Delete([]byte(k)) })
		}
	}
	for _, g := range s.Plan.Groups {
		for _, k := range s.state.Group(g.Name).Keys() {
			if smaller(func(r *sim.Relay) { r.Group(g.Name).Delete([]byte(k)) }) {
				continue
			}
			for i := 0; ; {
				rows, _ := s.state.Group(g.Name).Get([]byte(k))
				if i >= len(rows) {
					break
				}
				if !smaller(func(r *sim.Relay) {
					r.Group(g.Name).Put([]byte(k), slices.Delete(slices.Clone(rows), i, i+1))
				}) {
					i++
				}
			}
		}
	}
	for i, c := range s.state.Credits {
		if c.Limit|c.Spent|c.Burst != 0 {
			smaller(func(r *sim.Relay) { r.Credits[i] = sim.Credit{Refused: r.Credits[i].Refused} })
		}
	}
	for _, k := range translationKeys(s.state) {
		smaller(func(r *sim.Relay) { delete(r.Translations, k) })
	}
	for i := range s.state.Slots {
		if s.state.Slots[i] != (sim.Slot{}) {
			smaller(func(r *sim.Relay) { r.Slots[i] = sim.Slot{} })
		}
	}
	for i, v := range s.state.Shared {
		if v != 0 {
			smaller(func(r *sim.Relay) { r.Shared[i] = 0 })
		}
	}
}

func (s *shrinker) with(i int, p sim.Packet) []logged {
	log := slices.Clone(s.log)
	log[i].packet = p
	return log
}

// shorten takes bytes out of a packet's payload; its lengths and checksums follow.
func (s *shrinker) shorten(i int) {
	for size := len(s.log[i].packet.Data) / 2; size > 0; {
		p := s.log[i].packet
		f := &packet.Frame{Data: p.Data}
		f.Spans, _ = s.headers.Parse(p.Data, s.stack(s.log[i]), packet.Options{})
		if len(f.Spans) > 0 {
			p.Data = sample.Resize(s.headers, f, -size)
		}
		if len(f.Spans) == 0 || p.Data == nil || testrun.Shows(&p) != "" || !s.keep(s.state, s.with(i, p)) {
			size /= 2
		}
	}
}

// stack returns the headers of a packet's program that the packet seems to have.
func (s *shrinker) stack(l logged) []*spec.Header {
	prog := slices.IndexFunc(s.Spec.Programs, func(p *spec.Program) bool { return p.Name.Value == l.program })
	var headers []*spec.Header
	for _, e := range s.Spec.Programs[prog].Stack {
		var best *spec.Header
		fewest := 1 << 30
		for _, n := range e.Headers {
			for _, h := range s.headers.Group(n.Value) {
				all := append(slices.Clone(headers), h)
				spans, problems := s.headers.Parse(l.packet.Data, all, packet.Options{})
				if len(spans) == len(all) && len(problems) < fewest {
					best, fewest = h, len(problems)
				}
			}
		}
		if best != nil {
			headers = append(headers, best)
		}
	}
	return headers
}

// cut drops bytes at the end of a packet.
func (s *shrinker) cut(i int) {
	for size := len(s.log[i].packet.Data) / 2; size > 0; {
		p := s.log[i].packet
		if size >= len(p.Data) {
			size /= 2
			continue
		}
		p.Data = p.Data[:len(p.Data)-size]
		if testrun.Shows(&p) != "" || !s.keep(s.state, s.with(i, p)) {
			size /= 2
		}
	}
}

// zeros clears bytes of a packet.
func (s *shrinker) zeros(i int) {
	for at := len(s.log[i].packet.Data) - 1; at >= 0; at-- {
		p := s.log[i].packet
		if p.Data[at] == 0 {
			continue
		}
		p.Data = slices.Clone(p.Data)
		p.Data[at] = 0
		s.keep(s.state, s.with(i, p))
	}
}

// facts drops what is not in a packet's bytes.
func (s *shrinker) facts(i int) {
	for _, drop := range []func(*sim.Packet){
		func(p *sim.Packet) { p.GSO = 0 }, func(p *sim.Packet) { p.Mark = 0 }, func(p *sim.Packet) { p.Priority = 0 },
	} {
		p := s.log[i].packet
		drop(&p)
		s.keep(s.state, s.with(i, p))
	}
}
