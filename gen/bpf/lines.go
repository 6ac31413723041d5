package bpf

import (
	"fmt"
	"path"
	"strconv"
	"strings"

	"github.com/fastrelay/fastrelay-gen/internal/diag"
)

// While a file is put together, a line that belongs to a line of the spec ends in a mark, which attribute replaces: #line in
// front of it where the compiler would attribute it to another line, and #line back to the generated file behind it.

const mark = "\x00"

// at marks a line with a position.
func (r *renderer) at(pos diag.Pos, text string) string {
	if !pos.IsValid() {
		return text
	}
	r.marks = append(r.marks, pos)
	return text + mark + strconv.Itoa(len(r.marks)-1)
}

// attribute replaces the marks. It returns the file and the position of each of its lines.
func (r *renderer) attribute(text string) (string, []diag.Pos) {
	var out []string
	var lines []diag.Pos
	put := func(line string, pos diag.Pos) {
		out, lines = append(out, line), append(lines, pos)
	}
	file, next := FileC, 1 // what the compiler takes the next line for
	var near diag.Pos
	for _, line := range strings.Split(strings.TrimRight(text, "\n"), "\n") {
		var pos diag.Pos
		if i := strings.Index(line, mark); i >= 0 {
			n, err := strconv.Atoi(line[i+1:])
			if err != nil {
				r.fail("mark %q", line)
				continue
			}
			pos = r.marks[n]
			line = line[:i]
		}
		wantFile, wantLine := FileC, len(out)+1
		if pos.IsValid() {
			wantFile, wantLine = fileName(pos.File), pos.Line
		}
		blank := strings.TrimSpace(line) == "" || strings.HasPrefix(strings.TrimSpace(line), "/*") || strings.HasPrefix(strings.TrimSpace(line), "*")
		if (file != wantFile || next != wantLine) && !blank {
			if !pos.IsValid() {
				wantLine++ // behind the directive
			}
			put(fmt.Sprintf("#line %d \"%s\"", wantLine, wantFile), diag.Pos{})
			file, next = wantFile, wantLine
		}
		switch {
		case pos.IsValid():
			near = pos
		case line == "}":
			near = diag.Pos{}
		}
		put(line, near)
		next++
	}
	return strings.Join(out, "\n") + "\n", lines
}

// fileName is how a file is called in #line: its last element, of harmless characters.
func fileName(file string) string {
	return strings.Map(func(c rune) rune {
		if c < ' ' || c == '"' || c == '\\' || c > '~' {
			return '_'
		}
		return c
	}, path.Base(file))
}
