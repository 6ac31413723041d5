package fuzz_test

import (
	"context"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/fastrelay/fastrelay-gen/gen"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/build"
	"github.com/fastrelay/fastrelay-gen/internal/clang"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
	"github.com/fastrelay/fastrelay-gen/internal/packet"
	"github.com/fastrelay/fastrelay-gen/internal/test/fuzz"
	"github.com/fastrelay/fastrelay-gen/internal/testrun"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/bpftest"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/skbfacts"
	"github.com/fastrelay/fastrelay-gen/sim"
	"github.com/fastrelay/fastrelay-gen/spec"
)

var (
	flagTime    = flag.Duration("time", 0, "compare for so long, over all specs, instead of a number of packets")
	flagPackets = flag.Int("packets", 0, "compare so many packets of each spec; 0: quickPackets or wholePackets")
	flagFound   = flag.String("found", "testdata", "the folder for cases that differ")
	flagQuick   = flag.Bool("quick", false, "don't make a case small")
)

// Packets of each spec in `make test` and in `make test-all`.
const quickPackets, wholePackets = 4_000, 19_000

// compiled is a spec with all that is made of it.
type compiled struct {
	name   string
	spec   *spec.Spec
	plan   *ir.Plan
	object []byte
}

func compile(t testing.TB, file string) compiled {
	t.Helper()
	c := planned(t, file)
	c.object = object(t, c.plan)
	return c
}

// planned is a spec with its plan.
func planned(t testing.TB, file string) compiled {
	t.Helper()
	s, diags := spec.LoadFile(file)
	if err := diags.Err(); err != nil {
		t.Fatal(err)
	}
	plan, diags := gen.Compile(s)
	if err := diags.Err(); err != nil {
		t.Fatal(err)
	}
	return compiled{name: filepath.Base(filepath.Dir(file)), spec: s, plan: plan}
}

func object(t testing.TB, plan *ir.Plan) []byte {
	t.Helper()
	text, _ := os.ReadFile(plan.Pos.File) // some specs aren't in files
	src, err := build.Source(plan, plan.Pos.File, text)
	if err != nil {
		t.Fatal(err)
	}
	opt := clang.Options{Warn: true, Lines: src.Lines} // as others compile it: an object is kept for all
	object, _, err := clang.Compile(context.Background(), src.C, src.Header, opt)
	if err != nil {
		t.Fatal(err)
	}
	return object
}

// corpus are the specs of the examples, the golden cases, and some that are hard on arithmetic.
var corpus = sync.OnceValue(func() []string {
	var files []string
	for _, pattern := range []string{
		"../../../examples/*/spec.cue", "../../../golden/*/spec.cue", "testdata/specs/*/spec.cue",
	} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			panic(err)
		}
		files = append(files, found...)
	}
	return files
})

// agrees runs packets through the model and the kernel, which have to agree.
func agrees(t *testing.T, name string, config fuzz.Config) *fuzz.Report {
	t.Helper()
	r, err := fuzz.Run(context.Background(), config)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range r.Impossible() {
		t.Errorf("%s: a packet came by %s: %s (%s), where none should get", name, p.Program, p.What, p.Pos)
	}
	if d := r.Difference; d != nil {
		file := filepath.Join(*flagFound, "found-"+name+".json")
		if err := d.Case.Save(file); err != nil {
			t.Error(err)
		}
		t.Fatalf("kernel and model differ: %s\nthe case is in %s: when it is mended, move it to testdata/cases",
			d.Text, file)
	}
	return r
}

// The kernel and the model agree on random packets and random state, for every spec there is.
func TestKernelAgrees(t *testing.T) {
	bpftest.Rights(t)
	if len(corpus()) == 0 {
		t.Fatal("there are no specs")
	}
	seed := needs.Seed(t)
	packets := *flagPackets
	if packets == 0 {
		packets = needs.Of(quickPackets, wholePackets)
	}
	specs, reached := 0, 0.0 // that ran, the sum of their shares
	for _, file := range corpus() {
		t.Run(filepath.Base(filepath.Dir(file)), func(t *testing.T) {
			c := compile(t, file)
			config := fuzz.Config{
				Spec: c.spec, Plan: c.plan, Object: c.object, Seed: seed, Decode: 4, Quick: *flagQuick,
			}
			if *flagTime > 0 {
				config.Duration = *flagTime / time.Duration(len(corpus()))
			} else {
				config.Packets = packets
			}
			r := agrees(t, c.name, config)
			every := !testing.Short() && *flagPackets == 0 && *flagTime == 0 // statement has to be run
			// Which packets there are is chance: these seeds meet every statement, whatever the first.
			again := config
			for more := uint64(0); more < 8 && every && slices.ContainsFunc(r.Missed(), statement); more++ {
				again.Seed = 1 + more<<32
				for i, p := range agrees(t, c.name, again).Coverage {
					r.Coverage[i].Hits += p.Hits
				}
			}
			// As on a kernel that doesn't say where checksums are partial.
			skbfacts.Allowed = skbfacts.None
			defer func() { skbfacts.Allowed = skbfacts.All }()
			config.Packets, config.Duration = config.Packets/4, config.Duration/4
			agrees(t, c.name+"-inferred", config)
			t.Logf("%d packets (%.0f a second), %.0f%% to the end of a rule, %d sent, %d copies, %d receivers "+
				"without one, %d events; %d decoded by gopacket, %d checksums that would be 0, %d not taken by the "+
				"kernel",
				r.Packets, r.Rate(), 100*r.Reached(), r.Verdicts[sim.VerdictSent], r.Copies, r.Declined, r.Events,
				r.Decoded, r.Zeros, r.Refused)
			specs, reached = specs+1, reached+r.Reached()
			if r.Reached() < 0.1 {
				t.Errorf("only %.0f%% of the packets reach the end of a rule", 100*r.Reached())
			}
			outcomes, seen := 0, 0
			for _, p := range r.Coverage {
				if p.Outcome {
					outcomes++
					seen += min(1, int(p.Hits))
				}
			}
			t.Logf("%d statements, %d of %d of their outcomes seen", len(r.Coverage)-outcomes, seen, outcomes)
			for _, p := range r.Missed() {
				if p.Outcome || !every { // few packets don't meet all
					t.Logf("never seen: %s: %s (%s)", p.Program, p.What, p.Pos)
				} else {
					t.Errorf("never run: %s: %s (%s)", p.Program, p.What, p.Pos)
				}
			}
		})
	}
	if all := float64(len(corpus())); specs == len(corpus()) && reached/all < 0.5 {
		t.Errorf("of the packets of a spec, only %.0f%% reach the end of a rule, in the mean of all", 100*reached/all)
	}
}

// statement reports whether a place of the plan is a statement, which has to be run, and not one of its outcomes.
func statement(p *sim.Point) bool { return !p.Outcome }

// Cases that differed once don't any more.
func TestCases(t *testing.T) {
	bpftest.Rights(t)
	files, err := filepath.Glob("testdata/cases/*.json")
	if err != nil || len(files) == 0 {
		t.Fatal("there are no cases", err)
	}
	specs := map[string]compiled{}
	for _, file := range corpus() {
		specs[filepath.Base(filepath.Dir(file))] = compiled{name: file}
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			c, err := fuzz.ReadCase(file)
			if err != nil {
				t.Fatal(err)
			}
			s, ok := specs[c.Spec]
			if !ok {
				t.Fatalf("there is no spec %q any more", c.Spec)
			}
			if s.plan == nil {
				s = compile(t, s.name)
				specs[c.Spec] = s
			}
			text, err := fuzz.Replay(s.plan, s.object, c)
			if err != nil {
				t.Fatal(err)
			}
			if text != "" {
				t.Error(text)
			}
		})
	}
}

// FuzzBytes runs raw bytes through every spec, in all its programs, in the model and the kernel. The first argument is
// the place of the spec in the corpus.
func FuzzBytes(f *testing.F) {
	needs.All(f)
	bpftest.Rights(f)
	files := corpus()
	for i, file := range files {
		s, diags := spec.LoadFile(file)
		if err := diags.Err(); err != nil {
			f.Fatal(err)
		}
		f.Add(uint8(i), make([]byte, 64), uint64(1), uint32(0)) // some have no tests
		hs := packet.NewHeaders(s)
		for _, t := range s.Tests {
			f.Add(uint8(i), hs.Make(t.Packet, &diag.List{}).Data, uint64(1), uint32(0))
		}
	}
	pairs := map[string]*fuzz.Pair{} // made when they are needed: a spec takes clang a while
	defer func() {
		for _, p := range pairs {
			p.Close()
		}
	}()
	f.Fuzz(func(t *testing.T, which uint8, frame []byte, seed uint64, gso uint32) {
		p := sim.Packet{Data: frame, GSO: gso % 65536}
		if testrun.Shows(&p) != "" {
			return
		}
		file := files[int(which)%len(files)]
		if pairs[file] == nil {
			c := compile(t, file)
			pair, err := fuzz.NewPair(c.plan, c.object)
			if err != nil {
				t.Fatal(err)
			}
			pairs[file] = pair
		}
		text, err := pairs[file].One(seed, p)
		if err != nil {
			t.Fatal(err)
		}
		if text != "" {
			t.Errorf("%s: %s", file, text)
		}
	})
}
