// Package planfmt writes a plan as text: for `dump`, for `explain`, for the golden files, and for a person who wants to
// know what the compiler made of a spec. The text is deterministic, holds everything that a back end reads, and ends
// each statement with the place in the spec that it comes from.
package planfmt

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
)

// Text returns the whole plan.
func Text(p *ir.Plan) string {
	w := &writer{file: p.Pos.File}
	w.plan(p)
	return w.String()
}

// Program returns the part of the plan that belongs to one program.
func Program(p *ir.Plan, prog *ir.Program) string {
	w := &writer{file: p.Pos.File}
	w.program(prog)
	return w.String()
}

// Block returns the text of a list of statements of prog; file is the spec's, whose name is left out of positions.
func Block(file string, prog *ir.Program, body []ir.Stmt) string {
	w := &writer{file: file}
	w.block(prog, body)
	return w.String()
}

type writer struct {
	strings.Builder
	file   string
	indent int
	each   bool // inside of a fan-out's Each
}

// line writes one line. A position is at its end, after a semicolon.
func (w *writer) line(pos diag.Pos, format string, args ...any) {
	w.WriteString(strings.Repeat("  ", w.indent))
	fmt.Fprintf(w, format, args...)
	if pos.IsValid() {
		if pos.File == w.file {
			fmt.Fprintf(w, "  ; %d:%d", pos.Line, pos.Column)
		} else {
			fmt.Fprintf(w, "  ; %s:%d", filepath.Base(pos.File), pos.Line)
		}
	}
	w.WriteByte('\n')
}

func (w *writer) nested(f func()) {
	w.indent++
	f()
	w.indent--
}

var none diag.Pos

func (w *writer) plan(p *ir.Plan) {
	w.line(none, "plan %s", p.Name)
	w.line(none, "kernel %d.%d", p.Kernel.Major, p.Kernel.Minor)
	w.nested(func() {
		for _, n := range p.Needs {
			w.line(n.Pos, "%d.%d %s", n.Version.Major, n.Version.Minor, n.What)
		}
	})
	if p.Slots > 0 {
		w.line(none, "slots %d, usages %d", p.Slots, p.Usages)
	}
	for _, n := range []struct {
		n    int
		what string
	}{
		{p.Shared, "shared counters"}, {p.Levels, "levels of priority"}, {p.Credits, "credits"},
		{p.Receivers, "receivers"}, {p.Translations, "translations"}, {p.Ring, "bytes of ring"},
	} {
		if n.n > 0 {
			w.line(none, "%s %d", n.what, n.n)
		}
	}
	for _, s := range p.Settings {
		w.setting(s)
	}
	for _, c := range p.Counters {
		w.line(c.Pos, "counter %d %s", c.Index, c.Name)
	}
	for _, s := range p.Sessions {
		w.session(s)
	}
	for _, t := range p.Tables {
		w.table(t)
	}
	for _, g := range p.Groups {
		w.group(g)
	}
	for _, e := range p.Events {
		w.event(e)
	}
	for _, prog := range p.Programs {
		w.WriteByte('\n')
		w.program(prog)
		if prog.XDP != nil {
			w.WriteByte('\n')
			w.program(prog.XDP)
		}
	}
}

func (w *writer) setting(s *ir.Setting) {
	text := fmt.Sprintf("setting %s %s", s.Name, typeName(s.Type))
	if s.Type.Kind == ir.Uint {
		text += fmt.Sprintf(" in %d..%d", s.Min, s.Max)
	}
	if s.Default == nil {
		text += ", required"
	} else {
		text += fmt.Sprintf(", default %x", s.Default)
	}
	w.line(s.Pos, "%s", text)
}

func (w *writer) session(s *ir.Session) {
	w.WriteByte('\n')
	text := fmt.Sprintf("session %s, %d at once", s.Name, s.Size)
	if s.Lifetime > 0 {
		text += fmt.Sprintf(", lifetime %d ms", s.Lifetime/1e6)
	}
	if s.Idle > 0 {
		text += fmt.Sprintf(", idle %d ms", s.Idle/1e6)
	}
	w.line(s.Pos, "%s", text)
	w.nested(func() {
		for _, f := range s.Fields {
			text := f.Name + " " + typeName(f.Type)
			for i, r := range f.Is {
				if i == 0 {
					text += " in"
				}
				text += fmt.Sprintf(" %#x..%#x", r.Min, r.Max)
			}
			w.line(none, "%s", text)
		}
		for _, r := range s.Rows {
			names := func(idx []int) string {
				var out []string
				for _, i := range idx {
					out = append(out, s.Fields[i].Name)
				}
				return strings.Join(out, " ")
			}
			w.line(none, "row %s: (%s) -> (%s)", r.Table.Name, names(r.Key), names(r.Value))
		}
	})
}

func (w *writer) table(t *ir.Table) {
	w.WriteByte('\n')
	text := fmt.Sprintf("table %s %s", t.Name, t.Kind)
	if t.PerCPU {
		text += " per_cpu"
	}
	text += fmt.Sprintf(", %d rows", t.Size)
	if t.Session != nil {
		text += fmt.Sprintf(", row %d of session %s", t.Row, t.Session.Name)
		if t.Rows > 1 {
			text += fmt.Sprintf(", %d rows of each", t.Rows)
		}
	}
	w.line(t.Pos, "%s", text)
	w.nested(func() {
		w.layout("key", t.Key)
		w.layout("value", t.Value)
	})
}

func (w *writer) group(g *ir.Group) {
	w.WriteByte('\n')
	w.line(g.Pos, "group %s, %d receivers in each, %d in all from %d on, %d groups, %d rows", g.Name, g.Max, g.Rows,
		g.Base, g.Size, g.Receivers.Size)
	w.nested(func() {
		w.layout("key", g.Key)
		w.layout("receiver", g.Receivers.Value)
	})
}

func (w *writer) event(e *ir.Event) {
	w.WriteByte('\n')
	text := fmt.Sprintf("event %d %s", e.ID, e.Name)
	if e.Required {
		text += ", required"
	}
	w.line(e.Pos, "%s", text)
	w.nested(func() {
		w.layout("record", e.Fields)
		if e.Copies != nil {
			w.layout(fmt.Sprintf("from byte %d on for each of %d copies", e.Copies.Off, e.Copies.Max), e.Copies.Entry)
		}
	})
}

func (w *writer) layout(what string, s ir.Struct) {
	w.line(none, "%s, %d bytes", what, s.Size)
	w.nested(func() {
		for _, m := range s.Members {
			text := fmt.Sprintf("%3d %s %s", m.Off, m.Name, typeName(m.Type))
			if m.Hidden {
				text += ", hidden"
			}
			if m.To != nil {
				text += ", to " + m.To.Name
			}
			if m.From != nil {
				text += ", from " + m.From.Name
			}
			if m.Proto != 0 {
				text += fmt.Sprintf(", protocol %d", m.Proto)
			}
			w.line(none, "%s", text)
		}
	})
}

func (w *writer) program(p *ir.Program) {
	w.line(p.Pos, "program %s %s", p.Name, p.Hook)
	w.nested(func() {
		if p.L2 {
			w.line(none, "link layer: yes")
		} else {
			w.line(none, "link layer: no")
		}
		for _, path := range p.Paths {
			w.line(none, "path %s", path)
		}
		switch {
		case p.ToTC:
			w.line(none, "to the stack: through the program at tc/ingress")
		case p.Hook != ir.XDP:
			w.line(none, "pull %d", p.Pull)
		}
		for _, l := range p.Left {
			w.line(l.Pos, "left by xdp: %s", l.What)
		}
		w.line(none, "reasons")
		w.nested(func() {
			for i, r := range p.Reasons {
				what := ""
				if kind := ReasonKind(r.Kind); kind != r.Name {
					what = " (" + kind + ")"
				}
				w.line(r.Pos, "%d %s%s: %s", i, r.Name, what, r.Doc)
			}
		})
		for _, v := range p.Vars {
			if v.Max > 0 {
				w.line(none, "var %s %s, at most %d", v.Name, typeName(v.Type), v.Max)
			} else {
				w.line(none, "var %s %s", v.Name, typeName(v.Type))
			}
		}
		for _, r := range p.Rows {
			if r.Optional {
				w.line(none, "row %s of %s, optional", r.Name, r.Table.Name)
			} else {
				w.line(none, "row %s of %s", r.Name, r.Table.Name)
			}
		}
		w.line(none, "body")
		w.nested(func() { w.block(p, p.Body) })
	})
}

// ReasonKind is what happens to packets that are counted under reasons of a kind, in words for people.
func ReasonKind(k ir.ReasonKind) string { return reasonKinds[k] }

var reasonKinds = map[ir.ReasonKind]string{
	ir.Sent: "sent", ir.Passed: "pass", ir.Dropped: "drop", ir.Punted: toTheStack, ir.Fault: "fault", ir.Copied: "copy",
	ir.Declined: "declined",
}

// toTheStack is what happens to a packet that isn't for the relay. Counters, tests and verdicts in JSON call it "up".
const toTheStack = "to the stack"

// Verdict is a verdict of the model, or the kind of a counter, in words for people.
func Verdict(v string) string {
	if v == "up" {
		return toTheStack
	}
	return v
}

// reason names a reason of p; -1 is "-".
func reason(p *ir.Program, i int) string {
	if i < 0 || i >= len(p.Reasons) {
		return "-"
	}
	return p.Reasons[i].Name
}

// stop says what the reason of a check that fails does: the packet passes to the stack or is dropped, or in a fan-out
// the receiver gets no copy.
func stop(p *ir.Program, i int) string {
	if i >= 0 && i < len(p.Reasons) {
		switch p.Reasons[i].Kind {
		case ir.Declined:
			return "decline " + p.Reasons[i].Name
		case ir.Dropped:
			return "drop " + p.Reasons[i].Name
		}
	}
	return toStack(p, i)
}

func toStack(p *ir.Program, i int) string { return toTheStack + " (" + reason(p, i) + ")" }

func typeName(t ir.Type) string {
	if t.Levels > 0 {
		return fmt.Sprintf("%s[%d]", t.One().Word(), t.Levels)
	}
	return t.Word()
}
