//go:build linux

package fuzz_test

import (
	"path/filepath"
	"slices"
	"testing"

	"github.com/fastrelay/fastrelay-gen/gen"
	"github.com/fastrelay/fastrelay-gen/gen/fold"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/test/fuzz"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/bpftest"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
	"github.com/fastrelay/fastrelay-gen/sim"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// The programs of the corpus on received packets agree with the model at XDP, too: frames that they take there, and
// those that they leave to tc/ingress.
func TestFramesAgree(t *testing.T) {
	bpftest.Rights(t)
	seed, taken := needs.Seed(t), 0
	for i, file := range corpus() {
		t.Run(filepath.Base(filepath.Dir(file)), func(t *testing.T) {
			c, ok := atXDP(t, file)
			if !ok || needs.Left(i, 5) {
				return
			}
			r := agrees(t, c.name, fuzz.Config{
				Spec: c.spec, Plan: c.plan, Object: object(t, c.plan), Seed: seed, Decode: 4, Quick: *flagQuick,
				Packets: needs.Of(quickPackets, wholePackets),
			})
			if r.Frames[sim.VerdictSent] > 0 {
				taken++
			}
			t.Logf("%d packets; at xdp %v", r.Packets, r.Frames)
		})
	}
	if least := needs.Of(4, 28); taken < least {
		t.Errorf("programs of %d specs send frames at xdp, fewer than %d", taken, least)
	}
}

// atXDP is a spec whose programs at tc/ingress run at XDP as well, if there are any.
func atXDP(t *testing.T, file string) (c compiled, ok bool) {
	t.Helper()
	s, diags := spec.LoadFile(file)
	if err := diags.Err(); err != nil {
		t.Fatal(err)
	}
	for _, p := range s.Programs {
		p.XDP = p.Hook == "tc/ingress" && p.Stack[0].Headers[0].Value == "eth"
		ok = ok || p.XDP
	}
	plan, diags := gen.Compile(s)
	if err := diags.Err(); err != nil {
		t.Fatal(err)
	}
	return compiled{name: filepath.Base(filepath.Dir(file)), spec: s, plan: plan}, ok
}

var frameFaults = []fault{
	{where: "helper", spec: "turn", frame: true, what: "a frame begins where its payload moved to",
		old: `\(int\)from - \(int\)to`, new: `(int)to - (int)from`},
	{where: "helper", spec: "turn", frame: true, what: "the tail of a frame stays",
		old: `unlikely\(len > size\) && bpf_xdp`, new: `len < size && bpf_xdp`},
	{where: "helper", spec: "turn", frame: true, what: "padding of a frame counts at an even place",
		old: `(sum = fr_xdp_sum64[^;]*;\s*)if \(odd\)`, new: `${1}if (0)`},
	{where: "helper", spec: "turn", frame: true, what: "a frame for another host is taken",
		old: `if \(mac && ld32\(frame\)[^)]*\)[^)]*\)[^)]*\)`, new: `if (mac`},
	{where: "helper", spec: "turn", frame: true, what: "a frame leaves to a neighbour that isn't known",
		old: `return hop->state == FR_HOP_DIRECT && len <= hop->mtu`, new: `return fr_usable(hop) && len <= hop->mtu`},
	{where: "helper", spec: "turn", frame: true, what: "a frame leaves that is too big",
		old: `FR_HOP_DIRECT && len <= hop->mtu`, new: `FR_HOP_DIRECT`},
	{where: "helper", spec: "turn", frame: true, what: "a frame leaves by a device that takes none",
		old: `(bpf_redirect_map\(&fr_devmap, hop->ifindex, XDP_ABORTED\)) == XDP_REDIRECT`, new: `(${1} || 1)`},
	{where: "code", spec: "turn", frame: true, what: "a frame that isn't taken is lost",
		old: `return XDP_PASS;`, new: `return XDP_DROP;`},
	{where: "code", spec: "turn", frame: true, what: "a frame that may be a program's own goes to the next one",
		old: `return FR_XDP_LEFT;`, new: `return XDP_PASS;`},
	{where: "code", spec: "turn", frame: true, what: "a frame counts as one at tc/ingress",
		old: `XDP_TO_PEER = \d+`, new: `XDP_TO_PEER = 0`},
	{where: "back end", spec: "turn", frame: true, what: "a checksum that is left to a device is taken for a full one",
		plan: func(p *ir.Plan) bool {
			found := false
			for s := range ir.Stmts(p.Programs[0].XDP.Body) {
				g, ok := s.(*ir.Guard)
				if !ok {
					continue
				}
				for e := range ir.Exprs(g.Cond) {
					if _, ok := e.(*ir.PseudoSum); ok {
						g.Cond, found = fold.Bool(true), true
						break
					}
				}
			}
			return found
		}},
	{where: "helper", spec: "admit-else", frame: true, what: "who asks a bucket needs nothing of it",
		old: `now \+ takes(, rate, room\)\)\s*return FR_REFUSED;\s*return FR_ADMITTED)`, new: `now$1`},
	{where: "helper", spec: "xdp", frame: true, what: "who asks a credit may exceed it",
		old: `spent > limit - cost - floor \? FR`, new: `spent > limit ? FR`},
	{where: "back end", spec: "gate", frame: true, what: "what is asked is spent", plan: func(p *ir.Plan) bool {
		found := false
		for p := range p.Flow() {
			for s := range ir.Stmts(p.Body) {
				if ask, ok := s.(*ir.Ask); ok {
					found = true
					for _, a := range ask.Admits {
						a.Asked = false
					}
				}
			}
		}
		return found
	}},
	{where: "back end", spec: "gate", frame: true, what: "frames for other hosts are dropped",
		plan: func(p *ir.Plan) bool {
			body := &p.Programs[0].XDP.Body
			n := len(*body)
			*body = slices.DeleteFunc(*body, func(s ir.Stmt) bool {
				g, ok := s.(*ir.Guard)
				if !ok {
					return false
				}
				for e := range ir.Exprs(g.Cond) {
					if m, ok := e.(*ir.Meta); ok && m.Kind == ir.LinkType {
						return true
					}
				}
				return false
			})
			return len(*body) == n-1
		}},
}

// Model and kernel run one plan, so that only the model beside sees one in which the next program at XDP gets packets
// that the first one sends from tc/ingress.
func TestOrderKept(t *testing.T) {
	c, _ := atXDP(t, "../../../examples/turn/spec.cue")
	first := c.plan.Programs[0].XDP
	moved := 0
	for s := range ir.Stmts(first.Body) {
		if hop, ok := s.(*ir.CheckHop); ok {
			hop.Reasons[ir.HopNeighbour], hop.Reasons[ir.HopDirect] = ir.IsOthers, ir.IsOthers
			moved++
		}
	}
	r, err := fuzz.Run(t.Context(), fuzz.Config{Spec: c.spec, Plan: c.plan, Seed: 1, Packets: 20_000, Quick: true})
	if err != nil {
		t.Fatal(err)
	}
	if moved == 0 || r.Difference == nil {
		t.Errorf("%d checks of a hop have the packet go to the next program, and that isn't found", moved)
	}
}

// A packet that comes through XDP counts as it would without: model and kernel run one plan, so that only this
// comparison sees a plan that counts twice.
func TestCountsOnce(t *testing.T) {
	c, _ := atXDP(t, "../../../golden/session-state/spec.cue")
	run := func() *fuzz.Difference {
		t.Helper()
		r, err := fuzz.Run(t.Context(), fuzz.Config{Spec: c.spec, Plan: c.plan, Seed: 1, Packets: 20_000, Quick: true})
		if err != nil {
			t.Fatal(err)
		}
		return r.Difference
	}
	if d := run(); d != nil {
		t.Fatal(d.Text)
	}
	for p := range c.plan.Flow() {
		for s := range ir.Stmts(p.Body) {
			if e := ir.EffectsOf(s); e != nil {
				for _, a := range e.Admits {
					a.Again = false
				}
			}
		}
	}
	if run() == nil {
		t.Error("a refusal that counts at both hooks isn't found")
	}
}
