package specgen_test

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/clang"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
	"github.com/fastrelay/fastrelay-gen/internal/test/fuzz"
	"github.com/fastrelay/fastrelay-gen/internal/test/specgen"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/bpftest"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
	"github.com/fastrelay/fastrelay-gen/spec"
)

var (
	flagSpecs   = flag.Int("specs", 0, "how many specs; 0: 20 with -short, else 500")
	flagSeed    = flag.Uint64("seed", 0, "the first spec's seed; 0: FASTRELAY_TEST_SEED, or 1")
	flagPackets = flag.Int("packets", 1024, "packets for each spec")
	flagJobs    = flag.Int("jobs", 2, "specs at the same time")
	flagFound   = flag.String("found", "", "a folder for specs that fail; empty: they are only reported")
	flagKeep    = flag.Bool("keep", false, "don't stop at the first failures, and don't make them small")
	flagShow    = flag.Bool("show", false, "print the spec of the seed, and nothing else")
)

func TestMain(m *testing.M) {
	flag.Parse()
	if *flagShow {
		fmt.Printf("%s", specgen.Generate(max(1, *flagSeed)))
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// A spec of a seed is always the same, and different seeds make different specs.
func TestReproducible(t *testing.T) {
	for seed := range uint64(50) {
		a, b := specgen.Generate(seed), specgen.Generate(seed)
		if !bytes.Equal(a, b) {
			t.Errorf("seed %d makes two specs", seed)
		}
		if bytes.Equal(a, specgen.Generate(seed+1)) {
			t.Errorf("seeds %d and %d make the same spec", seed, seed+1)
		}
	}
}

// Random specs compile, pass the verifier, and do in the kernel what they do in the model.
func TestSpecs(t *testing.T) {
	bpftest.Rights(t)
	ctx := context.Background()
	tool, err := clang.Find(ctx)
	if err != nil {
		t.Fatal(err)
	}
	golang, err := specgen.NewGoChecker()
	if err != nil {
		t.Fatal(err)
	}
	p := &specgen.Pipeline{Tool: tool, Packets: *flagPackets, Go: golang}
	first, specs := *flagSeed, *flagSpecs
	if first == 0 {
		first = needs.Seed(t)
	}
	if specs == 0 {
		specs = needs.Of(20, 500)
	}
	start := time.Now()
	tl := &tally{refused: map[diag.Code]int{}, failed: map[string][]uint64{}}
	var next atomic.Uint64
	var wg sync.WaitGroup
	for range *flagJobs {
		wg.Go(func() {
			for {
				n := next.Add(1) - 1
				if n >= uint64(specs) || !*flagKeep && tl.kinds() >= 3 {
					return
				}
				seed := first + n
				src := specgen.Generate(seed)
				r := p.Run(ctx, src, seed)
				if tl.add(seed, r) {
					t.Errorf("seed %d: %s %s: %s", seed, r.Stage, r.Code, r.Text)
					report(t, p, src, seed, r)
				}
			}
		})
	}
	wg.Wait()
	tl.check(t)
	t.Logf("in %.0f s", time.Since(start).Seconds())
}

// tally sums up what became of many specs.
type tally struct {
	mu      sync.Mutex
	tried   int
	done    int
	packets int
	sent    int
	copies  int
	sending int // specs of which a packet was sent
	copying int // specs of which a copy was made
	reached float64
	refused map[diag.Code]int
	failed  map[string][]uint64 // seeds, by what seems to be one cause
}

// add reports whether the result is a failure of a new kind.
func (tl *tally) add(seed uint64, r specgen.Result) bool {
	tl.mu.Lock()
	defer tl.mu.Unlock()
	tl.tried++
	switch {
	case r.Stage == specgen.Refused:
		tl.refused[r.Code]++
	case r.Failed():
		key := fmt.Sprintf("%s %s %s", r.Stage, r.Code, r.Essence())
		tl.failed[key] = append(tl.failed[key], seed)
		return len(tl.failed[key]) == 1
	default:
		tl.done++
		tl.packets += r.Packets
		tl.sent += r.Sent
		tl.copies += r.Copies
		tl.sending += min(r.Sent, 1)
		tl.copying += min(r.Copies, 1)
		tl.reached += r.Reached
	}
	return false
}

func (tl *tally) kinds() int {
	tl.mu.Lock()
	defer tl.mu.Unlock()
	return len(tl.failed)
}

// check prints the sums. Too many refusals, or too few packets that are sent, would make the comparison worth little.
func (tl *tally) check(t *testing.T) {
	refused := 0
	for _, code := range slices.Sorted(maps.Keys(tl.refused)) {
		refused += tl.refused[code]
		t.Logf("refused %s: %d", code, tl.refused[code])
	}
	for _, kind := range slices.Sorted(maps.Keys(tl.failed)) {
		seeds := tl.failed[kind]
		t.Logf("%d × %s (seeds %v)", len(seeds), kind, seeds[:min(8, len(seeds))])
	}
	t.Logf("%d specs: %d compared on %d packets (%d sent by %d, %d copies by %d, %.0f%% to the end of a rule), "+
		"%d refused",
		tl.tried, tl.done, tl.packets, tl.sent, tl.sending, tl.copies, tl.copying,
		100*tl.reached/float64(max(1, tl.done)), refused)
	if tl.tried < 100 {
		return
	}
	if refused*5 > tl.tried {
		t.Errorf("%d of %d specs are refused: more than a fifth", refused, tl.tried)
	}
	if tl.tried < 400 { // by chance, few may differ more from what 500 have: packets of 28% are sent, of 8% copied
		return
	}
	if tl.sending*100 < 18*tl.done {
		t.Errorf("packets of %d specs of %d are sent", tl.sending, tl.done)
	}
	if tl.copying*100 < 4*tl.done {
		t.Errorf("packets of %d specs of %d are copied", tl.copying, tl.done)
	}
}

// report makes a failing spec small, and prints or saves it.
func report(t *testing.T, p *specgen.Pipeline, src []byte, seed uint64, r specgen.Result) {
	if *flagKeep && *flagFound == "" {
		return
	}
	small := specgen.Shrink(src, 600, func(text []byte) bool { return p.Run(context.Background(), text, seed).Same(r) })
	if *flagFound == "" {
		t.Logf("the spec of seed %d, made small:\n%s", seed, small)
		return
	}
	if last := p.Run(context.Background(), small, seed); last.Failed() {
		r = last
	}
	dir := filepath.Join(*flagFound, fmt.Sprintf("%s-%d", r.Stage, seed))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Error(err)
		return
	}
	for name, text := range map[string][]byte{"spec.cue": small, "whole.cue": src, "log.txt": []byte(r.Log)} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
			t.Error(err)
		}
	}
}

// What is made small still has what it is about, and little else.
func TestShrink(t *testing.T) {
	for seed := range uint64(needs.Of(4, 20)) {
		src := specgen.Generate(seed)
		before, _, _ := specgen.Plan(src)
		if before == nil {
			continue
		}
		last := before.Programs[len(before.Programs)-1].Name.Value
		small := specgen.Shrink(src, 2000, func(text []byte) bool {
			s, plan, _ := specgen.Plan(text)
			return plan != nil && len(s.Programs) > 0 && s.Programs[len(s.Programs)-1].Name.Value == last
		})
		after, _, _ := specgen.Plan(small)
		if after == nil || len(after.Programs) != 1 || after.Programs[0].Name.Value != last {
			t.Errorf("seed %d: the program %q is gone:\n%s", seed, last, small)
			continue
		}
		want := 1
		if after.Programs[0].Hook == ir.Congestion {
			want = 2 // a socket, and what happens to it
		}
		if n := len(after.Programs[0].Stack); n != want || len(after.Tables)+len(after.Settings) > 0 {
			t.Errorf("seed %d: more is left than the program needs:\n%s", seed, small)
		}
	}
}

// The judge, which knows nothing of plans, finds wrong checksums where they leave. Each checksum of a plan is spoiled
// in turn, and the judge objects to every packet that leaves differently, unless the packet was wrong when it came and
// so can't show the fault. Specs are generated until enough faults have been shown.
func TestJudge(t *testing.T) {
	enough := needs.Of(8, 60)
	faults, packets := 0, 0
	for seed := uint64(0); faults < enough; seed++ {
		if seed == 1000 {
			t.Fatalf("the packets of %d specs show only %d faults", seed, faults)
		}
		s, plan, _ := specgen.Plan(specgen.Generate(seed))
		if plan == nil {
			continue
		}
		right := leaving(t, s, plan, seed, 1024)
		for _, l := range right {
			if l.wrong != "" {
				t.Errorf("seed %d: the judge objects to a packet that is right: %s", seed, l.wrong)
			}
		}
		for _, spoil := range spoilers(plan) {
			undo := spoil()
			shown := 0
			for i, l := range leaving(t, s, plan, seed, 1024) {
				if i >= len(right) || !bytes.Equal(l.came, right[i].came) {
					break // some packets are made from those that left: from here on they are others
				}
				if !l.known || bytes.Equal(l.left, right[i].left) {
					continue
				}
				shown++
				if l.wrong == "" {
					t.Errorf("seed %d: the judge misses a wrong checksum\ncame  %x\nleft  %x\nright %x",
						seed, l.came, l.left, right[i].left)
				}
			}
			undo()
			packets += shown
			faults += min(shown, 1)
		}
	}
	t.Logf("%d faults, shown by %d packets", faults, packets)
}

// The judge can judge packets of every golden spec, so that it isn't silent about a kind of headers.
func TestJudgeKnows(t *testing.T) {
	files, err := filepath.Glob("../../../golden/*/spec.cue")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, file := range files {
		src, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		s, plan, res := specgen.Plan(src)
		if plan == nil {
			t.Fatalf("%s: %s", file, res.Text)
		}
		known := 0
		all := leaving(t, s, plan, 1, 256)
		for _, l := range all {
			if l.known {
				known++
			}
		}
		if known < len(all)/2 {
			t.Errorf("%s: %d of %d packets that left are judged", s.Name.Value, known, len(all))
		}
	}
}

// left is a packet that left, with what the judge says of it.
type left struct {
	came, left []byte
	known      bool // the judge can judge it
	wrong      string
}

// leaving runs random packets in the model, and returns those that left.
func leaving(t *testing.T, s *spec.Spec, plan *ir.Plan, seed uint64, packets int) (out []left) {
	t.Helper()
	complete, knows := specgen.Judge(s)
	_, err := fuzz.Run(t.Context(), fuzz.Config{
		Spec: s, Plan: plan, Seed: seed, Packets: packets, Decode: math.MaxInt,
		Judge: func(program string, came, data []byte) string {
			out = append(out, left{
				bytes.Clone(came), bytes.Clone(data), knows(program, came), complete(program, came, data),
			})
			return ""
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// spoilers are ways to spoil a plan: a checksum of a rewrite that goes wrong by one, and can be mended again.
func spoilers(plan *ir.Plan) (out []func() (undo func())) {
	for s := range ir.AllStmts(plan) {
		w := ir.RewriteOf(s)
		if w == nil {
			continue
		}
		for _, sum := range w.Sums {
			out = append(out, func() func() {
				was := sum.NewTerms
				one := ir.Term{Value: &ir.Const{V: 1, T: ir.UintType(64)}, Size: 2}
				sum.NewTerms = append(slices.Clone(was), one)
				return func() { sum.NewTerms = was }
			})
		}
	}
	return out
}
