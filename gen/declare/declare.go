// Package declare is the first stage of the compiler: it resolves and checks what a spec declares (headers, settings,
// tables, sessions, groups, events), and hands on the names with their types and layouts.
package declare

import (
	"slices"

	"github.com/fastrelay/fastrelay-gen/gen/code"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// Names are what a spec declares, resolved and checked: types, layouts of rows, hidden members.
type Names struct {
	Spec         *spec.Spec
	Plan         *ir.Plan // with all but its programs
	Headers      map[string]*spec.Header
	Alternatives map[string]*spec.Alternatives
	Settings     map[string]*ir.Setting
	Tables       map[string]*ir.Table
	Groups       map[string]*ir.Group
	Events       map[string]*ir.Event
}

// Of resolves and checks what a spec declares. What is wrong with it is reported, and missing in the names.
func Of(s *spec.Spec, diags *diag.List) *Names {
	n := &Names{
		Spec: s, Plan: &ir.Plan{Name: s.Name.Value, Pos: s.Name.Pos},
		Headers: map[string]*spec.Header{}, Alternatives: map[string]*spec.Alternatives{},
		Settings: map[string]*ir.Setting{}, Tables: map[string]*ir.Table{}, Groups: map[string]*ir.Group{},
		Events: map[string]*ir.Event{},
	}
	for _, h := range s.Headers {
		if _, shadowed := n.Headers[h.Name.Value]; !shadowed {
			n.Headers[h.Name.Value] = h
		}
	}
	for _, g := range s.Alternatives {
		if _, shadowed := n.Alternatives[g.Name.Value]; !shadowed {
			n.Alternatives[g.Name.Value] = g
		}
	}
	c := &declarer{n, diags}
	c.checkHeaders()
	c.state()
	return n
}

// declarer resolves what a spec declares.
type declarer struct {
	names *Names
	diags *diag.List
}

// Choices returns the headers that a stack entry stands for, of those that there are.
func (n *Names) Choices(e *spec.StackEntry) (hs []*spec.Header) {
	for _, name := range e.Headers {
		for _, h := range n.standsFor(name) {
			if h := n.Headers[h.Value]; h != nil {
				hs = append(hs, h)
			}
		}
	}
	return hs
}

// standsFor returns the names of the headers that a name in a stack stands for.
func (n *Names) standsFor(name spec.Name) []spec.Name {
	h, g := n.Headers[name.Value], n.Alternatives[name.Value]
	if g == nil || h != nil && (g.Std || !h.Std) { // what a spec declares goes before what comes with the language
		return []spec.Name{name}
	}
	return g.Headers
}

// CheckStack reports names in a program's stack that are no headers. It returns whether all of them are.
func (n *Names) CheckStack(stack []*spec.StackEntry, diags *diag.List) (ok bool) {
	ok = true
	for _, e := range stack {
		for _, name := range e.Headers {
			for _, h := range n.standsFor(name) {
				if n.Headers[h.Value] == nil {
					diags.Add(code.UnknownName, h.Pos, "no header %q", h.Value).WithNames(h.Value, n.HeaderNames())
					ok = false
				}
			}
		}
	}
	return ok
}

// HeaderNames are the names of all headers and alternatives.
func (n *Names) HeaderNames() []string {
	var names []string
	for _, h := range n.Spec.Headers {
		names = append(names, h.Name.Value)
	}
	for _, g := range n.Spec.Alternatives {
		names = append(names, g.Name.Value)
	}
	return names
}

// InGroup reports whether a header is one of a group's.
func (n *Names) InGroup(h *spec.Header, name string) bool {
	g := n.Alternatives[name]
	return g != nil && slices.ContainsFunc(g.Headers, func(m spec.Name) bool { return m.Value == h.Name.Value })
}

// NoTable reports a table that isn't there. One whose declaration is reported is not.
func (n *Names) NoTable(name spec.Name, diags *diag.List) {
	var names []string
	for _, t := range n.Spec.Tables {
		names = append(names, t.Name.Value)
	}
	for _, s := range n.Spec.Sessions {
		for _, r := range s.Rows {
			names = append(names, r.Table.Value)
		}
	}
	if !slices.Contains(names, name.Value) {
		diags.Add(code.UnknownName, name.Pos, "no table %q", name.Value).WithNames(name.Value, names)
	}
}
