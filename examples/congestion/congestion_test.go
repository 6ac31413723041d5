//go:build linux

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/examples/congestion/congestionrelay"
	"github.com/fastrelay/fastrelay-gen/examples/congestion/control"
	"github.com/fastrelay/fastrelay-gen/internal/test/offloads"
	"github.com/fastrelay/fastrelay-gen/runtime"
	relaycontrol "github.com/fastrelay/fastrelay-gen/runtime/control"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// childName makes the test binary a controller, which can be killed; childPins is where it is pinned.
const (
	childName = "FASTRELAY_CONGESTION_CHILD"
	childPins = "FASTRELAY_CONGESTION_PINS"
)

func TestMain(m *testing.M) {
	if name := os.Getenv(childName); name != "" {
		pins, lease := os.Getenv(childPins), time.Duration(0)
		if pins != "" {
			lease = time.Minute // a machine that stalls doesn't end it before the next process is there
		}
		err := run(context.Background(), "cubic", name, pins, time.Millisecond, lease, relaycontrol.Flags{})
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// place is a network with a sender and a receiver, and a slow link between them.
type place struct {
	sender   *testnet.Host
	out      *testnet.Dev // its end of the link
	listener net.Listener
}

const (
	rate   = 100_000_000 // bits a second
	second = rate / 8    // bytes
)

func newPlace(t testing.TB) *place {
	t.Helper()
	needs.Root(t)
	n := testnet.Start(t)
	sender, err1 := n.Host("sender")
	receiver, err2 := n.Host("receiver")
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	near, far, err := n.Join(sender, "out0", receiver, "in0")
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{
		near.AddAddr("192.0.2.1/24"), far.AddAddr("192.0.2.2/24"), offloads.Segmentation(near, false),
		near.SetRate(rate, 100_000),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	p := &place{sender: sender, out: near}
	if err := receiver.Do(func() error {
		p.listener, err = net.Listen("tcp", "192.0.2.2:5001")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			c, err := p.listener.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(io.Discard, c)
				c.Close()
			}()
		}
	}()
	t.Cleanup(func() { p.listener.Close() })
	return p
}

// dial makes a connection that has chosen a congestion control.
func (p *place) dial(name string) (c net.Conn, err error) {
	err = p.sender.Do(func() error {
		d := net.Dialer{Timeout: 30 * time.Second, Control: func(_, _ string, c syscall.RawConn) (err error) {
			return errors.Join(c.Control(func(fd uintptr) {
				err = unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, name)
			}), err)
		}}
		c, err = d.Dial("tcp", "192.0.2.2:5001")
		return err
	})
	return c, err
}

// send sends so many bytes, and returns how many bits a second.
func send(t testing.TB, c net.Conn, bytes int) float64 {
	t.Helper()
	begin := time.Now()
	if _, err := c.Write(make([]byte, bytes)); err != nil {
		t.Fatal(err)
	}
	return 8 * float64(bytes) / time.Since(begin).Seconds()
}

// info returns what the kernel knows of a connection.
func info(t testing.TB, c net.Conn) (i *unix.TCPInfo) {
	t.Helper()
	raw, err := c.(*net.TCPConn).SyscallConn()
	if err == nil {
		err = errors.Join(raw.Control(func(fd uintptr) {
			i, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		}), err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return i
}

// controlled is a relay with a controller.
func controlled(t testing.TB, name, algorithm string) (*congestionrelay.Relay, func()) {
	t.Helper()
	interval := uint32(1000)
	relay, err := congestionrelay.Load(congestionrelay.Options{
		Algorithm: name, Settings: congestionrelay.Settings{Interval: &interval},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { relay.Close() })
	if err := relay.Register(); err != nil {
		t.Fatal(err)
	}
	return relay, start(t, relay, algorithm)
}

// start starts a controller; what it returns ends it.
func start(t testing.TB, relay *congestionrelay.Relay, algorithm string) func() {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- serve(ctx, relay, control.Algorithms[algorithm]) }()
	end := sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(end)
	return end
}

func rows(t testing.TB, relay *congestionrelay.Relay) (all []runtime.Row[uint64, congestionrelay.FlowsRow]) {
	t.Helper()
	for e, err := range relay.Flows.All() {
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, e)
	}
	return all
}

func until(t testing.TB, what string, holds func() bool) {
	t.Helper()
	if err := testnet.Until(15*time.Second, what, holds); err != nil {
		t.Fatal(err)
	}
}

// Each algorithm decides for a flow, whose bytes all get through, and the kernel carries out what it decides. How far a
// link is filled is measured (BenchmarkRatios).
func TestAlgorithms(t *testing.T) {
	for algorithm := range control.Algorithms {
		t.Run(algorithm, func(t *testing.T) {
			p := newPlace(t)
			relay, _ := controlled(t, "fr_t_"+algorithm, algorithm)
			c, err := p.dial("fr_t_" + algorithm)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			send(t, c, second)
			until(t, "what was decided is the socket's window", func() bool {
				send(t, c, second/100)
				all := rows(t, relay)
				return len(all) == 1 && all[0].Value.Round > 0 && all[0].Value.Cwnd > 0 &&
					info(t, c).Snd_cwnd == all[0].Value.Cwnd
			})
			counts, err := relay.Counters()
			if err != nil {
				t.Fatal(err)
			}
			passed, err := relay.Control.Count(congestionrelay.ControlPass)
			if err != nil {
				t.Fatal(err)
			}
			row := rows(t, relay)[0]
			t.Logf("%d events were decided, %d signals unanswered, %d losses; last %+v", passed.Packets,
				counts.Unanswered, counts.Losses, row)
			if passed.Packets < 100 {
				t.Errorf("%d events were decided", passed.Packets)
			}
		})
	}
}

// A thousand flows at once each have a row, and none is left after them.
func TestThousandFlows(t *testing.T) {
	p := newPlace(t)
	relay, _ := controlled(t, "fr_t_many", "cubic")
	const flows, each = 1000, 20_000
	// The link's queue holds all that they send: a flow that loses a packet several times waits for minutes.
	if err := p.out.SetRate(rate, 2*flows*each); err != nil {
		t.Fatal(err)
	}
	var all [flows]net.Conn
	for i := range all {
		c, err := p.dial("fr_t_many")
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		all[i] = c
	}
	until(t, "each has a row", func() bool { return len(rows(t, relay)) == flows })
	var wg sync.WaitGroup
	for _, c := range all {
		wg.Go(func() {
			if _, err := c.Write(make([]byte, each)); err != nil {
				t.Error(err)
			}
			c.Close()
		})
	}
	wg.Wait()
	until(t, "no row is left", func() bool { return len(rows(t, relay)) == 0 })
	if lost := relay.Lost(); lost != (congestionrelay.Lost{}) {
		t.Errorf("records were lost: %+v", lost)
	}
}

// process starts a controller in a process of its own. What it returns kills it.
func process(t testing.TB, name, pins string) (kill func()) {
	t.Helper()
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(), childName+"="+name, childPins+"="+pins)
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := testnet.StartChild(child); err != nil {
		t.Fatal(err)
	}
	kill = sync.OnceFunc(func() {
		_ = child.Process.Kill()
		_ = child.Wait()
	})
	t.Cleanup(kill)
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatal(line, err)
	}
	return kill
}

// The controller is killed: flows go on by Reno's rules, and no other flow can choose it.
func TestKilled(t *testing.T) {
	p := newPlace(t)
	const name = "fr_t_killed"
	kill := process(t, name, "")
	c, err := p.dial(name)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	send(t, c, second)
	kill()
	// Reno's rules: the window grows until the link's queue is full, is reduced, and grows again.
	last, grows, turns := info(t, c).Snd_cwnd, true, 0
	until(t, "its window grows, shrinks and grows", func() bool {
		send(t, c, second/50)
		now := info(t, c).Snd_cwnd
		if now != last && (now > last) != grows {
			grows = !grows
			turns++
		}
		last = now
		return turns >= 3
	})
	until(t, "nothing can choose it", func() bool {
		c, err := p.dial(name)
		if err == nil {
			c.Close()
		}
		return errors.Is(err, unix.ENOENT)
	})
}

// A controller that is pinned is killed. Its name stays, and so do the rows of its flows; a successor that adopts them
// goes on with both, without a moment in which only Reno's rules decide.
func TestAdopted(t *testing.T) {
	p := newPlace(t)
	const name = "fr_t_adopted"
	pins := fmt.Sprintf("/sys/fs/bpf/fr_t_adopted-%d", os.Getpid())
	t.Cleanup(func() { os.RemoveAll(pins) })
	kill := process(t, name, pins)
	first, err := p.dial(name)
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	send(t, first, second)
	kill()
	orphan, err := p.dial(name)
	if err != nil {
		t.Fatal("a flow that begins while nobody controls it:", err)
	}
	defer orphan.Close()
	interval := uint32(1000)
	options := congestionrelay.Options{
		Algorithm: name, PinPath: pins, Settings: congestionrelay.Settings{Interval: &interval},
	}
	relay, err := congestionrelay.Load(options)
	if err != nil {
		t.Fatal(err)
	}
	defer relay.Close()
	found := rows(t, relay)
	if err := relay.Register(); err != nil || len(found) == 0 {
		t.Fatalf("%d rows were adopted: %v", len(found), err)
	}
	start(t, relay, "cubic")
	last, err := p.dial(name)
	if err != nil {
		t.Fatal(err)
	}
	defer last.Close()
	until(t, "each flow has a row", func() bool { return len(rows(t, relay)) == 3 })
	var wg sync.WaitGroup
	for _, c := range []net.Conn{first, orphan, last} {
		wg.Go(func() { send(t, c, second/3) })
	}
	wg.Wait()
	for _, e := range rows(t, relay) {
		if e.Value.Round == 0 {
			t.Errorf("flow %x was never decided for: %+v", e.Key, e.Value)
		}
		if e.Key == found[0].Key && e.Value.Round <= found[0].Value.Round {
			t.Errorf("the adopted flow is still in round %d, after %d", e.Value.Round, found[0].Value.Round)
		}
	}
	if n, err := relay.Control.Count(congestionrelay.ControlInactive); err != nil || n.Packets > 0 {
		t.Errorf("%d acknowledgements came while the relay was inactive: %v", n.Packets, err)
	}

	// One of another name takes the tables over, and not the name.
	if err := relay.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := p.dial(name); !errors.Is(err, unix.ENOENT) {
		t.Errorf("chosen after the relay was closed: %v", err)
	}
	process(t, name, pins)()
	options.Algorithm = "fr_t_other"
	other, err := congestionrelay.Load(options)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if _, err := p.dial(name); !errors.Is(err, unix.ENOENT) {
		t.Errorf("the former name can still be chosen: %v", err)
	}
	if err := other.Register(); err != nil {
		t.Error(err)
	}
}

// One algorithm is replaced by another while a flow runs, which takes no notice.
func TestReplaced(t *testing.T) {
	p := newPlace(t)
	relay, end := controlled(t, "fr_t_replaced", "reno")
	c, err := p.dial("fr_t_replaced")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	send(t, c, second/2)
	end()
	send(t, c, second/5) // silence: Reno's rules in the kernel
	start(t, relay, "bbr")
	send(t, c, second/2)
	until(t, "the second one decides", func() bool {
		send(t, c, second/100)
		all := rows(t, relay)
		return len(all) == 1 && all[0].Value.Firm && all[0].Value.Cwnd > 0
	})
	send(t, c, second)
}

// An interval that the kernel's microseconds don't hold is not taken for another one.
func TestInterval(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // it would end at once
	for _, interval := range []time.Duration{-time.Millisecond, 2 * time.Hour} {
		err := run(ctx, "cubic", "fr_interval", "", interval, 0, relaycontrol.Flags{})
		if err == nil || !strings.Contains(err.Error(), interval.String()) {
			t.Errorf("%v: %v", interval, err)
		}
	}
}
