package main

import (
	"encoding/binary"
	"log/slog"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fastrelay/fastrelay-gen/examples/gate/gate"
	"github.com/fastrelay/fastrelay-gen/examples/gate/lab"
	"github.com/fastrelay/fastrelay-gen/internal/test/hooks"
	"github.com/fastrelay/fastrelay-gen/runtime"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// guarded is a gate in front of a socket that counts what comes.
type guarded struct {
	*testing.T
	hook    runtime.Hook
	host    *testnet.Host
	config  gate.Config
	gate    *gate.Gate
	client  *net.UDPConn
	arrived atomic.Uint64
}

func guard(t *testing.T, hook runtime.Hook, c gate.Config) *guarded {
	t.Helper()
	l, err := lab.New(testnet.Start(t))
	check(t, err)
	c.Interfaces, c.Hook, c.Logger = []string{"eth0"}, hook, slog.New(slog.DiscardHandler)
	g := &guarded{T: t, hook: hook, host: l.Server, config: c}
	var socket *net.UDPConn
	check(t, l.Server.Do(func() error {
		if g.gate, err = gate.Start(c); err != nil {
			return err
		}
		socket, err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(lab.At))
		return err
	}))
	t.Cleanup(func() { check(t, g.gate.Close()) })
	t.Cleanup(func() { socket.Close() })
	go func() {
		for b := make([]byte, 1500); ; g.arrived.Add(1) {
			if _, err := socket.Read(b); err != nil {
				return
			}
		}
	}()
	check(t, l.Clients.Do(func() error {
		g.client, err = net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(lab.At))
		return err
	}))
	t.Cleanup(func() { g.client.Close() })
	return g
}

func (g *guarded) send(payload []byte) {
	g.Helper()
	_, err := g.client.Write(payload)
	check(g.T, err)
}

// count is what was counted under a reason, and how much of that at XDP.
func (g *guarded) count(reason string) (all, atXDP uint64) {
	g.Helper()
	counts, err := g.gate.Count()
	check(g.T, err)
	early, err := g.gate.CountAtXDP()
	check(g.T, err)
	return counts[reason], early[reason]
}

// short is a datagram with a short header.
func short(id uint64) []byte {
	return append(binary.BigEndian.AppendUint64([]byte{0x40}, id), make([]byte, 40)...)
}

// long is one with a long header of version 1.
func long(id uint64, size int) []byte {
	b := binary.BigEndian.AppendUint64([]byte{0xc0, 0, 0, 0, 1, 8}, id)
	return append(b, make([]byte, size-len(b))...)
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// What is refused is dropped at XDP, if the gate is there, and nothing else is; each packet is counted once, and what
// passes comes to the socket.
func TestCounted(t *testing.T) { hooks.Each(t, true, testCounted) }

func testCounted(t *testing.T, hook runtime.Hook) {
	one := runtime.Rate{PerSecond: 1, Burst: 1}
	g := guard(t, hook, gate.Config{Quotas: gate.Quotas{Strays: one, Newcomers: one}})
	known, err := g.gate.NewID()
	check(t, err)
	const n = 30
	id := uint64(0)
	for _, c := range []struct {
		what, reason string
		next         func() []byte
		pass, drop   bool // some do, some are
	}{
		{"a known connection", "stray", func() []byte { return short(known) }, true, false},
		{"none", "stray", func() []byte { return short(id) }, true, true},
		{"a datagram that is too short", "too_short", func() []byte { return short(id)[:20] }, false, true},
		{"a long header without padding", "too_short", func() []byte { return long(id, 100) }, false, true},
		{"a new connection", "over_newcomers", func() []byte { return long(id, 1200) }, true, true},
	} {
		arrived := g.arrived.Load()
		dropped, early := g.count(c.reason)
		passed, _ := g.count("pass")
		for i := range uint64(n) { // one by one: XDP sees what each has spent at tc/ingress
			id++
			g.send(c.next())
			check(t, testnet.Until(10*time.Second, c.what+": a datagram is dropped, or arrives", func() bool {
				all, _ := g.count(c.reason)
				return g.arrived.Load()-arrived+all-dropped > i
			}))
		}
		arrived = g.arrived.Load() - arrived
		all, atXDP := g.count(c.reason)
		all, atXDP = all-dropped, atXDP-early
		want := all
		if hook == runtime.HookTC {
			want = 0
		}
		if arrived+all != n || atXDP != want || (arrived > 0) != c.pass || (all > 0) != c.drop {
			t.Errorf("%s: %d datagrams of %d arrived, and %d were dropped, %d of them at XDP", c.what, arrived, n, all,
				atXDP)
		}
		if now, atXDP := g.count("pass"); now-passed != arrived || atXDP > 0 {
			t.Errorf("%s: %d arrived, and %d have passed, %d of them at XDP", c.what, arrived, now-passed, atXDP)
		}
	}
}

// While a gate is replaced, all packets of a known connection come to the socket, and nothing that is refused: that is
// dropped at XDP, if the gate is there.
func TestReplaceCounts(t *testing.T) { hooks.Each(t, true, testReplaceCounts) }

func testReplaceCounts(t *testing.T, hook runtime.Hook) {
	g := guard(t, hook, gate.Config{PinPath: pin(t)})
	known, err := g.gate.NewID()
	check(t, err)
	done := make(chan error, 1)
	go func() {
		done <- g.host.Do(func() error {
			for i := range 5 {
				g.config.Closed = i%2 == 0
				if err := g.gate.Replace(g.config); err != nil {
					return err
				}
			}
			return nil
		})
	}()
	pairs := uint64(0)
	for replaced := false; !replaced; {
		select {
		case err := <-done:
			check(t, err)
			replaced = true
		default:
		}
		for range 20 {
			pairs++
			g.send(short(known)[:20])
			g.send(short(known))
			check(t, testnet.Until(10*time.Second, "a packet of a known connection arrives", func() bool {
				return g.arrived.Load() >= pairs
			}))
		}
	}
	all, atXDP := g.count("too_short")
	want := uint64(0)
	if hook == runtime.HookXDP {
		want = pairs
	}
	if n := g.arrived.Load(); n != pairs || all != pairs || atXDP != want {
		t.Errorf("of %d datagrams each, %d arrived, and %d were dropped, %d of them at XDP", pairs, n, all, atXDP)
	}
}
