package bpf

import (
	"strconv"
	"strings"

	"github.com/fastrelay/fastrelay-gen/internal/diag"
)

// While a file is put together, a line that belongs to a line of the spec ends in a mark. attribute takes the marks
// off, and breaks lines that are too long.

const mark = "\x00"

// at marks a line with a position.
func (r *renderer) at(pos diag.Pos, text string) string {
	if !pos.IsValid() {
		return text
	}
	r.marks = append(r.marks, pos)
	return text + mark + strconv.Itoa(len(r.marks)-1)
}

// attribute returns the file and the position of each of its lines.
func (r *renderer) attribute(text string) (string, []diag.Pos) {
	var out []string
	var lines []diag.Pos
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
		for _, part := range wrap(line) {
			out, lines = append(out, part), append(lines, pos)
		}
	}
	return strings.Join(out, "\n") + "\n", lines
}
