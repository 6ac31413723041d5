package spectest

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"cuelang.org/go/cue/ast"
	"cuelang.org/go/cue/format"
	"cuelang.org/go/cue/parser"

	"github.com/fastrelay/fastrelay-gen/gen"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/packet"
	"github.com/fastrelay/fastrelay-gen/sim"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// Write writes a packet as a test of a spec: the state that it needs, the packet by its headers, and what the program
// does with it. Of the state before, what makes no difference is left out. The text is formatted; after the spec's own
// text it is a test, which passes in the model.
func Write(ctx context.Context, s *spec.Spec, plan *ir.Plan, source []byte, before *spec.Test, name string,
	p sim.Packet) (string, *Fate, error) {
	run := func(before *spec.Test) *Fate {
		x, diags := Begin(s, plan, before)
		if diags.Len() > 0 {
			return nil
		}
		f, err := x.Run(p)
		if err != nil {
			return nil
		}
		return f
	}
	fate := run(before)
	if fate == nil {
		return "", nil, errors.New("the state before the test contradicts itself")
	}
	same := func(t spec.Test) bool {
		f := run(&t)
		return f != nil && f.print() == fate.print()
	}
	t := *before
	t.Sessions = shrink(t.Sessions, func(l []*spec.TestSession) bool { u := t; u.Sessions = l; return same(u) })
	t.Rows = shrink(t.Rows, func(l []*spec.TestRow) bool { u := t; u.Rows = l; return same(u) })
	t.Groups = shrink(t.Groups, func(l []*spec.TestGroup) bool { u := t; u.Groups = l; return same(u) })
	t.Settings = shrink(t.Settings, func(l []*spec.TestValue) bool { u := t; u.Settings = l; return same(u) })
	x, _ := Begin(s, plan, &t)
	var why string
	for _, raw := range []bool{false, true} { // by headers, if that is the same packet
		text, err := formatted(source, x.text(name, p, fate, raw))
		if err != nil {
			return "", nil, fmt.Errorf("the test can't be formatted: %w", err)
		}
		if why = passes(ctx, slices.Concat(source, []byte("\n"), text), s.File, name); why == "" {
			return string(text), fate, nil
		}
	}
	return "", nil, fmt.Errorf("no test of a spec can say this: %s", why)
}

// formatted formats a test for a spec. Members whose names a "let" of the spec has are quoted, which CUE requires.
func formatted(source []byte, text string) ([]byte, error) {
	simple, err := format.Source([]byte(text), format.Simplify())
	if err != nil {
		return nil, err
	}
	lets := map[string]bool{}
	if f, err := parser.ParseFile("spec.cue", source); err == nil {
		ast.Walk(f, func(n ast.Node) bool {
			if let, ok := n.(*ast.LetClause); ok {
				lets[let.Ident.Name] = true
			}
			return true
		}, nil)
	}
	f, err := parser.ParseFile("test.cue", simple)
	if err != nil {
		return nil, err
	}
	ast.Walk(f, func(n ast.Node) bool {
		if field, ok := n.(*ast.Field); ok {
			if id, ok := field.Label.(*ast.Ident); ok && lets[id.Name] {
				label := ast.NewString(id.Name)
				ast.SetPos(label, id.Pos())
				field.Label = label
			}
		}
		return true
	}, nil)
	return format.Node(f)
}

// shrink leaves out of a list what still is right without.
func shrink[T any](list []T, still func([]T) bool) []T {
	for n := len(list); n >= 1; n /= 2 {
		for i := 0; i < len(list); {
			if less := slices.Delete(slices.Clone(list), i, min(i+n, len(list))); still(less) {
				list = less
			} else {
				i += n
			}
		}
	}
	return list
}

// passes says why a test of a spec fails, or "".
func passes(ctx context.Context, source []byte, file, name string) string {
	s, diags := spec.LoadWithin(ctx, file, source)
	if diags.Len() > 0 {
		return diags.All()[0].Message
	}
	plan, diags := gen.Compile(s)
	if diags.Len() == 0 {
		s.Tests = slices.DeleteFunc(s.Tests, func(t *spec.Test) bool { return t.Name.Value != name })
		diags = Check(s, plan)
	}
	if diags.Len() > 0 {
		return diags.All()[0].Message
	}
	for _, o := range Model(ctx, s, plan) {
		if o.Status != Passed {
			return strings.Join(o.Differences, "; ")
		}
	}
	return ""
}

// print is all that a test can expect of a packet's fate.
func (f *Fate) print() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s %x %v\n", f.Verdict, f.Reason, f.Packet.Data, f.Packet.VLAN)
	for _, c := range f.Copies {
		fmt.Fprintf(&b, "%t %s %x\n", c.Sent, c.Reason, c.Packet.Data)
	}
	for _, e := range f.Events {
		fmt.Fprintf(&b, "%+v\n", e)
	}
	return b.String()
}

// text is the test, not yet formatted. raw: packets are written as they are, not by their headers.
func (x *Trial) text(name string, p sim.Packet, f *Fate, raw bool) string {
	var b strings.Builder
	t := x.t.src
	fmt.Fprintf(&b, "tests: %s: {\nprogram: %q\n", quoted(name), t.Program.Value)
	if len(t.Settings) > 0 {
		fmt.Fprintf(&b, "settings: %s\n", valuesText(t.Settings))
	}
	list(&b, "sessions", t.Sessions, func(s *spec.TestSession) string {
		return fmt.Sprintf("{%s: %s}", s.Session.Value, valuesText(s.Fields))
	})
	list(&b, "rows", t.Rows, func(r *spec.TestRow) string {
		return fmt.Sprintf("{%s: %s}", r.Table.Value, valuesText(r.Values))
	})
	list(&b, "groups", t.Groups, func(g *spec.TestGroup) string {
		var receivers []string
		for _, r := range g.Receivers {
			receivers = append(receivers, valuesText(r)+",\n")
		}
		return fmt.Sprintf("{%s: {key: %s, receivers: [\n%s]}}", g.Group.Value, valuesText(g.Key),
			strings.Join(receivers, ""))
	})
	if r := t.Route; r != nil {
		fmt.Fprintf(&b, "route: {state: %q, mtu: %d}\n", r.State, r.MTU)
	}
	layers := x.hs.Describe(p.Data, f.In)
	packetText := frameText(p.Data)
	if len(layers) > 0 && !raw {
		packetText = packet.CUE(layers)
	}
	fmt.Fprintf(&b, "packet: %s\n", packetText)
	if p.VLAN != nil {
		fmt.Fprintf(&b, "vlan: %s\n", tagText(p.VLAN))
	}
	for _, word := range t.Conditions {
		b.WriteString(word + ": true\n")
	}
	if p.Link == ir.ToOther {
		b.WriteString("other_host: true\n")
	}
	fmt.Fprintf(&b, "expect: {\n%s}\n}\n", x.expectText(p, f, raw))
	return b.String()
}

func (x *Trial) expectText(p sim.Packet, f *Fate, raw bool) string {
	var b strings.Builder
	written := func(frame []byte, spans []*packet.Span, changes []packet.Change) string {
		if layers := x.hs.Expected(frame, spans, changes); len(layers) > 0 && !raw {
			return packet.CUE(layers)
		}
		return frameText(frame)
	}
	switch same := bytes.Equal(p.Data, f.Packet.Data); {
	case f.Verdict == sim.VerdictPunt || f.Verdict == sim.VerdictDrop:
		fmt.Fprintf(&b, "%s: %q\n", f.Verdict, f.Reason)
	case f.Verdict == sim.VerdictPass && same:
		b.WriteString("pass: true\nuntouched: true\n")
	default:
		fmt.Fprintf(&b, "%s: %s\n", f.Verdict, written(f.Packet.Data, f.Out, f.Changes))
		if f.Packet.VLAN != nil {
			fmt.Fprintf(&b, "vlan: %s\n", tagText(f.Packet.VLAN))
		}
	}
	list(&b, "copies", f.Copies, func(c CopyFate) string {
		if !c.Sent {
			return fmt.Sprintf("{declined: %q}", c.Reason)
		}
		return written(c.Packet.Data, x.hs.Rewritten(c.Packet.Data, f.In, x.t.stack), c.Changes)
	})
	list(&b, "events", f.Events, func(e EventFate) string { return fmt.Sprintf("{%s: {%s}}", e.Name, e.text()) })
	return b.String()
}

// text is what a test expects of the record.
func (e *EventFate) text() string {
	var fields, copies []string
	if e.Receiver >= 0 {
		fields = append(fields, fmt.Sprintf("receiver: %d", e.Receiver))
	}
	for _, v := range e.Fields {
		text := v.Text
		if v.Quoted {
			text = strconv.Quote(text)
		}
		fields = append(fields, v.Name+": "+text)
	}
	for _, c := range e.Copies {
		copies = append(copies, "{"+c.text()+"}")
	}
	if len(copies) > 0 {
		fields = append(fields, "copies: ["+strings.Join(copies, ", ")+"]")
	}
	return strings.Join(fields, ", ")
}

func list[T any](b *strings.Builder, name string, all []T, text func(T) string) {
	if len(all) == 0 {
		return
	}
	fmt.Fprintf(b, "%s: [\n", name)
	for _, one := range all {
		fmt.Fprintf(b, "%s,\n", text(one))
	}
	b.WriteString("]\n")
}

func valuesText(all []*spec.TestValue) string {
	var out []string
	for _, v := range all {
		out = append(out, v.Name.Value+": "+literalText(v.Value))
	}
	return "{" + strings.Join(out, ", ") + "}"
}

func literalText(l spec.Literal) string {
	switch l.Kind {
	case spec.LitInt:
		return fmt.Sprint(l.Int)
	case spec.LitBool:
		return fmt.Sprint(l.Bool)
	case spec.LitList:
		var all []string
		for _, one := range l.List {
			all = append(all, literalText(one))
		}
		return "[" + strings.Join(all, ", ") + "]"
	}
	return quoted(l.Text)
}

// quoted is a string of CUE, where \( begins an interpolation and Go's \x escapes don't exist.
func quoted(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`, "\t", `\t`, "\r", `\r`).Replace(s) + `"`
}

func frameText(frame []byte) string { return fmt.Sprintf("{hex: %q}", hex.EncodeToString(frame)) }

func tagText(t *sim.Tag) string { return fmt.Sprintf("{proto: %d, tci: %d}", t.Proto, t.TCI) }
