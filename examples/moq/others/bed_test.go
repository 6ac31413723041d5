package others

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/fastrelay/fastrelay-gen/examples/moq/certificate"
	"github.com/fastrelay/fastrelay-gen/examples/moq/relay"
	"github.com/fastrelay/fastrelay-gen/internal/test/testlink"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

func TestMain(m *testing.M) {
	testlink.Main()
	os.Exit(m.Run())
}

// build makes programs.
func build(t *testing.T, scripts ...[]string) {
	t.Helper()
	for _, script := range scripts {
		if out, err := exec.CommandContext(t.Context(), script[0], script[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", script, err, out)
		}
	}
}

var (
	aiomoqt  = []string{"../endpoints/build"}
	moqtap   = []string{"../endpoints/peer/build"}
	moqRelay = []string{"../endpoints/build", "moq-relay"}
)

// A bed is our relay between a host of publishers and one of subscribers, at the ends of links that lose packets.
type bed struct {
	publishers, relay, users *testnet.Host
	at                       netip.AddrPort
}

func newBed(t *testing.T, loss float64) *bed {
	t.Helper()
	needs.Root(t)
	n := testnet.Start(t)
	b := &bed{at: netip.MustParseAddrPort("10.1.0.1:4433")}
	var errs [3]error
	b.publishers, errs[0] = n.Host("publishers")
	b.relay, errs[1] = n.Host("relay")
	b.users, errs[2] = n.Host("users")
	check(t, errors.Join(errs[:]...))
	way := testlink.Direction{Delay: 5 * time.Millisecond, Loss: loss}
	link := func(host *testnet.Host, name, relay, other string, seed uint64) {
		l := testlink.Start(t, n, b.relay, name, host, "eth0", testlink.Config{Seed: seed, FromA: way, FromB: way})
		check(t, errors.Join(l.A.AddAddr(relay+"/24"), l.B.AddAddr(other+"/24"), l.B.AddRoute("0.0.0.0/0", relay)))
	}
	link(b.publishers, "in", "10.1.0.1", "10.1.0.2", needs.Seed(t))
	link(b.users, "out", "10.2.0.1", "10.2.0.2", needs.Seed(t)+1)
	return b
}

// start starts our relay, in this process and on the host that it is for.
func (b *bed) start(t *testing.T) {
	t.Helper()
	check(t, b.relay.Do(func() error {
		inside(t, b.at)
		return nil
	}))
}

// inside starts our relay in this process, and returns its certificate's hash.
func inside(t *testing.T, at netip.AddrPort, above ...relay.Upstream) (*relay.Relay, string) {
	t.Helper()
	pair, err := certificate.Development(at.Addr())
	check(t, err)
	r, err := relay.Start(relay.Config{
		Address: at, TLS: &tls.Config{Certificates: []tls.Certificate{pair}}, Upstreams: above,
		Keep: patience, Patience: patience, Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	check(t, err)
	t.Cleanup(func() {
		if err := r.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
	})
	return r, certificate.Hash(pair)
}

// outside starts a relay in a process of its own, at an address if that is given, below another one if that is.
func outside(t *testing.T, r Relay, at netip.AddrPort, draft string, args ...string) (*exec.Cmd, netip.AddrPort) {
	t.Helper()
	if !at.IsValid() {
		at = must(Free())
	}
	log := t.TempDir()
	cmd, err := r.Start(t.Context(), at, log, draft, args...)
	if cmd != nil {
		t.Cleanup(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait() // killed
			if text, err := os.ReadFile(filepath.Join(log, r.Name+".log")); err == nil && t.Failed() {
				t.Logf("%s:\n%s", r.Name, text)
			}
		})
	}
	check(t, err)
	return cmd, at
}

// programs returns relays, and where their certificate is.
func programs(t *testing.T, names ...string) (all []Relay, cert string) {
	t.Helper()
	dir := t.TempDir()
	all, err := Relays(t.Context(), dir, names...)
	check(t, err)
	return all, filepath.Join(dir, "cert.pem")
}

// trusting connects to a relay whose certificate isn't checked.
func trusting(uri string) relay.Upstream {
	return relay.Upstream{URI: uri, TLS: &tls.Config{InsecureSkipVerify: true}}
}

// local is an address of this host, with any port.
var local = netip.MustParseAddrPort("127.0.0.1:0")

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// here runs a program on this host.
func here(ctx context.Context, name string, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, name, args...)
}
