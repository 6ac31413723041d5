package browser

import (
	"bufio"
	"bytes"
	"io"
	"os"
	"strings"
	"testing"
)

// The browser is spoken to in messages that end with a zero byte, and answers among events.
func TestBrowserMessages(t *testing.T) {
	commands, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer commands.Close()
	replies := "{\"method\":\"Target.targetCreated\"}\x00" +
		"{\"id\":1,\"result\":{\"result\":{\"type\":\"number\",\"value\":7}}}\x00" +
		"{\"id\":2,\"error\":{\"message\":\"no page\"}}\x00"
	b := &Browser{in: in, session: "s", replies: bufio.NewReader(strings.NewReader(replies))}
	value := 0
	if err := b.Evaluate("3+4", &value); err != nil || value != 7 {
		t.Error(value, err)
	}
	if err := b.Evaluate("3+4", &value); err == nil || err.Error() != "Runtime.evaluate: no page" {
		t.Error(err)
	}
	in.Close()
	sent, err := io.ReadAll(commands)
	if err != nil {
		t.Fatal(err)
	}
	if n := bytes.Count(sent, []byte{0}); n != 2 || !bytes.Contains(sent, []byte(`"sessionId":"s"`)) {
		t.Errorf("%q", sent)
	}
}
