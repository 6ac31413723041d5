// Package specdoc writes a page about a spec, in Markdown or HTML: headers, settings, tables, sessions, groups, events,
// programs with their reasons, and the API in Go and on the control socket. A page is made of blocks, which know
// nothing of the notation; each notation makes all text its own, so that nothing in a spec becomes markup.
package specdoc

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fastrelay/fastrelay-gen/gen/glue"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
	"github.com/fastrelay/fastrelay-gen/internal/diagram"
	"github.com/fastrelay/fastrelay-gen/internal/planfmt"
	"github.com/fastrelay/fastrelay-gen/runtime/control/api"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// A block is a part of a page.
type block any

type (
	heading struct {
		level int
		text  string
	}
	paragraph string
	// code is text of a language, or a drawing in characters.
	code struct{ language, text string }
	// table has columns and rows of cells.
	table struct {
		columns []string
		rows    [][]cell
	}
	// picture is for notations that can show it.
	picture struct {
		title string
		parts []*diagram.Picture
		text  []block // for the others
	}
)

// cell is text of a table; literal: of the spec, as it is written there.
type cell struct {
	text    string
	literal bool
}

func words(format string, args ...any) cell { return cell{text: fmt.Sprintf(format, args...)} }

func literal(text string) cell { return cell{text, true} }

type page struct {
	spec   *spec.Spec
	plan   *ir.Plan
	blocks []block
}

func (p *page) add(blocks ...block) { p.blocks = append(p.blocks, blocks...) }

// section adds a heading and a table, unless the table is empty.
func (p *page) section(level int, title string, t table) {
	if len(t.rows) > 0 {
		p.add(heading{level, title}, t)
	}
}

// Markdown returns the page in Markdown.
func Markdown(s *spec.Spec, plan *ir.Plan) (string, error) { return render(s, plan, markdown) }

// HTML returns the page in HTML, with pictures. It has no scripts and loads nothing.
func HTML(s *spec.Spec, plan *ir.Plan) (string, error) { return render(s, plan, webPage) }

func render(s *spec.Spec, plan *ir.Plan, notation func(title string, blocks []block) string) (string, error) {
	p := &page{spec: s, plan: plan}
	p.add(heading{1, "Relay " + s.Name.Value}, paragraph(fmt.Sprintf("Described by %s. It needs Linux %d.%d or newer.",
		filepath.Base(s.File), plan.Kernel.Major, plan.Kernel.Minor)))
	p.headers()
	p.settings()
	p.state()
	p.programs()
	if err := p.golang(); err != nil {
		return "", err
	}
	if err := p.control(); err != nil {
		return "", err
	}
	return notation("Relay "+s.Name.Value, p.blocks), nil
}

func (p *page) headers() {
	first := true
	for _, h := range p.spec.Headers {
		if h.Std {
			continue
		}
		if first {
			p.add(heading{2, "Headers"})
			first = false
		}
		p.add(heading{3, h.Name.Value}, picture{"header " + h.Name.Value, []*diagram.Picture{diagram.Layout(h)},
			[]block{code{"", diagram.Header(h)}}})
	}
}

func (p *page) settings() {
	t := table{columns: []string{"setting", "type", "default", "from", "to", ""}}
	for i, s := range p.plan.Settings {
		given := p.spec.Settings[i]
		row := []cell{literal(s.Name), literal(s.Type.Word()), words("must be given"), {}, {}, words("%s", s.Doc)}
		if given.Default != nil {
			row[2] = literal(diagram.Literal(*given.Default))
		}
		if s.Max > 0 {
			row[3], row[4] = words("%d", s.Min), words("%d", s.Max)
		}
		t.rows = append(t.rows, row)
	}
	p.section(2, "Settings", t)
}

// members are those that a person sees, with their types.
func members(s ir.Struct) cell {
	var all []string
	for _, m := range s.Members {
		if !m.Hidden {
			all = append(all, m.Name+" "+typeName(m.Type))
		}
	}
	return literal(strings.Join(all, ", "))
}

func typeName(t ir.Type) string {
	if t.Levels > 0 {
		return fmt.Sprintf("%s[%d]", t.One().Word(), t.Levels)
	}
	return t.Word()
}

func (p *page) state() {
	sessions := table{columns: []string{"session", "fields", "rows in", "at once", "ends"}}
	for _, s := range p.plan.Sessions {
		var fields, rows, ends []string
		for _, f := range s.Fields {
			fields = append(fields, f.Name+" "+typeName(f.Type)+ranges(f.Is))
		}
		for _, r := range s.Rows {
			rows = append(rows, r.Table.Name)
		}
		if s.Lifetime > 0 {
			ends = append(ends, fmt.Sprintf("%s after it was opened or refreshed", time.Duration(s.Lifetime)))
		}
		if s.Idle > 0 {
			ends = append(ends, fmt.Sprintf("%s after the last packet", time.Duration(s.Idle)))
		}
		if len(ends) == 0 {
			ends = []string{"when it is closed"}
		}
		sessions.rows = append(sessions.rows, []cell{literal(s.Name), literal(strings.Join(fields, ", ")),
			literal(strings.Join(rows, ", ")), words("%d", s.Size), words("%s", strings.Join(ends, ", or "))})
	}
	p.section(2, "Sessions", sessions)
	tables := table{columns: []string{"table", "kind", "key", "value", "rows", "written by"}}
	for _, t := range p.plan.Tables {
		by := words("the server, and programs that learn")
		if t.Session != nil {
			by = words("session %s", t.Session.Name)
		}
		tables.rows = append(tables.rows, []cell{literal(t.Name), words("%s", t.Kind), members(t.Key), members(t.Value),
			words("%d", t.Size), by})
	}
	p.section(2, "Tables", tables)
	groups := table{columns: []string{"group", "key", "receiver", "receivers in a group", "in all", "groups"}}
	for _, g := range p.plan.Groups {
		groups.rows = append(groups.rows, []cell{literal(g.Name), members(g.Key), members(g.Receivers.Value),
			words("%d", g.Max), words("%d", g.Rows), words("%d", g.Size)})
	}
	p.section(2, "Groups of receivers", groups)
	events := table{columns: []string{"event", "fields", ""}}
	copies := slices.ContainsFunc(p.plan.Events, func(e *ir.Event) bool { return e.Copies != nil })
	if copies {
		events.columns = append(events.columns, "for each copy")
	}
	for _, e := range p.plan.Events {
		row := []cell{literal(e.Name), members(e.Fields), words("lost where the server doesn't read in time")}
		if e.Required {
			row[2] = words("required: what can't be reported isn't sent")
		}
		if copies {
			row = append(row, words("–"))
		}
		if e.Copies != nil {
			row[3] = members(e.Copies.Entry)
		}
		events.rows = append(events.rows, row)
	}
	p.section(2, "Events", events)
	counters := table{columns: []string{"counter", "declared at"}}
	for _, c := range p.plan.Counters {
		counters.rows = append(counters.rows, []cell{literal(c.Name), place(c.Pos)})
	}
	p.section(2, "Counters", counters)
}

func ranges(all []ir.Range) string {
	var parts []string
	for _, r := range all {
		parts = append(parts, fmt.Sprintf("%d to %d", r.Min, r.Max))
	}
	if len(parts) == 0 {
		return ""
	}
	return " (" + strings.Join(parts, ", ") + ")"
}

// place is where something comes from: a line of the spec, or of a standard header.
func place(pos diag.Pos) cell { return words("%s:%d", filepath.Base(pos.File), pos.Line) }

func (p *page) programs() {
	if len(p.spec.Programs) > 0 {
		p.add(heading{2, "Programs"})
	}
	for i, prog := range p.spec.Programs {
		planned := p.plan.Programs[i]
		d := diagram.Decide(p.spec, prog, planned)
		p.add(heading{3, prog.Name.Value}, paragraph(hooks(planned)+" Packets with these headers:"),
			code{"", strings.Join(planned.Paths, "\n") + "\n"},
			picture{"program " + prog.Name.Value, []*diagram.Picture{d.Picture(false)}, []block{steps(d)}},
			paragraph("Every packet is counted under one of these reasons. The number is the reason's place among "+
				"those of the program, in Go and in the kernel's map."), reasons(planned))
	}
}

// hooks says where a program runs, and what XDP leaves of it.
func hooks(p *ir.Program) string {
	text := "Hook " + p.Hooks() + "."
	if left := planfmt.Left(p); left != "" {
		text += " " + left + "."
	}
	return text
}

// steps is a decision as a table.
func steps(d *diagram.Decision) table {
	t := table{columns: []string{"step", "if", "then", "may end as"}}
	for _, s := range d.Stages {
		var ends []string
		for _, e := range s.Exits {
			ends = append(ends, e.Reason.Name)
		}
		t.rows = append(t.rows, []cell{words("%s", s.Title), literal(strings.Join(s.Conditions, "; ")),
			literal(strings.Join(s.Actions, "; ")), literal(strings.Join(ends, ", "))})
	}
	return t
}

func reasons(p *ir.Program) table {
	t := table{columns: []string{"", "reason", "the packet is", "why", "from"}}
	for i, r := range p.Reasons {
		t.rows = append(t.rows, []cell{words("%d", i), literal(r.Name), words("%s", outcomes[r.Kind]),
			words("%s", r.Doc), place(r.Pos)})
	}
	return t
}

var outcomes = map[ir.ReasonKind]string{
	ir.Sent: "sent", ir.Passed: "passed to the stack", ir.Dropped: "dropped", ir.Punted: "passed, unmodified",
	ir.Fault: "lost", ir.Copied: "copied to a receiver", ir.Declined: "not copied",
}

// golang shows the API of the generated package.
func (p *page) golang() error {
	source, err := glue.Render(p.plan, glue.RenderOptions{})
	if err != nil {
		return err
	}
	text, err := declarations(source)
	if err != nil {
		return err
	}
	p.add(heading{2, "In Go"}, paragraph("fastrelay-gen build writes package "+glue.DefaultPackage(p.plan.Name)+
		". Its constants for reasons are left out here."), code{"go", text})
	return nil
}

// control shows the paths of the control socket.
func (p *page) control() error {
	desc := glue.Desc(p.plan)
	text, err := api.OpenAPI(&desc)
	if err != nil {
		return err
	}
	var doc struct{ Paths api.Object }
	if err := json.Unmarshal(text, &doc); err != nil {
		return err
	}
	t := table{columns: []string{"method", "path", ""}}
	for _, path := range doc.Paths {
		ops, _ := path.Value.(map[string]any)
		for _, method := range []string{"get", "post", "put", "patch", "delete"} {
			if op, ok := ops[method].(map[string]any); ok {
				t.rows = append(t.rows, []cell{words("%s", strings.ToUpper(method)), literal(path.Name),
					words("%v", op["summary"])})
			}
		}
	}
	p.add(heading{2, "On the control socket"}, paragraph("HTTP with JSON on a unix socket. fastrelay-gen api prints "+
		"the whole description in OpenAPI."), t)
	return nil
}
