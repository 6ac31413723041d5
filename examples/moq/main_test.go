package main

import (
	"bufio"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/examples/moq/wire"
	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go"
)

// TestCommand runs the command: a client connects by the hash that it prints, its metrics are served, and SIGTERM
// drains it.
func TestCommand(t *testing.T) {
	program := filepath.Join(t.TempDir(), "moq")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	command := exec.CommandContext(t.Context(), program, "-address", "127.0.0.1:0", "-metrics", "127.0.0.1:0",
		"-grace", "1m")
	command.Env = append(os.Environ(), "FASTRELAY_SOCKETS="+t.TempDir())
	out, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	line := func(prefix string) string {
		t.Helper()
		for lines.Scan() {
			if rest, ok := strings.CutPrefix(lines.Text(), prefix); ok {
				return rest
			}
		}
		t.Fatalf("no line begins with %q", prefix)
		return ""
	}
	line("a certificate for development")
	hash := line("")
	address := line("listening on ")
	metrics := line("metrics on ")

	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	conn, err := quic.DialAddr(ctx, address, &tls.Config{
		InsecureSkipVerify: true, NextProtos: []string{wire.Draft22.ALPN()},
		VerifyPeerCertificate: func(raw [][]byte, _ [][]*x509.Certificate) error {
			if sum := sha256.Sum256(raw[0]); hex.EncodeToString(sum[:]) != hash {
				return errors.New("the certificate isn't the one whose hash was printed")
			}
			return nil
		},
	}, &quic.Config{EnableDatagrams: true})
	if err != nil {
		t.Fatal(err)
	}
	control, err := conn.AcceptUniStream(ctx)
	if err != nil {
		t.Fatal(err)
	}
	messages := wire.NewReader(control, wire.Draft22)
	if m, err := messages.Next(); err != nil {
		t.Fatal(err)
	} else if _, ok := m.(*wire.Setup); !ok {
		t.Fatalf("%#v instead of SETUP", m)
	}
	answer, err := http.Get("http://" + metrics + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(answer.Body)
	if err != nil || !strings.Contains(string(text), "\nmoq_sessions 1\n") {
		t.Fatalf("%v: %s", err, text)
	}
	if err := command.Process.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if m, err := messages.Next(); err != nil {
		t.Fatal(err)
	} else if g, ok := m.(*wire.GoAway); !ok || g.Timeout != 60_000 {
		t.Fatalf("%#v instead of GOAWAY", m)
	}
	_ = conn.CloseWithError(0, "")
	if err := command.Wait(); err != nil {
		t.Fatal(err)
	}
}
