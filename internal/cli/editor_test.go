//go:build linux

package cli_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/textproto"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// endless makes CUE compute for a long time.
const endless = `import "list"

name: "endless"
programs: {for i in list.Range(0, 100000000, 1) {"p\(i)": hook: "tc/ingress"}}
`

// The language server as an editor runs it: mistakes of documents that were never saved, with their codes; a document
// that makes the compiler slow is left as soon as it changes, and keeps no other one waiting.
func TestLanguageServer(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	tool := filepath.Join(t.TempDir(), "fastrelay-gen") // by this name, the test's binary is the command line
	if err := os.Symlink(self, tool); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), tool, "lsp")
	cmd.Stderr = os.Stderr
	in, err1 := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	send := func(format string, args ...any) {
		t.Helper()
		text := fmt.Sprintf(format, args...)
		if _, err := fmt.Fprintf(in, "Content-Length: %d\r\n\r\n%s", len(text), text); err != nil {
			t.Fatal(err)
		}
	}
	open := func(uri, text string) {
		t.Helper()
		quoted, err := json.Marshal(text)
		if err != nil {
			t.Fatal(err)
		}
		send(`{"jsonrpc":"2.0","method":"textDocument/didOpen","params":{"textDocument":{"uri":%q,"languageId":"cue",`+
			`"version":1,"text":%s}}}`, uri, quoted)
	}
	type message struct {
		Params struct {
			URI         string
			Version     int
			Diagnostics []struct {
				Code    string
				Message string
				Range   struct{ Start struct{ Line, Character int } }
			}
		}
	}
	messages := make(chan message, 16)
	go func() {
		defer close(messages)
		r := bufio.NewReader(out)
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
			var m message
			if json.Unmarshal(text, &m) == nil && m.Params.URI != "" {
				messages <- m
			}
		}
	}()
	next := func() message {
		t.Helper()
		select {
		case m := <-messages:
			return m
		case <-time.After(time.Minute):
			t.Fatal("no diagnostics")
		}
		panic("not reached")
	}
	checks := func(want bool, what string) {
		t.Helper()
		err := testnet.Until(20*time.Second, what, func() bool {
			running := false // a child of one of its threads (CONFIG_PROC_CHILDREN)
			threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", cmd.Process.Pid))
			for _, file := range threads {
				children, err := os.ReadFile(file)
				running = running || err == nil && len(children) > 0
			}
			return err == nil && len(threads) > 0 && running == want
		})
		if err != nil {
			t.Fatal(err)
		}
	}

	send(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"capabilities":{}}}`)
	open("file:///slow/spec.cue", endless)
	checks(true, "a check runs")
	open("file:///unsaved/spec.cue",
		"name: \"one\"\nprograms: p: {hook: \"tc/ingress\", stack: [\"eht\"], do: [\"pass\"]}\n")
	m := next()
	if p := m.Params; p.URI != "file:///unsaved/spec.cue" || len(p.Diagnostics) != 1 || p.Diagnostics[0].Code == "" ||
		p.Diagnostics[0].Range.Start.Line != 1 || !strings.Contains(p.Diagnostics[0].Message, `did you mean "eth"?`) {
		t.Fatalf("%+v", m)
	}
	send(`{"jsonrpc":"2.0","method":"textDocument/didChange","params":{"textDocument":{"uri":"file:///slow/spec.cue",` +
		`"version":2},"contentChanges":[{"text":"name: \"slow\"\n"}]}}`)
	if m := next(); m.Params.URI != "file:///slow/spec.cue" || m.Params.Version != 2 {
		t.Fatalf("%+v", m)
	}
	checks(false, "the check that is out of date has ended")
	send(`{"jsonrpc":"2.0","id":2,"method":"shutdown"}`)
	send(`{"jsonrpc":"2.0","method":"exit"}`)
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}
