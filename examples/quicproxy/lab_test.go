package main

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/fastrelay/fastrelay-gen/examples/quicproxy/server"
	"github.com/fastrelay/fastrelay-gen/internal/test/offloads"
	"github.com/fastrelay/fastrelay-gen/runtime"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// Started with this variable, the test's binary is the quicproxy command.
const asCommand = "QUICPROXY_TEST_COMMAND"

func TestMain(m *testing.M) {
	switch {
	case os.Getenv(asCommand) == "":
	case len(os.Args) > 1 && os.Args[1] == asEndpoint:
		if err := runEndpoint(os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	default:
		main() // ends the process
	}
	os.Exit(m.Run())
}

const (
	cache = "../../.cache/quicproxy"
	wait  = 10 * time.Second
)

// build makes the endpoints that aren't quic-go's, or says what is missing.
var build = sync.OnceValue(func() error {
	out, err := exec.Command("endpoints/build").CombinedOutput()
	if err != nil {
		return fmt.Errorf("endpoints/build (tools/ensure quic installs what it needs): %w\n%s", err, out)
	}
	return nil
})

// process is a program in a host's namespace. Its lines of output can be read one by one.
type process struct {
	t     *testing.T
	cmd   *exec.Cmd
	in    io.Writer
	lines chan string
	name  string

	echoed int // bytes that rounds have had back
}

func start(t *testing.T, host *testnet.Host, name string, args ...string) *process {
	t.Helper()
	cmd := host.Command(context.Background(), name, args...)
	out, err := cmd.StdoutPipe()
	check(t, err)
	in, err := cmd.StdinPipe()
	check(t, err)
	var say strings.Builder
	cmd.Stderr = &say
	cmd.Env = append(os.Environ(), asCommand+"=1")
	check(t, testnet.StartChild(cmd))
	name = filepath.Base(name) + " " + strings.Join(args, " ")
	p := &process{t: t, cmd: cmd, in: in, lines: make(chan string, 1<<16), name: name}
	go func() {
		defer close(p.lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			p.lines <- s.Text()
		}
	}()
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Logf("%s:\n%s", p.name, say.String())
		}
	})
	return p
}

func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait() // killed, or waited for before
}

// line returns the next line of the output.
func (p *process) line() string {
	p.t.Helper()
	select {
	case l, open := <-p.lines:
		if !open {
			p.t.Fatalf("%s has ended", p.name)
		}
		return l
	case <-time.After(time.Minute):
		p.t.Fatalf("%s says nothing for a minute", p.name)
	}
	return ""
}

// bed is a client's host with the agent, the proxy's, and the target's.
type bed struct {
	*testing.T
	hook         runtime.Hook
	line         *testnet.Line
	proxy, agent *process
	family       int
	folder       string // certificates
}

const (
	targetPort = 4433
	movedTo    = "192.0.2.3" // another address of the client
)

// newBed makes the hosts for endpoints, and starts the proxy and the agent.
func newBed(t *testing.T, hook runtime.Hook, e endpoints, family int, flags ...string) *bed {
	t.Helper()
	if e.built {
		needs.All(t)
		check(t, build())
	}
	l, err := testnet.Start(t).Line()
	check(t, err)
	// Their own hosts' segments: a network between them has cut GSO packets long before.
	check(t, offloads.Segmentation(l.PeerDev, false))
	check(t, offloads.Segmentation(l.ClientDev, false))
	b := &bed{T: t, hook: hook, line: l, family: family, folder: certificates(t)}
	if hook == runtime.HookXDP {
		b.frames()
	}
	self, err := os.Executable()
	check(t, err)
	at := netip.AddrPortFrom(l.RelayInAddr.Of(family), 443).String()
	b.proxy = start(t, l.Relay, self, append([]string{
		"proxy", "--listen", at, "--target", l.PeerAddr.V4.String() + "/32",
		"--target", l.PeerAddr.V6.String() + "/128",
		"--interfaces", "eth0,eth1", "--hook", hook.String(),
		"--lease", "1m", // other tests may hold up what renews it
	}, flags...)...)
	b.proxy.line()
	check(t, l.Client.Run("ip", "link", "set", "lo", "up"))
	b.agent = start(t, l.Client, self, "agent", "--listen", "127.0.0.1:4433", "--proxy", at, "--target",
		netip.AddrPortFrom(b.target(), targetPort).String())
	b.agent.line()
	return b
}

// frames has all that comes to the relay's devices be what XDP takes: checksums are complete, the far ends take frames
// from there, and their neighbours are known.
func (b *bed) frames() {
	b.Helper()
	l := b.line
	for _, d := range []*testnet.Dev{l.ClientDev, l.PeerDev} {
		check(b.T, errors.Join(offloads.TxChecksum(d, false), offloads.GRO(d, true)))
	}
	check(b.T, errors.Join(
		l.RelayIn.AddNeighbour(l.ClientAddr.Of(b.family), l.ClientDev.MAC),
		l.RelayIn.AddNeighbour(netip.MustParseAddr(movedTo), l.ClientDev.MAC),
		l.RelayOut.AddNeighbour(b.target(), l.PeerDev.MAC)))
}

// target is the target's address, of the other family than the client's.
func (b *bed) target() netip.Addr { return b.line.PeerAddr.Of(10 - b.family) }

func (b *bed) stats() server.Stats {
	b.Helper()
	check(b.T, b.proxy.cmd.Process.Signal(syscall.SIGUSR1))
	var s server.Stats
	check(b.T, json.Unmarshal([]byte(b.proxy.line()), &s))
	return s
}

// endpoints are the two sides of a connection. The client sends portions of bytes: the first at once, others when next
// is called.
type endpoints struct {
	name     string
	clientID int  // bytes of the client's connection IDs
	built    bool // by endpoints/build
	client   func(b *bed, portions ...int) *process
	server   func(b *bed) *process
}

// aioquic starts endpoints of aioquic, with connection IDs of these lengths. Each side changes to another ID of the
// other one after every `change` bytes.
func aioquic(clientID, serverID, change int) endpoints {
	python, script := absolute(cache+"/python/bin/python"), absolute("endpoints/aioquic_endpoint.py")
	side := func(b *bed, host *testnet.Host, side, at string, id int, portions ...int) *process {
		return start(b.T, host, python, script, side, at, strconv.Itoa(targetPort), "--certificates", b.folder,
			"--id", strconv.Itoa(id), "--bytes", list(portions), "--change", strconv.Itoa(change))
	}
	return endpoints{
		name: fmt.Sprintf("aioquic %d %d", clientID, serverID), clientID: clientID, built: true,
		client: func(b *bed, portions ...int) *process {
			return side(b, b.line.Client, "client", "127.0.0.1", clientID, portions...)
		},
		server: func(b *bed) *process {
			return side(b, b.line.Peer, "server", b.target().String(), serverID)
		},
	}
}

// quinn starts endpoints of quinn. Each side retires its own IDs after their lifetime.
func quinn(clientID, serverID int, lifetime time.Duration) endpoints {
	program := absolute(cache + "/quinn/release/quinn-endpoint")
	side := func(b *bed, host *testnet.Host, side string, at netip.Addr, id int, portions ...int) *process {
		return start(b.T, host, program, side, netip.AddrPortFrom(at, targetPort).String(), b.folder, strconv.Itoa(id),
			strconv.FormatInt(lifetime.Milliseconds(), 10), list(portions))
	}
	return endpoints{
		name: fmt.Sprintf("quinn %d %d", clientID, serverID), clientID: clientID, built: true,
		client: func(b *bed, portions ...int) *process {
			return side(b, b.line.Client, "client", netip.AddrFrom4([4]byte{127, 0, 0, 1}), clientID, portions...)
		},
		server: func(b *bed) *process { return side(b, b.line.Peer, "server", b.target(), serverID) },
	}
}

// list returns portions as endpoints want them: with commas between.
func list(portions []int) string {
	if len(portions) == 0 {
		return "0"
	}
	return strings.ReplaceAll(strings.Trim(fmt.Sprint(portions), "[]"), " ", ",")
}

func absolute(path string) string {
	path, err := filepath.Abs(path)
	if err != nil {
		panic(err) // there is no working directory
	}
	return path
}

// next lets a client send its next portion.
func (p *process) next() {
	p.t.Helper()
	_, err := io.WriteString(p.in, "\n")
	check(p.t, err)
}

// reach waits until a client has its first n bytes back.
func (p *process) reach(n int) {
	p.t.Helper()
	for {
		got, err := strconv.Atoi(p.line())
		check(p.t, err)
		if got >= n {
			return
		}
	}
}

// A round of a client are some small portions, with which its connection IDs and its path become known to the proxy,
// and a large one.
const few, small, large = 20, 4 << 10, 1 << 20

// rounds are the portions of n rounds.
func rounds(n int) (portions []int) {
	for range n {
		portions = append(append(portions, slices.Repeat([]int{small}, few)...), large)
	}
	return portions
}

// round has a client send a round and get it back, when so many paths to clients are validated: user space has no
// packet of the large portion.
func (b *bed) round(c *process, paths uint64) {
	b.Helper()
	portion := func(size int) {
		if c.echoed > 0 { // the first one is sent at once
			c.next()
		}
		c.echoed += size
		c.reach(c.echoed)
	}
	for range few {
		portion(small)
	}
	check(b.T, testnet.Until(wait, "the path is validated and the kernel swaps in both directions", func() bool {
		s := b.stats()
		return s.Paths == paths && s.InKernel >= 2
	}))
	before := b.stats()
	portion(large)
	after := b.stats()
	sent, atXDP := after.Kernel()-before.Kernel(), after.SentAtXDP-before.SentAtXDP
	if after.ToTarget != before.ToTarget || after.ToClient != before.ToClient || after.Tunnelled != before.Tunnelled ||
		sent < 2*large/1500 {
		b.Errorf("path %d: counters before: %+v\nafter: %+v", paths, before, after)
	}
	// XDP leaves a packet whose checksum happens to be that of its pseudo-header, as one that a device is to complete:
	// one of 65,536.
	if b.hook == runtime.HookTC && atXDP > 0 || b.hook == runtime.HookXDP && atXDP+5 < sent {
		b.Errorf("path %d: %d packets were sent at XDP of %d", paths, atXDP, sent)
	}
}

// right waits until a client has all its bytes back, and wants them to be what it sent.
func (p *process) right() {
	p.t.Helper()
	for {
		switch l := p.line(); {
		case strings.HasPrefix(l, "right"):
			return
		case strings.HasPrefix(l, "wrong"):
			p.t.Fatalf("%s: other bytes come back than were sent", p.name)
		}
	}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// certificates makes a folder with a certificate for "target" and the authority that clients trust.
func certificates(t *testing.T) string {
	t.Helper()
	folder := t.TempDir()
	write := func(name, kind string, der []byte) {
		block := pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
		check(t, os.WriteFile(filepath.Join(folder, name), block, 0o600))
	}
	template := func(name string, authority bool) *x509.Certificate {
		c := &x509.Certificate{
			SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
			NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
			KeyUsage: x509.KeyUsageDigitalSignature, BasicConstraintsValid: true,
		}
		if authority {
			c.IsCA, c.KeyUsage, c.DNSNames = true, x509.KeyUsageCertSign, nil
		} else {
			c.SerialNumber, c.ExtKeyUsage = big.NewInt(2), []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
		}
		return c
	}
	authorityKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	check(t, err)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	check(t, err)
	authority := template("authority", true)
	der, err := x509.CreateCertificate(rand.Reader, authority, authority, &authorityKey.PublicKey, authorityKey)
	check(t, err)
	write("ca.pem", "CERTIFICATE", der)
	der, err = x509.CreateCertificate(rand.Reader, template("target", false), authority, &key.PublicKey, authorityKey)
	check(t, err)
	write("cert.pem", "CERTIFICATE", der)
	der, err = x509.MarshalPKCS8PrivateKey(key)
	check(t, err)
	write("key.pem", "PRIVATE KEY", der)
	return folder
}
