package diagram

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"strings"
	"unicode/utf8"
)

// Picture is a part of an SVG document. Its size is known, so that parts can be put below each other. Text reaches it
// by escape only: whatever a spec says, it is text and never markup.
type Picture struct {
	b             strings.Builder
	width, height int
}

// SVG puts pictures below each other in a document of its own. The title is for those who can't see it.
func SVG(title string, parts ...*Picture) string {
	const margin, gap = 16, 28
	width, height := 0, margin
	var body strings.Builder
	for i, p := range parts {
		if i > 0 {
			height += gap
		}
		fmt.Fprintf(&body, "<g transform=\"translate(%d %d)\">\n%s</g>\n", margin, height, p.b.String())
		width, height = max(width, p.width), height+p.height
	}
	width, height = width+2*margin, height+margin
	var out strings.Builder
	fmt.Fprintf(&out, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%[1]d" height="%[2]d"`,
		width, height)
	fmt.Fprintf(&out, " role=\"img\" font-family=\"%s\" font-size=\"12\" fill=\"%s\">\n", mono, ink)
	fmt.Fprintf(&out, "<title>%s</title>\n", escape(title))
	fmt.Fprintf(&out, "<rect width=\"%d\" height=\"%d\" rx=\"8\" fill=\"#ffffff\"/>\n", width, height)
	return out.String() + body.String() + "</svg>\n"
}

const (
	mono = "ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace"

	// Colours, on white.
	ink, muted, line, faint = "#1f2328", "#57606a", "#8c959f", "#d0d7de"
)

// textWidth is the room that text takes in a font of fixed width, which is as wide as the widest of those in mono.
func textWidth(text string, size int) int {
	return (utf8.RuneCountInString(text)*size*602 + 999) / 1000
}

// escape makes any text fit for an element or an attribute. What XML can't have becomes U+FFFD.
func escape(text string) string {
	var b bytes.Buffer
	_ = xml.EscapeText(&b, []byte(text)) // a buffer takes everything
	return b.String()
}

// The style of an element is a text of this package, never of a spec.

func (p *Picture) rect(x, y, w, h int, style string) {
	fmt.Fprintf(&p.b, "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" %s/>\n", x, y, w, h, style)
}

func (p *Picture) path(d, style string) { fmt.Fprintf(&p.b, "<path d=\"%s\" %s/>\n", d, style) }

func (p *Picture) text(x, y int, text, style string) {
	if text != "" {
		style = strings.TrimSuffix(" "+style, " ")
		fmt.Fprintf(&p.b, "<text x=\"%d\" y=\"%d\"%s>%s</text>\n", x, y, style, escape(text))
	}
}

// middle is text in the middle of a box.
func (p *Picture) middle(x, y int, text, style string) {
	p.text(x, y, text, `text-anchor="middle" `+style)
}

// arrow draws an arrow down or to the right.
func (p *Picture) arrow(x1, y1, x2, y2 int) {
	head := fmt.Sprintf("M%d %dl-4 -6h8z", x2, y2)
	if x2 > x1 {
		head = fmt.Sprintf("M%d %dl-6 -4v8z", x2, y2)
	}
	p.path(fmt.Sprintf("M%d %dL%d %d", x1, y1, x2, y2), `stroke="`+line+`" stroke-width="1.5" fill="none"`)
	p.path(head, `fill="`+line+`"`)
}

const indent = "  "

// wrap breaks text into lines of at most so many characters, at spaces if there are any. Lines after the first are
// indented.
func wrap(text string, width int) []string {
	var lines []string
	for first := true; ; first = false {
		room := width
		if !first {
			room -= len(indent)
		}
		r := []rune(text)
		if len(r) <= room {
			return append(lines, pick(first, "", indent)+text)
		}
		cut := room
		for i := room; i > room/3; i-- {
			if r[i] == ' ' {
				cut = i
				break
			}
		}
		lines = append(lines, pick(first, "", indent)+string(r[:cut]))
		text = strings.TrimLeft(string(r[cut:]), " ")
	}
}
