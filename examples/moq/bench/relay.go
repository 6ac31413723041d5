package main

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
	"strings"
	"time"

	"github.com/fastrelay/fastrelay-gen/examples/moq/certificate"
)

// A relay is a program that relays.
type relay struct {
	name string
	args func(s setting, address string) []string // with the program
}

// relaysOf returns relays, with certificates for all of them. Ours is built.
func relaysOf(ctx context.Context, dir string, names []string) (all []relay, err error) {
	cert, key, err := certificates(dir)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		switch name {
		case "ours":
			program, err := build(ctx, dir)
			if err != nil {
				return nil, err
			}
			all = append(all, relay{name, func(_ setting, address string) []string {
				return []string{program, "-address", address, "-cert", cert, "-key", key, "-stats", "0"}
			}})
		case "moq-relay":
			program, err := cache("rust", "bin", "moq-relay")
			if err != nil {
				return nil, err
			}
			all = append(all, relay{name, func(s setting, address string) []string {
				return []string{program, "--listen", address, "--listen-tls-cert", cert, "--listen-tls-key", key,
					"--auth-public", "**", "--listen-version", "moq-transport-" + s.draft}
			}})
		default:
			return nil, fmt.Errorf("%q is neither ours nor moq-relay", name)
		}
	}
	return all, nil
}

// build builds our relay.
func build(ctx context.Context, dir string) (program string, err error) {
	program = filepath.Join(dir, "moq")
	if out, err := exec.CommandContext(ctx, "go", "build", "-o", program, ".").CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, out)
	}
	return program, nil
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

// start starts a relay on this host. Its output is in a file.
func (r *relay) start(ctx context.Context, dir string, s setting) (cmd *exec.Cmd, address string, err error) {
	free, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return nil, "", err
	}
	address = free.LocalAddr().String()
	port := free.LocalAddr().(*net.UDPAddr).Port
	if err := free.Close(); err != nil {
		return nil, "", err
	}
	args := r.args(s, address)
	cmd = exec.CommandContext(ctx, args[0], args[1:]...)
	log, err := os.Create(filepath.Join(dir, r.name+".log"))
	if err != nil {
		return nil, "", err
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return nil, "", err
	}
	for deadline := time.Now().Add(10 * time.Second); ; {
		switch ok, err := listens(port); {
		case err != nil || ok:
			return cmd, address, err
		case time.Now().After(deadline):
			text, _ := os.ReadFile(log.Name())
			return cmd, "", fmt.Errorf("it doesn't listen:\n%s", text)
		}
		select {
		case <-ctx.Done():
			return cmd, "", ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// listens reports whether a process has bound a UDP port.
func listens(port int) (bool, error) {
	text, err := os.ReadFile("/proc/net/udp")
	return strings.Contains(string(text), fmt.Sprintf(":%04X ", port)), err
}
