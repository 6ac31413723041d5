package spec

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"cuelang.org/go/cue"

	"github.com/fastrelay/fastrelay-gen/internal/diag"
	"github.com/fastrelay/fastrelay-gen/internal/spell"
)

// This pass compares the user's value with the schema, member by member. CUE could do it by unifying the two, but its
// errors name places in the schema, and a failed choice yields an error for each alternative. So the schema is written
// such that the alternatives of a choice are of different kinds, or literals, and the comparison here always knows
// which one was meant.

// shape reports where v doesn't have the shape that the schema s describes. It returns false if v itself is of the
// wrong kind or has the wrong value; what is inside of it is another matter.
func (l *loader) shape(v, s cue.Value) bool {
	v = settled(v)
	choices := alternatives(s)
	kind := v.IncompleteKind()
	if kind == cue.BottomKind || kind == cue.TopKind && len(l.broken) > 0 {
		if len(l.broken) == 0 {
			l.cueErrors(v.Err())
		}
		for _, c := range choices { // what is inside may be whole
			if c.IncompleteKind() == cue.StructKind {
				l.structShape(v, c)
			}
		}
		return false
	}
	var fit []cue.Value
	for _, c := range choices {
		if k := c.IncompleteKind(); k == cue.TopKind {
			return true
		} else if k&kind != 0 {
			fit = append(fit, c)
		}
	}
	switch {
	case len(fit) == 0:
		if kind == cue.FloatKind || kind == cue.NumberKind {
			d := l.add(codeKind, l.pos(v), "%s has to be %s, not a fraction", l.what(v), describe(choices))
			if p := l.pos(v); l.what(v) == "kernel" && p.IsValid() {
				d.WithHint("a version is written in quotes: %q", l.textAt(p))
			}
			return false
		}
		l.add(codeKind, l.pos(v), "%s has to be %s, not %s", l.what(v), describe(choices), kindWord(kind))
		return false
	case (kind == cue.StructKind || kind == cue.ListKind) && !v.IsConcrete():
		l.add(codeIncomplete, l.pos(v), "%s leaves a choice open", l.what(v)).
			WithHint("a default decides: *this | that")
		return false
	case kind == cue.StructKind:
		l.structShape(v, fit[0])
	case kind == cue.ListKind:
		elem := fit[0].LookupPath(cue.MakePath(cue.AnyIndex))
		for _, e := range l.list(v) {
			l.shape(e, elem)
		}
	default:
		return l.scalarShape(v, fit, choices)
	}
	return true
}

// alternatives returns the disjuncts of a schema's value.
func alternatives(s cue.Value) []cue.Value {
	op, args := s.Expr()
	switch op {
	case cue.OrOp:
		var all []cue.Value
		for _, a := range args {
			all = append(all, alternatives(a)...)
		}
		return all
	case cue.SelectorOp: // a reference to a definition
		if e := s.Eval(); e.IncompleteKind() != cue.BottomKind {
			if op, _ := e.Expr(); op != cue.SelectorOp {
				return alternatives(e)
			}
		}
	}
	return []cue.Value{s}
}

func (l *loader) structShape(v, s cue.Value) {
	known := map[string]cue.Value{}
	var names, required []string
	for it, _ := s.Fields(cue.Optional(true)); it.Next(); {
		name := it.Selector().Unquoted()
		known[name] = it.Value()
		names = append(names, name)
		if it.FieldType() == cue.StringLabel|cue.RequiredConstraint {
			required = append(required, name)
		}
	}
	pattern := s.LookupPath(cue.MakePath(cue.AnyString))
	it, err := v.Fields(cue.Optional(true))
	if err != nil {
		for _, name := range names {
			if child := get(v, name); child.Exists() {
				l.shape(child, known[name])
			}
		}
		l.notWhole(v)
		return
	}
	given := map[string]bool{}
	whole, unknown := true, false
	for it.Next() {
		if it.Selector().LabelType() != cue.StringLabel {
			continue // a pattern: it says something about members, and is none
		}
		name, child := it.Selector().Unquoted(), it.Value()
		if it.Selector().ConstraintType() != 0 {
			l.add(codeShape, l.labelPos(child), "%s is only a constraint here, without a value", it.Selector()).
				WithHint("a name that ends in ? is written in quotes: %q", name+"?")
			continue
		}
		given[name] = true
		member, ok := known[name]
		if !ok {
			member = pattern
		}
		switch {
		case member.Exists():
			whole = l.shape(child, member) && whole
			continue
		default:
			d := l.add(codeUnknown, l.labelPos(child), "unknown word %q%s", name, in(v))
			if near := spell.Nearest(name, names); near != "" {
				d.WithLabel("did you mean %q?", near)
			} else {
				d.WithHint("known here: %s", strings.Join(names, ", "))
			}
		}
		whole, unknown = false, true
	}
	var missing []string
	for _, name := range required {
		if !given[name] {
			missing = append(missing, strconv.Quote(name))
		}
	}
	if len(missing) > 0 && !unknown { // else the unknown word is probably the missing one
		l.add(codeMissing, l.labelPos(v), "%s needs %s", l.what(v), strings.Join(missing, " and "))
		whole = false
	}
	if !whole {
		l.notWhole(v)
	}
}

func (l *loader) scalarShape(v cue.Value, fit, choices []cue.Value) bool {
	if !v.IsConcrete() {
		if v.Err() != nil {
			l.cueErrors(v.Err())
			return false
		}
		l.add(codeIncomplete, l.pos(v), "%s has to be a value: this only says which values are possible", l.what(v))
		return false
	}
	for _, c := range fit {
		if c.Unify(v).Err() == nil {
			return true
		}
	}
	d := l.add(codeRange, l.pos(v), "%s has to be %s", l.what(v), describe(choices))
	if l.what(v) == "hook" {
		d.WithHint("a program runs for packets that come in by a device (tc/ingress) or leave by one (tc/egress), or " +
			"for events of TCP sockets (tcp/congestion); [\"xdp\", \"tc/ingress\"] has packets come to it at XDP " +
			"first, as far as a driver can do what it does; \"xdp\" has it run there alone")
	}
	if word, err := v.String(); err == nil {
		if near := spell.Nearest(word, words(choices)); near != "" {
			d.WithLabel("did you mean %q?", near)
		}
	}
	return false
}

// textAt returns the source at a place.
func (l *loader) textAt(p diag.Pos) string {
	lines := strings.Split(string(l.src), "\n")
	if p.Line > len(lines) || p.Column < 1 || p.Column-1+p.Len > len(lines[p.Line-1]) {
		return ""
	}
	return lines[p.Line-1][p.Column-1:][:p.Len]
}

// words returns the strings among a choice's literals.
func words(choices []cue.Value) []string {
	var all []string
	for _, c := range choices {
		if s, err := c.String(); err == nil {
			all = append(all, s)
		}
	}
	return all
}

// describe says in words what the schema wants.
func describe(choices []cue.Value) string {
	var all []string
	for _, c := range choices {
		if text := wanted(c); !slices.Contains(all, text) {
			all = append(all, text)
		}
	}
	if n := len(all) - 1; n > 0 {
		return strings.Join(all[:n], ", ") + " or " + all[n]
	}
	return all[0]
}

func wanted(c cue.Value) string {
	switch k := c.IncompleteKind(); {
	case c.IsConcrete() && k == cue.IntKind:
		n, _ := c.Int64()
		if n > 1000 {
			return fmt.Sprintf("0x%X", n)
		}
		return fmt.Sprint(n)
	case c.IsConcrete() && k != cue.StructKind && k != cue.ListKind:
		return fmt.Sprint(c)
	case k == cue.IntKind:
		low, high := bounds(c)
		switch {
		case low != "" && high != "":
			return "a number from " + low + " to " + high
		case low == "0":
			return "a number that is not negative"
		}
		return "a number"
	default:
		return kindWord(k)
	}
}

// bounds returns the limits in a conjunction such as int & >=1 & <=64.
func bounds(c cue.Value) (low, high string) {
	op, args := c.Expr()
	switch op {
	case cue.GreaterThanEqualOp:
		return fmt.Sprint(args[0]), ""
	case cue.LessThanEqualOp:
		return "", fmt.Sprint(args[0])
	case cue.AndOp:
		for _, a := range args {
			l, h := bounds(a)
			low, high = low+l, high+h
		}
	}
	return low, high
}

func kindWord(k cue.Kind) string {
	switch k {
	case cue.StringKind:
		return "a string"
	case cue.BoolKind:
		return "true or false"
	case cue.IntKind, cue.NumberKind:
		return "a number"
	case cue.FloatKind:
		return "a fraction"
	case cue.ListKind:
		return "a list"
	case cue.StructKind:
		return "a struct"
	case cue.NullKind:
		return "null"
	case cue.BytesKind:
		return "bytes"
	}
	return "something that isn't decided"
}

// what names a value in a message: its member's name, with the number of the element in a list.
func (l *loader) what(v cue.Value) string {
	sels := v.Path().Selectors()
	text := ""
	for i := len(sels) - 1; i >= 0; i-- {
		if sels[i].Type() == cue.IndexLabel {
			text = fmt.Sprintf("[%d]", sels[i].Index()) + text
			continue
		}
		return sels[i].String() + text
	}
	return "the spec" + text
}

func in(v cue.Value) string {
	if p := v.Path().String(); p != "" {
		return " in " + p
	}
	return ""
}
