package ir

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/fastrelay/fastrelay-gen/internal/diag"
)

// All types of statements and expressions: TestWalk finds what is missing here.
var (
	stmtTypes = []Stmt{
		&NeedBytes{}, &Let{}, &Guard{}, &If{}, &ReadVarint{}, &ReadUint{},
		&Lookup{}, &Count{}, &Learn{}, &CheckHop{}, &Punt{},
		&Drop{}, &Forward{},
		&Translate{}, &FindElement{}, &FanOut{}, &Copy{}, &Skip{}, &Ask{},
	}
	exprTypes = []Expr{
		&Const{}, &BytesConst{}, &Load{}, &LoadBytes{}, &VarRef{}, &Meta{}, &SettingRef{}, &RowHas{}, &RowMember{},
		&CounterValue{},
		&Bin{}, &Not{}, &BytesEq{}, &InPrefix{}, &IsV4{}, &Unicast{}, &Multicast{}, &ByteAt{}, &SumOK{}, &PseudoSum{},
		&Pick{},
		&Word{}, &Room{},
	}
)

// declared are types whose values a node refers to, and doesn't consist of.
var declared = []any{
	Setting{}, Member{}, Table{}, Session{}, Counter{}, Row{}, Group{}, Event{}, Struct{}, FieldRun{},
}

// TestWalk fills every field of each type, at any depth, with a part of its own, and wants the walk to come to all of
// them, once. A field that a new construct has can't be forgotten, and neither can a type.
func TestWalk(t *testing.T) {
	var nodes []Node
	names := map[string]bool{}
	add := func(n Node) {
		nodes = append(nodes, n)
		names[reflect.TypeOf(n).Elem().Name()] = true
	}
	for _, s := range stmtTypes {
		add(s)
	}
	for _, e := range exprTypes {
		add(e)
	}
	for _, name := range walked(t) {
		if !names[name] && name != "Effects" && name != "Rewrite" { // those are parts of statements
			t.Errorf("%s is a node, and not in this test's list", name)
		}
	}
	for _, n := range nodes {
		name := reflect.TypeOf(n).Elem().Name()
		f := filler{}
		f.fill(reflect.ValueOf(n).Elem(), name)
		check(t, f, name, "expression", f.exprs, slices.Collect(Exprs(n)))
		vars := slices.Concat(slices.Collect(Reads(n)), slices.Collect(Sets(n)))
		check(t, f, name, "variable", f.vars, vars)
		var bases []*Var
		for off := range Offsets(n) {
			bases = append(bases, off.Base)
		}
		check(t, f, name, "offset", f.bases, bases)
		if s, ok := n.(Stmt); ok {
			check(t, f, name, "nested statement", f.stmts, slices.Collect(Stmts([]Stmt{s}))[1:])
			if Pos(s) != f.pos {
				t.Errorf("%s: its position is %v, not that of its field Pos", name, Pos(s))
			}
			if fx := reflect.ValueOf(n).Elem().FieldByName("Effects"); fx.IsValid() != (EffectsOf(s) != nil) {
				t.Errorf("%s: EffectsOf is %v", name, EffectsOf(s))
			}
			if w := reflect.ValueOf(n).Elem().FieldByName("Rewrite"); w.IsValid() != (RewriteOf(s) != nil) {
				t.Errorf("%s: RewriteOf is %v", name, RewriteOf(s))
			}
		}
	}
}

// check wants each part among what was visited once.
func check[T comparable](t *testing.T, f filler, node, what string, parts []T, visited []T) {
	t.Helper()
	for _, p := range parts {
		n := 0
		for _, v := range visited {
			if v == p {
				n++
			}
		}
		if n != 1 {
			t.Errorf("%s: the %s in %s is visited %d times", node, what, f.where[p], n)
		}
	}
}

// filler gives the fields of a node parts to find, and notes where each is.
type filler struct {
	exprs []Expr
	stmts []Stmt
	vars  []*Var
	bases []*Var
	pos   diag.Pos
	where map[any]string
}

func (f *filler) note(part any, at string) {
	if f.where == nil {
		f.where = map[any]string{}
	}
	f.where[part] = at
}

func (f *filler) fill(v reflect.Value, at string) {
	switch t := v.Type(); {
	case t == reflect.TypeFor[Expr]():
		e := &Const{V: uint64(len(f.exprs)), T: BoolType}
		f.exprs = append(f.exprs, e)
		f.note(Expr(e), at)
		v.Set(reflect.ValueOf(e))
	case t == reflect.TypeFor[Stmt]():
		s := &Skip{Reason: len(f.stmts)}
		f.stmts = append(f.stmts, s)
		f.note(Stmt(s), at)
		v.Set(reflect.ValueOf(s))
	case t == reflect.TypeFor[*Var]():
		x := &Var{Name: at}
		f.vars = append(f.vars, x)
		f.note(x, at)
		v.Set(reflect.ValueOf(x))
	case t == reflect.TypeFor[Off]():
		x := &Var{Name: at}
		f.vars, f.bases = append(f.vars, x), append(f.bases, x)
		f.note(x, at)
		v.Set(reflect.ValueOf(Off{Base: x}))
	case t == reflect.TypeFor[diag.Pos]():
		if strings.Count(at, ".") == 1 {
			f.pos = diag.Pos{File: at, Line: 1, Column: 1}
			v.Set(reflect.ValueOf(f.pos))
		}
	case t == reflect.TypeFor[*Sum]() && strings.HasSuffix(at, ".New"): // another checksum of the same rewrite
	case t.Kind() == reflect.Struct && t.PkgPath() == reflect.TypeFor[Plan]().PkgPath():
		if slices.ContainsFunc(declared, func(d any) bool { return reflect.TypeOf(d) == t }) {
			return
		}
		for i := range t.NumField() {
			f.fill(v.Field(i), at+"."+t.Field(i).Name)
		}
	case t.Kind() == reflect.Pointer && t.Elem().Kind() == reflect.Struct:
		p := reflect.New(t.Elem())
		f.fill(p.Elem(), at)
		v.Set(p)
	case t.Kind() == reflect.Slice && t.Elem().Kind() != reflect.Uint8:
		s := reflect.MakeSlice(t, 2, 2)
		f.fill(s.Index(0), at+"[0]")
		f.fill(s.Index(1), at+"[1]")
		v.Set(s)
	case t.Kind() == reflect.Bool:
		v.SetBool(true) // a Term is a Region as well
	}
}

// walked are the types of this package that have a method parts.
func walked(t *testing.T) (names []string) {
	t.Helper()
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			if m, ok := d.(*ast.FuncDecl); ok && m.Recv != nil && m.Name.Name == "parts" {
				names = append(names, m.Recv.List[0].Type.(*ast.StarExpr).X.(*ast.Ident).Name)
			}
		}
	}
	if len(names) < 38 {
		t.Fatalf("only %d types of nodes: %v", len(names), names)
	}
	return names
}

// TestWalkStops makes sure that a caller may break out of every walk.
func TestWalkStops(t *testing.T) {
	x := func() Expr { return &Bin{X: &Load{Off: Off{Base: &Var{}}, Bits: 8}, Y: &VarRef{Var: &Var{}}} }
	s := &If{
		Cond: x(), Then: []Stmt{&Let{Var: &Var{}, Value: x()}, &FanOut{Each: []Stmt{&Skip{}, &Skip{}}}},
		Else: []Stmt{&Skip{}},
	}
	for n := range 6 {
		seen := 0
		for range Stmts([]Stmt{s}) {
			if seen++; seen == n+1 {
				break
			}
		}
		for range Exprs(s) {
			break
		}
		for range Offsets(s) {
			break
		}
		for range Reads(s) {
			break
		}
		for range Blocks(s) {
			break
		}
		for range Sets(&FindElement{Found: &Var{}, Len: &Var{}, Value: &Var{}}) {
			break
		}
		if seen != n+1 {
			t.Errorf("%d statements, not %d", seen, n+1)
		}
	}
	if NextRewrite([]Stmt{s}) != nil || len(slices.Collect(Exprs(nil))) != 0 {
		t.Error("there is no rewrite, and nil has no expressions")
	}
}
