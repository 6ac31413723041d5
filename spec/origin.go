package spec

import (
	"strings"

	"cuelang.org/go/cue"
	"cuelang.org/go/cue/ast"
	"cuelang.org/go/cue/token"

	"github.com/fastrelay/fastrelay-gen/internal/diag"
)

// Positions. Every value of the user's own file knows the syntax that it came from. They are taken before anything is
// unified with the schema: afterwards positions may be the schema's.

// origin returns the label and the expression that a value came from; either may be nil. Of a value that is given in
// several places it returns one that has a label.
func origin(v cue.Value) (label, value ast.Node) {
	switch src := v.Source().(type) {
	case *ast.Field:
		return src.Label, src.Value
	case *ast.LetClause:
		return nil, src.Expr
	case nil:
	default:
		value = src
	}
	if op, args := expr(v); op == cue.AndOp {
		for _, a := range args {
			l, x := origin(a)
			if label == nil {
				label = l
			}
			if value == nil {
				value = x
			}
		}
	}
	return label, value
}

// expr is v.Expr(), which panics for a slice without one of its bounds.
func expr(v cue.Value) (cue.Op, []cue.Value) {
	if _, is := v.Source().(*ast.SliceExpr); is {
		return cue.NoOp, nil
	}
	return v.Expr()
}

func (l *loader) nodePos(n ast.Node) diag.Pos {
	if n == nil || !n.Pos().IsValid() {
		return diag.Pos{}
	}
	p := l.tokenPos(n.Pos())
	if end := n.End(); end.IsValid() && end.Line() == p.Line {
		p.Len = end.Column() - p.Column
	}
	return p
}

func (l *loader) tokenPos(p token.Pos) diag.Pos {
	if !p.IsValid() {
		return diag.Pos{File: l.file}
	}
	return diag.Pos{File: l.file, Line: p.Line(), Column: p.Column()}
}

// pos is the position of a value.
func (l *loader) pos(v cue.Value) diag.Pos {
	label, value := origin(v)
	if value != nil {
		if p := l.nodePos(value); p.IsValid() {
			return p
		}
	}
	if label != nil {
		return l.nodePos(label)
	}
	return l.tokenPos(v.Pos())
}

// labelPos is the position of a value's name, or of the value if it has none.
func (l *loader) labelPos(v cue.Value) diag.Pos {
	if label, _ := origin(v); label != nil {
		return l.textPlace(label).pos
	}
	return l.pos(v)
}

// textPlace is where the text of a label or a string literal is.
func (l *loader) textPlace(n ast.Node) textPos {
	p := l.nodePos(n)
	switch x := n.(type) {
	case *ast.BasicLit:
		if x.Kind == token.STRING && plain(x.Value) {
			return textPos{p.Add(1, len(x.Value)-2), true}
		}
		return textPos{p, false}
	case *ast.Ident:
		return textPos{p, true}
	}
	return textPos{p, false}
}

// plain reports whether a string literal holds its text as it is.
func plain(lit string) bool {
	return len(lit) >= 2 && lit[0] == '"' && !strings.HasPrefix(lit, `""`) && !strings.ContainsAny(lit, "\\\n\r") ||
		lit == `""`
}

// stringPlace is where the text of a string value is: in the literal that it came from, also after references.
func (l *loader) stringPlace(v cue.Value) textPos {
	for w, n := v, 0; n < 8; n++ {
		if _, value := origin(w); value != nil {
			if lit, ok := value.(*ast.BasicLit); ok {
				return l.textPlace(lit)
			}
		}
		next := cue.Dereference(w)
		if next == w {
			break
		}
		w = next
	}
	return textPos{l.pos(v), false}
}
