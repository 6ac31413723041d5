package declare

import (
	"fmt"
	"maps"
	"slices"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// This pass gives rows hidden members: the hop of every endpoint that a program sends to, so that the kernel needs no
// route lookup a packet.

// hops finds the endpoints of rows that a program sends to, and gives the rows a hop for each.
func (c *declarer) hops(p *spec.Program) {
	c.ruleHops(map[string]*ir.Table{}, p.Lookups, p.Rules)
}

func (c *declarer) ruleHops(outer map[string]*ir.Table, lookups []*spec.Lookup, rules []*spec.Rule) {
	vars := maps.Clone(outer)
	for _, l := range lookups {
		vars[l.Var.Value] = c.names.Tables[l.Table.Value]
	}
	for _, r := range rules {
		for _, l := range r.Lookups {
			vars[l.Var.Value] = c.names.Tables[l.Table.Value]
		}
		for _, a := range r.Do {
			switch {
			case a.Kind == spec.ActFanOut:
				if g := c.names.Groups[a.FanOut.Group.Value]; g != nil {
					inner := maps.Clone(vars)
					inner[Receiver] = g.Receivers
					c.ruleHops(inner, nil, a.FanOut.Rules)
				}
			case a.Kind == spec.ActSend && a.To != nil:
				sendHop(vars, a)
			}
		}
	}
}

// sendHop gives the row that a packet is sent to a hop.
func sendHop(vars map[string]*ir.Table, a *spec.Action) {
	t, to := rowMember(vars, a.To)
	if to == nil || (to.Type.Kind != ir.Endpoint && to.Type.Kind != ir.Addr) || to.Type.Levels > 0 || t.PerCPU ||
		t.Kind == "array" || t.Kind == "lru" {
		return // the kernel looks the route up
	}
	var from *ir.Member
	if a.From != nil {
		if ft, m := rowMember(vars, a.From); ft == t && sameRow(a.From, a.To) {
			from = m
		}
	}
	if t.Hop(to, from) == nil {
		t.Value.Members = append(t.Value.Members, &ir.Member{
			Name: hopName(t, to), Type: ir.HopType, Hidden: true, To: to, From: from, Pos: to.Pos,
		})
	}
}

func sameRow(a, b *spec.Expr) bool { return a.Path[0].Value == b.Path[0].Value }

// rowMember resolves an expression of the form ROW.MEMBER.
func rowMember(vars map[string]*ir.Table, e *spec.Expr) (*ir.Table, *ir.Member) {
	if e.Op != spec.OpName || len(e.Path) != 2 {
		return nil, nil
	}
	t := vars[e.Path[0].Value]
	if t == nil {
		return nil, nil
	}
	return t, t.Value.Member(e.Path[1].Value)
}

// hopName is the name of the hidden member for a hop to an endpoint; a second one, for packets from elsewhere, has a
// number.
func hopName(t *ir.Table, to *ir.Member) string {
	name := "hop_" + to.Name
	for n := 2; slices.ContainsFunc(t.Value.Members, func(m *ir.Member) bool {
		return m.Name == name && m.Hidden
	}); n++ {
		name = fmt.Sprintf("hop_%s_%d", to.Name, n)
	}
	return name
}
