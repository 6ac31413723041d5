package planfmt

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
)

func TestText(t *testing.T) {
	client := &ir.Member{Name: "client", Type: ir.Type{Kind: ir.Endpoint, Size: 18}}
	hop := &ir.Member{Name: "hop", Type: ir.Type{Kind: ir.Hop, Size: 20}, Off: 20, Hidden: true, To: client}
	table := &ir.Table{Name: "peers", Kind: "hash", Size: 16, Key: ir.Struct{Members: []*ir.Member{client}, Size: 18},
		Value: ir.Struct{Members: []*ir.Member{client, hop}, Size: 40}, Pos: diag.Pos{File: "spec.cue", Line: 3, Column: 9}}
	row := &ir.Row{Name: "p", Table: table}
	size := &ir.Var{Name: "size", Type: ir.UintType(16), Max: 1500}
	port := &ir.Load{Off: ir.Off{Const: 36}, Bits: 16, Field: "udp.dst_port"}
	plan := &ir.Plan{Name: "small", Pos: diag.Pos{File: "spec.cue"}, Kernel: ir.Version{Major: 5, Minor: 10}, Tables: []*ir.Table{table},
		Programs: []*ir.Program{{
			Name: "out", Hook: "tc/ingress", L2: true, Pull: 42, Paths: []string{"eth ipv4 udp"},
			Reasons: []*ir.Reason{{Name: "sent", Kind: ir.Sent, Doc: "sent"}, {Name: "short", Kind: ir.Went, Doc: "too short"}},
			Vars:    []*ir.Var{size}, Rows: []*ir.Row{row},
			Body: []ir.Stmt{
				&ir.NeedBytes{End: ir.Off{Const: 42}, Reason: 1, Pos: diag.Pos{File: "std/eth.cue", Line: 7, Column: 1}},
				&ir.Let{Var: size, Value: &ir.Bin{Op: ir.Add, X: &ir.Const{V: 8, T: ir.UintType(16)}, Y: &ir.Bin{Op: ir.And, X: port, Y: &ir.Const{V: 4095, T: ir.UintType(16)}}}},
				&ir.Lookup{Row: row, Key: []ir.MemberValue{{Member: client, Part: ir.PartPort, Value: port}}, Miss: 1},
				&ir.Forward{Hop: &ir.HopRef{Row: row, Member: hop, Family: 4}, NoRoom: -1, Fault: -1, Rewrite: &ir.Rewrite{
					L2: 14, OldFront: ir.Off{Const: 42}, NewFront: ir.Off{Const: 42},
					Cells: []ir.Cell{{Off: ir.Off{Const: 36}, Size: 2, Value: &ir.VarRef{Var: size}, Note: "dst_port"}},
				}, Pos: diag.Pos{File: "spec.cue", Line: 9, Column: 4}},
			},
		}},
	}
	want := `plan small
kernel 5.10

table peers hash, 16 rows  ; 3:9
  key, 18 bytes
      0 client endpoint
  value, 40 bytes
      0 client endpoint
     20 hop hop, hidden, to client

program out tc/ingress
  link layer: yes
  path eth ipv4 udp
  pull 42
  reasons from 0
    0 sent sent: sent
    1 up short: too short
  var size u16, at most 1500
  row p of peers
  body
    need 42 bytes else up short  ; eth.cue:7
    let size = 8 + (udp.dst_port[36 u16] & 0xfff)
    lookup p = peers{client.port: udp.dst_port[36 u16]} else up short
    forward sent through p.hop (IPv4)  ; 9:4
      rewrite in place, l2 14, front 42 -> 42
        [36 +2] = size  (dst_port)
`
	if diff := cmp.Diff(want, Text(plan)); diff != "" {
		t.Errorf("the text differs (-want +got):\n%s", diff)
	}
}

// Every kind of statement and expression of the plan has a text: the sources are compared, so that a new kind can't be
// forgotten here.
func TestNothingIsUnknown(t *testing.T) {
	for method, file := range map[string]string{"stmt": "stmt.go", "Type": "expr.go"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		kinds := receivers(t, method)
		if len(kinds) < 10 {
			t.Fatalf("only %d types with method %s were found in gen/ir", len(kinds), method)
		}
		for _, kind := range kinds {
			if !strings.Contains(string(text), "case *ir."+kind+":") {
				t.Errorf("%s has no case for *ir.%s", file, kind)
			}
		}
	}
}

// receivers returns the types of gen/ir that have the method.
func receivers(t *testing.T, method string) []string {
	t.Helper()
	entries, err := os.ReadDir("../../gen/ir")
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".go") || strings.HasSuffix(e.Name(), "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), "../../gen/ir/"+e.Name(), nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || fn.Recv == nil || fn.Name.Name != method {
				continue
			}
			if star, ok := fn.Recv.List[0].Type.(*ast.StarExpr); ok {
				out = append(out, star.X.(*ast.Ident).Name)
			}
		}
	}
	return out
}

// Every member of the larger parts of a plan is shown: a new one fails here until it has a text.
func TestNothingIsLeftOut(t *testing.T) {
	var sources strings.Builder
	for _, file := range []string{"planfmt.go", "stmt.go", "expr.go"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		sources.Write(text)
	}
	for _, part := range []any{
		ir.Plan{}, ir.Setting{}, ir.Member{}, ir.Table{}, ir.Session{}, ir.Field{}, ir.SessionRow{}, ir.Counter{}, ir.Program{},
		ir.Reason{}, ir.Forward{}, ir.Rewrite{}, ir.Cell{}, ir.Sum{}, ir.Term{}, ir.HopRef{}, ir.CheckHop{}, ir.Lookup{},
	} {
		typ := reflect.TypeOf(part)
		for i := range typ.NumField() {
			if name := typ.Field(i).Name; !strings.Contains(sources.String(), "."+name) {
				t.Errorf("%s.%s is not shown", typ, name)
			}
		}
	}
}
