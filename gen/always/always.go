// Package always finds what a finished plan passes to the stack, whatever its rules are.
package always

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/fastrelay/fastrelay-gen/gen/check"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/gen/ranges"
	"github.com/fastrelay/fastrelay-gen/gen/reach"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// Case is what passes to the stack whatever the rules of a program say, as the plan has it.
type Case struct {
	Reason *ir.Reason // the name that it is counted by
	Such   []string   // not_X: what may be there in its place
	In     []string   // the headers of such packets, if rules take others
	But    string     // what is taken all the same; "" if nothing is
}

// How much a check of a reason stops: a greater one stops more.
type strength int

const (
	unchecked strength = iota
	uncut              // GSO packets that can't enter a tunnel
	unless             // GSO packets but those whose segments are packets of a tunnel
	all
)

var exceptions = map[strength]string{
	uncut:  "but not where the kernel can cut it in its tunnel: TCP and UDP that aren't in one yet, up to 65,535 bytes",
	unless: "but not where each segment begins with a tunnel's headers",
}

const orDropped = "but where a rule drops it"

// Punts returns what a program of a plan always passes to the stack: the reasons of all checks that every packet
// comes by before a rule sends or passes it, as far as it has the headers that the check is about. What depends on the
// spec's own match and rules is not among them.
func Punts(s *spec.Spec, p *ir.Program) []Case {
	w := &puntWalk{reached: reach.Of(p), about: map[int]map[string]bool{}, punts: map[int]bool{},
		cuts:    map[*ir.Var]bool{},
		reasons: p.Reasons}
	w.block(p.Body, passed{checks: map[int]strength{}, headers: map[string]bool{"": true}})
	var cases []Case
	for i, r := range p.Reasons {
		if r.Kind != ir.Punted || r.Name == "no_match" || r.Name == "no_rule" {
			continue
		}
		if in, but, ok := w.always(i); ok {
			cases = append(cases, Case{Reason: r, Such: inPlaceOf(s, p, r), In: in, But: but})
		}
	}
	return cases
}

// puntWalk walks through a program, and collects what is checked in front of each end of a rule.
type puntWalk struct {
	reached *reach.Reached
	reasons []*ir.Reason
	about   map[int]map[string]bool // by reason: the headers that its checks come after, outermost first
	punts   map[int]bool            // reasons of what a stack leads to that has none of its alternatives
	cuts    map[*ir.Var]bool        // variables that say where the kernel can cut a GSO packet
	ends    []passed
}

// passed is what a packet has passed.
type passed struct {
	checks  map[int]strength
	headers map[string]bool // each header with those in front of it
	last    string
	drops   bool // at the end of a rule: it drops
}

func (p passed) clone() passed {
	return passed{maps.Clone(p.checks), maps.Clone(p.headers), p.last, p.drops}
}

// enter notes that a packet has a header.
func (p *passed) enter(header string) {
	if last := p.last[strings.LastIndex(p.last, " ")+1:]; last == header {
		return // another part of it
	}
	p.last = strings.TrimSpace(p.last + " " + header)
	p.headers[p.last] = true
}

// always reports whether all packets that the checks of a reason are about come by one. It says which headers these
// have, if others are taken, and what is taken all the same.
func (w *puntWalk) always(reason int) (in []string, but string, ok bool) {
	if len(w.about[reason]) == 0 {
		return nil, "", w.punts[reason]
	}
	least, dropped := all, false
	for _, h := range slices.Sorted(maps.Keys(w.about[reason])) {
		sent, drop := all, all
		for _, end := range w.ends {
			switch {
			case !end.headers[h]:
			case end.drops:
				drop = min(drop, end.checks[reason])
			default:
				sent = min(sent, end.checks[reason])
			}
		}
		if !w.has(h, func(end passed) bool { return !end.drops }) {
			sent = drop
		}
		if sent == unchecked {
			continue
		}
		least, dropped = min(least, sent), dropped || drop < sent
		in = append(in, h)
	}
	if len(in) == 0 {
		return nil, "", false
	}
	but = exceptions[least]
	if dropped && but != "" {
		but += ", and "
	}
	if dropped {
		but += orDropped
	}
	return w.tell(in, w.reasons[reason].Doc), but, true
}

// has reports whether a rule that ends so takes packets with such headers.
func (w *puntWalk) has(headers string, so func(end passed) bool) bool {
	return slices.ContainsFunc(w.ends, func(end passed) bool { return end.headers[headers] && so(end) })
}

// tell shortens headers to what tells their packets from others that rules take: to nothing, if there are no others
// or the text about them tells; to one header, if only they have it.
func (w *puntWalk) tell(in []string, text string) []string {
	in = slices.DeleteFunc(in, func(h string) bool { // what is in front of it is there, too
		return slices.ContainsFunc(in, func(front string) bool { return strings.HasPrefix(h, front+" ") })
	})
	var others []string // of headers, all in front of the last one
	for _, end := range w.ends {
		if !slices.ContainsFunc(in, func(h string) bool { return end.headers[h] }) {
			others = append(others, end.last)
		}
	}
	if len(others) == 0 {
		return nil
	}
	for _, name := range slices.Backward(strings.Fields(in[0])) {
		with := func(h string) bool { return slices.Contains(strings.Fields(h), name) }
		if slices.ContainsFunc(others, with) || slices.ContainsFunc(in, func(h string) bool { return !with(h) }) {
			continue
		}
		if strings.Contains(strings.ToLower(text), name) {
			return nil
		}
		return []string{name}
	}
	return in
}

// check notes one, which may stop packets.
func (w *puntWalk) check(at passed, s ir.Stmt, reason int) {
	if reason < 0 || w.reasons[reason].Kind != ir.Punted || !w.reached.Stmt(s) || !w.reached.Outcome(s, false) {
		return
	}
	if w.about[reason] == nil {
		w.about[reason] = map[string]bool{}
	}
	w.about[reason][at.last] = true
	how := all
	if g, ok := s.(*ir.Guard); ok {
		switch {
		case asks(g.Cond, ir.Encapsulated):
			how = unless
		case w.cut(g.Cond):
			how = uncut
		case partly(g.Cond):
			return
		}
	}
	at.checks[reason] = max(at.checks[reason], how)
}

// cut reports whether a condition stops GSO packets unless the kernel can cut them.
func (w *puntWalk) cut(cond ir.Expr) bool {
	if !asks(cond, ir.GSOSize) {
		return false
	}
	for e := range ir.Exprs(cond) {
		if v, ok := e.(*ir.VarRef); ok && w.cuts[v.Var] {
			return true
		}
	}
	return false
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

// partly reports whether a condition stops GSO packets only if something else is so, too.
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
func (w *puntWalk) block(blk []ir.Stmt, at passed) passed {
	for _, s := range blk {
		switch s := s.(type) {
		case *ir.NeedBytes:
			w.check(at, s, s.Reason)
			if s.Run != nil {
				at.enter(s.Run.Header)
			}
		case *ir.Guard:
			w.check(at, s, s.Reason)
		case *ir.ReadVarint:
			w.check(at, s, s.Reason)
		case *ir.Punt:
			w.punts[s.Reason] = w.punts[s.Reason] || w.reached.Stmt(s)
			at.checks[s.Reason] = all
		case *ir.Let:
			if m, ok := s.Value.(*ir.Meta); ok && m.Kind == ir.SegmentFront {
				w.cuts[s.Var] = true
			}
		case *ir.Drop, *ir.Forward, *ir.FanOut:
			if w.reached.Stmt(s) {
				end := at.clone()
				_, end.drops = s.(*ir.Drop)
				w.ends = append(w.ends, end)
			}
		case *ir.If:
			at = w.branch(s, at)
		}
	}
	return at
}

// branch walks through both branches. One from which all packets pass to the stack counts as a check of what is in the
// other one, and after it.
func (w *puntWalk) branch(s *ir.If, at passed) passed {
	then, els := at.clone(), at.clone()
	switch thenPunted, elsePunted := allPunted(s.Then), allPunted(s.Else); {
	case thenPunted:
		then = w.block(s.Then, then)
		els.checks = maps.Clone(then.checks)
		return w.block(s.Else, els)
	case elsePunted:
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

// allPunted reports whether all packets of a block pass to the stack.
func allPunted(blk []ir.Stmt) bool {
	done, _ := check.Ends(blk, false)
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
			text += fmt.Sprintf(" %v %v", m.Field.Path[0].Value, ranges.Of(m.Is, ranges.Max(64)).Ranges())
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
