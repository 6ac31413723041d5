package diagram

import (
	"fmt"
	"strings"

	"github.com/fastrelay/fastrelay-gen/spec"
)

// Sizes of a header's picture: a bit, a row, and what is to the left of the rows.
const (
	bitWidth  = 22
	rowHeight = 32
	leftSide  = 44
)

const gridStyle = `stroke="` + ink + `" stroke-width="1.2" fill="none"`

// Layout is the picture of a header: rows of 32 bits, as in Header.
func Layout(h *spec.Header) *Picture {
	d := &layout{Picture: &Picture{width: leftSide + rowBits*bitWidth + 2}}
	d.text(0, 14, h.Name.Value, `font-size="15" font-weight="700"`)
	d.y = 26
	d.ruler()
	for _, f := range h.Fields {
		if bits, fixed := fixedBits(f); fixed {
			d.add(f, bits)
			continue
		}
		d.flush()
		d.variable(f)
	}
	d.flush()
	if !h.Closed || h.Trailer > 0 {
		d.band("payload", "", `fill="#f6f8fa" stroke="`+line+`" stroke-dasharray="2 3"`)
	}
	if h.Trailer > 0 {
		d.band("trailer", fmt.Sprintf("%d bytes", h.Trailer), `fill="#ffffff" stroke="`+ink+`"`)
	}
	d.notes(h)
	d.height = d.y
	return d.Picture
}

type layout struct {
	*Picture
	y      int
	cells  []int // for each bit that is not drawn yet, its field's index in fields
	fields []*spec.Field
	bytes  int  // from the header's first byte, or from the end of the last field of variable size
	moved  bool // there was one
	short  [][2]string
}

func (d *layout) column(bit int) int { return leftSide + bit*bitWidth }

// ruler numbers the bits.
func (d *layout) ruler() {
	for bit := range rowBits {
		style := `font-size="9" fill="` + muted + `"`
		if bit%8 == 0 {
			style = `font-size="9" font-weight="700"`
		}
		d.middle(d.column(bit)+bitWidth/2, d.y+8, fmt.Sprint(bit), style)
	}
	d.text(0, d.y+8, "byte", `font-size="9" fill="`+muted+`"`)
	d.y += 13
}

func (d *layout) add(f *spec.Field, bits int) {
	for range bits {
		d.cells = append(d.cells, len(d.fields))
	}
	d.fields = append(d.fields, f)
}

// offset writes where a row begins.
func (d *layout) offset(height int) {
	text := fmt.Sprint(d.bytes)
	if d.moved {
		text = "+" + text
	}
	d.text(leftSide-8, d.y+height/2+4, text, `text-anchor="end" font-size="10" fill="`+muted+`"`)
}

// flush draws the fields of fixed size that were added since the last one of another kind.
func (d *layout) flush() {
	rows := (len(d.cells) + rowBits - 1) / rowBits
	named := make([]bool, len(d.fields))
	for r := range rows {
		cells := d.cells[r*rowBits : min((r+1)*rowBits, len(d.cells))]
		height := d.tallest(cells)
		d.offset(height)
		d.row(r, cells, height, named)
		d.y += height
		d.bytes += (len(cells) + 7) / 8
	}
	d.cells, d.fields = nil, nil
}

// piece is a run of bits of one field in a row.
type piece struct{ field, start, end int }

func pieces(cells []int) (all []piece) {
	for start := 0; start < len(cells); {
		end := start
		for end < len(cells) && cells[end] == cells[start] {
			end++
		}
		all = append(all, piece{cells[start], start, end})
		start = end
	}
	return all
}

// How a name fits into its place: in one line, or upwards in a row that is higher for it; else by a number.
const (
	upwardSize = 11
	maxUpward  = 14 // characters
)

func across(name string, bits int) int { // the size of the font, 0: too long
	for _, size := range []int{12, 11, 10, 9} {
		if textWidth(name, size) <= bits*bitWidth-4 {
			return size
		}
	}
	return 0
}

func (d *layout) tallest(cells []int) int {
	height := rowHeight
	for _, p := range pieces(cells) {
		if name := d.fields[p.field].Name.Value; across(name, p.end-p.start) == 0 && len(name) <= maxUpward {
			height = max(height, textWidth(name, upwardSize)+14)
		}
	}
	return height
}

func (d *layout) row(r int, cells []int, height int, named []bool) {
	above := []int(nil)
	if r > 0 {
		above = d.cells[(r-1)*rowBits : r*rowBits]
	}
	y := d.y
	for _, p := range pieces(cells) {
		x, w := d.column(p.start), (p.end-p.start)*bitWidth
		f := d.fields[p.field]
		d.rect(x, y, w, height, `fill="`+pick(f.Is != nil, "#ddf4ff", "#ffffff")+`"`)
		first, last := d.extent(p.field)
		if !named[p.field] && labelRow(first, last) == r {
			named[p.field] = true
			d.name(f, p, height)
		}
		// The sides are faint where a field goes on from the middle of the row above, or to that of the row below.
		const faintStyle = gridStyle + ` stroke-opacity="0.35"`
		fromAbove := first < r*rowBits && first%rowBits > 0
		d.path(fmt.Sprintf("M%d %dv%d", x, y, height), pick(fromAbove, faintStyle, gridStyle))
		if p.end == len(cells) {
			goesOn := last >= (r+1)*rowBits && last%rowBits < rowBits-1
			d.path(fmt.Sprintf("M%d %dv%d", x+w, y, height), pick(goesOn, faintStyle, gridStyle))
		}
	}
	for bit := range max(len(cells), len(above)) {
		if bit < len(cells) && bit < len(above) && cells[bit] == above[bit] {
			continue
		}
		d.path(fmt.Sprintf("M%d %dh%d", d.column(bit), y, bitWidth), gridStyle)
	}
	if (r+1)*rowBits >= len(d.cells) {
		d.path(fmt.Sprintf("M%d %dh%d", d.column(0), y+height, len(cells)*bitWidth), gridStyle)
	}
}

// extent is the first and the last bit of a field among those that are drawn together.
func (d *layout) extent(field int) (first, last int) {
	for first < len(d.cells) && d.cells[first] != field {
		first++
	}
	last = first
	for last+1 < len(d.cells) && d.cells[last+1] == field {
		last++
	}
	return first, last
}

// labelRow is the row that has the name of a field: the middle one of those that it fills, or the one that has more of
// it.
func labelRow(first, last int) int {
	middle := (first + last) / 2 / rowBits
	if first%rowBits != 0 && last/rowBits-first/rowBits == 1 {
		middle = first / rowBits
		if last%rowBits >= rowBits-first%rowBits {
			middle++
		}
	}
	return middle
}

func (d *layout) name(f *spec.Field, p piece, height int) {
	name := f.Name.Value
	x, bits := d.column(p.start), p.end-p.start
	mid := x + bits*bitWidth/2
	size := across(name, bits)
	switch {
	case size > 0:
		d.middle(mid, d.y+height/2+4, name, fmt.Sprintf(`font-size="%d"`, size))
	case len(name) <= maxUpward:
		at := d.y + height/2
		d.middle(mid+4, at, name, fmt.Sprintf(`font-size="%d" transform="rotate(-90 %d %d)"`, upwardSize, mid+4, at))
	default:
		mark := fmt.Sprintf("%d)", len(d.short)+1)
		d.short = append(d.short, [2]string{mark, name})
		d.middle(mid, d.y+height/2+4, mark, `font-size="10" font-style="italic"`)
	}
}

// band is a row of its own over the whole width.
func (d *layout) band(name, text, style string) {
	const room, small = rowBits*bitWidth - 16, `font-size="11" fill="` + muted + `"`
	beside := text // of the name; what doesn't fit there is below
	var below []string
	if textWidth(name+"  "+text, 12) > room {
		beside, below = "", wrap(text, room*1000/(11*602))
	}
	height := 31 + 15*len(below)
	d.rect(d.column(0), d.y, rowBits*bitWidth, height, style+` stroke-width="1.2"`)
	d.text(d.column(0)+8, d.y+20, name, `font-weight="600"`)
	d.text(d.column(0)+8+textWidth(name+"  ", 12), d.y+20, beside, small)
	for i, t := range below {
		d.text(d.column(0)+8, d.y+35+15*i, t, small)
	}
	d.y += height
}

// variable draws a field that has no fixed size, or may be absent.
func (d *layout) variable(f *spec.Field) {
	d.offset(31)
	style := `fill="#fff8e6" stroke="` + ink + `"`
	if f.When != nil {
		style += ` stroke-dasharray="6 4"`
	}
	d.band(f.Name.Value, extent(f), style)
	for _, e := range f.Elements {
		d.form(e)
	}
	d.bytes, d.moved = 0, true
}

// form draws a form of the elements of a list.
func (d *layout) form(e *spec.Elements) {
	const height = 24
	when := "each element"
	if e.When != nil {
		when += ", when " + expression(e.When)
	}
	if e.Pad >= 0 {
		when += fmt.Sprintf("; id %d is a byte of padding", e.Pad)
	}
	if e.Stop >= 0 {
		when += fmt.Sprintf("; id %d ends the list", e.Stop)
	}
	d.text(d.column(1), d.y+14, when, `font-size="10" fill="`+muted+`"`)
	d.y += 19
	content := "content: length bytes"
	if e.Bias != 0 {
		content = fmt.Sprintf("content: length + %d bytes", e.Bias)
	}
	at := d.column(1)
	for _, part := range []struct {
		bits int
		text string
	}{{e.ID, "id"}, {e.Len, "length"}, {20 - e.ID - e.Len + 4, content}} {
		w := part.bits * bitWidth
		d.rect(at, d.y, w, height, `fill="#ffffff" stroke="`+line+`"`)
		d.middle(at+w/2, d.y+16, part.text, `font-size="11"`)
		at += w
	}
	d.y += height + 6
}

// notes says what the picture can't show.
func (d *layout) notes(h *spec.Header) {
	d.y += 6
	write := func(name, text string) {
		const size = 11
		room := (rowBits*bitWidth - textWidth(name+"  ", size)) * 1000 / (size * 602)
		for i, t := range wrap(text, max(room, 20)) {
			d.y += 15
			if i == 0 {
				d.text(d.column(0), d.y, name, `font-size="11" font-weight="600"`)
			}
			d.text(d.column(0)+textWidth(name+"  ", size), d.y, strings.TrimPrefix(t, indent),
				`font-size="11" fill="`+muted+`"`)
		}
	}
	for _, s := range d.short {
		write(s[0], s[1])
	}
	for _, f := range h.Fields {
		if text := describe(f, false); text != "" {
			write(f.Name.Value, text)
		}
	}
	if h.Closed {
		write("end", "nothing may follow")
	}
	d.y += 6
}
