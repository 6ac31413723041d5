//go:build linux

package fuzz_test

import (
	"context"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/fastrelay/fastrelay-gen/gen"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/test/fuzz"
	"github.com/fastrelay/fastrelay-gen/internal/testrun"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/bpftest"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/skbfacts"
	"github.com/fastrelay/fastrelay-gen/sim"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// quickLive and wholeLive are how many packets each spec is compared on, through each kind of device, in `make test`
// and in `make test-all`.
const quickLive, wholeLive = 100, 600

// liveCorpus are the specs of the corpus that send no copies, and some that show what only devices know of a packet.
var liveCorpus = sync.OnceValue(func() []string {
	more, err := filepath.Glob("testdata/live/*/spec.cue")
	if err != nil {
		panic(err)
	}
	return append(more, corpus()...)
})

// The kernel and the model agree on packets that come in on real devices, and leave through real ones.
func TestLiveAgrees(t *testing.T) {
	bpftest.Rights(t)
	files, seed := liveCorpus(), needs.Seed(t)
	sent, left := 0, 0
	for i, file := range files {
		t.Run(filepath.Base(filepath.Dir(file)), func(t *testing.T) {
			if plan := planOf(t, file); testrun.UsesCopies(plan) || elsewhere(plan) {
				return
			}
			c := compile(t, file)
			for k, d := range devices {
				if needs.Left(i+k, len(devices)) {
					continue
				}
				t.Run(d.name, func(t *testing.T) {
					config := fuzz.Config{Seed: seed, Packets: needs.Of(quickLive, wholeLive)}
					if *flagTime > 0 {
						config = fuzz.Config{Seed: seed, Duration: *flagTime / time.Duration(2*len(files))}
					}
					r := runLive(t, c, d, config)
					n := r.Verdicts
					t.Logf("%d packets (%.0f a second), %d sent (%d left), %d passed, %d dropped, %d up; "+
						"%d left a checksum, %d were GSO packets; %d right after the relay, %d not taken by the "+
						"kernel",
						r.Packets, r.Rate(), n[sim.VerdictSent], r.Left, n[sim.VerdictPass], n[sim.VerdictDrop],
						n[sim.VerdictPunt],
						r.Partial, r.Super, r.Decoded, r.Refused)
					if r.Difference != nil {
						t.Fatalf("kernel and model differ: %s", r.Difference.Text)
					}
					sent, left = sent+n[sim.VerdictSent], left+r.Left
				})
			}
		})
	}
	if left < sent/4 { // of one spec, few may leave: most of its rows may have next hops without a neighbour
		t.Errorf("of %d packets that the model sends %d leave", sent, left)
	}
	t.Logf("of %d packets that the model sends %d leave", sent, left)
}

// The same for the specs of the corpus without their link-layer headers, if they make sense so: on devices whose
// packets have none.
func TestLiveAgreesWithoutLink(t *testing.T) {
	needs.All(t)
	bpftest.Rights(t)
	specs, seed := 0, needs.Seed(t)
	for _, file := range liveCorpus() {
		c, ok := withoutLink(t, file)
		if !ok {
			continue
		}
		specs++
		t.Run(c.name, func(t *testing.T) {
			c.object = object(t, c.plan)
			config := fuzz.Config{Seed: seed, Packets: wholeLive / 2}
			if *flagTime > 0 {
				config = fuzz.Config{Seed: seed, Duration: *flagTime / 20}
			}
			r := runLive(t, c, devices[0], config)
			n := r.Verdicts
			t.Logf("%d packets, %d sent (%d left), %d passed, %d up; %d left a checksum, %d were GSO packets; "+
				"%d right after the relay", r.Packets, n[sim.VerdictSent], r.Left, n[sim.VerdictPass],
				n[sim.VerdictPunt], r.Partial, r.Super, r.Decoded)
			if r.Difference != nil {
				t.Fatalf("kernel and model differ: %s", r.Difference.Text)
			}
		})
	}
	if specs < 20 {
		t.Errorf("only %d specs make sense without a link-layer header", specs)
	}
}

// withoutLink is a spec whose stacks begin after the link-layer header, if that compiles: copies need the header, and
// conditions may be about its fields.
func withoutLink(t *testing.T, file string) (c compiled, ok bool) {
	t.Helper()
	s, diags := spec.LoadFile(file)
	if err := diags.Err(); err != nil {
		t.Fatal(err)
	}
	if len(s.Groups) > 0 {
		return c, false
	}
	s.Tests = nil
	for _, p := range s.Programs {
		if p.Stack[0].Var.Value != "eth" || len(p.Stack) == 1 {
			return c, false
		}
		p.Stack = slices.DeleteFunc(p.Stack, func(e *spec.StackEntry) bool {
			return e.Var.Value == "eth" || e.Headers[0].Value == "vlan" && e.Optional
		})
	}
	plan, diags := gen.Compile(s)
	return compiled{name: filepath.Base(filepath.Dir(file)), spec: s, plan: plan}, diags.Err() == nil
}

type device struct {
	name    string
	offload bool
	ways    skbfacts.Methods
}

// devices are those that packets leave through, and with each a method to learn what the kernel knows of a packet.
var devices = []device{
	{"a device without offload", false, skbfacts.All},
	{"a device with offload, as before Linux 6.2", true, skbfacts.Read},
}

func runLive(t *testing.T, c compiled, d device, config fuzz.Config) *fuzz.Report {
	t.Helper()
	skbfacts.Allowed = d.ways
	defer func() { skbfacts.Allowed = skbfacts.All }()
	config.Spec, config.Plan, config.Object = c.spec, c.plan, c.object
	r, err := fuzz.RunLive(context.Background(), config, d.offload)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// elsewhere reports whether a program runs for sockets, where there are no packets, or at XDP alone, behind which the
// next program isn't the one at tc/ingress.
func elsewhere(plan *ir.Plan) bool {
	return slices.ContainsFunc(plan.Programs, func(p *ir.Program) bool {
		return p.Hook == ir.Congestion || p.Hook == ir.XDP
	})
}
