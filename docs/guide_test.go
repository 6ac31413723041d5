package docs_test

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/fastrelay/fastrelay-gen/gen"
	"github.com/fastrelay/fastrelay-gen/internal/cli"
	"github.com/fastrelay/fastrelay-gen/internal/spectest"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// The second part of the guide shows a relay as it grows: its first form and its last one are specs whose tests pass,
// and every piece in between is in the last one.
func TestGuideSpecs(t *testing.T) {
	guide, err := os.ReadFile("guide.md")
	if err != nil {
		t.Fatal(err)
	}
	_, part, ok := strings.Cut(string(guide), "\n# One to many\n")
	part, _, more := strings.Cut(part, "\n# Tunnels\n")
	if !ok || !more {
		t.Fatal("the guide has no parts \"One to many\" and \"Tunnels\"")
	}
	var specs, pieces []string
	for _, m := range regexp.MustCompile("(?s)```cue\n(.*?)```").FindAllStringSubmatch(part, -1) {
		if strings.HasPrefix(m[1], "name: ") {
			specs = append(specs, m[1])
		} else {
			pieces = append(pieces, m[1])
		}
	}
	if len(specs) != 2 || len(pieces) < 5 {
		t.Fatalf("%d specs and %d pieces", len(specs), len(pieces))
	}
	for _, text := range specs {
		passes(t, "guide.md", text)
	}
	words := func(text string) string { return strings.Join(strings.Fields(text), " ") }
	whole := words(specs[1])
	for _, p := range pieces {
		if !strings.Contains(whole, words(p)) {
			t.Errorf("not in the whole spec:\n%s", p)
		}
	}
}

// passes compiles a spec of a document, and runs its tests.
func passes(t *testing.T, name, text string) {
	t.Helper()
	s, diags := spec.Load(name, []byte(text))
	if err := diags.Err(); err != nil {
		t.Fatal(err)
	}
	plan, diags := gen.Compile(s)
	if err := diags.Err(); err != nil {
		t.Fatal(err)
	}
	if err := spectest.Check(s, plan).Err(); err != nil {
		t.Fatal(err)
	}
	outcomes := spectest.Model(t.Context(), s, plan)
	if len(outcomes) == 0 {
		t.Errorf("no test in\n%s", text)
	}
	for _, o := range outcomes {
		if o.Status != spectest.Passed {
			t.Errorf("%s: %s\n%s", o.Name, strings.Join(o.Differences, "\n"), o.Fields)
		}
	}
}

// The spec of the part about tunnels passes its tests.
func TestTunnelSpec(t *testing.T) {
	guide, err := os.ReadFile("guide.md")
	if err != nil {
		t.Fatal(err)
	}
	_, part, _ := strings.Cut(string(guide), "\n# Tunnels\n")
	specs := regexp.MustCompile("(?s)```cue\n(name: .*?)```").FindAllStringSubmatch(part, -1)
	if len(specs) != 1 {
		t.Fatalf("%d specs", len(specs))
	}
	passes(t, "guide.md", specs[0][1])
}

// The commands of the guide that need no network do what it says, in their order, where its specs are saved and its
// pieces are put as it says.
func TestGuideCommands(t *testing.T) {
	text, err := os.ReadFile("guide.md")
	if err != nil {
		t.Fatal(err)
	}
	guide := string(text)
	blocks := regexp.MustCompile("(?ms)^```(\\w*)\n(.*?)^```").FindAllStringSubmatch(guide, -1)
	whole := regexp.MustCompile("(?s)## The whole spec\n\n```cue\n(.*?)```").FindStringSubmatch(guide)
	if whole == nil {
		t.Fatal("there is no whole spec")
	}
	t.Chdir(t.TempDir())
	t.Setenv("COLUMNS", "80")
	put := func(file, pattern, by string) {
		t.Helper()
		spec, err := os.ReadFile(file)
		re := regexp.MustCompile(pattern)
		if err != nil || len(re.FindAll(spec, -1)) != 1 {
			t.Fatalf("%s: %q isn't there once, %v", file, pattern, err)
		}
		save(t, file, re.ReplaceAllLiteralString(string(spec), by))
	}
	ran := 0
	for _, b := range blocks {
		switch language, content := b[1], b[2]; {
		case language == "cue" && strings.HasPrefix(content, "headers: tag: "):
			put("tunnel/spec.cue", `(?s)headers: tag: fields: \[.*?\n\]\n`, content)
		case language == "cue" && strings.HasPrefix(content, "\tfields: {client: "):
			put("tunnel/spec.cue", `(?m)^\tfields: \{client: .*\n`, content)
		case language == "cue" && strings.HasPrefix(content, "priority: "): // the second part's step 2
			save(t, "stage/spec.cue", whole[1])
		case language == "cue" && strings.HasPrefix(content, "name: \"stage\"") && content != whole[1]:
			save(t, "stage/spec.cue", content)
		case strings.HasPrefix(content, "$ fastrelay-gen "):
			ran++
			line, shown, _ := strings.Cut(content, "\n")
			line, _, _ = strings.Cut(line, " #")
			var out bytes.Buffer
			status := cli.Do(strings.Fields(line)[2:], strings.NewReader(""), &out, &out)
			if failed := strings.Contains(shown, "error["); failed != (status != 0) {
				t.Errorf("%s: status %d\n%s", line, status, &out)
			}
			for _, want := range strings.Split(shown, "\n") {
				if want = strings.TrimSpace(want); want != "…" && !strings.Contains(out.String(), want) {
					t.Errorf("%s doesn't print %q:\n%s", line, want, &out)
				}
			}
		}
	}
	if ran < 6 {
		t.Errorf("%d commands", ran)
	}
}

// save writes a file, and its folder.
func save(t *testing.T, file, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// The first part of the guide adapts the spec that `init` writes. Its wrong step gets the message that is shown,
// whose hint doesn't mix flows; the spec after the next step passes its tests, and distinguishes flows that have the
// same lowest 16 bits.
func TestGuideFirstSteps(t *testing.T) {
	guide, err := os.ReadFile("guide.md")
	if err != nil {
		t.Fatal(err)
	}
	part, _, _ := strings.Cut(string(guide), "\n# One to many\n")
	pieces := regexp.MustCompile("(?s)```cue\n(.*?)```").FindAllStringSubmatch(part, -1)
	if len(pieces) != 2 {
		t.Fatalf("%d pieces of CUE, not a header and a session's fields", len(pieces))
	}
	starter, err := os.ReadFile("../internal/cli/starter.cue.txt")
	if err != nil {
		t.Fatal(err)
	}
	replace := func(text, pattern, by string) string {
		t.Helper()
		re := regexp.MustCompile(pattern)
		if len(re.FindAllString(text, -1)) != 1 {
			t.Fatalf("%q is not once in\n%s", pattern, text)
		}
		return re.ReplaceAllLiteralString(text, by)
	}
	text := replace(strings.ReplaceAll(string(starter), "NAME", "tunnel"), `(?s)headers: tag: fields: \[.*?\n\]\n`,
		pieces[0][1])
	s, diags := spec.Load("tunnel.cue", []byte(text))
	if err := diags.Err(); err != nil {
		t.Fatal(err)
	}
	_, diags = gen.Compile(s)
	all := diags.All()
	if len(all) != 1 || !strings.Contains(part,
		"error["+string(all[0].Code)+"]: "+all[0].Message+"\n") || !strings.Contains(part, "   = "+all[0].Hint+"\n") {
		t.Fatalf("not what the guide shows: %v", all)
	}
	if strings.Contains(all[0].Hint, "low(") {
		t.Errorf("the hint leads to one flow's packets at another one's peer: %s", all[0].Hint)
	}
	text = replace(text, `(?m)^\tfields: \{client: .*\n`, pieces[1][1])
	text += `tests: "a flow with the same low bits is another flow": {
	program: "forward"
	sessions: open
	packet: [from_client[0], from_client[1], from_client[2], {tag: {kind: 1, id: 65543}}, {payload: "hello"}]
	expect: up: "no_by_id"
}
`
	if s, diags = spec.Load("tunnel.cue", []byte(text)); diags.Len() > 0 {
		t.Fatal(diags.Err())
	}
	plan, diags := gen.Compile(s)
	if all := diags.All(); len(all) > 0 {
		t.Fatal(all)
	}
	outcomes := spectest.Model(t.Context(), s, plan)
	if len(outcomes) != 4 {
		t.Errorf("%d tests", len(outcomes))
	}
	for _, o := range outcomes {
		if o.Status != spectest.Passed {
			t.Errorf("%s: %s\n%s", o.Name, strings.Join(o.Differences, "\n"), o.Fields)
		}
	}
}
