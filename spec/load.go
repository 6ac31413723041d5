package spec

import (
	"embed"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"

	"cuelang.org/go/cue"
	"cuelang.org/go/cue/ast"
	"cuelang.org/go/cue/cuecontext"
	"cuelang.org/go/cue/errors"
	"cuelang.org/go/cue/parser"
	"cuelang.org/go/cue/token"

	"github.com/fastrelay/fastrelay-gen/internal/diag"
)

// Loading has these steps; each goes on after its mistakes as far as that makes sense:
//
//	parse      the file as CUE; imports and attributes that would read other files are refused, and the import of the
//	           schema, which is for editors, is taken out (import.go)
//	evaluate   the user's value, alone (cueerror.go makes CUE's errors readable)
//	shape      against the schema (shape.go)
//	decode     into the typed spec: names, forms, expressions, constraints (decode.go, program.go, testcase.go)
//	unify      with the schema, to be sure that CUE finds the same

//go:embed schema.cue
var schemaText string

//go:embed std/*.cue
var stdFiles embed.FS

const (
	schemaName = "fastrelay/schema.cue"
	stdPrefix  = "fastrelay/"

	maxFile = 1 << 20 // bytes
)

// stdNames are the standard headers' files, from the link upwards.
var stdNames = []string{"link", "ip", "transport", "icmp", "socket"}

// packages are those of CUE's standard library that only compute.
var packages = []string{"encoding/hex", "list", "math", "math/bits", "strconv", "strings"}

// Load makes a typed spec of a file's text; file is its name in messages. If the list isn't empty, the spec is nil.
func Load(file string, src []byte) (*Spec, *diag.List) {
	l := &loader{file: file, diags: &diag.List{}, standard: standard}
	s := l.load(src)
	if l.diags.Len() > 0 {
		return nil, l.diags
	}
	s.withStandard()
	return s, l.diags
}

// withStandard adds the standard headers after the user's.
func (s *Spec) withStandard() {
	std := standard()
	s.Headers = append(s.Headers, std.Headers...)
	s.Alternatives = append(s.Alternatives, std.Alternatives...)
}

// LoadFile reads and loads a file.
func LoadFile(name string) (*Spec, *diag.List) {
	src, err := os.ReadFile(name)
	if err != nil {
		diags := &diag.List{}
		diags.Add(codeFile, diag.Pos{File: name}, "%s", err)
		return nil, diags
	}
	return Load(name, src)
}

// Schema returns the schema's text.
func Schema() []byte { return []byte(schemaText) }

// Source returns the text of a file that comes with the language (a position of a standard header names it), or nil.
func Source(file string) []byte {
	if file == schemaName {
		return []byte(schemaText)
	}
	name, ok := strings.CutPrefix(file, stdPrefix)
	if !ok {
		return nil
	}
	text, err := stdFiles.ReadFile(name)
	if err != nil {
		return nil
	}
	return text
}

// standard are the standard headers and groups. They are shared by all specs, and no one changes them.
var standard = sync.OnceValue(func() *Spec {
	all := &Spec{}
	for _, name := range stdNames {
		name := "std/" + name + ".cue"
		text, err := stdFiles.ReadFile(name)
		if err != nil {
			panic(err)
		}
		l := &loader{file: stdPrefix + name, diags: &diag.List{}, std: true}
		s := l.load(text)
		if err := l.diags.Err(); err != nil {
			panic("standard headers: " + err.Error())
		}
		all.Headers = append(all.Headers, s.Headers...)
		all.Alternatives = append(all.Alternatives, s.Alternatives...)
	}
	return all
})

type loader struct {
	file   string
	std    bool
	diags  *diag.List
	known  []string  // names that a reference can mean
	root   cue.Value // the user's
	syntax *ast.File
	src    []byte

	standard func() *Spec // nil if the standard headers themselves are loaded

	// One mistake often makes several checks fail. These say what has been reported, so that the rest is left out.
	broken map[int]bool      // lines where CUE found a mistake
	places map[diag.Pos]bool // where there is a message already
	sick   map[diag.Pos]bool // structs with a member of the wrong shape, or without one they need
}

// add reports a mistake, unless there is a message at its place already.
func (l *loader) add(code diag.Code, pos diag.Pos, format string, args ...any) *diag.Diagnostic {
	place := diag.Pos{File: pos.File, Line: pos.Line, Column: pos.Column}
	if l.broken[pos.Line] || l.places[place] {
		return newDiag(code, pos, format, args...)
	}
	if l.places == nil {
		l.places = map[diag.Pos]bool{}
	}
	l.places[place] = true
	return l.diags.Add(code, pos, format, args...)
}

// whole reports whether the members of a struct have their shapes, so that it makes sense to compare them with each
// other.
func (l *loader) whole(v cue.Value) bool {
	return v.IncompleteKind() == cue.StructKind && !l.sick[l.pos(v)]
}

func (l *loader) notWhole(v cue.Value) {
	if l.sick == nil {
		l.sick = map[diag.Pos]bool{}
	}
	l.sick[l.pos(v)] = true
}

// load returns nil if it reports anything.
func (l *loader) load(src []byte) (s *Spec) {
	if len(src) > maxFile {
		l.add(codeLimit, diag.Pos{File: l.file, Line: 1, Column: 1}, "the spec has %d bytes; %d are the most", len(src),
			maxFile)
		return nil
	}
	// CUE's evaluator is large, and the text is untrusted: should it panic, that is a message like any other.
	defer func() {
		if r := recover(); r != nil {
			l.add(codeEval, diag.Pos{File: l.file, Line: 1, Column: 1}, "CUE gave up on this spec: %v", r)
			s = nil
		}
	}()
	f, err := parser.ParseFile(l.file, src, parser.ParseComments)
	if err != nil {
		l.syntaxError(f, err, src)
		return nil
	}
	if l.withoutSchema(f); !l.allowed(f) {
		return nil
	}
	l.syntax, l.known, l.src = f, declared(f), src
	ctx := cuecontext.New()
	l.evaluate(ctx, f)
	if !l.languageKnown() {
		return nil
	}
	schema := ctx.CompileString(schemaText, cue.Filename(schemaName)).LookupPath(cue.ParsePath("#Spec"))
	if err := schema.Err(); err != nil {
		panic(err)
	}
	if l.root.IncompleteKind() == cue.StructKind || l.diags.Len() > 0 {
		l.structShape(l.root, schema)
	} else {
		l.add(codeShape, diag.Pos{File: l.file, Line: 1, Column: 1}, "a spec is a struct with the member \"name\"")
	}
	s = l.spec(l.root)
	if l.diags.Len() > 0 {
		return nil
	}
	for _, e := range errors.Errors(schema.Unify(l.root).Validate()) {
		l.add(codeShape, l.pathPos(e.Path()), "%s is not what the language has here", last(e.Path()))
	}
	if l.diags.Len() > 0 {
		return nil
	}
	return s
}

// Language is the version of the language that this package knows. It changes if an existing spec would mean
// something else.
const Language = 1

// languageKnown reports a spec in another version of the language, and nothing else: the rest isn't for this loader to
// judge.
func (l *loader) languageKnown() bool {
	v := get(l.root, "language")
	n, err := v.Int64()
	if err != nil || n == Language {
		return true // if it is no number, the schema says so
	}
	*l.diags = diag.List{}
	l.diags.Add(codeLanguage, l.pos(v), "version %d of the language is not known", n).
		WithHint("this tool knows version %d; fastrelay-gen version says which tool this is", Language)
	return false
}

// evaluate computes the user's value, and reports what CUE finds wrong with it. A reference that leads nowhere makes
// CUE give up on the whole file; so such references are replaced, and it is computed again, to find the other mistakes,
// too.
func (l *loader) evaluate(ctx *cue.Context, f *ast.File) {
	l.root = ctx.BuildFile(f)
	err := l.root.Validate()
	if err == nil {
		return
	}
	l.cueErrors(err)
	lost := map[token.Pos]bool{}
	for _, e := range errors.Errors(err) {
		if format, _ := e.Msg(); strings.HasPrefix(format, "reference %q not found") {
			lost[e.Position()] = true
		}
	}
	if len(lost) > 0 {
		ast.Walk(f, func(n ast.Node) bool {
			if id, ok := n.(*ast.Ident); ok && lost[id.Pos()] {
				id.Name = "_"
			}
			return true
		}, nil)
		l.root = ctx.BuildFile(f)
		if err := l.root.Validate(); err != nil {
			l.cueErrors(err)
		}
	}
	l.broken = map[int]bool{}
	for _, d := range l.diags.All() {
		l.broken[d.Pos.Line] = true
	}
}

// allowed reports imports and attributes that a spec can't have.
func (l *loader) allowed(f *ast.File) bool {
	before := l.diags.Len()
	for spec := range f.ImportSpecs() {
		name, err := strconv.Unquote(spec.Path.Value)
		if err != nil || !slices.Contains(packages, name) {
			l.add(codeImport, l.nodePos(spec.Path), "%s can't be imported", spec.Path.Value).
				WithHint("packages that can: %s, and the schema: %q", strings.Join(packages, ", "), SchemaImport)
		}
	}
	ast.Walk(f, func(n ast.Node) bool {
		if a, ok := n.(*ast.Attribute); ok {
			l.add(codeImport, l.nodePos(a), "attributes have no meaning in a spec").
				WithHint("a spec is one file, and depends on nothing else")
		}
		return true
	}, nil)
	return l.diags.Len() == before
}

// declared returns the names in a file that a reference can mean.
func declared(f *ast.File) []string {
	var names []string
	ast.Walk(f, func(n ast.Node) bool {
		switch x := n.(type) {
		case *ast.LetClause:
			names = append(names, x.Ident.Name)
		case *ast.Field:
			if id, ok := x.Label.(*ast.Ident); ok {
				names = append(names, id.Name)
			}
		}
		return true
	}, nil)
	slices.Sort(names)
	return slices.Compact(names)
}
