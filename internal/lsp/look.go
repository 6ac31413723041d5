package lsp

import (
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"cuelang.org/go/cue/ast"
	"cuelang.org/go/cue/parser"
	"cuelang.org/go/cue/token"
)

// Looking things up: what is under the cursor, from the syntax alone, so that it works in a document with mistakes.

// look answers a request about a place in a document.
func (s *Server) look(d *document, method string, offset int) any {
	c := find(d, offset)
	switch method {
	case "textDocument/hover":
		if text, from, to := c.hover(); text != "" {
			return hover{markup{"markdown", text}, &span{d.at(from, s.utf8), d.at(to, s.utf8)}}
		}
	case "textDocument/definition":
		if n := c.declaration(); n != nil {
			return location{d.uri, span{d.at(n.Pos().Offset(), s.utf8), d.at(n.End().Offset(), s.utf8)}}
		}
	case "textDocument/completion":
		if all := c.complete(); all != nil {
			return all
		}
		return []completion{}
	}
	return nil
}

// cursor is a place in a document.
type cursor struct {
	d      *document
	offset int
	names  *names
	path   []string   // of the struct or list around it: labels, and "[]" in a list
	label  *ast.Field // the member whose name it is in
	text   *ast.BasicLit
}

// find finds what is at a place. A document with mistakes in its syntax has as much as the parser made of it.
func find(d *document, offset int) *cursor {
	c := &cursor{d: d, offset: offset, names: newNames()}
	f, _ := parser.ParseFile(uriFile(d.uri), d.text, parser.ParseComments) // what there is of it
	if f == nil {
		return c
	}
	c.names.collect(f)
	in := func(n ast.Node) bool {
		return n != nil && n.Pos().IsValid() && n.Pos().Offset() <= offset && offset <= n.End().Offset()
	}
	var walk func(n ast.Node, path []string)
	walk = func(n ast.Node, path []string) {
		if !in(n) {
			return
		}
		switch n := n.(type) {
		case *ast.File:
			c.path = path
			for _, d := range n.Decls {
				walk(d, path)
			}
		case *ast.EmbedDecl:
			walk(n.Expr, path)
		case *ast.LetClause:
			walk(n.Expr, []string{"?"}) // what it is used for isn't known
		case *ast.Field:
			name, _, err := ast.LabelName(n.Label)
			if err != nil {
				name = "?"
			}
			if in(n.Label) {
				c.path, c.label = path, n
				return
			}
			walk(n.Value, append(slices.Clone(path), name))
		case *ast.StructLit:
			c.path = path
			for _, d := range n.Elts {
				walk(d, path)
			}
		case *ast.ListLit:
			path = append(slices.Clone(path), "[]")
			c.path = path
			for _, e := range n.Elts {
				walk(e, path)
			}
		case *ast.BinaryExpr:
			walk(n.X, path)
			walk(n.Y, path)
		case *ast.ParenExpr:
			walk(n.X, path)
		case *ast.BasicLit:
			if n.Kind == token.STRING {
				c.path, c.text = path, n
			}
		}
	}
	walk(f, nil)
	return c
}

func uriFile(uri string) string {
	if u, err := url.Parse(uri); err == nil && u.Path != "" {
		return u.Path
	}
	return uri
}

var dotted = regexp.MustCompile(`[a-z_][a-z0-9_]*(\.[a-z0-9_]+)*\.?`)

// word is the dotted name at the cursor in a string, up to the end of the part in which the cursor is.
func (c *cursor) word() (parts []string, from, to int) {
	if c.text == nil {
		return nil, 0, 0
	}
	begin := c.text.Pos().Offset()
	for _, at := range dotted.FindAllStringIndex(c.text.Value, -1) {
		from, to := begin+at[0], begin+at[1]
		if c.offset < from || c.offset > to {
			continue
		}
		word := c.d.text[from:min(to, len(c.d.text))]
		if rest := strings.IndexByte(word[c.offset-from:], '.'); rest >= 0 {
			word = word[:c.offset-from+rest]
		}
		return strings.Split(word, "."), from, from + len(word)
	}
	return nil, 0, 0
}

// hover is what is known of the thing under the cursor, as Markdown.
func (c *cursor) hover() (text string, from, to int) {
	if c.label != nil {
		name, _, err := ast.LabelName(c.label.Label)
		if err != nil {
			return "", 0, 0
		}
		from, to = c.label.Label.Pos().Offset(), c.label.Label.End().Offset()
		for _, m := range schema().members(c.path) {
			if m.name == name {
				return m.markdown(), from, to
			}
		}
		return c.names.describe([]string{name}), from, to
	}
	parts, from, to := c.word()
	if parts == nil {
		return "", 0, 0
	}
	return c.names.describe(parts), from, to
}

// declaration is where the name at the cursor is declared in the document.
func (c *cursor) declaration() ast.Node {
	parts, _, _ := c.word()
	if parts == nil {
		return nil
	}
	if n := c.names.find(parts); n != nil {
		return n.node
	}
	return nil
}

// complete lists what can be written at the cursor.
func (c *cursor) complete() (all []completion) {
	if c.text != nil {
		parts, _, _ := c.word()
		if len(parts) > 1 {
			return c.names.inside(parts[:len(parts)-1])
		}
		return c.names.all()
	}
	for _, m := range schema().members(c.path) {
		if m.name == "" {
			continue
		}
		all = append(all, completion{Label: m.name, Kind: kindProperty, Detail: m.form,
			Documentation: &markup{"markdown", m.markdown()}, InsertText: m.name + ": "})
	}
	return all
}

func code(text string) string { return "```cue\n" + text + "\n```\n" }

func sentence(format string, args ...any) string { return fmt.Sprintf(format, args...) + "\n" }
