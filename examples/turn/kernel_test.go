package main

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/examples/turn/lab"
	"github.com/fastrelay/fastrelay-gen/examples/turn/server"
	"github.com/fastrelay/fastrelay-gen/internal/test/dissect"
	"github.com/fastrelay/fastrelay-gen/internal/test/measure"
	"github.com/fastrelay/fastrelay-gen/internal/test/offloads"
	"github.com/fastrelay/fastrelay-gen/internal/test/turnlab"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// bed is a line with a server, a client with an open channel, and the channel's peer.
type bed struct {
	*testing.T
	line   *testnet.Line
	server *lab.Process
	client *turnlab.Client
	peer   *net.UDPConn
}

// newBed sets up a bed for the given families of client and peer.
func newBed(t *testing.T, client, peer int, flags ...string) *bed {
	t.Helper()
	l := line(t)
	b := &bed{T: t, line: l, server: serveLine(t, l, flags...)}
	b.client = dial(t, l.Client, l.ClientAddr.Of(client), at(l.RelayInAddr.Of(client), turnPort))
	b.peer = udpSocket(t, l.Peer, at(l.PeerAddr.Of(peer), 0))
	check(t, b.client.Open(channel, addrOf(b.peer)))
	return b
}

func (b *bed) stats() server.Stats {
	b.Helper()
	if b.client != nil {
		check(b.T, b.client.Settle()) // a machine that stalls has it send requests again, which count
	}
	s, err := b.server.Stats()
	check(b.T, err)
	return s
}

// sent is how many packets the kernel has forwarded, in each direction.
func sent(s server.Stats) (toPeer, toClient uint64) {
	return s.Packets("to_peer", "sent"), s.Packets("to_client", "sent")
}

// inKernel runs f, in which n packets go each way, and wants them to have taken the kernel's path, past the server.
func (b *bed) inKernel(n int, f func()) {
	b.Helper()
	before := b.stats()
	f()
	after := b.stats()
	p0, c0 := sent(before)
	p1, c1 := sent(after)
	if p1-p0 != uint64(n) || c1-c0 != uint64(n) {
		b.Errorf("the kernel sent %d packets to the peer and %d to the client, want %d each\n%v", p1-p0, c1-c0,
			n, after)
	}
	if after.UserReceived != before.UserReceived || after.UserSent != before.UserSent {
		b.Errorf("user space received %d packets and sent %d, want none", after.UserReceived-before.UserReceived,
			after.UserSent-before.UserSent)
	}
}

func (b *bed) roundTrip(size int) {
	b.Helper()
	roundTrip(b.T, b.client, channel, b.peer, size)
}

// Channel data takes the kernel's path in both directions, for all pairs of families, whether the host is a router or
// not.
func TestKernelPath(t *testing.T) {
	needs.Root(t)
	for _, f := range families {
		for _, router := range []bool{false, true} {
			t.Run(fmt.Sprintf("IPv%d to IPv%d, router %v", f.client, f.peer, router), func(t *testing.T) {
				b := newBed(t, f.client, f.peer)
				check(t, b.line.Relay.SetForwarding(router))
				// The first packet each way may still have to find its neighbour.
				b.roundTrip(1)
				sizes := []int{0, 1, 2, 3, 4, 5, 120, 511, 1200}
				b.inKernel(len(sizes), func() {
					for _, size := range sizes {
						b.roundTrip(size)
					}
				})
			})
		}
	}
}

// The first packets reach a neighbour whose address isn't known yet, in the kernel, and none is lost or sent back.
func TestUnknownNeighbour(t *testing.T) {
	needs.Root(t)
	for _, f := range families {
		t.Run(fmt.Sprintf("IPv%d to IPv%d", f.client, f.peer), func(t *testing.T) {
			b := newBed(t, f.client, f.peer)
			check(t, b.line.RelayOut.ForgetNeighbours())
			check(t, b.line.RelayIn.ForgetNeighbours())
			b.roundTrip(100)
		})
	}
}

// Relayed packets pass no hook of netfilter, not even egress of the device that they leave by: Linux exempts what a TC
// program has redirected (nf_skip_egress, 5.16). Packets from and to the server pass them.
func TestNetfilterSeesNothing(t *testing.T) {
	needs.Root(t)
	b := newBed(t, 4, 4)
	b.roundTrip(1)
	hooks := map[string]string{
		"ingress": "netdev device eth0", "egress": "netdev device eth0",
		"prerouting": "inet", "input": "inet", "output": "inet", "postrouting": "inet",
	}
	var rules strings.Builder
	for hook, at := range hooks {
		family, device, _ := strings.Cut(at, " ")
		fmt.Fprintf(&rules, `table %s count_%s {
	counter %[2]s { }
	chain udp_packets {
		type filter hook %[2]s %s priority 0;
		meta l4proto udp counter name %[2]s
	}
}
`, family, hook, device)
	}
	file := filepath.Join(t.TempDir(), "rules")
	check(t, os.WriteFile(file, []byte(rules.String()), 0o600))
	check(t, b.line.Relay.Run("nft", "-f", file))
	counts := func() map[string]string {
		text, err := b.line.Relay.Command(t.Context(), "nft", "list", "counters").Output()
		check(t, err)
		got := map[string]string{}
		for _, m := range regexp.MustCompile(`counter (\w+) \{\s+packets (\d+)`).FindAllSubmatch(text, -1) {
			got[string(m[1])] = string(m[2])
		}
		if len(got) != len(hooks) {
			t.Fatalf("nft lists\n%s", text)
		}
		return got
	}
	b.inKernel(3, func() {
		for range 3 {
			b.roundTrip(100)
		}
	})
	for hook, n := range counts() {
		if n != "0" {
			t.Errorf("%s has seen %s packets", hook, n)
		}
	}
	check(t, b.client.Refresh(time.Minute)) // a request to the server, and its answer
	for hook, n := range counts() {
		if n == "0" {
			t.Errorf("%s counts nothing", hook)
		}
	}
}

// A relay with one interface, which client and peer are behind, has both programs on it; and its next hop is a router.
func TestOneInterface(t *testing.T) {
	needs.Root(t)
	branch, err := testnet.Start(t).Branch()
	check(t, err)
	for _, f := range families {
		t.Run(fmt.Sprintf("IPv%d to IPv%d", f.client, f.peer), func(t *testing.T) {
			b := &bed{T: t}
			port := uint16(turnPort)
			b.server = serve(t, branch.Relay, "--interfaces", "eth0",
				"--listen", at(branch.RelayAddr.Of(f.client), port).String(), "--relay",
				branch.RelayAddr.Of(f.peer).String())
			b.client = dial(t, branch.Client, branch.ClientAddr.Of(f.client), at(branch.RelayAddr.Of(f.client), port))
			b.peer = udpSocket(t, branch.Peer, at(branch.PeerAddr.Of(f.peer), 0))
			check(t, b.client.Open(channel, addrOf(b.peer)))
			b.roundTrip(1)
			b.inKernel(3, func() {
				for _, size := range []int{0, 33, 1000} {
					b.roundTrip(size)
				}
			})
		})
	}
}

// A server that listens on an unspecified address opens its channels with the address that the client used, and answers
// from it.
func TestWildcardListener(t *testing.T) {
	needs.Root(t)
	for _, f := range families {
		t.Run(fmt.Sprintf("IPv%d to IPv%d", f.client, f.peer), func(t *testing.T) {
			l := line(t)
			// A second address, which the routing table would not choose to answer from.
			second := testnet.Addrs{V4: netip.MustParseAddr("192.0.2.77"), V6: netip.MustParseAddr("2001:db8:1::77")}
			check(t, l.RelayIn.AddAddr(second.V4.String()+"/32"))
			check(t, l.RelayIn.AddAddr(second.V6.String()+"/128"))
			b := &bed{T: t, line: l}
			b.server = serve(t, l.Relay, "--listen", "0.0.0.0:3478", "--listen", "[::]:3478",
				"--relay", l.RelayOutAddr.V4.String(), "--relay", l.RelayOutAddr.V6.String())
			b.peer = udpSocket(t, l.Peer, at(l.PeerAddr.Of(f.peer), 0))
			for _, address := range []netip.Addr{l.RelayInAddr.Of(f.client), second.Of(f.client)} {
				b.client = dial(t, l.Client, l.ClientAddr.Of(f.client), at(address, turnPort))
				check(t, b.client.Open(channel, addrOf(b.peer)))
				b.roundTrip(1)
				b.inKernel(1, func() { b.roundTrip(77) })
			}
		})
	}
}

// Two clients of one server are each other's peers: what one relayed address sends to the other stays on the host,
// where the kernel's programs don't see it; the server relays it, and the way from its second half to the client is
// ordinary.
func TestBothClientsOfOneServer(t *testing.T) {
	needs.Root(t)
	l := line(t)
	b := &bed{T: t, line: l, server: serveLine(t, l)}
	server := at(l.RelayInAddr.V4, turnPort)
	left, right := dial(t, l.Client, l.ClientAddr.V4, server), dial(t, l.Client, l.ClientAddr.V4, server)
	check(t, left.Allocate(4))
	check(t, right.Allocate(4))
	check(t, left.Bind(channel, right.Relayed))
	check(t, right.Bind(channel+1, left.Relayed))
	check(t, errors.Join(left.Settle(), right.Settle()))
	before := b.stats()
	for range 5 {
		payload := turnlab.Payload(99)
		check(t, left.Send(channel, payload))
		number, got, err := right.Receive(wait)
		if err != nil || number != channel+1 || string(got) != string(payload) {
			t.Fatalf("%d bytes of channel %#x: %v\n%v", len(got), number, err, b.stats())
		}
	}
	after := b.stats()
	p0, c0 := sent(before)
	if p, c := sent(after); p != p0 || c != c0 || after.UserSent-before.UserSent != 10 {
		t.Errorf("the kernel sent %d and %d, user space %d; want 0, 0 and twice 5\n%v", p-p0, c-c0,
			after.UserSent-before.UserSent, after)
	}
}

// Many channels of many clients at once, each with its own peer.
func TestManyChannels(t *testing.T) {
	needs.Root(t)
	l := line(t)
	b := &bed{T: t, line: l, server: serveLine(t, l)}
	type pair struct {
		client *turnlab.Client
		peer   *net.UDPConn
		number uint16
	}
	var pairs []pair
	for range 8 {
		c := dial(t, l.Client, l.ClientAddr.V4, at(l.RelayInAddr.V4, turnPort))
		check(t, c.Allocate(4))
		for i := range uint16(8) {
			p := pair{c, udpSocket(t, l.Peer, at(l.PeerAddr.V4, 0)), 0x4000 + 0x111*i}
			check(t, c.Bind(p.number, addrOf(p.peer)))
			pairs = append(pairs, p)
		}
	}
	roundTrip(t, pairs[0].client, pairs[0].number, pairs[0].peer, 10)
	b.inKernel(len(pairs), func() {
		for _, p := range pairs {
			roundTrip(t, p.client, p.number, p.peer, 60)
		}
	})
	if s := b.stats(); s.InKernel != len(pairs) || s.Allocations != 8 {
		t.Errorf("counters: %+v", s)
	}
}

// A checksum may be left to a device that doesn't do it, at the sender, where packets come in, where they leave: every
// packet that arrives has the right lengths and checksums, and its headers in the right place.
func TestChecksumOffload(t *testing.T) {
	needs.Root(t)
	for _, f := range families {
		t.Run(fmt.Sprintf("IPv%d to IPv%d", f.client, f.peer), func(t *testing.T) {
			b := newBed(t, f.client, f.peer)
			l := b.line
			b.roundTrip(1)
			devices := []*testnet.Dev{l.ClientDev, l.RelayIn, l.RelayOut, l.PeerDev}
			sizes := []int{0, 1, 2, 13, 200, 1201}
			captures := []*testnet.Capture{}
			for _, dev := range []*testnet.Dev{l.ClientDev, l.PeerDev} {
				c, err := dev.Capture()
				check(t, err)
				captures = append(captures, c)
			}
			for set := range 1 << len(devices) {
				for i, dev := range devices {
					check(t, offloads.TxChecksum(dev, set&(1<<i) != 0))
				}
				b.inKernel(len(sizes), func() {
					for _, size := range sizes {
						if err := exchange(b.client, channel, b.peer, size); err != nil {
							t.Fatalf("offload of client %v, relay in %v, out %v, peer %v; %d bytes: %v",
								set&1 != 0, set&2 != 0, set&4 != 0, set&8 != 0, size, err)
						}
					}
				})
			}
			for _, c := range captures {
				checkFrames(t, c, 2*len(sizes)<<len(devices))
			}
		})
	}
}

// checkFrames waits until a capture has at least n UDP packets and has them looked at, by gopacket and by tshark.
func checkFrames(t *testing.T, c *testnet.Capture, n int) {
	t.Helper()
	count := func() (found int) {
		for _, f := range c.Frames() {
			if _, _, ok := dissect.UDP(f); ok {
				found++
			}
		}
		return found
	}
	check(t, testnet.Until(wait, fmt.Sprintf("%d packets captured", n), func() bool { return count() >= n }))
	frames, err := c.Stop()
	check(t, err)
	partial := 0
	for _, f := range frames {
		if err := dissect.Check(f); err != nil {
			t.Errorf("%v: % x", err, f.Data)
		}
		if f.Partial {
			partial++
		}
	}
	check(t, dissect.Tshark(frames))
	if partial == 0 || partial == len(frames) {
		t.Errorf("%d of %d packets had partial checksums; the test wants both kinds", partial, len(frames))
	}
}

// A GSO packet (several datagrams in one buffer) isn't rewritten but goes through the server, and all its datagrams
// arrive.
func TestSuperPacket(t *testing.T) {
	needs.Root(t)
	const segments = 10
	payload := turnlab.Payload(100)
	for _, f := range families {
		t.Run(fmt.Sprintf("IPv%d to IPv%d", f.client, f.peer), func(t *testing.T) {
			b := newBed(t, f.client, f.peer, "--hook", "tc") // a veth with a program at XDP gets none
			b.roundTrip(1)

			fd, err := b.client.Fd()
			check(t, err)
			defer unix.Close(fd)
			before := b.stats()
			check(t, measure.NewSender(fd, netip.AddrPort{}, turnlab.ChannelData(channel, payload)).Once(segments))
			for i := range segments {
				buf := make([]byte, 2048)
				check(t, b.peer.SetReadDeadline(time.Now().Add(wait)))
				n, from, err := b.peer.ReadFromUDPAddrPort(buf)
				if err != nil || string(buf[:n]) != string(payload) || from.Port() != b.client.Relayed.Port() {
					t.Fatalf("datagram %d: %d bytes from %v: %v\n%v", i, n, from, err, b.stats())
				}
			}
			b.declined(before, "to_peer", segments)

			file, err := b.peer.File()
			check(t, err)
			defer file.Close()
			before = b.stats()
			check(t, measure.NewSender(int(file.Fd()), b.client.Relayed, payload).Once(segments))
			for i := range segments {
				number, got, err := b.client.Receive(wait)
				if err != nil || number != channel || string(got) != string(payload) {
					t.Fatalf("channel data %d: %d bytes of channel %#x: %v\n%v", i, len(got), number, err, b.stats())
				}
			}
			b.declined(before, "to_client", segments)
		})
	}
}

// declined wants user space to have sent n datagrams, and the program none, since before.
func (b *bed) declined(before server.Stats, program string, n int) {
	b.Helper()
	after := b.stats()
	if after.UserSent-before.UserSent != uint64(n) || after.Packets(program, "sent") != before.Packets(program,
		"sent") {
		b.Errorf("want all %d datagrams in user space\nbefore: %v\nafter: %v", n, before, after)
	}
}
