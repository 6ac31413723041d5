package lsp

import (
	"slices"
	"strings"

	"cuelang.org/go/cue/ast"
	"cuelang.org/go/cue/parser"

	"github.com/fastrelay/fastrelay-gen/spec"
)

// names are what expressions of a spec can refer to: what it declares, and the standard headers.
type names struct{ byName map[string]*name }

// name is a name, and the names inside of it: a header's fields, a table's members.
type name struct {
	what   string // "header", "table", …
	text   string // how it is declared
	doc    string
	node   ast.Node // in the document; nil: it comes with the language
	inside map[string]*name
	order  []string
}

func (n *name) add(key string, in *name) {
	if n.inside == nil {
		n.inside = map[string]*name{}
	}
	if n.inside[key] == nil {
		n.inside[key] = in
		n.order = append(n.order, key)
	}
}

// newNames returns the standard headers.
func newNames() *names {
	all := &names{map[string]*name{}}
	for _, file := range []string{"link", "ip", "transport", "icmp", "socket"} {
		at := "fastrelay/std/" + file + ".cue"
		if f, err := parser.ParseFile(at, spec.Source(at), parser.ParseComments); err == nil {
			all.collect(f)
		}
	}
	for _, n := range all.byName {
		n.standard()
	}
	return all
}

func (n *name) standard() {
	n.node = nil
	for _, in := range n.inside {
		in.standard()
	}
}

// collect adds what a file declares.
func (all *names) collect(f *ast.File) {
	for _, field := range topFields(f) {
		section, _, err := ast.LabelName(field.Label)
		if err != nil {
			continue
		}
		for _, one := range fieldsOf(field.Value) {
			key, _, err := ast.LabelName(one.Label)
			if err != nil {
				continue
			}
			n := &name{text: formOf(one.Value), node: one.Label, doc: docOf(one)}
			switch section {
			case "headers":
				n.what = "header"
				n.header(one.Value)
			case "alternatives":
				n.what = "names for"
			case "tables", "groups", "events", "sessions":
				n.what = strings.TrimSuffix(section, "s")
				n.members(one.Value)
			case "settings":
				setting := all.byName["setting"]
				if setting == nil {
					setting = &name{what: "settings"}
					all.byName["setting"] = setting
				}
				n.what = "setting"
				setting.add(key, n)
				continue
			case "programs":
				n.what = "program"
				all.lookups(one.Value)
			default:
				continue
			}
			if known := all.byName[key]; known == nil || known.node == nil || known.what == "row" {
				all.byName[key] = n
			}
		}
	}
}

// topFields are the members of a spec, which may be in a struct that is unified with the schema.
func topFields(f *ast.File) (out []*ast.Field) {
	var add func(n ast.Node)
	add = func(n ast.Node) {
		switch n := n.(type) {
		case *ast.Field:
			out = append(out, n)
		case *ast.EmbedDecl:
			add(n.Expr)
		case *ast.BinaryExpr:
			add(n.X)
			add(n.Y)
		case *ast.StructLit:
			for _, d := range n.Elts {
				add(d)
			}
		}
	}
	for _, d := range f.Decls {
		add(d)
	}
	return out
}

// header adds a header's fields and the names for groups of them.
func (n *name) header(x ast.Expr) {
	for _, f := range fieldsOf(x) {
		switch label, _, _ := ast.LabelName(f.Label); label {
		case "fields":
			list, ok := f.Value.(*ast.ListLit)
			if !ok {
				continue
			}
			for _, e := range list.Elts {
				for _, m := range fieldsOf(e) {
					if label, _, _ := ast.LabelName(m.Label); label != "name" {
						continue
					}
					if lit, ok := m.Value.(*ast.BasicLit); ok {
						n.add(strings.Trim(lit.Value, `"`), &name{what: "field", text: formOf(e), node: lit})
					}
				}
			}
		case "parts":
			for _, m := range fieldsOf(f.Value) {
				if key, _, err := ast.LabelName(m.Label); err == nil {
					n.add(key, &name{what: "name", text: formOf(m.Value), node: m.Label})
				}
			}
		}
	}
}

// members adds the members of a table, a session, a group or an event.
func (n *name) members(x ast.Expr) {
	for _, f := range fieldsOf(x) {
		switch label, _, _ := ast.LabelName(f.Label); label {
		case "key", "value", "fields", "receiver":
			for _, m := range fieldsOf(f.Value) {
				if key, _, err := ast.LabelName(m.Label); err == nil {
					n.add(key, &name{what: "member", text: formOf(m.Value), node: m.Label, doc: docOf(m)})
				}
			}
		}
	}
}

// lookups adds the rows that a program looks up, at its top and in its rules.
func (all *names) lookups(x ast.Expr) {
	ast.Walk(x, func(n ast.Node) bool {
		f, ok := n.(*ast.Field)
		if !ok {
			return true
		}
		if label, _, _ := ast.LabelName(f.Label); label != "lookup" {
			return true
		}
		for _, row := range fieldsOf(f.Value) {
			key, _, err := ast.LabelName(row.Label)
			key = strings.TrimSuffix(key, "?")
			if err != nil || all.byName[key] != nil {
				continue
			}
			r := &name{what: "row", text: formOf(row.Value), node: row.Label}
			for _, table := range fieldsOf(row.Value) {
				if t, _, err := ast.LabelName(table.Label); err == nil {
					r.doc = "a row of table " + t
					all.rowOf(r, t)
				}
			}
			all.byName[key] = r
		}
		return true
	}, nil)
}

// rowOf gives a row the members of its table, which may be the table of a session.
func (all *names) rowOf(r *name, table string) {
	if t := all.byName[table]; t != nil && t.what == "table" {
		for _, key := range t.order {
			r.add(key, t.inside[key])
		}
		return
	}
	for _, n := range all.byName {
		if n.what == "session" && strings.Contains(n.text, table+":") {
			for _, key := range n.order {
				r.add(key, n.inside[key])
			}
		}
	}
}

// fieldsOf are the members of a struct, also if it is one member written without braces.
func fieldsOf(x ast.Node) (out []*ast.Field) {
	s, ok := x.(*ast.StructLit)
	if !ok {
		return nil
	}
	for _, d := range s.Elts {
		if f, ok := d.(*ast.Field); ok {
			out = append(out, f)
		}
	}
	return out
}

// find returns what a dotted name stands for.
func (all *names) find(parts []string) *name {
	n := all.byName[parts[0]]
	for _, p := range parts[1:] {
		if n == nil {
			return nil
		}
		n = n.inside[p]
	}
	return n
}

// describe is what is known of a name, as Markdown.
func (all *names) describe(parts []string) string {
	n := all.find(parts)
	if n == nil {
		return ""
	}
	text := sentence("%s **%s**", n.what, strings.Join(parts, "."))
	if n.doc != "" {
		text += "\n" + n.doc + "\n"
	}
	if len(n.text) > 0 && len(n.text) < 400 {
		text += "\n" + code(n.text)
	}
	if n.what == "header" {
		for _, key := range n.order {
			text += sentence("- `%s` %s", key, n.inside[key].text)
		}
	}
	return strings.TrimSpace(text)
}

// inside lists the names inside of a name.
func (all *names) inside(parts []string) (out []completion) {
	n := all.find(parts)
	if n == nil {
		return nil
	}
	for _, key := range n.order {
		in := n.inside[key]
		out = append(out, completion{Label: key, Kind: kindField, Detail: in.what + " " + in.text})
	}
	if n.what == "header" {
		out = append(out, completion{Label: "payload", Kind: kindField, Detail: "what follows the header"})
	}
	return out
}

// all lists the names that an expression can begin with.
func (all *names) all() (out []completion) {
	for key, n := range all.byName {
		out = append(out, completion{Label: key, Kind: kindModule, Detail: n.what})
	}
	slices.SortFunc(out, func(a, b completion) int { return strings.Compare(a.Label, b.Label) })
	return out
}
