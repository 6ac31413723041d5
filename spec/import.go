package spec

import (
	"slices"
	"strconv"
	"strings"
	"sync"

	"cuelang.org/go/cue/ast"
	"cuelang.org/go/cue/ast/astutil"
	"cuelang.org/go/cue/parser"
	"cuelang.org/go/cue/token"

	"github.com/fastrelay/fastrelay-gen/internal/spell"
)

// SchemaImport is the path of the schema's package. A spec may import it, so that editors and CUE's own tools know the
// language:
//
//	import "github.com/fastrelay/fastrelay-gen/spec"
//
//	spec.#Spec
//	name: "turn"
//
// The loader compares every spec with the schema that is built in, whether it imports the schema or not, and reads
// nothing else. So it takes the import and what refers to it out of the syntax before anything is evaluated: a value
// that is unified with a definition of the schema is the value alone, with its own positions.
const SchemaImport = "github.com/fastrelay/fastrelay-gen/spec"

// schemaPackage is what the schema's package is called if an import doesn't say otherwise.
const schemaPackage = "spec"

// definitionNames are the names of the schema's definitions.
var definitionNames = sync.OnceValue(func() (names []string) {
	f, err := parser.ParseFile(schemaName, schemaText)
	if err != nil {
		panic(err)
	}
	for _, d := range f.Decls {
		if field, ok := d.(*ast.Field); ok {
			if name, _, err := ast.LabelName(field.Label); err == nil {
				names = append(names, name)
			}
		}
	}
	return names
})

// withoutSchema takes the import of the schema out of a file.
func (l *loader) withoutSchema(f *ast.File) {
	imports := map[string]*ast.ImportSpec{} // by the name that they have in the file
	used := map[string]bool{}
	ours := func(s *ast.ImportSpec) bool {
		path, err := strconv.Unquote(s.Path.Value)
		path, name, qualified := strings.Cut(path, ":")
		return err == nil && path == SchemaImport && (!qualified || name == schemaPackage)
	}
	for s := range f.ImportSpecs() {
		if !ours(s) {
			continue
		}
		name := schemaPackage
		if s.Name != nil {
			name = s.Name.Name
		}
		imports[name] = s
	}
	if len(imports) == 0 {
		return
	}
	l.definitionsOut(f, imports, used)
	for _, d := range f.Decls {
		if decl, ok := d.(*ast.ImportDecl); ok {
			decl.Specs = slices.DeleteFunc(decl.Specs, ours)
		}
	}
	f.Decls = slices.DeleteFunc(f.Decls, func(d ast.Decl) bool {
		decl, ok := d.(*ast.ImportDecl)
		return ok && len(decl.Specs) == 0
	})
	for name, s := range imports {
		if !used[name] {
			l.add(codeEval, l.nodePos(s.Path), "package %q is imported and not used", SchemaImport).
				WithHint("embed its definition at the top of the spec: %s.#Spec", name)
		}
	}
}

// definitionsOut takes out what refers to definitions of the schema.
func (l *loader) definitionsOut(f *ast.File, imports map[string]*ast.ImportSpec, used map[string]bool) {
	reference := func(n ast.Node) bool {
		sel, ok := n.(*ast.SelectorExpr)
		if !ok {
			return false
		}
		id, ok := sel.X.(*ast.Ident)
		if !ok || imports[id.Name] == nil {
			return false
		}
		_, shadowed := id.Node.(*ast.Field)
		return !shadowed
	}
	ast.Walk(f, func(n ast.Node) bool {
		if !reference(n) {
			return true
		}
		sel := n.(*ast.SelectorExpr)
		used[sel.X.(*ast.Ident).Name] = true
		if name, _, err := ast.LabelName(sel.Sel); err == nil && !slices.Contains(definitionNames(), name) {
			d := l.add(codeImport, l.nodePos(sel.Sel), "the schema has no %q", name)
			if near := spell.Nearest(name, definitionNames()); near != "" {
				d.WithLabel("did you mean %q?", near)
			}
		}
		return true
	}, nil)
	astutil.Apply(f, nil, func(c astutil.Cursor) bool {
		n := c.Node()
		if embed, ok := n.(*ast.EmbedDecl); ok {
			if reference(embed.Expr) {
				c.Delete()
			}
		} else if rest := withoutTop(n); rest != nil {
			c.Replace(rest)
		} else if reference(n) {
			if _, embedded := c.Parent().Node().(*ast.EmbedDecl); !embedded {
				top := ast.NewIdent("_")
				ast.SetPos(top, n.Pos())
				c.Replace(top)
			}
		}
		return true
	})
}

// withoutTop returns what remains of an expression in which a reference became "_": the other side of a conjunction, or
// "_" if a member of it is taken. It returns nil if there is none.
func withoutTop(n ast.Node) ast.Expr {
	switch n := n.(type) {
	case *ast.BinaryExpr:
		if n.Op == token.AND && isTop(n.X) {
			return n.Y
		}
		if n.Op == token.AND && isTop(n.Y) {
			return n.X
		}
	case *ast.IndexExpr:
		if isTop(n.X) {
			return n.X
		}
	case *ast.SelectorExpr:
		if isTop(n.X) {
			return n.X
		}
	}
	return nil
}

func isTop(x ast.Expr) bool {
	id, ok := x.(*ast.Ident)
	return ok && id.Name == "_"
}
