package cli_test

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fastrelay/fastrelay-gen/runtime/control"
	"github.com/fastrelay/fastrelay-gen/runtime/control/api"
)

// mailer is a relay in user space.
type mailer struct{ control.UserSpace }

func (mailer) Relay() api.Relay {
	one := 1
	return api.Relay{
		Name: "mailer",
		Sessions: []api.Kind{{
			Name: "user", Values: []api.Member{{Name: "remote", Kind: "endpoint"}}, Open: &one, Limit: 10,
		}},
		Tables: []api.Kind{{
			Name: "boxes", Key: []api.Member{{Name: "name", Kind: api.KindText}},
			Values: []api.Member{{Name: "letters", Kind: "uint", Bits: 64}}, Open: &one,
		}},
	}
}

func (mailer) Programs() []api.Program {
	return []api.Program{{
		Name: "letters", Hook: "user space",
		Attachments: []api.Attachment{{Interface: "192.0.2.1:25", How: "tcp", Attached: true}},
		Reasons:     []api.Reason{{Name: "delivered", Kind: "sent", Packets: 41, Bytes: 4100, Doc: "letters"}},
	}}
}

func (mailer) Counters() api.Object { return api.Object{{Name: "logins", Value: uint64(7)}} }

func (mailer) Sessions(string) []api.Session {
	return []api.Session{{
		ID: "1", Kind: "user", Rows: []api.RowUse{}, Hops: []api.NextHop{},
		Fields: api.Object{{Name: "remote", Value: "198.51.100.7:1"}},
	}}
}

func (mailer) Rows(string) []api.Row {
	return []api.Row{{
		ID: "inbox", Key: api.Object{{Name: "name", Value: "inbox"}},
		Value: api.Object{{Name: "letters", Value: uint64(41)}}, Hops: []api.NextHop{},
	}}
}

func (mailer) WriteMetrics(w io.Writer) error {
	_, err := io.WriteString(w, "mailer_boxes 1\n")
	return err
}

// Commands show a relay in user space, by its control socket.
func TestUserSpaceRelay(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "mailer.sock")
	server := control.Socket(socket)
	if err := server.Show(mailer{}); err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	command := func(ctx context.Context, args ...string) *exec.Cmd {
		c := exec.CommandContext(ctx, "/proc/self/exe", append(args, "--socket", socket)...)
		c.Args[0] = "fastrelay-gen"
		return c
	}
	for _, c := range []struct {
		args string
		says []string
	}{
		{"show", []string{"mailer", "user", "boxes"}},
		{"ps", []string{"mailer"}},
		{"show programs", []string{"letters", "delivered", "41"}},
		{"show counters", []string{"logins", "7"}},
		{"show sessions user", []string{"198.51.100.7:1"}},
		{"show rows boxes", []string{"inbox", "41"}},
		{"check", nil},
	} {
		out, err := command(t.Context(), strings.Fields(c.args)...).CombinedOutput()
		if err != nil {
			t.Errorf("%s: %v\n%s", c.args, err, out)
		}
		for _, want := range c.says {
			if !strings.Contains(string(out), want) {
				t.Errorf("%s doesn't say %q:\n%s", c.args, want, out)
			}
		}
	}

	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	page := command(ctx, "page", "--http", "127.0.0.1:0")
	out, err := page.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := page.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		stop()
		_ = page.Wait() // killed
	}()
	line, err := bufio.NewReader(out).ReadString('\n')
	_, url, found := strings.Cut(strings.TrimSpace(line), " is at ")
	if err != nil || !found {
		t.Fatalf("%q, %v", line, err)
	}
	for path, want := range map[string]string{
		"": "mailer", "v1": `"mailer"`, "v1/tables/boxes": `"inbox"`, "v1/sessions/user": "198.51.100.7:1",
		"metrics": "mailer_boxes 1",
	} {
		status, text := fetch(t, http.MethodGet, url+path)
		if status != http.StatusOK || !strings.Contains(text, want) {
			t.Errorf("/%s is %d:\n%.500s", path, status, text)
		}
	}
	if status, text := fetch(t, http.MethodPost, url+"v1/stop"); status != http.StatusMethodNotAllowed {
		t.Errorf("the page takes a stop: %d:\n%.500s", status, text)
	}
	status, text := fetch(t, http.MethodGet, url+"v1/events")
	if status != http.StatusNotFound || !strings.Contains(text, api.CodeNotFound) {
		t.Errorf("the page shows events: %d:\n%.500s", status, text)
	}
}

func fetch(t *testing.T, method, url string) (status int, text string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	b, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, string(b)
}
