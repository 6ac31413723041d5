package relay

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fastrelay/fastrelay-gen/examples/moq/certificate"
	"github.com/fastrelay/fastrelay-gen/examples/moq/restart"
	"github.com/fastrelay/fastrelay-gen/examples/moq/wire"
	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go"
	"github.com/fastrelay/fastrelay-gen/internal/test/testlink"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// A bed is a relay whose packets the kernel copies, with one above and two below, each on a host of its own at the end
// of a link.
type bed struct {
	*testing.T
	net          *testnet.Net
	root, middle *node
	leaves       [2]*node
}

// A node is a relay of a bed.
type node struct {
	*Relay
	host *testnet.Host
	at   netip.AddrPort
}

// A network is how the hosts of a bed are addressed: by link and end.
type network struct{ address, all string }

var ipv4, ipv6 = network{"10.%d.0.%d", "0.0.0.0/0"}, network{"fd00:%d::%d", "::/0"}

// nullHosts are the hosts of beds.
var nullHosts = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8")}

// newHosts makes the hosts. All links are alike, but for that to the second relay below.
func newHosts(t *testing.T, of network, links, second testlink.Config) *bed {
	t.Helper()
	needs.Root(t)
	b := &bed{T: t, net: testnet.Start(t)}
	host := func(name string, link, end int) *node { return b.host(name, fmt.Sprintf(of.address, link, end)) }
	b.root, b.middle = host("root", 1, 2), host("middle", 1, 1)
	b.leaves = [2]*node{host("one", 2, 2), host("two", 3, 2)}
	for i, n := range []*node{b.root, b.leaves[0], b.leaves[1]} {
		if n == b.leaves[1] {
			links = second
		}
		links.Seed = uint64(i) + 1
		near := netip.MustParseAddr(fmt.Sprintf(of.address, i+1, 1))
		l := testlink.Start(t, b.net, b.middle.host, n.host.Name, n.host, "eth0", links)
		subnet := func(a netip.Addr) string { return netip.PrefixFrom(a, a.BitLen()*3/4).String() }
		b.check(errors.Join(l.A.AddAddr(subnet(near)), l.B.AddAddr(subnet(n.at.Addr())),
			l.B.AddRoute(of.all, near.String()), l.A.AddNeighbour(n.at.Addr(), l.B.MAC),
			l.B.AddNeighbour(near, l.A.MAC)))
	}
	return b
}

// newBed makes hosts, and starts their relays.
func newBed(t *testing.T, of network, links, second testlink.Config, change func(*Config)) *bed {
	t.Helper()
	b := newHosts(t, of, links, second)
	b.start(b.root, nil)
	b.start(b.middle, func(c *Config) {
		c.Interfaces = []string{"root", "one", "two"}
		if change != nil {
			change(c)
		}
	}, b.root)
	for _, n := range b.leaves {
		b.start(n, nil, b.middle)
	}
	return b
}

func (b *bed) check(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

func (b *bed) host(name, address string) *node {
	b.Helper()
	h, err := b.net.Host(name)
	b.check(err)
	return &node{host: h, at: netip.AddrPortFrom(netip.MustParseAddr(address), 4433)}
}

// start starts a node, which does without protection, and is connected to others.
func (b *bed) start(n *node, change func(*Config), above ...*node) {
	b.Helper()
	pair, err := certificate.Development(n.at.Addr())
	b.check(err)
	config := Config{
		Address: n.at, TLS: &tls.Config{Certificates: []tls.Certificate{pair}},
		Null:   nullHosts,
		Logger: slog.New(slog.NewTextHandler(b.Output(), nil)),
	}
	for _, a := range above {
		config.Upstreams = append(config.Upstreams, Upstream{
			URI: "moqt://" + a.at.String(), TLS: &tls.Config{InsecureSkipVerify: true},
		})
	}
	if change != nil {
		change(&config)
	}
	b.check(n.host.Do(func() (err error) {
		n.Relay, err = Start(config)
		return err
	}))
	r := n.Relay
	b.Cleanup(func() {
		if err := r.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			b.Error(err)
		}
	})
	n.isConnected(b.T)
}

// dial connects a stock client to a node, on its host.
func (b *bed) dial(n *node) *peer {
	b.Helper()
	var c *net.UDPConn
	b.check(n.host.Do(func() (err error) {
		c, err = net.ListenUDP("udp", nil)
		return err
	}))
	from := &quic.Transport{Conn: c}
	b.Cleanup(func() { from.Close() })
	return dialAt(b.T, n.at, options{from: from})
}

// logs logs what the programs did.
func (b *bed) logs() {
	for _, p := range b.middle.kernel.relay.Runtime().Programs() {
		counts, _ := p.Counts()
		for i, n := range counts {
			if n.Packets > 0 {
				b.Logf("%s: %d %s", p.Name(), n.Packets, p.Desc().Reason(i).Name)
			}
		}
	}
	for _, t := range b.middle.Stats().Tracks {
		b.Logf("%+v", t)
	}
}

// ready waits until the kernel may send to so many relays.
func (b *bed) ready(n int) {
	b.Helper()
	k := b.middle.kernel
	until(b.T, "the kernel may send", func() bool {
		k.mu.Lock()
		defer k.mu.Unlock()
		for _, h := range k.hops {
			if !h.ready.Load() {
				return false
			}
		}
		return len(k.hops) == n
	})
}

// isWell expects all sessions between relays to be the first ones.
func (b *bed) isWell() {
	b.Helper()
	for _, n := range []*node{b.middle, b.leaves[0], b.leaves[1]} {
		if u := n.Stats().Upstreams[0]; !u.Connected || u.Sessions != 1 {
			b.Errorf("%+v", u)
		}
	}
}

// kernelBytes is how much the kernel has sent to each relay below, in the order of their sessions.
func (b *bed) kernelBytes() (all []uint64) {
	for _, s := range b.middle.Stats().Open {
		all = append(all, s.Sent.KernelBytes)
	}
	return all
}

// follows subscribes players to a track of a publisher's, whose alias it has.
func follows(p *peer, alias uint64, name wire.Track, players ...*peer) {
	p.t.Helper()
	var calls []*call
	for _, a := range players {
		calls = append(calls, a.subscribes(name, wire.Parameters{}))
	}
	publisher(p, alias, name, wire.SubscribeOK{})
	for _, c := range calls {
		expect[*wire.SubscribeOK](c)
	}
}

// TestKernel has streams of two tracks go through three relays to two players. The kernel of the one in the middle
// sends most of it, and what it doesn't send, or is lost, user space does. A player in the middle gets it as ever.
func TestKernel(t *testing.T) {
	for _, c := range []struct {
		name string
		of   network
		loss float64
	}{{"no loss", ipv4, 0}, {"1% loss", ipv4, 0.01}, {"5% loss", ipv4, 0.05}, {"IPv6", ipv6, 0}} {
		t.Run(c.name, func(t *testing.T) {
			direction := testlink.Direction{Loss: c.loss}
			links := testlink.Config{FromA: direction, FromB: direction}
			b := newBed(t, c.of, links, links, nil)
			defer b.logs()
			const streams, rounds, each = 10, 12, 5
			p := b.dial(b.root)
			players := []*peer{b.dial(b.leaves[0]), b.dial(b.leaves[1]), b.dial(b.middle)}
			p.publishes("live")
			for i := range uint64(2) {
				follows(p, 70+i, wire.Track{Namespace: wire.Namespace{"live"}, Name: fmt.Sprint(i)}, players...)
			}
			b.ready(2)
			for g := range uint64(streams) {
				var flows [2]*flow
				for i := range flows {
					h := header(70+uint64(i), g, 0)
					h.Priority = wire.Some(uint8(10 + 50*i))
					flows[i] = p.opens(h)
				}
				views := map[*peer]map[uint64]*viewed{}
				for r := range uint64(rounds) {
					want := items(r*each, each, 1000)
					for _, f := range flows {
						f.send(want...)
					}
					if r == rounds-1 {
						flows[0].close()
						flows[1].close()
					}
					for _, a := range players {
						if r == 0 {
							one, two := a.views(), a.views()
							views[a] = map[uint64]*viewed{one.header.TrackAlias: one, two.header.TrackAlias: two}
							same(t, len(views[a]), 2)
						}
						for _, v := range views[a] {
							v.has(want...)
							if r == rounds-1 {
								v.ends()
							}
						}
					}
				}
			}
			b.isWell()
			for _, track := range b.middle.Stats().Tracks {
				for _, s := range track.Subscriptions {
					t.Logf("%s: the kernel has sent %d of %d bytes", track.Name, s.KernelBytes, s.Bytes)
					least := uint64(1)
					if c.loss == 0 {
						least = s.Bytes / 2
					}
					if below := s.Session <= 2; below && s.KernelBytes < least || !below && s.KernelBytes > 0 {
						t.Errorf("%s: %d of %d bytes to session %d are the kernel's", track.Name, s.KernelBytes,
							s.Bytes, s.Session)
					}
				}
			}
		})
	}
}

// passes has a stream go to players: the first objects, and then the others, which the kernel may send.
func passes(p *peer, h wire.SubgroupHeader, players ...*peer) {
	p.t.Helper()
	f := p.opens(h).send(items(0, 2, 1000)...)
	views := make([]*viewed, len(players))
	for i, a := range players {
		views[i] = a.views()
		views[i].has(items(0, 2, 1000)...)
	}
	f.send(items(2, 20, 1000)...).close()
	for _, v := range views {
		v.has(items(2, 20, 1000)...)
		v.ends()
	}
}

// TestKernelReset has streams be reset while the kernel sends them: they are below, with a size that the relays there
// accept, and others aren't touched.
func TestKernelReset(t *testing.T) {
	b := newBed(t, ipv4, testlink.Config{}, testlink.Config{}, nil)
	defer b.logs()
	p, one, two := b.dial(b.root), b.dial(b.leaves[0]), b.dial(b.leaves[1])
	p.publishes("live")
	follows(p, 7, track0("live"), one, two)
	b.ready(2)
	for g := range uint64(20) {
		f := p.opens(header(7, 2*g, 0)).send(items(0, 2, 1000)...)
		views := []*viewed{one.views(), two.views()}
		for _, v := range views {
			v.has(items(0, 2, 1000)...)
		}
		f.send(items(2, 20, 1000)...)
		f.stream.CancelWrite(quic.StreamErrorCode(wire.ResetExcessiveLoad))
		for _, v := range views {
			v.isReset(wire.ResetExcessiveLoad)
		}
		passes(p, header(7, 2*g+1, 0), one, two)
	}
	b.isWell()
	for i, n := range b.kernelBytes() {
		if n == 0 {
			t.Errorf("the kernel has sent nothing to relay %d", i)
		}
	}
}

// TestKernelGone has a relay below go while the kernel sends to it, and come back: the other one isn't touched, and the
// kernel forgets the first session. Then the relay above does the same.
func TestKernelGone(t *testing.T) {
	b := newBed(t, ipv4, testlink.Config{}, testlink.Config{}, nil)
	defer b.logs()
	p, one := b.dial(b.root), b.dial(b.leaves[0])
	p.publishes("live")
	follows(p, 7, track0("live"), one)
	two := b.dial(b.leaves[1])
	expect[*wire.SubscribeOK](two.subscribes(track0("live"), wire.Parameters{}))
	b.ready(2)
	f := p.opens(header(7, 0, 0)).send(items(0, 2, 1000)...)
	v, w := one.views(), two.views()
	v.has(items(0, 2, 1000)...)
	w.has(items(0, 2, 1000)...)
	f.send(items(2, 10, 1000)...)
	if err := b.leaves[1].Close(); err != nil {
		t.Fatal(err)
	}
	v.has(items(2, 10, 1000)...)
	f.send(items(12, 10, 1000)...).close()
	v.has(items(12, 10, 1000)...)
	v.ends()
	receivers := func() int {
		_, n := b.middle.kernel.relay.Receivers.Count()
		return n
	}
	until(t, "the kernel has forgotten it", func() bool { return receivers() == 1 })

	b.start(b.leaves[1], nil, b.middle)
	two = b.dial(b.leaves[1])
	expect[*wire.SubscribeOK](two.subscribes(track0("live"), wire.Parameters{}))
	late := two.views() // the largest group is kept
	late.has(items(0, 22, 1000)...)
	late.ends()
	b.ready(2)
	passes(p, header(7, 1, 0), one, two)
	same(t, receivers(), 2)

	f = p.opens(header(7, 2, 0)).send(items(0, 2, 1000)...)
	v = one.views()
	v.has(items(0, 2, 1000)...)
	f.send(items(2, 10, 1000)...)
	v.has(items(2, 10, 1000)...)
	if err := b.root.Close(); err != nil {
		t.Fatal(err)
	}
	v.isReset(wire.ResetCancelled)
	before := b.kernelBytes()
	b.start(b.root, nil)
	p = b.dial(b.root)
	p.publishes("live")
	publisher(p, 8, track0("live"), wire.SubscribeOK{})
	passes(p, header(8, 3, 0), one)
	if after := b.kernelBytes(); after[0] <= before[0] {
		t.Errorf("the kernel has sent nothing on the second session with the relay above: %v, then %v", before, after)
	}
}

// TestKernelKilled kills the process of the relay in the middle while its kernel forwards: nothing of it stays in the
// kernel, and the next one at its address goes on, in the kernel as well.
func TestKernelKilled(t *testing.T) {
	b := newHosts(t, ipv4, testlink.Config{}, testlink.Config{})
	b.start(b.root, nil)
	args := []string{b.middle.at.String(), filepath.Join(t.TempDir(), "key"), b.root.at.String(), "root", "one", "two"}
	first := startProcess(t, b.middle.host.Command, args...)
	for _, n := range b.leaves {
		b.start(n, nil, b.middle)
	}
	p, one, two := b.dial(b.root), b.dial(b.leaves[0]), b.dial(b.leaves[1])
	p.publishes("live")
	follows(p, 7, track0("live"), one, two)
	group := uint64(0)
	forwards := func(r *process) {
		t.Helper()
		until(t, "the kernel forwards", func() bool {
			passes(p, header(7, group, 0), one, two)
			group++
			return r.kernelBytes() > 0
		})
	}
	forwards(first)
	first.kill()
	again := startProcess(t, b.middle.host.Command, args...)
	for _, a := range []*peer{one, two} { // so that the relay below learns it: a PING is too small for a reset
		c := a.call(&wire.TrackStatus{RequestID: a.id(), Track: track0(strings.Repeat("long", 20))})
		expect[*wire.RequestError](c)
	}
	for _, n := range b.leaves {
		n.isConnected(t)
	}
	forwards(again)
}

// TestKernelSlow has a relay below that is reached by a slow link lose what it can't take; the other one gets all.
func TestKernelSlow(t *testing.T) {
	slow := testlink.Config{FromA: testlink.Direction{Rate: 400_000, Queue: 30_000}}
	b := newBed(t, ipv4, testlink.Config{}, slow, func(c *Config) { c.Backlog = 200_000 })
	defer b.logs()
	p, one, two := b.dial(b.root), b.dial(b.leaves[0]), b.dial(b.leaves[1])
	p.publishes("live")
	follows(p, 7, track0("live"), one, two)
	b.ready(2)
	sent := func() SubscriptionStats { return b.middle.Stats().Tracks[0].Sent }
	streams := uint64(0)
	for ; sent().Dropped[droppedBacklog] < 3; streams++ {
		f := p.opens(header(7, streams, 0)).send(items(0, 2, 1000)...)
		v := one.views()
		v.has(items(0, 2, 1000)...)
		f.send(items(2, 50, 1000)...).close()
		v.has(items(2, 50, 1000)...)
		v.ends()
	}
	until(t, "each stream is over for both", func() bool {
		s := sent()
		return s.Whole+s.Dropped[droppedBacklog] == 2*streams
	})
	b.isWell()
}

// TestKernelFollows has the rows of relays below change, as with each new connection ID of theirs: the kernel sends
// nothing meanwhile, and goes on with the new ones.
func TestKernelFollows(t *testing.T) {
	b := newBed(t, ipv4, testlink.Config{}, testlink.Config{}, nil)
	defer b.logs()
	p, one, two := b.dial(b.root), b.dial(b.leaves[0]), b.dial(b.leaves[1])
	p.publishes("live")
	follows(p, 7, track0("live"), one, two)
	b.ready(2)
	passes(p, header(7, 0, 0), one, two)
	k := b.middle.kernel
	for g := range uint64(5) {
		before := b.kernelBytes()
		k.mu.Lock()
		for _, h := range k.hops {
			h.follow()
		}
		k.mu.Unlock()
		passes(p, header(7, 2*g+1, 0), one, two) // while they change
		until(t, "the rows are changed", func() bool {
			k.mu.Lock()
			defer k.mu.Unlock()
			for _, h := range k.hops {
				h.mu.Lock()
				changing := h.changed != h.changes
				h.mu.Unlock()
				if changing {
					return false
				}
			}
			return true
		})
		passes(p, header(7, 2*g+2, 0), one, two)
		for i, n := range b.kernelBytes() {
			if n <= before[i] {
				t.Errorf("the kernel has sent nothing more to relay %d", i)
			}
		}
	}
	b.isWell()
}

// TestKernelIdle has an upstream relay of which the kernel can copy nothing, and the relay say why.
func TestKernelIdle(t *testing.T) {
	b := newHosts(t, ipv4, testlink.Config{}, testlink.Config{})
	b.start(b.root, func(c *Config) { c.Null = nil })
	var said bytes.Buffer
	b.start(b.middle, func(c *Config) {
		c.Interfaces = []string{"root", "one", "two"}
		c.Logger = slog.New(slog.NewTextHandler(io.MultiWriter(&said, b.Output()), nil))
	}, b.root)
	if err := b.middle.Close(); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(said.String(), "its packets are protected") {
		t.Error("it doesn't say why the kernel copies nothing")
	}
}

// TestInterfaces has relays be refused whose kernel couldn't copy anything.
func TestInterfaces(t *testing.T) {
	for want, change := range map[string]func(*Config){
		"Null has to say": func(c *Config) { c.Null = nil },
		"one address":     func(c *Config) { c.Address = netip.MustParseAddrPort("[::]:4433") },
		"can't be shared": func(c *Config) { c.Generation = &restart.Generation{} },
		"no-such-device":  func(*Config) {},
	} {
		if want == "no-such-device" && os.Geteuid() != 0 {
			continue // it takes root to find that out
		}
		c := Config{Address: netip.MustParseAddrPort("127.0.0.1:4433"), Interfaces: []string{"no-such-device"},
			Logger: slog.New(slog.DiscardHandler)}
		nullAt("127.0.0.0/8")(&c)
		change(&c)
		if k, err := c.loadKernel(); k != nil || err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v instead of an error about %q", err, want)
		}
	}
}
