// Package compile measures how the time of each stage of a build grows with a spec, and how soon commands end when they
// are told to.
package compile

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/fastrelay/fastrelay-gen/gen"
	"github.com/fastrelay/fastrelay-gen/gen/bpf"
	"github.com/fastrelay/fastrelay-gen/gen/glue"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/build"
	"github.com/fastrelay/fastrelay-gen/internal/clang"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
	"github.com/fastrelay/fastrelay-gen/internal/test/measure"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// Report is what came out.
type Report struct {
	Specs []Spec `json:"specs"`
	Ends  []End  `json:"ends"`
}

// Spec is one spec, and the milliseconds of each stage of its build.
type Spec struct {
	What   string             `json:"what"` // it has many of
	Size   int                `json:"size"` // how many
	Stages map[string]float64 `json:"stages_ms"`
}

// End is how soon a command ended after a signal, at worst.
type End struct {
	Command string  `json:"command"`
	Whole   float64 `json:"whole_ms"` // that it takes without a signal
	SIGINT  float64 `json:"sigint_ms"`
	SIGTERM float64 `json:"sigterm_ms"`
}

// Target is within how many milliseconds a command should end.
const Target = 100

var stages = []string{"load", "plan", "C", "Go", "rehearsal", "clang"}

// kinds are specs of any size, up to about what the language allows.
var kinds = []struct {
	what  string
	sizes []int
	text  func(n int) string
}{
	{"terms of an expression", []int{1, 4, 15, 60}, func(n int) string {
		return relay(2, rule(0, strings.Repeat("m.f0+", n-1)+"m.f1 == 7"))
	}},
	{"levels of parentheses", []int{1, 4, 15, 50}, func(n int) string {
		return relay(2, rule(0, strings.Repeat("(", n)+"m.f0"+strings.Repeat("^m.f1)", n)+" == 7"))
	}},
	{"fields of a header", []int{1, 8, 32, 128}, func(n int) string { return relay(n, rule(0, "m.f0 == 7")) }},
	{"rules of a program", []int{1, 16, 64, 200}, func(n int) string {
		var rules strings.Builder
		for i := range n {
			rules.WriteString(rule(i, fmt.Sprintf("m.f0 == %d", i)))
		}
		return relay(2, rules.String())
	}},
}

// relay is a spec with a header of some fields.
func relay(fields int, rules string) string {
	var list strings.Builder
	for i := range fields {
		fmt.Fprintf(&list, "{name: \"f%d\", bits: 32}, ", i)
	}
	return fmt.Sprintf(`name: "size"
headers: m: fields: [%s]
programs: p: {
	hook: "tc/ingress"
	stack: ["eth", "ip", "udp", "m"]
	rules: [
%s	]
}
`, &list, rules)
}

func rule(n int, when string) string {
	return fmt.Sprintf("\t\t{when: %q, do: [{drop: \"d%d\"}]},\n", when, n)
}

// Measure measures all.
func Measure(rounds int, progress io.Writer) (*Report, error) {
	dir, err := os.MkdirTemp("", "fastrelay-bench-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	if err := os.Unsetenv("FASTRELAY_OBJECTS"); err != nil { // clang is to compile each time
		return nil, err
	}
	r := &Report{}
	var largest string
	for _, k := range kinds {
		for _, n := range k.sizes {
			fmt.Fprintf(progress, "\r%-40s", fmt.Sprintf("%d %s", n, k.what))
			all := map[string][]float64{}
			for range rounds {
				if err := stagesOf(k.text(n), all); err != nil {
					return nil, fmt.Errorf("%d %s: %w", n, k.what, err)
				}
			}
			s := Spec{What: k.what, Size: n, Stages: map[string]float64{}}
			for stage, times := range all {
				s.Stages[stage] = measure.Median(times)
			}
			r.Specs = append(r.Specs, s)
			largest = k.text(n)
		}
	}
	path := filepath.Join(dir, "spec.cue")
	if err := os.WriteFile(path, []byte(largest), 0o600); err != nil {
		return nil, err
	}
	tool := filepath.Join(dir, "fastrelay-gen")
	if out, err := exec.Command("go", "build", "-o", tool, "./cmd/fastrelay-gen").CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%w: %s", err, out)
	}
	for _, command := range []string{
		"build", "vet", "fmt", "test", "doc", "diagram", "dissector", "explain", "dump plan", "dump c", "api",
	} {
		fmt.Fprintf(progress, "\r%-40s", command)
		e, err := endOf(command, rounds, tool, append(strings.Fields(command), path)...)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", command, err)
		}
		r.Ends = append(r.Ends, e)
	}
	fmt.Fprintf(progress, "\r%-40s\r", "")
	return r, nil
}

// stagesOf builds a spec once, and adds the time of each stage to all.
func stagesOf(text string, all map[string][]float64) error {
	ctx := context.Background()
	var s *spec.Spec
	var plan *ir.Plan
	var src *bpf.Source
	for _, stage := range []struct {
		name string
		run  func() (*diag.List, error)
	}{
		{"load", func() (list *diag.List, _ error) { s, list = spec.Load("spec.cue", []byte(text)); return list, nil }},
		{"plan", func() (list *diag.List, _ error) { plan, list = gen.Compile(s); return list, nil }},
		{"C", func() (_ *diag.List, err error) { src, err = bpf.Render(plan, bpf.Options{}); return nil, err }},
		{"Go", func() (*diag.List, error) {
			_, err := glue.Render(plan, glue.RenderOptions{Package: "relay", Object: build.ObjectName})
			return nil, err
		}},
		{"rehearsal", func() (*diag.List, error) { return build.Rehearse(ctx, s, plan) }},
		{"clang", func() (*diag.List, error) {
			files := src.Files()
			_, _, err := clang.Compile(ctx, files[build.SourceName], files[build.HelpersName],
				clang.Options{Lines: src.Lines})
			return nil, err
		}},
	} {
		began := time.Now()
		list, err := stage.run()
		took := time.Since(began)
		if list != nil && list.Len() > 0 {
			err = errors.Join(err, list.Err())
		}
		if err != nil {
			return fmt.Errorf("%s: %w", stage.name, err)
		}
		all[stage.name] = append(all[stage.name], milliseconds(took))
	}
	return nil
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// endOf has signals end a command at several moments of its work, and returns how long that took at worst.
func endOf(command string, rounds int, tool string, args ...string) (e End, err error) {
	run := func(after time.Duration, signal syscall.Signal) (took time.Duration, ended bool, err error) {
		cmd := exec.Command(tool, args...)
		began := time.Now()
		if err := cmd.Start(); err != nil {
			return 0, false, err
		}
		if signal != 0 {
			time.Sleep(after)
			began = time.Now()
			_ = cmd.Process.Signal(signal) // it may have ended
		}
		err = cmd.Wait()
		took = time.Since(began)
		ended = cmd.ProcessState.ExitCode() == 128+int(signal)
		if ended {
			err = nil
		}
		return took, ended, err
	}
	e.Command = command
	whole, _, err := run(0, 0)
	if err != nil {
		return e, err
	}
	e.Whole = milliseconds(whole)
	for signal, worst := range map[syscall.Signal]*float64{syscall.SIGINT: &e.SIGINT, syscall.SIGTERM: &e.SIGTERM} {
		for i := range 5 * rounds { // from soon after its beginning to its end
			took, ended, err := run(whole*time.Duration(1+i%5)/6, signal)
			if err != nil && !killed(err, signal) {
				return e, err
			}
			if ended || killed(err, signal) {
				*worst = max(*worst, milliseconds(took))
			}
		}
	}
	return e, nil
}

// killed reports whether the signal ended a process before it had begun to handle it.
func killed(err error, signal syscall.Signal) bool {
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return false
	}
	status, ok := exit.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == signal
}

// Print prints the times of all stages, and how much they grow a step.
func Print(w io.Writer, r *Report) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(t, "\nms\t%s\tsize, of the last\ttime\t\n", strings.Join(stages, "\t"))
	for i, s := range r.Specs {
		fmt.Fprintf(t, "%d %s\t", s.Size, s.What)
		for _, stage := range stages {
			fmt.Fprintf(t, "%.1f\t", s.Stages[stage])
		}
		if i > 0 && r.Specs[i-1].What == s.What {
			last := r.Specs[i-1]
			fmt.Fprintf(t, "%.1f\t%.1f\t", float64(s.Size)/float64(last.Size), s.all()/last.all())
		}
		fmt.Fprintln(t)
	}
	fmt.Fprintf(t, "\nms\twhole\tSIGINT\tSIGTERM\ttarget\t\n")
	for _, e := range r.Ends {
		fmt.Fprintf(t, "%s\t%.0f\t%.1f\t%.1f\t%d\t\n", e.Command, e.Whole, e.SIGINT, e.SIGTERM, Target)
	}
	t.Flush()
}

func (s Spec) all() (sum float64) {
	for _, ms := range s.Stages {
		sum += ms
	}
	return sum
}
