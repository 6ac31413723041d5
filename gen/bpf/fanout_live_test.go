//go:build linux

package bpf_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/test/dissect"
	"github.com/fastrelay/fastrelay-gen/internal/test/offloads"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// Copies of real packets on real devices: checksums are partial, or summed up by the device, and
// the kernel refuses clones.

// fan is the loaded relay of testdata/fanout.cue.
type fan struct{ turn }

func loadFan(t *testing.T, u *unit) *fan {
	t.Helper()
	r := &fan{turn{u.load(t), u.plan}}
	put(t, r.Maps["fr_lease"], uint32(0), append(binary.LittleEndian.AppendUint64(nil, math.MaxUint64),
		make([]byte, 32)...))
	return r
}

// values are the members of a key or a row that are not 0: integers, netip.AddrPort, []byte.
type values map[string]any

// encode lays members out.
func encode(t *testing.T, s *ir.Struct, vs values) []byte {
	t.Helper()
	b, used := make([]byte, s.Size), 0
	for _, m := range s.Members {
		v, given := vs[m.Name]
		if !given {
			continue
		}
		used++
		switch v := v.(type) {
		case int:
			copy(b[m.Off:m.Off+m.Type.Size], binary.LittleEndian.AppendUint64(nil, uint64(v)))
		case netip.AddrPort:
			copy(b[m.Off:], endpoint(v))
		case []byte:
			copy(b[m.Off:], v)
		default:
			t.Fatalf("member %q: %T", m.Name, v)
		}
	}
	if used != len(vs) {
		t.Fatalf("%d of %v are no members", len(vs)-used, vs)
	}
	return b
}

// open opens a group with receivers, whose identities count from the first of the kind.
func (r *fan) openGroup(t *testing.T, kind string, key values, receivers ...values) {
	t.Helper()
	for _, g := range r.plan.Groups {
		if g.Name != kind {
			continue
		}
		list := binary.LittleEndian.AppendUint32(nil, uint32(len(receivers)))
		for i, v := range receivers {
			v["receiver"] = g.Base + i
			put(t, r.Maps["rcv_"+kind], uint32(i), encode(t, &g.Receivers.Value, v))
			list = binary.LittleEndian.AppendUint32(list, uint32(i))
		}
		inner, err := ebpf.NewMap(&ebpf.MapSpec{
			Type: ebpf.Array, KeySize: 4, ValueSize: uint32(4 + 4*g.Max), MaxEntries: 1,
		})
		if err != nil {
			t.Fatal(err)
		}
		defer inner.Close()
		put(t, inner, uint32(0), append(list, make([]byte, 4+4*g.Max-len(list))...))
		put(t, r.Maps["grp_"+kind], encode(t, &g.Key, key), uint32(inner.FD()))
		return
	}
	t.Fatalf("no group %q", kind)
}

// credit is an entry of fr_credits.
type credit struct{ Limit, Spent, Burst uint64 }

func (r *fan) setCredit(t *testing.T, index int, c credit) {
	t.Helper()
	b := make([]byte, r.Maps["fr_credits"].ValueSize())
	binary.LittleEndian.PutUint64(b, c.Limit)
	binary.LittleEndian.PutUint64(b[8:], c.Spent)
	binary.LittleEndian.PutUint64(b[16:], c.Burst)
	put(t, r.Maps["fr_credits"], uint32(index), b)
}

// spent returns what was spent of a credit, and how many packets it refused by level.
func (r *fan) spent(t *testing.T, index int) (spent uint64, refused []uint64) {
	t.Helper()
	b, err := r.Maps["fr_credits"].LookupBytes(uint32(index))
	if err != nil {
		t.Fatal(err)
	}
	for off := 24; off < len(b); off += 8 {
		refused = append(refused, binary.LittleEndian.Uint64(b[off:]))
	}
	return binary.LittleEndian.Uint64(b[8:]), refused
}

// usage is what fr_receivers has of a receiver.
type usage struct{ packets, bytes, declined, failed uint64 }

func (r *fan) usage(t *testing.T, id int) (u usage) {
	t.Helper()
	var perCPU [][4]uint64
	if err := r.Maps["fr_receivers"].Lookup(uint32(id), &perCPU); err != nil {
		t.Fatal(err)
	}
	for _, c := range perCPU {
		u.packets, u.bytes, u.declined, u.failed = u.packets+c[0], u.bytes+c[1], u.declined+c[2], u.failed+c[3]
	}
	return u
}

// media is a datagram of the relay: its level, number and stream, a list of elements and a text.
func media(level byte, number, stream uint32, text []byte) []byte {
	b := append([]byte{1, level<<6 | 1<<4}, binary.BigEndian.AppendUint32(nil, number)...)
	b = append(b, 4, 0x51, 7, 9, 0) // two bytes under identifier 5, and padding
	b = binary.BigEndian.AppendUint32(b, 2<<30|stream)
	return append(b, text...)
}

func TestCopies(t *testing.T) {
	needs.Root(t)
	u := compile(t, "testdata/fanout.cue")
	for _, family := range []int{4, 6} {
		for _, offload := range [][2]bool{{true, true}, {true, false}, {false, true}, {false, false}} {
			t.Run(fmt.Sprintf("IPv%d, sender %v, relay %v", family, offload[0], offload[1]), func(t *testing.T) {
				line, err := testnet.Start(t).Line()
				if err != nil {
					t.Fatal(err)
				}
				for dev, on := range map[*testnet.Dev]bool{line.ClientDev: offload[0], line.RelayOut: offload[1]} {
					if err := offloads.TxChecksum(dev, on); err != nil {
						t.Fatal(err)
					}
				}
				copies(t, u, line, line.RelayIn, family, line.ClientAddr.Of(family), line.RelayInAddr.Of(family),
					func() {}, func(capture *testnet.Capture) {
						for _, f := range arrived(capture) {
							if err := dissect.Check(f); err != nil {
								t.Errorf("%v\n%x", err, f.Data)
							}
							if f.Partial && !offload[1] {
								t.Error("a checksum is partial after a device without offload")
							}
						}
					})
			})
		}
	}
}

// The sum that a device made stays right in every copy, and in the packet that came.
func TestCopiesOfCompleteChecksums(t *testing.T) {
	needs.Root(t)
	u := compile(t, "testdata/fanout.cue")
	for family, addrs := range map[int][2]string{
		4: {"198.51.100.2", "198.51.100.1"}, 6: {"2001:db8:9::2", "2001:db8:9::1"},
	} {
		t.Run(fmt.Sprintf("IPv%d", family), func(t *testing.T) {
			line, relayIn, _ := tunnel(t)
			came, err := relayIn.Capture()
			if err != nil {
				t.Fatal(err)
			}
			defer came.Stop()
			sums := watchSums(t, line.PeerDev)
			var left func(*testing.T, ...uint64) watched
			compare := func(what string, w watched, frames []testnet.Frame, before int) {
				t.Helper()
				frame := frames[len(frames)-1-before].Data
				if w.sum < 0 {
					t.Fatalf("%s: the packet came without a sum (%d): this test shows nothing", what, w.sum)
				}
				if want := sumOf(frame[14:]); fold(uint64(w.sum)) != want {
					t.Errorf("%s: the device's sum is %#04x, the packet's %#04x", what, fold(uint64(w.sum)), want)
				}
			}
			n := uint64(0)
			copies(t, u, line, relayIn, family, netip.MustParseAddr(addrs[0]), netip.MustParseAddr(addrs[1]), func() {
				left = watchSums(t, relayIn) // after the relay's program
			}, func(capture *testnet.Capture) {
				n++
				if err := testnet.Until(2*time.Second, "all sums", func() bool {
					return sums(t).count >= 3*n && left(t).count >= n && len(arrived(came)) >= int(n)
				}); err != nil {
					t.Fatal(err)
				}
				for i := range 3 {
					compare(fmt.Sprintf("copy %d of packet %d", 3-i, n), sums(t, uint64(i)), arrived(capture), i)
				}
				compare(fmt.Sprintf("packet %d", n), left(t), arrived(came), 0)
			})
		})
	}
}

// copies sends datagrams from a client through the relay at a device of it, to receivers of every kind, and looks at
// what arrives at each of them and at the relay's own socket; attached runs when the program is, and each looks at the
// frames after each datagram.
func copies(t *testing.T, u *unit, line *testnet.Line, in *testnet.Dev, family int, from, to netip.Addr,
	attached func(), each func(*testnet.Capture)) {
	t.Helper()
	r := loadFan(t, u)
	client, server := netip.AddrPortFrom(from, 40001), netip.AddrPortFrom(to, 5004)
	local := netip.AddrPortFrom(line.RelayOutAddr.Of(family), 5004)
	remote := func(i int) netip.AddrPort { return netip.AddrPortFrom(line.PeerAddr.Of(family), uint16(7000+i)) }
	direct := hop(ir.HopDirect, line.RelayOut, line.PeerDev)
	receiver := func(i, mode int) values {
		return values{
			"local": local, "remote": remote(i), "mode": mode, "hop_remote": direct, "next": 1 + i, "names": 1,
		}
	}
	translated, plain, numbered, off, unresolved := receiver(0, 1), receiver(1, 3), receiver(2, 2), receiver(3, 0),
		receiver(4, 3)
	translated["base"], translated["credit"], translated["rate"] = 1000, 1, 5
	unresolved["hop_remote"] = hop(ir.HopNeighbour, line.RelayOut, line.PeerDev)
	for i := 1; i <= 4; i++ {
		r.setCredit(t, i, credit{Limit: math.MaxUint64 / 2})
	}
	r.setCredit(t, 5, credit{Limit: 1 << 32, Burst: 1 << 32})
	r.openGroup(t, "viewers", values{"port": 5004, "kind": 1}, translated, plain, numbered, off, unresolved)
	capture, err := line.PeerDev.Capture()
	if err != nil {
		t.Fatal(err)
	}
	defer capture.Stop()
	r.attach(t, "view", in)
	attached()
	sender, atServer := listen(t, line.Client, client), listen(t, line.Relay, server)
	peers := []*net.UDPConn{
		listen(t, line.Peer, remote(0)), listen(t, line.Peer, remote(1)), listen(t, line.Peer, remote(2)),
	}
	sizes := []int{0, 1, 2, 3, 33, 120, 1200, 1201}
	for n, size := range sizes {
		text := make([]byte, size)
		for i := range text {
			text[i] = byte(i*7 + size)
		}
		sent := media(byte(n%4), uint32(n), 5, text)
		if _, err := sender.WriteToUDPAddrPort(sent, server); err != nil {
			t.Fatal(err)
		}
		// by then all copies are made, also on a processor that comes to it late
		expect(t, atServer, client, sent)
		// what was allocated last: always the first
		stream := binary.LittleEndian.Uint32(mustLookup(t, r.Maps["fr_shared"], uint32(1))) - 4
		flags := bytes.Clone(sent)
		flags[1] |= byte(n & 7)
		expect(t, peers[0], local, media(byte(n%4), uint32(n+1000), stream, text))
		expect(t, peers[1], local, sent)
		expect(t, peers[2], local, flags)
		if err := testnet.Until(2*time.Second, "three copies", func() bool {
			return len(arrived(capture)) >= 3*(n+1)
		}); err != nil {
			t.Fatal(err)
		}
		each(capture)
	}
	want := map[string]uint64{
		"pass": uint64(len(sizes)), "copy": uint64(3 * len(sizes)), "off": uint64(len(sizes)),
		"no_neighbour": uint64(len(sizes)),
	}
	got := r.counts(t, "view")
	for reason, n := range want {
		if got[reason] != n {
			t.Errorf("%s: %d, want %d: %v", reason, got[reason], n, got)
		}
	}
	if got := r.usage(t, 1); got.packets != uint64(len(sizes)) || got.declined != 0 {
		t.Errorf("the first receiver: %+v", got)
	}
	if got := r.usage(t, 4); got.packets != 0 || got.declined != uint64(len(sizes)) || got.failed != 0 {
		t.Errorf("the one that is off: %+v", got)
	}
}

func mustLookup(t *testing.T, m *ebpf.Map, key any) []byte {
	t.Helper()
	b, err := m.LookupBytes(key)
	if err != nil || b == nil {
		t.Fatalf("%v: %v", key, err)
	}
	return b
}

// expect waits for a datagram.
func expect(t *testing.T, at *net.UDPConn, from netip.AddrPort, want []byte) {
	t.Helper()
	buf := make([]byte, 2048)
	if err := at.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	n, sender, err := at.ReadFromUDPAddrPort(buf)
	if err != nil {
		t.Fatalf("%v: %v", at.LocalAddr(), err)
	}
	if sender = netip.AddrPortFrom(sender.Addr().Unmap(), sender.Port()); sender != from {
		t.Errorf("%v: %d bytes came from %v, want %v", at.LocalAddr(), n, sender, from)
	}
	if !bytes.Equal(buf[:n], want) {
		t.Errorf("%v: it came\n%x, want\n%x", at.LocalAddr(), buf[:n], want)
	}
}
