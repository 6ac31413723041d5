package cli

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/fastrelay/fastrelay-gen/gen/always"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
	"github.com/fastrelay/fastrelay-gen/internal/planfmt"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// alwaysPunted is what programs of a spec always pass to the stack, as `vet --format json` has it.
type alwaysPunted struct {
	File     string   `json:"file"`
	Programs []string `json:"programs"`
	Reason   string   `json:"reason"`
	Text     string   `json:"text"`
	Such     []string `json:"such_as,omitempty"`
	In       []string `json:"in,omitempty"`
	But      string   `json:"but,omitempty"`
}

// collectAlways joins what is the same in several programs.
func collectAlways(file string, s *spec.Spec, p *ir.Plan) (all []alwaysPunted) {
	for _, prog := range p.Programs {
		for _, punt := range always.Punts(s, prog) {
			x := alwaysPunted{
				File: file, Programs: []string{prog.Name}, Reason: punt.Reason.Name, Text: punt.Reason.Doc,
				Such: punt.Such, In: punt.In, But: punt.But,
			}
			i := slices.IndexFunc(all, func(y alwaysPunted) bool {
				return y.Reason == x.Reason && y.Text == x.Text && y.But == x.But && slices.Equal(y.Such, x.Such) &&
					slices.Equal(y.In, x.In)
			})
			if i < 0 {
				all = append(all, x)
			} else {
				all[i].Programs = append(all[i].Programs, prog.Name)
			}
		}
	}
	return all
}

// alwaysText is a section for each group of programs that have reasons in common.
func alwaysText(all []alwaysPunted, programs int) (lines []string) {
	width := 0
	for _, x := range all {
		width = max(width, len(x.Reason))
	}
	var done []string
	for _, first := range all {
		who := strings.Join(first.Programs, ", ")
		if slices.Contains(done, who) {
			continue
		}
		done = append(done, who)
		if len(first.Programs) == programs && programs > 1 {
			who = "all programs"
		}
		lines = append(lines, fmt.Sprintf("  always to the stack, whatever the rules say (%s):", who))
		for _, x := range all {
			if !slices.Equal(x.Programs, first.Programs) {
				continue
			}
			text := x.Text
			if len(x.Such) > 0 {
				text += ": " + strings.Join(x.Such, ", ")
			}
			if len(x.In) > 0 {
				text += ", in " + strings.Join(x.In, " or ")
			}
			if x.But != "" {
				text += ", " + x.But
			}
			lines = append(lines, fmt.Sprintf("    %-*s  %s", width, x.Reason, text))
		}
	}
	return lines
}

// leftByXDP is what a program's rules do that XDP leaves to tc/ingress, as `vet --format json` has it.
type leftByXDP struct {
	File    string `json:"file"`
	Program string `json:"program"`
	What    string `json:"what"`
	Line    int    `json:"line"`
	Column  int    `json:"column"`
}

// addLeft adds what XDP leaves. A program of which it takes nothing has a warning instead.
func (f *findings) addLeft(file string, p *ir.Plan) {
	for _, prog := range p.Programs {
		if prog.XDP == nil || len(prog.Left) == 0 {
			continue
		}
		f.fine = append(f.fine, fmt.Sprintf("  %s (%s)", planfmt.Left(prog), prog.Name))
		for _, l := range prog.Left {
			f.left = append(f.left, leftByXDP{cmp.Or(l.Pos.File, file), prog.Name, l.What, l.Pos.Line, l.Pos.Column})
		}
	}
}

// vetJSON writes messages, as all commands do, what always passes to the stack, and what XDP leaves.
func (a *app) vetJSON(found *findings) error {
	enc := json.NewEncoder(a.out)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(struct {
		Diagnostics *diag.List     `json:"diagnostics"`
		Always      []alwaysPunted `json:"always_up"`
		Left        []leftByXDP    `json:"left_by_xdp"`
	}{&found.mistakes, found.always, found.left})
}
