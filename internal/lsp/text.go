package lsp

import (
	"strings"
	"unicode/utf8"
)

// Positions of the protocol count UTF-16 code units, or bytes if a client offers that; ours count bytes.

// document is an open document.
type document struct {
	uri     string
	version int
	text    string
	lines   []int // where each line begins
	cancel  func()
}

func (d *document) set(text string) {
	d.text, d.lines = text, []int{0}
	for i := range len(text) {
		if text[i] == '\n' {
			d.lines = append(d.lines, i+1)
		}
	}
}

// line returns a line's text, and where it begins. Lines count from 0; after the last one comes nothing.
func (d *document) line(n int) (string, int) {
	if n < 0 || n >= len(d.lines) {
		return "", len(d.text)
	}
	end := len(d.text)
	if n+1 < len(d.lines) {
		end = d.lines[n+1]
	}
	return strings.TrimRight(d.text[d.lines[n]:end], "\r\n"), d.lines[n]
}

// offset is the place of a position in the text; what is beyond the end of a line is its end.
func (d *document) offset(p position, utf8Units bool) int {
	line, at := d.line(p.Line)
	if utf8Units {
		return at + min(max(p.Character, 0), len(line))
	}
	units := 0
	for i, c := range line {
		if units >= p.Character {
			return at + i
		}
		units += units16(c)
	}
	return at + len(line)
}

// position is the position of the byte that is the nth of a line; lines and bytes count from 0.
func (d *document) position(line, n int, utf8Units bool) position {
	text, _ := d.line(line)
	text = text[:min(max(n, 0), len(text))]
	if utf8Units {
		return position{line, len(text)}
	}
	units := 0
	for _, c := range text {
		units += units16(c)
	}
	return position{line, units}
}

// at is the position of a place in the text.
func (d *document) at(offset int, utf8Units bool) position {
	line := 0
	for line+1 < len(d.lines) && d.lines[line+1] <= offset {
		line++
	}
	return d.position(line, offset-d.lines[line], utf8Units)
}

func units16(c rune) int {
	if c > 0xffff && c != utf8.RuneError {
		return 2
	}
	return 1
}
