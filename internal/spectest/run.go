package spectest

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
	"github.com/fastrelay/fastrelay-gen/internal/packet"
	"github.com/fastrelay/fastrelay-gen/internal/testrun"
	"github.com/fastrelay/fastrelay-gen/runtime/abi"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/literal"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/skbfacts"
	"github.com/fastrelay/fastrelay-gen/sim"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// Status is how a test ended.
type Status int

const (
	Passed   Status = iota
	Failed          // see Differences
	NotShown        // a run in the kernel can't show it, see Why; it runs in the model only
)

// Outcome is the result of one test.
type Outcome struct {
	Name        string
	Program     string
	Pos         diag.Pos
	Status      Status
	Why         string   // NotShown: "the VLAN tag is in the metadata"
	Differences []string // Failed: "ipv4.ttl: got 57, want 64"
	Fields      string   // Failed: the packet that came, and what the program changed, field by field
}

// atXDP says of a difference that it is one at XDP.
const atXDP = "at xdp: "

// Model runs the tests of a spec in the reference model; those of programs that run at XDP, too, at both hooks. Tests
// with mistakes (see Check) are left out.
func Model(ctx context.Context, s *spec.Spec, plan *ir.Plan) []Outcome {
	tests, _ := prepare(s, plan)
	frames, _ := prepare(s, plan) // the same, for XDP
	hs := packet.NewHeaders(s)
	var out []Outcome
	for i, t := range tests {
		if ctx.Err() != nil {
			break
		}
		o := t.inModel(hs)
		if o.Status == Passed && t.program.XDP != nil {
			frames[i].packet.Frame = true
			o = frames[i].inModel(hs).from(atXDP)
		}
		out = append(out, o)
	}
	return out
}

// from has differences begin with what they are differences of.
func (o Outcome) from(what string) Outcome {
	for i, text := range o.Differences {
		o.Differences[i] = what + text
	}
	return o
}

func (t *test) inModel(hs *packet.Headers) Outcome {
	after, err := t.state.Run(t.program.Name, t.packet)
	if err != nil {
		return t.outcome(hs, []string{err.Error()}, &result{})
	}
	r := result{
		verdict: after.Verdict, reason: after.Reason, data: after.Packet.Data, vlan: after.Packet.VLAN,
		hop: after.Hop, state: t.state,
	}
	for _, c := range after.Copies {
		r.copies = append(r.copies, gotCopy{c.Receiver, c.Sent, []string{c.Reason}, c.Packet.Data})
	}
	for _, e := range after.Events {
		r.events = append(r.events, gotEvent{e.Event, e.Receiver, e.Record})
	}
	return t.outcome(hs, t.judge(hs, r), &r)
}

// Kernel runs the tests of a spec in the kernel, with the object that was compiled from its plan. It needs root. Tests
// with mistakes (see Check) are left out.
func Kernel(ctx context.Context, s *spec.Spec, plan *ir.Plan, object []byte) (_ []Outcome, err error) {
	unpin, err := testrun.Pin()
	if err != nil {
		return nil, err
	}
	defer unpin()
	routes := testrun.UsesRoutes(plan)
	net, err := testrun.Enter(plan, true)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, net.Leave()) }()
	if testrun.UsesCopies(plan) {
		if err := net.Capture(); err != nil {
			return nil, err
		}
	}
	tests, _ := prepare(s, plan)
	trials, _ := prepare(s, plan) // the same, for the model
	frames, _ := prepare(s, plan) // for XDP
	hs := packet.NewHeaders(s)
	loaded := map[string]*testrun.Relay{} // by settings, which are fixed when an object is loaded
	defer func() {
		for _, r := range loaded {
			r.Close()
		}
	}()
	var out []Outcome
	for i, t := range tests {
		if ctx.Err() != nil {
			break
		}
		why := testrun.Shows(&t.packet)
		if want, err := trials[i].state.Run(t.program.Name, t.packet); why == "" && err == nil {
			why = testrun.ShowsResult(t.program, &t.packet, &want)
		}
		if why == "" && t.src.Route != nil && routes {
			why = "the kernel looks the route up, and knows none like the test's"
		}
		if why != "" {
			out = append(out, Outcome{
				Name: t.src.Name.Value, Program: t.program.Name, Pos: t.src.Name.Pos, Status: NotShown, Why: why,
			})
			continue
		}
		key := settingsKey(t.settings)
		if loaded[key] == nil {
			k, err := testrun.Load(plan, object, t.settings)
			if err != nil {
				return out, err
			}
			if testrun.UsesCopies(plan) {
				k.Join(net)
			}
			loaded[key] = k
		}
		if err := net.Host(host(&t.packet)); err != nil {
			return out, fmt.Errorf("test %q: %w", t.src.Name.Value, err)
		}
		o, err := t.inKernel(hs, loaded[key])
		if err == nil && o.Status == Passed && t.program.XDP != nil && skbfacts.Frames() {
			frames[i].packet.Frame = true
			o, err = frames[i].inKernel(hs, loaded[key])
			o = o.from(atXDP)
		}
		if err != nil {
			return out, fmt.Errorf("test %q: %w", t.src.Name.Value, err)
		}
		out = append(out, o)
	}
	return out, nil
}

// host is the link-layer address of the device that a packet comes to: the packet's destination, unless it is for
// another host or for several.
func host(p *sim.Packet) [6]byte {
	if p.Link != ir.ToHost || len(p.Data) < 6 {
		other := packet.DefaultDestination
		if len(p.Data) >= 6 && other == [6]byte(p.Data) {
			other[5]++
		}
		return other
	}
	return [6]byte(p.Data)
}

func settingsKey(settings map[string][]byte) string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		fmt.Fprintf(&b, "%s=%x ", name, settings[name])
	}
	return b.String()
}

func (t *test) inKernel(hs *packet.Headers, k *testrun.Relay) (Outcome, error) {
	watch(k, t.state)
	if err := k.Sync(t.state); err != nil {
		return Outcome{}, err
	}
	res, err := k.Run(t.program.Name, &t.packet)
	if errors.Is(err, testrun.ErrRefused) {
		return Outcome{Name: t.src.Name.Value, Program: t.program.Name, Pos: t.src.Name.Pos, Status: NotShown,
			Why: err.Error()}, nil
	}
	if err != nil {
		return Outcome{}, err
	}
	before := slices.Clone(t.state.Reasons)
	if err := k.Read(t.state, false); err != nil {
		return Outcome{}, err
	}
	r := result{verdict: res.Verdict, data: res.Data, state: t.state, kernel: true}
	r.copies = t.kernelCopies(res.Copies, before)
	for _, e := range k.Events() {
		if e.ID < 1 || e.ID > len(t.state.Plan().Events) {
			return Outcome{}, fmt.Errorf("a record of event %d, which the spec doesn't have", e.ID)
		}
		r.events = append(r.events, gotEvent{t.state.Plan().Events[e.ID-1], e.Receiver, e.Record})
	}
	counted := func(p *ir.Program, reason *ir.Reason) bool {
		if p == nil || p.IndexOf(reason) < 0 {
			return false
		}
		at := t.state.Tally(p, p.IndexOf(reason))
		return t.state.Reasons[at].Packets != before[at].Packets
	}
	for _, reason := range t.program.Reasons {
		if reason.Kind == ir.Copied || reason.Kind == ir.Declined ||
			!counted(t.program, reason) && !counted(t.program.XDP, reason) {
			continue
		}
		r.reason = reason.Name
		if reason.Kind == ir.Passed && r.verdict == sim.VerdictPunt {
			r.verdict = sim.VerdictPass
		}
	}
	return t.outcome(hs, t.judge(hs, r), &r), nil
}

// watch says which shared counters a run may change.
func watch(k *testrun.Relay, state *sim.Relay) {
	for i := range state.Shared {
		if state.Shared[i] != 0 || i > 0 && i <= 64 {
			k.Watch(i)
		}
	}
}

func (t *test) outcome(hs *packet.Headers, differences []string, r *result) Outcome {
	o := Outcome{Name: t.src.Name.Value, Program: t.program.Name, Pos: t.src.Name.Pos}
	if len(differences) > 0 {
		o.Status, o.Differences, o.Fields = Failed, differences, t.fields(hs, r)
	}
	return o
}

// fields shows the packet that came, and what the program changed in it.
func (t *test) fields(hs *packet.Headers, r *result) string {
	in := hs.Stack(t.packet.Data, t.stack)
	var b strings.Builder
	fmt.Fprintf(&b, "the packet, %d bytes:\n", len(t.packet.Data))
	for _, line := range packet.Lines(t.packet.Data, in) {
		fmt.Fprintf(&b, "  %s\n", line)
	}
	changes := func(what string, left []byte) {
		fmt.Fprintf(&b, "%s:\n", what)
		all := packet.Changes(t.packet.Data, in, left, hs.Rewritten(left, in, t.stack))
		for _, c := range all {
			fmt.Fprintf(&b, "  %s\n", c)
		}
		if len(all) == 0 {
			b.WriteString("  nothing\n")
		}
	}
	if r.data != nil && r.verdict != sim.VerdictDrop {
		changes("what the program changed", r.data)
	}
	for i, c := range r.copies {
		if c.sent {
			changes(fmt.Sprintf("what it changed in copy %d", i), c.data)
		}
	}
	return b.String()
}

// result is what a run made of a test's packet, and the state after it.
type result struct {
	verdict sim.Verdict
	reason  string
	data    []byte
	vlan    *sim.Tag
	hop     *sim.Hop
	copies  []gotCopy // one for each receiver's turn
	events  []gotEvent
	state   *sim.Relay
	kernel  bool // the device, the next hop and the tag are not known
}

// judge returns the differences from what the test expects.
func (t *test) judge(hs *packet.Headers, r result) []string {
	e := t.src.Expect
	var out []string
	add := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	if string(r.verdict) != e.Verdict {
		add("verdict: got %s, want %s", said(string(r.verdict), r.reason), said(e.Verdict, e.Reason))
		return out
	}
	if e.Reason != "" && r.reason != e.Reason {
		add("reason: got %s, want %s", r.reason, e.Reason)
	}
	if r.verdict == sim.VerdictPunt || e.Untouched {
		if !bytes.Equal(r.data, t.packet.Data) && r.verdict != sim.VerdictDrop {
			for _, p := range hs.Diff(r.data, t.packet.Data, guess(hs, t.packet.Data)) {
				add("untouched: %s", placed(p))
			}
		}
	}
	if e.Packet != nil {
		for _, p := range t.packetProblems(hs, r.data, e.Packet, t.expect.layers, r.verdict == sim.VerdictSent) {
			add("%s", placed(p))
		}
		if tag := t.tagProblem(r); tag != "" {
			add("%s", tag)
		}
	}
	if e.Via != nil && !r.kernel {
		want, err := literal.Addr(e.Via.Text)
		if err != nil || r.hop == nil || r.hop.NextHop.Unmap() != want {
			got := "none"
			if r.hop != nil {
				got = r.hop.NextHop.Unmap().String()
			}
			add("next hop: got %s, want %s", got, e.Via.Text)
		}
	}
	if e.Copies != nil {
		out = append(out, t.judgeCopies(hs, r)...)
	}
	if e.Events != nil {
		out = append(out, t.judgeEvents(r)...)
	}
	for _, row := range t.expect.rows {
		out = append(out, row.judge(r.state)...)
	}
	for _, c := range t.expect.counters {
		var got uint64
		if c.index >= 0 {
			got = r.state.Named[c.index]
		}
		for _, i := range c.reasons {
			got += r.state.Reasons[i].Packets
		}
		if got != c.want {
			add("counter %s: got %d, want %d", c.name, got, c.want)
		}
	}
	return out
}

// placed is a problem with its place in the frame.
func placed(p packet.Problem) string {
	if p.Place == "" {
		return p.String()
	}
	return fmt.Sprintf("%s (%s)", p, p.Place)
}

func said(verdict, reason string) string {
	if reason == "" || reason == verdict {
		return verdict
	}
	return verdict + " (" + reason + ")"
}

// tagProblem compares the tag in the metadata.
func (t *test) tagProblem(r result) string {
	want := t.src.Expect.Packet.VLAN
	if want == nil || r.kernel {
		return ""
	}
	got := sim.Tag{}
	if r.vlan != nil {
		got = *r.vlan
	}
	if got == (sim.Tag{Proto: want.Proto, TCI: want.TCI}) {
		return ""
	}
	return fmt.Sprintf("tag: got %04x %04x, want %04x %04x", got.Proto, got.TCI, want.Proto, want.TCI)
}

// packetProblems compares a packet with what is wanted: the frame, or its layers. Sent says that it was sent: then
// nothing follows its IP datagram.
func (t *test) packetProblems(hs *packet.Headers, data []byte, want *spec.Packet, layers []packet.Layer,
	sent bool) []packet.Problem {
	if want.Hex != nil {
		return hs.Diff(data, want.Hex, guess(hs, want.Hex))
	}
	return hs.Check(data, layers, packet.Options{Partial: t.packet.Partial != sim.Partial{}, Exact: sent})
}

func guess(hs *packet.Headers, frame []byte) []*spec.Header {
	if eth := hs.Header("eth"); eth != nil {
		return hs.Guess(frame, eth)
	}
	return nil
}

func (r *row) judge(state *sim.Relay) []string {
	value := state.Table(r.table.Name).Get(r.key)
	switch {
	case r.absent && value != nil:
		return []string{fmt.Sprintf("table %s: there is a row, where none is expected", r.table.Name)}
	case r.absent:
		return nil
	case value == nil:
		return []string{fmt.Sprintf("table %s: there is no such row", r.table.Name)}
	}
	var out []string
	for _, g := range r.value {
		got, typ := value[g.member.Off:g.member.Off+g.member.Type.Size], g.member.Type
		if typ.Kind.IsIndex() {
			got = binary.LittleEndian.AppendUint64(nil, held(state, typ, binary.LittleEndian.Uint32(got)))
			typ = ir.UintType(64)
		}
		want := g.bytes
		if typ.Kind == ir.NextHop { // the next hop is not the test's business
			got, want = got[abi.NextHopAddr:], want[abi.NextHopAddr:]
			typ = ir.AddrType
		}
		if !bytes.Equal(got, want) {
			out = append(out, fmt.Sprintf("table %s, %s: got %s, want %s", r.table.Name, g.member.Name,
				typ.Show(got), typ.Show(want)))
		}
	}
	return out
}
