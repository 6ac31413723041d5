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

// What the guide shows works in its order, on a terminal of 80 columns: each block of CUE is saved or put where the
// text says, and the spec's tests pass; the commands that need no network do what is shown.
func TestGuide(t *testing.T) {
	text, err := os.ReadFile("guide.md")
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(t.TempDir())
	t.Setenv("COLUMNS", "80")
	guide := string(text)
	blocks := regexp.MustCompile("(?ms)^```(\\w*)\n(.*?)^```").FindAllStringSubmatchIndex(guide, -1)
	named := regexp.MustCompile("`(\\w+/spec\\.cue)`")
	tests, commands, file, from := map[string]int{}, 0, "", 0
	for _, b := range blocks {
		before, language, content := guide[from:b[0]], guide[b[2]:b[3]], guide[b[4]:b[5]]
		from = b[1]
		for _, m := range named.FindAllStringSubmatch(before, -1) {
			file = m[1]
		}
		switch {
		case language == "cue":
			put(t, file, content)
			// The first part's mistake is shown, and mended in the next block.
			if !strings.HasPrefix(content, "headers: tag: ") {
				tests[file] = passes(t, file)
			}
		case strings.HasPrefix(content, "$ fastrelay-gen "):
			commands++
			shows(t, content)
		}
	}
	if commands < 6 {
		t.Errorf("%d commands", commands)
	}
	for file, least := range map[string]int{
		"myrelay/spec.cue": 3, "stage/spec.cue": 3, "vxlan/spec.cue": 0, "fou/spec.cue": 2,
	} {
		if n, ok := tests[file]; !ok || n < least {
			t.Errorf("%d tests of %s", n, file)
		}
	}
	flows(t, "myrelay/spec.cue")
}

// put saves a block that begins a spec. Of others, a declaration goes to the end, or takes the place of the one that is
// there: a `let` that of its name, a list of fields that of the same header, an indented line that of the same member.
func put(t *testing.T, file, block string) {
	t.Helper()
	if strings.HasPrefix(block, "name: ") {
		save(t, file, block)
		return
	}
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	text := string(data)
	if member, _, ok := strings.Cut(block, ":"); ok && strings.HasPrefix(block, "\t") {
		line := regexp.MustCompile(`(?m)^` + member + `:.*\n`)
		if len(line.FindAllString(text, -1)) != 1 {
			t.Fatalf("%s: there isn't one line of %q", file, member)
		}
		save(t, file, line.ReplaceAllLiteralString(text, block))
		return
	}
	all := declarations(text)
	for _, d := range declarations(block) {
		begins := regexp.MustCompile(`^(let \w+ = |headers: \w+: fields: )?`).FindString(d)
		at := -1
		for i, have := range all {
			if begins != "" && strings.HasPrefix(have, begins) {
				at = i
			}
		}
		if at < 0 {
			all = append(all, d)
		} else {
			all[at] = d
		}
	}
	save(t, file, strings.Join(all, ""))
}

// declarations cuts a spec where a line begins with a name.
func declarations(text string) (all []string) {
	at := regexp.MustCompile(`(?m)^[a-z]`).FindAllStringIndex(text, -1)
	if len(at) > 0 && at[0][0] > 0 {
		all = append(all, text[:at[0][0]])
	}
	for i, a := range at {
		end := len(text)
		if i+1 < len(at) {
			end = at[i+1][0]
		}
		all = append(all, text[a[0]:end])
	}
	return all
}

// shows runs a command of fastrelay-gen that a document shows with a part of its output.
func shows(t *testing.T, content string) {
	t.Helper()
	line, shown, _ := strings.Cut(content, "\n")
	line, _, _ = strings.Cut(line, " #")
	var out bytes.Buffer
	status := cli.Do(strings.Fields(line)[2:], strings.NewReader(""), &out, &out)
	mistakes := strings.Count(shown, "error[")
	if mistakes != strings.Count(out.String(), "error[") || (mistakes > 0) != (status != 0) {
		t.Errorf("%s: status %d\n%s", line, status, &out)
	}
	if mistakes > 0 && strings.Contains(out.String(), "low(") {
		t.Errorf("the hint leads to one flow's packets at another one's peer:\n%s", &out)
	}
	for _, want := range strings.Split(shown, "\n") {
		if want = strings.TrimSpace(want); want != "…" && !strings.Contains(out.String(), want) {
			t.Errorf("%s doesn't print %q:\n%s", line, want, &out)
		}
	}
}

// passes compiles a spec, and runs its tests, of which it returns the number.
func passes(t *testing.T, file string) int {
	t.Helper()
	s, diags := spec.LoadFile(file)
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
	for _, o := range outcomes {
		if o.Status != spectest.Passed {
			t.Errorf("%s, %s: %s\n%s", file, o.Name, strings.Join(o.Differences, "\n"), o.Fields)
		}
	}
	return len(outcomes)
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

// flows shows that the first part's spec, once its ID has 32 bits, distinguishes flows that have the same lowest 16.
func flows(t *testing.T, file string) {
	t.Helper()
	put(t, file, `tests: "a flow with the same low bits is another flow": {
	program: "forward"
	sessions: open
	packet: [for h in from_client {h}, {tag: {kind: 1, id: 65543}}, {payload: "hello"}]
	expect: up: "no_by_id"
}
`)
	if n := passes(t, file); n != 4 {
		t.Errorf("%d tests", n)
	}
}
