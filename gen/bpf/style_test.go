package bpf_test

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
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
var mostLines = map[string]int{"turn/relay.bpf.c": 1471} // at tc/ingress alone 874

// longer are cases with a function that has more lines.
var longer = map[string]string{
	"testdata": "specs for tests, with more in one program than one would write",
}

// peeks are cases where a byte tells headers apart before there is one that it could be named after.
var peeks = []string{
	"tunnel", "alternatives", "blank", "devices", "found-family-again", "found-mark", "found-shim-family", "no-link",
	"tunnels",
}

// Generated C is what a reviewer of the kernel reads: lines of at most 100 columns, functions of at most 120 lines, a
// license at the head, no #line, and what stands in the packet by its name.
func TestStyle(t *testing.T) {
	sawLonger, sawPeeks := map[string]bool{}, map[string]bool{}
	license, err := os.ReadFile("../../LICENSES/BSD-2-Clause.txt")
	if err != nil {
		t.Fatal(err)
	}
	copyright, _, _ := strings.Cut(string(license), "\n")
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
			if filepath.Ext(name) == ".h" && !strings.Contains(text, "\n/* "+copyright+" */\n") {
				t.Errorf("%s: no copyright notice", name)
			}
			if unnamed.MatchString(text) {
				sawPeeks[strings.Split(name, "/")[0]] = true
			}
			if n, limit := strings.Count(text, "\n"), mostLines[name]; limit > 0 && n > limit {
				t.Errorf("%s has %d lines, %d at most", name, n, limit)
			}
			wrong, long := style(name, text)
			for _, w := range wrong {
				t.Error(w)
			}
			if long {
				sawLonger[filepath.Base(filepath.Dir(file))] = true
			}
		}
	}
	for name := range longer {
		if !sawLonger[name] {
			t.Errorf("%s has no long function any more: take it off the list", name)
		}
	}
	if got := slices.Sorted(maps.Keys(sawPeeks)); !slices.Equal(got, slices.Sorted(slices.Values(peeks))) {
		t.Errorf("offsets without names are in %q, and known in %q", got, peeks)
	}
}

var oneLine = regexp.MustCompile(`^\s*(if|for|while) \(.*\) [^&|{(]*;$`)

// unnamed is what stands at a number of bytes from the packet's start.
var unnamed = regexp.MustCompile(`\b(ldv?|st|be)\d+\((pkt(->|\.))?(data|front) [+-] \d`)

// unreadable are forms that nobody can read without counting.
var unreadable = []struct {
	what   string
	form   *regexp.Regexp
	unless *regexp.Regexp // lines in which the form is right
}{
	{"a difference as a sum", regexp.MustCompile(
		`[-+]\s+\(*0xf{8}[0-9a-f]{8}|\b0xf{8}[0-9a-f]{8}(ULL)?\)*\s+[-+]`), nil},
	{"an IPv4 address at an offset", regexp.MustCompile(`addr \+ 12\b`),
		// the last word of an IPv6 address, which is copied word by word
		regexp.MustCompile(`^\s*(fib(_\d+)?->(src|dst)\[3\] = ld32|st32\(\(void \*\)event\d+ \+ \d+, ld32)\(`)},
	{"a pseudo-header's protocol without a name", regexp.MustCompile(
		`_pseudo = [^;]*\+\s+(0x1100|bpf_htons\(17\))`), nil},
}

// style returns what is wrong with a file, and whether a function is longer than others may be, and that is known.
func style(name, text string) (wrong []string, long bool) {
	report := func(line int, format string, args ...any) {
		wrong = append(wrong, fmt.Sprintf("%s:%d ", name, line)+fmt.Sprintf(format, args...))
	}
	lines := strings.Split(text, "\n")
	for _, u := range unreadable {
		for _, at := range u.form.FindAllStringIndex(text, -1) {
			n := strings.Count(text[:at[0]], "\n")
			if u.unless != nil && u.unless.MatchString(lines[n]) {
				continue
			}
			report(n+1, "has %s: %s", u.what, text[at[0]:at[1]])
		}
	}
	begin := 0
	for i, line := range lines {
		n := 0
		for _, c := range line {
			if n++; c == '\t' {
				n += 7 - (n-1)%8
			}
		}
		switch {
		case n > columns:
			report(i+1, "has %d columns: %s", n, line)
		case strings.HasPrefix(strings.TrimSpace(line), "#line"):
			report(i+1, "has a #line")
		case strings.TrimRight(line, " \t") != line:
			report(i+1, "ends in a space")
		case oneLine.MatchString(line):
			report(i+1, "has a condition and a statement: %s", line)
		}
		switch line {
		case "{":
			begin = i
		case "}":
			if i-begin <= functionLines {
				break
			}
			if longer[strings.Split(name, "/")[0]] == "" {
				report(i+1, "ends a function of %d lines", i-begin)
			}
			long = true
		}
	}
	return wrong, long
}

// Each form that TestStyle refuses is found, and what only looks like it isn't.
func TestStyleRefuses(t *testing.T) {
	for line, want := range map[string]string{
		"\tif (fr_route(skb, fib, inner_options_end + (0xffffffffffffffc0ULL + payload_len),": "difference",
		"\todd_sum <<= (size_end + 0xfffffffffffffffcULL) & 1;":                               "difference",
		"\tsize = payload_len +\n\t\t0xfffffffffffffffcULL;":                                  "difference",
		"\tst32(new_ipv4->src, ld32(r->local.addr + 12));":                                    "IPv4 address",
		"\treturn fr_redirect_neigh(r->hop.ifindex, AF_INET, r->hop.addr + 12);":              "IPv4 address",
		"\t__u64 new_pseudo = (__u64)src + dst + 0x1100;":                                     "protocol",
		"\t__u64 udp_old_pseudo = (__u64)src +\n\t\tdst + length +\n\t\t0x1100;":              "protocol",
		"\tif (a) return;":             "condition",
		"\treturn; ":                   "space",
		"#line 1 \"spec.cue\"":         "#line",
		strings.Repeat("x", columns+1): "columns",
		"{" + strings.Repeat("\n\tx();", functionLines+1) + "\n}":         "function",
		"\tif (ld64(ipv6->dst + 8) == 0xffffffffffff0000ULL)":             "",
		"\tfib_2->dst[3] = ld32(c->server.addr + 12);":                    "",
		"\tfib->dst[0] = ld32(c->server.addr + 12);":                      "IPv4 address",
		"const volatile __u64 set_id_mask = 0xffffffffffffffffULL;":       "",
		"\tst32(new_ipv4->src, fr_v4(r->local.addr));":                    "",
		"\t__u64 new_pseudo = (__u64)src + dst + bpf_htons(IPPROTO_UDP);": "",
	} {
		wrong, _ := style("a.c", line)
		if want == "" && len(wrong) > 0 || want != "" && (len(wrong) == 0 || !strings.Contains(wrong[0], want)) {
			t.Errorf("%q: style says %q, want %q", line, wrong, want)
		}
	}
}
