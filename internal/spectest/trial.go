package spectest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
	"github.com/fastrelay/fastrelay-gen/internal/packet"
	"github.com/fastrelay/fastrelay-gen/internal/testrun"
	"github.com/fastrelay/fastrelay-gen/sim"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// Trial is a program in the state before a test, for packets that no test has: those of a capture. The state changes as
// packets come; time stands still.
type Trial struct {
	t  *test
	hs *packet.Headers
}

// Begin makes the state before a test, of which the packet and what it expects are not looked at.
func Begin(s *spec.Spec, plan *ir.Plan, before *spec.Test) (*Trial, *diag.List) {
	return begin(s, plan, before, false)
}

// BeginTogether makes the state before several tests at once, for one program: a session, row or group that contradicts
// an earlier one is left out. So are settings, except those without a default.
func BeginTogether(s *spec.Spec, plan *ir.Plan, program spec.Name) (*Trial, *diag.List) {
	return begin(s, plan, Together(s, program), true)
}

// Together is a test that has the state of all tests of a spec, those of one program first.
func Together(s *spec.Spec, program spec.Name) *spec.Test {
	all := &spec.Test{Name: program, Program: program}
	needed := map[string]bool{}
	for _, x := range s.Settings {
		needed[x.Name.Value] = x.Default == nil
	}
	add := func(t *spec.Test) {
		for _, v := range t.Settings {
			if needed[v.Name.Value] {
				needed[v.Name.Value] = false
				all.Settings = append(all.Settings, v)
			}
		}
		for _, r := range t.Rows {
			one := *r
			if one.Of += len(all.Sessions); r.Of >= len(t.Sessions) {
				one.Of = -1
			}
			all.Rows = append(all.Rows, &one)
		}
		all.Sessions = append(all.Sessions, t.Sessions...)
		all.Groups = append(all.Groups, t.Groups...)
	}
	for _, own := range []bool{true, false} {
		for _, t := range s.Tests {
			if t.Conditions == nil && own == (t.Program.Value == program.Value) {
				add(t)
			}
		}
	}
	return all
}

func begin(s *spec.Spec, plan *ir.Plan, before *spec.Test, together bool) (*Trial, *diag.List) {
	p := &preparer{spec: s, plan: plan, headers: packet.NewHeaders(s), diags: &diag.List{}, together: together}
	p.t = &test{src: before, settings: map[string][]byte{}}
	p.before()
	if p.diags.Len() > 0 {
		return nil, p.diags
	}
	return &Trial{p.t, p.headers}, p.diags
}

// Before is what the state was made of. In a state of several tests, what was left out is not in it.
func (x *Trial) Before() *spec.Test { return x.t.src }

// Program is the program that runs.
func (x *Trial) Program() *ir.Program { return x.t.program }

// Fate is what became of a packet.
type Fate struct {
	sim.Result
	Why     *ir.Reason // the reason under which it was counted
	In, Out []*packet.Span
	Changes []packet.Change
	Copies  []CopyFate
	Events  []EventFate
}

// CopyFate is what a receiver got of it.
type CopyFate struct {
	sim.Copy
	Place   int // in its group, from 0; -1: it is in none
	Changes []packet.Change
}

// EventFate is a record that was written.
type EventFate struct {
	Name     string
	Receiver int // its place in its group, from 0; -1: the record names none
	Fields   []EventField
	Copies   []EventFate // what the record says of each copy; they have no names
}

// EventField is a field of a record.
type EventField struct {
	Name, Text string
	Quoted     bool // in a spec it is a string
}

// Run runs the program on a packet, in the model.
func (x *Trial) Run(p sim.Packet) (*Fate, error) {
	res, err := x.t.state.Run(x.t.program.Name, p)
	if err != nil {
		return nil, err
	}
	f := &Fate{Result: res, In: x.hs.Stack(p.Data, x.t.stack)}
	kinds := map[sim.Verdict]ir.ReasonKind{
		sim.VerdictSent: ir.Sent, sim.VerdictPass: ir.Passed, sim.VerdictDrop: ir.Dropped, sim.VerdictPunt: ir.Punted,
	}
	for _, r := range x.t.program.Reasons {
		if r.Name == res.Reason && (f.Why == nil || r.Kind == kinds[res.Verdict]) {
			f.Why = r
		}
	}
	f.Result.Packet.Data = bytes.Clone(res.Packet.Data)
	f.Out = f.In
	if !bytes.Equal(p.Data, res.Packet.Data) {
		f.Out = x.hs.Rewritten(res.Packet.Data, f.In, x.t.stack)
	}
	if res.Verdict != sim.VerdictDrop {
		f.Changes = packet.Changes(p.Data, f.In, res.Packet.Data, f.Out)
	}
	for _, c := range res.Copies {
		one := CopyFate{Copy: c, Place: x.t.place(c.Receiver)}
		if c.Sent {
			one.Packet.Data = bytes.Clone(c.Packet.Data)
			one.Changes = packet.Changes(p.Data, f.In, c.Packet.Data, x.hs.Rewritten(c.Packet.Data, f.In, x.t.stack))
		}
		f.Copies = append(f.Copies, one)
	}
	for _, e := range res.Events {
		one := EventFate{Name: e.Event.Name, Receiver: x.t.place(e.Receiver)}
		for _, m := range e.Event.Fields.Members {
			one.Fields = append(one.Fields, eventField(m, e.Event.Field(e.Record, m)))
		}
		for _, entry := range e.Event.Entries(e.Record) {
			copied := EventFate{Receiver: x.t.place(binary.LittleEndian.Uint32(entry))}
			for _, m := range e.Event.Copies.Entry.Members {
				if !m.Hidden {
					copied.Fields = append(copied.Fields, eventField(m, entry[m.Off:m.Off+m.Type.Size]))
				}
			}
			one.Copies = append(one.Copies, copied)
		}
		f.Events = append(f.Events, one)
	}
	return f, nil
}

func eventField(m *ir.Member, b []byte) EventField {
	return EventField{m.Name, m.Type.Show(b), m.Type.HasText()}
}

// Complete completes a checksum of a captured packet that the sender has left to its device, and reports whether there
// was one.
func (x *Trial) Complete(p *sim.Packet) (done bool) {
	p.Data, done = x.hs.Complete(p.Data, x.hs.Stack(p.Data, x.t.stack))
	return done
}

// Beside is the same program in the kernel, beside the model.
type Beside struct {
	x      *Trial
	net    *testrun.Net
	relay  *testrun.Relay
	after  *sim.Relay
	unpin  func()
	copies bool
}

// InKernel loads the program into the kernel, which needs root. The thread is in a network of its own until Close.
func (x *Trial) InKernel(object []byte) (_ *Beside, err error) {
	plan := x.t.state.Plan()
	b := &Beside{x: x, copies: testrun.UsesCopies(plan)}
	if b.unpin, err = testrun.Pin(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.Close())
		}
	}()
	if b.net, err = testrun.Enter(plan, true); err != nil {
		return nil, err
	}
	if b.copies {
		if err := b.net.Capture(); err != nil {
			return nil, err
		}
	}
	if b.relay, err = testrun.Load(plan, object, x.t.settings); err != nil {
		return nil, err
	}
	if b.copies {
		b.relay.Join(b.net)
	}
	b.after, err = sim.New(plan, x.t.settings)
	return b, err
}

// Close unloads the program and leaves the network.
func (b *Beside) Close() error {
	if b.relay != nil {
		b.relay.Close()
	}
	var err error
	if b.net != nil {
		err = b.net.Leave()
	}
	b.unpin()
	return err
}

// Run runs a packet in the model and in the kernel, from the same state. It returns what the model made of it, and
// either how the kernel's result differs, or why the kernel can't show it.
func (b *Beside) Run(p sim.Packet) (f *Fate, differs []string, why string, err error) {
	state := b.x.t.state
	b.after.CopyState(state)
	why = testrun.Shows(&p)
	if why == "" {
		watch(b.relay, state)
		if err := errors.Join(b.relay.Sync(state), b.net.Host(host(&p))); err != nil {
			return nil, nil, "", err
		}
	}
	if f, err = b.x.Run(p); err != nil {
		return nil, nil, "", err
	}
	if why == "" {
		why = testrun.ShowsResult(b.x.t.program, &p, &f.Result)
	}
	if why == "" && b.x.t.src.Route != nil && testrun.UsesRoutes(state.Plan()) {
		why = "the kernel looks the route up, and knows none like the test's"
	}
	if why != "" {
		return f, nil, why, nil
	}
	res, err := b.relay.Run(b.x.t.program.Name, &p)
	if errors.Is(err, testrun.ErrRefused) {
		return f, nil, err.Error(), nil
	}
	if err == nil {
		err = b.relay.Read(b.after, false)
	}
	if err != nil {
		return nil, nil, "", err
	}
	return f, b.compare(f, res), "", nil
}

func (b *Beside) compare(f *Fate, res testrun.Result) (out []string) {
	want := f.Verdict
	if want == sim.VerdictPass {
		want = sim.VerdictPunt // the kernel has one verdict for both; the reasons show which
	}
	if res.Verdict != want {
		out = append(out, fmt.Sprintf("verdict: the kernel has %s, the model %s", res.Verdict, want))
	}
	if want != sim.VerdictDrop && !bytes.Equal(res.Data, f.Packet.Data) {
		for _, c := range packet.Changes(f.Packet.Data, f.Out, res.Data, f.Out) {
			out = append(out, fmt.Sprintf("%s: the kernel has %s, the model %s", c.Name, c.To, c.From))
		}
	}
	sent := slices.DeleteFunc(slices.Clone(f.Copies), func(c CopyFate) bool { return !c.Sent })
	same := func(a CopyFate, b testrun.Copy) bool { return bytes.Equal(a.Packet.Data, b.Data) }
	if b.copies && !slices.EqualFunc(sent, res.Copies, same) {
		out = append(out, fmt.Sprintf("copies: the kernel has sent %d, the model %d, or their bytes differ",
			len(res.Copies), len(sent)))
	}
	return append(out, testrun.Compare(b.x.t.state.Plan(), b.after, b.x.t.state)...)
}
