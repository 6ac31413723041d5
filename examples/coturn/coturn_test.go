// Package coturn has a helper that moves the channels of coturn, which it leaves as it is, into the kernel.
package coturn

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/fastrelay/fastrelay-gen/examples/turn/lab"
	"github.com/fastrelay/fastrelay-gen/examples/turn/turnrelay"
	"github.com/fastrelay/fastrelay-gen/internal/test/turnlab"
	"github.com/fastrelay/fastrelay-gen/runtime/control"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

const (
	port   = 3478
	number = 0x4001
	wait   = 10 * time.Second
	brief  = 3 * time.Second // how long a channel lives if its end is awaited
	usual  = 10 * time.Minute
	hold   = 2 * time.Second // how long sessions of a helper that was killed live
)

// bed is coturn with the relay and the helper, between clients and peers.
type bed struct {
	*testing.T
	line   *testnet.Line
	relay  *turnrelay.Relay
	coturn *process
	helper *process

	startCoturn, startHelper func() // once more
}

// process is a program that runs until the end of the test, and what it has said.
type process struct {
	mu  sync.Mutex
	out bytes.Buffer
	cmd *exec.Cmd
}

func (p *process) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out.Write(b)
}

func (p *process) said() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out.String()
}

// start starts a program on the relay's host, and waits until it has said that it is ready.
func (b *bed) start(ready, name string, args ...string) *process {
	b.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	p := &process{cmd: b.line.Relay.Command(ctx, name, args...)}
	p.cmd.Stdout, p.cmd.Stderr = p, p
	b.check(testnet.StartChild(p.cmd))
	b.Cleanup(func() {
		cancel()
		_ = p.cmd.Wait() // killed
		if b.Failed() {
			b.Logf("%s:\n%s", name, p.said())
		}
	})
	b.until(name+" is ready", func() bool { return strings.Contains(p.said(), ready) })
	return p
}

// kill ends a program at once, and returns when it has ended.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait() // killed
}

func (b *bed) check(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

func (b *bed) until(what string, holds func() bool) {
	b.Helper()
	b.check(testnet.Until(wait, what, holds))
}

// newBed starts coturn and the helper, each with further options.
func newBed(t *testing.T, lifetime time.Duration, coturn, helper []string) *bed {
	t.Helper()
	needs.Root(t)
	b := &bed{T: t}
	var err error
	b.line, err = testnet.Start(t).Line()
	b.check(err)
	dir := t.TempDir()
	socket := filepath.Join(dir, "turn.sock")
	b.check(b.line.Relay.Do(func() (err error) {
		b.relay, err = turnrelay.Load(turnrelay.Options{Control: control.Socket(socket)})
		return err
	}))
	t.Cleanup(func() { _ = b.relay.Close() })
	b.check(b.relay.ToPeer.Attach("eth0"))
	b.check(b.relay.ToClient.Attach("eth1"))
	args := lab.Coturn(b.line, dir,
		append([]string{fmt.Sprintf("--channel-lifetime=%d", int(lifetime.Seconds()))}, coturn...)...)
	b.startCoturn = func() { b.coturn = b.start(lab.CoturnReady, "turnserver", args...) }
	follow := append([]string{"helper.py", "--interface", "eth0", "--socket", socket,
		"--channel-lifetime", strconv.Itoa(int(lifetime.Seconds())), "--hold", strconv.Itoa(int(hold.Seconds()))},
		helper...)
	b.startHelper = func() { b.helper = b.start("ready", "/usr/bin/python3", follow...) }
	b.startCoturn()
	b.startHelper()
	return b
}

// sent returns how many packets the kernel has sent in both directions.
func (b *bed) sent() (toPeer, toClient uint64) {
	b.Helper()
	c, err := b.relay.ToPeer.Count(turnrelay.ToPeerSent)
	b.check(err)
	d, err := b.relay.ToClient.Count(turnrelay.ToClientSent)
	b.check(err)
	return c.Packets, d.Packets
}

var lost = regexp.MustCompile(`Total lost packets (\d+)`)

// coturn's own client: its messages come back, none is lost, and most of them go through the kernel. Its channels end
// with it.
func TestClient(t *testing.T) {
	const clients, messages, peerPort = 2, 100, 3480
	for _, family := range []int{4, 6} {
		t.Run(fmt.Sprintf("IPv%d", family), func(t *testing.T) {
			b := newBed(t, usual, nil, nil)
			l := b.line
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			peer := l.Peer.Command(ctx, "turnutils_peer", "-L", l.PeerAddr.Of(family).String(), "-p",
				strconv.Itoa(peerPort))
			b.check(testnet.StartChild(peer))
			defer func() {
				cancel()
				_ = peer.Wait() // killed
			}()
			args := []string{
				"-u", turnlab.User, "-w", turnlab.Password,
				"-e", l.PeerAddr.Of(family).String(), "-r", strconv.Itoa(peerPort),
				"-n", strconv.Itoa(messages), "-m", strconv.Itoa(clients), "-l", "170", "-z", "10", "-c",
				"-L", l.ClientAddr.Of(family).String(),
			}
			if family == 6 {
				args = append(args, "-x")
			}
			out, err := l.Client.Command(ctx, "turnutils_uclient",
				append(args, l.RelayInAddr.Of(family).String())...).CombinedOutput()
			if err != nil {
				t.Fatalf("turnutils_uclient: %v\n%s", err, out)
			}
			last := lost.FindAllSubmatch(out, -1)
			if len(last) == 0 || string(last[len(last)-1][1]) != "0" {
				t.Errorf("packets were lost:\n%s", out)
			}
			toPeer, toClient := b.sent()
			t.Logf("of %d messages the kernel sent %d, and %d of their answers", clients*messages, toPeer, toClient)
			if least := uint64(clients * messages * 3 / 4); toPeer < least || toClient < least {
				t.Errorf("the kernel sent %d packets to the peer and %d to the clients, want at least %d each\n%s",
					toPeer, toClient, least, out)
			}
			b.until("its channels end", func() bool { return b.relay.Runtime().OpenSessions("channel") == 0 })
		})
	}
}

// peer is a socket of a peer.
func (b *bed) peer() *net.UDPConn {
	b.Helper()
	var peer *net.UDPConn
	b.check(b.line.Peer.Do(func() (err error) {
		peer, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(b.line.PeerAddr.V4, 0)))
		return err
	}))
	b.Cleanup(func() { peer.Close() })
	return peer
}

func address(peer *net.UDPConn) netip.AddrPort { return peer.LocalAddr().(*net.UDPAddr).AddrPort() }

// dial is a client that has sent nothing yet.
func (b *bed) dial() (*turnlab.Client, error) {
	return turnlab.Dial(b.line.Client, b.line.ClientAddr.V4, netip.AddrPortFrom(b.line.RelayInAddr.V4, port))
}

// client opens a channel to a peer, and returns when it is in the kernel.
func (b *bed) client() (*turnlab.Client, *net.UDPConn) {
	b.Helper()
	c, err := b.dial()
	b.check(err)
	b.Cleanup(func() { c.Close() })
	peer := b.peer()
	b.check(c.Open(number, address(peer)))
	b.until("the channel is in the kernel", func() bool { return b.relay.Runtime().OpenSessions("channel") == 1 })
	return c, peer
}

// passes sends a packet to the peer, which gets it, and says whether the kernel has sent it.
func (b *bed) passes(c *turnlab.Client, peer *net.UDPConn) bool {
	b.Helper()
	before, _ := b.sent()
	b.check(c.Send(number, []byte("hello")))
	b.check(peer.SetReadDeadline(time.Now().Add(wait)))
	buf := make([]byte, 100)
	n, err := peer.Read(buf)
	if err != nil || string(buf[:n]) != "hello" {
		b.Fatalf("the peer got %q: %v", buf[:n], err)
	}
	after, _ := b.sent()
	return after > before
}

// A channel that its client doesn't bind again ends, in coturn and in the kernel; one that is bound again goes on.
func TestExpiry(t *testing.T) {
	b := newBed(t, brief, nil, nil)
	c, peer := b.client()
	began := time.Now()
	for time.Since(began) < brief*3/2 { // over the end of a channel that isn't bound again
		if !b.passes(c, peer) {
			t.Error("a packet of an open channel went through the server")
		}
		b.check(c.Bind(number, address(peer)))
	}
	b.until("the channel has ended", func() bool { return b.relay.Runtime().OpenSessions("channel") == 0 })
	before, _ := b.sent()
	b.check(c.Send(number, []byte("late")))
	b.check(c.Refresh(10 * time.Minute)) // what was sent before has arrived at the server
	if after, _ := b.sent(); after != before {
		t.Error("the kernel sends for a channel that has ended")
	}
}

// Refreshed with 0, the allocation is gone, and so are its channels: nothing reaches the peer any more.
func TestRefreshWithZero(t *testing.T) {
	b := newBed(t, usual, nil, nil)
	c, peer := b.client()
	if !b.passes(c, peer) {
		t.Error("a packet of an open channel went through the server")
	}
	b.check(c.Refresh(0))
	b.until("the channel has ended", func() bool { return b.relay.Runtime().OpenSessions("channel") == 0 })
	before, _ := b.sent()
	b.check(c.Send(number, []byte("late")))
	c2, peer2 := b.client() // after what was sent
	if !b.passes(c2, peer2) {
		t.Error("a packet of an open channel went through the server")
	}
	if after, _ := b.sent(); after != before+1 {
		t.Error("the kernel sends for a channel that has ended")
	}
}

// The sessions of a helper that was killed end by themselves, and their packets go through the server again. A helper
// that is started anew takes over when the client has a new allocation.
func TestHelperKilled(t *testing.T) {
	b := newBed(t, usual, nil, nil)
	c, peer := b.client()
	for began := time.Now(); time.Since(began) < 2*hold; { // it is refreshed
		if !b.passes(c, peer) {
			t.Fatal("a packet of an open channel went through the server")
		}
	}
	b.check(b.helper.cmd.Process.Kill())
	if !b.passes(c, peer) {
		t.Error("a packet of an open channel went through the server")
	}
	b.until("the channel ends in the kernel", func() bool { return b.relay.Runtime().OpenSessions("channel") == 0 })
	if b.passes(c, peer) {
		t.Error("the kernel sends for a channel that no helper refreshes")
	}
	b.startHelper()
	if b.passes(c, peer) {
		t.Error("the kernel sends for a channel that the helper doesn't know")
	}
	c2, peer2 := b.client()
	if !b.passes(c2, peer2) {
		t.Error("a packet of an open channel went through the server")
	}
}

// What an operator closes stays closed until the client binds the channel again. A helper that is ended closes its
// sessions.
func TestClosedByOperator(t *testing.T) {
	b := newBed(t, usual, nil, nil)
	c, peer := b.client()
	b.check(b.relay.Runtime().CloseSessions(slices.Collect(b.relay.Runtime().Sessions())...))
	if b.passes(c, peer) {
		t.Error("the kernel sends for a session that was closed")
	}
	b.check(c.Bind(number, address(peer)))
	b.until("the channel is in the kernel", func() bool { return b.relay.Runtime().OpenSessions("channel") == 1 })
	b.check(b.helper.cmd.Process.Signal(syscall.SIGTERM))
	b.until("the channel has left the kernel", func() bool { return b.relay.Runtime().OpenSessions("channel") == 0 })
}

// A helper that is told to end at any moment, also while it opens a session, closes its sessions and ends.
func TestHelperEnds(t *testing.T) {
	b := newBed(t, usual, nil, nil)
	for range 30 {
		b.client()
		b.check(b.helper.cmd.Process.Signal(syscall.SIGTERM))
		b.until("its channel has ended", func() bool { return b.relay.Runtime().OpenSessions("channel") == 0 })
		b.startHelper()
	}
}

// An interface that is down for a moment doesn't end the helper; one that is gone does.
func TestInterfaceDown(t *testing.T) {
	b := newBed(t, usual, nil, nil)
	link := func(args ...string) {
		t.Helper()
		cmd := b.line.Relay.Command(context.Background(), "ip", append([]string{"link"}, args...)...)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
	}
	link("set", "eth0", "down")
	link("set", "eth0", "up")
	b.client()
	link("delete", "eth0")
	b.until("the helper has ended", func() bool { return strings.Contains(b.helper.said(), "eth0 is gone") })
	b.until("its channel has ended", func() bool { return b.relay.Runtime().OpenSessions("channel") == 0 })
}

// What the helper makes of messages: helper_test.py.
func TestHelper(t *testing.T) {
	out, err := exec.Command("/usr/bin/python3", "-B", "-m", "unittest", "helper_test").CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
