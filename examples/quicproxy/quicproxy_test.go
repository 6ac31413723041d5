package main

import (
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/fastrelay/fastrelay-gen/internal/test/dissect"
	"github.com/fastrelay/fastrelay-gen/internal/test/hooks"
	"github.com/fastrelay/fastrelay-gen/runtime"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/bpftest"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// Each library, with connection IDs of several lengths: what comes back is what was sent, and once the connection IDs
// are registered, every packet takes the kernel's path in both directions.
func TestTransfer(t *testing.T) { hooks.Each(t, true, testTransfer) }

func testTransfer(t *testing.T, hook runtime.Hook) {
	for i, e := range []endpoints{
		quicgo(4, 8), quicgo(20, 16), aioquic(8, 8, 0), aioquic(4, 20, 0), aioquic(16, 4, 0), quinn(8, 8, 0),
		quinn(0, 20, 0), quinn(20, 16, 0),
	} {
		for _, family := range []int{4, 6} {
			t.Run(e.name+" IPv"+strconv.Itoa(family), func(t *testing.T) {
				if hook != runtime.HookTC && i > 0 {
					needs.All(t)
				}
				b := newBed(t, hook, e, family)
				e.server(b).line()
				c := e.client(b, rounds(1)...)
				b.round(c, 1)
				c.right()
			})
		}
	}
}

// Without the kernel the proxy does the same in user space; and so it does with connection IDs of a length that no
// program is for.
func TestUserSpace(t *testing.T) { hooks.Each(t, false, testUserSpace) }

func testUserSpace(t *testing.T, hook runtime.Hook) {
	for _, c := range []struct {
		endpoints
		flags []string
	}{{quicgo(8, 8), []string{"--no-offload"}}, {quicgo(5, 18), nil}, {quinn(5, 18, 0), nil}} {
		t.Run(c.name, func(t *testing.T) {
			b := newBed(t, hook, c.endpoints, 4, c.flags...)
			c.server(b).line()
			c.client(b, 1<<20).right()
			if s := b.stats(); s.Kernel() > 0 || s.ToTarget+s.ToClient < 10*s.Tunnelled {
				t.Errorf("counters: %+v", s)
			}
		})
	}
}

// Both sides change connection IDs again and again: the new ones are registered, and go on in the kernel. How many
// packets come before their connection ID is registered depends on the machine; but user space handles none that comes
// after one with the same connection ID that the kernel has sent.
func TestChanges(t *testing.T) { hooks.Each(t, true, testChanges) }

func testChanges(t *testing.T, hook runtime.Hook) {
	for _, e := range []struct {
		endpoints
		bytes int
	}{{aioquic(8, 20, 100_000), 8 << 20}, {quinn(4, 8, 50*time.Millisecond), 16 << 20}} {
		t.Run(e.name, func(t *testing.T) {
			b := newBed(t, hook, e.endpoints, 4)
			check(t, b.line.Relay.Sysctl("net/ipv4/ip_default_ttl", strconv.Itoa(userTTL)))
			check(t, b.line.Relay.Sysctl("net/ipv6/conf/eth1/hop_limit", strconv.Itoa(userTTL)))
			clients, err := b.line.ClientDev.Capture()
			check(t, err)
			targets, err := b.line.PeerDev.Capture()
			check(t, err)
			e.server(b).line()
			e.client(b, e.bytes).right()
			near, err := clients.Stop()
			check(t, err)
			far, err := targets.Stop()
			check(t, err)
			s := b.stats()
			if s.Registered < 10 || s.InKernel == 0 || s.Kernel() < s.ToTarget+s.ToClient+s.Tunnelled {
				t.Errorf("counters: %+v", s)
			}
			// What XDP has no row for, tc/ingress may have: the ID has been registered between the two.
			if hook == runtime.HookTC && s.SentAtXDP > 0 || hook == runtime.HookXDP && s.SentAtXDP < s.Kernel()*9/10 {
				t.Errorf("%d packets were sent at XDP of %d", s.SentAtXDP, s.Kernel())
			}
			for _, way := range []struct {
				name    string
				in, out []testnet.Frame
				id      int  // bytes of the connection IDs that come in
				told    bool // whoever sends uses an ID when the proxy has said that it is registered
			}{{"to the target", near, far, 8, true}, {"to the client", far, near, e.clientID, false}} {
				ids, late := changes(way.in, way.out, way.id, way.told)
				// quinn sometimes keeps to one ID for most of a transfer.
				if t.Logf("%s: %d connection IDs in the kernel", way.name, ids); ids < 2 || late > 0 {
					t.Errorf("%s: %d connection IDs in the kernel, and user space handled %d packets with one that "+
						"was registered; %+v", way.name, ids, late, s)
				}
			}
		})
	}
}

// userTTL is the TTL of what user space sends. What the kernel forwards has the sender's, 64.
const userTTL = 77

// changes counts the connection IDs that the kernel has sent packets of, and the packets that user space has sent
// though they came after one that the kernel had: with the same connection ID, or with any if the sender was told that
// it is registered. Frames are those of the ends' devices, in on its way out and out on its way in. A packet that isn't
// found there went through the tunnel, was lost, or was merged by GRO, of which only the last one of several is found:
// with GRO on, as XDP needs it, a device merges datagrams of the same TTL for sockets with UDP_GRO, such as quinn's.
func changes(in, out []testnet.Frame, id int, told bool) (ids, late int) {
	short := func(f testnet.Frame, outgoing bool) []byte {
		if _, payload, ok := dissect.UDP(f); ok && f.Outgoing == outgoing && len(payload) > 36 && payload[0]&0x80 == 0 {
			return payload
		}
		return nil
	}
	byKernel := map[string]bool{} // by the end of the packet, which is encrypted, and never the same again
	for _, f := range out {
		if p := short(f, false); p != nil {
			byKernel[string(p[len(p)-16:])] = dissect.TTL(f) != userTTL
		}
	}
	seen := map[string]bool{}
	for _, f := range in {
		p := short(f, true)
		if p == nil {
			continue
		}
		key := string(p[1 : 1+id])
		kernel, arrived := byKernel[string(p[len(p)-16:])]
		switch {
		case !arrived:
		case kernel:
			seen[key] = true
		case seen[key], told && len(seen) > 0:
			late++
		}
	}
	return len(seen), late
}

// The client moves during a transfer: to another port, then to another address. The proxy follows, and the target sees
// nothing of it.
func TestMigration(t *testing.T) { hooks.Each(t, true, testMigration) }

func testMigration(t *testing.T, hook runtime.Hook) {
	for _, e := range []endpoints{quicgo(8, 8), aioquic(8, 8, 0), quinn(8, 20, 0)} {
		t.Run(e.name, func(t *testing.T) {
			b := newBed(t, hook, e, 4)
			e.server(b).line()
			c := e.client(b, rounds(3)...)
			b.round(c, 1)
			check(t, b.agent.cmd.Process.Signal(syscall.SIGUSR1))
			b.round(c, 2)
			check(t, b.line.ClientDev.AddAddr(movedTo+"/24"))
			check(t, b.line.Client.Run("ip", "route", "change", "192.0.2.0/24", "dev", "eth0", "src", movedTo))
			check(t, b.agent.cmd.Process.Signal(syscall.SIGUSR1))
			b.round(c, 3)
			c.right()
		})
	}
}

// When a tunnel has ended, the kernel forwards nothing for it.
func TestClose(t *testing.T) { hooks.Each(t, true, testClose) }

func testClose(t *testing.T, hook runtime.Hook) {
	e := quicgo(8, 8)
	b := newBed(t, hook, e, 4)
	e.server(b).line()
	c := e.client(b, append(rounds(1), large, small)...) // the last one is never asked for: the client stays
	b.round(c, 1)
	sent, err := b.line.ClientDev.Capture()
	check(t, err)
	c.next()
	c.reach(c.echoed + large)
	frames, err := sent.Stop()
	check(t, err)
	b.agent.kill()
	check(t, testnet.Until(wait, "the tunnel ends", func() bool { return b.stats().Tunnels == 0 }))
	before := b.stats()
	arrived, err := b.line.RelayIn.Received()
	check(t, err)
	again := uint64(0)
	for _, f := range frames {
		udp, payload, ok := dissect.UDP(f)
		if ok && f.Outgoing && udp.DstPort == 443 && payload[0]&0x80 == 0 && again < 100 {
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
