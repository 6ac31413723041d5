// Package relays starts the relays that are compared: ours, and moq-relay. It serves commands that run in examples/moq.
package relays

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/fastrelay/fastrelay-gen/examples/moq/certificate"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// A Relay is a program that relays.
type Relay struct {
	Name string
	dir  string
	args func(draft, address string) []string // with the program
}

// Prepare returns relays, with certificates for all of them in dir. Ours is built.
func Prepare(ctx context.Context, dir string, names []string) (all []Relay, err error) {
	cert, key, err := certificates(dir)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		switch name {
		case "ours":
			program := filepath.Join(dir, "moq")
			if out, err := exec.CommandContext(ctx, "go", "build", "-o", program, ".").CombinedOutput(); err != nil {
				return nil, fmt.Errorf("go build: %w\n%s", err, out)
			}
			all = append(all, Relay{name, dir, func(_, address string) []string {
				return []string{program, "-address", address, "-cert", cert, "-key", key, "-stats", "0"}
			}})
		case "moq-relay", "moq-relay-cubic":
			program, err := Made("rust", "bin", "moq-relay")
			if err != nil {
				return nil, err
			}
			all = append(all, Relay{name, dir, func(draft, address string) []string {
				args := []string{program, "--listen", address, "--listen-tls-cert", cert, "--listen-tls-key", key,
					"--auth-public", "**", "--listen-version", "moq-transport-" + draft}
				if name == "moq-relay-cubic" { // as ours; BBRv3 otherwise
					args = append(args, "--quic-congestion-control", "loss")
				}
				return args
			}})
		default:
			return nil, fmt.Errorf("%q is none of ours, moq-relay and moq-relay-cubic", name)
		}
	}
	return all, nil
}

// Made returns the path of what endpoints/build has made.
func Made(name ...string) (string, error) {
	path, err := filepath.Abs(filepath.Join(append([]string{"../../.cache/moq"}, name...)...))
	if err == nil {
		_, err = os.Stat(path)
	}
	if err != nil {
		return "", fmt.Errorf("%w: run endpoints/build first, here in examples/moq", err)
	}
	return path, nil
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

// A Command prepares a program, as exec.CommandContext does.
type Command func(ctx context.Context, name string, args ...string) *exec.Cmd

// Start starts a relay and waits until it listens. Its output is in a file. What has been started has to be ended with
// End, also if there is an error.
func (r *Relay) Start(
	ctx context.Context, command Command, draft string, address netip.AddrPort,
) (cmd *exec.Cmd, err error) {
	args := r.args(draft, address.String())
	cmd = command(ctx, args[0], args[1:]...)
	log, err := os.Create(filepath.Join(r.dir, r.Name+".log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	if err := testnet.StartChild(cmd); err != nil {
		return nil, err
	}
	for deadline := time.Now().Add(10 * time.Second); ; {
		switch ok, err := listens(cmd.Process.Pid, address.Port()); {
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

// End ends a program that may not have been started.
func End(cmd *exec.Cmd) {
	if cmd != nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // killed
	}
}

// listens reports whether a UDP port is bound in the network namespace of a process.
func listens(pid int, port uint16) (bool, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/udp", pid))
	return strings.Contains(string(text), fmt.Sprintf(":%04X ", port)), err
}
