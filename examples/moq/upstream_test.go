package main

import (
	"bufio"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/examples/moq/certificate"
)

// begin runs the command until the test ends; it returns what the line says that begins with each prefix, in order.
func begin(t *testing.T, program string, prefixes []string, args ...string) (found []string) {
	t.Helper()
	command := exec.CommandContext(t.Context(), program, args...)
	out, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = command.Process.Signal(unix.SIGKILL)
		_ = command.Wait()
	})
	lines := bufio.NewScanner(out)
	for _, prefix := range prefixes {
		for {
			if !lines.Scan() {
				t.Fatalf("no line begins with %q", prefix)
			}
			if rest, ok := strings.CutPrefix(lines.Text(), prefix); ok {
				found = append(found, rest)
				break
			}
		}
	}
	return found
}

// TestUpstream runs a relay, and two that connect to it: on QUIC, by its certificate's hash, and on WebTransport, by an
// authority's file. Their metrics say that they are connected.
func TestUpstream(t *testing.T) {
	folder := t.TempDir()
	program := filepath.Join(folder, "moq")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	pair, err := certificate.Development(netip.MustParseAddr("127.0.0.1"))
	if err != nil {
		t.Fatal(err)
	}
	key, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	certFile, keyFile := filepath.Join(folder, "cert.pem"), filepath.Join(folder, "key.pem")
	for file, b := range map[string]*pem.Block{
		certFile: {Type: "CERTIFICATE", Bytes: pair.Certificate[0]}, keyFile: {Type: "PRIVATE KEY", Bytes: key},
	} {
		if err := os.WriteFile(file, pem.EncodeToMemory(b), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	root := begin(t, program, []string{"listening on "},
		"-address", "127.0.0.1:0", "-cert", certFile, "-key", keyFile)[0]
	for uri, verify := range map[string][]string{
		"moqt://" + root:        {"-upstream-hash", strings.ToUpper(certificate.Hash(pair))},
		"https://" + root + "/": {"-upstream-ca", certFile},
	} {
		args := append([]string{"-address", "127.0.0.1:0", "-metrics", "127.0.0.1:0",
			"-control", filepath.Join(folder, uri[:4]),
			"-upstream", uri}, verify...)
		metrics := begin(t, program, []string{"metrics on "}, args...)[0]
		want := `moq_upstream_connected{upstream="` + uri + `"} 1`
		for late := time.After(time.Minute); ; {
			answer, err := http.Get("http://" + metrics + "/metrics")
			if err != nil {
				t.Fatal(err)
			}
			text, err := io.ReadAll(answer.Body)
			if err = errors.Join(err, answer.Body.Close()); err != nil {
				t.Fatal(err)
			}
			if strings.Contains(string(text), want) {
				break
			}
			select {
			case <-late:
				t.Fatalf("%s has no %s", text, want)
			default:
			}
		}
	}
}
