package clang

import (
	"fmt"
	"path"
	"strings"

	"github.com/fastrelay/fastrelay-gen/internal/diag"
)

// clang reads a copy of a program in which #line directives say which lines come from the spec. It keeps that in the
// object's BTF, so that the verifier's log names the spec's lines.

// annotate returns the copy. lines has the position of each line of source; a line without one belongs to source
// itself. A statement of several lines takes one line of the copy, since a directive may not be in the middle of it.
func annotate(source string, lines []diag.Pos) string {
	var out []string
	file, next := "", 0 // what clang takes the next line for
	text := strings.Split(strings.TrimRight(source, "\n"), "\n")
	for i := 0; i < len(text); i++ {
		line, pos, n := text[i], diag.Pos{}, i+1
		if i < len(lines) {
			pos = lines[i]
		}
		if bare(line) == "" {
			if pos = (diag.Pos{}); file == sourceName && next == n {
				out, next = append(out, line), next+1
			}
			continue
		}
		wantFile, wantLine := sourceName, n
		if pos.IsValid() {
			wantFile, wantLine = fileName(pos.File), pos.Line
			for !ends(line) && i+1 < len(lines) && lines[i+1] == pos {
				i++
				line += " " + strings.TrimSpace(text[i])
			}
		}
		if file != wantFile || next != wantLine {
			out = append(out, fmt.Sprintf("#line %d \"%s\"", wantLine, wantFile))
			file, next = wantFile, wantLine
		}
		out, next = append(out, line), next+1
	}
	return strings.Join(out, "\n") + "\n"
}

// bare is what a line has beside a comment.
func bare(line string) string {
	line = strings.TrimSpace(line)
	if strings.HasPrefix(line, "/*") || strings.HasPrefix(line, "* ") || line == "*/" || line == "*" {
		return ""
	}
	code, _, _ := strings.Cut(line, "/*")
	return strings.TrimSpace(code)
}

// ends reports whether a statement, or the head of a block, ends with a line.
func ends(line string) bool {
	return strings.HasSuffix(bare(line), ";") || strings.HasSuffix(bare(line), "{") ||
		strings.HasSuffix(bare(line), "}")
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
