package sim_test

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/sim"
)

var neighbour = sim.Hop{
	Ifindex: 3, MTU: 1500, State: ir.HopDirect, Dst: [6]byte{2, 0, 0, 0, 0, 9}, Src: [6]byte{2, 0, 0, 0, 0, 8},
}

// openTurn returns a relay with one channel open, in slot 2.
func openTurn(t *testing.T, tp *turnPlan) *sim.Relay {
	t.Helper()
	r, err := sim.New(tp.plan, nil)
	if err != nil {
		t.Fatal(err)
	}
	key := append(endpointBytes("198.51.100.7:40001"), endpointBytes("192.0.2.1:3478")...)
	key = binary.LittleEndian.AppendUint16(key, 0x4001)
	value := append(endpointBytes("192.0.2.1:50000"), endpointBytes("203.0.113.9:7000")...)
	value = append(value, neighbour.Bytes()...)
	value = binary.LittleEndian.AppendUint32(value, 2)
	value = binary.LittleEndian.AppendUint32(value, 7)
	if !r.Table("by_channel").Put(key, value) {
		t.Fatal("the row was refused")
	}
	r.Slots[2] = sim.Slot{Deadline: 100, Gen: 7}
	r.World.Now = 10
	return r
}

// channelData returns a frame with channel data, padding after it inside the datagram, and bytes after the datagram.
func channelData(payload []byte, padding, trailing int, checksum bool) []byte {
	cd := binary.BigEndian.AppendUint16(nil, 0x4001)
	cd = binary.BigEndian.AppendUint16(cd, uint16(len(payload)))
	cd = append(append(cd, payload...), bytes.Repeat([]byte{0x5a}, padding)...)
	eth := &layers.Ethernet{
		SrcMAC: []byte{2, 0, 0, 0, 0, 1}, DstMAC: []byte{2, 0, 0, 0, 0, 2}, EthernetType: layers.EthernetTypeIPv4,
	}
	ip := &layers.IPv4{
		Version: 4, IHL: 5, Id: 77, TTL: 57, Protocol: layers.IPProtocolUDP, SrcIP: []byte{198, 51, 100, 7},
		DstIP: []byte{192, 0, 2, 1},
	}
	udp := &layers.UDP{SrcPort: 40001, DstPort: 3478}
	if err := udp.SetNetworkLayerForChecksum(ip); err != nil {
		panic(err)
	}
	buf := gopacket.NewSerializeBuffer()
	if err := gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, eth,
		ip, udp, gopacket.Payload(cd)); err != nil {
		panic(err)
	}
	frame := append(bytes.Clone(buf.Bytes()), bytes.Repeat([]byte{0xee}, trailing)...)
	if !checksum {
		frame[40], frame[41] = 0, 0
	}
	return frame
}

func TestTurnIsSent(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	tp := newTurnPlan()
	r := openTurn(t, tp)
	for n := range 300 {
		payload := make([]byte, n)
		for i := range payload {
			payload[i] = byte(rng.Uint32())
		}
		in := channelData(payload, n%4, n%3, true)
		before := bytes.Clone(in)
		res, err := r.Run("to_peer", sim.Packet{Data: in})
		if err != nil {
			t.Fatal(err)
		}
		if res.Verdict != sim.VerdictSent || res.Hop.Ifindex != 3 ||
			res.Hop.NextHop != netip.MustParseAddr("::ffff:203.0.113.9") {
			t.Fatalf("%d bytes: %s %s, hop %+v", n, res.Verdict, res.Reason, res.Hop)
		}
		if !bytes.Equal(in, before) {
			t.Fatal("the packet that came was changed")
		}
		out := res.Packet.Data
		if len(out) != 42+n || !bytes.Equal(out[42:], payload) || !bytes.Equal(out[:12], []byte{
			2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 8,
		}) {
			t.Fatalf("%d bytes: wrong frame %x", n, out)
		}
		checkIndependently(t, out)
	}
	sent := r.Reasons[r.Tally(r.Plan().Programs[0], turnSent)]
	if got := sent.Packets; got != 300 {
		t.Errorf("sent: %d, want 300", got)
	}
	if u := r.Usage[2]; u.Last != 10 || u.Rows[0].Packets != 300 || u.Rows[0].Bytes != sent.Bytes {
		t.Errorf("usage: %+v", u)
	}
}

// checkIndependently lets gopacket compute checksums and lengths anew, and compares.
func checkIndependently(t *testing.T, frame []byte) {
	t.Helper()
	p := gopacket.NewPacket(frame, layers.LayerTypeEthernet, gopacket.Default)
	if p.ErrorLayer() != nil {
		t.Fatal(p.ErrorLayer().Error())
	}
	ip := p.Layer(layers.LayerTypeIPv4).(*layers.IPv4)
	udp := p.Layer(layers.LayerTypeUDP).(*layers.UDP)
	if int(ip.Length) != len(frame)-14 || int(udp.Length) != len(frame)-34 {
		t.Fatalf("lengths: ipv4 %d, udp %d, frame %d", ip.Length, udp.Length, len(frame))
	}
	if err := udp.SetNetworkLayerForChecksum(ip); err != nil {
		t.Fatal(err)
	}
	ipSum, udpSum := ip.Checksum, udp.Checksum
	buf := gopacket.NewSerializeBuffer()
	if err := gopacket.SerializeLayers(buf, gopacket.SerializeOptions{ComputeChecksums: true}, ip, udp,
		gopacket.Payload(udp.Payload)); err != nil {
		t.Fatal(err)
	}
	if ip.Checksum != ipSum || udp.Checksum != udpSum {
		t.Fatalf("checksums: ipv4 %04x, want %04x; udp %04x, want %04x", ipSum, ip.Checksum, udpSum, udp.Checksum)
	}
}

func TestNoChecksumStays(t *testing.T) {
	r := openTurn(t, newTurnPlan())
	res, err := r.Run("to_peer", sim.Packet{Data: channelData([]byte("hello"), 0, 0, false)})
	if err != nil || res.Verdict != sim.VerdictSent {
		t.Fatal(res.Verdict, res.Reason, err)
	}
	if sum := binary.BigEndian.Uint16(res.Packet.Data[40:]); sum != 0 {
		t.Errorf("checksum %04x, want none", sum)
	}
}

// The checksum of UDP is never written as 0, which would say that there is none.
func TestZeroChecksumIsAllOnes(t *testing.T) {
	r := openTurn(t, newTurnPlan())
	for i := range 65536 {
		payload := binary.BigEndian.AppendUint16(nil, uint16(i))
		res, err := r.Run("to_peer", sim.Packet{Data: channelData(payload, 0, 0, true)})
		if err != nil || res.Verdict != sim.VerdictSent {
			t.Fatal(res.Verdict, res.Reason, err)
		}
		if binary.BigEndian.Uint16(res.Packet.Data[40:]) == 0xffff {
			checkIndependently(t, res.Packet.Data)
			return
		}
	}
	t.Error("none of 65,536 payloads had a checksum that is 0")
}

func TestPartialChecksum(t *testing.T) {
	r := openTurn(t, newTurnPlan())
	in := channelData([]byte("hello"), 3, 0, true)
	binary.BigEndian.PutUint16(in[40:], pseudo("198.51.100.7", "192.0.2.1", 8+4+5+3))
	res, err := r.Run("to_peer", sim.Packet{Data: in, Partial: sim.Partial{Start: 34, Field: 40}})
	if err != nil || res.Verdict != sim.VerdictSent {
		t.Fatal(res.Verdict, res.Reason, err)
	}
	want := pseudo("192.0.2.1", "203.0.113.9", 8+5)
	if sum := binary.BigEndian.Uint16(res.Packet.Data[40:]); sum != want {
		t.Errorf("partial checksum %04x, want %04x", sum, want)
	}
}

// pseudo is the folded sum of the pseudo-header of a UDP datagram over IPv4.
func pseudo(src, dst string, length int) uint16 {
	a, b := netip.MustParseAddr(src).As4(), netip.MustParseAddr(dst).As4()
	sum := uint32(17) + uint32(length)
	for _, x := range [][4]byte{a, b} {
		sum += uint32(binary.BigEndian.Uint16(x[:2])) + uint32(binary.BigEndian.Uint16(x[2:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return uint16(sum)
}

func TestUp(t *testing.T) {
	good := channelData([]byte("hello"), 0, 0, true)
	edit := func(off int, b byte) func(*sim.Relay, []byte) []byte {
		return func(_ *sim.Relay, p []byte) []byte { p[off] = b; return p }
	}
	for _, c := range []struct {
		name, reason string
		edit         func(*sim.Relay, []byte) []byte
	}{
		{"lease lapsed", "inactive", func(r *sim.Relay, p []byte) []byte {
			r.World.Conditions = []string{"lapsed"}
			return p
		}},
		{"cut off", "header", func(_ *sim.Relay, p []byte) []byte { return p[:45] }},
		{"empty", "header", func(_ *sim.Relay, p []byte) []byte { return nil }},
		{"not IPv4", "header", edit(12, 0x86)},
		{"bad header checksum", "header", edit(24, good[24]^1)},
		{"length of the channel data", "length", edit(45, 9)},
		{"another channel", "no_by_channel", edit(43, 2)},
		{"closed", "no_by_channel", func(r *sim.Relay, p []byte) []byte { r.Slots[2].Gen = 0; return p }},
		{"opened anew", "no_by_channel", func(r *sim.Relay, p []byte) []byte { r.Slots[2].Gen = 8; return p }},
		{"over", "no_by_channel", func(r *sim.Relay, p []byte) []byte { r.World.Now = 100; return p }},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := openTurn(t, newTurnPlan())
			in := c.edit(r, bytes.Clone(good))
			res, err := r.Run("to_peer", sim.Packet{Data: in})
			if err != nil {
				t.Fatal(err)
			}
			if res.Verdict != sim.VerdictPunt || res.Reason != c.reason || res.Modified ||
				!bytes.Equal(res.Packet.Data, in) {
				t.Errorf("got %s %s, want up %s", res.Verdict, res.Reason, c.reason)
			}
		})
	}
}

func TestTooBig(t *testing.T) {
	r := openTurn(t, newTurnPlan())
	for size, want := range map[int]string{1472: "sent", 1473: "too_big"} {
		res, err := r.Run("to_peer", sim.Packet{Data: channelData(make([]byte, size), 0, 0, true)})
		if err != nil || res.Reason != want {
			t.Errorf("%d bytes: %s, %v, want %s", size, res.Reason, err, want)
		}
	}
}

// A plan that contradicts itself is an error, not a result.
func TestContradictions(t *testing.T) {
	for _, c := range []struct {
		name, want string
		edit       func(*turnPlan)
	}{
		{"unchecked", "only 45 were checked", func(tp *turnPlan) {
			tp.plan.Programs[0].Body[1].(*ir.NeedBytes).End.Const = 45
		}},
		{"hole", "byte 12 of the new front is not written", func(tp *turnPlan) { tp.rw.Stores = tp.rw.Stores[1:] }},
		{"twice", "written twice", func(tp *turnPlan) { tp.rw.Stores = append(tp.rw.Stores, tp.rw.Stores[2]) }},
		{"too wide", "doesn't fit into 1 bytes", func(tp *turnPlan) { tp.rw.Stores[4].Value = num(256) }},
		{"no row", "used before it is looked up", func(tp *turnPlan) {
			b := tp.plan.Programs[0].Body
			tp.plan.Programs[0].Body = append(b[:14:14], b[15])
		}},
		{"bound", "over its bound of 4", func(tp *turnPlan) { tp.plan.Programs[0].Vars[1].Max = 4 }},
		{"no end", "without a terminal", func(tp *turnPlan) {
			b := tp.plan.Programs[0].Body
			tp.plan.Programs[0].Body = b[:15]
		}},
		{"payload", "a payload of 105 bytes", func(tp *turnPlan) {
			tp.rw.Payload = bin(ir.Add, tp.rw.Payload, num(100))
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			tp := newTurnPlan()
			c.edit(tp)
			_, err := openTurn(t, tp).Run("to_peer", sim.Packet{Data: channelData([]byte("hello"), 0, 0, true)})
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

func FuzzRunNeverPanics(f *testing.F) {
	f.Add(channelData([]byte("hello"), 2, 1, true))
	f.Add([]byte{})
	tp := newTurnPlan()
	f.Fuzz(func(t *testing.T, frame []byte) {
		r := openTurn(t, tp)
		before := bytes.Clone(frame)
		res, err := r.Run("to_peer", sim.Packet{Data: frame})
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(frame, before) || (res.Verdict == sim.VerdictPunt && !bytes.Equal(res.Packet.Data, before)) {
			t.Error("a packet that passes to the stack was changed")
		}
	})
}

func BenchmarkTurn(b *testing.B) {
	tp := newTurnPlan()
	r, err := sim.New(tp.plan, nil)
	if err != nil {
		b.Fatal(err)
	}
	frame := channelData(make([]byte, 100), 0, 0, true)
	for b.Loop() {
		if _, err := r.Run("to_peer", sim.Packet{Data: frame}); err != nil {
			b.Fatal(err)
		}
	}
}
