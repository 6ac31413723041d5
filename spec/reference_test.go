package spec

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"cuelang.org/go/cue/ast"
	"cuelang.org/go/cue/parser"
)

// Every definition and every member of the schema is described.
func TestSchemaIsDescribed(t *testing.T) {
	f, err := parser.ParseFile(schemaName, schemaText, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	described := func(n ast.Node) bool {
		return slices.ContainsFunc(ast.Comments(n), func(g *ast.CommentGroup) bool { return g.Doc })
	}
	definitions := 0
	for _, d := range f.Decls {
		field, ok := d.(*ast.Field)
		if !ok {
			continue // the package
		}
		definitions++
		if !described(field) {
			t.Errorf("line %d: a definition without a comment", field.Pos().Line())
		}
		ast.Walk(field.Value, func(n ast.Node) bool {
			x, ok := n.(*ast.Field)
			if !ok {
				return true
			}
			if _, isPattern := x.Label.(*ast.ListLit); !isPattern && !described(x) {
				t.Errorf("line %d: a member without a comment", x.Pos().Line())
			}
			return true
		}, nil)
	}
	if definitions < 15 {
		t.Errorf("only %d definitions", definitions)
	}
}

var codeBlocks = regexp.MustCompile("(?s)```cue\n(.*?)```\n")

// The examples are CUE, and the whole ones are specs.
func TestReferenceExamples(t *testing.T) {
	text := Reference()
	blocks := codeBlocks.FindAllStringSubmatch(text, -1)
	if len(blocks) < 15 {
		t.Fatalf("%d examples", len(blocks))
	}
	specs := 0
	for _, b := range blocks {
		if _, err := parser.ParseFile("example.cue", b[1]); err != nil {
			t.Errorf("%v in\n%s", err, b[1])
		}
		if strings.HasPrefix(b[1], "name: ") {
			specs++
			if _, list := Load("example.cue", []byte(b[1])); list.Len() > 0 {
				t.Errorf("%v in\n%s", list.Err(), b[1])
			}
		}
	}
	if specs == 0 {
		t.Error("no example is a whole spec")
	}
	for _, h := range standard().Headers {
		if !strings.Contains(text, "\n### "+h.Name.Value+"\n") {
			t.Errorf("header %s is not in the reference", h.Name.Value)
		}
	}
}
