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

const budgetHeader = `# What the kernel's verifier makes of each program: instructions that it walked through, states that it kept, bytes of stack,
# and the instructions of the program as loaded. make test-kernels fails where one is worse, and FASTRELAY_UPDATE=1 records.
`

// String returns the budget as it is stored.
func (b Budget) String() string {
	var s strings.Builder
	s.WriteString(budgetHeader)
	fmt.Fprintf(&s, "%-22s %-16s %-6s %12s %7s %6s %6s\n", "# spec", "program", "kernel", "instructions", "states", "stack", "size")
	programs := slices.SortedFunc(maps.Keys(b), func(x, y Program) int {
		return cmp.Or(cmp.Compare(x.Spec, y.Spec), cmp.Compare(x.Name, y.Name), compareSeries(x.Kernel, y.Kernel))
	})
	for _, p := range programs {
		c := b[p]
		fmt.Fprintf(&s, "%-22s %-16s %-6s %12d %7d %6d %6d\n",
			p.Spec, p.Name, fmt.Sprintf("%d.%d", p.Kernel.Major, p.Kernel.Minor), c.Instructions, c.States, c.Stack, c.Size)
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

// Record makes measured the budget of all kernels that were measured, and keeps that of others.
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

// Compare compares what was measured with the budget. Faults are what is worse than recorded, and what isn't recorded or isn't
// there any more on a kernel that is. Gains ask to be recorded: what is better, and kernels of which nothing is known.
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
			{"instructions walked through", got.Instructions, want.Instructions},
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

// Costs returns what a report says that programs cost. The verifier looks at the same instructions on every architecture, so a
// kernel's architecture makes no difference here.
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
