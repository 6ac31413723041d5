// Package others runs MoQ relays and clients of other implementations, which endpoints/build and endpoints/peer/build
// make. Its tests have them publish and subscribe through our relay, and relay above it and below it.
package others

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fastrelay/fastrelay-gen/examples/moq/certificate"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// Path is where a program was made, in .cache/moq of this folder or one above.
func Path(name ...string) (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		path := filepath.Join(append([]string{dir, ".cache", "moq"}, name...)...)
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("%s isn't there: examples/moq/endpoints/build makes it", filepath.Join(name...))
		}
		dir = filepath.Dir(dir)
	}
}

// A Relay is a program that relays.
type Relay struct {
	Name string
	Args []string // beside those it needs
	// Run prepares a program as exec.CommandContext does, which stands for nil.
	Run     func(ctx context.Context, name string, args ...string) *exec.Cmd
	command func(at netip.AddrPort, draft string) []string // with the program
}

// Relays are those of the names ours, moq-relay, moq-relay-cubic, aiomoqt, and quinn, which is that of the bench of
// examples/quic, and knows no MOQT. Ours is built in a folder, which also gets the certificate of all.
func Relays(ctx context.Context, dir string, names ...string) (all []Relay, err error) {
	cert, key, err := certificates(dir)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		r := Relay{Name: name}
		var program string
		switch name {
		case "ours":
			if program, err = Ours(ctx, dir); err != nil {
				return nil, err
			}
			r.command = func(at netip.AddrPort, _ string) []string {
				return []string{program, "-address", at.String(), "-cert", cert, "-key", key, "-stats", "0"}
			}
		case "moq-relay", "moq-relay-cubic":
			if program, err = Path("rust", "bin", "moq-relay"); err != nil {
				return nil, err
			}
			r.command = func(at netip.AddrPort, draft string) []string {
				args := []string{program, "--listen", at.String(), "--listen-tls-cert", cert, "--listen-tls-key", key,
					"--auth-public", "**", "--listen-version", "moq-transport-" + draft}
				if r.Name == "moq-relay-cubic" { // as ours; BBRv3 otherwise
					args = append(args, "--quic-congestion-control", "loss")
				}
				return args
			}
		case "aiomoqt":
			if program, err = Path("python", "bin", "moq-interop-relay"); err != nil {
				return nil, err
			}
			r.command = func(at netip.AddrPort, draft string) []string {
				return []string{program, "--bind", at.Addr().String(), "--port", strconv.Itoa(int(at.Port())), "--dual",
					"--cert", cert, "--key", key, "--draft", draft}
			}
		case "quinn":
			if program, err = quinn(ctx); err != nil {
				return nil, err
			}
			r.command = func(at netip.AddrPort, _ string) []string { return []string{program, "--listen", at.String()} }
		default:
			return nil, fmt.Errorf("there are ours, moq-relay, moq-relay-cubic, aiomoqt and quinn, and no %q", name)
		}
		all = append(all, r)
	}
	return all, nil
}

// Ours builds our relay in a folder.
func Ours(ctx context.Context, dir string) (program string, err error) {
	program = filepath.Join(dir, "moq")
	build := exec.CommandContext(ctx, "go", "build", "-o", program, "github.com/fastrelay/fastrelay-gen/examples/moq")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, out)
	}
	return program, nil
}

// quinn builds the relay of quinn, unless it is there.
func quinn(ctx context.Context) (program string, err error) {
	out, err := exec.CommandContext(ctx, "go", "list", "-f", "{{.Dir}}",
		"github.com/fastrelay/fastrelay-gen/examples/quic/bench").Output()
	if err != nil {
		return "", fmt.Errorf("go list: %w", err)
	}
	build := exec.CommandContext(ctx, filepath.Join(strings.TrimSpace(string(out)), "quinn", "build"))
	build.Stderr = os.Stderr
	if out, err = build.Output(); err != nil {
		return "", fmt.Errorf("%s: %w", build.Path, err)
	}
	return strings.TrimSpace(string(out)), nil
}

func certificates(dir string) (cert, key string, err error) {
	pair, err := certificate.Development(netip.MustParseAddr("127.0.0.1"))
	if err != nil {
		return "", "", err
	}
	private, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	if err != nil {
		return "", "", err
	}
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	write := func(file, kind string, b []byte) error {
		return os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: b}), 0o600)
	}
	return cert, key, errors.Join(write(cert, "CERTIFICATE", pair.Certificate[0]), write(key, "PRIVATE KEY", private))
}

// Free is an address of this host with a UDP port that nothing has bound.
func Free() (netip.AddrPort, error) {
	free, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return netip.AddrPort{}, err
	}
	return free.LocalAddr().(*net.UDPAddr).AddrPort(), free.Close()
}

// Start starts a relay at an address of this host, for one draft if it can be told, with arguments beside those it
// needs. Its output is in a file of the folder.
func (r *Relay) Start(ctx context.Context, at netip.AddrPort, dir, draft string, args ...string) (*exec.Cmd, error) {
	args = slices.Concat(r.command(at, draft), r.Args, args)
	run := r.Run
	if run == nil {
		run = exec.CommandContext
	}
	cmd := run(ctx, args[0], args[1:]...)
	log, err := os.Create(filepath.Join(dir, r.Name+".log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	if _, err := cmd.StdinPipe(); err != nil { // the one of quinn runs until its input ends
		return nil, err
	}
	if err := testnet.StartChild(cmd); err != nil {
		return nil, err
	}
	for deadline := time.Now().Add(time.Minute); ; {
		switch ok, err := listens(cmd.Process.Pid, at.Port()); {
		case err != nil || ok:
			return cmd, err
		case time.Now().After(deadline):
			text, _ := os.ReadFile(log.Name())
			return cmd, fmt.Errorf("it doesn't listen:\n%s", text)
		}
		select {
		case <-ctx.Done():
			return cmd, ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// listens reports whether a UDP port is bound in the network namespace of a process.
func listens(pid int, port uint16) (bool, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/udp", pid))
	return strings.Contains(string(text), fmt.Sprintf(":%04X ", port)), err
}

// End ends a program that may not have been started.
func End(cmd *exec.Cmd) {
	if cmd != nil && cmd.Process != nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // killed
	}
}
