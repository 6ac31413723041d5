package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/fastrelay/fastrelay-gen/internal/test/dissect"
	"github.com/fastrelay/fastrelay-gen/internal/test/turnlab"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// The cases that relays written by hand got wrong, one packet each, put on the cable as they are. Whatever the program
// declines has to reach the server untouched, so most of these packets arrive all the same, through user space.

// way is what becomes of a packet.
type way int

const (
	inKernel  way = iota // sent by the program
	inUser               // declined, and relayed by the server
	inNowhere            // declined, and of no use to the server either
	inVain               // sent by the program with a checksum as wrong as it came, so that the receiver drops it
)

func (w way) String() string { return [...]string{"the kernel", "user space", "nowhere", "in vain"}[w] }

// Offsets in the frames of this test, which carry no VLAN tag until tagged adds one.
const (
	offIP  = 14
	offUDP = 34 // IPv4 without options
	offU6  = 54 // after an IPv6 header
)

// sum is the internet checksum (RFC 1071).
func sum(b []byte) uint16 {
	var s uint32
	for i := 0; i+1 < len(b); i += 2 {
		s += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for s > 0xFFFF {
		s = s&0xFFFF + s>>16
	}
	return ^uint16(s)
}

// fixIP makes the checksum of an IPv4 header right again.
func fixIP(frame []byte) []byte {
	end := offIP + 4*int(frame[offIP]&0xF)
	binary.BigEndian.PutUint16(frame[offIP+10:], 0)
	binary.BigEndian.PutUint16(frame[offIP+10:], sum(frame[offIP:end]))
	return frame
}

// tagged puts VLAN tags in front of the network header.
func tagged(frame []byte, tags ...uint32) []byte {
	out := bytes.Clone(frame[:12])
	for _, t := range tags {
		out = binary.BigEndian.AppendUint32(out, t)
	}
	return append(out, frame[12:]...)
}

// options adds a timestamp option that no one fills in to an IPv4 header.
func options(frame []byte) []byte {
	out := bytes.Clone(frame[:offUDP])
	out = append(out, 1, 1, 1, 0) // three times no operation, end of options
	out = append(out, frame[offUDP:]...)
	out[offIP] = 0x46
	binary.BigEndian.PutUint16(out[offIP+2:], uint16(len(out)-offIP))
	return fixIP(out)
}

// fragments cuts an IPv4 datagram in two.
func fragments(frame []byte, at int) [][]byte {
	body := frame[offUDP:]
	var list [][]byte
	for i, part := range [][]byte{body[:at], body[at:]} {
		f := append(bytes.Clone(frame[:offUDP]), part...)
		binary.BigEndian.PutUint16(f[offIP+2:], uint16(20+len(part)))
		binary.BigEndian.PutUint16(f[offIP+4:], 0x1234) // identification
		flags := uint16(0x2000)                         // more fragments
		if i == 1 {
			flags = uint16(at / 8)
		}
		binary.BigEndian.PutUint16(f[offIP+6:], flags)
		list = append(list, fixIP(f))
	}
	return list
}

// oddity is a kind of packet, made from an ordinary one.
type oddity struct {
	name   string
	family int // of the packet as it comes; 0: both
	make   func(frame []byte) [][]byte
	way    way
	cut    int // bytes that the payload has lost when it arrives
}

func one(f func(frame []byte) []byte) func([]byte) [][]byte {
	return func(frame []byte) [][]byte { return [][]byte{f(frame)} }
}

var oddities = []oddity{
	{"ordinary", 0, one(func(f []byte) []byte { return f }), inKernel, 0},
	{"no UDP checksum", 4, one(func(f []byte) []byte { f[offUDP+6], f[offUDP+7] = 0, 0; return f }), inKernel, 0},
	{"no UDP checksum over IPv6", 6, one(func(f []byte) []byte { f[offU6+6], f[offU6+7] = 0, 0; return f }),
		inNowhere, 0},
	{"bytes after the IP datagram", 0, one(func(f []byte) []byte { return append(f, "trailing bytes"...) }),
		inKernel, 0},
	{"IP options", 4, one(options), inUser, 0},
	{"two fragments", 4, func(f []byte) [][]byte { return fragments(f, 64) }, inUser, 0},
	{"two fragments, the first too short for a channel number", 4, func(f []byte) [][]byte { return fragments(f, 8) },
		inUser, 0},
	{"the later fragment alone", 4, func(f []byte) [][]byte { return fragments(f, 64)[1:] }, inNowhere, 0},
	{"priority tag in the metadata", 0, one(func(f []byte) []byte { return tagged(f, 0x81002000) }), inUser, 0},
	{"another VLAN's", 0, one(func(f []byte) []byte { return tagged(f, 0x81000007) }), inNowhere, 0},
	{"two tags, one of them in the frame", 0, one(func(f []byte) []byte { return tagged(f, 0x88A80007, 0x81000007) }),
		inNowhere, 0},
	{"UDP length beyond the datagram", 4, one(func(f []byte) []byte {
		binary.BigEndian.PutUint16(f[offUDP+4:], binary.BigEndian.Uint16(f[offUDP+4:])+1)
		f[offUDP+6], f[offUDP+7] = 0, 0
		return f
	}), inNowhere, 0},
	{"IP length beyond the frame", 4, one(func(f []byte) []byte {
		binary.BigEndian.PutUint16(f[offIP+2:], uint16(len(f)))
		return fixIP(f)
	}), inNowhere, 0},
	{"IPv4 header shorter than there is", 4, one(func(f []byte) []byte { f[offIP] = 0x44; return fixIP(f) }),
		inNowhere, 0},
	{"IPv4 header checksum wrong", 4, one(func(f []byte) []byte { f[offIP+10] ^= 1; return f }), inNowhere, 0},
	{"UDP checksum wrong", 4, one(func(f []byte) []byte { f[offUDP+6] ^= 1; return f }), inVain, 0},
	{"for another host", 0, one(func(f []byte) []byte { f[5] ^= 1; return f }), inNowhere, 0},
	{"a broadcast frame", 0, one(func(f []byte) []byte { copy(f, "\xff\xff\xff\xff\xff\xff"); return f }), inUser, 0},
	{"a multicast frame", 0, one(func(f []byte) []byte { copy(f, "\x01\x00\x5e\x00\x00\x01"); return f }), inUser, 0},
	{"not IP at all", 0, one(func(f []byte) []byte { f[12], f[13] = 0x88, 0xB5; return f }), inNowhere, 0},
	{"the other IP version than the EtherType", 4, one(func(f []byte) []byte { f[12], f[13] = 0x86, 0xDD; return f }),
		inNowhere, 0},
	{"TCP", 4, one(func(f []byte) []byte { f[offIP+9] = 6; return fixIP(f) }), inNowhere, 0},
	{"cut short", 0, one(func(f []byte) []byte { return f[:40] }), inNowhere, 0},
}

// oddBed is a bed that injects packets.
type oddBed struct {
	*bed
	second *second
}

// TestOddPackets sends each oddity both ways.
func TestOddPackets(t *testing.T) {
	needs.Root(t)
	for _, f := range []struct{ client, peer int }{{4, 4}, {6, 6}} {
		b := newBed(t, f.client, f.peer)
		b.roundTrip(1)
		s := b.second()
		for _, o := range oddities {
			if o.family != 0 && o.family != f.client {
				continue
			}
			t.Run(fmt.Sprintf("IPv%d, %s", f.client, o.name), func(t *testing.T) {
				ob := &oddBed{
					bed: &bed{T: t, line: b.line, server: b.server, client: b.client, peer: b.peer}, second: s,
				}
				payload := turnlab.Payload(150)
				ob.toPeer(o, payload, o.make(ob.frameToPeer(turnlab.ChannelData(channel, payload))))
				ob.toClient(o, payload, o.make(ob.frameToClient(payload)))
			})
		}
	}
}

func (b *oddBed) frameToPeer(data []byte) []byte {
	b.Helper()
	server := at(b.line.RelayInAddr.V4, turnPort)
	if b.client.Addr().Addr().Is6() {
		server = at(b.line.RelayInAddr.V6, turnPort)
	}
	f, err := turnlab.UDPFrame(b.line.ClientDev.MAC, b.line.RelayIn.MAC, b.client.Addr(), server, data)
	check(b.T, err)
	return mayFragment(f)
}

func (b *oddBed) frameToClient(payload []byte) []byte {
	b.Helper()
	f, err := turnlab.UDPFrame(b.line.PeerDev.MAC, b.line.RelayOut.MAC, addrOf(b.peer), b.client.Relayed, payload)
	check(b.T, err)
	return mayFragment(f)
}

// mayFragment clears an IPv4 header's don't-fragment flag.
func mayFragment(f []byte) []byte {
	if f[12] == 0x08 {
		f[offIP+6] = 0
		fixIP(f)
	}
	return f
}

// toPeer injects frames on the client's side and wants the payload at the peer by the way that is expected.
func (b *oddBed) toPeer(o oddity, payload []byte, frames [][]byte) {
	b.Helper()
	b.odd("to_peer", o, b.line.ClientDev, b.line.PeerDev, frames, func() ([]byte, error) {
		buf := make([]byte, 2048)
		check(b.T, b.peer.SetReadDeadline(time.Now().Add(wait)))
		n, err := b.peer.Read(buf)
		return buf[:n], err
	}, b.peer, payload)
}

func (b *oddBed) toClient(o oddity, payload []byte, frames [][]byte) {
	b.Helper()
	b.odd("to_client", o, b.line.PeerDev, b.line.ClientDev, frames, func() ([]byte, error) {
		_, got, err := b.client.Receive(wait)
		return got, err
	}, b.client.Conn, payload)
}

func (b *oddBed) odd(program string, o oddity, in, out *testnet.Dev, frames [][]byte, receive func() ([]byte, error),
	receiver *net.UDPConn, payload []byte) {
	b.Helper()
	capture, err := out.Capture()
	check(b.T, err)
	before := b.stats()
	for _, f := range frames {
		check(b.T, in.Inject(f))
	}
	arrived := o.way == inKernel || o.way == inUser
	if arrived {
		got, err := receive()
		if err != nil {
			b.Fatalf("%s: %v, expected through %v\nbefore: %v\nafter: %v", program, err, o.way, before, b.stats())
		}
		if want := payload[:len(payload)-o.cut]; !bytes.Equal(got, want) {
			b.Errorf("%s: %d bytes arrived, want %d: % x", program, len(got), len(want), got)
		}
	}
	after := b.stats()
	sent, relayed := after.Packets(program, "sent")-before.Packets(program, "sent"), after.UserSent-before.UserSent
	switch {
	case o.way == inKernel && (sent != 1 || relayed != 0), o.way == inUser && (sent != 0 || relayed != 1):
		b.Errorf("%s: the kernel sent %d, user space %d; want it to go through %v\nbefore: %v\nafter: %v", program,
			sent, relayed, o.way, before, after)
	}
	if !arrived {
		roundTrip(b.T, b.second.client, channel, b.second.peer, 5)
		if n := drain(receiver); n > 0 {
			b.Errorf("%s: it arrived, but should not have been forwarded", program)
		}
		want := uint64(1) // the round trip
		if o.way == inVain {
			want++
		}
		if end := b.stats(); end.Packets(program, "sent")-before.Packets(program, "sent") != want {
			b.Errorf("%s: the kernel sent %d packets, want %d\nbefore: %v\nafter: %v", program,
				end.Packets(program, "sent")-before.Packets(program, "sent"), want, before, end)
		}
	}
	captured, err := capture.Stop()
	check(b.T, err)
	wrong := 0
	for _, f := range captured {
		if !f.Outgoing {
			if err := dissect.Check(f); err != nil {
				wrong++
				if o.way != inVain {
					b.Errorf("%s: %v", program, err)
				}
			}
		}
	}
	if o.way == inVain && wrong != 1 {
		b.Errorf("%s: %d packets came out with wrong checksums, want the one that went in so", program, wrong)
	}
}

// Padding of channel data, and lengths that disagree with what there is.
func TestChannelDataLengths(t *testing.T) {
	needs.Root(t)
	b := newBed(t, 4, 4)
	b.roundTrip(1)
	ob := &oddBed{bed: b, second: b.second()}
	payload := turnlab.Payload(150)
	data := turnlab.ChannelData(channel, payload)
	length := func(n uint16) []byte {
		d := bytes.Clone(data)
		binary.BigEndian.PutUint16(d[2:], n)
		return d
	}
	for _, c := range []struct {
		name string
		data []byte
		way  way
		cut  int
	}{
		{"no padding", data, inKernel, 0},
		{"two bytes of padding", append(bytes.Clone(data), 1, 2), inKernel, 0},
		{"three bytes of padding", append(bytes.Clone(data), 1, 2, 3), inKernel, 0},
		{"four bytes too many", append(bytes.Clone(data), 1, 2, 3, 4), inUser, 0},
		{"a length that is too small", length(100), inUser, 50},
		{"a length that is too large", length(151), inNowhere, 0},
		{"no length", data[:3], inNowhere, 0},
		{"a channel that isn't bound", append([]byte{0x40, 0x02}, data[2:]...), inNowhere, 0},
		{"a number that can't be a channel's", append([]byte{0x80, 0x01}, data[2:]...), inNowhere, 0},
	} {
		ob.toPeer(oddity{name: c.name, way: c.way, cut: c.cut}, payload, [][]byte{ob.frameToPeer(c.data)})
	}
}

// A computed UDP checksum of 0 is sent as FFFF, since 0 means none (RFC 768).
func TestZeroChecksum(t *testing.T) {
	needs.Root(t)
	for _, f := range families {
		t.Run(fmt.Sprintf("IPv%d to IPv%d", f.client, f.peer), func(t *testing.T) {
			b := newBed(t, f.client, f.peer)
			b.roundTrip(1)
			ob := &oddBed{bed: b}
			// What goes out carries the complement of its sum; a word of the payload with that value makes
			// the sum FFFF.
			payload := append(make([]byte, 2), turnlab.Payload(100)...)
			checksum := func(frame []byte) uint16 {
				udp, _, ok := dissect.UDP(testnet.Frame{Data: frame})
				if !ok {
					t.Fatal("no UDP header")
				}
				return udp.Checksum
			}
			for _, c := range []struct {
				program string
				out     *testnet.Dev
				sent    func() []byte // what the relay sends
				inject  func() error
			}{
				{"to_peer", b.line.PeerDev, func() []byte {
					f, err := turnlab.UDPFrame(b.line.RelayOut.MAC, b.line.PeerDev.MAC, b.client.Relayed,
						addrOf(b.peer), payload)
					check(t, err)
					return f
				}, func() error {
					return b.line.ClientDev.Inject(ob.frameToPeer(turnlab.ChannelData(channel, payload)))
				}},
				{"to_client", b.line.ClientDev, func() []byte {
					f, err := turnlab.UDPFrame(b.line.RelayIn.MAC, b.line.ClientDev.MAC,
						at(b.line.RelayInAddr.Of(f.client), turnPort), b.client.Addr(),
						turnlab.ChannelData(channel, payload))
					check(t, err)
					return f
				}, func() error { return b.line.PeerDev.Inject(ob.frameToClient(payload)) }},
			} {
				binary.BigEndian.PutUint16(payload, 0)
				binary.BigEndian.PutUint16(payload, checksum(c.sent()))
				want := c.sent()
				if checksum(want) != 0xFFFF {
					t.Fatalf("%s: the packet's checksum is %#x, so it tests nothing", c.program, checksum(want))
				}
				capture, err := c.out.Capture()
				check(t, err)
				before := b.stats()
				check(t, c.inject())
				check(t, testnet.Until(wait, c.program+": the packet with checksum FFFF", func() bool {
					for _, f := range capture.Frames() {
						// from the hop limit or the checksum of the IP header on
						if bytes.Equal(f.Data[14+8:], want[14+8:]) {
							return dissect.Check(f) == nil
						}
					}
					return false
				}))
				_, err = capture.Stop()
				check(t, err)
				if n := b.stats().Packets(c.program, "sent") - before.Packets(c.program, "sent"); n != 1 {
					t.Errorf("%s: the kernel sent %d packets, want 1", c.program, n)
				}
			}
		})
	}
}

// A route that leads nowhere, and a device whose packets must be smaller: the program declines before it writes, user
// space deals with it as ever, and the kernel's path is taken again when the way is free.
func TestRoutes(t *testing.T) {
	needs.Root(t)
	for _, family := range []int{4, 6} {
		peer := []string{"", "", "", "", "203.0.113.2/32", "", "2001:db8:2::2/128"}[family]
		for _, kind := range []string{"blackhole", "unreachable", "prohibit"} {
			t.Run(fmt.Sprintf("IPv%d, %s", family, kind), func(t *testing.T) {
				b := newBed(t, family, family)
				b.roundTrip(1)
				capture, err := b.line.PeerDev.Capture()
				check(t, err)
				check(t, b.line.Relay.Run("ip", "route", "add", kind, peer))
				before := b.stats()
				check(t, testnet.Until(wait, "packets pass to the stack", func() bool {
					p, _ := sent(b.stats())
					check(t, b.client.Send(channel, []byte("nowhere to go")))
					q, _ := sent(b.stats())
					return p == q
				}))
				drain(b.peer)
				check(t, b.client.Send(channel, []byte("nowhere to go")))
				// The server tried to send it, and got the route's error.
				check(t, testnet.Until(wait, "the server has it", func() bool {
					return b.stats().UserReceived > before.UserReceived+1
				}))
				if n := drain(b.peer); n > 0 {
					t.Errorf("%d packets arrived in spite of the route", n)
				}
				check(t, b.line.Relay.Run("ip", "route", "del", kind, peer))
				check(t, testnet.Until(wait, "packets take the kernel's path again", func() bool {
					p, _ := sent(b.stats())
					if exchange(b.client, channel, b.peer, 100) != nil {
						return false
					}
					q, _ := sent(b.stats())
					return q > p
				}))
				frames, err := capture.Stop()
				check(t, err)
				for _, f := range frames {
					if err := dissect.Check(f); err != nil && !f.Outgoing {
						t.Error(err)
					}
				}
			})
		}
	}
}

func TestMTU(t *testing.T) {
	needs.Root(t)
	for _, f := range families {
		t.Run(fmt.Sprintf("IPv%d to IPv%d", f.client, f.peer), func(t *testing.T) {
			b := newBed(t, f.client, f.peer)
			b.roundTrip(1)
			check(t, b.line.RelayOut.SetMTU(1300))
			headers := map[int]int{4: 28, 6: 48}[f.peer]
			check(t, testnet.Until(wait, "the smaller size is known", func() bool {
				p, _ := sent(b.stats())
				check(t, b.client.Send(channel, make([]byte, 1300-headers+1)))
				q, _ := sent(b.stats())
				return p == q
			}))
			drain(b.peer)
			for _, c := range []struct {
				size int
				way  way
			}{{1300 - headers, inKernel}, {1300 - headers + 1, inUser}} {
				p, _ := sent(b.stats())
				payload := turnlab.Payload(c.size)
				check(t, b.client.Send(channel, payload))
				buf := make([]byte, 2048)
				check(t, b.peer.SetReadDeadline(time.Now().Add(wait)))
				n, err := b.peer.Read(buf)
				// a late one of those that asked for the size
				for err == nil && bytes.Equal(buf[:n], make([]byte, 1300-headers+1)) {
					n, err = b.peer.Read(buf)
				}
				if err != nil || !bytes.Equal(buf[:n], payload) {
					t.Fatalf("%d bytes: %d arrived: %v\n%v", c.size, n, err, b.stats())
				}
				if q, _ := sent(b.stats()); (q-p == 1) != (c.way == inKernel) {
					t.Errorf("%d bytes: the kernel sent %d, want %v to send it", c.size, q-p, c.way)
				}
			}
		})
	}
}
