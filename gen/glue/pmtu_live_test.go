//go:build linux

package glue_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fastrelay/fastrelay-gen/gen/glue"
	"github.com/fastrelay/fastrelay-gen/internal/build"
	"github.com/fastrelay/fastrelay-gen/runtime"
	"github.com/fastrelay/fastrelay-gen/runtime/metrics"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// A path has a smaller MTU behind a router: client, relay, router, peer in a line. The router is the kernel's, and
// so are the errors.
type pathLab struct {
	*testing.T
	net                        *testnet.Net
	client, host, router, peer *testnet.Host
	first                      *testnet.Dev   // of the router, which leads to the relay's host
	narrow                     []*testnet.Dev // both ends of the router's link to the peer
	relay                      *runtime.Relay
	program                    string
	from, sink                 *net.UDPConn
}

// pathAddrs are the hosts' addresses by family.
var pathAddrs = map[int]struct{ client, in, out, peer netip.Addr }{
	4: {
		client: netip.MustParseAddr("192.0.2.2"), in: netip.MustParseAddr("192.0.2.1"),
		out: netip.MustParseAddr("198.51.100.1"), peer: netip.MustParseAddr("203.0.113.2"),
	},
	6: {
		client: netip.MustParseAddr("2001:db8:1::2"), in: netip.MustParseAddr("2001:db8:1::1"),
		out: netip.MustParseAddr("2001:db8:2::1"), peer: netip.MustParseAddr("2001:db8:3::2"),
	},
}

const pathMTU = 1280 // the smallest that a link for IPv6 may have

func newPathLab(t *testing.T, spec, program string) *pathLab {
	t.Helper()
	needs.Root(t)
	file := spec
	if filepath.Ext(spec) != ".cue" {
		file = filepath.Join(t.TempDir(), "spec.cue")
		if err := os.WriteFile(file, []byte(spec), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	built, list, err := build.Spec(t.Context(), file, build.Options{})
	if err != nil || list.Len() > 0 {
		t.Fatal(err, list)
	}
	l := &pathLab{T: t, program: program}
	net := testnet.Start(t)
	l.net = net
	hosts := map[string]**testnet.Host{"client": &l.client, "relay": &l.host, "router": &l.router, "peer": &l.peer}
	for name, host := range hosts {
		*host, err = net.Host(name)
		l.must(err)
	}
	join := func(a *testnet.Host, aName string, b *testnet.Host, bName string, addrs ...string) (_, _ *testnet.Dev) {
		left, right, err := net.Join(a, aName, b, bName)
		l.must(err)
		for i, addr := range addrs {
			l.must([]*testnet.Dev{left, right}[i&1].AddAddr(addr))
		}
		return left, right
	}
	join(l.client, "eth0", l.host, "eth0", "192.0.2.2/24", "192.0.2.1/24", "2001:db8:1::2/64", "2001:db8:1::1/64")
	out, first := join(l.host, "eth1", l.router, "eth0",
		"198.51.100.1/24", "198.51.100.254/24", "2001:db8:2::1/64", "2001:db8:2::fe/64")
	near, far := join(l.router, "eth1", l.peer, "eth0",
		"203.0.113.254/24", "203.0.113.2/24", "2001:db8:3::fe/64", "2001:db8:3::2/64")
	l.first, l.narrow = first, []*testnet.Dev{near, far}
	l.mtu(pathMTU)
	l.must(l.router.SetForwarding(true))
	l.must(out.AddRoute("0.0.0.0/0", "198.51.100.254"))
	l.must(out.AddRoute("::/0", "2001:db8:2::fe"))
	l.must(far.AddRoute("0.0.0.0/0", "203.0.113.254"))
	l.must(far.AddRoute("::/0", "2001:db8:3::fe"))
	desc := glue.Desc(built.Plan)
	l.must(l.host.Do(func() error {
		l.relay, err = runtime.Load(&desc, built.Object(), runtime.Options{})
		return err
	}))
	t.Cleanup(func() {
		if err := l.relay.Close(); err != nil {
			t.Error(err)
		}
	})
	l.must(l.relay.Program(program).Attach("eth0"))
	return l
}

func (l *pathLab) must(err error) {
	l.Helper()
	if err != nil {
		l.Fatal(err)
	}
}

// mtu is the narrow link's from now on.
func (l *pathLab) mtu(n int) {
	l.Helper()
	for _, d := range l.narrow {
		l.must(d.SetMTU(n))
	}
}

func (l *pathLab) listen(host *testnet.Host, at netip.AddrPort) *net.UDPConn {
	l.Helper()
	var conn *net.UDPConn
	l.must(host.Do(func() (err error) {
		conn, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
		return err
	}))
	l.Cleanup(func() { conn.Close() })
	return conn
}

// counted is how many packets had a reason, or copies.
func (l *pathLab) counted(name string) uint64 {
	return must(l.relay.Program(l.program).Count(name)).Packets
}

// arrives says whether a datagram of so many bytes reaches the peer, at once; smaller ones that are late don't count.
func (l *pathLab) arrives(size int, send func(int)) bool {
	l.Helper()
	return l.arrivesWithin(50*time.Millisecond, size, send)
}

// patience is how long a datagram may take that has to arrive.
const patience = 20 * time.Second

func (l *pathLab) arrivesWithin(limit time.Duration, size int, send func(int)) bool {
	l.Helper()
	send(size)
	l.must(l.sink.SetReadDeadline(time.Now().Add(limit)))
	buf := make([]byte, 2048)
	for {
		n, err := l.sink.Read(buf)
		if err != nil {
			return false
		}
		if n == size {
			return true
		}
	}
}

func (l *pathLab) until(limit time.Duration, what string, holds func() bool) {
	l.Helper()
	l.must(testnet.Until(limit, what, holds))
}

const (
	small, large = 1000, 1300
	soon         = 1500 * time.Millisecond
)

// follow checks that packets over the path's MTU pass to the stack soon, and smaller ones don't. big and sent are the
// reasons. The relay has read all errors then.
func (l *pathLab) follow(send func(size int), big, sent string) {
	l.Helper()
	larges, sends := uint64(0), send
	send = func(size int) {
		if size == large {
			larges++
		}
		sends(size)
	}
	l.until(5*time.Second, "small ones arrive", func() bool { return l.arrives(small, send) })
	if n := l.counted(big); n != 0 {
		l.Fatalf("%d are too big from the start", n)
	}
	before := l.counted(sent)
	send(large)
	l.until(time.Second, "the first large one is sent", func() bool { return l.counted(sent) == before+1 })
	l.until(soon, "large ones pass to the stack", func() bool { send(large); return l.counted(big) > 0 })
	if !l.arrivesWithin(patience, small, send) { // after all that was sent before it
		l.Error("small ones don't arrive any more")
	}
	ups, sents := l.counted(big), l.counted(sent)
	for range 10 {
		send(large)
	}
	if !l.arrivesWithin(patience, small, send) {
		l.Error("small ones don't arrive any more")
	}
	if up, out := l.counted(big)-ups, l.counted(sent)-sents; up != 10 || out != 1 {
		l.Errorf("of 10 large ones and a small one, %d pass to the stack and %d are sent, want 10 and 1", up, out)
	}
	l.until(soon, "each large one that was sent comes back as an error", func() bool {
		return l.relay.PathMTUs().Taken == larges-l.counted(big)
	})
}

// TURN channels between all pairs of families; with a socket on the relay's host that could have sent the packets, as
// that of a TURN server, and without one, as with `fastrelay-gen run`.
func TestPathMTU(t *testing.T) {
	for i, f := range [][2]int{{4, 4}, {4, 6}, {6, 4}, {6, 6}} {
		for k, socket := range []bool{true, false} {
			if needs.Left(i+k, 2) {
				continue
			}
			t.Run(fmt.Sprintf("IPv%d to IPv%d, socket %v", f[0], f[1], socket), func(t *testing.T) {
				l := newPathLab(t, "../../examples/turn/spec.cue", "to_peer")
				in, out := pathAddrs[f[0]], pathAddrs[f[1]]
				relayed := netip.AddrPortFrom(out.out, 50000)
				if socket {
					unspecified := netip.AddrPortFrom(netip.IPv6Unspecified(), 50000)
					if f[1] == 4 {
						unspecified = netip.AddrPortFrom(netip.IPv4Unspecified(), 50000)
					}
					l.listen(l.host, unspecified)
				}
				l.sink = l.listen(l.peer, netip.AddrPortFrom(out.peer, 7000))
				l.from = l.listen(l.client, netip.AddrPortFrom(in.client, 40001))
				client, server := netip.AddrPortFrom(in.client, 40001), netip.AddrPortFrom(in.in, 3478)
				_, err := l.relay.Open("channel", client, server, 0x4001, relayed, netip.AddrPortFrom(out.peer, 7000))
				l.must(err)
				send := func(size int) {
					b := make([]byte, 4+size)
					binary.BigEndian.PutUint16(b, 0x4001)
					binary.BigEndian.PutUint16(b[2:], uint16(size))
					_, err := l.from.WriteToUDPAddrPort(b, server)
					l.must(err)
				}
				l.follow(send, "too_big", "sent")
				if got := l.relay.PathMTUs(); !got.Receives {
					t.Errorf("%+v", got)
				}
				// The relay may get the error before the kernel has made its exception, and keeps the MTU until then.
				l.until(soon, "who keeps the MTU", func() bool { return (l.relay.PathMTUs().Kept == 0) == socket })
				if !socket {
					return
				}
				// The path gets wider, and the kernel forgets what it knew.
				l.mtu(1500)
				l.must(l.host.Run("ip", fmt.Sprintf("-%d", f[1]), "route", "flush", "cache"))
				l.until(soon, "large ones arrive", func() bool { return l.arrives(large, send) })
			})
		}
	}
}

// A tunnel's rows have addresses and no ports, and there is no socket that could have sent its packets.
func TestPathMTUOfTunnel(t *testing.T) {
	const spec = `
name: "tunnel"
tables: tunnels: {key: from: "ip", value: {local: "ip", remote: "ip"}, size: 16}
programs: forward: {
	hook: "tc/ingress"
	stack: ["eth", "ip", "udp"]
	lookup: t: tunnels: ["ip.src"]
	do: [{send: {from: "t.local", to: "t.remote"}}]
}
`
	for _, f := range []int{4, 6} {
		t.Run(fmt.Sprintf("IPv%d", f), func(t *testing.T) {
			l := newPathLab(t, spec, "forward")
			a := pathAddrs[f]
			l.must(l.relay.Table("tunnels").Put([]any{a.client}, []any{a.out, a.peer}))
			l.sink = l.listen(l.peer, netip.AddrPortFrom(a.peer, 7000))
			l.from = l.listen(l.client, netip.AddrPortFrom(a.client, 40001))
			l.follow(func(size int) {
				_, err := l.from.WriteToUDPAddrPort(make([]byte, size), netip.AddrPortFrom(a.in, 7000))
				l.must(err)
			}, "too_big", "sent")
			var text bytes.Buffer
			l.must(metrics.Write(&text, l.relay))
			for _, want := range []string{
				`fastrelay_path_mtu_errors_total{relay="tunnel",result="taken"} `,
				`fastrelay_path_mtu_errors_total{relay="tunnel",result="ignored"} 0`,
				`fastrelay_path_mtu_receives{relay="tunnel"} 1`, `fastrelay_path_mtus_kept{relay="tunnel"} 1`,
			} {
				if !strings.Contains(text.String(), "\n"+want) {
					t.Errorf("no %s in\n%s", want, &text)
				}
			}
		})
	}
}

// Copies for a receiver behind the narrow link are declined; those for another go on.
func TestPathMTUOfReceivers(t *testing.T) {
	const spec = `
name: "spread"
groups: subscribers: {
	key: server: "endpoint"
	receiver: {local: "endpoint", remote: "endpoint"}
	max: 16, receivers: 64, size: 4
}
programs: spread: {
	hook: "tc/ingress"
	stack: ["eth", "ip", "udp"]
	do: [{fan_out: {
		group: subscribers: ["udp.dst"]
		each: [{send: {from: "r.local", to: "r.remote"}}]
		then: drop: "done"
	}}]
}
`
	for _, f := range []int{4, 6} {
		t.Run(fmt.Sprintf("IPv%d", f), func(t *testing.T) {
			l := newPathLab(t, spec, "spread")
			a := pathAddrs[f]
			group, err := l.relay.GroupKind("subscribers").Open(t.Context(), netip.AddrPortFrom(a.in, 5004))
			l.must(err)
			add := func(to netip.AddrPort, local netip.Addr) *runtime.AnyReceiver {
				v, err := group.Add(t.Context(), netip.AddrPortFrom(local, 5004), to)
				l.must(err)
				l.until(5*time.Second, "the next hop is known", func() bool {
					return v.Hops()[0].State == runtime.HopDirect
				})
				return v
			}
			far := add(netip.AddrPortFrom(a.peer, 7000), a.out)
			near := add(netip.AddrPortFrom(a.client, 7000), a.in)
			l.sink = l.listen(l.peer, netip.AddrPortFrom(a.peer, 7000))
			l.from = l.listen(l.client, netip.AddrPortFrom(a.client, 40001))
			send := func(size int) {
				_, err := l.from.WriteToUDPAddrPort(make([]byte, size), netip.AddrPortFrom(a.in, 5004))
				l.must(err)
			}
			l.until(5*time.Second, "small ones arrive", func() bool { return l.arrives(small, send) })
			before := must(far.Usage())
			send(large)
			l.until(time.Second, "the first large one is sent", func() bool {
				return must(far.Usage()).Packets == before.Packets+1
			})
			l.until(soon, "large ones are declined", func() bool {
				send(large)
				return must(far.Usage()).Declined > before.Declined
			})
			if !l.arrivesWithin(patience, small, send) {
				t.Error("small ones don't arrive any more")
			}
			// The kernel has the new list for some milliseconds when this says so.
			l.until(time.Second, "the MTU is known", func() bool { return far.Hops()[0].MTU == pathMTU })
			if u := must(near.Usage()); u.Declined != 0 {
				t.Errorf("the other receiver: %+v", u)
			}
		})
	}
}
