package specgen

import (
	"bytes"

	"cuelang.org/go/cue/ast"
	"cuelang.org/go/cue/ast/astutil"
	"cuelang.org/go/cue/format"
	"cuelang.org/go/cue/parser"
	"cuelang.org/go/cue/token"
)

// Shrink makes a spec smaller while fails still holds: it leaves out members of structs, elements of lists and sides of
// binary expressions, and puts parts of the expressions in strings in their place, the largest first, until nothing
// more can go. It doesn't know the language: what can't be left out doesn't fail any more in the same way. fails is
// asked at most tries times.
func Shrink(src []byte, tries int, fails func([]byte) bool) []byte {
	ask := func(text []byte) bool {
		tries--
		return tries >= 0 && fails(text)
	}
	for again := true; again && tries > 0; {
		again = false
		for n := 0; tries > 0; {
			text, ok := without(src, n)
			if !ok {
				break
			}
			if len(text) < len(src) && ask(text) {
				src, again = text, true
				continue // another change has this number now
			}
			n++
		}
	}
	return src
}

// without returns a spec with its n-th possible change made; ok is false if there are no more.
func without(src []byte, n int) (text []byte, ok bool) {
	f, err := parser.ParseFile("spec.cue", src)
	if err != nil {
		return nil, false
	}
	c := &change{n: n}
	c.decls(&f.Decls)
	if !c.made {
		astutil.Apply(f, func(cursor astutil.Cursor) bool { return c.node(cursor) }, nil)
	}
	if !c.made {
		return nil, false
	}
	text, err = format.Node(f)
	return bytes.TrimSpace(text), err == nil
}

// longestRun elements of a list go at once: actions that take headers out of a packet one by one often need each other.
const longestRun = 6

// change makes the n-th change that it comes by.
type change struct {
	n    int
	made bool
}

func (c *change) here() bool {
	if c.made {
		return false
	}
	c.made = c.n == 0
	c.n--
	return c.made
}

func (c *change) node(cursor astutil.Cursor) bool {
	switch x := cursor.Node().(type) {
	case *ast.StructLit:
		c.decls(&x.Elts)
	case *ast.ListLit:
		for run := min(len(x.Elts), longestRun); run > 0; run-- {
			for i := range len(x.Elts) - run + 1 {
				if c.here() {
					x.Elts = append(x.Elts[:i:i], x.Elts[i+run:]...)
					return false
				}
			}
		}
	case *ast.BinaryExpr:
		for _, side := range []ast.Expr{x.X, x.Y} {
			if c.here() {
				cursor.Replace(side)
				return false
			}
		}
	case *ast.BasicLit:
		if s, ok := smallerString(x, c); ok {
			x.Value = s
			return false
		}
	}
	return !c.made
}

func (c *change) decls(list *[]ast.Decl) {
	for i := range *list {
		if c.here() {
			*list = append((*list)[:i:i], (*list)[i+1:]...)
			return
		}
	}
}

// smallerString replaces an expression in a string by one of its parts: what is in a pair of parentheses, or on one
// side of an operator.
func smallerString(x *ast.BasicLit, c *change) (string, bool) {
	if x.Kind != token.STRING || len(x.Value) < 5 || x.Value[0] != '"' || bytes.ContainsAny([]byte(x.Value), `\#`) {
		return "", false
	}
	text := x.Value[1 : len(x.Value)-1]
	depth, open := 0, []int{}
	for i := range len(text) {
		switch text[i] {
		case '(':
			open = append(open, i)
			depth++
		case ')':
			if depth == 0 {
				return "", false
			}
			depth--
			from := open[len(open)-1]
			open = open[:len(open)-1]
			if c.here() {
				return `"` + text[from+1:i] + `"`, true
			}
		case ' ':
			if depth > 0 {
				continue
			}
			if c.here() {
				return `"` + text[:i] + `"`, true
			}
			if c.here() {
				return `"` + text[i+1:] + `"`, true
			}
		}
	}
	return "", false
}
