package rewrite

import (
	"reflect"
	"slices"

	"github.com/fastrelay/fastrelay-gen/gen/draft"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
)

// What both branches of a condition begin with is moved in front of it. That means the same: a condition changes
// nothing, and only statements move that change nothing either. Branches are written one after the other, so each has
// variables of its own; they are the same if their values are, and then the second branch reads those of the first.

// common takes the statements that both branches begin with out of them, and returns them.
func common(p *draft.Program, branch *ir.If) []ir.Stmt {
	c := comparison{of: map[*ir.Var]*ir.Var{}}
	n := 0
	for n < min(len(branch.Then), len(branch.Else)) && c.same(branch.Then[n], branch.Else[n]) {
		n++
	}
	out := branch.Then[:n:n]
	branch.Then, branch.Else = branch.Then[n:], branch.Else[n:]
	if len(c.of) > 0 {
		c.replace(reflect.ValueOf(branch.Else), map[uintptr]bool{})
		p.Out.Vars = slices.DeleteFunc(p.Out.Vars, func(v *ir.Var) bool { return c.of[v] != nil })
	}
	return out
}

// comparison compares statements of two branches.
type comparison struct {
	of map[*ir.Var]*ir.Var // variables of the second branch, with those of the first that are the same
}

// same reports whether two statements do the same, and may be moved in front of the condition.
func (c *comparison) same(x, y ir.Stmt) bool {
	switch x := x.(type) {
	case *ir.Guard:
		y, ok := y.(*ir.Guard)
		return ok && c.equal(reflect.ValueOf(x), reflect.ValueOf(y))
	case *ir.Let:
		y, ok := y.(*ir.Let)
		if !ok || x.Var.Max != y.Var.Max || !c.equal(reflect.ValueOf(x.Value), reflect.ValueOf(y.Value)) {
			return false
		}
		c.of[y.Var] = x.Var
		return true
	}
	return false
}

// equal compares parts of statements, wherever in the spec they come from.
func (c *comparison) equal(x, y reflect.Value) bool {
	if x.IsValid() != y.IsValid() || x.IsValid() && x.Type() != y.Type() {
		return false
	}
	switch x.Kind() {
	case reflect.Invalid:
		return true
	case reflect.Pointer:
		if v, ok := y.Interface().(*ir.Var); ok && c.of[v] != nil {
			return x.Interface() == any(c.of[v])
		}
		if _, node := x.Interface().(ir.Node); !node || x.IsNil() || y.IsNil() {
			return x.Pointer() == y.Pointer()
		}
		return c.equal(x.Elem(), y.Elem())
	case reflect.Interface:
		return c.equal(x.Elem(), y.Elem())
	case reflect.Struct:
		for i := range x.NumField() {
			if _, pos := x.Field(i).Interface().(diag.Pos); !pos && !c.equal(x.Field(i), y.Field(i)) {
				return false
			}
		}
		return true
	}
	return reflect.DeepEqual(x.Interface(), y.Interface())
}

// replace puts the first branch's variables where the second one's are.
func (c *comparison) replace(x reflect.Value, seen map[uintptr]bool) {
	switch x.Kind() {
	case reflect.Pointer:
		if x.IsNil() {
			return
		}
		if v, ok := x.Interface().(*ir.Var); ok {
			if first := c.of[v]; first != nil {
				x.Set(reflect.ValueOf(first))
			}
			return
		}
		if seen[x.Pointer()] {
			return
		}
		seen[x.Pointer()] = true
		c.replace(x.Elem(), seen)
	case reflect.Interface:
		c.replace(x.Elem(), seen)
	case reflect.Struct:
		for i := range x.NumField() {
			c.replace(x.Field(i), seen)
		}
	case reflect.Slice:
		for i := range x.Len() {
			c.replace(x.Index(i), seen)
		}
	}
}
