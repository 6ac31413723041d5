//go:build linux

package bpf_test

import (
	"encoding/binary"
	"math"
	"net/netip"
	"testing"
	"time"

	"github.com/fastrelay/fastrelay-gen/internal/test/needs"
	"github.com/fastrelay/fastrelay-gen/internal/test/testnet"
)

// Where no row says how a packet leaves, the kernel's routes decide, and each of their answers is a reason of ours.
func TestRoutes(t *testing.T) {
	needs.Root(t)
	u := compile(t, "testdata/echo/spec.cue")
	for _, family := range []int{4, 6} {
		line, err := testnet.Start(t).Line()
		if err != nil {
			t.Fatal(err)
		}
		relay := &turn{u.load(t), u.plan}
		put(t, relay.Maps["fr_lease"], uint32(0), append(binary.LittleEndian.AppendUint64(nil, math.MaxUint64),
			make([]byte, 32)...))
		relay.attach(t, "back", line.RelayIn)
		client, server := netip.AddrPortFrom(line.ClientAddr.Of(family), 40001),
			netip.AddrPortFrom(line.RelayInAddr.Of(family), 7)
		conn := listen(t, line.Client, client)
		before := relay.counts(t, "back")
		expect := func(what, reason string) {
			t.Helper()
			err := testnet.Until(2*time.Second, "one more packet counted as "+reason, func() bool {
				return relay.counts(t, "back")[reason] == before[reason]+1
			})
			if err != nil {
				t.Errorf("IPv%d, %s: %v: %v", family, what, err, relay.counts(t, "back"))
			}
			before = relay.counts(t, "back")
		}
		write := func(size int) {
			t.Helper()
			if _, err := conn.WriteToUDPAddrPort(make([]byte, size), server); err != nil {
				t.Fatal(err)
			}
		}

		set := func(on bool) {
			t.Helper()
			if err := line.Relay.SetForwarding(on); err != nil {
				t.Fatal(err)
			}
		}
		set(false)
		write(10)
		expect("forwarding disabled", "no_route")
		set(true)

		exchange(t, conn, server, []byte("hello"), conn, server, []byte("hello"))
		expect("a route and a neighbour", "sent")
		if err := line.RelayIn.ForgetNeighbours(); err != nil {
			t.Fatal(err)
		}
		exchange(t, conn, server, []byte("who are you"), conn, server, []byte("who are you"))
		expect("a route, but no neighbour", "sent")

		route := func(words ...string) {
			t.Helper()
			if err := line.Relay.Run("ip", append([]string{map[int]string{4: "-4", 6: "-6"}[family], "route"},
				words...)...); err != nil {
				t.Fatal(err)
			}
		}
		bits := map[int]string{4: "/32", 6: "/128"}[family]
		for _, kind := range []string{"blackhole", "unreachable", "prohibit"} {
			route("add", kind, client.Addr().String()+bits)
			write(10)
			expect("a route that is "+kind, kind)
			route("del", kind, client.Addr().String()+bits)
		}
		// one that isn't locked doesn't count for what is forwarded
		route("add", client.Addr().String()+bits, "dev", "eth0", "mtu", "lock", "1280")
		write(1200)
		expect("a datagram that fits the route", "sent")
		write(1300)
		expect("a datagram that is too big for the route", "too_big")
	}
}
