package c

import (
	"strings"

	"github.com/fastrelay/fastrelay-gen/internal/diag"
)

// Printer prints a file. It knows the position in the spec of each line.
type Printer struct {
	Lines []string
	Pos   []diag.Pos // of each line; zero if there is none
}

// String is the file.
func (p *Printer) String() string { return strings.Join(p.Lines, "\n") + "\n" }

// Text prints text as it is, but for lines that are too long.
func (p *Printer) Text(text string) {
	for line := range strings.SplitSeq(strings.TrimSuffix(text, "\n"), "\n") {
		p.line(diag.Pos{}, line)
	}
}

// Tops prints functions and structures, with an empty line in front of each.
func (p *Printer) Tops(list []Top) {
	for _, t := range list {
		p.line(diag.Pos{}, "")
		t.print(p)
	}
}

func (p *Printer) line(pos diag.Pos, text string) {
	for _, part := range wrap(text) {
		p.Lines, p.Pos = append(p.Lines, part), append(p.Pos, pos)
	}
}

func (f *Func) print(p *Printer) {
	params := make([]string, len(f.Params))
	for i, x := range f.Params {
		params[i] = x.String()
	}
	p.line(diag.Pos{}, f.Linkage.head()+spaced(f.Result, f.Name)+"("+strings.Join(params, ", ")+")")
	p.line(diag.Pos{}, "{")
	p.block(1, f.Body)
	p.line(diag.Pos{}, "}")
}

func (s *Struct) print(p *Printer) {
	if s.Doc != "" {
		p.line(diag.Pos{}, "/* "+s.Doc+" */")
	}
	p.line(diag.Pos{}, "struct "+s.Name+" {")
	for _, m := range s.Members {
		p.line(diag.Pos{}, "\t"+m.String()+";")
	}
	p.line(diag.Pos{}, "};")
}

func (e *Enum) print(p *Printer) {
	p.line(diag.Pos{}, "/* "+e.Doc+" */")
	var items []string
	for _, x := range e.Constants {
		item := string(x.Name)
		if x.Value != nil {
			item += " = " + x.Value.String()
		}
		items = append(items, item)
	}
	if line := "enum { " + strings.Join(items, ", ") + " };"; width(line) <= maxColumns {
		p.line(diag.Pos{}, line)
		return
	}
	p.line(diag.Pos{}, "enum {")
	line := "\t"
	for _, item := range items {
		if len(line) > 1 && width(line+" "+item+",") > maxColumns {
			p.line(diag.Pos{}, line)
			line = "\t"
		}
		if len(line) > 1 {
			line += " "
		}
		line += item + ","
	}
	p.line(diag.Pos{}, line)
	p.line(diag.Pos{}, "};")
}

// String is a declaration.
func (x Param) String() string { return spaced(x.Type, x.Name.String()) + x.Tail }

// spaced puts a name after a type: that of a pointer ends in its star.
func spaced(typ Type, name string) string {
	if typ.IsPointer() {
		return string(typ) + name
	}
	return string(typ) + " " + name
}

// flat are statements without lists.
func flat(body []Stmt) (out []Stmt) {
	for _, s := range body {
		if l, ok := s.(*List); ok {
			out = append(out, flat(l.Body)...)
		} else {
			out = append(out, s)
		}
	}
	return out
}

// block prints statements. Empty lines stand between others: the ones that are asked for, and one after the
// declarations at the head of a function.
func (p *Printer) block(depth int, body []Stmt) {
	indent := strings.Repeat("\t", depth)
	gap, head, first := false, depth == 1, true
	for _, s := range flat(body) {
		_, declares := s.(*Declare)
		if _, ok := s.(Gap); ok {
			gap = true
			continue
		}
		if !first && (gap || head && !declares) {
			p.line(diag.Pos{}, "")
		}
		gap, head, first = false, head && declares, false
		p.statement(depth, indent, s)
	}
}

// fewest is how much of a note is shown at least, or none of it.
const fewest = 10

func (p *Printer) statement(depth int, indent string, s Stmt) {
	switch s := s.(type) {
	case *Declare:
		p.declare(indent, s)
	case *Assign:
		text := s.To.String() + " " + s.Op + " " + s.X.String()
		if n, ok := s.X.(Number); ok && n.V == 1 && s.Op == "+=" {
			text = s.To.String() + "++"
		}
		p.line(s.Pos, indent+text+";")
	case *Eval:
		p.line(s.Pos, indent+s.X.String()+";")
	case *Return:
		p.line(s.Pos, indent+"return "+s.X.String()+";")
	case *Block:
		p.line(diag.Pos{}, indent+"{")
		p.block(depth+1, s.Body)
		p.line(diag.Pos{}, indent+"}")
	case *Note:
		text := indent + "/* " + s.Text + " */"
		if over := width(text) - maxColumns; over > 0 && s.Short {
			runes := []rune(s.Text)
			room := len(runes) - over - len("...")
			if room < fewest {
				return
			}
			text = indent + "/* " + string(runes[:room]) + "... */"
		}
		p.line(s.Pos, text)
	case *If:
		p.branch(depth, indent, s)
	}
}

func (p *Printer) declare(indent string, s *Declare) {
	var names []string
	for _, v := range s.Vars {
		name := v.Name.String() + v.Tail
		if init, ok := v.Init.(Init); ok && len(init) > 2 && len(s.Vars) == 1 { // a member a line
			p.line(s.Pos, indent+spaced(s.Type, name)+" = {")
			for _, m := range init {
				p.line(s.Pos, indent+"\t"+init.member(m)+",")
			}
			p.line(s.Pos, indent+"};")
			return
		}
		if v.Init != nil {
			name += " = " + v.Init.String()
		}
		names = append(names, name)
	}
	p.line(s.Pos, indent+spaced(s.Type, strings.Join(names, ", "))+";")
}

// branch prints a branch, and those that follow as its other side. Braces are left out if each side is one simple
// statement, as the kernel's style has it.
func (p *Printer) branch(depth int, indent string, s *If) {
	open, end := "", ""
	if !s.simple() {
		open, end = " {", "} "
	}
	for begin := "if ("; ; begin = end + "else if (" {
		note := ""
		if s.Note != "" {
			note = " /* " + s.Note + " */"
		}
		p.line(s.Pos, indent+begin+s.Cond.String()+")"+open+note)
		p.block(depth+1, flat(s.Then))
		next, ok := only(s.Else).(*If)
		if !ok {
			break
		}
		s = next
	}
	if other := flat(s.Else); len(other) > 0 {
		p.line(diag.Pos{}, indent+end+"else"+open)
		p.block(depth+1, other)
	}
	if end != "" {
		p.line(diag.Pos{}, indent+"}")
	}
}

// simple reports whether no side of a branch needs braces.
func (s *If) simple() bool {
	next, chain := only(s.Else).(*If)
	return simple(s.Then) && (len(flat(s.Else)) == 0 || simple(s.Else) || chain && next.simple())
}

// simple reports whether statements are one that needs no braces.
func simple(body []Stmt) bool {
	switch only(body).(type) {
	case *Assign, *Eval, *Return:
		return true
	}
	return false
}
