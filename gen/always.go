package gen

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/gen/reach"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// Always is what passes to the stack whatever the rules of a program say, as the plan has it.
type Always struct {
	Reason *ir.Reason // the name that it is counted by
	Such   []string   // not_X: what may be there in its place
	But    string     // what is taken all the same; "" where nothing is
}

// butTunnels is what a check of GSO packets takes whose segments are packets of a tunnel.
const butTunnels = "but not where each segment begins with a tunnel's headers"

// AlwaysUp returns what a program of a plan always passes to the stack: the reasons of all checks that every packet
// comes by before a rule sends, passes or drops it, as far as it has the header that the check is about. What depends
// on the spec's own match and rules is not among them.
func AlwaysUp(s *spec.Spec, p *ir.Program) []Always {
	w := &upWalk{reached: reach.Of(p), about: map[int]map[string]bool{}, ups: map[int]bool{}, tunnels: map[int]bool{},
		reasons: p.Reasons}
	w.block(p.Body, passed{checks: map[int]bool{}, headers: map[string]bool{"": true}})
	var all []Always
	for i, r := range p.Reasons {
		if r.Kind == ir.Punted && r.Name != "no_match" && r.Name != "no_rule" && w.always(i) {
			up := Always{Reason: r, Such: inPlaceOf(s, p, r)}
			if w.tunnels[i] {
				up.But = butTunnels
			}
			all = append(all, up)
		}
	}
	return all
}

// upWalk walks through a program, and collects what is checked in front of each end of a rule.
type upWalk struct {
	reached *reach.Reached
	reasons []*ir.Reason
	about   map[int]map[string]bool // by reason: the headers that its checks come after
	ups     map[int]bool            // reasons of what a stack leads to that has none of its alternatives
	tunnels map[int]bool
	ends    []passed
}

// passed is what a packet has passed.
type passed struct {
	checks  map[int]bool
	headers map[string]bool
	last    string
}

func (p passed) clone() passed {
	return passed{maps.Clone(p.checks), maps.Clone(p.headers), p.last}
}

// always reports whether all packets that the checks of a reason are about come by one.
func (w *upWalk) always(reason int) bool {
	if len(w.about[reason]) == 0 {
		return w.ups[reason]
	}
	return !slices.ContainsFunc(w.ends, func(end passed) bool {
		if end.checks[reason] {
			return false
		}
		for h := range w.about[reason] {
			if end.headers[h] {
				return true
			}
		}
		return false
	})
}

// check notes one, which may stop packets.
func (w *upWalk) check(at passed, s ir.Stmt, reason int) {
	if reason < 0 || w.reasons[reason].Kind != ir.Punted || !w.reached.Stmt(s) || !w.reached.Outcome(s, false) {
		return
	}
	if w.about[reason] == nil {
		w.about[reason] = map[string]bool{}
	}
	w.about[reason][at.last] = true
	if g, ok := s.(*ir.Guard); ok && asks(g.Cond, ir.Encapsulated) {
		w.tunnels[reason] = true
	} else if ok && partly(g.Cond) {
		return
	}
	at.checks[reason] = true
}

// asks reports whether a condition reads a fact about the packet.
func asks(cond ir.Expr, kind ir.MetaKind) bool {
	for e := range ir.Exprs(cond) {
		if m, ok := e.(*ir.Meta); ok && m.Kind == kind {
			return true
		}
	}
	return false
}

// partly reports whether a condition stops GSO packets only where something else is so, too.
func partly(cond ir.Expr) bool {
	if !asks(cond, ir.GSOSize) {
		return false
	}
	for e := range ir.Exprs(cond) {
		switch e.(type) {
		case *ir.Load, *ir.LoadBytes, *ir.VarRef, *ir.RowMember:
			return true
		}
	}
	return false
}

// block walks through statements; it returns what is passed after them.
func (w *upWalk) block(blk []ir.Stmt, at passed) passed {
	for _, s := range blk {
		switch s := s.(type) {
		case *ir.NeedBytes:
			w.check(at, s, s.Reason)
			if s.Part != nil {
				at.last = s.Part.Header
				at.headers[at.last] = true
			}
		case *ir.Guard:
			w.check(at, s, s.Reason)
		case *ir.ReadVarint:
			w.check(at, s, s.Reason)
		case *ir.Up:
			w.ups[s.Reason] = w.ups[s.Reason] || w.reached.Stmt(s)
			at.checks[s.Reason] = true
		case *ir.Drop, *ir.Forward, *ir.FanOut:
			if w.reached.Stmt(s) {
				w.ends = append(w.ends, at.clone())
			}
		case *ir.If:
			at = w.branch(s, at)
		}
	}
	return at
}

// branch walks through both branches. One from which all packets pass to the stack counts as a check of what is in the
// other one, and after it.
func (w *upWalk) branch(s *ir.If, at passed) passed {
	then, els := at.clone(), at.clone()
	switch thenUp, elseUp := allUp(s.Then), allUp(s.Else); {
	case thenUp:
		then = w.block(s.Then, then)
		els.checks = maps.Clone(then.checks)
		return w.block(s.Else, els)
	case elseUp:
		els = w.block(s.Else, els)
		then.checks = maps.Clone(els.checks)
		return w.block(s.Then, then)
	}
	if ended(s.Then) || ended(s.Else) { // else these are checks of some packets only
		w.block(s.Then, then)
		w.block(s.Else, els)
	}
	return at
}

// ended reports whether a rule ends in a block.
func ended(blk []ir.Stmt) bool {
	for s := range ir.Stmts(blk) {
		switch s.(type) {
		case *ir.Drop, *ir.Forward, *ir.FanOut:
			return true
		}
	}
	return false
}

// allUp reports whether all packets of a block pass to the stack.
func allUp(blk []ir.Stmt) bool {
	done, _ := ends(blk, false)
	return done && !ended(blk)
}

// inPlaceOf returns the headers that may be in the place of one that a reason misses, but aren't in the stack there.
func inPlaceOf(s *spec.Spec, p *ir.Program, r *ir.Reason) (names []string) {
	entry, ok := strings.CutPrefix(r.Name, "not_")
	i := slices.IndexFunc(s.Programs, func(sp *spec.Program) bool { return sp.Name.Value == p.Name })
	if !ok || i < 0 {
		return nil
	}
	stack := s.Programs[i].Stack
	at := slices.IndexFunc(stack, func(e *spec.StackEntry) bool { return e.Var.Value == entry })
	if at < 1 {
		return nil
	}
	parents, here := entryHeaders(s, stack[at-1]), entryHeaders(s, stack[at])
	var taken []string // what announces the headers that are in the stack
	for _, h := range s.Headers {
		if slices.Contains(here, h.Name.Value) {
			taken = append(taken, announcedBy(h, parents)...)
		}
	}
	for _, h := range s.Headers {
		by := announcedBy(h, parents)
		if len(by) > 0 && !slices.ContainsFunc(by, func(a string) bool { return slices.Contains(taken, a) }) &&
			!slices.Contains(names, h.Name.Value) {
			names = append(names, h.Name.Value)
		}
	}
	if slices.Contains(parents, "ipv6") {
		names = append(names, "extension headers")
	}
	return names
}

// announcedBy says by what parents announce a header.
func announcedBy(h *spec.Header, parents []string) (all []string) {
	for _, a := range h.After {
		if !slices.Contains(parents, a.Parent.Value) {
			continue
		}
		text := a.Parent.Value
		for _, m := range a.Match {
			text += fmt.Sprintf(" %v %v", m.Field.Path[0].Value, ranges(m.Is, maxOf(64)))
		}
		all = append(all, text)
	}
	return all
}

// entryHeaders are the names of the headers that an entry of a stack stands for.
func entryHeaders(s *spec.Spec, e *spec.StackEntry) (names []string) {
	for _, n := range e.Headers {
		names = append(names, n.Value)
		for _, g := range s.Alternatives {
			if g.Name.Value == n.Value {
				for _, m := range g.Headers {
					names = append(names, m.Value)
				}
			}
		}
	}
	return names
}
