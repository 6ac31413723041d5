package bpf_test

import (
	"bytes"
	"debug/elf"
	"strings"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/fastrelay/fastrelay-gen/gen/bpf"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/clang"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
	"github.com/fastrelay/fastrelay-gen/internal/spectest"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
)

// All specs become C that clang has nothing to say against. What it does is compared with the model's in
// internal/spectest and internal/test/fuzz.
func TestSpecs(t *testing.T) {
	for _, file := range specs(t) {
		t.Run(nameOf(file), func(t *testing.T) { compile(t, file) })
	}
}

// The object depends on the plan and on clang, not on the folder; nothing of the machine or of
// the spec's text is in it.
func TestReproducible(t *testing.T) {
	t.Setenv("FASTRELAY_OBJECTS", "") // it is compiled twice
	var objects [][]byte
	for range 2 {
		t.Setenv("TMPDIR", t.TempDir())
		u := compile(t, "../../examples/turn/spec.cue")
		objects = append(objects, u.object)
	}
	if !bytes.Equal(objects[0], objects[1]) {
		t.Error("two compilations differ")
	}
	for _, word := range []string{"/tmp", "TestReproducible", "lookup: ch", "registered by"} {
		if bytes.Contains(objects[0], []byte(word)) {
			t.Errorf("%q is in the object", word)
		}
	}
	file, err := elf.NewFile(bytes.NewReader(objects[0]))
	if err != nil {
		t.Fatal(err)
	}
	has := map[string]bool{}
	for _, s := range file.Sections {
		has[s.Name] = true
		if strings.HasPrefix(s.Name, ".debug") {
			t.Errorf("section %s is in the object", s.Name)
		}
	}
	if !has[".BTF"] || !has[".BTF.ext"] {
		t.Error("BTF is missing")
	}
}

// What clang attributes to a line of the spec is what Source.Lines says.
func TestLines(t *testing.T) {
	u := compile(t, "../../examples/turn/spec.cue")
	lines := strings.Split(u.source.C, "\n")
	for i, line := range lines {
		if !strings.Contains(line, "find_by_channel(&key, pkt->lease, 0, &pkt->ch, pkt->now);") {
			continue
		}
		pos := u.source.Lines[i]
		if !strings.HasSuffix(pos.File, "spec.cue") || pos.Line == 0 {
			t.Fatalf("line %d has position %v", i+1, pos)
		}
		lines[i] = strings.Replace(line, "pkt->now)", "no_such_name)", 1)
		broken := clang.Unit{Source: strings.Join(lines, "\n"), Header: u.source.Header, Lines: u.source.Lines}
		_, _, err := clang.Compile(t.Context(), broken.Source, broken.Header, clang.Options{})
		refused, ok := err.(*clang.Error)
		if !ok {
			t.Fatalf("clang says %v", err)
		}
		if d := broken.Clang(refused, t.TempDir()); d.Pos != pos {
			t.Errorf("the message is at %v, want %v:\n%s", d.Pos, pos, refused.Log)
		}
		return
	}
	t.Fatal("the lookup was not found")
}

// hostileFanOut has a plan's first program send its packets to a group, and tell user space.
func hostileFanOut(plan *ir.Plan, evil string, pos diag.Pos) {
	key := &ir.Member{Name: "switch", Type: ir.UintType(16), Pos: pos}
	identity := &ir.Member{Name: "receiver", Type: ir.UintType(32), Hidden: true, Pos: pos}
	hop := &ir.Member{Name: "goto", Type: ir.Type{Kind: ir.Hop, Size: 20}, Off: 4, Hidden: true, Pos: pos}
	group := &ir.Group{
		Name: "do", Key: ir.Struct{Members: []*ir.Member{key}, Size: 2}, Max: 4, Rows: 8, Size: 2, Base: 1, Pos: pos,
		Receivers: &ir.Table{
			Name: "do", Kind: "receivers", Size: 12, Value: ir.Struct{Members: []*ir.Member{identity, hop}, Size: 24},
			Pos: pos,
		},
	}
	event := &ir.Event{
		Name: "union", ID: 1, Required: true,
		Fields: ir.Struct{Members: []*ir.Member{{Name: "enum", Type: ir.UintType(16), Off: 16, Pos: pos}}, Size: 24},
		Pos:    pos,
	}
	row := &ir.Row{Name: "case", Table: group.Receivers}
	load := &ir.Load{Off: ir.Off{Const: 12}, Bits: 16, Field: evil}
	p := plan.Programs[0]
	reason := func(name string, kind ir.ReasonKind) int {
		p.Reasons = append(p.Reasons, &ir.Reason{Name: name, Kind: kind, Doc: evil, Pos: pos})
		return len(p.Reasons) - 1
	}
	declined, up := reason("void", ir.Declined), reason("int", ir.Punted)
	p.Rows = append(p.Rows, row)
	p.Body[len(p.Body)-1] = &ir.FanOut{
		Group: group, Key: []ir.MemberValue{{Member: key, Value: load}}, Miss: up, Row: row, Front: ir.Off{Const: 14},
		Reason: reason("char", ir.Passed), NoRoom: up, Fault: reason("long", ir.Fault), Pos: pos,
		Each: []ir.Stmt{&ir.Copy{
			Effects: ir.Effects{
				Emits: []*ir.Emit{
					{Event: event, Row: row, Values: []ir.MemberValue{{Member: event.Fields.Members[0], Value: load}},
						Full: declined, Pos: pos},
				},
			},
			Rewrite: &ir.Rewrite{Stores: []ir.Store{
				{Off: ir.Off{Const: 12}, Size: 2, Value: &ir.Const{V: 5, T: ir.UintType(16)}, Note: evil, Pos: pos},
			}, Sums: []*ir.Sum{{
				Name: evil, Old: ir.Off{Const: 10}, New: ir.Off{Const: 10}, OldTerms: []ir.Term{{Value: load, Size: 2}},
				NewTerms: []ir.Term{{Value: &ir.Const{V: 5, T: ir.UintType(16)}, Size: 2}}, Pos: pos,
			}}, Pos: pos},
			Hop: &ir.HopRef{Row: row, Member: hop, Family: 4}, Reason: reason("short", ir.Copied), Failed: declined,
			Pos: pos,
		}},
	}
	plan.Groups, plan.Events, plan.Receivers, plan.Ring = []*ir.Group{group}, []*ir.Event{event}, 9, 4096
}

// Text of a spec ends no comment, and names that C has words for do no harm.
func TestHostileText(t *testing.T) {
	evil := "*/ #error out\n#error line\\\n/* \"??/"
	pos := diag.Pos{File: "a\"\n#error file\\.cue", Line: 3, Column: 1}
	plan := &ir.Plan{
		Name: evil, Pos: pos, Kernel: ir.Version{Major: 5, Minor: 10},
		Settings: []*ir.Setting{{Name: "int", Type: ir.UintType(16), Default: []byte{1, 0}, Doc: evil, Pos: pos}},
		Programs: []*ir.Program{{
			Name: "while", Hook: "tc/ingress", L2: true, Paths: []string{evil}, Pos: pos,
			Reasons: []*ir.Reason{{Name: "return", Kind: ir.Punted, Doc: evil, Pos: pos},
				{Name: "if", Kind: ir.Dropped, Doc: evil, Pos: pos}},
			Vars: []*ir.Var{{Name: "for", Type: ir.UintType(16)}},
			Body: []ir.Stmt{
				&ir.NeedBytes{End: ir.Off{Const: 14}, Reason: 0, Pos: pos},
				&ir.If{Cond: &ir.Bin{Op: ir.Eq, X: &ir.Load{Off: ir.Off{Const: 12}, Bits: 16, Field: evil},
					Y: &ir.SettingRef{}}, Note: evil, Pos: pos,
					Then: []ir.Stmt{&ir.Drop{Reason: 1, Pos: pos}}},
				&ir.Punt{Reason: 0, Pos: pos},
			},
		}},
	}
	hostileFanOut(plan, evil, pos)
	plan.Programs[0].Body[1].(*ir.If).Cond.(*ir.Bin).Y.(*ir.SettingRef).Setting = plan.Settings[0]
	source, err := bpf.Render(plan, bpf.Options{Quote: func(string, int) string { return evil }})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := clang.Compile(t.Context(), source.C, source.Header, clang.Options{Warn: true}); err != nil {
		t.Errorf("%v\n%s", err, source.C)
	}
}

// Two names of a spec never make one of C.
func TestReasonNames(t *testing.T) {
	program := func(name string, kind ir.ReasonKind) *ir.Program {
		return &ir.Program{
			Name: name, Reasons: []*ir.Reason{{Name: "b", Kind: kind}}, Body: []ir.Stmt{&ir.Punt{Reason: 0}},
		}
	}
	source, err := bpf.Render(&ir.Plan{
		Programs: []*ir.Program{program("a", ir.Punted), program("c", ir.Declined)},
	}, bpf.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"fr_punt(skb, PROG_A + reason_b);", "fr_punt(skb, PROG_C + reason_b_2);"} {
		if !strings.Contains(source.C, want) {
			t.Errorf("%q is missing in\n%s", want, source.C)
		}
	}
}

// A plan that contradicts itself is an error, not C.
func TestContradictions(t *testing.T) {
	load := &ir.Load{Off: ir.Off{Base: &ir.Var{Name: "nowhere", Type: ir.UintType(16)}}, Bits: 8}
	for want, body := range map[string][]ir.Stmt{
		"no reason 5":     {&ir.Punt{Reason: 5}},
		"is not declared": {&ir.Guard{Cond: load, Reason: 0}, &ir.Punt{Reason: 0}},
		"no reason for": {
			&ir.Forward{
				Rewrite: &ir.Rewrite{Resize: ir.MoveHeaders, NewFront: ir.Off{Const: 4}, Payload: &ir.Const{}},
				NoRoom:  -1, Fault: -1,
			},
		},
	} {
		plan := &ir.Plan{
			Programs: []*ir.Program{{Name: "p", Reasons: []*ir.Reason{{Name: "up", Kind: ir.Punted}}, Body: body}},
		}
		if _, err := bpf.Render(plan, bpf.Options{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error is %v, want %q", err, want)
		}
	}
}

// If the kernel fails after the first change, the packet is dropped and counted as a fault.
func TestFault(t *testing.T) {
	needs.Root(t)
	u := compile(t, "../../golden/family/spec.cue")
	broken := strings.Replace(u.source.C, "#include", "#define FR_INJECT_FAULT 1\n#include", 1)
	object, _, err := clang.Compile(t.Context(), broken, u.source.Header, clang.Options{})
	if err != nil {
		t.Fatal(err)
	}
	u.object = object
	outcomes, err := spectest.Kernel(t.Context(), u.spec, u.plan, u.object)
	if err != nil {
		t.Fatal(err)
	}
	faults := 0
	for _, o := range outcomes {
		if o.Status == spectest.Failed && strings.Contains(strings.Join(o.Differences, " "), "fault") {
			faults++
		}
	}
	if faults == 0 {
		t.Errorf("no packet was dropped as a fault: %+v", outcomes)
	}
}

// The relays of the examples stay small for the verifier of the running kernel, at each hook.
func TestBudget(t *testing.T) {
	limits := map[ebpf.ProgramType]int{ebpf.SchedCLS: 20000, ebpf.XDP: 10000}
	for _, file := range []string{"turn", "gate", "paths"} {
		u := compile(t, "../../examples/"+file+"/spec.cue")
		total := map[ebpf.ProgramType]int{}
		for name, p := range u.load(t).Programs {
			info, err := p.Info()
			if err != nil {
				t.Fatal(err)
			}
			n, ok := info.VerifiedInstructions()
			if !ok {
				t.Fatalf("%s: this kernel doesn't say how many instructions the verifier processed", name)
			}
			total[p.Type()] += int(n)
		}
		for hook, n := range total {
			if limit := limits[hook]; n >= limit {
				t.Errorf("%s: the verifier processes %d instructions of type %v, the limit is %d", file, n, hook, limit)
			}
		}
	}
}
