package specdoc

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/printer"
	"go/token"
)

// declarations are the exported declarations of a Go file, with their comments and without constants and bodies.
func declarations(source []byte) (string, error) {
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, "relay.go", source, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return "", err
	}
	ast.FileExports(f)
	config := printer.Config{Mode: printer.UseSpaces | printer.TabIndent, Tabwidth: 8}
	var b bytes.Buffer
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			d.Body = nil
		case *ast.GenDecl:
			if d.Tok != token.TYPE {
				continue
			}
		}
		if b.Len() > 0 {
			b.WriteString("\n")
		}
		// With the file's comments, those of members stay where they are.
		if err := config.Fprint(&b, fset, &printer.CommentedNode{Node: d, Comments: f.Comments}); err != nil {
			return "", err
		}
		b.WriteString("\n")
	}
	return b.String(), nil
}
