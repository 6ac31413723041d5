package diag

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var testCode = Define("FR9999", "a code of a test", "Only tests use it.", "", "")

const turnText = `name: "turn"
headers: channel_data: fields: []
programs: {
	to_peer: {
		lookup: ch: by_channel: ["udp.src", "udp.dst", "channel_data.chanel"]
	}
}
`

// cases are lists with the text of their file; their look is in testdata/NAME.txt.
func cases() map[string]*List {
	one := func(f func(*List)) *List { l := &List{}; f(l); return l }
	at := func(line, column, n int) Pos { return Pos{"spec.cue", line, column, n} }
	return map[string]*List{
		"one": one(func(l *List) {
			l.Add(testCode, at(5, 51, 19), "no field %q in header %q", "chanel", "channel_data").
				WithLabel("did you mean %q?", "channel_data.number").
				WithRelated(at(2, 10, 12), "the header is declared here")
		}),
		"sorted": one(func(l *List) {
			l.Add(testCode, at(5, 51, 19), "second").WithHint("do this\nor that")
			l.Add("FR9998", at(1, 7, 6), "first")
			l.Add("FR9998", at(1, 7, 6), "first")
		}),
		"no_position": one(func(l *List) {
			l.Add(testCode, Pos{}, "no such command").WithLabel("did you mean build?").WithHint("fastrelay-gen --help")
			l.Add(testCode, Pos{File: "other.cue"}, "no such file")
		}),
		"warning": one(func(l *List) {
			l.Add(testCode, at(5, 51, 19), "an error")
			l.Warn(testCode, at(2, 10, 12), "a warning").WithHint("what to do")
			l.Warn(testCode, at(1, 7, 6), "another one")
		}),
		"no_source": one(func(l *List) {
			l.Add(testCode, Pos{"other.cue", 7, 1, 1}, "nowhere to be seen").WithLabel("after the caret")
			l.Add(testCode, at(99, 1, 1), "after the end")
		}),
		"ends": one(func(l *List) {
			l.Add(testCode, at(1, 13, 1), "after the last character")
			l.Add(testCode, at(1, 7, 600), "longer than the line")
			l.Add(testCode, at(4, 1, 1), "a tab")
			l.Add(testCode, at(3, 500, 0), "far after the line")
		}),
		"hostile": one(func(l *List) {
			l.Add(testCode, at(8, 4, 2), "a message\x1b[2J with\r\ncontrol characters")
		}),
	}
}

func source(file string) []byte {
	if file != "spec.cue" {
		return nil
	}
	return []byte(turnText + "a\x1b[1m äöü \u202e\xff end\n")
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if os.Getenv("FASTRELAY_UPDATE") != "" {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s: -want +got:\n%s", file, diff)
	}
}

func TestRender(t *testing.T) {
	for name, list := range cases() {
		var b bytes.Buffer
		if err := Render(&b, list, RenderOptions{Source: source}); err != nil {
			t.Fatal(err)
		}
		golden(t, name+".txt", b.String())
		if strings.ContainsAny(b.String(), "\x1b\r\t") {
			t.Errorf("%s: characters that steer a terminal come through", name)
		}
	}
}

func TestRenderColor(t *testing.T) {
	list := cases()["one"]
	var plain, color bytes.Buffer
	if err := Render(&plain, list, RenderOptions{Source: source}); err != nil {
		t.Fatal(err)
	}
	if err := Render(&color, list, RenderOptions{Source: source, Color: true}); err != nil {
		t.Fatal(err)
	}
	golden(t, "color.txt", color.String())
	stripped := color.String()
	for _, c := range []string{bold, red, blue, "0"} {
		stripped = strings.ReplaceAll(stripped, "\x1b["+c+"m", "")
	}
	if diff := cmp.Diff(plain.String(), stripped); diff != "" {
		t.Errorf("colours change the text: -plain +color:\n%s", diff)
	}
}

func TestRenderJSON(t *testing.T) {
	var b bytes.Buffer
	if err := RenderJSON(&b, cases()["one"]); err != nil {
		t.Fatal(err)
	}
	golden(t, "one.json", b.String())
	b.Reset()
	if err := RenderJSON(&b, &List{}); err != nil {
		t.Fatal(err)
	}
	if got := b.String(); got != "{\n  \"diagnostics\": []\n}\n" {
		t.Errorf("an empty list: %s", got)
	}
}

// Warnings are shown, and don't make an error of a list.
func TestWarnings(t *testing.T) {
	list := cases()["warning"]
	if list.Len() != 1 || list.Warnings().Len() != 0 || len(list.Warnings().
		All()) != 2 || list.Err() == nil || list.Warnings().Err() != nil {
		t.Errorf("%d errors and %d warnings", list.Len(), len(list.Warnings().All()))
	}
	var b bytes.Buffer
	if err := RenderJSON(&b, list); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"severity": "error"`, `"severity": "warning"`} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("%s is missing in\n%s", want, b.String())
		}
	}
}

func TestRenderNothing(t *testing.T) {
	var b bytes.Buffer
	if err := Render(&b, &List{}, RenderOptions{}); err != nil || b.Len() > 0 {
		t.Errorf("%q, %v", b.String(), err)
	}
}

// The carets are under the same characters wherever a long line is cut.
func TestExcerptOfLongLines(t *testing.T) {
	line := strings.Repeat("0123456789", 40)
	for column := 1; column <= len(line); column++ {
		text, indent, carets := excerpt(line, column, 3)
		cells := []rune(text)
		if len(cells) > lineWidth {
			t.Fatalf("column %d: %d columns", column, len(cells))
		}
		want := line[column-1 : min(column+2, len(line))]
		got := string(cells[indent : indent+carets])
		if got != want && !strings.Contains(got, "…") {
			t.Errorf("column %d: %q is underlined, not %q", column, got, want)
		}
		if strings.Contains(got, "…") && column+2 < len(line) && column > 1 {
			t.Errorf("column %d: what is underlined is cut: %q", column, got)
		}
	}
	if _, _, carets := excerpt(line, 100, 300); carets > lineWidth {
		t.Errorf("%d carets", carets)
	}
}
