package cli

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// A command that is interrupted before the relay has answered doesn't say that it did what was asked for: a script that
// waits for it (drain && reboot) would go on.
func TestInterrupted(t *testing.T) {
	const relay = `{"name": "lab", "lease": {"left_seconds": 1}, "sessions": [{"name": "flow", "open": 1}]}`
	for command, want := range map[string]int{
		"drain --limit 1h": statusError, "stop": statusError, "check": statusError, "show sessions": statusError,
		"close flow --all": statusError, "show programs": statusError, "events": statusOK,
	} {
		t.Run(command, func(t *testing.T) {
			socket := filepath.Join(t.TempDir(), "lab.sock")
			l, err := net.Listen("unix", socket)
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var mu sync.Mutex
			asked := 0
			server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				mu.Lock()
				defer mu.Unlock()
				asked++
				switch {
				case asked == 1: // what it is
					_, _ = io.WriteString(w, relay)
				case r.URL.Path != "/v1/stop":
					cancel()
					_, _ = io.ReadAll(r.Body) // the connection is watched after it
					<-r.Context().Done()
				}
			})}
			served := make(chan error, 1)
			go func() { served <- server.Serve(l) }()
			defer func() {
				server.Close()
				<-served
			}()
			var out, say bytes.Buffer
			a := &app{in: strings.NewReader(""), out: &out, err: &say}
			root := a.root()
			root.SetArgs(append(strings.Fields(command), "--socket", socket))
			if got := a.status(root.ExecuteContext(ctx)); got != want {
				t.Errorf("status %d, want %d\n%s%s", got, want, &out, &say)
			}
		})
	}
}
