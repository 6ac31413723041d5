package docs_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// figure is a number with a unit of cost, rate or time, or a ratio.
var figure = regexp.MustCompile(`([0-9][0-9.,]*) (ns|µs|[kM]?pps|packets a second|Mbit/s|times)\b`)

// fixed are figures that no run of the bench gives: rates and limits that are chosen, and what was measured to decide
// something.
var fixed = map[string][]string{
	"README.md":         {"10,000 pps"},
	"docs/internals.md": {"8 µs", "0.3 µs", "0.2 ns", "27 ns", "200 ns", "390 ns", "4,096 times"},
	"docs/operate.md":   {"50,000 pps", "1 µs"},
}

// Figures of prose are those of the page of results. Experiments have results of their own (docs/experiments.md).
func TestFiguresAreResults(t *testing.T) {
	page, err := os.ReadFile("results.md")
	if err != nil {
		t.Fatal(err)
	}
	var known []string // in the tables, but for the first column, which says what a figure is of
	for _, row := range regexp.MustCompile(`(?m)^\|[^|]*\|(.*)$`).FindAllStringSubmatch(string(page), -1) {
		known = append(known, regexp.MustCompile(`[0-9][0-9.,]*`).FindAllString(row[1], -1)...)
	}
	files, err := filepath.Glob("*.md")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	n := 0
	for _, file := range append(files, "../README.md") {
		name := filepath.Join("docs", file)
		if slices.Contains([]string{"experiments.md", "language.md", "messages.md", "results.md"}, file) {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range unknownFigures(string(text), known, fixed[name]) {
			t.Errorf("%s: %s", name, f)
		}
		n++
	}
	if n < 5 {
		t.Errorf("only %d pages were looked at", n)
	}
	for text, want := range map[string]int{
		"1,234 ns": 1, "in 5 µs, 17 times": 1, "4,096 bytes": 0, "≥ 99,999,999 pps": 1,
	} {
		if got := unknownFigures(text, []string{"17", "99,999"}, []string{"4 ns"}); len(got) != want {
			t.Errorf("%q: %q, want %d", text, got, want)
		}
	}
}

// unknownFigures returns the figures of a text that are neither results nor fixed.
func unknownFigures(text string, known, fixed []string) (unknown []string) {
	for i, line := range strings.Split(text, "\n") {
		for _, m := range figure.FindAllStringSubmatch(line, -1) {
			number := strings.TrimRight(m[1], ".,")
			if !slices.Contains(known, number) && !slices.Contains(fixed, number+" "+m[2]) {
				unknown = append(unknown, fmt.Sprintf("line %d: %s is no result", i+1, m[0]))
			}
		}
	}
	return unknown
}
