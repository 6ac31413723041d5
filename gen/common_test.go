package gen_test

import (
	"maps"
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

// The family of a packet that leaves is that of the address which it leaves from, if that one is known: there is no
// rewrite that no packet comes to.
func TestKnownFamily(t *testing.T) {
	for _, c := range []struct {
		name, rest string
		families   map[int]int // how many packets of 4, of 6, and (0) of the family that they came with leave
	}{
		{"an address of the packet", `stack: ["eth", "ip", "udp"]
			do: [{send: {from: "udp.dst", to: "r.to"}}]`, map[int]int{0: 2}},
		{"one of a header around it", `stack: ["eth", {outer: "ipv4"}, "udp", "tun", {inner: "ip"}]
			do: [{pop: "tun"}, {pop: "udp"}, {pop: "outer"}, {send: {from: "outer.dst", to: "r.to.addr"}}]`,
			map[int]int{0: 2}},
		{"one of a row", `stack: ["eth", "ip", "udp"]
			do: [{send: {from: "r.from", to: "r.to"}}]`, map[int]int{0: 2, 4: 1, 6: 1}},
	} {
		p := plan(t, `
			name: "known"
			headers: tun: fields: [{name: "id", bits: 32, is: 7}]
			tables: flows: {key: client: "endpoint", value: {from: "endpoint", to: "endpoint"}}
			programs: p: {hook: "tc/ingress", lookup: r: flows: ["udp.src"]
				`+c.rest+`}`).Programs[0]
		got := map[int]int{}
		for s := range ir.Stmts(p.Body) {
			if s, ok := s.(*ir.Forward); ok {
				got[s.Rewrite.Family]++
			}
		}
		if !maps.Equal(got, c.families) {
			t.Errorf("%s: %v leave, want %v", c.name, got, c.families)
		}
	}
}
