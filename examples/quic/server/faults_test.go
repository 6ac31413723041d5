package server

import (
	"encoding/binary"
	"net/netip"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/examples/quic/quicrelay"
	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go"
	"github.com/fastrelay/fastrelay-gen/internal/test/offloads"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// declined counts the packets, and the copies, that the kernel left to user space for a reason.
func (b *bed) declined(reason string) (n uint64) {
	b.Helper()
	for _, p := range b.server.relay.Runtime().Programs() {
		counts, err := p.Counts()
		b.check(err)
		for i, c := range counts {
			if p.Desc().Reason(i).Name == reason {
				n += c.Packets
			}
		}
	}
	return n
}

// fill has the kernel write events until the ring is full. They are about ACKs of a connection that there isn't.
func (b *bed) fill() {
	b.Helper()
	relay, from, dcid := b.server.relay, netip.MustParseAddrPort("10.2.0.99:9"), [8]byte{0xff, 1, 2, 3, 4, 5, 6, 7}
	key := quicrelay.ConnectionsKey{Remote: from, Local: address, DCID: dcid}
	b.check(relay.Connections.Put(key, quicrelay.ConnectionsRow{Subscriber: 1 << 31}))
	ack := append([]byte{0x41}, dcid[:]...)
	ack = append(ack, 0, 1, 2, 5, 0, 0, 3) // its number, and an ACK frame
	ack = append(ack, make([]byte, 16)...)
	frame := make([]byte, 14, 100) // of Ethernet
	binary.BigEndian.PutUint16(frame[12:], unix.ETH_P_IP)
	frame = append(frame, 0x45, 0, 0, byte(28+len(ack)), 0, 0, 0x40, 0, 64, unix.IPPROTO_UDP, 0, 0)
	frame = append(append(frame, from.Addr().AsSlice()...), address.Addr().AsSlice()...)
	sum := uint32(0)
	for i := 14; i < 34; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(frame[i:]))
	}
	binary.BigEndian.PutUint16(frame[24:], ^uint16(sum+sum>>16))
	frame = binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(frame, from.Port()), address.Port())
	frame = append(binary.BigEndian.AppendUint16(frame, uint16(8+len(ack))), 0, 0) // without a checksum
	frame = append(frame, ack...)
	full := func() uint64 {
		n, err := relay.Acks.Count(quicrelay.AcksRingFull)
		b.check(err)
		return n.Packets
	}
	for before := full(); full() == before; {
		_, err := relay.Acks.Kernel().Run(&ebpf.RunOptions{Data: frame, Repeat: 10_000})
		b.check(err)
	}
}

// hold stops user space until the kernel has left something to it for a reason.
func (b *bed) hold(reason string, prepare func()) {
	b.Helper()
	b.server.reading.Lock()
	prepare()
	before := b.declined(reason)
	go func() {
		defer b.server.reading.Unlock()
		if err := testnet.Until(time.Second, reason, func() bool { return b.declined(reason) > before }); err != nil {
			b.Error(err)
		}
	}()
}

// forever keeps data for longer than any machine stalls. So a stream that is reset, or isn't whole in the end, was
// forgotten, and not only late.
func forever(c *Config) { c.Keep = time.Hour }

// TestRingFull has no room in the ring of events for a while: the kernel sends nothing then, and user space sends all.
// When the ring is empty, the kernel goes on.
func TestRingFull(t *testing.T) {
	b := newBed(t, options{in: delayed(), out: delayed(), change: forever})
	viewers := []*viewer{b.subscribe(true, wide()), b.subscribe(true, wide()), b.subscribe(false, wide())}
	p := plan{streams: 80, objects: 10, rate: 1000}
	p.then = func(i int) {
		if i == p.streams/2 {
			for _, v := range viewers {
				b.await(v, i+1) // so that nothing waits while the ring is filled
			}
			b.hold("ring_full", b.fill)
		}
	}
	publisher := b.publish(true, nil)
	b.play(publisher, p)
	if n := b.account(viewers, p); n > 0 {
		t.Errorf("%d streams were reset", n)
	}
	before := b.server.Stats()[0].Subscribers
	more := plan{streams: 20, objects: 10, rate: 1000, first: p.streams}
	b.play(publisher, more)
	p.streams += more.streams
	if n := b.account(viewers, p); n > 0 {
		t.Errorf("%d streams were reset after that", n)
	}
	for i, s := range b.server.Stats()[0].Subscribers[:2] {
		if before[i].UserBytes == 0 || s.KernelBytes == before[i].KernelBytes {
			t.Errorf("subscriber %d: user space or the kernel has sent nothing: %+v, then %+v", i, before[i], s)
		}
	}
}

// scarce are subscribers that allow little, and the kernel's reason when they have no credit any more.
var scarce = []struct {
	name, reason string
	objects      int // in a stream
	change       func(*quic.Config)
}{
	{"stream IDs", "no_stream_id", 1, func(c *quic.Config) {
		c.MaxIncomingUniStreams = 8 * int64(ebpf.MustPossibleCPU())
	}},
	{"data", "refused_data", 20, func(c *quic.Config) {
		c.InitialConnectionReceiveWindow, c.MaxConnectionReceiveWindow = 290_000, 290_000
	}},
}

// TestStalled stops user space until the kernel has no credit any more. What the kernel couldn't send comes
// afterwards.
func TestStalled(t *testing.T) {
	for _, s := range scarce {
		t.Run(s.name, func(t *testing.T) {
			b := newBed(t, options{in: delayed(), out: delayed(), change: forever})
			config := wide()
			s.change(config)
			viewers := []*viewer{b.subscribe(true, wide()), b.subscribe(true, config), b.subscribe(false, wide())}
			p := plan{streams: 600 / s.objects, objects: s.objects, rate: 1000}
			p.then = func(i int) {
				if i == p.streams/3 {
					b.hold(s.reason, func() {})
				}
			}
			b.play(b.publish(true, nil), p)
			if n := b.account(viewers, p); n > 0 {
				t.Errorf("%d streams were reset", n)
			}
		})
	}
}

// TestUnread has subscribers that read nothing for so long that streams are dropped, some of them before there is an ID
// for them. Then they read, and learn of each.
func TestUnread(t *testing.T) {
	for _, s := range scarce {
		t.Run(s.name, func(t *testing.T) {
			b := newBed(t, options{in: delayed(), out: delayed()})
			config := wide()
			s.change(config)
			viewers := []*viewer{b.viewer(b.socket(b.users), true, config), b.viewer(b.socket(b.users), false, config)}
			p := plan{streams: 600 / s.objects, objects: s.objects, rate: 1000}
			b.play(b.publish(true, nil), p)
			b.check(testnet.Until(5*time.Second, "nothing waits", func() bool {
				for _, u := range b.server.Stats()[0].Subscribers {
					if u.KernelBytes+u.UserBytes+u.DroppedBytes != uint64(p.streams*p.objects*size) {
						return false
					}
				}
				return true
			}))
			if b.declined(s.reason) == 0 {
				t.Errorf("there was always credit for the kernel")
			}
			for _, v := range viewers {
				go v.run(b.ctx)
			}
			if n := b.account(viewers, p); n == 0 {
				t.Error("no stream was reset")
			}
		})
	}
}

// TestSegments has a publisher whose kernel leaves it to the network to segment what it sends: the relay's device gets
// several datagrams in one packet, which passes to the stack. User space forwards them.
func TestSegments(t *testing.T) {
	b := newBed(t, options{in: delayed(), out: delayed()})
	b.check(offloads.Segmentation(b.in.B, true))
	viewers := []*viewer{b.subscribe(true, wide()), b.subscribe(false, wide())}
	c := b.publish(true, nil)
	p := plan{streams: 20, objects: 20}
	for i := range p.streams {
		out, err := c.OpenUniStreamSync(b.ctx)
		b.check(err)
		_, err = out.Write(content(uint64(i), p.objects*size)) // at once
		b.check(err)
		b.check(out.Close())
	}
	if n := b.account(viewers, p); n > 0 {
		t.Errorf("%d streams were reset", n)
	}
	if b.declined("gso_packet") == 0 {
		t.Error("no packet had several datagrams")
	}
}

// TestNoMerging checks that the server's socket takes no merged datagrams.
func TestNoMerging(t *testing.T) {
	b := newBed(t, options{})
	raw, err := b.server.socket.SyscallConn()
	b.check(err)
	b.check(raw.Control(func(fd uintptr) {
		if on, err := unix.GetsockoptInt(int(fd), unix.IPPROTO_UDP, unix.UDP_GRO); err != nil || on != 0 {
			t.Errorf("UDP_GRO is %d: %v", on, err)
		}
	}))
}
