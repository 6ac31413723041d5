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
		Value: ir.Struct{Members: []*ir.Member{client, hop}, Size: 40},
		Pos:   diag.Pos{File: "spec.cue", Line: 3, Column: 9}}
	row := &ir.Row{Name: "p", Table: table}
	size := &ir.Var{Name: "size", Type: ir.UintType(16), Max: 1500}
	port := &ir.Load{Off: ir.Off{Const: 36}, Bits: 16, Field: "udp.dst_port"}
	plan := &ir.Plan{Name: "small", Pos: diag.Pos{File: "spec.cue"}, Kernel: ir.Version{Major: 5, Minor: 10},
		Tables: []*ir.Table{table},
		Programs: []*ir.Program{{
			Name: "out", Hook: "tc/ingress", L2: true, Pull: 42, Paths: []string{"eth ipv4 udp"},
			Reasons: []*ir.Reason{
				{Name: "sent", Kind: ir.Sent, Doc: "sent"}, {Name: "short", Kind: ir.Punted, Doc: "too short"},
			},
			Vars: []*ir.Var{size}, Rows: []*ir.Row{row},
			Body: []ir.Stmt{
				&ir.NeedBytes{
					End: ir.Off{Const: 42}, Reason: 1, Pos: diag.Pos{File: "std/eth.cue", Line: 7, Column: 1},
				},
				&ir.Let{
					Var: size, Value: &ir.Bin{
						Op: ir.Add, X: &ir.Const{V: 8, T: ir.UintType(16)},
						Y: &ir.Bin{Op: ir.And, X: port, Y: &ir.Const{V: 4095, T: ir.UintType(16)}},
					},
				},
				&ir.Lookup{
					Row: row, Key: []ir.MemberValue{{Member: client, Component: ir.PortOf, Value: port}}, Miss: 1,
				},
				&ir.Forward{Hop: &ir.HopRef{Row: row, Member: hop, Family: 4}, NoRoom: -1, Fault: -1,
					Rewrite: &ir.Rewrite{
						L2: 14, OldFront: ir.Off{Const: 42}, NewFront: ir.Off{Const: 42},
						Stores: []ir.Store{
							{Off: ir.Off{Const: 36}, Size: 2, Value: &ir.VarRef{Var: size}, Note: "dst_port"},
						},
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
  reasons
    0 sent: sent
    1 short (to the stack): too short
  var size u16, at most 1500
  row p of peers
  body
    need 42 bytes else to the stack (short)  ; eth.cue:7
    let size = 8 + (udp.dst_port[36 u16] & 0xfff)
    lookup p = peers{client.port: udp.dst_port[36 u16]} else to the stack (short), if rows change to the stack (sent)
    forward sent through p.hop (IPv4)  ; 9:4
      rewrite in place, l2 14, front 42 -> 42
        [36 +2] = size  (dst_port)
`
	if diff := cmp.Diff(want, Text(plan)); diff != "" {
		t.Errorf("the text differs (-want +got):\n%s", diff)
	}
}

func TestFanOutText(t *testing.T) {
	u8, u64 := ir.UintType(8), ir.UintType(64)
	member := func(name string, kind ir.Kind, off int) *ir.Member {
		return &ir.Member{Name: name, Type: ir.Type{Kind: kind, Size: 4}, Off: off}
	}
	credit, next, names := member("credit", ir.Bucket, 0), member("next", ir.Ctr, 4), member("names", ir.Translation, 8)
	credit.Type.Levels = 4
	to := &ir.Member{Name: "to", Type: ir.AddrType, Off: 12}
	hop := &ir.Member{Name: "hop_to", Type: ir.Type{Kind: ir.Hop, Size: 20}, Off: 28, Hidden: true, To: to}
	key := &ir.Member{Name: "number", Type: ir.UintType(32)}
	table := &ir.Table{
		Name: "subscribers", Kind: "receivers", Size: 24, Value: ir.Struct{
			Members: []*ir.Member{credit, next, names, to, hop}, Size: 48,
		},
	}
	group := &ir.Group{
		Name: "subscribers", Key: ir.Struct{Members: []*ir.Member{key}, Size: 4}, Receivers: table, Max: 8, Rows: 16,
		Size: 4, Base: 1,
	}
	field := &ir.Member{Name: "number", Type: u64, Off: 16}
	event := &ir.Event{Name: "sent", ID: 1, Required: true, Fields: ir.Struct{Members: []*ir.Member{field}, Size: 24}}
	row := &ir.Row{Name: "r", Table: table}
	id, width, found, length, value := &ir.Var{Name: "id", Type: u64}, &ir.Var{Name: "width", Type: u8},
		&ir.Var{Name: "found", Type: ir.BoolType}, &ir.Var{Name: "length", Type: u8}, &ir.Var{Name: "value", Type: u64}
	five := &ir.Const{V: 5, T: u64}
	plan := &ir.Plan{
		Name: "fan", Levels: 4, Credits: 65, Receivers: 17, Translations: 8, Ring: 4096, Groups: []*ir.Group{group},
		Events: []*ir.Event{event},
	}
	plan.Programs = []*ir.Program{{
		Name: "out", Hook: "tc/ingress", Rows: []*ir.Row{row},
		Reasons: []*ir.Reason{
			{Name: "fanned", Kind: ir.Passed}, {Name: "no_group", Kind: ir.Punted}, {Name: "no_room", Kind: ir.Punted},
			{Name: "fault", Kind: ir.Fault},
			{Name: "copied", Kind: ir.Copied}, {Name: "declined", Kind: ir.Declined},
		},
		Body: []ir.Stmt{
			&ir.FindElement{Found: found, Len: length, Value: value, At: ir.Off{Const: 54}, Size: five, SizeMax: 8,
				ID: five,
				Forms: []ir.ElementForm{
					{IDBits: 4, LenBits: 4, Bias: 1, Pad: 0, Stop: 15, When: &ir.VarRef{Var: found}},
				}},
			&ir.FanOut{
				Group: group, Key: []ir.MemberValue{{Member: key, Value: five}}, Miss: 1, Row: row,
				Front: ir.Off{Const: 54}, NoRoom: 2, Fault: 3,
				Each: []ir.Stmt{
					&ir.CheckHop{
						Hop: &ir.HopRef{Row: row, Member: hop, Family: 4}, Length: five, TooBig: 5,
						Reasons: [ir.HopStates]int{5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5},
					},
					&ir.If{Cond: &ir.RowHas{Row: row}, Then: []ir.Stmt{&ir.Skip{Reason: 5}}},
					&ir.Translate{Var: value, Row: row, Member: names, Key: five, Value: five, Unfinished: 5, Full: 5,
						Allocs: []*ir.Alloc{{Var: id, Row: row, Member: next, Step: 4}}},
					&ir.Copy{
						Effects: ir.Effects{
							Emits: []*ir.Emit{
								{Event: event, Row: row, Values: []ir.MemberValue{{Member: field, Value: five}},
									Full: 5},
							},
							Admits: []*ir.Admit{{Row: row, Member: credit, Level: five, Cost: five, Floor: five,
								Refused: 5, Contended: 5,
								Count: &ir.Count{Row: row, Member: next, By: five}}},
							Allocs: []*ir.Alloc{{Var: id, Row: row, Member: next, Step: 1}},
							Lets: []*ir.Let{
								{
									Var: width, Value: &ir.Pick{
										If: &ir.RowHas{Row: row}, Then: &ir.Room{Width: width, Plain: true},
										Else: &ir.Word{X: five, Width: width},
									},
								},
							},
						},
						Rewrite: &ir.Rewrite{
							Filled: []ir.Filled{{With: ir.Zeros, At: ir.Off{Const: 30}, Len: five, Max: 8,
								Header: "ack"}},
							Stores: []ir.Store{{Off: ir.Off{Const: 42}, Size: 8, Width: width, Value: five}},
						},
						Hop: &ir.HopRef{Row: row, Member: hop, Family: 4}, Reason: 4, Failed: 5,
					},
				},
			},
		},
	}}
	want := `plan fan
kernel 0.0
levels of priority 4
credits 65
receivers 17
translations 8
bytes of ring 4096

group subscribers, 8 receivers in each, 16 in all from 1 on, 4 groups, 24 rows
  key, 4 bytes
      0 number u32
  receiver, 48 bytes
      0 credit bucket[4]
      4 next counter
      8 names translation
     12 to ip
     28 hop_to hop, hidden, to to

event 1 sent, required
  record, 24 bytes
     16 number u64

program out tc/ingress
  link layer: no
  pull 0
  reasons
    0 fanned (pass): 
    1 no_group (to the stack): 
    2 no_room (to the stack): 
    3 fault: 
    4 copied (copy): 
    5 declined: 
  row r of subscribers
  body
    find found, length, value = element 5 of [54 +5, at most 8]
      form id 4 length 4+1, pad 0, stop 15, when found
    fan out to subscribers{number: 5} else to the stack (no_group), ` +
		`pass fanned, front 54, no room: to the stack (no_room), fault: drop fault
      each r
        check hop r.hop_to (IPv4) for 5 bytes
          none: decline declined
          neighbour: decline declined
          local: decline declined
          unreachable: decline declined
          blackhole: decline declined
          prohibit: decline declined
          xfrm: decline declined
          rule: decline declined
          encap: decline declined
          forwarding_off: decline declined
          over the MTU: decline declined
        if r?
          skip declined
        translate value = r.names[5], new: 5, unfinished: decline declined, full: decline declined
          alloc id = r.next += 4
        copy copied through r.hop_to (IPv4) else decline declined
          emit sent{number: 5} to r else decline declined
          admit 5 from r.credit[5] above 5 else decline declined, ` +
		`contended: decline declined, refused: count r.next += 5
          alloc id = r.next += 1
          let width = pick(r?, uint(most in width), varint(5 in width))
          rewrite in place, l2 0, front 0 -> 0
            [30 +5] = zeros, at most 8  (ack)
            [42 +varint width] = 5
`
	if diff := cmp.Diff(want, Text(plan)); diff != "" {
		t.Errorf("the text differs (-want +got):\n%s", diff)
	}
}

// Every kind of statement and expression of the plan has a text: the sources are compared, so that a new kind can't be
// forgotten here.
func TestNothingIsUnknown(t *testing.T) {
	for method, file := range map[string]string{"at": "stmt.go", "Type": "expr.go"} {
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
	for _, file := range []string{"planfmt.go", "stmt.go", "fanout.go", "expr.go"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		sources.Write(text)
	}
	for _, part := range []any{
		ir.Plan{}, ir.Setting{}, ir.Member{}, ir.Table{}, ir.Session{}, ir.Field{}, ir.SessionRow{}, ir.Counter{},
		ir.Program{},
		ir.Reason{}, ir.Forward{}, ir.Rewrite{}, ir.Store{}, ir.Sum{}, ir.Term{}, ir.HopRef{}, ir.CheckHop{},
		ir.Lookup{},
		ir.Group{}, ir.Event{}, ir.Effects{}, ir.Emit{}, ir.Admit{}, ir.Alloc{}, ir.Translate{}, ir.FindElement{},
		ir.ElementForm{},
		ir.Count{}, ir.FanOut{}, ir.Copy{}, ir.Skip{}, ir.Pick{}, ir.Word{}, ir.Room{},
	} {
		typ := reflect.TypeOf(part)
		for i := range typ.NumField() {
			if _, ok := typ.Field(i).Tag.Lookup("text"); ok && (typ == reflect.TypeFor[ir.Admit]() ||
				typ == reflect.TypeFor[ir.Count]()) {
				continue // tagged shows it
			}
			if name := typ.Field(i).Name; !strings.Contains(sources.String(), "."+name) {
				t.Errorf("%s.%s is not shown", typ, name)
			}
		}
	}
}
