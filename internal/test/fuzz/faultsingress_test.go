package fuzz_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/test/fuzz"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// Faults in what is looked at where a packet comes in.
var ingressFaults = []fault{
	{where: "helper", spec: "ingress", what: "sums are held to another number", old: `s \* 0xFFFEFFFEFFFEFFFFULL`,
		new: `s * 0xFFFEFFFEFFFEFFFBULL`},
	{where: "helper", spec: "ingress", what: "127.0.0.0/8 is another host's", old: ` && first != 127`, new: ``},
	{where: "helper", spec: "ingress", what: "0.0.0.0/8 is another host's", old: `first - 1 < 223 `,
		new: `first < 224 `},
	{where: "helper", spec: "ingress", what: "239.0.0.0/8 is a host's", old: `first >= 240 && `,
		new: `first >= 239 && `},
	{where: "helper", spec: "ingress", what: "240.0.0.0/8 is no host's", old: `first >= 240 && `,
		new: `first > 240 && `},
	{where: "helper", spec: "ingress", what: "255.255.255.255 is a host's", old: ` && addr != 0xFFFFFFFF`, new: ``},
	{where: "helper", spec: "ingress", what: "255.255.255.255 is no broadcast", old: ` \|\| addr == 0xFFFFFFFF`,
		new: ``},
	{where: "helper", spec: "ingress", what: "IPv6 groups are hosts", old: `return ld8\(addr\) != 0xFF;`,
		new: `return 1;`},
	{where: "helper", spec: "ingress", what: "::1 is another host's", old: ` & ~\(1ULL << 56\)`, new: ``},
	{where: "helper", spec: "ingress", what: "::2 is no host's", old: `~\(1ULL << 56\)`, new: `~(3ULL << 56)`},
	{where: "back end", spec: "ingress", what: "frames for another host are broadcasts", plan: noGuard("other_host")},
	{where: "back end", spec: "ingress", what: "broadcasts are multicasts", plan: noGuard("link_broadcast")},
	{where: "back end", spec: "ingress", what: "sources aren't looked at", plan: noGuard("martian_source")},
	{where: "back end", spec: "ingress", what: "checksums of one's own aren't verified", plan: noGuard("tag_checksum")},
	{where: "back end", spec: "ingress", what: "IPv4 checksums aren't verified", plan: noGuard("ipv4_checksum")},
}

// A compiler that leaves a check out is found without a second opinion on the plan: what is taken and what is sent is
// looked at by an independent decoder.
func TestPlansThatTakeTooMuch(t *testing.T) {
	for _, f := range []struct {
		what, want string
		plan       func(*ir.Plan) bool
	}{
		{"frames for another host", "this host is", noGuards("other_host", "link_broadcast", "")},
		{"wrong IPv4 checksums", "gopacket says", noGuards("ipv4_checksum")},
		{"sources of no host", "a packet ", noGuards("martian_source")},
		{"destinations of no host", "a packet ", noGuards("multicast", "")},
	} {
		t.Run(strings.ReplaceAll(f.what, " ", "_"), func(t *testing.T) {
			file := specFile(t, "ingress")
			s, diags := spec.LoadFile(file)
			if err := diags.Err(); err != nil {
				t.Fatal(err)
			}
			plan := planOf(t, file)
			if !f.plan(plan) {
				t.Fatal("the plan has no place for the fault any more")
			}
			r, err := fuzz.Run(t.Context(), fuzz.Config{
				Spec: s, Plan: plan, Seed: faultSeed, Packets: faultPackets, Quick: true,
			})
			if err != nil {
				t.Fatal(err)
			}
			if r.Difference == nil || !strings.Contains(r.Difference.Text, f.want) {
				t.Errorf("not found: %+v", r.Difference)
			}
		})
	}
}

// noGuards leaves guards of these reasons out, and with "" branches that end in one of them.
func noGuards(reasons ...string) func(*ir.Plan) bool {
	return func(plan *ir.Plan) bool {
		found := false
		each(plan, func(p *ir.Program, stmts *[]ir.Stmt, i int) bool {
			s := (*stmts)[i]
			branch, ok := s.(*ir.If)
			if ok && slices.Contains(reasons, "") && len(branch.Then) > 0 && len(branch.Else) == 0 {
				s = branch.Then[0]
			}
			if g, ok := s.(*ir.Guard); ok && slices.Contains(reasons, p.Reasons[g.Reason].Name) {
				found = true
				if branch != nil {
					branch.Cond = &ir.Const{T: ir.BoolType}
				} else {
					g.Cond = &ir.Const{V: 1, T: ir.BoolType}
				}
			}
			return false
		})
		return found
	}
}
