// Package caddy runs Caddy, a web server with HTTP/3, on a host of a test network.
package caddy

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/fastrelay/fastrelay-gen/internal/test/selfsigned"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// Server is Caddy with HTTP/2 and HTTP/3 at port 443.
type Server struct {
	Key string // the SHA-256 of the certificate's public key in base64, as Chromium takes it

	cmd   *exec.Cmd
	dir   string
	log   bytes.Buffer
	ended chan struct{}
}

// caddyfile is the server's configuration: a folder for its own files, its name and address, and what it serves.
const caddyfile = `{
	admin off
	auto_https off
	storage file_system %[1]s
	servers {
		protocols h1 h2 h3
	}
	log {
		level WARN
	}
}
https://%[2]s {
	bind %[3]v
	tls %[1]s/certificate.pem %[1]s/key.pem
	root * %[4]s
	encode gzip
	file_server
}
`

// Start serves a folder under a name on a host, and waits until it does.
func Start(ctx context.Context, host *testnet.Host, name string, at netip.Addr, root string) (*Server, error) {
	dir, err := os.MkdirTemp("", "caddy-*")
	if err != nil {
		return nil, err
	}
	s := &Server{dir: dir, ended: make(chan struct{})}
	if err := s.start(ctx, host, name, at, root); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	err = testnet.Until(10*time.Second, "caddy listens", func() bool {
		return s.over() || host.Do(func() error {
			c, err := net.Dial("tcp", netip.AddrPortFrom(at, 443).String())
			if err == nil {
				c.Close()
			}
			return err
		}) == nil
	})
	if over := s.over(); over || err != nil {
		s.Close()
		return nil, fmt.Errorf("caddy: %w: %s", errors.Join(err, errors.New("it can't be reached")), s.log.String())
	}
	return s, nil
}

func (s *Server) start(
	ctx context.Context, host *testnet.Host, name string, at netip.Addr, root string,
) (err error) {
	if s.Key, err = certify(s.dir, name); err != nil {
		return err
	}
	file := filepath.Join(s.dir, "Caddyfile")
	if err := os.WriteFile(file, fmt.Appendf(nil, caddyfile, s.dir, name, at, root), 0o600); err != nil {
		return err
	}
	s.cmd = host.Command(ctx, "caddy", "run", "--config", file, "--adapter", "caddyfile")
	s.cmd.Env = append(os.Environ(), "HOME="+s.dir, "XDG_DATA_HOME="+s.dir, "XDG_CONFIG_HOME="+s.dir)
	s.cmd.Stderr = &s.log
	if err := testnet.StartChild(s.cmd); err != nil {
		return err
	}
	go func() {
		_ = s.cmd.Wait()
		close(s.ended)
	}()
	return nil
}

// over reports whether the server has ended.
func (s *Server) over() bool {
	select {
	case <-s.ended:
		return true
	default:
		return false
	}
}

// Close ends the server.
func (s *Server) Close() {
	_ = s.cmd.Process.Kill()
	<-s.ended
	os.RemoveAll(s.dir)
}

// certify makes a certificate for the server's name, and returns the hash of its public key.
func certify(dir, name string) (string, error) {
	certificate, err := selfsigned.Certificate(name)
	if err != nil {
		return "", err
	}
	key := certificate.PrivateKey.(*ecdsa.PrivateKey)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return "", err
	}
	public, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		return "", err
	}
	write := func(name, kind string, content []byte) error {
		text := pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: content})
		return os.WriteFile(filepath.Join(dir, name), text, 0o600)
	}
	hash := sha256.Sum256(public)
	return base64.StdEncoding.EncodeToString(hash[:]), errors.Join(
		write("certificate.pem", "CERTIFICATE", certificate.Certificate[0]), write("key.pem", "PRIVATE KEY", private))
}
