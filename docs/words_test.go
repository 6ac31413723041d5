package docs_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// words are those that this project doesn't use, since readers know others for what they mean. A space stands for any
// gap, a new line of a comment as well; example is found by the pattern.
var words = []struct{ pattern, better, example string }{
	{`\b(go|goes|going|gone|went) up\b`, "pass to the stack", "// the packet goes\n// up"},
	{`\b(sends?|pass(es)?) (a |the )?(packets? )?up\b|\bup no_[a-z]+`, "to the stack", "sends the packet up"},
	{`\bpending checksums?\b|\bchecksums? (is|are|that is|that are) pending\b`, "partial checksum",
		"its checksum is pending"},
	{`\bways? out\b`, "next hop, route, or device", "No way out is known"},
	{`\bway: "?next_hop\b`, "hop", `value: way: "next_hop"`},
	{`\b(draw|draws|drawn|drew) from\b|\b(draws?|drawn|drew) (a |its )?numbers?\b`, "allocate",
		"numbers drawn from\n\t * a counter"},
	{`\bbehind (a|the|an IP|its) (datagram|frame|header|packet|payload)\b`, "after", "bytes behind the datagram"},
	{`\bsuper-packets?\b`, "GSO packet", "Super-packets"},
	{`\b(no|some)body\b`, "say who", "nobody knows"},
	{`\bwhat becomes of\b`, "what happens to", "what becomes of a packet"},
	{`\bfrom the inside out\b`, "innermost first", "come from the inside out"},
	{`\btakes? the turn\b`, "acquire the lock", "take takes the turn"},
	{`\bprocessor time\b`, "CPU time", "processor time a packet"},
	{`\b(is|are) a stray\b`, "unverified", "a client is a stray"},
	{`\bwrong rights\b`, "wrong permissions", "pins with wrong rights"},
	{`\bwhat it will be counts\b`, "its final value is used", "what it will be counts"},
	{`\btakes the (longer|more) the\b`, "grows with", "it takes the longer the more bytes"},
	{`\bthose who look on\b`, "say who reads", "copies for those who look on"},
	{`\b(anybody|anyone|no one)'s\b`, "untrusted, or say whose", "the text is anybody's"},
	{`\bas machines come\b`, "by default", "As machines come, it holds 1,000"},
	{`\bthe way up\b`, "delivery to the socket", "charged for the way up"},
	{`\bof one spell\b`, "one interval", "that of one spell"},
	{`\bonly takes away\b`, "can only worsen", "other work only takes away"},
	{`\bfalsif(y|ies)\b`, "sources of error", "What falsifies such measurements"},
	{`\brows can say it\b`, "a table lookup selects it", "rows can say it"},
	{`\ba whole one\b`, "a complete example", "## A whole one"},
	{`\b(it|which) is left(\.| after)`, "is disconnected", "without progress it is left."},
}

// allowed are uses that mean something else, by file.
var allowed = map[string][]string{
	"docs/guide.md":   {"also called a super-packet"},
	"bench/README.md": {"processor time at 90%", "processor time one by one"}, // what the bench prints
	// counters
	"templates/fastrelay.h": {"goes up before user space", "goes up before and after"},
}

// found returns the places where a text has a word, as lines.
func found(text, pattern string) (lines []int) {
	gap := strings.ReplaceAll(pattern, " ", `(?:\s|//|\*)+`)
	for _, at := range regexp.MustCompile(`(?i)`+gap).FindAllStringIndex(text, -1) {
		lines = append(lines, 1+strings.Count(text[:at[0]], "\n"))
	}
	return lines
}

// What users read has the field's words: documents, messages, templates and the examples' specs.
func TestWords(t *testing.T) {
	for _, w := range words {
		if len(found(w.example, w.pattern)) != 1 {
			t.Errorf("%s isn't found in %q", w.pattern, w.example)
		}
	}
	var files []string
	for _, pattern := range []string{
		"*.md", "docs/*.md", "*/README.md", "examples/*/README.md", "examples/*/spec.cue", "templates/*.h",
		"templates/*.tmpl", "templates/*.lua", "gen/code/codes.go", "spec/codes.go", "internal/*/codes.go",
		"spec/schema.cue",
		"internal/cli/*.go", "internal/cli/*.txt", "internal/planfmt/*.go", "internal/diagram/*.go",
		"internal/page/page.*",
	} {
		some, err := filepath.Glob(filepath.Join("..", pattern))
		if err != nil || len(some) == 0 {
			t.Fatalf("%s: no files, %v", pattern, err)
		}
		files = append(files, some...)
	}
	for _, path := range slices.Compact(slices.Sorted(slices.Values(files))) {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		name, text := filepath.ToSlash(strings.TrimPrefix(path, ".."+string(filepath.Separator))), string(data)
		for _, a := range allowed[name] {
			if !strings.Contains(text, a) {
				t.Errorf("%s doesn't say %q any more: remove it from the list", name, a)
			}
			text = strings.ReplaceAll(text, a, "")
		}
		for _, w := range words {
			for _, line := range found(text, w.pattern) {
				t.Errorf("%s:%d: %s: better: %s", name, line, w.pattern, w.better)
			}
		}
	}
}
