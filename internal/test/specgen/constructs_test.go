package specgen_test

import (
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
	"github.com/fastrelay/fastrelay-gen/spec"
)

// Random specs have what relays of tunnels have, and random packets come to the ends of such rules: they have an inner
// packet with right lengths and checksums, and find the row of one rule and not that of another.
func TestConstructs(t *testing.T) {
	rules, reached := map[string]int{}, map[string]int{}
	for seed := range uint64(300) {
		s, plan, _ := specgen.Plan(specgen.Generate(seed))
		if plan == nil {
			continue
		}
		report, err := fuzz.Run(context.Background(), fuzz.Config{
			Spec: s, Plan: plan, Seed: seed, Packets: 1024, Decode: math.MaxInt,
		})
		if err != nil {
			t.Fatal(err)
		}
		if d := report.Difference; d != nil {
			t.Errorf("seed %d: %s", seed, d.Text)
			continue
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
		"after a rule's row", "segmented", "blank",
	} {
		t.Logf("%s: %d rules, %d reached", c, rules[c], reached[c])
		if rules[c] < 10 || 6*reached[c] < rules[c] { // others ask for what hardly any packet has
			t.Errorf("%s: there are %d rules, and the ends of %d are reached: too few", c, rules[c], reached[c])
		}
	}
}

// constructs names what the i-th rule of a program is a case of.
func constructs(hs *packet.Headers, p *spec.Program, i int, family bool) []string {
	has := map[string]bool{"another family": family}
	isIP := func(n spec.Name) bool { return n.Value == "ip" || n.Value == "ipv4" || n.Value == "ipv6" }
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
		case spec.ActPop:
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
