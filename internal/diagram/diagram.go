// Package diagram draws headers the way RFCs do: rows of 32 bits, one field beside the other. What has no fixed size or
// may be absent takes a row of its own between slashes, and what a picture can't say follows as a line of text. A
// program is a decision: stages, and the ends that a packet may have in each (decision.go).
package diagram

import (
	"fmt"
	"slices"
	"strings"

	"github.com/fastrelay/fastrelay-gen/spec"
)

const rowBits = 32

// maxFixed is the number of bits up to which a fixed field is drawn bit by bit: an IPv6 address.
const maxFixed = 128

// Header draws h, and explains below what its fields have to be or count.
func Header(h *spec.Header) string {
	d := &drawing{}
	d.ruler()
	for _, f := range h.Fields {
		if bits, fixed := fixedBits(f); fixed {
			d.fixed(f.Name.Value, bits)
		} else {
			d.flush(full)
			d.variable(f.Name.Value + " (" + extent(f) + ")")
		}
	}
	if h.Trailer > 0 {
		d.flush(full)
		d.variable("payload")
		d.variable(fmt.Sprintf("trailer (%d bytes)", h.Trailer))
	}
	d.flush(nil)
	d.notes(h)
	return d.out.String()
}

// fixedBits returns the size of a field that is always there and always as long.
func fixedBits(f *spec.Field) (bits int, fixed bool) {
	return f.Width(), f.Width() <= maxFixed && !f.Varies()
}

// extent says how long a field is that has no place of its own in the grid.
func extent(f *spec.Field) string {
	var text string
	switch f.Kind {
	case spec.FieldUint:
		text = fmt.Sprintf("%d bits", f.Bits)
	case spec.FieldBytes:
		text = fmt.Sprintf("%d bytes", f.Bytes)
	case spec.FieldSized:
		text = fmt.Sprintf("%s bytes, at most %d", expression(f.Size), f.Max)
		if f.SizedUint() {
			text = "integer of " + text
		}
	case spec.FieldVarint:
		text = "QUIC varint, 1 to 8 bytes"
	}
	if f.When != nil {
		text += ", when " + expression(f.When)
	}
	return text
}

// drawing collects bits until a run of fixed fields ends; cells[i] is the field that bit i belongs to.
type drawing struct {
	out    strings.Builder
	cells  []int
	names  []string
	sizes  []int
	short  [][2]string // abbreviations, and what they stand for
	closed bool        // the last line drawn is a separator
}

func (d *drawing) ruler() {
	var tens, ones strings.Builder
	for i := range rowBits {
		ten := " "
		if i%10 == 0 {
			ten = fmt.Sprint(i / 10)
		}
		tens.WriteString(" " + ten)
		ones.WriteString(fmt.Sprintf(" %d", i%10))
	}
	d.out.WriteString(strings.TrimRight(tens.String(), " ") + "\n" + ones.String() + "\n")
}

func (d *drawing) fixed(name string, bits int) {
	for range bits {
		d.cells = append(d.cells, len(d.names))
	}
	d.names = append(d.names, name)
	d.sizes = append(d.sizes, bits)
}

// full is a row of something else than a field.
var full = slices.Repeat([]int{-1}, rowBits)

// flush draws the collected bits; below is the row that comes next.
func (d *drawing) flush(below []int) {
	if len(d.cells) == 0 {
		return
	}
	if !d.closed {
		d.separator(nil, d.row(0))
	}
	labelled := make([]bool, len(d.names))
	rows := (len(d.cells) + rowBits - 1) / rowBits
	for r := range rows {
		d.line(r, d.row(r), labelled)
		if r+1 < rows {
			d.separator(d.row(r), d.row(r+1))
		} else {
			d.separator(d.row(r), below)
		}
	}
	d.cells, d.names, d.sizes = nil, nil, nil
	d.closed = true
}

func (d *drawing) row(r int) []int {
	return d.cells[r*rowBits : min((r+1)*rowBits, len(d.cells))]
}

// separator draws the line between two rows; it is open where a field goes on from one to the other.
func (d *drawing) separator(above, below []int) {
	width := max(len(above), len(below))
	wall := func(c int) bool {
		return c >= 0 && c < width && (c >= len(above) || c >= len(below) || above[c] != below[c])
	}
	var line strings.Builder
	for c := range width + 1 {
		corner := c == 0 || c == width || wall(c-1) || wall(c)
		line.WriteString(pick(corner, "+", " "))
		if c < width {
			line.WriteString(pick(wall(c), "-", " "))
		}
	}
	d.out.WriteString(line.String() + "\n")
}

// line draws one row of fields. The name of a field that spans rows is in the middle one, or in the first that has
// room.
func (d *drawing) line(r int, cells []int, labelled []bool) {
	d.out.WriteString("|")
	for start := 0; start < len(cells); {
		id, end := cells[start], start
		for end < len(cells) && cells[end] == id {
			end++
		}
		width := 2*(end-start) - 1
		text := ""
		if !labelled[id] && d.labelHere(r, start, id, width) {
			labelled[id] = true
			text = d.fit(d.names[id], width)
		}
		d.out.WriteString(center(text, width) + "|")
		start = end
	}
	d.out.WriteString("\n")
}

// labelHere decides whether the piece of field id that starts at bit column start of row r carries its name.
func (d *drawing) labelHere(r, start, id, width int) bool {
	first := 0
	for first < len(d.cells) && d.cells[first] != id {
		first++
	}
	last := first + d.sizes[id] - 1
	if first/rowBits == last/rowBits {
		return true
	}
	middle := (first + last) / 2 / rowBits
	if first%rowBits != 0 && last/rowBits-first/rowBits == 1 { // two pieces: the wider one
		middle = first / rowBits
		if last%rowBits >= rowBits-first%rowBits {
			middle++
		}
	}
	return r == middle
}

// fit shortens a name to its place, and remembers what it stood for.
func (d *drawing) fit(name string, width int) string {
	if len(name) <= width {
		return name
	}
	short := strings.ToUpper(name[:1])
	if width > 1 {
		short = name[:width]
	}
	d.short = append(d.short, [2]string{short, name})
	return short
}

// variable draws a row for what has no fixed size.
func (d *drawing) variable(text string) {
	edge := strings.Repeat("+-", rowBits) + "+\n"
	if !d.closed {
		d.out.WriteString(edge)
	}
	width := 2*rowBits - 1
	for len(text) > width {
		cut := strings.LastIndex(text[:width], " ")
		if cut <= 0 {
			cut = width
		}
		d.out.WriteString("/" + center(text[:cut], width) + "/\n")
		text = strings.TrimSpace(text[cut:])
	}
	d.out.WriteString("/" + center(text, width) + "/\n" + edge)
	d.closed = true
}

// notes says below the picture what it can't show.
func (d *drawing) notes(h *spec.Header) {
	var lines []string
	for _, s := range d.short {
		lines = append(lines, fmt.Sprintf("%s: %s", s[0], s[1]))
	}
	for _, f := range h.Fields {
		if text := describe(f, true); text != "" {
			lines = append(lines, f.Name.Value+": "+text)
		}
	}
	if h.Closed {
		lines = append(lines, "nothing may follow")
	}
	if len(lines) > 0 {
		d.out.WriteString("\n" + strings.Join(lines, "\n") + "\n")
	}
}

// describe says what a field has to be or count, and with lists how the elements of a list look.
func describe(f *spec.Field, lists bool) string {
	var parts []string
	if f.Little {
		parts = append(parts, "little endian")
	}
	if f.Is != nil {
		parts = append(parts, constraint(f.Is))
	}
	if c := f.Counts; c != nil {
		parts = append(parts, counts(c))
	}
	if c := f.Checksum; c != nil {
		parts = append(parts, "internet checksum over "+covers[c.Covers]+pick(len(c.Pseudo) > 0, " and a pseudo-header",
			""))
	}
	if lists {
		for _, e := range f.Elements {
			parts = append(parts, elements(e))
		}
	}
	return strings.Join(parts, "; ")
}

var covers = map[string]string{
	"header": "this header", "all": "this header and all that follows", "payload": "what follows",
}

func counts(c *spec.Counts) string {
	text := "length of "
	if c.What == "all" {
		text += "this header and what follows"
	} else {
		text += covers[c.What]
	}
	if c.Unit == 1 {
		text += " in bytes"
	} else {
		text += fmt.Sprintf(" in units of %d bytes", c.Unit)
	}
	switch {
	case c.Bias > 0:
		text += fmt.Sprintf(", plus %d", c.Bias)
	case c.Bias < 0:
		text += fmt.Sprintf(", minus %d", -c.Bias)
	}
	switch {
	case c.Slack < 0 && c.Data:
		text += "; any number of bytes may follow"
	case c.Slack < 0:
		text += "; padding may follow"
	case c.Slack > 0 && c.Data:
		text += fmt.Sprintf("; up to %d bytes may follow", c.Slack)
	case c.Slack > 0:
		text += fmt.Sprintf("; up to %d bytes of padding may follow", c.Slack)
	}
	return text
}

func elements(e *spec.Elements) string {
	text := fmt.Sprintf("elements of an identifier of %d bits, a length of %d", e.ID, e.Len)
	if e.Bias != 0 {
		text += fmt.Sprintf(" plus %d", e.Bias)
	}
	text += " and as many bytes"
	if e.Pad >= 0 {
		text += fmt.Sprintf(", %d for padding", e.Pad)
	}
	if e.Stop >= 0 {
		text += fmt.Sprintf(", %d at the end", e.Stop)
	}
	if e.When != nil {
		text += ", when " + expression(e.When)
	}
	return text
}

func center(text string, width int) string {
	left := (width - len(text)) / 2
	return strings.Repeat(" ", left) + text + strings.Repeat(" ", width-len(text)-left)
}

func pick[T any](cond bool, yes, no T) T {
	if cond {
		return yes
	}
	return no
}
