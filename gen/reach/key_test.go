package reach

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
)

// Expressions that differ in anything have different keys: each member of a type of expression that has a key is looked
// at, but for names of fields, which are for comments. Who adds one has to add it to text.
func TestKeys(t *testing.T) {
	known := map[ir.Expr]string{
		&ir.Const{}: "V T", &ir.BytesConst{}: "B T", &ir.Load{}: "Off Bit Bits Little Field",
		&ir.LoadBytes{}: "Off N T Field", &ir.VarRef{}: "Var", &ir.Meta{}: "Kind", &ir.SettingRef{}: "Setting",
		&ir.RowHas{}: "Row", &ir.RowMember{}: "Row Member Component Level", &ir.Bin{}: "Op X Y", &ir.Not{}: "X",
		&ir.BytesEq{}: "X Y", &ir.InPrefix{}: "X Prefix", &ir.IsV4{}: "X", &ir.Unicast{}: "X", &ir.Multicast{}: "X",
		&ir.ByteAt{}: "X Index", &ir.Pick{}: "If Then Else", &ir.SumOK{}: "Off Len Size Whole Pseudo",
	}
	for e, want := range known {
		var members []string
		for f := range reflect.TypeOf(e).Elem().Fields() {
			members = append(members, f.Name)
		}
		if got := strings.Join(members, " "); got != want {
			t.Errorf("%T has members %q, and its key is made of %q", e, got, want)
		}
	}
	v := func(name string) ir.Expr { return &ir.VarRef{Var: &ir.Var{Name: name, Type: ir.AddrType}} }
	row, member := &ir.Row{Name: "row"}, &ir.Member{Off: 1}
	different := []ir.Expr{
		v("x"), v("y"), &ir.Const{V: 1}, &ir.Const{V: 2}, &ir.BytesConst{B: []byte{1}}, &ir.BytesConst{B: []byte{2}},
		&ir.Load{Bits: 8}, &ir.Load{Bits: 16}, &ir.Load{Bits: 16, Little: true}, &ir.Load{Bit: 1, Bits: 7},
		&ir.Load{Bits: 8, Off: ir.Off{Const: 1}}, &ir.Load{Bits: 8, Off: ir.Off{Base: &ir.Var{Name: "x"}}},
		&ir.LoadBytes{N: 4}, &ir.LoadBytes{N: 4, T: ir.AddrType}, &ir.LoadBytes{N: 4, Off: ir.Off{Const: 1}},
		&ir.Meta{Kind: ir.VLANTag}, &ir.Meta{Kind: ir.SKBMark}, &ir.SettingRef{Setting: &ir.Setting{Name: "x"}},
		&ir.RowHas{Row: row}, &ir.RowMember{Row: row, Member: member},
		&ir.RowMember{Row: row, Member: member, Component: ir.PortOf},
		&ir.RowMember{Row: row, Member: member, Level: v("x")},
		&ir.RowMember{Row: row, Member: member, Level: v("y")}, &ir.RowMember{Row: row, Member: &ir.Member{Off: 11}},
		&ir.RowMember{Row: &ir.Row{Name: "row1"}, Member: member}, &ir.RowMember{Row: row, Member: &ir.Member{Off: 2}},
		&ir.Bin{Op: ir.Add, X: v("x"), Y: v("y")}, &ir.Bin{Op: ir.Sub, X: v("x"), Y: v("y")},
		&ir.Bin{Op: ir.Sub, X: v("y"), Y: v("x")}, &ir.Not{X: v("x")}, &ir.BytesEq{X: v("x"), Y: v("y")},
		&ir.IsV4{X: v("x")}, &ir.Unicast{X: v("x")}, &ir.Multicast{X: v("x")}, &ir.ByteAt{X: v("x")},
		&ir.ByteAt{X: v("x"), Index: 1}, &ir.Pick{If: v("x"), Then: v("x"), Else: v("y")},
		&ir.Pick{If: v("x"), Then: v("y"), Else: v("x")}, &ir.SumOK{Len: 8}, &ir.SumOK{Len: 10},
		&ir.SumOK{Len: 10, Size: v("x")}, &ir.SumOK{Len: 10, Size: v("y")}, &ir.SumOK{Off: ir.Off{Const: 1}, Len: 8},
	}
	a := newAnalysis()
	var keys []key
	for _, e := range different {
		k := a.key(e)
		if k == 0 || slices.Contains(keys, k) {
			t.Errorf("%#v has key %d, as another expression or none", e, k)
		}
		keys = append(keys, k)
	}
	for _, e := range []ir.Expr{
		&ir.CounterValue{}, &ir.Not{X: &ir.CounterValue{}}, &ir.Room{}, &ir.SumOK{Len: 8, Whole: true},
	} {
		if k := a.key(e); k != 0 {
			t.Errorf("%#v has key %d", e, k)
		}
	}
	if a.key(&ir.Load{Bits: 8, Field: "x"}) != a.key(&ir.Load{Bits: 8, Field: "y"}) {
		t.Error("the names of a field make two of it")
	}
}
