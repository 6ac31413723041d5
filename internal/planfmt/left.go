package planfmt

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
)

// Left says what XDP leaves of a program to tc/ingress, and in which lines of the spec; "" if it leaves nothing.
func Left(p *ir.Program) string {
	if len(p.Left) == 0 {
		return ""
	}
	var whats []string
	lines := map[string][]string{}
	for _, l := range p.Left {
		line := fmt.Sprint(l.Pos.Line)
		if l.Pos.File != p.Pos.File {
			line = filepath.Base(l.Pos.File) + ":" + line
		}
		if !slices.Contains(whats, l.What) {
			whats = append(whats, l.What)
		}
		if !slices.Contains(lines[l.What], line) {
			lines[l.What] = append(lines[l.What], line)
		}
	}
	for i, what := range whats {
		word := "line "
		if len(lines[what]) > 1 {
			word = "lines "
		}
		whats[i] += " (" + word + strings.Join(lines[what], ", ") + ")"
	}
	all := ""
	if p.XDP == nil {
		all = "all "
	}
	return "XDP leaves " + all + "to tc/ingress: " + strings.Join(whats, ", ")
}
