package testkernel

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Line is one line of a guest's report, in JSON. A report begins with Kernel and ends with Done, or it is incomplete.
type Line struct {
	Kernel string `json:"kernel,omitempty"` // the release that runs ("6.1.0-13-cloud-amd64")

	Spec   string `json:"spec,omitempty"`   // the folder of the spec, relative to the module's root
	Check  string `json:"check,omitempty"`  // "load", "tests", "packets", …
	Failed string `json:"failed,omitempty"` // why it failed; empty: it passed
	Note   string `json:"note,omitempty"`   // numbers for people: "12 tests"

	Program string `json:"program,omitempty"` // with Cost
	Cost    *Cost  `json:"cost,omitempty"`

	Result json.RawMessage `json:"result,omitempty"` // of a guest that measures

	Done   bool `json:"done,omitempty"`
	Status int  `json:"status,omitempty"` // of the guest's process; with Done
}

// Cost is what a program costs in the kernel's verifier, and how large it is.
type Cost struct {
	Instructions int `json:"instructions"` // that the verifier processed
	States       int `json:"states"`       // that it kept, in total
	Stack        int `json:"stack"`        // bytes, of the calls that need most together
	Size         int `json:"size"`         // instructions of the loaded program, after the verifier's rewriting
}

// Max returns the larger of each figure.
func (c Cost) Max(d Cost) Cost {
	return Cost{
		max(c.Instructions, d.Instructions), max(c.States, d.States), max(c.Stack, d.Stack), max(c.Size, d.Size),
	}
}

// Report is a guest's report.
type Report struct {
	Kernel string
	Lines  []Line // without the first and the last
	Kept   int    // relays whose lines are those of an earlier run
}

// ErrCut is returned for a report without an end: the guest died or hung.
var ErrCut = errors.New("the report is incomplete")

// ReadReport reads a guest's report.
func ReadReport(r io.Reader) (*Report, error) {
	report := &Report{}
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 16<<20)
	status, done := 0, false
	for lines.Scan() {
		if len(lines.Bytes()) == 0 {
			continue
		}
		var l Line
		if err := json.Unmarshal(lines.Bytes(), &l); err != nil {
			return report, fmt.Errorf("%w: %q: %w", ErrCut, lines.Text(), err)
		}
		switch {
		case l.Kernel != "":
			report.Kernel = l.Kernel
		case l.Done:
			status, done = l.Status, true
		default:
			report.Lines = append(report.Lines, l)
		}
	}
	switch err := lines.Err(); {
	case err != nil:
		return report, err
	case !done || report.Kernel == "":
		return report, ErrCut
	case status != 0:
		return report, fmt.Errorf("the guest's process ended with status %d", status)
	}
	return report, nil
}

// costPattern is of the verifier's closing line (kernel/bpf/verifier.c, print_verification_stats), the same from Linux
// 5.2 on. The line before it has the stack of each function, and not which calls which.
var costPattern = regexp.MustCompile(`(?m)^processed (\d+) insns .* total_states (\d+)`)

// ParseCost reads the statistics at the end of a verifier's log. Stack and Size aren't there.
func ParseCost(log string) (Cost, error) {
	cost := costPattern.FindStringSubmatch(log)
	if cost == nil {
		return Cost{}, fmt.Errorf("the verifier's log holds no statistics: %q", log)
	}
	var c Cost
	c.Instructions, _ = strconv.Atoi(cost[1]) // digits, by the pattern
	c.States, _ = strconv.Atoi(cost[2])
	return c, nil
}

// Failed reports whether a check failed, or there was none.
func (r *Report) Failed() bool {
	return len(r.Lines) == 0 || slices.ContainsFunc(r.Lines, func(l Line) bool { return l.Failed != "" })
}

// Summary counts the checks that passed, and says what was forwarded, and how many relays were refused and why.
func (r *Report) Summary() string {
	relays := map[string]bool{}
	sum := map[string]int{}
	var notes, devices []string
	refused := map[string]int{}
	for _, l := range r.Lines {
		if l.Failed != "" || l.Check == "" {
			continue
		}
		switch l.Check {
		case "load":
			relays[l.Spec] = true
		case "tests", "packets":
			var n int
			if _, err := fmt.Sscan(l.Note, &n); err == nil {
				sum[l.Check] += n
			}
		case "forward":
			notes = append(notes, l.Note)
		case "devices":
			if l.Note != "" {
				devices = append(devices, l.Note)
			}
		case "refuse":
			refused[l.Note]++
		}
	}
	if len(devices) > 0 {
		notes = append(notes, "sent through "+strings.Join(devices, ", "))
	}
	for _, why := range slices.Sorted(maps.Keys(refused)) {
		notes = append(notes, fmt.Sprintf("%d relays %s", refused[why], why))
	}
	head := fmt.Sprintf("%d relays loaded, %d tests, %d random packets", len(relays), sum["tests"], sum["packets"])
	if r.Kept > 0 {
		head = fmt.Sprintf("%s (%d relays in an earlier run)", head, r.Kept)
	}
	return strings.Join(append([]string{head}, notes...), ", ")
}
