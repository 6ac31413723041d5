package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fastrelay/fastrelay-gen/examples/paths/lab"
	"github.com/fastrelay/fastrelay-gen/examples/paths/router"
	"github.com/fastrelay/fastrelay-gen/internal/test/dissect"
	"github.com/fastrelay/fastrelay-gen/internal/test/hooks"
	"github.com/fastrelay/fastrelay-gen/runtime"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/bpftest"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// start builds the network and starts both routers.
func start(t *testing.T, hook runtime.Hook, c router.Config) (*lab.Lab, [2]*router.Router) {
	t.Helper()
	l, err := lab.New(testnet.Start(t), hook)
	if err != nil {
		t.Fatal(err)
	}
	routers, err := l.Start(lab.BothPaths, c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, r := range routers {
			if err := r.Close(); err != nil {
				t.Error(err)
			}
		}
	})
	return l, routers
}

// flow is datagrams from the client to a port of the server, numbered from 1 on.
type flow struct {
	Src, Dst netip.AddrPort

	out, in *net.UDPConn
	sent    uint64

	mu    sync.Mutex
	got   []uint64    // their numbers, in the order of arrival
	gotAt []time.Time // when they had arrived
	at    []time.Time // when they were sent, by number
}

func newFlow(t *testing.T, l *lab.Lab, family int, port uint16) *flow {
	t.Helper()
	f := &flow{Dst: netip.AddrPortFrom(l.ServerAddr.Of(family), port)}
	err := l.Server.Do(func() (err error) {
		f.in, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(f.Dst))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.in.Close() })
	err = l.Client.Do(func() (err error) {
		f.out, err = net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(f.Dst))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.out.Close() })
	f.Src = f.out.LocalAddr().(*net.UDPAddr).AddrPort()
	go f.receive()
	return f
}

func (f *flow) receive() {
	buf := make([]byte, 1500)
	for {
		n, err := f.in.Read(buf)
		if err != nil {
			return
		}
		f.mu.Lock()
		if n >= 8 {
			f.got, f.gotAt = append(f.got, binary.BigEndian.Uint64(buf)), append(f.gotAt, time.Now())
		}
		f.mu.Unlock()
	}
}

// send sends a datagram of that size, after a while.
func (f *flow) send(t *testing.T, size int, after time.Duration) {
	t.Helper()
	<-time.After(after)
	f.sent++
	f.mu.Lock()
	f.at = append(f.at, time.Now())
	f.mu.Unlock()
	p := make([]byte, size)
	binary.BigEndian.PutUint64(p, f.sent)
	if _, err := f.out.Write(p); err != nil {
		t.Fatal(err)
	}
}

func (f *flow) arrived() []uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]uint64(nil), f.got...)
}

// overtaken returns the datagrams that arrived after a later one, and how long each was on its way.
func (f *flow) overtaken() (all []time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	highest := uint64(0)
	for i, number := range f.got {
		if number < highest {
			all = append(all, f.gotAt[i].Sub(f.at[number-1]))
		}
		highest = max(highest, number)
	}
	return all
}

// await waits until so many datagrams have arrived.
func (f *flow) await(t *testing.T, n int) {
	t.Helper()
	what := fmt.Sprintf("%d datagrams have arrived", n)
	if err := testnet.Until(2*time.Second, what, func() bool { return len(f.arrived()) >= n }); err != nil {
		t.Fatal(err)
	}
}

// gap returns the longest time for which datagrams were sent, and none of them arrived. A time without datagrams counts
// as 50 ms at most: then the machine had other things to do.
func (f *flow) gap() (longest time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Duration(0)
	for i := 1; i < len(f.at); i++ {
		if slices.Contains(f.got, uint64(i)) {
			now = 0
		}
		now += min(f.at[i].Sub(f.at[i-1]), 50*time.Millisecond)
		longest = max(longest, now)
	}
	return longest
}

// came ends a capture of a device, and returns how many datagrams of the flow it has received.
func (f *flow) came(t *testing.T, c *testnet.Capture) (n int) {
	t.Helper()
	frames, err := c.Stop()
	if err != nil {
		t.Fatal(err)
	}
	for _, frame := range frames {
		if udp, _, ok := dissect.UDP(frame); ok && !frame.Outgoing && uint16(udp.DstPort) == f.Dst.Port() {
			n++
		}
	}
	return n
}

// received returns how many packets have come to the server's router over the fast link, and over the slow one.
func received(t *testing.T, l *lab.Lab) (fast, slow uint64) {
	t.Helper()
	fast, err := l.Routers[1].Fast.Received()
	if err != nil {
		t.Fatal(err)
	}
	slow, err = l.Routers[1].Slow.Received()
	if err != nil {
		t.Fatal(err)
	}
	return fast, slow
}

// Ports choose the path, in both families; all neighbours are resolved on the way, also once they are forgotten.
func TestPorts(t *testing.T) { hooks.Each(t, true, testPorts) }

func testPorts(t *testing.T, hook runtime.Hook) {
	l, routers := start(t, hook, router.Config{})
	for _, family := range []int{4, 6} {
		for i, port := range []uint16{443, 5201} {
			f := newFlow(t, l, family, port)
			for again := range 2 {
				var captures [2]*testnet.Capture
				for k, d := range l.Ends {
					var err error
					if captures[k], err = d.Capture(); err != nil {
						t.Fatal(err)
					}
				}
				const count = 40
				for range count {
					f.send(t, 100, time.Millisecond)
				}
				what := fmt.Sprintf("IPv%d, port %d: the last datagram arrives", family, port)
				err := testnet.Until(2*time.Second, what, func() bool {
					got := f.arrived()
					return len(got) > 0 && got[len(got)-1] == f.sent
				})
				if err != nil {
					t.Fatal(err)
				}
				if took := [2]int{f.came(t, captures[0]), f.came(t, captures[1])}; took[i] <= count/2 ||
					took[0]+took[1] != count {
					t.Errorf("IPv%d, port %d: %d packets took the fast link, %d the slow one",
						family, port, took[0], took[1])
				}
				if again == 0 {
					for _, r := range l.Routers {
						for _, d := range []*testnet.Dev{r.Port, r.Fast, r.Slow} {
							if err := d.ForgetNeighbours(); err != nil {
								t.Fatal(err)
							}
						}
					}
				}
			}
		}
	}
	for i, r := range routers {
		if n, _, err := r.Forwarded(); err != nil || n < 300 {
			t.Errorf("router %d has forwarded %d packets, error %v", i, n, err)
		}
	}
	atXDP := func() [2]uint64 {
		_, a, err := routers[0].Forwarded()
		_, b, failed := routers[1].Forwarded()
		if err := errors.Join(err, failed); err != nil {
			t.Fatal(err)
		}
		return [2]uint64{a, b}
	}
	if hook == runtime.HookTC {
		if n := atXDP(); n != [2]uint64{} {
			t.Errorf("%d packets were forwarded at XDP", n)
		}
		return
	}
	before, f := atXDP(), newFlow(t, l, 4, 8443)
	err := testnet.Until(5*time.Second, "neighbours are known, and XDP takes packets", func() bool {
		f.send(t, 100, time.Millisecond)
		now := atXDP()
		return now[0] > before[0]+20 && now[1] > before[1]+20
	})
	if err != nil {
		t.Errorf("%v: %v were forwarded there before, %v now", err, before, atXDP())
	}
}

// A flow moves from a slow path, whose queue is full, to the fast one while it runs. Since it moves in a pause, it
// overtakes no packet but one that was on its way for longer than that.
func TestFlowMoves(t *testing.T) { hooks.Each(t, true, testFlowMoves) }

func testFlowMoves(t *testing.T, hook runtime.Hook) {
	const pause = 200 * time.Millisecond
	l, routers := start(t, hook, router.Config{})
	f, load := newFlow(t, l, 4, 5201), newFlow(t, l, 4, 5202)
	ctx, stop := context.WithCancel(t.Context())
	var loading sync.WaitGroup
	loading.Go(func() { // more than the slow link's rate, so that a packet waits for 150 ms
		for ctx.Err() == nil {
			load.send(t, 1400, 2*time.Millisecond)
			for range 3 {
				load.send(t, 1400, 0)
			}
		}
	})
	defer loading.Wait()
	defer stop()
	err := testnet.Until(time.Minute, "the queue is full", func() bool {
		got := load.arrived()
		return len(got) > 0 && got[len(got)-1] > uint64(len(got))
	})
	if err != nil {
		t.Fatal(err)
	}
	before, _ := received(t, l)
	burst := func(n int) {
		for range n {
			f.send(t, 100, 2*time.Millisecond)
		}
	}
	burst(30)
	moved := make(chan error, 1)
	go func() { moved <- routers[0].Move(ctx, f.Src, f.Dst, router.Fast, pause) }()
	burst(10)
	if err := <-moved; err != nil { // this is the pause
		t.Fatal(err)
	}
	burst(40)
	if err := testnet.Until(time.Minute, "packets take the fast link", func() bool {
		fast, _ := received(t, l)
		return fast >= before+40
	}); err != nil {
		t.Error(err)
	}
	for _, after := range f.overtaken() {
		if after < pause {
			t.Errorf("a packet was overtaken that was on its way for %v: %v", after, f.arrived())
		}
	}
}

// A flow that moves without a pause overtakes all its packets that wait in a queue.
func TestFlowMovesAtOnce(t *testing.T) { hooks.Each(t, true, testFlowMovesAtOnce) }

func testFlowMovesAtOnce(t *testing.T, hook runtime.Hook) {
	l, routers := start(t, hook, router.Config{})
	f, load := newFlow(t, l, 4, 5201), newFlow(t, l, 4, 5202)
	f.send(t, 100, 0) // all know their neighbours
	f.await(t, 1)
	if err := l.Routers[0].SlowQueue.SetRate(3000, lab.Queue); err != nil { // 4 s a large packet
		t.Fatal(err)
	}
	const queue, held = 40, 5
	for range queue {
		load.send(t, 1400, 0)
	}
	for range held {
		f.send(t, 100, 0)
	}
	if err := testnet.Until(2*time.Second, "the router has all packets", func() bool {
		n, _, err := routers[0].Forwarded()
		return err != nil || n >= 1+queue+held
	}); err != nil {
		t.Fatal(err)
	}
	if err := routers[0].Move(t.Context(), f.Src, f.Dst, router.Fast, 0); err != nil {
		t.Fatal(err)
	}
	f.send(t, 100, 0)
	f.await(t, 2)
	if err := l.Routers[0].SetRates(); err != nil {
		t.Fatal(err)
	}
	load.send(t, 1400, 0) // the queue is looked at when a packet comes
	f.await(t, 2+held)
	if got := f.overtaken(); len(got) != held {
		t.Errorf("%d packets were overtaken, not %d: %v", len(got), held, f.arrived())
	}
}

// A flow that doesn't pause doesn't move, and the error says so.
func TestNoPause(t *testing.T) { hooks.Each(t, false, testNoPause) }

func testNoPause(t *testing.T, hook runtime.Hook) {
	l, routers := start(t, hook, router.Config{})
	f := newFlow(t, l, 4, 5201)
	ctx, stop := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer stop()
	moved := make(chan error, 1)
	go func() { moved <- routers[0].Move(ctx, f.Src, f.Dst, router.Fast, 10*time.Second) }()
	for ctx.Err() == nil {
		f.send(t, 100, 5*time.Millisecond)
	}
	if err := <-moved; err == nil || !strings.Contains(err.Error(), "doesn't pause for 10s") {
		t.Error(err)
	}
	if err := routers[0].Forget(f.Src, f.Dst); err != nil {
		t.Error(err)
	}
}

// The fast link begins to lose all packets in one direction, with its carrier on. Within a second packets take the slow
// one; when the link works again, they take it again.
func TestLinkFails(t *testing.T) { hooks.Each(t, false, testLinkFails) }

func testLinkFails(t *testing.T, hook runtime.Hook) {
	l, _ := start(t, hook, router.Config{Hello: 50 * time.Millisecond, Dead: 250 * time.Millisecond})
	f := newFlow(t, l, 4, 443)
	until := func(what string, holds func() bool) {
		t.Helper()
		err := testnet.Until(4*time.Second, what, func() bool { f.send(t, 100, 4*time.Millisecond); return holds() })
		if err != nil {
			t.Fatal(err)
		}
	}
	for i := range 2 {
		before := len(f.arrived())
		until("packets arrive", func() bool { return len(f.arrived()) > before+100 })
		// A queue without room for a packet: what is sent into the link is lost.
		if err := l.Routers[i].FastQueue.SetRate(lab.FastRate, 1); err != nil {
			t.Fatal(err)
		}
		_, slow := received(t, l)
		until("packets take the slow link", func() bool { _, now := received(t, l); return now > slow+100 })
		if err := l.Routers[i].SetRates(); err != nil {
			t.Fatal(err)
		}
		fast, _ := received(t, l)
		until("packets take the fast link again", func() bool { now, _ := received(t, l); return now > fast+200 })
	}
	if gap := f.gap(); gap > time.Second {
		t.Errorf("nothing arrived for %v", gap)
	} else {
		t.Logf("nothing arrived for %v", gap)
	}
}

// The command reads routes and orders.
func TestWords(t *testing.T) {
	want := router.Route{Dst: netip.MustParsePrefix("203.0.113.0/24"), Fast: netip.MustParseAddr("192.0.2.1"),
		Slow: netip.MustParseAddr("192.0.2.65")}
	if r, err := parseRoute("203.0.113.0/24=192.0.2.1,192.0.2.65"); err != nil || r != want {
		t.Error(r, err)
	}
	for _, wrong := range []string{"", "203.0.113.0/24", "203.0.113.0/24=192.0.2.1", "x=192.0.2.1,192.0.2.65"} {
		if _, err := parseRoute(wrong); err == nil {
			t.Errorf("%q is taken for a route", wrong)
		}
	}
	path, src, dst, err := parseOrder("slow 198.51.100.7:40001 203.0.113.9:5201")
	if err != nil || path != router.Slow || src.Port() != 40001 || dst.Port() != 5201 {
		t.Error(path, src, dst, err)
	}
	for _, wrong := range []string{"", "fast", "quick 192.0.2.1:1 192.0.2.2:2", "fast 192.0.2.1 192.0.2.2:2"} {
		if _, _, _, err := parseOrder(wrong); err == nil {
			t.Errorf("%q is taken for an order", wrong)
		}
	}
}

// Tests that can't prepare themselves fail at once.
func TestUnprepared(t *testing.T) { bpftest.Unprepared(t) }
