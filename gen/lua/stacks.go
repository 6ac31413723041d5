package lua

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/fastrelay/fastrelay-gen/gen/ranges"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// This pass finds, for each program, where its headers begin: what is in front of the first header of the spec, and
// which numbers there say that it follows.

// numbers are what fields that Wireshark's tables look at may be: by what a dissector calls them (keys).
type numbers map[string]ranges.Set

// both is what satisfies two conditions.
func (n numbers) both(m numbers) numbers {
	out := maps.Clone(n)
	for k, s := range m {
		if have, ok := out[k]; ok {
			s = have.And(s)
		}
		out[k] = s
	}
	return out
}

// either is what satisfies one of several conditions.
func either(all []numbers) numbers {
	out := numbers{}
	for i, n := range all {
		for k, s := range n {
			if have, ok := out[k]; i == 0 {
				out[k] = s
			} else if ok {
				out[k] = have.Or(s)
			}
		}
		maps.DeleteFunc(out, func(k string, _ ranges.Set) bool { _, ok := n[k]; return !ok })
	}
	return out
}

// registered is how many numbers a dissector registers for at most: a program that takes half of all ports says little
// about what is in their packets.
const registered = 1024

// stacks renders the stacks of programs, from the first header of the spec on. A header that is in none of them (since
// it is pushed, for example) is shown alone, if the header in front says that it follows.
func (r *renderer) stacks() (out []string) {
	add := func(p *spec.Program) {
		if text := r.stack(p); text != "" && !slices.Contains(out, text) {
			out = append(out, text)
		}
	}
	for _, p := range r.spec.Programs {
		for ; p != nil; p = r.without(p) {
			add(p)
		}
	}
	for _, h := range r.spec.Headers {
		front := &spec.StackEntry{}
		for _, a := range h.After {
			if len(a.Match) > 0 {
				front.Headers = append(front.Headers, a.Parent)
			}
		}
		if !h.Std && !r.used[h.Name.Value] && len(front.Headers) > 0 {
			add(&spec.Program{Stack: []*spec.StackEntry{front, {Var: h.Name, Headers: []spec.Name{h.Name}}}})
		}
	}
	return out
}

// entry is an entry of a stack with its groups resolved.
type entry struct {
	*spec.StackEntry
	headers []*spec.Header
}

func (e *entry) ours() bool {
	return slices.ContainsFunc(e.headers, func(h *spec.Header) bool { return !h.Std })
}

// without returns a program with a stack that leaves out its first headers of the spec, if these are optional and a
// standard one follows: of a packet that has none of them, Wireshark itself finds all headers up to the next one of the
// spec. It returns nil for other programs.
func (r *renderer) without(p *spec.Program) *spec.Program {
	all := r.entries(p)
	first := max(0, slices.IndexFunc(all, (*entry).ours))
	std := first
	for std < len(all) && all[std].ours() && all[std].Optional {
		std++
	}
	if std == first || std == len(all) || all[std].ours() {
		return nil
	}
	less := *p
	less.Stack = slices.Concat(p.Stack[:first], p.Stack[std:])
	return &less
}

// entries are those of a program's stack.
func (r *renderer) entries(p *spec.Program) (all []*entry) {
	for _, e := range p.Stack {
		in := &entry{StackEntry: e}
		for _, n := range e.Headers {
			in.headers = append(in.headers, r.headers.Group(n.Value)...)
		}
		all = append(all, in)
	}
	return all
}

func (r *renderer) stack(p *spec.Program) string {
	all := r.entries(p)
	first := slices.IndexFunc(all, (*entry).ours)
	if first < 0 {
		return ""
	}
	var parents []string
	for i := first - 1; i >= 0; i-- {
		for _, h := range all[i].headers {
			parents = append(parents, h.Name.Value)
		}
		if !all[i].Optional {
			break
		}
	}
	wanted := r.conditions(p, all[:first], parents).both(announced(all[first], parents))
	outer := ""
	for _, t := range tables {
		var names []string
		for _, h := range t.headers {
			if slices.Contains(parents, h) {
				names = append(names, name(h))
			}
		}
		if len(names) > 0 {
			outer += fmt.Sprintf("%s = {%s}, ", t.parent, strings.Join(names, ", "))
			r.register(t.parent, wanted, t.most)
		}
	}
	if outer == "" {
		return "" // nothing in front says that it follows
	}
	var b strings.Builder
	fmt.Fprintf(&b, "\ntable.insert(stacks, {parents = {%s}, ports = {", strings.TrimSuffix(outer, ", "))
	if len(all[first].headers) == 1 && !all[first].Optional {
		for _, k := range []string{"src_port", "dst_port"} {
			if s, ok := wanted[k]; ok {
				fmt.Fprintf(&b, "%s = %s, ", k, luaTable(s))
			}
		}
	}
	b.WriteString("}, entries = {\n")
	for _, e := range all[first:] {
		var names []string
		for _, h := range e.headers {
			names = append(names, name(h.Name.Value))
			r.used[h.Name.Value] = true
		}
		fmt.Fprintf(&b, "\t{name = %s, headers = {%s}, optional = %v", name(e.Var.Value), strings.Join(names, ", "),
			e.Optional)
		if e.After != nil {
			fmt.Fprintf(&b, ", after = %s", name(e.After.Value))
		}
		if slices.ContainsFunc(p.Stack, func(o *spec.StackEntry) bool {
			return o.After != nil && o.After.Value == e.Var.Value
		}) {
			b.WriteString(", followed = true")
		}
		b.WriteString("},\n")
	}
	b.WriteString("}})\n")
	return b.String()
}

// register adds the numbers that a stack is found by to those of a table.
func (r *renderer) register(parent string, wanted numbers, most uint64) {
	have := r.tables[parent]
	of := []string{"match_uint"}
	if parent == "udp" || parent == "tcp" {
		of = []string{"src_port", "dst_port"}
	}
	for _, k := range of {
		count := uint64(0)
		more := wanted[k].And(ranges.UpTo(most))
		for _, s := range more.Ranges() {
			count += s.Max - s.Min + 1
		}
		if count <= registered {
			have = have.Or(more)
		}
	}
	r.tables[parent] = have
}

// announced is what the headers in front have to say for one of an entry's headers to follow.
func announced(e *entry, parents []string) numbers {
	var all []numbers
	for _, h := range e.headers {
		var choices []numbers
		for _, a := range h.After {
			if !slices.Contains(parents, a.Parent.Value) {
				continue
			}
			n := numbers{}
			for _, m := range a.Match {
				if k := keys[a.Parent.Value+"."+m.Field.Path[len(m.Field.Path)-1].Value]; k != "" {
					n = n.both(numbers{k: ranges.Of(m.Is, 65535)})
				}
			}
			choices = append(choices, n)
		}
		all = append(all, either(choices))
	}
	return either(all)
}

// conditions is what a program and its rules ask of the headers in front.
func (r *renderer) conditions(p *spec.Program, front []*entry, parents []string) numbers {
	of := func(match []*spec.FieldMatch, when *spec.Expr) numbers {
		n := numbers{}
		for _, m := range match {
			if k := key(m.Field, front, parents); k != "" {
				n = n.both(numbers{k: ranges.Of(m.Is, 65535)})
			}
		}
		return n.both(r.when(when, front, parents))
	}
	var rules []numbers
	for _, rule := range p.Rules {
		rules = append(rules, of(rule.Match, rule.When))
	}
	return of(p.Match, p.When).both(either(rules))
}

// when is what a condition says of such fields: comparisons with numbers and with the defaults of settings.
func (r *renderer) when(e *spec.Expr, front []*entry, parents []string) numbers {
	switch {
	case e == nil:
	case e.Op == spec.OpLand:
		return r.when(e.Args[0], front, parents).both(r.when(e.Args[1], front, parents))
	case e.Op == spec.OpLor:
		return either([]numbers{r.when(e.Args[0], front, parents), r.when(e.Args[1], front, parents)})
	case e.Op == spec.OpEq:
		for i, a := range e.Args {
			v, ok := r.known(e.Args[1-i])
			if k := key(a, front, parents); k != "" && ok {
				return numbers{k: ranges.Point(v)}
			}
		}
	}
	return numbers{}
}

// known is the value of a literal, or of a setting that has a default.
func (r *renderer) known(e *spec.Expr) (uint64, bool) {
	if e.Op == spec.OpInt {
		return e.Int, true
	}
	if e.Op == spec.OpName && len(e.Path) == 2 && e.Path[0].Value == "setting" {
		for _, s := range r.spec.Settings {
			if s.Name.Value == e.Path[1].Value && s.Default != nil && s.Default.Kind == spec.LitInt {
				return s.Default.Int, true
			}
		}
	}
	return 0, false
}

// key is what a dissector calls a field, if it is one that Wireshark's tables look at, of the header in front of the
// first one of the spec.
func key(e *spec.Expr, front []*entry, parents []string) string {
	if e.Op != spec.OpName || len(e.Path) < 2 {
		return ""
	}
	field := e.Path[1].Value
	if len(e.Path) == 3 && e.Path[2].Value == "port" {
		field += "_port"
	}
	for _, in := range front {
		if in.Var.Value != e.Path[0].Value {
			continue
		}
		for _, h := range in.headers {
			if k := keys[h.Name.Value+"."+field]; k != "" && slices.Contains(parents, h.Name.Value) {
				return k
			}
		}
	}
	return ""
}
