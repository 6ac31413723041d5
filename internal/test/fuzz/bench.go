package fuzz

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/packet"
	"github.com/fastrelay/fastrelay-gen/internal/sample"
	"github.com/fastrelay/fastrelay-gen/internal/testrun"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/skbfacts"
	"github.com/fastrelay/fastrelay-gen/sim"
)

// bench is a model and a loaded object with the same settings, and what a round did with them.
type bench struct {
	plan     *ir.Plan // with less room than the spec's, so that copying is quick and room runs out
	settings map[string][]byte
	model    *sim.Relay
	mirror   *sim.Relay   // the kernel's state, read back
	before   *sim.Relay   // the state at the start of the round
	probe    *sim.Relay   // a model for packets that don't count: those that the kernel's entry refuses, and trials
	alone    *sim.Relay   // what the model would be, if no program took frames at XDP
	both     *sim.Relay   // the model, with what programs counted at XDP beside what they did at tc/ingress
	beside   bool         // alone got the round's packets, too
	points   []*sim.Point // of the probe
	kernel   *testrun.Relay
	log      []logged // the packets of the round
	wrong    error    // the model's last error

	patience int         // so many packets pass before user space reads the ring of events; 0: it reads after each
	waiting  int         // packets since it did
	events   []sim.Event // what the model put into the ring since then
}

type logged struct {
	program string
	packet  sim.Packet
}

func newBench(plan *ir.Plan, object []byte, settings map[string][]byte, net *testrun.Net) (*bench, error) {
	few := sample.Few(plan)
	b := &bench{plan: few, settings: settings}
	for _, r := range []**sim.Relay{&b.model, &b.mirror, &b.before, &b.probe, &b.alone, &b.both} {
		relay, err := sim.New(few, settings)
		if err != nil {
			return nil, err
		}
		if net != nil {
			relay.World.Route = net.Route
		}
		relay.World.Refuses, relay.World.Clock, relay.World.TakesFrames = sim.Refuses, sample.Clock, sim.TakesFrames
		relay.World.Infers = skbfacts.Allowed == skbfacts.None
		*r = relay
	}
	b.points = b.probe.Coverage()
	if object == nil {
		return b, nil
	}
	k, err := testrun.Load(few, object, settings)
	if err != nil {
		return nil, err
	}
	for i := range min(sample.Watched, plan.Shared) {
		k.Watch(i)
	}
	if testrun.UsesCopies(plan) {
		k.Join(net)
	}
	b.kernel = k
	return b, nil
}

// setClock sets the model's clock to the kernel's.
func (b *bench) setClock(r *sim.Relay) error {
	if b.kernel == nil {
		return nil
	}
	now, err := testrun.Now()
	r.World.Clock = now
	return err
}

func (b *bench) close() {
	if b.kernel != nil {
		b.kernel.Close()
	}
}

// start begins a round with the model's state.
func (b *bench) start() error {
	b.log, b.events, b.waiting, b.beside = b.log[:0], b.events[:0], 0, false
	b.before.CopyState(b.model)
	b.mirror.CopyState(b.model)
	b.probe.CopyState(b.model)
	b.alone.CopyState(b.model)
	if b.kernel == nil {
		return nil
	}
	return b.kernel.Sync(b.model)
}

// finish ends a round: the states have to be the same.
func (b *bench) finish() (string, error) {
	if text := b.compareAlone(); text != "" {
		return text, nil
	}
	if b.kernel == nil {
		return "", nil
	}
	if text := b.readEvents(); text != "" {
		return text, nil
	}
	if err := b.kernel.Read(b.mirror, false); err != nil {
		return "", err
	}
	if diff := testrun.Compare(b.plan, b.mirror, b.model); len(diff) > 0 {
		return strings.Join(diff, "; "), nil
	}
	return "", nil
}

// try runs one packet through both, and returns how they differ. The error is testrun.ErrRefused if the kernel's
// entry didn't take it, and the model's state then is as if it had not come.
func (b *bench) try(program string, p sim.Packet) (sim.Result, string, error) {
	p.Link = sim.LinkType(p.Data, packet.DefaultDestination)
	if why := testrun.Shows(&p); why != "" || b.kernel == nil {
		return b.modelOnly(program, p)
	}
	if hidden, err := b.hidden(program, p); err != nil {
		return sim.Result{}, "", err
	} else if hidden {
		return b.modelOnly(program, p)
	}
	got, err := b.kernel.Run(program, &p)
	if errors.Is(err, testrun.ErrRefused) {
		return b.modelOnly(program, p)
	}
	if err != nil {
		return sim.Result{}, "", err
	}
	b.log = append(b.log, logged{program, p})
	if err := b.setClock(b.model); err != nil {
		return sim.Result{}, "", err
	}
	want, text := b.run(program, p)
	if text != "" {
		return want, text, nil
	}
	if text := cmp.Or(compare(&p, got, want), compareCopies(got.Copies, want.Copies)); text != "" {
		return want, text, nil
	}
	b.events = append(b.events, want.Events...)
	if b.waiting++; b.waiting > b.patience {
		return want, b.readEvents(), nil
	}
	return want, "", nil
}

// hidden reports whether a run in the kernel can't show what happens to a packet: it is tried in the model.
func (b *bench) hidden(program string, p sim.Packet) (bool, error) {
	i := slices.IndexFunc(b.plan.Programs, func(x *ir.Program) bool { return x.Name == program })
	if i < 0 || !testrun.MayHide(b.plan.Programs[i], &p) {
		return false, nil
	}
	b.probe.CopyState(b.model)
	if err := b.setClock(b.probe); err != nil {
		return false, err
	}
	want, err := b.probe.Run(program, p)
	b.probe.CopyState(b.model)
	return err == nil && testrun.ShowsResult(b.plan.Programs[i], &p, &want) != "", nil
}

// readEvents reads the ring, and returns how its records differ from the model's.
func (b *bench) readEvents() string {
	text := compareEvents(b.kernel.Events(), b.events)
	b.events, b.waiting, b.model.RingUsed, b.alone.RingUsed = b.events[:0], 0, 0, 0
	return text
}

// modelOnly runs a packet in the model; if there is a kernel, in one whose state doesn't count.
func (b *bench) modelOnly(program string, p sim.Packet) (sim.Result, string, error) {
	var res sim.Result
	var text string
	if b.kernel == nil {
		b.log = append(b.log, logged{program, p})
		b.model.RingUsed, b.alone.RingUsed = 0, 0
		res, text = b.run(program, p)
	} else {
		b.probe.RingUsed = 0
		res, text = b.runIn(b.probe, program, p)
	}
	if text != "" {
		return res, text, nil
	}
	if (res.Verdict == sim.VerdictPunt || res.Verdict == sim.VerdictDrop) && !bytes.Equal(res.Packet.Data, p.Data) {
		return res, "the packet isn't sent, but changed", nil
	}
	if b.kernel == nil {
		return res, "", nil
	}
	return res, "", testrun.ErrRefused
}

// runIn runs a packet in a model. The text says that the plan contradicts itself.
func (b *bench) runIn(model *sim.Relay, program string, p sim.Packet) (sim.Result, string) {
	res, err := model.Run(program, p)
	if err != nil {
		b.wrong = err
		return res, err.Error()
	}
	return res, ""
}

// run runs a packet in the model. The same becomes of a packet that goes through XDP as of one that doesn't.
func (b *bench) run(program string, p sim.Packet) (sim.Result, string) {
	res, text := b.runIn(b.model, program, p)
	if text != "" || !b.alsoFrames() {
		return res, text
	}
	p.Frame, b.beside = false, true
	b.alone.World.Clock = b.model.World.Clock
	alone, text := b.runIn(b.alone, program, p)
	switch {
	case text != "":
		return res, text
	case res.Verdict != alone.Verdict || res.Reason != alone.Reason:
		text = fmt.Sprintf("%s (%s), and %s (%s) without XDP", res.Verdict, res.Reason, alone.Verdict, alone.Reason)
	case res.Others && (alone.Verdict != sim.VerdictPunt || len(alone.Events) > 0):
		text = fmt.Sprintf("%s (%s): the next program at XDP gets it before", alone.Verdict, alone.Reason)
	case res.Verdict != sim.VerdictDrop && !bytes.Equal(res.Packet.Data, alone.Packet.Data):
		text = "with XDP, packet: " + firstByte(res.Packet.Data, alone.Packet.Data)
	case res.Verdict == sim.VerdictSent && *res.Hop != *alone.Hop:
		text = fmt.Sprintf("leaves by %+v, and by %+v without XDP", *res.Hop, *alone.Hop)
	case !slices.EqualFunc(res.Events, alone.Events, func(x, y sim.Event) bool {
		return x.Event == y.Event && x.Receiver == y.Receiver && bytes.Equal(x.Record, y.Record)
	}):
		text = fmt.Sprintf("%d events, and %d others without XDP", len(res.Events), len(alone.Events))
	}
	return res, text
}

// alsoFrames reports whether a program takes frames at XDP.
func (b *bench) alsoFrames() bool {
	return slices.ContainsFunc(b.plan.Programs, func(p *ir.Program) bool { return p.XDP != nil })
}

// compareAlone compares the model's state with that of one in which no program took frames at XDP: nothing is counted
// twice, or not at all.
func (b *bench) compareAlone() string {
	if !b.beside {
		return ""
	}
	b.both.CopyState(b.model)
	for _, p := range b.plan.Programs {
		if p.XDP == nil {
			continue
		}
		for i, r := range p.XDP.Reasons {
			from := &b.both.Reasons[b.both.Tally(p.XDP, i)]
			at := p.IndexOf(r)
			if at < 0 {
				continue // it stays, and differs if it counts
			}
			to := &b.both.Reasons[b.both.Tally(p, at)]
			to.Packets, to.Bytes, *from = to.Packets+from.Packets, to.Bytes+from.Bytes, sim.Tally{}
		}
	}
	// A full bucket that has got something back is spent up to the moment when that was; XDP only asks it.
	for i := range testrun.Buckets(b.alone) {
		if i >= len(b.alone.Credits) {
			continue
		}
		got, want := &b.both.Credits[i].Spent, b.alone.Credits[i].Spent
		if *got <= want && want <= b.model.World.Clock {
			*got = want
		}
	}
	if diff := testrun.Compare(b.plan, b.both, b.alone); len(diff) > 0 {
		return "with XDP, against without: " + strings.Join(diff, "; ")
	}
	return ""
}

// compare names the first difference between what the kernel (got) and the model (want) made of a packet.
func compare(p *sim.Packet, got testrun.Result, want sim.Result) string {
	verdict := want.Verdict
	if verdict == sim.VerdictPass {
		verdict = sim.VerdictPunt // the same to the kernel; the counters differ
	}
	switch {
	case got.Verdict != verdict:
		return fmt.Sprintf("verdict: the kernel says %s, the model %s (%s)", got.Verdict, want.Verdict, want.Reason)
	case got.Others != want.Others:
		return fmt.Sprintf("at XDP the next program gets the packet: the kernel says %t, the model %t (%s)",
			got.Others, want.Others, want.Reason)
	case want.Verdict == sim.VerdictDrop && (len(want.Copies) > 0 || bytes.HasPrefix(want.Packet.Data, got.Data)):
		return "" // no one sees what its copies left of it, or that it was cut off in front of them
	case want.Verdict == sim.VerdictPunt && !bytes.Equal(got.Data, p.Data):
		return fmt.Sprintf("the kernel changed a packet that passes to the stack (%s): %s", want.Reason,
			firstByte(got.Data, p.Data))
	case !bytes.Equal(got.Data, want.Packet.Data):
		return fmt.Sprintf("packet (%s, %s): %s", want.Verdict, want.Reason, firstByte(got.Data, want.Packet.Data))
	case got.Mark != want.Packet.Mark || got.Priority != want.Packet.Priority:
		return fmt.Sprintf("mark and priority: the kernel says %d and %d, the model %d and %d", got.Mark, got.Priority,
			want.Packet.Mark, want.Packet.Priority)
	}
	return ""
}

// compareCopies names the first difference between the copies that left, and those that the model sent.
func compareCopies(got []testrun.Copy, turns []sim.Copy) string {
	n := 0
	for i, want := range turns {
		if !want.Sent {
			continue
		}
		what := fmt.Sprintf("copy %d (to receiver %d, turn %d)", n, want.Receiver, i)
		if n >= len(got) {
			return fmt.Sprintf("%s: the kernel sent only %d", what, len(got))
		}
		c := got[n]
		n++
		switch {
		case !bytes.Equal(c.Data, want.Packet.Data):
			return fmt.Sprintf("%s: %s", what, firstByte(c.Data, want.Packet.Data))
		case c.Ifindex != want.Hop.Ifindex:
			return fmt.Sprintf("%s: the kernel's leaves through device %d, the model's through %d", what, c.Ifindex,
				want.Hop.Ifindex)
		case c.Mark != want.Packet.Mark || c.Priority != want.Packet.Priority:
			return fmt.Sprintf("%s: mark and priority: the kernel says %d and %d, the model %d and %d", what, c.Mark,
				c.Priority, want.Packet.Mark, want.Packet.Priority)
		}
	}
	if n != len(got) {
		return fmt.Sprintf("the kernel sent %d copies, the model %d", len(got), n)
	}
	return ""
}

// compareEvents names the first difference between the records in the ring and the model's.
func compareEvents(got []testrun.Event, want []sim.Event) string {
	for i, w := range want {
		if i >= len(got) {
			return fmt.Sprintf("event %d (%s, receiver %d): the kernel has only %d", i, w.Event.Name, w.Receiver,
				len(got))
		}
		if g := got[i]; g.ID != w.Event.ID || g.Receiver != w.Receiver || !bytes.Equal(g.Record, w.Record) {
			return fmt.Sprintf("event %d (%s, receiver %d): the kernel's has ID %d, receiver %d: %s", i, w.Event.Name,
				w.Receiver, g.ID, g.Receiver, firstByte(g.Record, w.Record))
		}
		if got[i].Time == 0 {
			return fmt.Sprintf("event %d (%s): it has no time", i, w.Event.Name)
		}
	}
	if len(got) != len(want) {
		return fmt.Sprintf("the kernel reported %d events, the model %d", len(got), len(want))
	}
	return ""
}

func firstByte(got, want []byte) string {
	if len(got) != len(want) {
		return fmt.Sprintf("the kernel's has %d bytes, the model's %d", len(got), len(want))
	}
	for i := range got {
		if got[i] != want[i] {
			return fmt.Sprintf("byte %d: the kernel's is %02x, the model's %02x", i, got[i], want[i])
		}
	}
	return "no difference"
}
