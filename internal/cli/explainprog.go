package cli

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"cuelang.org/go/cue/ast"
	"cuelang.org/go/cue/parser"
	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/build"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
	"github.com/fastrelay/fastrelay-gen/internal/disasm"
	"github.com/fastrelay/fastrelay-gen/internal/planfmt"
	"github.com/fastrelay/fastrelay-gen/runtime/abi"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// lines is a range of lines of the spec, both ends included.
type lines struct{ first, last int }

func (l lines) has(line int) bool { return l.first <= line && line <= l.last }

// explainProgram shows what became of a program, or of one of its rules: the spec's text, the
// plan, the C, the instructions.
func (a *app) explainProgram(ctx context.Context, file string, opt explainOptions) error {
	r, err := a.compile(ctx, file, build.Options{})
	if err != nil {
		return err
	}
	prog, pos, err := findPiece(r, opt)
	if err != nil {
		return err
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	piece := extent(text, pos)
	planned, err := findPlan(r.Plan, prog.Name.Value)
	if err != nil {
		return err
	}
	a.heading("spec", fmt.Sprintf("%s:%d", file, piece.first))
	all := strings.Split(string(text), "\n")
	for n := piece.first; n <= piece.last && n <= len(all); n++ {
		fmt.Fprintf(a.out, "%5d  %s\n", n, all[n-1])
	}
	a.heading("plan", "")
	if opt.rule == "" {
		fmt.Fprint(a.out, planfmt.Program(r.Plan, planned))
	} else {
		fmt.Fprint(a.out, planfmt.Block(r.Plan.Pos.File, planned, within(planned.Body, r.Plan.Pos.File, piece)))
	}
	a.heading("C", filepath.Join(r.Dir, build.SourceName))
	fmt.Fprint(a.out, sourceOf(string(r.Files[build.SourceName]), r.Lines, filepath.Base(file), piece))
	a.heading("instructions", build.ObjectName)
	return a.instructions(r, planned.Name, piece, opt.rule != "")
}

func (a *app) heading(what, where string) {
	if where != "" {
		what += " (" + where + ")"
	}
	fmt.Fprintf(a.out, "\n--- %s %s\n", what, strings.Repeat("-", max(2, 100-len(what))))
}

// findPiece returns the program and the position of what is asked for.
func findPiece(r *build.Result, opt explainOptions) (*spec.Program, diag.Pos, error) {
	var names []string
	for _, p := range r.Spec.Programs {
		if p.Name.Value != opt.program {
			names = append(names, p.Name.Value)
			continue
		}
		if opt.rule == "" {
			return p, p.Name.Pos, nil
		}
		pos, err := findRule(p, opt.rule)
		return p, pos, err
	}
	return nil, diag.Pos{}, unknown("program", opt.program, names)
}

// findRule finds rule "2", or rule "2.1": the first one of the fan-out of the second one.
func findRule(p *spec.Program, path string) (diag.Pos, error) {
	where, rules := fmt.Sprintf("program %q", p.Name.Value), p.Rules
	outer, inner, deep := strings.Cut(path, ".")
	rule, err := nthRule(where, rules, outer)
	if err != nil || !deep {
		return rule.Pos, err
	}
	where = fmt.Sprintf("the fan_out of rule %s", outer)
	for _, action := range rule.Do {
		if action.FanOut != nil {
			rule, err := nthRule(where, action.FanOut.Rules, inner)
			return rule.Pos, err
		}
	}
	return diag.Pos{}, &diag.Diagnostic{
		Code: codeUnknown, Message: fmt.Sprintf("rule %s of program %q has no fan_out", outer, p.Name.Value),
	}
}

// nthRule returns the rule of a number, as written; an empty one with an error.
func nthRule(where string, rules []*spec.Rule, number string) (*spec.Rule, error) {
	n, err := strconv.Atoi(number)
	if err != nil {
		return &spec.Rule{}, usage("%q isn't the number of a rule", number).
			hint("for example --rule 2, or --rule 2.1 for the first one of its fan_out")
	}
	if n < 1 || n > len(rules) {
		return &spec.Rule{}, &diag.Diagnostic{Code: codeUnknown, Message: fmt.Sprintf("%s has no rule %d", where, n),
			Hint: fmt.Sprintf("it has %s, counted from 1", plural(len(rules), "rule"))}
	}
	return rules[n-1], nil
}

func findPlan(plan *ir.Plan, name string) (*ir.Program, error) {
	for _, p := range plan.Programs {
		if p.Name == name {
			return p, nil
		}
	}
	return nil, fmt.Errorf("the plan has no program %q", name)
}

// extent returns the lines of what begins at pos in a spec: the largest piece of CUE that does.
func extent(text []byte, pos diag.Pos) lines {
	out := lines{pos.Line, pos.Line}
	f, err := parser.ParseFile("", text)
	if err != nil {
		return out
	}
	ast.Walk(f, func(n ast.Node) bool {
		if _, whole := n.(*ast.File); !whole && n.Pos().IsValid() && n.Pos().Line() == pos.Line &&
			n.Pos().Column() == pos.Column {
			out.last = max(out.last, n.End().Line())
		}
		return true
	}, nil)
	return out
}

// within returns the outermost statements that come from the lines of the file.
func within(body []ir.Stmt, file string, l lines) []ir.Stmt {
	var out []ir.Stmt
	for _, s := range body {
		if pos := ir.Pos(s); pos.File == file && l.has(pos.Line) {
			out = append(out, s)
			continue
		}
		for block := range ir.Blocks(s) {
			out = append(out, within(*block, file, l)...)
		}
	}
	return out
}

// functionHead matches the first line of a function.
var functionHead = regexp.MustCompile(`^\w.*\(.*[,)]$`)

// sourceOf returns the C that comes from the lines of the spec, with the head of each function that has some of it.
// Gaps are shown as one line. places has the position in the spec of each line of the C.
func sourceOf(c string, places []diag.Pos, file string, l lines) string {
	var b strings.Builder
	gap, open, head := false, false, ""
	for i, text := range strings.Split(c, "\n") {
		if i < len(places) && filepath.Base(places[i].File) == file && l.has(places[i].Line) {
			if head != "" {
				if b.Len() > 0 {
					b.WriteString("\n")
				}
				b.WriteString(head + "\n")
				head = ""
			}
			if gap {
				b.WriteString("\t…\n")
			}
			gap = false
			b.WriteString(text + "\n")
			continue
		}
		switch {
		case functionHead.MatchString(text):
			head, open = text, !strings.HasSuffix(text, ")")
		case open: // the parameters go on
			head, open = head+"\n"+text, !strings.HasSuffix(text, ")")
		}
		gap = true
	}
	return b.String()
}

// instructions lists the program's instructions; part: only those that come from the lines.
func (a *app) instructions(r *build.Result, program string, l lines, part bool) error {
	collection, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(r.Object()))
	if err != nil {
		return fmt.Errorf("read the object: %w", err)
	}
	prog := collection.Programs[abi.ProgramPrefix+program]
	if prog == nil {
		prog = collection.Programs[abi.XDPPrefix+program] // which runs there alone
	}
	if prog == nil {
		return fmt.Errorf("the object has no program %q", program)
	}
	file, inside, last := filepath.Base(r.File), !part, ""
	for _, line := range disasm.Program(prog.Instructions) {
		if source, ok := line.Ins.Source().(*btf.Line); ok {
			if part {
				inside = filepath.Base(source.FileName()) == file && l.has(int(source.LineNumber()))
			}
			if place := fmt.Sprintf("; %s:%d\n", filepath.Base(source.FileName()), source.LineNumber()); inside &&
				place != last {
				fmt.Fprint(a.out, place)
				last = place
			}
		}
		if line.Label != "" && !part {
			fmt.Fprintf(a.out, "%s:\n", line.Label)
		}
		if inside {
			fmt.Fprintf(a.out, "%5d  %s\n", line.Index, line.Text)
		}
	}
	return nil
}
