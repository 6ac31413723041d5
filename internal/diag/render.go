package diag

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"
)

const (
	tabWidth  = 4
	lineWidth = 120 // columns of an excerpt; longer lines are cut around what is underlined
)

// RenderOptions say how diagnostics are shown.
type RenderOptions struct {
	Source func(file string) []byte // the text of a file, or nil if it can't be had; then there is no excerpt
	Color  bool                     // use the colours of a terminal
}

// Render shows a list to a person: each diagnostic with an excerpt of its source, in the order of their positions,
// and how many errors and warnings there are.
func Render(w io.Writer, list *List, opt RenderOptions) error {
	r := &renderer{opt: opt, files: map[string][]string{}}
	all := list.All()
	for _, d := range all {
		r.diagnostic(d)
		r.buf.WriteByte('\n')
	}
	var counts []string
	for _, severity := range []string{"error", "warning"} {
		n := 0
		for _, d := range all {
			if d.Severity() == severity {
				n++
			}
		}
		switch {
		case n == 1:
			counts = append(counts, "1 "+severity)
		case n > 1:
			counts = append(counts, fmt.Sprintf("%d %ss", n, severity))
		}
	}
	if len(counts) > 0 {
		r.buf.WriteString(strings.Join(counts, ", ") + "\n")
	}
	_, err := w.Write(r.buf.Bytes())
	return err
}

type renderer struct {
	opt   RenderOptions
	buf   bytes.Buffer
	files map[string][]string // lines by file
}

// Colours, as parameters of "select graphic rendition".
const (
	bold   = "1"
	red    = "1;31"
	yellow = "1;33"
	blue   = "1;34"
)

func (r *renderer) paint(color, text string) string {
	if !r.opt.Color || text == "" {
		return text
	}
	return "\x1b[" + color + "m" + text + "\x1b[0m"
}

func (r *renderer) diagnostic(d *Diagnostic) {
	head, mark := d.Severity(), red
	if d.Warning {
		mark = yellow
	}
	if d.Code != "" {
		head += "[" + string(d.Code) + "]"
	}
	fmt.Fprintf(&r.buf, "%s%s\n", r.paint(mark, head), r.paint(bold, ": "+safe(d.Message)))
	gutter := 2 // columns in front of the | of an excerpt
	if d.Pos.IsValid() {
		number := fmt.Sprint(d.Pos.Line)
		gutter = len(number)
		pad := strings.Repeat(" ", gutter)
		fmt.Fprintf(&r.buf, "%s%s %s\n", pad, r.paint(blue, "-->"), safe(d.Pos.String()))
		if line, ok := r.line(d.Pos); ok {
			text, indent, carets := excerpt(line, d.Pos.Column, d.Pos.Len)
			under := strings.Repeat("^", carets)
			if d.Label != "" {
				under += " " + safe(d.Label)
			}
			bar := r.paint(blue, "|")
			fmt.Fprintf(&r.buf, "%s %s\n%s %s %s\n%s %s %s%s\n%s %s\n", pad, bar, r.paint(blue, number), bar, text,
				pad, bar, strings.Repeat(" ", indent), r.paint(mark, under), pad, bar)
		} else {
			r.note(gutter, d.Label)
		}
	} else {
		if d.Pos.File != "" {
			fmt.Fprintf(&r.buf, "%s %s\n", r.paint(blue, " -->"), safe(d.Pos.File))
		}
		r.note(gutter, d.Label)
	}
	for _, rel := range d.Related {
		r.note(gutter, rel.Text+": "+rel.Pos.String())
	}
	r.note(gutter, d.Hint)
	if _, known := Lookup(d.Code); known {
		r.note(gutter, "fastrelay-gen explain "+string(d.Code))
	}
}

// note writes one or several lines after the excerpt.
func (r *renderer) note(gutter int, text string) {
	if text == "" {
		return
	}
	for line := range strings.SplitSeq(text, "\n") {
		fmt.Fprintf(&r.buf, "%s %s %s\n", strings.Repeat(" ", gutter), r.paint(blue, "="), safe(line))
	}
}

func (r *renderer) line(p Pos) (string, bool) {
	lines, ok := r.files[p.File]
	if !ok {
		if r.opt.Source != nil {
			if text := r.opt.Source(p.File); text != nil {
				lines = strings.Split(string(text), "\n")
			}
		}
		r.files[p.File] = lines
	}
	if p.Line > len(lines) {
		return "", false
	}
	return strings.TrimSuffix(lines[p.Line-1], "\r"), true
}

// excerpt lays a line out for the screen: tabs become spaces, a long line is cut. It returns the text, how many
// columns precede what is underlined, and how many are underlined (at least one).
func excerpt(line string, column, length int) (text string, indent, carets int) {
	from := min(max(column-1, 0), len(line))
	to := min(from+max(length, 1), len(line))
	var cells []rune
	start, end := -1, -1
	for i, c := range line {
		if start < 0 && i >= from {
			start = len(cells)
		}
		if end < 0 && i >= to {
			end = len(cells)
		}
		switch {
		case c == '\t':
			for n := tabWidth - len(cells)%tabWidth; n > 0; n-- {
				cells = append(cells, ' ')
			}
		default:
			cells = append(cells, shown(c))
		}
	}
	if start < 0 {
		start = len(cells)
	}
	if end < 0 {
		end = len(cells)
	}
	if len(cells) > lineWidth {
		first := min(max(0, start-lineWidth/3), len(cells)-lineWidth)
		last := first + lineWidth
		cut := append([]rune(nil), cells[first:last]...)
		if first > 0 {
			cut[0] = '…'
		}
		if last < len(cells) {
			cut[len(cut)-1] = '…'
		}
		cells, start, end = cut, start-first, min(end, last)-first
	}
	return strings.TrimRight(string(cells), " "), start, max(end-start, 1)
}

// safe keeps what could steer a terminal out of a message.
func safe(s string) string { return strings.Map(shown, s) }

func shown(c rune) rune {
	if c == utf8.RuneError || unicode.IsControl(c) || unicode.Is(unicode.Cf, c) {
		return '�'
	}
	return c
}

// The JSON form of a list. Lines and columns count from 1, in bytes; length is what to underline.
type (
	jsonPlace struct {
		File   string `json:"file,omitempty"`
		Line   int    `json:"line,omitempty"`
		Column int    `json:"column,omitempty"`
		Length int    `json:"length,omitempty"`
	}
	jsonRelated struct {
		jsonPlace
		Text string `json:"text"`
	}
	jsonDiagnostic struct {
		Severity string `json:"severity"` // "error" or "warning"
		Code     Code   `json:"code"`
		Message  string `json:"message"`
		jsonPlace
		Label   string        `json:"label,omitempty"`
		Hint    string        `json:"hint,omitempty"`
		Related []jsonRelated `json:"related,omitempty"`
	}
)

// RenderJSON writes a list for machines: an object whose "diagnostics" are in the order of their positions.
func RenderJSON(w io.Writer, list *List) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(map[string]*List{"diagnostics": list})
}

// MarshalJSON makes a JSON list of the diagnostics, as in [RenderJSON].
func (l *List) MarshalJSON() ([]byte, error) {
	at := func(p Pos) jsonPlace { return jsonPlace{p.File, p.Line, p.Column, p.Len} }
	out := []jsonDiagnostic{}
	for _, d := range l.All() {
		j := jsonDiagnostic{Severity: d.Severity(), Code: d.Code, Message: d.Message, jsonPlace: at(d.Pos),
			Label: d.Label,
			Hint:  d.Hint}
		for _, r := range d.Related {
			j.Related = append(j.Related, jsonRelated{at(r.Pos), r.Text})
		}
		out = append(out, j)
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	err := enc.Encode(out)
	return b.Bytes(), err
}
