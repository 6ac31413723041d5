package fuzz

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/gen/reach"
	"github.com/fastrelay/fastrelay-gen/internal/packet"
	"github.com/fastrelay/fastrelay-gen/internal/sample"
	"github.com/fastrelay/fastrelay-gen/internal/testrun"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/skbfacts"
	"github.com/fastrelay/fastrelay-gen/sim"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// Config says what is compared, and for how long.
type Config struct {
	Spec *spec.Spec
	Plan *ir.Plan
	// compiled from Plan; nil: the model runs alone, against the plan's contradictions and the independent decoder
	Object   []byte
	Seed     uint64 // the same seed gives the same packets
	Packets  int    // stop after so many packets; 0: no limit
	Duration time.Duration
	Quick    bool // report a difference as it is, without making it small
	// Judge is asked about every packet that leaves changed, and every copy (one that is neither a GSO packet nor
	// tagged in the metadata), as it came and as it left, and says what is wrong with it, or "". nil: no one is.
	Judge func(program string, received, left []byte) string
	// Became is asked what is wrong with what became of a packet, as it came, or "". nil: no one is.
	Became func(program string, p sim.Packet, res sim.Result) string
	Decode int // one in so many sent packets goes through the independent decoder as well; 0: each
}

// Report is what a run found.
type Report struct {
	Packets    int
	Refused    int // of them, not run in the kernel, whose entry doesn't take them
	Decoded    int // sent packets that the independent decoder found right
	Zeros      int // sent packets with a checksum that came out as 0 and had to be written as FFFF
	Copies     int // of packets, sent to receivers
	Declined   int // turns of receivers without a copy
	Events     int // records for user space
	Partial    int // packets whose checksum was left to a device; RunLive only
	Super      int // GSO packets; RunLive only
	Left       int // packets that came out of the other end of the cable; RunLive only
	Verdicts   map[sim.Verdict]int
	Frames     map[sim.Verdict]int // of these, at XDP
	Elapsed    time.Duration
	Coverage   []*sim.Point
	Difference *Difference               // the first one, made small; nil: none
	reached    map[string]*reach.Reached // by program
}

// Rate is packets a second.
func (r *Report) Rate() float64 { return float64(r.Packets) / max(r.Elapsed.Seconds(), 1e-9) }

// Reached is the share of packets that came to the end of a rule: sent, passed or dropped, as the spec says.
func (r *Report) Reached() float64 {
	return 1 - float64(r.Verdicts[sim.VerdictPunt])/max(float64(r.Packets), 1)
}

// Missed returns the places of the plan that no packet came by, without those that no packet can come by.
func (r *Report) Missed() []*sim.Point {
	return slices.DeleteFunc(slices.Clone(r.Coverage), func(p *sim.Point) bool {
		return p.Hits > 0 || r.unreachable(p)
	})
}

// Impossible returns the places of the plan that packets came by though none can: the compiler would warn of a rule
// that isn't dead.
func (r *Report) Impossible() []*sim.Point {
	return slices.DeleteFunc(slices.Clone(r.Coverage), func(p *sim.Point) bool {
		return p.Hits == 0 || !r.unreachable(p)
	})
}

// unreachable reports whether no packet can come by a place.
func (r *Report) unreachable(p *sim.Point) bool {
	at := r.reached[p.Program]
	return at != nil && (!at.Stmt(p.Stmt) || p.Outcome && !at.Outcome(p.Stmt, !p.Not))
}

// Run compares the model and the kernel until the packets or the time are used up, or until they differ. An error says
// that nothing could be compared (no rights, an object that doesn't load); a difference is in the report.
func Run(ctx context.Context, c Config) (*Report, error) {
	if c.Packets == 0 && c.Duration == 0 {
		return nil, errors.New("fuzz: neither a number of packets nor a duration is given")
	}
	f := &fuzzer{
		Config: c, rng: sample.NewSource(c.Seed), headers: packet.NewHeaders(c.Spec),
		report: Report{
			Verdicts: map[sim.Verdict]int{}, Frames: map[sim.Verdict]int{}, reached: map[string]*reach.Reached{},
		},
	}
	for p := range c.Plan.Flow() {
		f.report.reached[p.Title()] = reach.Of(p)
	}
	defer f.close()
	if c.Object != nil {
		net, leave, err := enter(c.Plan)
		if err != nil {
			return nil, err
		}
		defer leave()
		f.net = net
	}
	if c.Duration > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.Duration)
		defer cancel()
	}
	start := time.Now()
	err := f.run(ctx)
	f.report.Elapsed = time.Since(start)
	return &f.report, err
}

// enter pins the thread and moves it to the network that the plan's programs need; leave undoes both.
func enter(plan *ir.Plan) (net *testrun.Net, leave func(), err error) {
	unpin, err := testrun.Pin()
	if err != nil {
		return nil, nil, err
	}
	if net, err = network(plan); err != nil {
		unpin()
		return nil, nil, err
	}
	return net, func() {
		if net.Leave() == nil {
			unpin() // else the thread ends with its goroutine
		}
	}, nil
}

// network moves the thread to a network whose routes and device the model knows and whose packets are taken.
func network(plan *ir.Plan) (*testrun.Net, error) {
	net, err := testrun.Enter(plan, false)
	if err == nil && testrun.UsesCopies(plan) {
		if err = net.Capture(); err != nil {
			err = errors.Join(err, net.Leave())
		}
	}
	return net, err
}

type fuzzer struct {
	Config
	rng     sample.Source
	headers *packet.Headers
	report  Report

	net        *testrun.Net // where the thread is; nil: where it was
	bench      *bench
	generators []*sample.Generator
	fitted     []sample.Fitted // what is left of the frames that the state was made for
	examined   int
	seen       []bool // by point of the plan
}

func (f *fuzzer) close() {
	if f.bench != nil {
		f.bench.close()
	}
}

func (f *fuzzer) done(ctx context.Context) bool {
	return ctx.Err() != nil || f.Packets > 0 && f.report.Packets >= f.Packets || f.report.Difference != nil
}

func (f *fuzzer) run(ctx context.Context) error {
	for round := 0; !f.done(ctx); round++ {
		if round%sample.SettingRounds == 0 {
			if err := f.load(round / sample.SettingRounds); err != nil {
				return err
			}
		}
		if err := f.round(ctx); err != nil {
			return err
		}
	}
	f.collect()
	return nil
}

// load loads the object with the nth choice of settings; the first ones are the defaults if all have one.
func (f *fuzzer) load(n int) error {
	if f.bench != nil {
		f.collect()
		if len(f.Plan.Settings) == 0 {
			return nil
		}
		f.bench.close()
	}
	settings := f.rng.Settings(f.Plan, n)
	if n == 0 && !slices.ContainsFunc(f.Plan.Settings, func(s *ir.Setting) bool { return s.Default == nil }) {
		settings = nil
	}
	b, err := newBench(f.Plan, f.Object, settings, f.net)
	if err != nil {
		return err
	}
	f.bench = b
	if f.seen == nil {
		f.seen = make([]bool, len(b.points))
	}
	f.generators = nil
	f.generators = f.rng.Generators(f.Spec, f.Plan, f.headers, settings)
	return nil
}

// collect adds the coverage of the bench's model to the report.
func (f *fuzzer) collect() {
	points := f.bench.model.Coverage()
	for i, p := range f.bench.points {
		points[i].Hits += p.Hits
		p.Hits = 0
	}
	if f.report.Coverage == nil {
		for _, p := range points {
			f.report.Coverage = append(f.report.Coverage, &sim.Point{
				Program: p.Program, What: p.What, Pos: p.Pos, Outcome: p.Outcome, Stmt: p.Stmt, Not: p.Not,
			})
		}
	}
	for i, p := range points {
		f.report.Coverage[i].Hits += p.Hits
		p.Hits = 0
	}
}

// round runs packets on one random state.
func (f *fuzzer) round(ctx context.Context) error {
	b := f.bench
	f.state()
	b.patience = 0
	if f.rng.One(4) {
		b.patience = 1 + f.rng.IntN(sample.RoundPackets)
	}
	if err := b.start(); err != nil {
		return err
	}
	var frame *packet.Frame
	var g *sample.Generator
	left := 0 // packets that are still made of the frame
	for n := range sample.RoundPackets {
		if n%64 == 0 && f.done(ctx) {
			break
		}
		if left--; left <= 0 {
			g, frame, left = f.frame()
			if g.Does(spec.ActLearn) {
				left = sample.FreshPackets
			}
		}
		p := g.Packet(frame)
		p.Frame = p.Frame || p.VLAN == nil && p.GSO == 0 && (f.Object == nil || skbfacts.Frames()) && f.rng.One(2)
		res, err := f.try(g.Program.Name.Value, p)
		if err != nil || f.report.Difference != nil {
			return err
		}
		if res.Verdict != sim.VerdictSent || !f.rng.One(32) {
			continue
		}
		data := g.AtBound(frame, &res)
		if data == nil {
			continue
		}
		if _, err := f.try(g.Program.Name.Value, sim.Packet{Data: data}); err != nil || f.report.Difference != nil {
			return err
		}
	}
	text, err := b.finish()
	if err != nil {
		return err
	}
	if text != "" {
		return f.shrink(text)
	}
	return nil
}

// state gives the model a random state.
func (f *fuzzer) state() {
	b := f.bench // its coverage of the state before a round doesn't count
	f.fitted = f.rng.State(b.plan, b.before, f.generators...)
	b.model.CopyState(b.before)
}

// frame makes a frame for a program, or takes one that the state was made for, and says how many packets are to be made
// of it.
func (f *fuzzer) frame() (*sample.Generator, *packet.Frame, int) {
	if n := len(f.fitted); n > 0 && !f.rng.One(3) {
		next := f.fitted[n-1]
		f.fitted = f.fitted[:n-1]
		return next.Generator, next.Frame, sample.FittedPackets
	}
	g := sample.Pick(f.rng, f.generators)
	return g, f.fresh(g), sample.FramePackets
}

// fresh makes a frame for a program: most packets should come further than the first lookup.
func (f *fuzzer) fresh(g *sample.Generator) *packet.Frame {
	frame := g.Frame(f.bench.model)
	for range 16 {
		res, err := f.bench.probe.Run(g.Program.Name.Value, sim.Packet{
			Data: frame.Data, Link: sim.LinkType(frame.Data, packet.DefaultDestination),
		})
		if err != nil || g.Arrives(res) || f.rng.One(12) || f.isNew() {
			break
		}
		frame = g.Frame(f.bench.model)
	}
	return frame
}

// isNew reports whether the last trial came by a place of the plan that none came by before.
func (f *fuzzer) isNew() bool {
	found := false
	for i, p := range f.bench.points {
		if p.Hits > 0 && !f.seen[i] {
			f.seen[i], found = true, true
		}
	}
	return found
}

// try runs one packet through both.
func (f *fuzzer) try(program string, p sim.Packet) (sim.Result, error) {
	res, text, err := f.bench.try(program, p)
	if errors.Is(err, testrun.ErrRefused) {
		f.report.Refused++
	} else if err != nil {
		return res, err
	}
	f.report.Packets++
	f.report.Verdicts[res.Verdict]++
	if res.Taken {
		f.report.Frames[res.Verdict]++
	}
	f.report.Events += len(res.Events)
	if res.Verdict == sim.VerdictSent && p.GSO == 0 && res.Modified && zeroSums(res.Packet.Data) {
		f.report.Zeros++
	}
	for _, c := range res.Copies {
		if c.Sent {
			f.report.Copies++
		} else {
			f.report.Declined++
		}
	}
	if text == "" && (res.Verdict == sim.VerdictSent || len(res.Copies) > 0) {
		text = sample.Foreign(f.Spec, program, p)
	}
	if text == "" && res.Verdict == sim.VerdictSent && res.Modified {
		text = sample.NoHost(f.Spec, program, f.bench.model, p.Data, res.Packet.Data)
	}
	if text == "" {
		f.examined++
		text = f.examine(program, p, res, f.Decode < 2 || f.examined%f.Decode == 0)
	}
	if text != "" {
		return res, f.shrink(text)
	}
	return res, nil
}

// examine has packets that left, and copies, looked at by those who don't know the plan.
func (f *fuzzer) examine(program string, p sim.Packet, res sim.Result, decode bool) string {
	decode = decode && !f.tunnels(program)
	if decode && p.GSO == 0 && res.Verdict == sim.VerdictSent {
		text := f.decode(f.framed(program, p.Data), f.framed(program, res.Packet.Data))
		without := strings.HasSuffix(text, noSum) && f.leavesOut(program)
		if text != "" && !without {
			return text
		}
	}
	for _, c := range res.Copies {
		if decode && p.GSO == 0 && c.Sent {
			if text := f.decode(f.framed(program, p.Data), f.framed(program, c.Packet.Data)); text != "" {
				return fmt.Sprintf("copy to receiver %d: %s", c.Receiver, text)
			}
		}
	}
	if f.Became != nil {
		if text := f.Became(program, p, res); text != "" {
			return text
		}
	}
	return f.judge(program, p, res)
}

// framed gives packets of a program without a link-layer header one, for the decoder.
func (f *fuzzer) framed(program string, data []byte) []byte {
	i := slices.IndexFunc(f.Plan.Programs, func(p *ir.Program) bool { return p.Name == program })
	if f.Plan.Programs[i].L2 || len(data) == 0 {
		return data
	}
	head := make([]byte, 14, 14+len(data))
	switch data[0] >> 4 {
	case 4:
		head[12] = 0x08
	case 6:
		head[12], head[13] = 0x86, 0xdd
	}
	return append(head, data...)
}

// tunnels reports whether a program's stack has an IP header in another one's payload: the decoder can't say whether
// that was right when it came.
func (f *fuzzer) tunnels(program string) bool {
	n := 0
	for _, p := range f.Spec.Programs {
		for _, e := range p.Stack {
			isIP := func(h spec.Name) bool {
				return slices.Contains([]string{"ip", "ipv4", "ipv6", "ip_any", "ipv4_any"}, h.Value)
			}
			if p.Name.Value == program && slices.ContainsFunc(e.Headers, isIP) {
				n++
			}
		}
	}
	return n > 1
}

// leavesOut reports whether a rule of a program puts in a header and says that it has no checksum (RFC 6935).
func (f *fuzzer) leavesOut(program string) bool {
	none := func(as *spec.Assign) bool {
		return as.Target.Path[0].Value == "checksum" && as.Value.Op == spec.OpInt && as.Value.Int == 0
	}
	for _, p := range f.Spec.Programs {
		for _, r := range p.Rules {
			if p.Name.Value == program && slices.ContainsFunc(r.Do, func(a *spec.Action) bool {
				return a.Kind == spec.ActPush && slices.ContainsFunc(a.Set, none)
			}) {
				return true
			}
		}
	}
	return false
}

// judge asks the config's judge about a packet that left.
func (f *fuzzer) judge(program string, p sim.Packet, res sim.Result) string {
	if f.Judge == nil || p.GSO != 0 || p.VLAN != nil || p.Partial != (sim.Partial{}) {
		return ""
	}
	forwarded := res.Verdict == sim.VerdictSent || res.Verdict == sim.VerdictPass
	if forwarded && res.Modified && res.Packet.VLAN == nil {
		return f.Judge(program, p.Data, res.Packet.Data)
	}
	for _, c := range res.Copies {
		if c.Sent {
			if text := f.Judge(program, p.Data, c.Packet.Data); text != "" {
				return fmt.Sprintf("copy to receiver %d: %s", c.Receiver, text)
			}
		}
	}
	return ""
}

// zeroSums reports whether an optional checksum of a packet that left stands for 0.
func zeroSums(frame []byte) bool {
	at := 0
	switch {
	case len(frame) >= 42 && frame[12] == 0x08 && frame[13] == 0 && frame[23] == 17:
		at = 40
	case len(frame) >= 62 && frame[12] == 0x86 && frame[13] == 0xdd && frame[20] == 17:
		at = 60
	}
	return at > 0 && frame[at] == 0xff && frame[at+1] == 0xff
}

// decode holds a sent packet to the independent decoder, if the packet that came was right.
func (f *fuzzer) decode(received, left []byte) string {
	if wrong, known := judge(received); wrong != "" || !known {
		return ""
	}
	wrong, known := judge(left)
	if wrong != "" && wrongInside(received, left) {
		return ""
	}
	if known {
		f.report.Decoded++
	}
	if wrong == "" && known {
		wrong = trailing(left)
	}
	if wrong != "" {
		return "the packet that came was right, the one that left is not: " + wrong
	}
	return ""
}
