package diagram

import (
	"fmt"
	"strings"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
)

// Sizes of a decision's picture: stages below each other on the left, where packets end on the right.
const (
	stageWidth = 352
	turnIndent = 18
	exitsLeft  = 408
	exitsWidth = 454
	labelWidth = 92 // of what happens to packets, in front of the reasons
	lineHeight = 16
	chipHeight = 19
	rateRoom   = 62 // beside a reason
)

// looks are the colours of an end, and the word for it.
var looks = map[ir.ReasonKind]struct{ word, stroke, fill, means string }{
	ir.Sent:     {"sent", "#1a7f37", "#dafbe1", "rewritten and sent"},
	ir.Copied:   {"copy", "#1a7f37", "#dafbe1", "a copy was sent to a receiver"},
	ir.Passed:   {"pass", "#0969da", "#ddf4ff", "to the network stack, as the spec says"},
	ir.Dropped:  {"drop", "#cf222e", "#ffebe9", "dropped, as the spec says"},
	ir.Punted:   {"to the stack", "#57606a", "#f6f8fa", "unmodified: the relay doesn't handle it"},
	ir.Declined: {"declined", "#9a6700", "#fff8c5", "no copy for a receiver"},
	ir.Fault:    {"fault", "#82071e", "#ffcecb", "lost: the kernel failed after the first change"},
}

// Picture draws a decision. With rates, there is room for numbers beside its reasons and between its stages, and its
// elements say whose they are (data-program, data-reason, data-stage).
func (d *Decision) Picture(rates bool) *Picture {
	p := &decisionPicture{Picture: &Picture{width: exitsLeft + exitsWidth}, program: d.Program, rates: rates}
	p.text(0, 14, "program "+d.Program, `font-size="15" font-weight="700"`)
	y := 30
	var turns int // where the receivers' turns begin
	for n, s := range d.Stages {
		if s.Turn && !d.Stages[n-1].Turn {
			turns = y - 12
		}
		box, height := p.stage(n, s, y)
		if s.Turn && (n+1 == len(d.Stages) || !d.Stages[n+1].Turn) {
			p.path(fmt.Sprintf("M4 %dV%d", turns, y+height),
				`stroke="`+looks[ir.Declined].stroke+`" stroke-width="3" stroke-opacity="0.5" fill="none"`)
		}
		y += height
		if n+1 < len(d.Stages) {
			p.next(s, d.Stages[n+1], y-height+box, y)
			y += 26
		}
	}
	p.height = y
	p.legend(d)
	return p.Picture
}

type decisionPicture struct {
	*Picture
	program string
	rates   bool
}

func (p *decisionPicture) left(s *Stage) int {
	if s.Turn {
		return turnIndent
	}
	return 0
}

// stage draws a stage with its ends, and returns how high its box is, and all of it.
func (p *decisionPicture) stage(n int, s *Stage, y int) (box, all int) {
	left := p.left(s)
	width := stageWidth - left
	room := (width - 20) * 1000 / (12 * 602)
	var lines [][2]string // text, style
	add := func(all []string, style string) {
		for _, text := range all {
			for _, part := range wrap(text, room) {
				lines = append(lines, [2]string{part, style})
			}
		}
	}
	add(s.Conditions, `fill="`+muted+`"`)
	conditions := len(lines)
	add(s.Actions, "")
	height := 27 + lineHeight*len(lines)
	if conditions > 0 && len(lines) > conditions {
		height += 6
	}
	exits := &exitList{p: p, x: exitsLeft, y: y}
	exits.place(s.Exits)
	stroke := line
	if s.Rule || len(s.Actions) > 0 {
		stroke = ink
	}
	p.rect(left, y, width, height, `rx="6" fill="#ffffff" stroke="`+stroke+`"`)
	p.text(left+10, y+18, s.Title, `font-weight="700"`)
	if p.rates {
		p.number(left+width-10, y+18, fmt.Sprintf(`class="flow" fill="%s" data-program="%s" data-stage="%d"`, muted,
			escape(p.program), n))
	}
	at := y + 18
	for i, l := range lines {
		if i == conditions && i > 0 {
			p.path(fmt.Sprintf("M%d %dh%d", left+1, at+8, width-2), `stroke="`+faint+`"`)
			at += 6
		}
		at += lineHeight
		x := left + 10
		if strings.HasPrefix(l[0], indent) {
			x += textWidth(indent, 12)
		}
		p.text(x, at, strings.TrimPrefix(l[0], indent), l[1])
	}
	exits.arrows(left + width)
	return height, max(height, exits.y-y)
}

// next draws how a packet gets to the next stage.
func (p *decisionPicture) next(s, to *Stage, from, y int) {
	x := stageWidth / 2
	p.arrow(x, from, x, y+24)
	word := ""
	switch {
	case to.Turn && !s.Turn:
		word = "each receiver in turn"
	case s.Turn && !to.Turn:
		word = "if the rule of the packet doesn't apply"
	case s.Rule:
		word = "else"
	}
	p.text(x+9, y+16, word, `font-size="11" fill="`+muted+`"`)
}

// exitList places the ends of a stage: a line or more for each kind.
type exitList struct {
	p      *decisionPicture
	x, y   int
	groups []int // where the arrows end
}

func (l *exitList) place(exits []Exit) {
	at := 0
	for i, e := range exits {
		look := looks[e.Reason.Kind]
		name := e.Reason.Name
		width := textWidth(name, 11) + 12
		if l.p.rates {
			width += rateRoom
		}
		switch {
		case i == 0 || exits[i-1].Reason.Kind != e.Reason.Kind:
			if i > 0 {
				l.y += chipHeight + 8
			} else {
				l.y += 4
			}
			at = labelWidth + 8
			l.groups = append(l.groups, l.y+chipHeight/2)
			l.p.rect(l.x, l.y, labelWidth, chipHeight, `rx="4" fill="`+look.stroke+`"`)
			l.p.middle(l.x+labelWidth/2, l.y+13, look.word, `font-size="11" font-weight="700" fill="#ffffff"`)
		case at+width > exitsWidth:
			l.y += chipHeight + 4
			at = labelWidth + 8
		}
		l.chip(e, l.x+at, width)
		at += width + 5
	}
	if len(exits) > 0 {
		l.y += chipHeight + 4
	}
}

// arrows lead from the right side of the stage's box to each kind.
func (l *exitList) arrows(from int) {
	if len(l.groups) == 0 {
		return
	}
	const style = `stroke="` + line + `" stroke-width="1.5" fill="none"`
	trunk := l.x - 26
	first, last := l.groups[0], l.groups[len(l.groups)-1]
	l.p.path(fmt.Sprintf("M%d %dH%d", from, first, trunk), style)
	l.p.path(fmt.Sprintf("M%d %dV%d", trunk, first, last), style)
	for _, g := range l.groups {
		l.p.arrow(trunk, g, l.x-2, g)
	}
}

func (l *exitList) chip(e Exit, x, width int) {
	look := looks[e.Reason.Kind]
	p := l.p
	fmt.Fprintf(&p.b, "<g class=\"exit\" data-program=\"%s\" data-reason=\"%s\"><title>%s</title>\n", escape(p.program),
		escape(e.Reason.Name), escape(e.Reason.Name+" ("+look.word+"): "+e.Reason.Doc))
	dashes := ""
	if e.Shared {
		dashes = ` stroke-dasharray="4 2"`
	}
	p.rect(x, l.y, width, chipHeight, `rx="4" fill="`+look.fill+`" stroke="`+look.stroke+`"`+dashes)
	p.text(x+6, l.y+13, e.Reason.Name, `font-size="11"`)
	if p.rates {
		p.number(x+width-6, l.y+13, `class="rate" font-size="11" font-weight="700"`)
	}
	p.b.WriteString("</g>\n")
}

// number is a place for a number, which is written later.
func (p *decisionPicture) number(x, y int, attributes string) {
	fmt.Fprintf(&p.b, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\" %s></text>\n", x, y, attributes)
}

// legend explains what the picture has.
func (p *decisionPicture) legend(d *Decision) {
	p.height += 14
	shared := false
	for _, kind := range kinds {
		used := false
		for _, s := range d.Stages {
			for _, e := range s.Exits {
				used = used || e.Reason.Kind == kind
				shared = shared || e.Shared
			}
		}
		if look := looks[kind]; used {
			p.rect(0, p.height, labelWidth, 15, `rx="4" fill="`+look.stroke+`"`)
			p.middle(labelWidth/2, p.height+11, look.word, `font-size="10" font-weight="700" fill="#ffffff"`)
			p.text(labelWidth+8, p.height+11, look.means, `font-size="10" fill="`+muted+`"`)
			p.height += 19
		}
	}
	if shared {
		p.rect(0, p.height, labelWidth, 15, `rx="4" fill="none" stroke="`+muted+`" stroke-dasharray="4 2"`)
		p.text(labelWidth+8, p.height+11, "a reason of several places, which have one counter",
			`font-size="10" fill="`+muted+`"`)
		p.height += 19
	}
}
