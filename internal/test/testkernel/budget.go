package testkernel

import (
	"bufio"
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
)

// Program names a program on a kernel series.
type Program struct {
	Spec   string // folder
	Name   string
	Kernel ir.Version
}

func (p Program) String() string {
	return fmt.Sprintf("%s, program %s, Linux %d.%d", p.Spec, p.Name, p.Kernel.Major, p.Kernel.Minor)
}

// Budget is what programs may cost.
type Budget map[Program]Cost

const budgetHeader = `
# What each program costs in the kernel's verifier: instructions processed, states kept, and bytes of stack, of the
# calls that need most together; and its size as loaded, in instructions. make test-kernels fails where a figure is
# higher; FASTRELAY_UPDATE=1 records it.
`

// String returns the budget as it is stored.
func (b Budget) String() string {
	var s strings.Builder
	s.WriteString(strings.TrimPrefix(budgetHeader, "\n"))
	fmt.Fprintf(&s, "%-22s %-16s %-6s %12s %7s %6s %6s\n",
		"# spec", "program", "kernel", "instructions", "states", "stack", "size")
	programs := slices.SortedFunc(maps.Keys(b), func(x, y Program) int {
		return cmp.Or(cmp.Compare(x.Spec, y.Spec), cmp.Compare(x.Name, y.Name), compareSeries(x.Kernel, y.Kernel))
	})
	for _, p := range programs {
		c := b[p]
		fmt.Fprintf(&s, "%-22s %-16s %-6s %12d %7d %6d %6d\n",
			p.Spec, p.Name, fmt.Sprintf("%d.%d", p.Kernel.Major, p.Kernel.Minor), c.Instructions, c.States,
			c.Stack, c.Size)
	}
	return s.String()
}

func compareSeries(x, y ir.Version) int {
	return cmp.Or(cmp.Compare(x.Major, y.Major), cmp.Compare(x.Minor, y.Minor))
}

// ParseBudget reads what String wrote.
func ParseBudget(text string) (Budget, error) {
	b := Budget{}
	lines := bufio.NewScanner(strings.NewReader(text))
	for n := 1; lines.Scan(); n++ {
		if line := strings.TrimSpace(lines.Text()); line == "" || line[0] == '#' {
			continue
		}
		var p Program
		var c Cost
		var kernel string
		_, err := fmt.Sscan(lines.Text(), &p.Spec, &p.Name, &kernel, &c.Instructions, &c.States, &c.Stack, &c.Size)
		if err == nil {
			p.Kernel, err = ParseSeries(kernel)
		}
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		if _, dup := b[p]; dup {
			return nil, fmt.Errorf("line %d: %s is there twice", n, p)
		}
		b[p] = c
	}
	return b, lines.Err()
}

// Record replaces the budget of all measured kernels by measured, and keeps that of the others.
func (b Budget) Record(measured Budget) {
	kernels := measured.kernels()
	maps.DeleteFunc(b, func(p Program, _ Cost) bool { return kernels[p.Kernel] })
	maps.Copy(b, measured)
}

func (b Budget) kernels() map[ir.Version]bool {
	kernels := map[ir.Version]bool{}
	for p := range b {
		kernels[p.Kernel] = true
	}
	return kernels
}

// Compare compares measured costs with the budget. Faults are costs above the recorded ones and, for recorded kernels,
// programs that only one of the two has. Gains are costs below the recorded ones, and kernels that aren't recorded.
func (b Budget) Compare(measured Budget) (faults, gains []string) {
	known := b.kernels()
	for p, got := range measured {
		want, ok := b[p]
		switch {
		case !ok && !known[p.Kernel]: // said once for all its programs
			continue
		case !ok:
			faults = append(faults, fmt.Sprintf("%s: not recorded", p))
			continue
		}
		for _, q := range []struct {
			what      string
			got, want int
		}{
			{"instructions processed", got.Instructions, want.Instructions},
			{"states", got.States, want.States},
			{"bytes of stack", got.Stack, want.Stack},
			{"instructions in size", got.Size, want.Size},
		} {
			text := fmt.Sprintf("%s: %d %s, recorded are %d", p, q.got, q.what, q.want)
			switch {
			case q.got > q.want:
				faults = append(faults, text)
			case q.got < q.want:
				gains = append(gains, text)
			}
		}
	}
	measuredKernels := measured.kernels()
	for k := range measuredKernels {
		if !known[k] {
			gains = append(gains, fmt.Sprintf("Linux %d.%d: nothing is recorded", k.Major, k.Minor))
		}
	}
	for p := range b {
		if _, ok := measured[p]; !ok && measuredKernels[p.Kernel] {
			faults = append(faults, fmt.Sprintf("%s: recorded, but not measured", p))
		}
	}
	slices.Sort(faults)
	slices.Sort(gains)
	return faults, gains
}

// Costs returns the programs' costs in a report. The verifier sees the same instructions on every architecture, so the
// kernel's architecture doesn't matter here.
func (r *Report) Costs() (Budget, error) {
	kernel, err := ParseSeries(r.Kernel)
	if err != nil {
		return nil, err
	}
	b := Budget{}
	for _, l := range r.Lines {
		if l.Cost != nil {
			b[Program{l.Spec, l.Program, kernel}] = *l.Cost
		}
	}
	return b, nil
}
