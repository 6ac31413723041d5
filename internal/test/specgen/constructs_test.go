package specgen_test

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/packet"
	"github.com/fastrelay/fastrelay-gen/internal/test/fuzz"
	"github.com/fastrelay/fastrelay-gen/internal/test/specgen"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
	"github.com/fastrelay/fastrelay-gen/sim"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// Random specs have what relays of tunnels have, and random packets come to the ends of such rules: they have an inner
// packet with right lengths and checksums, options or a part of a datagram inside, and find the row of one rule and not
// that of another.
func TestConstructs(t *testing.T) {
	needs.All(t)
	rules, reached := map[string]int{}, map[string]int{}
	for seed := range uint64(600) {
		s, plan, _ := specgen.Plan(specgen.Generate(seed))
		if plan == nil {
			continue
		}
		inside, took := specgen.Inside(s), map[string]bool{} // by program and what is inside
		report, err := fuzz.Run(context.Background(), fuzz.Config{
			Spec: s, Plan: plan, Seed: seed, Packets: 1024, Decode: math.MaxInt,
			Became: func(program string, p sim.Packet, res sim.Result) string {
				if res.Verdict != sim.VerdictPunt {
					for _, what := range inside(program, p.Data) {
						took[program+what] = true
					}
				}
				return ""
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		if d := report.Difference; d != nil {
			t.Errorf("seed %d: %s", seed, d.Text)
			continue
		}
		for _, p := range s.Programs {
			for _, what := range []string{specgen.OptionsInside, specgen.FragmentInside} {
				if !anyInside(p) {
					continue
				}
				rules[what]++
				if took[p.Name.Value+what] {
					reached[what]++
				}
			}
		}
		ends := map[string]bool{} // by program and line: each rule has a line of its own
		for _, p := range report.Coverage {
			if strings.HasPrefix(p.What, "forward: ") {
				at := fmt.Sprint(p.Program, p.Pos.Line)
				ends[at] = ends[at] || p.Hits > 0
			}
		}
		families := otherFamilies(plan)
		for _, p := range s.Programs {
			for i, r := range p.Rules {
				at := fmt.Sprint(p.Name.Value, r.Do[0].Pos.Line)
				hit, forwards := ends[at]
				if !forwards {
					continue
				}
				for _, c := range constructs(packet.NewHeaders(s), p, i, families[at]) {
					rules[c]++
					if hit {
						reached[c]++
					}
				}
			}
		}
	}
	for _, c := range []string{
		"decapsulate", "encapsulate", "another family", "own transport", "tunnel", "variable length",
		"after a rule's row", "segmented", "blank", "computed checksum", "checksum of 0 accepted",
		specgen.OptionsInside, specgen.FragmentInside, // of programs
	} {
		t.Logf("%s: %d rules, %d reached", c, rules[c], reached[c])
		if rules[c] < 10 || 6*reached[c] < rules[c] { // others ask for what hardly any packet has
			t.Errorf("%s: there are %d rules, and the ends of %d are reached: too few", c, rules[c], reached[c])
		}
	}
}

// Random specs have congestion controls, which compile, and random records come to the ends of their rules: each
// decision is taken, and events are emitted.
func TestCongestionSpecs(t *testing.T) {
	specs, refused, taken, events := 0, 0, map[string]int{}, 0
	for seed := range uint64(400) {
		src := specgen.Generate(seed)
		if !bytes.Contains(src, []byte("tcp/congestion")) {
			continue
		}
		specs++
		s, plan, _ := specgen.Plan(src)
		if plan == nil {
			refused++
			continue
		}
		report, err := fuzz.Run(context.Background(), fuzz.Config{
			Spec: s, Plan: plan, Seed: seed, Packets: 1024, Decode: math.MaxInt,
			Judge: func(_ string, came, left []byte) string {
				decided := map[string][2]int{"init": {112, 116}, "pacing": {120, 128}}
				switch came[0] {
				case 2:
					decided = map[string][2]int{"ack": {112, 116}, "begin": {116, 117}, "pacing": {120, 128}}
				case 3:
					decided = map[string][2]int{"loss": {112, 116}}
				}
				rest := bytes.Clone(left)
				for name, at := range decided {
					if !bytes.Equal(came[at[0]:at[1]], left[at[0]:at[1]]) {
						taken[name]++
					}
					copy(rest[at[0]:at[1]], came[at[0]:at[1]])
				}
				if !bytes.Equal(rest, came) {
					return "more than the decisions has changed"
				}
				return ""
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		if d := report.Difference; d != nil {
			t.Errorf("seed %d: %s", seed, d.Text)
		}
		events += report.Events
		if report.Reached() < 0.1 {
			t.Errorf("seed %d: only %.0f%% of the records come to the end of a rule", seed, 100*report.Reached())
		}
	}
	t.Logf("%d specs, %d refused; decisions: %v; %d events", specs, refused, taken, events)
	if specs < 30 || refused*5 > specs || events < 1000 || len(taken) < 5 {
		t.Error("too few")
	}
}

// constructs names what the i-th rule of a program is a case of.
func constructs(hs *packet.Headers, p *spec.Program, i int, family bool) []string {
	has := map[string]bool{"another family": family}
	nets := 0
	for n, e := range p.Stack {
		for _, name := range e.Headers {
			for _, h := range hs.Group(name.Value) {
				has["segmented"] = has["segmented"] || !h.Std && h.Segmented
				own := !h.Std && n > 0 && slices.ContainsFunc(p.Stack[n-1].Headers, isIP)
				has["own transport"] = has["own transport"] || own && slices.ContainsFunc(h.Fields,
					func(f *spec.Field) bool { return f.Name.Value == "dst_port" })
			}
		}
		if slices.ContainsFunc(e.Headers, isIP) {
			nets++
		}
	}
	has["tunnel"] = nets > 1
	if i > 0 {
		before := p.Rules[i-1]
		has["after a rule's row"] = len(before.Match) == 0 && before.When == nil && slices.ContainsFunc(before.Lookups,
			func(l *spec.Lookup) bool { return !l.Optional })
	}
	for _, a := range p.Rules[i].Do {
		switch a.Kind {
		case spec.ActBlank:
			has["blank"] = true
		case spec.ActPush:
			has["encapsulate"] = has["encapsulate"] || isIP(a.Header)
			is := func(as *spec.Assign) bool {
				return as.Target.Path[0].Value == "checksum" && as.Value.Op == spec.OpName &&
					as.Value.Path[0].Value == "computed"
			}
			has["computed checksum"] = has["computed checksum"] || slices.ContainsFunc(a.Set, is)
		case spec.ActPop:
			has["checksum of 0 accepted"] = has["checksum of 0 accepted"] || a.ZeroChecksum
			for _, e := range p.Stack {
				if e.Var.Value != a.Header.Value {
					continue
				}
				has["decapsulate"] = has["decapsulate"] || slices.ContainsFunc(e.Headers, isIP)
				for _, name := range e.Headers {
					for _, h := range hs.Group(name.Value) {
						varies := func(f *spec.Field) bool {
							return f.Size != nil || f.When != nil || f.Kind == spec.FieldVarint
						}
						has["variable length"] = has["variable length"] || slices.ContainsFunc(h.Fields, varies)
					}
				}
			}
		}
	}
	maps.DeleteFunc(has, func(_ string, ok bool) bool { return !ok })
	return slices.Collect(maps.Keys(has))
}

func isIP(n spec.Name) bool {
	return slices.Contains([]string{"ip", "ipv4", "ipv6", "ip_any", "ipv4_any"}, n.Value)
}

// anyInside reports whether a program takes IPv4 with options, and fragments of it, inside of another IP packet.
func anyInside(p *spec.Program) bool {
	n := slices.IndexFunc(p.Stack, func(e *spec.StackEntry) bool {
		return slices.ContainsFunc(e.Headers, func(n spec.Name) bool {
			return n.Value == "ip_any" || n.Value == "ipv4_any"
		})
	})
	return n > 0 && slices.ContainsFunc(p.Stack[:n], func(e *spec.StackEntry) bool {
		return slices.ContainsFunc(e.Headers, isIP)
	})
}

// otherFamilies are the rules, by program and line, whose packets leave with another IP version than they came with.
func otherFamilies(plan *ir.Plan) map[string]bool {
	out := map[string]bool{}
	for _, p := range plan.Programs {
		for s := range ir.Stmts(p.Body) {
			if s, ok := s.(*ir.Forward); ok && s.Rewrite != nil && s.Rewrite.Family != 0 {
				out[fmt.Sprint(p.Name, s.Pos.Line)] = true
			}
		}
	}
	return out
}
