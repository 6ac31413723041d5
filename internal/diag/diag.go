// Package diag holds the messages that fastrelay-gen shows to a person: each has a stable code, a position in a spec,
// what is wrong, and what to do about it. Passes collect diagnostics in a List instead of stopping at the first one.
package diag

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/fastrelay/fastrelay-gen/internal/spell"
)

// Pos is a position in a source file. Line and Column count from 1, in bytes; Len is the number of bytes to underline
// (0 means one). The zero Pos means "no position".
type Pos struct {
	File   string
	Line   int
	Column int
	Len    int
}

// IsValid reports whether p names a line.
func (p Pos) IsValid() bool { return p.Line > 0 }

// Add returns the position n bytes further on the same line, with the given length.
func (p Pos) Add(n, length int) Pos {
	p.Column += n
	p.Len = length
	return p
}

func (p Pos) String() string {
	if !p.IsValid() {
		return p.File
	}
	return fmt.Sprintf("%s:%d:%d", p.File, p.Line, p.Column)
}

// Compare orders positions by file, line and column.
func (p Pos) Compare(q Pos) int {
	return cmp.Or(cmp.Compare(p.File, q.File), cmp.Compare(p.Line, q.Line), cmp.Compare(p.Column, q.Column))
}

// Code is a stable message code such as "FR0107".
type Code string

// Related is a second place that a message refers to ("the header is declared here").
type Related struct {
	Pos  Pos
	Text string
}

// Diagnostic is one message.
type Diagnostic struct {
	Warning bool // what is made of the spec is right, but probably not what was meant
	Code    Code
	Pos     Pos
	Message string // what is wrong, without a final full stop
	Label   string // shown after the caret, usually a did-you-mean; may be empty
	Hint    string // what to do; may be empty
	Related []Related
}

func (d *Diagnostic) Error() string {
	return fmt.Sprintf("%s: %s [%s]", d.Pos, d.Message, d.Code)
}

// Info describes a code for `fastrelay-gen explain`.
type Info struct {
	Code  Code
	Title string // a few words
	Text  string // what it means and what to do, as Markdown
	Wrong string // a smallest example that triggers it
	Right string // the example, mended
}

var infos = map[Code]Info{}

// Define registers what a code means. It is called from package variables, so that a code defined twice stops the
// program at its start.
func Define(code Code, title, text, wrong, right string) Code {
	if _, dup := infos[code]; dup {
		panic("diag: code " + string(code) + " defined twice")
	}
	infos[code] = Info{code, title, text, wrong, right}
	return code
}

// Infos returns all codes, sorted.
func Infos() []Info {
	all := make([]Info, 0, len(infos))
	for _, i := range infos {
		all = append(all, i)
	}
	slices.SortFunc(all, func(a, b Info) int { return cmp.Compare(a.Code, b.Code) })
	return all
}

// Lookup returns what is known of a code.
func Lookup(code Code) (Info, bool) {
	i, ok := infos[code]
	return i, ok
}

// List collects diagnostics. The zero List is empty and ready to use.
type List struct {
	all []*Diagnostic
}

// Add appends a diagnostic and returns it, so that a caller can add a hint or a related position.
func (l *List) Add(code Code, pos Pos, format string, args ...any) *Diagnostic {
	d := &Diagnostic{Code: code, Pos: pos, Message: fmt.Sprintf(format, args...)}
	l.all = append(l.all, d)
	return d
}

// Severity is "error" or "warning".
func (d *Diagnostic) Severity() string {
	if d.Warning {
		return "warning"
	}
	return "error"
}

// Warn appends a warning and returns it.
func (l *List) Warn(code Code, pos Pos, format string, args ...any) *Diagnostic {
	d := l.Add(code, pos, format, args...)
	d.Warning = true
	return d
}

// WithHint sets the hint and returns d.
func (d *Diagnostic) WithHint(format string, args ...any) *Diagnostic {
	d.Hint = fmt.Sprintf(format, args...)
	return d
}

// WithLabel sets the text after the caret and returns d.
func (d *Diagnostic) WithLabel(format string, args ...any) *Diagnostic {
	d.Label = fmt.Sprintf(format, args...)
	return d
}

// WithNames adds the name that was probably meant by a word, or else the names that there are, and returns d.
func (d *Diagnostic) WithNames(word string, names []string) *Diagnostic {
	if n := spell.Nearest(word, names); n != "" {
		return d.WithLabel("did you mean \"%s\"?", n)
	}
	if len(names) > 0 && len(names) <= 12 {
		return d.WithHint("there are: %s", strings.Join(names, ", "))
	}
	return d
}

// WithRelated adds a second position and returns d. A position without a line adds nothing.
func (d *Diagnostic) WithRelated(pos Pos, format string, args ...any) *Diagnostic {
	if pos.IsValid() {
		d.Related = append(d.Related, Related{pos, fmt.Sprintf(format, args...)})
	}
	return d
}

// Plural is a number of things, in a message: "1 bit", "2 bits".
func Plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// Append adds all of m's diagnostics to l.
func (l *List) Append(m *List) { l.all = append(l.all, m.all...) }

// Len returns the number of errors collected. Warnings don't count. No list at all, as when something else has
// failed, has none.
func (l *List) Len() int {
	if l == nil {
		return 0
	}
	n := 0
	for _, d := range l.all {
		if !d.Warning {
			n++
		}
	}
	return n
}

// Warnings returns the warnings alone.
func (l *List) Warnings() *List {
	w := &List{}
	for _, d := range l.all {
		if d.Warning {
			w.all = append(w.all, d)
		}
	}
	return w
}

// All returns the diagnostics by position, warnings among them, without doubles.
func (l *List) All() []*Diagnostic {
	out := slices.Clone(l.all)
	slices.SortStableFunc(out, func(a, b *Diagnostic) int {
		return cmp.Or(a.Pos.Compare(b.Pos), cmp.Compare(a.Code, b.Code), cmp.Compare(a.Message, b.Message))
	})
	return slices.CompactFunc(out, func(a, b *Diagnostic) bool {
		return a.Pos == b.Pos && a.Code == b.Code && a.Message == b.Message
	})
}

// Err returns l as an error, or nil if it has none.
func (l *List) Err() error {
	if l.Len() == 0 {
		return nil
	}
	return &Error{List: l}
}

// Error is a List as an error value.
type Error struct{ List *List }

func (e *Error) Error() string {
	var lines []string
	for _, d := range e.List.All() {
		lines = append(lines, d.Error())
	}
	return strings.Join(lines, "\n")
}
