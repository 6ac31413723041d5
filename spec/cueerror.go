package spec

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"cuelang.org/go/cue"
	"cuelang.org/go/cue/ast"
	"cuelang.org/go/cue/errors"
	"cuelang.org/go/cue/token"

	"github.com/fastrelay/fastrelay-gen/internal/diag"
	"github.com/fastrelay/fastrelay-gen/internal/spell"
)

// CUE's own errors, made readable: one message for one mistake, at a place in the user's file.

var tokenWords = map[string]string{
	"EOF": "the end of the file", "newline": "the end of the line", "operand": "a value", "label or ':'": "a colon",
	"'EOF'": "the end of the file",
}

// syntaxError reports names that are declared twice, or else the first error of the parser; those after it usually
// follow from it.
func (l *loader) syntaxError(f *ast.File, err error, src []byte) {
	all := errors.Errors(err)
	twice := false
	for _, e := range all {
		twice = l.twice(f, e) || twice
	}
	if twice {
		return
	}
	e := all[0]
	for _, other := range all[1:] {
		if before(other.Position(), e.Position()) {
			e = other
		}
	}
	pos := l.tokenPos(e.Position())
	if !pos.IsValid() {
		pos.Line, pos.Column = 1, 1
	}
	format, args := e.Msg()
	message := fmt.Sprintf(format, args...)
	if strings.HasPrefix(format, "expected %s, found '%s'") && len(args) >= 2 {
		want, found := word(fmt.Sprint(args[0])), word(fmt.Sprint(args[1]))
		if len(args) > 2 { // the token's text
			found = fmt.Sprintf("%q", fmt.Sprint(args[2]))
		}
		message = want + " is missing in front of " + found
		switch {
		case found == "the end of the file":
			message = "the file ends where " + want + " is wanted"
		case want == "the end of the file" && strings.Contains("}])", found):
			message = "this " + found + " closes nothing: there is one too many, here or further up"
		}
	}
	d := l.add(codeSyntax, pos, "%s", message)
	if lines := strings.Split(string(src), "\n"); pos.Line > len(lines) || strings.TrimSpace(lines[pos.Line-1]) == "" {
		d.Pos = lastText(lines, pos)
	}
}

// twice reports the name of a "let" that is declared twice, if an error of the parser says that.
func (l *loader) twice(f *ast.File, e errors.Error) bool {
	pos := l.tokenPos(e.Position())
	format, args := e.Msg()
	switch {
	case len(args) != 1:
	case strings.HasPrefix(format, "cannot have both alias and field"):
		name := fmt.Sprint(args[0])
		member, let := l.labelled(f, name, pos)
		l.add(codeTwice, member, "%q is the name of a \"let\" and of a member in its reach, which CUE doesn't allow",
			name).
			WithRelated(let, "the \"let\" is here").WithHint("give the \"let\" another name, such as \"the_%s\"", name)
		return true
	case strings.HasPrefix(format, "alias %q redeclared"):
		l.add(codeTwice, pos, "let %q is declared twice", args[0])
		return true
	}
	return false
}

// labelled finds the member of a name whose label or value is at pos (else it returns pos), and the "let" of this name.
func (l *loader) labelled(f *ast.File, name string, pos diag.Pos) (member, let diag.Pos) {
	member = pos
	if f == nil {
		return member, let
	}
	ast.Walk(f, func(n ast.Node) bool {
		switch x := n.(type) {
		case *ast.Field:
			id, ok := x.Label.(*ast.Ident)
			at := l.tokenPos(x.Value.Pos())
			if ok && id.Name == name && at.Line == pos.Line && at.Column == pos.Column {
				member = l.nodePos(id)
			}
		case *ast.LetClause:
			if x.Ident.Name == name {
				let = l.nodePos(x.Ident)
			}
		}
		return true
	}, nil)
	return member, let
}

// lastText moves a position from after the text to its last line, so that there is something to show.
func lastText(lines []string, pos diag.Pos) diag.Pos {
	for i := min(pos.Line, len(lines)); i > 0; i-- {
		if text := strings.TrimRight(lines[i-1], " \t\r"); text != "" {
			return diag.Pos{File: pos.File, Line: i, Column: len(text) + 1}
		}
	}
	return diag.Pos{File: pos.File, Line: 1, Column: 1}
}

func before(a, b token.Pos) bool {
	if a.Line() != b.Line() {
		return a.Line() < b.Line()
	}
	return a.Column() < b.Column()
}

func word(s string) string {
	if w, ok := tokenWords[s]; ok {
		return w
	}
	return s
}

// cueErrors reports the errors of an evaluation. The alternatives of a choice that failed are one mistake.
func (l *loader) cueErrors(err error) {
	choice := "" // path of the choice whose alternatives follow
	all := errors.Errors(err)
	onlyUnused := l.diags.Len() == 0 && !slices.ContainsFunc(all, func(e errors.Error) bool { return !unused(e) })
	for _, e := range all {
		if unused(e) && !onlyUnused {
			continue // what uses it may be wrong
		}
		format, args := e.Msg()
		path := strings.Join(e.Path(), ".")
		if choice != "" && path == choice {
			continue
		}
		choice = ""
		pos, other := l.errorPos(e)
		switch {
		case strings.HasPrefix(format, "%d errors in empty disjunction"):
			choice = path
			l.add(codeConflict, pos, "none of the alternatives for %s is possible", path)
		case strings.HasPrefix(format, "conflicting values"):
			d := l.add(codeConflict, pos, "%s has two values: %v and %v", last(e.Path()), short(args[0]),
				short(args[1]))
			d.WithRelated(other, "the other one is here")
		case strings.HasPrefix(format, "reference %q not found"):
			name := fmt.Sprint(args...)
			d := l.add(codeEval, pos, "nothing is called %q", name)
			if expr := l.unquoted(name, e.Position()); expr != "" {
				d.WithHint("expressions are written in quotes: %q", expr)
			} else if near := spell.Nearest(name, l.known); near != "" {
				d.WithLabel("did you mean %q?", near)
			}
		case strings.HasPrefix(format, "field not allowed"):
			if v := l.lookup(e.Path()); v.Exists() {
				pos = l.labelPos(v)
			}
			l.add(codeUnknown, pos, "unknown word %q", last(e.Path()))
		case strings.HasPrefix(format, "imported and not used"):
			l.add(codeEval, pos, "package %v is imported and not used", args[0])
		case strings.HasPrefix(format, "unreferenced alias or let clause"):
			l.add(codeEval, pos, "%v is not used", args[0])
		default:
			l.add(codeEval, pos, "%s", clean(e))
		}
	}
}

// unquoted returns the text of the expression at p, if name is something that only expressions of a spec can name:
// then their quotation marks were forgotten.
func (l *loader) unquoted(name string, p token.Pos) string {
	known := append(slices.Clone(reserved), functions...)
	if l.standard != nil {
		for _, h := range l.standard().Headers {
			known = append(known, h.Name.Value)
		}
		for _, g := range l.standard().Alternatives {
			known = append(known, g.Name.Value)
		}
	}
	ast.Walk(l.syntax, func(n ast.Node) bool {
		if f, ok := n.(*ast.Field); ok {
			if id, ok := f.Label.(*ast.Ident); ok && (id.Name == "headers" || id.Name == "lookup") {
				known = append(known, labels(f.Value)...)
			}
		}
		return true
	}, nil)
	if !slices.Contains(known, name) {
		return ""
	}
	text := ""
	ast.Walk(l.syntax, func(n ast.Node) bool {
		switch n.(type) {
		case *ast.BinaryExpr, *ast.UnaryExpr, *ast.SelectorExpr, *ast.CallExpr, *ast.IndexExpr, *ast.ParenExpr,
			*ast.Ident:
			from, to := n.Pos().Offset(), n.End().Offset()
			if text == "" && from <= p.Offset() && p.Offset() < to && to <= len(l.src) {
				text = string(l.src[from:to])
			}
		}
		return true
	}, nil)
	if strings.ContainsAny(text, "\n\"") {
		return name + "…"
	}
	return text
}

// labels returns the names of a struct's members.
func labels(x ast.Expr) (names []string) {
	s, ok := x.(*ast.StructLit)
	if !ok {
		return nil
	}
	for _, d := range s.Elts {
		if f, ok := d.(*ast.Field); ok {
			if id, ok := f.Label.(*ast.Ident); ok {
				names = append(names, id.Name)
			}
		}
	}
	return names
}

// errorPos returns the place of an error in the user's file, and another one that takes part in it.
func (l *loader) errorPos(e errors.Error) (pos, other diag.Pos) {
	all := append([]token.Pos{e.Position()}, e.InputPositions()...)
	var first, second token.Pos
	for _, p := range all {
		switch {
		case !p.IsValid() || p.Filename() != l.file:
		case !first.IsValid():
			first = p
		case before(first, p) && e.Position() != first:
			first, second = p, first
		case p != first:
			second = p
		}
	}
	pos, other = l.spanAt(first), l.spanAt(second)
	if !pos.IsValid() {
		pos = l.pathPos(e.Path())
	}
	return pos, other
}

// unused reports whether an error is about something that nothing uses.
func unused(e errors.Error) bool {
	format, _ := e.Msg()
	return strings.HasPrefix(format, "imported and not used") || strings.HasPrefix(format, "unreferenced alias")
}

// spanAt is the place of the smallest piece of syntax that begins at p, or none.
func (l *loader) spanAt(p token.Pos) diag.Pos {
	if !p.IsValid() {
		return diag.Pos{}
	}
	pos := l.tokenPos(p)
	ast.Walk(l.syntax, func(n ast.Node) bool {
		if n.Pos() == p {
			pos = l.nodePos(n)
		}
		return true
	}, nil)
	return pos
}

// pathPos is the place of the innermost member of a path that has one.
func (l *loader) pathPos(path []string) diag.Pos {
	for n := len(path); n > 0; n-- {
		if v := l.lookup(path[:n]); v.Exists() {
			if p := l.pos(v); p.IsValid() {
				return p
			}
		}
	}
	return diag.Pos{File: l.file, Line: 1, Column: 1}
}

// lookup finds a value by the path that an error names.
func (l *loader) lookup(path []string) cue.Value {
	v := l.root
	for _, name := range path {
		sel := cue.Str(strings.Trim(name, `"`))
		switch i, err := strconv.Atoi(name); {
		case err == nil && v.IncompleteKind() == cue.ListKind:
			sel = cue.Index(i)
		case strings.HasPrefix(name, "#"):
			sel = cue.Def(name)
		case strings.HasPrefix(name, "_"):
			sel = cue.Hid(name, "_")
		}
		v = v.LookupPath(cue.MakePath(sel))
	}
	return v
}

func last(path []string) string {
	if len(path) == 0 {
		return "the spec"
	}
	return path[len(path)-1]
}

const maxShown = 100

// short cuts a long value in a message.
func short(v any) string {
	s := strings.Join(strings.Fields(fmt.Sprint(v)), " ")
	if runes := []rune(s); len(runes) > maxShown {
		s = string(runes[:maxShown-1]) + "…"
	}
	return s
}

// clean is what CUE says, with its causes, but without the path in front and what only a programmer of CUE understands.
func clean(e errors.Error) string {
	text := strings.TrimPrefix(e.Error(), strings.Join(e.Path(), ".")+": ")
	return short(strings.ReplaceAll(text, "_|_", "an error"))
}
