//go:build linux

package bpf_test

import (
	"encoding/binary"
	"fmt"
	"math"
	"net/netip"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// If no row says how a packet leaves, the kernel's routes decide, and each of their answers is a reason of ours,
// which docs/operate.md explains.
func TestRoutes(t *testing.T) {
	needs.Root(t)
	u := compile(t, "testdata/echo/spec.cue")
	guide, err := os.ReadFile("../../docs/operate.md")
	if err != nil {
		t.Fatal(err)
	}
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
		// What becomes of a datagram that the program would send. Other reasons count what hosts say to each other.
		sum := func(counts map[string]uint64) (n uint64) {
			for _, reason := range []string{
				"sent", "too_big", "no_route", "local", "unreachable", "blackhole", "prohibit", "xfrm", "rule", "encap",
				"not_forwarded", "forwarding_off",
			} {
				n += counts[reason]
			}
			return n
		}
		expect := func(what, reason string) {
			t.Helper()
			row := regexp.MustCompile("(?m)^\\| .*`" + reason + "`.* \\|$").FindString(string(guide))
			if row == "" {
				t.Errorf("docs/operate.md has no row for %s", reason)
			}
			var counts map[string]uint64
			if err := testnet.Until(20*time.Second, "one more packet is counted", func() bool {
				counts = relay.counts(t, "back")
				return sum(counts) == sum(before)+1
			}); err != nil {
				t.Fatalf("IPv%d, %s: %v: %v", family, what, err, counts)
			}
			if counts[reason] != before[reason]+1 {
				t.Errorf("IPv%d, %s: counted as another reason than %s: %v, before %v", family, what, reason, counts,
					before)
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
		expect("forwarding disabled", "forwarding_off")
		set(true)
		if err := line.Relay.Sysctl(fmt.Sprintf("net/ipv%d/conf/%s/forwarding", family, line.RelayIn.Name),
			"0"); err != nil {
			t.Fatal(err)
		}
		write(10)
		expect("forwarding disabled on the device of arrival alone", "forwarding_off")
		set(false) // setting all of them anew sets each
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
		gateway := line.PeerAddr.Of(family).String()
		for _, tt := range []struct {
			reason string
			route  []string
		}{
			{"blackhole", []string{"blackhole", client.Addr().String() + bits}},
			{"unreachable", []string{"unreachable", client.Addr().String() + bits}},
			{"prohibit", []string{"prohibit", client.Addr().String() + bits}},
			{"not_forwarded", []string{"throw", client.Addr().String() + bits}},
			{"not_forwarded", []string{"local", client.Addr().String() + bits, "dev", "lo"}},
			{"encap", []string{client.Addr().String() + bits, "encap", map[int]string{4: "ip", 6: "ip6"}[family],
				"dst", gateway, "dev", line.RelayIn.Name}},
		} {
			route(append([]string{"add"}, tt.route...)...)
			write(10)
			expect("the route "+strings.Join(tt.route, " "), tt.reason)
			route(append([]string{"del"}, tt.route...)...)
		}
		// one that isn't locked doesn't count for what is forwarded
		route("add", client.Addr().String()+bits, "dev", "eth0", "mtu", "lock", "1280")
		write(1200)
		expect("a datagram that fits the route", "sent")
		write(1300)
		expect("a datagram that is too big for the route", "too_big")
		route("flush", "table", "main")
		write(10)
		expect("an empty table of routes", "not_forwarded")
	}
}
