package reach

import (
	"fmt"
	"slices"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
)

// This file says which expressions have the same value.

// key identifies the value of an expression, which is the same at all places of a program, but for members of rows that
// are learned; 0 is none, if it may change or isn't known here.
type key int

func (a *analysis) key(e ir.Expr) key {
	if v, ok := e.(*ir.VarRef); ok {
		return a.variable(v.Var)
	}
	k, ok := a.keys[e]
	if !ok {
		if text := a.text(e); text != "" {
			k = a.id(text)
		}
		a.keys[e] = k
	}
	return k
}

// text is what an expression consists of; "" if that isn't known. Fields of the same bytes are the same, whatever
// their names are.
func (a *analysis) text(e ir.Expr) string {
	switch e := e.(type) {
	case *ir.Const:
		return fmt.Sprint("constant ", e.V)
	case *ir.BytesConst:
		return fmt.Sprintf("constant %x", e.B)
	case *ir.Load:
		return fmt.Sprint("bits ", a.place(e.Off), e.Bit, e.Bits, e.Little)
	case *ir.LoadBytes:
		return fmt.Sprint("bytes ", a.place(e.Off), e.N, e.T.Kind)
	case *ir.Meta:
		return fmt.Sprint("fact ", e.Kind)
	case *ir.SettingRef:
		return "setting " + e.Setting.Name
	case *ir.RowHas:
		return "row " + e.Row.Name
	case *ir.RowMember:
		if e.Level != nil {
			return a.whole(fmt.Sprintf("level %q %d %d", e.Row.Name, e.Member.Off, e.Component), e.Level)
		}
		return fmt.Sprintf("member %q %d %d", e.Row.Name, e.Member.Off, e.Component)
	case *ir.Bin:
		return a.whole(fmt.Sprint("operator ", e.Op), e.X, e.Y)
	case *ir.Not:
		return a.whole("not", e.X)
	case *ir.BytesEq:
		return a.whole("bytes equal", e.X, e.Y)
	case *ir.InPrefix:
		return a.whole("in "+e.Prefix.String(), e.X)
	case *ir.IsV4, *ir.Unicast, *ir.Multicast:
		x, _ := membership(e)
		return a.whole(fmt.Sprintf("%T", e), x)
	case *ir.ByteAt:
		return a.whole(fmt.Sprint("byte ", e.Index), e.X)
	case *ir.Pick:
		return a.whole("pick", e.If, e.Then, e.Else)
	case *ir.SumOK:
		if e.Whole || len(e.Pseudo) > 0 {
			return "" // there is one of it for a packet
		}
		sum := fmt.Sprint("sum ", a.place(e.Off), e.Len)
		if e.Size != nil {
			return a.whole(sum, e.Size)
		}
		return sum
	}
	return ""
}

// whole is the text of an expression with parts, "" if one of them is not known.
func (a *analysis) whole(what string, parts ...ir.Expr) string {
	for _, e := range parts {
		k := a.key(e)
		if k == 0 {
			return ""
		}
		what += fmt.Sprint(" ", int(k))
	}
	return what
}

func (a *analysis) place(o ir.Off) string {
	if o.Base == nil {
		return fmt.Sprintf("%d, ", o.Const)
	}
	return fmt.Sprintf("%q+%d, ", o.Base.Name, o.Const)
}

func (a *analysis) variable(v *ir.Var) key { return a.id("variable " + v.Name) }

func (a *analysis) id(text string) key {
	k, ok := a.ids[text]
	if !ok {
		k = key(len(a.ids) + 1)
		a.ids[text] = k
	}
	return k
}

// keysIn returns the keys of an expression and all in it.
func (a *analysis) keysIn(e ir.Expr) []key {
	ks, ok := a.parts[e]
	if !ok {
		for in := range ir.Exprs(e) {
			ks = append(ks, a.key(in))
			if b, is := in.(*ir.Bin); is {
				if c, is := comparisonOf(b); is {
					ks = append(ks, c.key(a))
				}
			}
		}
		a.parts[e] = ks
	}
	return ks
}

// news reports whether a fact about an expression, or about a part of it, has changed.
func (a *analysis) news(e ir.Expr) bool {
	return slices.ContainsFunc(a.keysIn(e), func(k key) bool { return k != 0 && a.changed[k] })
}
