package main

import (
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/fastrelay/fastrelay-gen/internal/test/bpftest"
	"github.com/fastrelay/fastrelay-gen/internal/test/needs"
	"github.com/fastrelay/fastrelay-gen/internal/test/testnet"
)

// Both libraries, with connection IDs of several lengths: what comes back is what was sent, and most packets took the
// kernel's path in both directions.
func TestTransfer(t *testing.T) {
	needs.Root(t)
	const size = 1 << 20
	for _, e := range []endpoints{
		aioquic(8, 8, 0), aioquic(4, 20, 0), aioquic(16, 4, 0), quinn(8, 8, 0), quinn(0, 20, 0), quinn(20, 16, 0),
	} {
		for _, family := range []int{4, 6} {
			t.Run(e.name+" IPv"+strconv.Itoa(family), func(t *testing.T) {
				b := newBed(t, family)
				e.server(b).line(wait)
				e.client(b, size).right()
				s := b.stats()
				if s.Kernel() < 10*(s.ToTarget+s.ToClient+s.Tunnelled) {
					t.Errorf("counters: %+v", s)
				}
			})
		}
	}
}

// Without the kernel the proxy does the same in user space; and so it does with connection IDs of a length that no
// program is for.
func TestUserSpace(t *testing.T) {
	needs.Root(t)
	for _, c := range []struct {
		endpoints
		flags []string
	}{{aioquic(8, 8, 0), []string{"--no-offload"}}, {quinn(5, 18, 0), nil}} {
		t.Run(c.name, func(t *testing.T) {
			b := newBed(t, 4, c.flags...)
			c.server(b).line(wait)
			c.client(b, 1<<20).right()
			if s := b.stats(); s.Kernel() > 0 || s.ToTarget+s.ToClient < 10*s.Tunnelled {
				t.Errorf("counters: %+v", s)
			}
		})
	}
}

// Both sides change connection IDs again and again: the new ones are registered, and go on in the kernel. How many
// packets come before their connection ID is registered depends on the machine; most come after it.
func TestChanges(t *testing.T) {
	needs.Root(t)
	for _, e := range []endpoints{aioquic(8, 20, 100_000), quinn(4, 8, 50*time.Millisecond)} {
		t.Run(e.name, func(t *testing.T) {
			b := newBed(t, 4)
			e.server(b).line(wait)
			e.client(b, 8<<20).right()
			s := b.stats()
			if s.Registered < 10 || s.InKernel == 0 || s.Kernel() < s.ToTarget+s.ToClient+s.Tunnelled {
				t.Errorf("counters: %+v", s)
			}
		})
	}
}

// The client moves during a transfer: to another port, then to another address. The proxy follows, and the target sees
// nothing of it.
func TestMigration(t *testing.T) {
	needs.Root(t)
	for _, e := range []endpoints{aioquic(8, 8, 0), quinn(8, 20, 0)} {
		t.Run(e.name, func(t *testing.T) {
			b := newBed(t, 4)
			e.server(b).line(wait)
			c := e.client(b, 6<<20)
			c.reach(1 << 20)
			before := b.stats()
			check(t, b.agent.cmd.Process.Signal(syscall.SIGUSR1))
			c.reach(2 << 20)
			check(t, b.line.ClientDev.AddAddr("192.0.2.3/24"))
			check(t, b.line.Client.Run("ip", "route", "change", "192.0.2.0/24", "dev", "eth0", "src", "192.0.2.3"))
			check(t, b.agent.cmd.Process.Signal(syscall.SIGUSR1))
			c.reach(4 << 20)
			moved := b.stats()
			c.right()
			after := b.stats()
			user := func(a, b uint64) bool { return a < b+1000 }
			if after.Kernel() < moved.Kernel()+1000 || moved.Kernel() < before.Kernel()+1000 ||
				!user(after.Tunnelled, before.Tunnelled) || !user(after.ToClient, before.ToClient) {
				t.Errorf("counters before: %+v\nafter both moves: %+v\nat the end: %+v", before, moved, after)
			}
		})
	}
}

// When a tunnel has ended, the kernel forwards nothing for it.
func TestClose(t *testing.T) {
	needs.Root(t)
	b := newBed(t, 4)
	e := aioquic(8, 8, 0)
	e.server(b).line(wait)
	c := e.client(b, 64<<20)
	c.reach(1 << 20)
	if s := b.stats(); s.InKernel < 2 || s.Tunnels != 1 {
		t.Fatalf("counters: %+v", s)
	}
	sent, err := b.line.RelayIn.Capture()
	check(t, err)
	c.reach(2 << 20)
	frames, err := sent.Stop()
	check(t, err)
	b.agent.kill()
	check(t, testnet.Until(wait, "the tunnel ends", func() bool { return b.stats().Tunnels == 0 }))
	before := b.stats()
	arrived, err := b.line.RelayIn.Received()
	check(t, err)
	again := uint64(0)
	for _, f := range frames {
		if udp, payload, ok := f.UDP(); ok && !f.Outgoing && udp.DstPort == 443 && payload[0]&0x80 == 0 && again < 100 {
			check(t, b.line.ClientDev.Inject(f.Data))
			again++
		}
	}
	check(t, testnet.Until(wait, "the client's packets arrive again", func() bool {
		n, err := b.line.RelayIn.Received()
		return err == nil && n >= arrived+again
	}))
	if after := b.stats(); again == 0 || after.InKernel != 0 || after.Kernel() != before.Kernel() ||
		after.ToTarget != before.ToTarget || after.ToClient != before.ToClient {
		t.Errorf("%d packets again; counters before: %+v\nafter: %+v", again, before, after)
	}
}

// Tests that can't prepare themselves fail at once.
func TestUnprepared(t *testing.T) { bpftest.Unprepared(t) }
