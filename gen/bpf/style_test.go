package bpf_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/fastrelay/fastrelay-gen/gen"
	"github.com/fastrelay/fastrelay-gen/gen/bpf"
	"github.com/fastrelay/fastrelay-gen/spec"
)

const (
	columns       = 100
	functionLines = 120
)

// mostLines are how long a file is at most that a person is to read.
var mostLines = map[string]int{"turn/relay.bpf.c": 874}

// longer are cases with a function that has more lines.
var longer = map[string]string{
	"testdata": "specs for tests, with more in one program than one would write",
}

// Generated C is what a reviewer of the kernel reads: lines of at most 100 columns, functions of at most 120 lines, a
// license at the head, and no #line.
func TestStyle(t *testing.T) {
	sawLonger := map[string]bool{}
	for _, file := range append(specs(t), "../../bench/fanout/rewrite/spec.cue") {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		s, diags := spec.Load(file, text)
		if err := diags.Err(); err != nil {
			t.Fatal(err)
		}
		plan, diags := gen.Compile(s)
		if err := diags.Err(); err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(string(text), "\n")
		source, err := bpf.Render(plan, bpf.Options{Quote: func(from string, line int) string {
			if from != file {
				return ""
			}
			return lines[line-1]
		}})
		if err != nil {
			t.Fatal(err)
		}
		for name, text := range source.Files() {
			name = filepath.Join(filepath.Base(filepath.Dir(file)), name)
			if !strings.HasPrefix(text, "/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */\n") {
				t.Errorf("%s: no license at the head", name)
			}
			if n, limit := strings.Count(text, "\n"), mostLines[name]; limit > 0 && n > limit {
				t.Errorf("%s has %d lines, %d at most", name, n, limit)
			}
			if style(t, name, text) {
				sawLonger[filepath.Base(filepath.Dir(file))] = true
			}
		}
	}
	for name := range longer {
		if !sawLonger[name] {
			t.Errorf("%s has no long function any more: take it off the list", name)
		}
	}
}

var (
	oneLine = regexp.MustCompile(`^\s*(if|for|while) \(.*\) [^&|{(]*;$`)
	number  = regexp.MustCompile(`\b(ld|st|be)\d+\((data|front) [+-] \d`)
)

// style checks a file. It reports whether a function is longer than others may be, and that is known.
func style(t *testing.T, name, text string) (long bool) {
	t.Helper()
	begin := 0
	for i, line := range strings.Split(text, "\n") {
		n := 0
		for _, c := range line {
			if n++; c == '\t' {
				n += 7 - (n-1)%8
			}
		}
		switch {
		case n > columns:
			t.Errorf("%s:%d has %d columns: %s", name, i+1, n, line)
		case strings.HasPrefix(strings.TrimSpace(line), "#line"):
			t.Errorf("%s:%d has a #line", name, i+1)
		case strings.TrimRight(line, " \t") != line:
			t.Errorf("%s:%d ends in a space", name, i+1)
		case oneLine.MatchString(line):
			t.Errorf("%s:%d has a condition and a statement: %s", name, i+1, line)
		case strings.HasPrefix(name, "turn/") && number.MatchString(line):
			t.Errorf("%s:%d has a place without a name: %s", name, i+1, line)
		}
		switch line {
		case "{":
			begin = i
		case "}":
			if i-begin <= functionLines {
				break
			}
			if longer[strings.Split(name, "/")[0]] == "" {
				t.Errorf("%s:%d: a function of %d lines", name, i+1, i-begin)
			}
			long = true
		}
	}
	return long
}
