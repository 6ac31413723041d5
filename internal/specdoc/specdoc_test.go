package specdoc

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/net/html"

	"github.com/fastrelay/fastrelay-gen/gen"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/spec"
)

func compiled(t *testing.T, file string) (*spec.Spec, *ir.Plan) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	s, list := spec.Load(file, text)
	if err := list.Err(); err != nil {
		t.Fatal(err)
	}
	plan, list := gen.Compile(s)
	if err := list.Err(); err != nil {
		t.Fatal(err)
	}
	return s, plan
}

func pages(t *testing.T, s *spec.Spec, plan *ir.Plan) (markdown, page string) {
	t.Helper()
	markdown, err := Markdown(s, plan)
	if err != nil {
		t.Fatal(err)
	}
	page, err = HTML(s, plan)
	if err != nil {
		t.Fatal(err)
	}
	return markdown, page
}

// elements are the elements and attributes of a page. What is opened has to be closed, in order.
func elements(t *testing.T, page string) (names []string) {
	t.Helper()
	alone := []string{"meta"}
	var open []string
	for z := html.NewTokenizer(strings.NewReader(page)); ; {
		kind := z.Next()
		token := z.Token()
		switch kind {
		case html.ErrorToken:
			if z.Err() != io.EOF || len(open) > 0 {
				t.Errorf("%v, with open elements %v", z.Err(), open)
			}
			return names
		case html.StartTagToken, html.SelfClosingTagToken:
			names = append(names, token.Data)
			for _, a := range token.Attr {
				names = append(names, a.Key)
			}
			if kind == html.StartTagToken && !slices.Contains(alone, token.Data) {
				open = append(open, token.Data)
			}
		case html.EndTagToken:
			if len(open) == 0 || open[len(open)-1] != token.Data {
				t.Fatalf("%s is closed, and open are %v", token.Data, open)
			}
			open = open[:len(open)-1]
		}
	}
}

// Pages of all specs have all their names, in both notations, and are the same each time.
func TestPagesOfAllSpecs(t *testing.T) {
	examples, err := filepath.Glob("../../examples/*/spec.cue")
	if err != nil {
		t.Fatal(err)
	}
	golden, err := filepath.Glob("../../golden/*/spec.cue")
	if err != nil || len(golden) < 40 {
		t.Fatal(len(golden), err)
	}
	for _, file := range append(examples, golden...) {
		s, plan := compiled(t, file)
		md, page := pages(t, s, plan)
		elements(t, page)
		names := []string{}
		for _, p := range plan.Programs {
			names = append(names, p.Name)
			for _, r := range p.Reasons {
				names = append(names, r.Name)
			}
		}
		for _, x := range plan.Tables {
			names = append(names, x.Name)
		}
		for _, x := range plan.Settings {
			names = append(names, x.Name)
		}
		for _, x := range plan.Sessions {
			names = append(names, x.Name, "/v1/sessions/"+x.Name)
		}
		for _, x := range plan.Groups {
			names = append(names, x.Name)
		}
		for _, x := range plan.Events {
			names = append(names, x.Name)
		}
		for _, name := range names {
			if !strings.Contains(md, name) || !strings.Contains(page, name) {
				t.Errorf("%s: the page doesn't have %q", file, name)
			}
		}
		for i, line := range strings.Split(md, "\n") {
			if strings.HasPrefix(line, "|") && !strings.HasSuffix(line, "|") {
				t.Errorf("%s: line %d isn't a row of a table: %s", file, i+1, line)
			}
		}
		if again, pageAgain := pages(t, s, plan); again != md || pageAgain != page {
			t.Errorf("%s: another page the second time", file)
		}
	}
}

// What a spec says stays text.
func TestHostileText(t *testing.T) {
	s, plan := compiled(t, "../../examples/gate/spec.cue")
	_, page := pages(t, s, plan)
	want := elements(t, page)
	const evil = "</code><script>alert(1)</script>`<img src=x onerror=alert(1)>|[a](javascript:b)"
	const lines = evil + "\n# title" // generated Go can't have them, either
	s.File = lines
	for _, x := range plan.Settings {
		x.Doc = evil
	}
	for i, p := range plan.Programs {
		p.Paths = []string{evil + "```"}
		s.Programs[i].Rules[0].When = &spec.Expr{Op: spec.OpName, Path: []spec.Name{{Value: lines}}}
		for _, r := range p.Reasons {
			r.Doc = evil
		}
	}
	md, page := pages(t, s, plan)
	got := elements(t, page)
	slices.Sort(want)
	slices.Sort(got)
	for _, name := range slices.Compact(got) {
		if !slices.Contains(want, name) {
			t.Errorf("the page has an element or attribute %q", name)
		}
	}
	fence := ""
	for i, line := range strings.Split(md, "\n") {
		if strings.HasPrefix(line, "```") && (fence == "" || line == fence) {
			open := line[:len(line)-len(strings.TrimLeft(line, "`"))]
			fence = map[bool]string{true: open, false: ""}[fence == ""]
			continue
		}
		if fence == "" && (strings.Contains(outsideCode(line), "<script") || strings.HasPrefix(line, "# title")) {
			t.Errorf("line %d is markup: %s", i+1, line)
		}
	}
}

// outsideCode leaves out the code spans of a line.
func outsideCode(line string) string {
	line = strings.ReplaceAll(line, "\\`", "") // one in text
	var out strings.Builder
	for {
		i := strings.Index(line, "`")
		if i < 0 {
			return out.String() + line
		}
		out.WriteString(line[:i])
		rest := strings.TrimLeft(line[i:], "`")
		fence := line[i : len(line)-len(rest)]
		end := strings.Index(rest, fence)
		if end < 0 {
			return out.String() + fmt.Sprint(rest)
		}
		line = strings.TrimLeft(rest[end+len(fence):], "`")
	}
}
