package lsp

import (
	"strings"
	"sync"

	"cuelang.org/go/cue/ast"
	"cuelang.org/go/cue/format"
	"cuelang.org/go/cue/parser"

	"github.com/fastrelay/fastrelay-gen/spec"
)

// language is the schema's syntax.
type language struct{ definitions map[string]*ast.Field }

// schema parses the schema.
var schema = sync.OnceValue(func() *language {
	const name = "fastrelay/schema.cue"
	f, err := parser.ParseFile(name, spec.Source(name), parser.ParseComments)
	if err != nil {
		panic(err)
	}
	l := &language{map[string]*ast.Field{}}
	for _, d := range f.Decls {
		if field, ok := d.(*ast.Field); ok {
			if name, _, err := ast.LabelName(field.Label); err == nil {
				l.definitions[name] = field
			}
		}
	}
	return l
})

// member is a member that a struct of a spec may have.
type member struct {
	name, form, doc string
	required        bool
	value           ast.Expr
}

func (m *member) markdown() string {
	text := code(m.name + ": " + m.form)
	if m.doc != "" {
		text += m.doc + "."
	}
	if m.required {
		text += " Required."
	}
	if about := schema().about(m.value); about != "" {
		text += "\n\n" + about
	}
	return strings.TrimSpace(text)
}

// members are what a struct at a path of a spec may have.
func (l *language) members(path []string) []member {
	at := []ast.Expr{ast.NewIdent("#Spec")}
	for _, p := range path {
		var next []ast.Expr
		for _, x := range at {
			next = append(next, l.step(x, p)...)
		}
		if at = next; len(at) == 0 {
			return nil
		}
	}
	var all []member
	seen := map[string]bool{}
	for _, x := range at {
		for _, s := range l.structs(x) {
			for _, d := range s.Elts {
				f, ok := d.(*ast.Field)
				if !ok {
					continue
				}
				name, isIdent, err := ast.LabelName(f.Label)
				if err != nil || !isIdent && name == "" || seen[name] {
					continue
				}
				seen[name] = true
				all = append(all, member{name, formOf(f.Value), docOf(f), f.Constraint.String() == "!", f.Value})
			}
		}
	}
	return all
}

// step is what a member of a struct, or an element of a list ("[]"), has to be.
func (l *language) step(x ast.Expr, name string) (out []ast.Expr) {
	switch x := x.(type) {
	case *ast.BinaryExpr:
		return append(l.step(x.X, name), l.step(x.Y, name)...)
	case *ast.Ident:
		if d := l.definitions[x.Name]; d != nil {
			return l.step(d.Value, name)
		}
	case *ast.ListLit:
		for _, e := range x.Elts {
			if more, ok := e.(*ast.Ellipsis); ok && name == "[]" && more.Type != nil {
				out = append(out, more.Type)
			}
		}
	case *ast.StructLit:
		for _, d := range x.Elts {
			f, ok := d.(*ast.Field)
			if !ok {
				continue
			}
			if known, _, err := ast.LabelName(f.Label); err == nil && known == name {
				return []ast.Expr{f.Value}
			}
			if _, pattern := f.Label.(*ast.ListLit); pattern && name != "[]" {
				out = append(out, f.Value)
			}
		}
	}
	return out
}

// structs are the alternatives of an expression that are structs.
func (l *language) structs(x ast.Expr) []*ast.StructLit {
	switch x := x.(type) {
	case *ast.BinaryExpr:
		return append(l.structs(x.X), l.structs(x.Y)...)
	case *ast.Ident:
		if d := l.definitions[x.Name]; d != nil {
			return l.structs(d.Value)
		}
	case *ast.StructLit:
		return []*ast.StructLit{x}
	}
	return nil
}

// about is what the schema says of the definition that a member refers to.
func (l *language) about(x ast.Expr) string {
	for {
		switch y := x.(type) {
		case *ast.BinaryExpr:
			x = y.Y
			continue
		case *ast.ListLit:
			if len(y.Elts) == 1 {
				if e, ok := y.Elts[0].(*ast.Ellipsis); ok {
					x = e.Type
					continue
				}
			}
		case *ast.StructLit:
			if len(y.Elts) == 1 {
				if f, ok := y.Elts[0].(*ast.Field); ok {
					if _, pattern := f.Label.(*ast.ListLit); pattern {
						x = f.Value
						continue
					}
				}
			}
		case *ast.Ident:
			if d := l.definitions[y.Name]; d != nil {
				return markdown(d)
			}
		}
		return ""
	}
}

// markdown is the comment of a definition, whose examples are indented.
func markdown(d *ast.Field) string {
	var out []string
	inside := false
	for line := range strings.Lines(comment(d)) {
		line = strings.TrimRight(line, "\n")
		text, example := strings.CutPrefix(line, "\t")
		if example != inside {
			out = append(out, map[bool]string{true: "```cue", false: "```"}[example])
			inside = example
		}
		if strings.HasPrefix(text, "#") && !example {
			continue // its title
		}
		out = append(out, text)
	}
	if inside {
		out = append(out, "```")
	}
	return strings.TrimSpace(strings.Join(out, "\n"))
}

func comment(f *ast.Field) string {
	for _, g := range ast.Comments(f) {
		if g.Doc {
			return g.Text()
		}
	}
	return ""
}

func docOf(f *ast.Field) string { return strings.Join(strings.Fields(comment(f)), " ") }

func formOf(x ast.Expr) string {
	text, err := format.Node(x)
	if err != nil {
		return ""
	}
	return strings.Join(strings.Fields(string(text)), " ")
}
