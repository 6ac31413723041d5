package examples

import (
	"bytes"
	"io"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	segments "github.com/fastrelay/fastrelay-gen/examples/segments/sfu"
	sfu "github.com/fastrelay/fastrelay-gen/examples/sfu/server"
	turn "github.com/fastrelay/fastrelay-gen/examples/turn/server"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

const wait = 10 * time.Second

// log is what a server says.
type log struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *log) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// slow is an output whose reader is late.
type slow struct{ writing, read chan struct{} }

func (s slow) Write(b []byte) (int, error) {
	select {
	case s.writing <- struct{}{}:
	default:
	}
	<-s.read
	return len(b), nil
}

// A server ends when it is told to, however often it was asked for its counters before, and whatever it does just now.
func TestEnd(t *testing.T) {
	for name, c := range map[string]struct {
		command func(args []string, stdout, stderr io.Writer) int
		args    []string
		ready   string
	}{
		"turn": {turn.Command, []string{"--no-offload", "--listen", "127.0.0.1:0", "--user", "a=b"}, "listening"},
		"sfu":  {sfu.Command, []string{"--no-offload", "--address", "127.0.0.1", "--api", "127.0.0.1:0"}, "ready"},
		"segments": {segments.Command, []string{"-sends", "plain", "-address", "127.0.0.1:0", "-api", "127.0.0.1:0"},
			"ready"},
	} {
		t.Run(name, func(t *testing.T) {
			came := make(chan os.Signal, 1)
			signal.Notify(came, syscall.SIGUSR1, syscall.SIGTERM)
			defer signal.Stop(came)
			send := func(s syscall.Signal) {
				t.Helper()
				if err := syscall.Kill(os.Getpid(), s); err != nil {
					t.Fatal(err)
				}
				<-came
				signal.Notify(came, s) // which waits until all who want this signal have it
			}
			says, out := &log{}, slow{make(chan struct{}, 1), make(chan struct{})}
			status := make(chan int, 1)
			go func() { status <- c.command(c.args, out, says) }()
			if err := testnet.Until(wait, name+" is ready", func() bool {
				return strings.Contains(says.String(), c.ready)
			}); err != nil {
				t.Fatal(err, says)
			}
			send(syscall.SIGUSR1)
			<-out.writing
			for range 8 {
				send(syscall.SIGUSR1)
			}
			send(syscall.SIGTERM)
			close(out.read)
			select {
			case got := <-status:
				if got != 0 {
					t.Errorf("status %d\n%s", got, says)
				}
			case <-time.After(wait):
				t.Error("it goes on")
			}
		})
	}
}
