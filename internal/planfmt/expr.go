package planfmt

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
)

var binOps = map[ir.BinOp]string{
	ir.Add: "+", ir.Sub: "-", ir.Mul: "*", ir.Div: "/", ir.Rem: "%", ir.And: "&", ir.Or: "|", ir.Xor: "^",
	ir.Shl: "<<", ir.Shr: ">>", ir.Eq: "==", ir.Ne: "!=", ir.Lt: "<", ir.Le: "<=", ir.Gt: ">", ir.Ge: ">=",
	ir.Land: "&&", ir.Lor: "||",
}

// expr returns the text of an expression.
func expr(e ir.Expr) string {
	switch e := e.(type) {
	case nil:
		return "-"
	case *ir.Const:
		return constant(e)
	case *ir.BytesConst:
		return bytesConst(e)
	case *ir.Load:
		return load(e)
	case *ir.LoadBytes:
		return named(e.Field, fmt.Sprintf("[%s +%d]", offset(e.Off), e.N))
	case *ir.VarRef:
		return e.Var.Name
	case *ir.Meta:
		return ir.Facts[e.Kind].Text
	case *ir.SettingRef:
		return "setting." + e.Setting.Name
	case *ir.RowHas:
		return e.Row.Name + "?"
	case *ir.RowMember:
		level := ""
		if e.Level != nil {
			level = "[" + expr(e.Level) + "]"
		}
		return e.Row.Name + "." + e.Member.Name + level + part(e.Component)
	case *ir.CounterValue:
		return fmt.Sprintf("counter(%s.%s)", e.Row.Name, e.Member.Name)
	case *ir.Bin:
		return operand(e.X) + " " + binOps[e.Op] + " " + operand(e.Y)
	case *ir.Not:
		return "!" + operand(e.X)
	case *ir.BytesEq:
		return operand(e.X) + " == " + operand(e.Y)
	case *ir.InPrefix:
		return operand(e.X) + " in " + e.Prefix.String()
	case *ir.IsV4:
		return "is_v4(" + expr(e.X) + ")"
	case *ir.Unicast:
		return "unicast(" + expr(e.X) + ")"
	case *ir.Multicast:
		return "multicast(" + expr(e.X) + ")"
	case *ir.ByteAt:
		return fmt.Sprintf("%s[%d]", operand(e.X), e.Index)
	case *ir.SumOK:
		if e.Whole {
			return fmt.Sprintf("sum_ok[%s +%s, pseudo %s]", offset(e.Off), operand(e.Size), summands(e.Pseudo))
		}
		if e.Size != nil {
			return fmt.Sprintf("sum_ok[%s +%s]", offset(e.Off), operand(e.Size))
		}
		return fmt.Sprintf("sum_ok[%s +%d]", offset(e.Off), e.Len)
	case *ir.PseudoSum:
		return "pseudo_sum[" + summands(e.Terms) + "]"
	case *ir.Pick:
		return fmt.Sprintf("pick(%s, %s, %s)", expr(e.If), expr(e.Then), expr(e.Else))
	case *ir.Word:
		return fmt.Sprintf("%s(%s in %s)", form(e.Plain), expr(e.X), e.Width.Name)
	case *ir.Room:
		return fmt.Sprintf("%s(most in %s)", form(e.Plain), e.Width.Name)
	}
	return fmt.Sprintf("unknown expression %T", e)
}

// operand puts parentheses around what would read ambiguously inside another expression.
func operand(e ir.Expr) string {
	switch e.(type) {
	case *ir.Bin, *ir.BytesEq, *ir.InPrefix:
		return "(" + expr(e) + ")"
	}
	return expr(e)
}

func constant(e *ir.Const) string {
	switch {
	case e.T.Kind == ir.Bool && e.V == 0:
		return "false"
	case e.T.Kind == ir.Bool:
		return "true"
	case e.V < 1024:
		return fmt.Sprint(e.V)
	}
	return fmt.Sprintf("%#x", e.V)
}

func bytesConst(e *ir.BytesConst) string {
	switch {
	case e.T.Kind == ir.Addr && len(e.B) == 16:
		return netip.AddrFrom16([16]byte(e.B)).Unmap().String()
	case e.T.Kind == ir.Mac && len(e.B) == 6:
		return fmt.Sprintf("%02x:%02x:%02x:%02x:%02x:%02x", e.B[0], e.B[1], e.B[2], e.B[3], e.B[4], e.B[5])
	}
	return fmt.Sprintf("'%x'", e.B)
}

func load(e *ir.Load) string {
	at := fmt.Sprintf("[%s", offset(e.Off))
	if e.Bit != 0 {
		at += fmt.Sprintf(".%d", e.Bit)
	}
	at += fmt.Sprintf(" u%d", e.Bits)
	if e.Little {
		at += " little"
	}
	return named(e.Field, at+"]")
}

// named puts the name of a field in front of where it is read.
func named(field, at string) string {
	return strings.TrimSpace(field + at)
}

func offset(o ir.Off) string {
	switch {
	case o.Base == nil:
		return fmt.Sprint(o.Const)
	case o.Const == 0:
		return o.Base.Name
	}
	return fmt.Sprintf("%s%+d", o.Base.Name, o.Const)
}

func part(p ir.Component) string {
	switch p {
	case ir.AddrOf:
		return ".addr"
	case ir.PortOf:
		return ".port"
	}
	return ""
}

// form is what an integer of variable size is.
func form(plain bool) string {
	if plain {
		return "uint"
	}
	return "varint"
}
