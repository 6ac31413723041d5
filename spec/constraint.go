package spec

import (
	"fmt"
	"strconv"
	"strings"

	"cuelang.org/go/cue"

	"github.com/fastrelay/fastrelay-gen/internal/diag"
)

// maxConstraint is how many literals a constraint may have: each is a comparison for every packet.
const maxConstraint = 64

var comparisons = map[cue.Op]ConstraintOp{
	cue.EqualOp: IsEq, cue.NotEqualOp: IsNe, cue.LessThanOp: IsLt, cue.LessThanEqualOp: IsLe, cue.GreaterThanOp: IsGt,
	cue.GreaterThanEqualOp: IsGe,
}

// constraint walks a CUE value as a constraint on a field. It returns nil if it reports a mistake.
func (l *loader) constraint(v cue.Value) *Constraint {
	n := 0
	c := l.walkConstraint(v, l.pos(v), &n)
	if c != nil {
		c.Pos = l.pos(v) // where it is used, also if it is declared elsewhere
	}
	return c
}

func (l *loader) walkConstraint(v cue.Value, pos diag.Pos, n *int) *Constraint {
	if p := l.pos(v); p.IsValid() && p.Line > 0 {
		pos = p
	}
	if *n++; *n > 2*maxConstraint {
		l.add(codeLimit, pos, "the constraint has more than %d values", maxConstraint)
		return nil
	}
	if v.Err() != nil {
		return nil // reported
	}
	if v.IsConcrete() {
		lit, ok := l.literal(v, pos)
		if !ok {
			return nil
		}
		return &Constraint{Op: IsEq, Value: lit, Pos: pos}
	}
	op, args := expr(v)
	switch op {
	case cue.AndOp, cue.OrOp:
		c := &Constraint{Op: IsAnd, Pos: pos}
		if op == cue.OrOp {
			c.Op = IsOr
		}
		for _, a := range args {
			if op == cue.AndOp && isType(a) {
				continue // int & >3: the type is known anyway
			}
			x := l.walkConstraint(a, pos, n)
			if x == nil {
				return nil
			}
			c.Args = append(c.Args, x)
		}
		if len(c.Args) == 1 {
			return c.Args[0]
		}
		return c
	case cue.SelectorOp, cue.IndexOp, cue.CallOp, cue.NoOp: // a reference, or something computed
		if w := cue.Dereference(v); w != v {
			return l.walkConstraint(w, pos, n)
		}
		if again, _ := expr(v.Eval()); again != op {
			return l.walkConstraint(v.Eval(), pos, n)
		}
	}
	if c, ok := comparisons[op]; ok && len(args) == 1 {
		lit, ok := l.literal(args[0], pos)
		if !ok {
			return nil
		}
		return &Constraint{Op: c, Value: lit, Pos: pos}
	}
	switch {
	case isType(v):
		l.add(codeConstraint, pos, "a type says nothing about a packet").
			WithHint("write a value, a range (>=5 & <=9) or a choice (5 | 9)")
	case op == cue.RegexMatchOp || op == cue.NotRegexMatchOp:
		l.add(codeConstraint, pos, "a packet can't be matched with a regular expression")
	default:
		l.add(codeConstraint, pos, "this is not a constraint on a packet").
			WithHint("write a value, a range (>=5 & <=9) or a choice (5 | 9)")
	}
	return nil
}

// isType reports whether v is a bare type.
func isType(v cue.Value) bool {
	switch fmt.Sprint(v) {
	case "_", "int", "number", "float", "string", "bytes", "bool", "null":
		return !v.IsConcrete()
	}
	return false
}

// literal reads a concrete value.
func (l *loader) literal(v cue.Value, pos diag.Pos) (Literal, bool) {
	lit := Literal{Pos: pos}
	v = settled(v)
	switch v.Kind() {
	case cue.StringKind:
		lit.Kind = LitString
		lit.Text, _ = v.String()
	case cue.BoolKind:
		lit.Kind = LitBool
		lit.Bool, _ = v.Bool()
		if lit.Bool {
			lit.Int = 1
		}
	case cue.IntKind:
		n, err := v.Uint64()
		if err != nil {
			l.add(codeRange, pos, "%v is not a number from 0 to 2^64-1", v)
			return lit, false
		}
		lit.Int = n
	default:
		l.add(codeConstraint, pos, "%s can't be compared with a field", kindWord(v.Kind())).
			WithHint("values are numbers, truth values, and strings for addresses")
		return lit, false
	}
	return lit, true
}

// String returns the constraint as CUE, numbers in hexadecimal if they are large.
func (c *Constraint) String() string {
	if c.Op == IsAnd || c.Op == IsOr {
		join := map[ConstraintOp]string{IsAnd: " & ", IsOr: " or "}[c.Op]
		var parts []string
		for _, a := range c.Args {
			parts = append(parts, a.String())
		}
		return strings.Join(parts, join)
	}
	value := c.Value.Text
	switch {
	case c.Value.Kind == LitBool:
		value = strconv.FormatBool(c.Value.Bool)
	case c.Value.Kind == LitInt && c.Value.Int > 255:
		value = fmt.Sprintf("0x%04X", c.Value.Int)
	case c.Value.Kind == LitInt:
		value = strconv.FormatUint(c.Value.Int, 10)
	}
	return map[ConstraintOp]string{IsNe: "!=", IsLt: "<", IsLe: "<=", IsGt: ">", IsGe: ">="}[c.Op] + value
}
