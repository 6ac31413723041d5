package gen_test

import (
	"testing"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
)

// What both sends ask for is asked once, in front of the condition; what only one asks for stays in its branch.
func TestCommon(t *testing.T) {
	p := plan(t, `
		name: "pair"
		tables: pairs: {key: from: "endpoint", value: {local: "endpoint", remote: "endpoint"}}
		headers: tag: fields: [{name: "id", bits: 32}]
		programs: p: {hook: "tc/ingress", stack: ["eth", "ip", "udp", "tag"]
			lookup: r: pairs: ["udp.src"], do: [{pop: "tag"}, {send: {from: "r.local", to: "r.remote"}}]}`).Programs[0]
	name := func(i int) string { return p.Reasons[i].Name }
	partial, branches := 0, 0
	for s := range ir.Stmts(p.Body) {
		if s, ok := s.(*ir.Guard); ok && name(s.Reason) == "partial_checksum" {
			partial++
		}
		branch, ok := s.(*ir.If)
		if !ok || branch.Note != "ipv4 stays" && branch.Note != "ipv6 stays" {
			continue
		}
		branches++
		if branch.Note == "ipv6 stays" {
			continue // an IPv6 packet always has a checksum
		}
		zero := func(block []ir.Stmt) bool {
			g, ok := block[0].(*ir.Guard)
			return ok && name(g.Reason) == "udp_checksum"
		}
		if zero(branch.Then) || !zero(branch.Else) {
			t.Errorf("%s: only IPv6 needs a checksum", branch.Note)
		}
	}
	if partial != 2 || branches != 2 {
		t.Errorf("%d guards and %d branches for two paths", partial, branches)
	}
	vars := map[*ir.Var]bool{}
	for _, v := range p.Vars {
		vars[v] = true
	}
	for s := range ir.Stmts(p.Body) {
		for v := range ir.Reads(s) {
			if !vars[v] {
				t.Errorf("%T at %s reads %s, which is none of the program's variables", s, ir.Pos(s), v.Name)
			}
		}
	}
}
