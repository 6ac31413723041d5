package fuzz

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/packet"
	"github.com/fastrelay/fastrelay-gen/internal/testrun"
	"github.com/fastrelay/fastrelay-gen/sim"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// Config says what is compared, and for how long.
type Config struct {
	Spec     *spec.Spec
	Plan     *ir.Plan
	Object   []byte // compiled from Plan; nil: the model runs alone, against the plan's contradictions and the independent decoder
	Seed     uint64 // the same seed gives the same packets
	Packets  int    // stop after so many packets; 0: no limit
	Duration time.Duration
	Quick    bool // report a difference as it is, without making it small
	// Judge is asked about every packet that leaves changed (one that is neither a super-packet nor tagged in the metadata), as it
	// came and as it left, and says what is wrong with it, or "". nil: nobody is.
	Judge  func(program string, came, left []byte) string
	Decode int // one in so many sent packets goes through the independent decoder as well; 0: each
}

// Report is what a run found.
type Report struct {
	Packets    int
	Refused    int // of them, not run in the kernel, whose entry doesn't take them
	Decoded    int // sent packets that the independent decoder found right
	Zeros      int // sent packets with a checksum that came out as 0 and had to be written as FFFF
	Verdicts   map[sim.Verdict]int
	Elapsed    time.Duration
	Coverage   []*sim.Point
	Difference *Difference // the first one, made small; nil: none
}

// Rate is packets a second.
func (r *Report) Rate() float64 { return float64(r.Packets) / max(r.Elapsed.Seconds(), 1e-9) }

// Reached is the share of packets that came to the end of a rule: sent, passed or dropped, as the spec says.
func (r *Report) Reached() float64 {
	return 1 - float64(r.Verdicts[sim.VerdictUp])/max(float64(r.Packets), 1)
}

// Missed returns the places of the plan that no packet came by.
func (r *Report) Missed() []*sim.Point {
	return slices.DeleteFunc(slices.Clone(r.Coverage), func(p *sim.Point) bool { return p.Hits > 0 })
}

const (
	roundPackets  = 256 // packets on one state
	framePackets  = 16  // packets made of one frame
	settingRounds = 32  // rounds with one choice of settings
)

// Run compares the model and the kernel until the packets or the time are used up, or until they differ. An error says that
// nothing could be compared (no rights, an object that doesn't load); a difference is in the report.
func Run(ctx context.Context, c Config) (*Report, error) {
	if c.Packets == 0 && c.Duration == 0 {
		return nil, errors.New("fuzz: neither a number of packets nor a duration is given")
	}
	f := &fuzzer{Config: c, rng: newSource(c.Seed), headers: packet.NewHeaders(c.Spec), report: Report{Verdicts: map[sim.Verdict]int{}}}
	defer f.close()
	if c.Object != nil {
		route, leave, err := enter(c.Plan)
		if err != nil {
			return nil, err
		}
		defer leave()
		f.route = route
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

// enter pins the thread and, where a program looks routes up, moves it to a network whose routes the model knows.
func enter(plan *ir.Plan) (route func(from, to netip.Addr) sim.Hop, leave func(), err error) {
	unpin, err := testrun.Pin()
	if err != nil {
		return nil, nil, err
	}
	if !testrun.UsesRoutes(plan) {
		return nil, unpin, nil
	}
	net, err := testrun.Enter(false)
	if err != nil {
		unpin()
		return nil, nil, err
	}
	return net.Route, func() {
		if net.Leave() == nil {
			unpin() // else the thread ends with its goroutine
		}
	}, nil
}

type fuzzer struct {
	Config
	rng     source
	headers *packet.Headers
	report  Report

	route      func(from, to netip.Addr) sim.Hop // what the kernel's route lookups find; nil: nothing asks
	bench      *bench
	generators []*generator
	sent       int
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
		if round%settingRounds == 0 {
			if err := f.load(round == 0); err != nil {
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

// load loads the object with new settings; the first ones are the defaults where all have one.
func (f *fuzzer) load(first bool) error {
	if f.bench != nil {
		f.collect()
		if len(f.Plan.Settings) == 0 {
			return nil
		}
		f.bench.close()
	}
	settings := f.rng.settings(f.Plan)
	if first && !slices.ContainsFunc(f.Plan.Settings, func(s *ir.Setting) bool { return s.Default == nil }) {
		settings = nil
	}
	b, err := newBench(f.Plan, f.Object, settings, f.route)
	if err != nil {
		return err
	}
	f.bench = b
	if f.seen == nil {
		f.seen = make([]bool, len(b.points))
	}
	f.generators = nil
	value := func(s *ir.Setting) []byte {
		if v, ok := settings[s.Name]; ok {
			return v
		}
		return s.Default
	}
	f.rng.known, f.rng.near = nil, nil
	for _, p := range f.Plan.Programs {
		i := slices.IndexFunc(f.Spec.Programs, func(sp *spec.Program) bool { return sp.Name.Value == p.Name })
		h := findHints(p, value)
		f.rng.known = append(f.rng.known, h.numbers()...)
		f.rng.near = append(f.rng.near, h.addresses()...)
		f.generators = append(f.generators, &generator{plan: f.Plan, program: f.Spec.Programs[i], headers: f.headers, hints: h})
	}
	for _, g := range f.generators {
		g.source = f.rng
	}
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
			f.report.Coverage = append(f.report.Coverage, &sim.Point{Program: p.Program, What: p.What, Pos: p.Pos, Outcome: p.Outcome})
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
	f.rng.state(f.Plan, b.model)
	if err := b.start(); err != nil {
		return err
	}
	var frame *packet.Frame
	var g *generator
	for n := range roundPackets {
		if n%64 == 0 && f.done(ctx) {
			break
		}
		if n%framePackets == 0 {
			g = pick(f.rng, f.generators)
			frame = g.frame(b.model)
			for range 6 { // most packets should come further than the first lookup
				res, err := b.probe.Run(g.program.Name.Value, sim.Packet{Data: frame.Data})
				if err != nil || res.Verdict != sim.VerdictUp || f.rng.one(12) || f.isNew() {
					break
				}
				frame = g.frame(b.model)
			}
		}
		p := g.packet(frame)
		res, err := f.try(g.program.Name.Value, p)
		if err != nil || f.report.Difference != nil {
			return err
		}
		if res.Verdict != sim.VerdictSent || !f.rng.one(32) {
			continue
		}
		data := g.atBound(frame, &res)
		if data == nil {
			continue
		}
		if _, err := f.try(g.program.Name.Value, sim.Packet{Data: data}); err != nil || f.report.Difference != nil {
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
	if text == "" && res.Verdict == sim.VerdictSent && p.GSO == 0 {
		f.sent++
		if res.Modified && zeroSums(res.Packet.Data) {
			f.report.Zeros++
		}
		if f.Decode < 2 || f.sent%f.Decode == 0 {
			text = f.decode(p.Data, res.Packet.Data)
		}
	}
	if text == "" {
		text = f.judge(program, p, res)
	}
	if text != "" {
		return res, f.shrink(text)
	}
	return res, nil
}

// judge asks the config's judge about a packet that left.
func (f *fuzzer) judge(program string, p sim.Packet, res sim.Result) string {
	forwarded := res.Verdict == sim.VerdictSent || res.Verdict == sim.VerdictPass
	if f.Judge == nil || !forwarded || !res.Modified || p.GSO != 0 || p.VLAN != nil || p.Pending || res.Packet.VLAN != nil {
		return ""
	}
	return f.Judge(program, p.Data, res.Packet.Data)
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
func (f *fuzzer) decode(came, left []byte) string {
	if wrong, known := judge(came); wrong != "" || !known {
		return ""
	}
	wrong, known := judge(left)
	if known {
		f.report.Decoded++
	}
	if wrong != "" {
		return "the packet that came was right, the one that left is not: " + wrong
	}
	return ""
}

// bench is a model and a loaded object with the same settings, and what a round did with them.
type bench struct {
	plan     *ir.Plan
	settings map[string][]byte
	model    *sim.Relay
	mirror   *sim.Relay   // the kernel's state, read back
	before   *sim.Relay   // the state at the start of the round
	probe    *sim.Relay   // a model for packets that don't count: those that the kernel's entry refuses, and trials
	points   []*sim.Point // of the probe
	kernel   *testrun.Relay
	log      []logged // the packets of the round
}

type logged struct {
	program string
	packet  sim.Packet
}

func newBench(plan *ir.Plan, object []byte, settings map[string][]byte, route func(from, to netip.Addr) sim.Hop) (*bench, error) {
	few := *plan // most slots and counters are never used, and copying them takes time
	few.Slots, few.Shared = min(plan.Slots, 64), min(plan.Shared, 64)
	b := &bench{plan: plan, settings: settings}
	for _, r := range []**sim.Relay{&b.model, &b.mirror, &b.before, &b.probe} {
		relay, err := sim.New(&few, settings)
		if err != nil {
			return nil, err
		}
		relay.World.Route = route
		*r = relay
	}
	b.points = b.probe.Coverage()
	if object == nil {
		return b, nil
	}
	k, err := testrun.Load(plan, object, settings)
	if err != nil {
		return nil, err
	}
	for i := range min(watched, plan.Shared) {
		k.Watch(i)
	}
	b.kernel = k
	return b, nil
}

func (b *bench) close() {
	if b.kernel != nil {
		b.kernel.Close()
	}
}

// start begins a round with the model's state.
func (b *bench) start() error {
	b.log = b.log[:0]
	b.before.CopyState(b.model)
	b.mirror.CopyState(b.model)
	b.probe.CopyState(b.model)
	if b.kernel == nil {
		return nil
	}
	return b.kernel.Sync(b.model)
}

// finish ends a round: the states have to be the same.
func (b *bench) finish() (string, error) {
	if b.kernel == nil {
		return "", nil
	}
	if err := b.kernel.Read(b.mirror, false); err != nil {
		return "", err
	}
	if diff := testrun.Compare(b.plan, b.mirror, b.model); len(diff) > 0 {
		return diff[0], nil
	}
	return "", nil
}

// try runs one packet through both, and returns how they differ. The error is testrun.ErrRefused where the kernel's entry didn't take it, and the model's state then
// is as if it had not come.
func (b *bench) try(program string, p sim.Packet) (sim.Result, string, error) {
	if why := testrun.Shows(&p); why != "" || b.kernel == nil {
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
	want, err := b.model.Run(program, p)
	if err != nil {
		return want, err.Error(), nil
	}
	return want, compare(&p, got, want), nil
}

// modelOnly runs a packet in the model; where there is a kernel, in one whose state doesn't count.
func (b *bench) modelOnly(program string, p sim.Packet) (sim.Result, string, error) {
	model := b.probe
	if b.kernel == nil {
		b.log = append(b.log, logged{program, p})
		model = b.model
	}
	res, err := model.Run(program, p)
	if err != nil {
		return res, err.Error(), nil
	}
	if (res.Verdict == sim.VerdictUp || res.Verdict == sim.VerdictDrop) && !bytes.Equal(res.Packet.Data, p.Data) {
		return res, "the packet isn't sent, but changed", nil
	}
	if b.kernel == nil {
		return res, "", nil
	}
	return res, "", testrun.ErrRefused
}

// compare names the first difference between what the kernel (got) and the model (want) made of a packet.
func compare(p *sim.Packet, got testrun.Result, want sim.Result) string {
	verdict := want.Verdict
	if verdict == sim.VerdictPass {
		verdict = sim.VerdictUp // the same to the kernel; the counters tell
	}
	switch {
	case got.Verdict != verdict:
		return fmt.Sprintf("verdict: the kernel says %s, the model %s (%s)", got.Verdict, want.Verdict, want.Reason)
	case want.Verdict == sim.VerdictUp && !bytes.Equal(got.Data, p.Data):
		return fmt.Sprintf("the kernel changed a packet that goes up (%s): %s", want.Reason, firstByte(got.Data, p.Data))
	case !bytes.Equal(got.Data, want.Packet.Data):
		return fmt.Sprintf("packet (%s, %s): %s", want.Verdict, want.Reason, firstByte(got.Data, want.Packet.Data))
	case got.Mark != want.Packet.Mark || got.Priority != want.Packet.Priority:
		return fmt.Sprintf("mark and priority: the kernel says %d and %d, the model %d and %d", got.Mark, got.Priority, want.Packet.Mark, want.Packet.Priority)
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

// Pair is a loaded object and its model, for packets that come from elsewhere.
type Pair struct{ bench *bench }

// NewPair loads an object with the default settings.
func NewPair(plan *ir.Plan, object []byte) (*Pair, error) {
	b, err := newBench(plan, object, nil, nil)
	if err != nil {
		return nil, err
	}
	return &Pair{b}, nil
}

// Close unloads the object.
func (p *Pair) Close() { p.bench.close() }

// One compares the kernel and the model on one packet, which comes to each program on a random state. It returns how they
// differ, or "".
func (p *Pair) One(seed uint64, packet sim.Packet) (string, error) {
	unpin, err := testrun.Pin()
	if err != nil {
		return "", err
	}
	defer unpin()
	b := p.bench
	newSource(seed).state(b.model.Plan(), b.model)
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
