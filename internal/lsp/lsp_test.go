package lsp_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/textproto"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/fastrelay/fastrelay-gen/internal/lsp"
)

// editor is the client's end.
type editor struct {
	t        *testing.T
	to       io.WriteCloser
	answers  chan map[string]any // by the reader
	messages chan map[string]any // notifications
	ended    chan error
	id       int
}

// start starts a server with a check, and an editor that has nothing said yet.
func start(t *testing.T, check func(context.Context, string) ([]byte, error)) *editor {
	t.Helper()
	in, to := io.Pipe()
	from, out := io.Pipe()
	e := &editor{t: t, to: to, answers: make(chan map[string]any, 64), messages: make(chan map[string]any, 64),
		ended: make(chan error, 1)}
	s := &lsp.Server{Check: check, Version: "test", Wait: time.Millisecond}
	go func() {
		e.ended <- s.Serve(context.Background(), in, out)
		_ = out.Close()
	}()
	go func() {
		r := bufio.NewReader(from)
		for {
			header, err := textproto.NewReader(r).ReadMIMEHeader()
			if err != nil {
				return
			}
			n, _ := strconv.Atoi(header.Get("Content-Length"))
			text := make([]byte, n)
			if _, err := io.ReadFull(r, text); err != nil {
				return
			}
			var m map[string]any
			if err := json.Unmarshal(text, &m); err != nil {
				t.Errorf("the server writes %q: %v", text, err)
			}
			if m["method"] != nil {
				e.messages <- m
			} else {
				e.answers <- m
			}
		}
	}()
	t.Cleanup(func() { _ = to.Close() })
	return e
}

func (e *editor) raw(text string) {
	e.t.Helper()
	if _, err := io.WriteString(e.to, text); err != nil {
		e.t.Fatal(err)
	}
}

func (e *editor) send(m map[string]any) {
	e.t.Helper()
	m["jsonrpc"] = "2.0"
	text, err := json.Marshal(m)
	if err != nil {
		e.t.Fatal(err)
	}
	e.raw(fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(text), text))
}

func (e *editor) notify(method string, params any) {
	e.t.Helper()
	e.send(map[string]any{"method": method, "params": params})
}

const patience = 30 * time.Second

func wait[T any](t *testing.T, from chan T, what string) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(patience):
		t.Fatal("no ", what)
	}
	panic("not reached")
}

// ask sends a request, and returns its result or its error.
func (e *editor) ask(method string, params any) (result, failed any) {
	e.t.Helper()
	e.id++
	e.send(map[string]any{"id": e.id, "method": method, "params": params})
	m := wait(e.t, e.answers, "answer to "+method)
	if m["id"] != float64(e.id) {
		e.t.Fatalf("an answer to %v, not to %d: %v", m["id"], e.id, m)
	}
	return m["result"], m["error"]
}

type object = map[string]any

func (e *editor) initialise(encodings ...string) {
	e.t.Helper()
	result, failed := e.ask("initialize", object{"capabilities": object{"general": object{
		"positionEncodings": encodings}}})
	if failed != nil {
		e.t.Fatal(failed)
	}
	if got := result.(object)["capabilities"].(object)["hoverProvider"]; got != true {
		e.t.Fatalf("capabilities: %v", result)
	}
	e.notify("initialized", object{})
}

func (e *editor) open(uri, text string) {
	e.t.Helper()
	e.notify("textDocument/didOpen", object{"textDocument": object{"uri": uri, "languageId": "cue", "version": 1,
		"text": text}})
}

// published waits for the diagnostics of a document in a version.
func (e *editor) published(uri string, version int) []any {
	e.t.Helper()
	for {
		m := wait(e.t, e.messages, "diagnostics of "+uri)
		p := m["params"].(object)
		if p["uri"] == uri && p["version"] == float64(version) {
			return p["diagnostics"].([]any)
		}
	}
}

func (e *editor) end() {
	e.t.Helper()
	if _, failed := e.ask("shutdown", nil); failed != nil {
		e.t.Error(failed)
	}
	e.notify("exit", nil)
	if err := wait(e.t, e.ended, "end"); err != nil {
		e.t.Error(err)
	}
}

const relay = `name: "turn"
headers: channel_data: fields: [
	{name: "number", bits: 16, is: >=0x4000},
	{name: "length", bits: 16, counts: "payload"},
]
// Where packets go.
tables: by_number: {key: number: "u16", value: to: "endpoint"}
programs: to_peer: {
	hook: "tc/ingress"
	stack: ["eth", "ip", "udp", "channel_data"]
	lookup: ch: by_number: ["channel_data.number"]
	do: [{send: {from: "udp.dst", to: "ch.to"}}]
}
`

// at is the position in a text after a piece of it, in characters of the basic plane.
func at(text, piece string) object {
	before, _, _ := strings.Cut(text, piece)
	line := strings.Count(before, "\n")
	return object{"line": line, "character": len(before) - strings.LastIndexByte("\n"+before, '\n') + len(piece)}
}

// between is a range in the first line.
func between(from, to int) object {
	return object{"start": object{"line": 0, "character": from}, "end": object{"line": 0, "character": to}}
}

// fine finds nothing.
func fine(context.Context, string) ([]byte, error) { return []byte(`{"diagnostics": []}`), nil }

// Messages have ranges in the units of the client, also after characters that take several.
func TestRanges(t *testing.T) {
	report := func(context.Context, string) ([]byte, error) {
		return []byte(`{"diagnostics": [
			{"severity": "error", "code": "FR0107", "message": "no", "file": "-", "line": 2, "column": 11, "length": 3,
				"label": "did you mean this?", "hint": "a hint",
				"related": [{"file": "-", "line": 1, "column": 1, "length": 4, "text": "here"},
					{"file": "fastrelay/std/ip.cue", "line": 3, "column": 1, "text": "there"}]},
			{"severity": "warning", "code": "FR0240", "message": "unused", "file": "-"}]}`), nil
	}
	for encoding, want := range map[string]float64{"utf-16": 7, "utf-8": 10} {
		t.Run(encoding, func(t *testing.T) {
			e := start(t, report)
			e.initialise(encoding)
			e.open("file:///a/spec.cue", "name: \"turn\"\n// é😀ab xyz\n")
			all := e.published("file:///a/spec.cue", 1)
			if len(all) != 2 {
				t.Fatal(all)
			}
			d := all[0].(object)
			from := d["range"].(object)["start"].(object)
			if from["line"] != 1.0 || from["character"] != want || d["code"] != "FR0107" || d["severity"] != 1.0 {
				t.Errorf("%v, want character %v", d, want)
			}
			if d["message"] != "no\ndid you mean this?\na hint\nthere: fastrelay/std/ip.cue" ||
				len(d["relatedInformation"].([]any)) != 1 {
				t.Errorf("%v", d)
			}
			if all[1].(object)["severity"] != 2.0 {
				t.Errorf("a warning is %v", all[1])
			}
			e.end()
		})
	}
}

// Documents are kept apart, changes are applied in order, and a document that is closed has no diagnostics.
func TestDocuments(t *testing.T) {
	texts := make(chan string, 16)
	e := start(t, func(_ context.Context, text string) ([]byte, error) {
		texts <- text
		return fine(context.Background(), text)
	})
	e.initialise()
	e.open("file:///a/spec.cue", "name: \"a\"\n")
	e.open("file:///b/spec.cue", "name: \"b\"\n")
	e.published("file:///a/spec.cue", 1)
	got := []string{wait(t, texts, "check"), wait(t, texts, "check")}
	slices.Sort(got)
	if want := []string{"name: \"a\"\n", "name: \"b\"\n"}; !slices.Equal(got, want) {
		t.Errorf("checked: %q", got)
	}
	e.notify("textDocument/didChange", object{
		"textDocument": object{"uri": "file:///b/spec.cue", "version": 2},
		"contentChanges": []any{
			object{"range": between(7, 8), "text": "é😀"}, object{"range": between(10, 10), "text": "!"},
		},
	})
	e.published("file:///b/spec.cue", 2)
	if got := wait(t, texts, "check"); got != "name: \"é😀!\"\n" {
		t.Errorf("the text is %q", got)
	}
	e.notify("textDocument/didChange", object{
		"textDocument":   object{"uri": "file:///b/spec.cue", "version": 3},
		"contentChanges": []any{object{"text": "x: 1\n"}},
	})
	e.published("file:///b/spec.cue", 3)
	if got := wait(t, texts, "check"); got != "x: 1\n" {
		t.Errorf("the text is %q", got)
	}
	e.notify("textDocument/didClose", object{"textDocument": object{"uri": "file:///b/spec.cue"}})
	if all := e.published("file:///b/spec.cue", 3); len(all) != 0 {
		t.Errorf("a closed document has %v", all)
	}

	// What isn't a spec isn't checked.
	e.open("file:///a/cue.mod/module.cue", "module: \"relay.example\"\n")
	e.published("file:///a/cue.mod/module.cue", 1)
	e.open("file:///a/other.cue", "x: 1\n")
	e.published("file:///a/other.cue", 1)
	if len(texts) > 0 {
		t.Errorf("checked: %q", <-texts)
	}
	e.end()
}

// A check that is out of date ends, and only the last state of a document is published.
func TestSlow(t *testing.T) {
	begun, ended := make(chan struct{}, 4), make(chan struct{}, 4)
	e := start(t, func(ctx context.Context, text string) ([]byte, error) {
		if strings.Contains(text, "slow") {
			begun <- struct{}{}
			<-ctx.Done()
			ended <- struct{}{}
			return nil, ctx.Err()
		}
		return fine(ctx, text)
	})
	e.initialise()
	e.open("file:///a/spec.cue", "name: \"slow\"\n")
	wait(t, begun, "check")
	if _, failed := e.ask("textDocument/hover", object{"textDocument": object{"uri": "file:///a/spec.cue"},
		"position": object{"line": 0, "character": 1}}); failed != nil {
		t.Errorf("a question during a check: %v", failed)
	}
	e.notify("textDocument/didChange", object{
		"textDocument":   object{"uri": "file:///a/spec.cue", "version": 2},
		"contentChanges": []any{object{"text": "name: \"quick\"\n"}},
	})
	wait(t, ended, "end of the check")
	m := wait(t, e.messages, "diagnostics")
	if v := m["params"].(object)["version"]; v != 2.0 {
		t.Errorf("version %v is published", v)
	}
	e.open("file:///b/spec.cue", "name: \"slow\"\n")
	wait(t, begun, "check")
	e.end() // ends the check as well
	wait(t, ended, "end of the check")
}

// A check that fails says so.
func TestFailure(t *testing.T) {
	e := start(t, func(context.Context, string) ([]byte, error) { return nil, errors.New("no memory") })
	e.initialise()
	e.open("file:///a/spec.cue", "name: \"a\"\n")
	all := e.published("file:///a/spec.cue", 1)
	if len(all) != 1 || !strings.Contains(all[0].(object)["message"].(string), "no memory") {
		t.Error(all)
	}
	e.end()
}

// Garbage gets an error as its answer; if no message can be found any more, the server ends.
func TestGarbage(t *testing.T) {
	e := start(t, fine)
	if _, failed := e.ask("textDocument/hover", object{}); failed == nil {
		t.Error("a request before initialize is answered")
	}
	e.initialise()
	if _, failed := e.ask("initialize", object{}); failed == nil {
		t.Error("a second initialize is answered")
	}
	e.raw("Content-Length: 5\r\nContent-Type: x\r\n\r\n{{{{{")
	if m := wait(t, e.answers, "answer"); m["error"].(object)["code"] != -32700.0 {
		t.Error(m)
	}
	for method, params := range map[string]any{
		"no/such": nil, "textDocument/hover": 7, "textDocument/definition": object{"textDocument": object{"uri": "x"}},
		"textDocument/completion": []any{},
	} {
		if _, failed := e.ask(method, params); failed == nil {
			t.Errorf("%s is answered", method)
		}
	}
	e.notify("textDocument/didOpen", 7)
	e.notify("textDocument/didChange", object{"textDocument": object{"uri": "nowhere"}})
	e.notify("textDocument/didClose", nil)
	e.notify("$/unknown", nil)
	e.open("file:///a/spec.cue", relay)
	e.notify("textDocument/didChange", object{
		"textDocument": object{"uri": "file:///a/spec.cue", "version": 2},
		"contentChanges": []any{object{"range": object{"start": object{"line": 99, "character": 99},
			"end": object{"line": -1, "character": -1}}, "text": "x"}},
	})
	e.published("file:///a/spec.cue", 2)
	e.raw(fmt.Sprintf("Content-Length: %d\r\n\r\n%s", 9<<20, strings.Repeat("x", 9<<20)))
	if m := wait(t, e.answers, "answer"); m["error"] == nil {
		t.Error(m)
	}
	e.raw("GET / HTTP/1.1\r\n")
	_ = e.to.Close()
	if err := wait(t, e.ended, "end"); err == nil {
		t.Error("no error")
	}
}

// An editor that ends without a word is an error; one that shuts the server down is none.
func TestEnd(t *testing.T) {
	e := start(t, fine)
	e.initialise()
	_ = e.to.Close()
	if err := wait(t, e.ended, "end"); !errors.Is(err, lsp.ErrNoShutdown) {
		t.Error(err)
	}
}

func TestLook(t *testing.T) {
	e := start(t, fine)
	e.initialise()
	const uri = "file:///a/spec.cue"
	e.open(uri, relay)
	ask := func(method, piece string) any {
		result, failed := e.ask("textDocument/"+method,
			object{"textDocument": object{"uri": uri}, "position": at(relay, piece)})
		if failed != nil {
			t.Fatal(failed)
		}
		return result
	}
	for piece, want := range map[string]string{
		"prog":                 "Programs",
		"\thoo":                "Where the program runs",
		"bits":                 "bits: ",
		"[\"channel_data.num":  "field **channel_data.number**",
		"[\"channel_":          "header **channel_data**",
		`send: {from: "udp.ds`: "name **udp.dst**",
		`to: "ch.t`:            "member **ch.to**",
		`to: "c`:               "a row of table by_number",
		`"eth", "ip", "ud`:     "header **udp**",
	} {
		h, _ := ask("hover", piece).(object)
		if h == nil || !strings.Contains(h["contents"].(object)["value"].(string), want) {
			t.Errorf("hover after %q: %v, want %q", piece, h, want)
		}
	}
	if h := ask("hover", "name: \"tu"); h != nil {
		t.Errorf("hover on a name: %v", h)
	}
	for piece, line := range map[string]float64{
		"[\"channel_data.num": 2, "[\"channel_": 1, `to: "ch.t`: 6, `to: "c`: 10,
	} {
		d, _ := ask("definition", piece).(object)
		if d == nil || d["range"].(object)["start"].(object)["line"] != line {
			t.Errorf("definition of what is after %q: %v, want line %v", piece, d, line)
		}
	}
	if d := ask("definition", `send: {from: "udp.ds`); d != nil {
		t.Errorf("a definition in the language: %v", d)
	}
	for piece, want := range map[string][]string{
		"[\"channel_data.": {"number", "length", "payload"},
		`to: "ch.`:         {"number", "to"},
		`from: "`:          {"channel_data", "ch", "udp", "eth"},
		"to_peer: {":       {"hook", "stack", "when", "rules"},
		"headers: ":        nil,
		"do: [{":           {"send", "push", "drop"},
		"send: {":          {"from", "to", "via"},
	} {
		var labels []string
		for _, c := range ask("completion", piece).([]any) {
			labels = append(labels, c.(object)["label"].(string))
		}
		for _, w := range want {
			if !slices.Contains(labels, w) {
				t.Errorf("completion after %q has no %q: %q", piece, w, labels)
			}
		}
	}

	// While somebody types, the document has mistakes.
	for n := range len(relay) {
		e.notify("textDocument/didChange", object{
			"textDocument": object{"uri": uri, "version": n + 2}, "contentChanges": []any{object{"text": relay[:n]}},
		})
		for _, method := range []string{"hover", "completion", "definition"} {
			p := at(relay, relay[:n])
			_, failed := e.ask("textDocument/"+method, object{"textDocument": object{"uri": uri}, "position": p})
			if failed != nil {
				t.Fatalf("%s after %d characters: %v", method, n, failed)
			}
		}
	drained:
		for {
			select {
			case <-e.messages:
			default:
				break drained
			}
		}
	}
	e.end()
}
