package relay

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/fastrelay/fastrelay-gen/examples/moq/certificate"
	"github.com/fastrelay/fastrelay-gen/examples/moq/restart"
	"github.com/fastrelay/fastrelay-gen/examples/moq/wire"
	"github.com/fastrelay/fastrelay-gen/examples/quic/resetkey"
	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go"
	"github.com/fastrelay/fastrelay-gen/internal/test/testlink"
)

// serveEnv makes the tests' program a relay: its address, the file of its key, and maybe the relay above, with which
// it does without protection, and the interfaces on which its kernel forwards.
const serveEnv = "FASTRELAY_MOQ_SERVE"

func TestMain(m *testing.M) {
	testlink.Main()
	if args := strings.Fields(os.Getenv(serveEnv)); len(args) > 0 {
		fmt.Println(serveUntilKilled(args))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// serveUntilKilled prints where it listens, or returns what is wrong. For each line of its input it prints how many
// bytes its kernel has sent.
func serveUntilKilled(args []string) error {
	pair, err := certificate.Development(netip.MustParseAddr("127.0.0.1"))
	if err != nil {
		return err
	}
	c := Config{Address: netip.MustParseAddrPort(args[0]), TLS: &tls.Config{Certificates: []tls.Certificate{pair}}}
	if c.Key, err = resetkey.File(args[1]); err != nil {
		return err
	}
	if len(args) > 2 {
		c.Null = nullHosts
		c.Upstreams = []Upstream{{URI: "moqt://" + args[2], TLS: &tls.Config{InsecureSkipVerify: true}}}
		c.Interfaces = args[3:]
	}
	r, err := Start(c)
	if err != nil {
		return err
	}
	fmt.Println(r.Addr())
	for line := bufio.NewScanner(os.Stdin); line.Scan(); {
		n := uint64(0)
		for _, t := range r.Stats().Tracks {
			n += t.Sent.KernelBytes
		}
		fmt.Println(n)
	}
	select {}
}

// A process is a relay in a process of its own.
type process struct {
	*exec.Cmd
	t   *testing.T
	at  netip.AddrPort
	in  io.Writer
	out *bufio.Scanner
}

// start starts a relay with the arguments that serveEnv has, by exec.CommandContext or what is like it.
func startProcess(
	t *testing.T, run func(ctx context.Context, name string, args ...string) *exec.Cmd, args ...string,
) *process {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &process{Cmd: run(t.Context(), program), t: t}
	p.Env = append(os.Environ(), serveEnv+"="+strings.Join(args, " "))
	p.Stderr = os.Stderr
	if p.in, err = p.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := p.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.out = bufio.NewScanner(out)
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	p.out.Scan()
	if p.at, err = netip.ParseAddrPort(p.out.Text()); err != nil {
		t.Fatalf("the relay doesn't start: %s", p.out.Text())
	}
	return p
}

// kill kills the relay.
func (p *process) kill() {
	p.t.Helper()
	if err := p.Process.Kill(); err != nil {
		p.t.Fatal(err)
	}
	_ = p.Wait() // it was killed
}

// kernelBytes is how much the relay's kernel has sent.
func (p *process) kernelBytes() (n uint64) {
	p.t.Helper()
	fmt.Fprintln(p.in)
	p.out.Scan()
	n, err := strconv.ParseUint(p.out.Text(), 10, 64)
	if err != nil {
		p.t.Fatal(err)
	}
	return n
}

// plays has a subscriber get two objects of a publisher's, in a group.
func plays(p, a *peer, alias, group uint64) {
	p.t.Helper()
	p.opens(header(alias, group, 0)).send(items(0, 2, 1000)...).close()
	v := a.views()
	same(p.t, v.header.Group, group)
	v.has(items(0, 2, 1000)...)
	v.ends()
}

// TestKilled kills a relay while a publisher and a player are connected, and starts another one at the same port with
// the same key: both learn as soon as they send something that their sessions are gone, long before their idle
// timeouts, connect again, and go on.
func TestKilled(t *testing.T) {
	both(t, func(t *testing.T, o options) {
		key := filepath.Join(t.TempDir(), "key")
		first := startProcess(t, exec.CommandContext, "127.0.0.1:0", key)
		at := first.at
		o.quic.MaxIdleTimeout = time.Hour
		p, a := dialAt(t, at, o), dialAt(t, at, o)
		p.publishes("live")
		c := a.subscribes(track0("live"), wire.Parameters{})
		publisher(p, 1, track0("live"), wire.SubscribeOK{})
		expect[*wire.SubscribeOK](c)
		plays(p, a, 1, 0)
		first.kill()
		same(t, startProcess(t, exec.CommandContext, at.String(), key).at, at)
		for _, one := range []*peer{p, a} {
			// A request; the library answers no packet of less than 43 bytes.
			one.call(&wire.TrackStatus{RequestID: one.id(), Track: track0(strings.Repeat("long", 20))})
			select {
			case <-one.conn.Context().Done():
			case <-time.After(patience):
				t.Fatal("a session with a relay that is gone stays open")
			}
			var reset *quic.StatelessResetError
			if err := context.Cause(one.conn.Context()); !errors.As(err, &reset) {
				t.Fatalf("%v, want a stateless reset", err)
			}
		}
		p, a = dialAt(t, at, o), dialAt(t, at, o)
		p.publishes("live")
		c = a.subscribes(track0("live"), wire.Parameters{})
		publisher(p, 1, track0("live"), wire.SubscribeOK{})
		expect[*wire.SubscribeOK](c)
		plays(p, a, 1, 1)
	})
}

// take takes a place at an address.
func take(t *testing.T, file string) *restart.Generation {
	t.Helper()
	g, err := restart.Take(file)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// TestSuccessor starts a successor beside a relay: sessions of the first go on until they have left, new ones are the
// successor's, and when the first has ended, there may be another successor.
func TestSuccessor(t *testing.T) {
	both(t, func(t *testing.T, o options) {
		file := filepath.Join(t.TempDir(), "lock")
		key := [32]byte{1}
		at := netip.MustParseAddrPort("127.0.0.1:0")
		next := func() *Relay {
			return start(t, func(c *Config) {
				c.Address, c.Key, c.Generation = at, &key, take(t, file)
			})
		}
		r := next()
		at = r.Addr()
		p, a := dial(t, r, o), dial(t, r, o)
		for generation := range uint64(3) {
			p.publishes("live")
			c := a.subscribes(track0("live"), wire.Parameters{})
			publisher(p, 1, track0("live"), wire.SubscribeOK{})
			expect[*wire.SubscribeOK](c)
			plays(p, a, 1, 0)

			successor := next()
			if _, err := restart.Take(file); err == nil || !strings.Contains(err.Error(), "successor") {
				t.Fatalf("a third relay: %v", err)
			}
			for group := range uint64(10) {
				plays(p, a, 1, 1+group) // the first goes on
			}
			p2, a2 := dial(t, successor, o), dial(t, successor, o)
			drained := make(chan error)
			go func() { drained <- r.Drain(t.Context()) }()
			for _, one := range []*peer{p, a} {
				for asked := false; !asked; {
					_, asked = (<-one.messages).(*wire.GoAway)
				}
			}
			plays(p, a, 1, 11) // and while it is drained
			until(t, "the successor has sessions", func() bool { return successor.Stats().Sessions == 2 })
			same(t, r.Stats().AllSessions, 2)
			_ = p.conn.CloseWithError(0, "")
			_ = a.conn.CloseWithError(0, "")
			if err := <-drained; err != nil {
				t.Fatal(err)
			}
			r, p, a = successor, p2, a2
			until(t, fmt.Sprintf("relay %d is the first", generation+1), func() bool {
				g, err := restart.Take(file)
				return err == nil && g.Close() == nil
			})
		}
	})
}
