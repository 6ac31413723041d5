package quicfork

import (
	"archive/zip"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"testing"
)

// TestInstall uses this module as its README tells others to: from another module, which has it from a proxy. One
// such module imports the fork under a path of its own, beside upstream's quic-go; a second one imports that module; in
// a third one, a library that imports quic-go gets the fork in its place. Other modules come from this machine's module
// cache, and where it lacks one, from the proxy that this machine uses.
func TestInstall(t *testing.T) {
	const self, version = "github.com/fastrelay/fastrelay-gen/examples/quicfork", "v0.1.0"
	p := newProxy(t)
	all, err := read(os.DirFS("."))
	if err != nil {
		t.Fatal(err)
	}
	for name := range all {
		if strings.HasPrefix(name, "quic-go/") { // made by make quic; git ignores it
			delete(all, name)
		}
	}
	p.add(t, self, version, all)
	const quicfork = self + "/cmd/quicfork@" + version

	server := t.TempDir()
	p.write(t, server, Tree{
		"go.mod":         []byte("module example.com/server\n\ngo 1.26.0\n"),
		"hello/hello.go": []byte(strings.ReplaceAll(hello, "FORK", "example.com/server/internal/quic")),
		"main.go": []byte("package main\n\nimport \"example.com/server/hello\"\n\n" +
			"func main() { hello.Print() }\n"),
	})
	p.command(t, server, "go", "run", quicfork, "internal/quic")
	p.command(t, server, "go", "mod", "tidy")
	p.command(t, server, "go", "vet", ".", "./hello")
	const want = "hello, null protection: true"
	if got := p.command(t, server, "go", "run", "."); got != want {
		t.Errorf("the module with the fork prints %q, not %q", got, want)
	}

	tree, err := read(os.DirFS(server))
	if err != nil {
		t.Fatal(err)
	}
	p.add(t, "example.com/server", "v1.0.0", tree)
	user := t.TempDir()
	p.write(t, user, Tree{"go.mod": []byte("module example.com/user\n\ngo 1.26.0\n"), "main.go": tree["main.go"]})
	p.command(t, user, "go", "mod", "tidy")
	if got := p.command(t, user, "go", "run", "."); got != want {
		t.Errorf("a module that imports it prints %q, not %q", got, want)
	}

	library := t.TempDir()
	p.write(t, library, Tree{
		"go.mod": []byte("module example.com/library\n\ngo 1.26.0\n\n" +
			"require " + UpstreamPath + " " + UpstreamVersion + "\n"),
		"library.go": []byte("package library\n\nimport \"" + UpstreamPath + "\"\n\n" +
			"// Conn is a connection of quic-go's.\ntype Conn = quic.Conn\n"),
	})
	p.command(t, library, "go", "mod", "tidy")
	if tree, err = read(os.DirFS(library)); err != nil {
		t.Fatal(err)
	}
	p.add(t, "example.com/library", "v1.0.0", tree)
	main := t.TempDir()
	p.write(t, main, Tree{
		"go.mod": []byte("module example.com/main\n\ngo 1.26.0\n"),
		"main.go": []byte(`package main

import (
	"fmt"

	"example.com/library"
)

func main() {
	var c library.Conn
	fmt.Println("outside:", c.Outside())
}
`),
	})
	p.command(t, main, "go", "run", quicfork, "-replace", "third_party/quic-go")
	p.command(t, main, "go", "mod", "edit", "-replace", UpstreamPath+"=./third_party/quic-go")
	p.command(t, main, "go", "mod", "tidy")
	if got := p.command(t, main, "go", "run", "."); got != "outside: <nil>" {
		t.Errorf("the module whose library has the fork prints %q", got)
	}
}

// hello has a server of the fork and two clients: one of the fork, and one of upstream's quic-go.
const hello = `package hello

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"math/big"
	"net"

	upstream "github.com/quic-go/quic-go"

	"FORK"
)

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

// Print says hello over QUIC.
func Print() {
	_, key, _ := ed25519.GenerateKey(rand.Reader)
	template := &x509.Certificate{SerialNumber: big.NewInt(1)}
	der := must(x509.CreateCertificate(rand.Reader, template, template, key.Public(), key))
	secrets := &tls.Config{
		Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}},
		NextProtos:   []string{"hello"}, InsecureSkipVerify: true,
	}
	socket := must(net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)}))
	ctx := quic.WithHooks(context.Background(), &quic.Hooks{NullProtection: true})
	transport := &quic.Transport{Conn: socket}
	transport.ConnContext = func(context.Context, *quic.ClientInfo) (context.Context, error) { return ctx, nil }
	listener := must(transport.Listen(secrets, nil))
	address := socket.LocalAddr().String()
	client := must(quic.DialAddr(ctx, address, secrets, nil))
	out := must(must(listener.Accept(ctx)).OpenUniStream())
	must(out.Write([]byte("hello")))
	out.Close()
	text := must(io.ReadAll(must(client.AcceptUniStream(ctx))))

	other := must(upstream.DialAddr(ctx, address, secrets, nil))
	must(listener.Accept(ctx))
	other.CloseWithError(0, "")
	fmt.Printf("%s, null protection: %v", text, client.Outside().NullProtection())
}
`

// proxy is a module proxy in a folder, before this machine's module cache, and then the proxy that it uses: go mod tidy
// wants what tests of dependencies import as well, which nothing else may have downloaded.
type proxy struct {
	folder string
	env    []string
}

func newProxy(t *testing.T) *proxy {
	t.Helper()
	out, err := exec.Command("go", "env", "GOMODCACHE", "GOCACHE", "GOPROXY").Output()
	if err != nil {
		t.Fatal(err)
	}
	of := strings.Split(string(out), "\n")
	modules, cache, next := of[0], of[1], of[2]
	p := &proxy{folder: t.TempDir()}
	// With -trimpath and without cgo, packages are found in the build cache, though their module cache is a new one.
	p.env = append(os.Environ(),
		"GOPROXY=file://"+p.folder+",file://"+filepath.Join(modules, "cache", "download")+","+next,
		"GOSUMDB=off", "GOPRIVATE=", "GONOPROXY=", "GOCACHE="+cache, "GOMODCACHE="+t.TempDir(),
		"GOFLAGS=-mod=mod -modcacherw -trimpath", "CGO_ENABLED=0", "GOWORK=off", "GOTOOLCHAIN=local")
	return p
}

// add puts a version of a module into the proxy.
func (p *proxy) add(t *testing.T, module, version string, files Tree) {
	t.Helper()
	folder := filepath.Join(p.folder, filepath.FromSlash(module), "@v")
	var archive strings.Builder
	w := zip.NewWriter(&archive)
	for name, text := range files {
		f, err := w.Create(path.Join(module+"@"+version, name))
		if err == nil {
			_, err = f.Write(text)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	p.write(t, folder, Tree{
		version + ".zip": []byte(archive.String()), version + ".mod": files["go.mod"],
		version + ".info": fmt.Appendf(nil, `{"Version": %q}`, version), "list": []byte(version + "\n"),
	})
}

func (p *proxy) write(t *testing.T, folder string, files Tree) {
	t.Helper()
	for name, text := range files {
		file := filepath.Join(folder, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(file), fs.ModePerm); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// command runs a command, and returns what it prints.
func (p *proxy) command(t *testing.T, folder, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir, cmd.Env = folder, p.env
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(cmd.Args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}
