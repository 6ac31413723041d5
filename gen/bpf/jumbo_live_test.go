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
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/test/dissect"
	"github.com/fastrelay/fastrelay-gen/internal/test/measure"
	"github.com/fastrelay/fastrelay-gen/internal/test/offloads"
	"github.com/fastrelay/fastrelay-gen/internal/test/turnlab"
	"github.com/fastrelay/fastrelay-gen/runtime"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
	"github.com/fastrelay/fastrelay-gen/sim"
)

// Packets of more than a page, and packets whose bytes are spread over pages (non-linear buffers), are what
// BPF_PROG_TEST_RUN shows only in part: there no checksum is partial, and none comes after. Here they go through the
// TURN relay on devices with jumbo frames, and each is compared with what the model makes of the same packet.

const (
	jumboMTU  = 9000 // of the next hop
	jumboInto = 9216 // of the way in, so that packets come in that are too big for the next hop
)

// sender sends datagrams from one address to another, in one of several ways.
type sender struct {
	fd       int
	dev      *testnet.Dev
	to       net.HardwareAddr
	src, dst netip.AddrPort
}

func (s sender) socket(data []byte, flags int) error {
	var to unix.Sockaddr = &unix.SockaddrInet6{Port: int(s.dst.Port()), Addr: s.dst.Addr().As16()}
	if s.dst.Addr().Is4() {
		to = &unix.SockaddrInet4{Port: int(s.dst.Port()), Addr: s.dst.Addr().As4()}
	}
	return unix.Sendto(s.fd, data, flags, to)
}

func (s sender) inject(data []byte) error {
	frame, err := turnlab.UDPFrame(s.dev.MAC, s.to, s.src, s.dst, data)
	if err != nil {
		return err
	}
	return s.dev.Inject(frame)
}

// likePartial is a way to send packets whose full checksum has the value that a partial one would have.
const likePartial = "a packet socket, a sum like a partial one"

// resemble changes a datagram so.
func (s sender) resemble(data []byte) error {
	if len(data) < 6 {
		return nil // there are no two bytes that can be chosen
	}
	data[4], data[5] = 0, 0
	frame, err := turnlab.UDPFrame(s.dev.MAC, s.to, s.src, s.dst, data)
	if err != nil {
		return err
	}
	udp := frame[len(frame)-len(data)-8:]
	all := ^binary.LittleEndian.Uint16(udp[6:]) // the sum of the pseudo-header and the datagram
	binary.LittleEndian.PutUint16(udp[6:], 0)
	rest := ^sumOf(udp)
	pseudo := fold(uint64(all) + uint64(rest))
	binary.LittleEndian.PutUint16(data[4:], fold(2*uint64(^pseudo)+uint64(rest)))
	return nil
}

// sendWays are the ways to send a datagram, and what the kernel makes of them (__ip_append_data in
// net/ipv4/ip_output.c): whether the packet's bytes are in pages after its head, and whether its checksum is partial
// on a device with offload.
var sendWays = []struct {
	name    string
	send    func(s sender, data []byte) error
	paged   func(offload bool, size int) bool
	partial bool
}{
	// Kernels differ in where long packets of packet sockets lie.
	{"a packet socket", sender.inject, nil, false},
	{likePartial, sender.inject, nil, false},
	{"one write", func(s sender, data []byte) error {
		return s.socket(data, 0)
	}, func(bool, int) bool { return false }, true},
	// What is added to a datagram goes to pages, and its checksum is computed at once. The cut is
	// inside the ChannelData header.
	{"two writes", func(s sender, data []byte) error {
		if err := s.socket(data[:1], unix.MSG_MORE); err != nil {
			return err
		}
		return s.socket(data[1:], 0)
	}, func(_ bool, size int) bool { return size > 1 }, false},
	// Without offload the kernel has to read the bytes anyway, and copies them to the head.
	{"zero-copy", func(s sender, data []byte) error {
		return s.socket(data, unix.MSG_ZEROCOPY)
	}, func(offload bool, _ int) bool { return offload }, true},
}

func TestJumboFrames(t *testing.T) {
	needs.Root(t)
	u := compile(t, "../../examples/turn/spec.cue")
	for i, program := range []string{"to_peer", "to_client"} {
		for k, offload := range [][2]bool{{true, true}, {true, false}, {false, true}, {false, false}} {
			if needs.Left(i+k, 4) {
				continue
			}
			t.Run(fmt.Sprintf("%s, sender %v, relay %v", program, offload[0], offload[1]), func(t *testing.T) {
				jumboFrames(t, u, program, offload)
			})
		}
	}
}

func jumboFrames(t *testing.T, u *unit, program string, offload [2]bool) {
	line, err := testnet.Start(t).Line()
	if err != nil {
		t.Fatal(err)
	}
	toPeer := program == "to_peer"
	from, in, out, to := line.ClientDev, line.RelayIn, line.RelayOut, line.PeerDev
	if !toPeer {
		from, in, out, to = to, out, in, from
	}
	for _, d := range []struct {
		dev     *testnet.Dev
		mtu     int
		offload bool
	}{
		{from, jumboInto, offload[0]}, {in, jumboInto, offload[1]}, {out, jumboMTU, offload[1]},
		{to, jumboMTU, offload[0]},
	} {
		if err := d.dev.SetMTU(d.mtu); err != nil {
			t.Fatal(err)
		}
		if err := offloads.TxChecksum(d.dev, d.offload); err != nil {
			t.Fatal(err)
		}
	}
	for _, family := range []int{4, 6} {
		for _, n := range []struct {
			dev, of *testnet.Dev
		}{{line.RelayIn, line.ClientDev}, {line.RelayOut, line.PeerDev}} {
			addr := line.ClientAddr.Of(family)
			if n.of == line.PeerDev {
				addr = line.PeerAddr.Of(family)
			}
			if err := n.dev.AddNeighbour(addr, n.of.MAC); err != nil {
				t.Fatal(err)
			}
		}
	}
	j := &jumbo{line: line, toPeer: toPeer, out: out, offload: offload}
	relay := loadRelay(t, u, line.Relay)
	j.program = relay.Program(program)
	if err := j.program.Attach(in.Name); err != nil {
		t.Fatal(err)
	}
	j.paged = watchPaged(t, in)
	if j.model, err = sim.New(u.plan, nil); err != nil {
		t.Fatal(err)
	}
	j.model.Slots[channelSlot] = sim.Slot{Deadline: math.MaxUint64, Gen: 1}
	var packets []jumboPacket
	for i, families := range [][2]int{{4, 4}, {6, 6}, {4, 6}, {6, 4}} {
		packets = append(packets, j.open(t, relay, families, uint16(i))...)
	}
	j.arrivals = watchArrivals(t, to)

	// A capture in front of the relay shows what comes in, but shares the buffers with it. So all
	// are sent without it first.
	alone := make([]*testnet.Frame, len(packets))
	for i, p := range packets {
		alone[i] = j.send(t, p)
	}
	tap := watchArrivals(t, in)
	for i, p := range packets {
		shared := j.send(t, p)
		came := tap.next(t, p.String())
		if partial := sendWays[p.way].partial && offload[0]; came.Partial != partial {
			t.Fatalf("%s: the checksum that came in is partial: %v: this test shows nothing", p, came.Partial)
		}
		if sendWays[p.way].name == likePartial && len(p.data) >= 6 &&
			dissect.Check(testnet.Frame{Data: came.Data, Partial: true}) != nil {
			t.Fatalf("%s: the checksum doesn't look like a partial one: this test shows nothing", p)
		}
		want, err := j.model.Run(program, sim.Packet{Data: came.Data, Partial: partialUDP(came)})
		if err != nil {
			t.Fatal(err)
		}
		if reason := map[bool]string{true: "sent", false: "too_big"}[p.fits]; want.Reason != reason || !p.fits &&
			want.Modified {
			t.Fatalf("%s: the model says %s, modified %v, but it is %s", p, want.Reason, want.Modified, reason)
		}
		if p.fits {
			j.compare(t, p.String()+", alone", want, *alone[i])
			j.compare(t, p.String()+", shared", want, *shared)
		}
	}
}

// jumbo is a relay in one direction, and its model.
type jumbo struct {
	line     *testnet.Line
	toPeer   bool
	out      *testnet.Dev
	offload  [2]bool // of the sender, of the relay
	program  *runtime.AnyProgram
	model    *sim.Relay
	paged    func(*testing.T) uint64
	arrivals *arrivals
}

// jumboPacket is a datagram on its way.
type jumboPacket struct {
	sender
	way      int
	families [2]int
	data     []byte
	fits     bool         // the next hop
	up       *net.UDPConn // where it arrives if it doesn't
}

func (p jumboPacket) String() string {
	return fmt.Sprintf("IPv%d to IPv%d, %s, %d bytes", p.families[0], p.families[1], sendWays[p.way].name, len(p.data))
}

// open opens a channel in the kernel and the model, between a client's family and a peer's, and returns packets for it.
func (j *jumbo) open(t *testing.T, relay *runtime.Relay, families [2]int, n uint16) (packets []jumboPacket) {
	t.Helper()
	line := j.line
	client, server := netip.AddrPortFrom(line.ClientAddr.Of(families[0]), 40000+n),
		netip.AddrPortFrom(line.RelayInAddr.Of(families[0]), 3478+n)
	relayed, peer := netip.AddrPortFrom(line.RelayOutAddr.Of(families[1]), 50000+n),
		netip.AddrPortFrom(line.PeerAddr.Of(families[1]), 7000+n)
	session, err := relay.Open("channel", client, server, turnlab.ChannelNumber, relayed, peer)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { session.Close() })
	hop := func(from, to *testnet.Dev) []byte {
		return sim.Hop{Ifindex: uint32(from.Index), MTU: jumboMTU, State: ir.HopDirect, Dst: [6]byte(to.MAC),
			Src: [6]byte(from.MAC)}.Bytes()
	}
	for table, row := range channelRows(client, server, relayed, peer, hop(line.RelayOut, line.PeerDev),
		hop(line.RelayIn, line.ClientDev)) {
		if !j.model.Table(table).Put(row.key, row.value) {
			t.Fatal("the model's table takes no row")
		}
	}
	s, host, outFamily := sender{dev: line.ClientDev, to: line.RelayIn.MAC, src: client, dst: server}, line.Client,
		families[1]
	if !j.toPeer {
		s, host, outFamily = sender{dev: line.PeerDev, to: line.RelayOut.MAC, src: peer, dst: relayed}, line.Peer,
			families[0]
		families[0], families[1] = families[1], families[0]
	}
	if s.fd, _, err = measure.BlockingSocket(host, s.src); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(s.fd) })
	if err := unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_ZEROCOPY, 1); err != nil {
		t.Fatal(err)
	}
	up := listen(t, line.Relay, s.dst)
	most := jumboMTU - map[int]int{4: 20, 6: 40}[outFamily] - 8 // of payload that fits
	if !j.toPeer {
		most -= 4
	}
	for i, way := range sendWays {
		for _, size := range []int{1, 1473, 4001, 8000, 8900, most, most + 1} {
			data := turnlab.Payload(size)
			if j.toPeer {
				data = turnlab.ChannelData(turnlab.ChannelNumber, data)
			}
			if way.name == likePartial {
				if err := s.resemble(data); err != nil {
					t.Fatal(err)
				}
			}
			packets = append(packets, jumboPacket{s, i, families, data, size <= most, up})
		}
	}
	return packets
}

// send sends a packet and returns what arrived, or nil if it doesn't fit the next hop and passed to the stack as it
// came.
func (j *jumbo) send(t *testing.T, p jumboPacket) *testnet.Frame {
	t.Helper()
	before, paged := reasons(j.program), j.paged(t)
	if err := sendWays[p.way].send(p.sender, p.data); err != nil {
		t.Fatalf("%s: %v", p, err)
	}
	var frame *testnet.Frame
	if p.fits {
		awaitReason(t, p.String(), j.program, before, "sent")
		f := j.arrivals.next(t, p.String())
		frame = &f
	} else {
		awaitReason(t, p.String(), j.program, before, "too_big")
		if err := p.up.SetReadDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, jumboInto)
		if n, err := p.up.Read(buf); err != nil || !bytes.Equal(buf[:n], p.data) {
			t.Errorf("%s: passed to the stack with %d bytes, not as it came: %v", p, n, err)
		}
	}
	if expect := sendWays[p.way].paged; expect == nil {
		return frame
	} else if got, want := j.paged(t)-paged == 1, expect(j.offload[0], len(p.data)); got != want {
		t.Fatalf("%s: came in a non-linear buffer: %v, want %v: this test shows nothing", p, got, want)
	}
	return frame
}

// compare compares what arrived with what the model sent.
func (j *jumbo) compare(t *testing.T, what string, want sim.Result, got testnet.Frame) {
	t.Helper()
	if want.Hop == nil || want.Hop.Ifindex != uint32(j.out.Index) {
		t.Fatalf("%s: the model sends it by %+v, not by the device towards the receiver", what, want.Hop)
	}
	if !bytes.Equal(got.Data[:6], want.Hop.Dst[:]) || !bytes.Equal(got.Data[6:12], want.Hop.Src[:]) {
		t.Errorf("%s: came with MAC addresses %x, the model's hop is %+v", what, got.Data[:12], want.Hop)
	}
	if partial := want.Packet.Partial != (sim.Partial{}) && j.offload[1]; got.Partial != partial {
		t.Errorf("%s: the checksum is partial: %v, want %v", what, got.Partial, partial)
	}
	model := testnet.Frame{Data: want.Packet.Data, Partial: want.Packet.Partial != (sim.Partial{})}
	for name, f := range map[string]testnet.Frame{"kernel": got, "model": model} {
		if err := dissect.Check(f); err != nil {
			t.Errorf("%s: the %s's packet: %v", what, name, err)
		}
	}
	if g, w := completed(got), completed(model); !bytes.Equal(g[12:], w[12:]) {
		at := 12
		for at < min(len(g), len(w)) && g[at] == w[at] {
			at++
		}
		t.Errorf("%s: %d bytes arrived, the model sends %d; they differ from byte %d on\ngot  %x\nwant %x", what,
			len(g), len(w), at, g[:min(len(g), 80)], w[:min(len(w), 80)])
	}
}

// partialUDP says where the checksum of a UDP datagram is left to a device.
func partialUDP(f testnet.Frame) sim.Partial {
	if !f.Partial {
		return sim.Partial{}
	}
	udp := 14 + map[byte]int{4: 20, 6: 40}[f.Data[14]>>4]
	return sim.Partial{Start: udp, Field: udp + 6}
}

// completed returns a frame with UDP right after the IP header, with a partial checksum completed.
func completed(f testnet.Frame) []byte {
	data := bytes.Clone(f.Data)
	if f.Partial {
		udp := data[14+map[byte]int{4: 20, 6: 40}[data[14]>>4]:]
		sum := ^sumOf(udp) // what is in the field is the sum of the pseudo-header
		if sum == 0 {
			sum = 0xffff
		}
		binary.LittleEndian.PutUint16(udp[6:], sum)
	}
	return data
}

// arrivals gives the UDP packets that come in at a device, one after the other.
type arrivals struct {
	capture *testnet.Capture
	seen    int // frames of all kinds
}

func watchArrivals(t *testing.T, dev *testnet.Dev) *arrivals {
	t.Helper()
	capture, err := dev.Capture()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { capture.Stop() })
	return &arrivals{capture: capture}
}

func (a *arrivals) next(t *testing.T, what string) (next testnet.Frame) {
	t.Helper()
	if err := testnet.Until(2*time.Second, "the packet's arrival", func() bool {
		frames := a.capture.Frames()
		for a.seen < len(frames) {
			f := frames[a.seen]
			a.seen++
			if _, _, ok := dissect.UDP(f); ok && !f.Outgoing {
				next = f
				return true
			}
		}
		return false
	}); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	return next
}

// watchPaged counts the packets that a device receives in non-linear buffers, in front of all other programs.
func watchPaged(t *testing.T, dev *testnet.Dev) func(*testing.T) uint64 {
	t.Helper()
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	const length, data, dataEnd = 0, 76, 80 // in struct __sk_buff
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "GPL", Instructions: asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.LoadMem(asm.R2, asm.R6, data, asm.Word),
		asm.LoadMem(asm.R3, asm.R6, dataEnd, asm.Word),
		asm.LoadMem(asm.R4, asm.R6, length, asm.Word),
		asm.Sub.Reg(asm.R3, asm.R2),
		asm.JGE.Reg(asm.R3, asm.R4, "out"),
		asm.StoreImm(asm.R10, -4, 0, asm.Word),
		asm.Mov.Reg(asm.R2, asm.R10),
		asm.Add.Imm(asm.R2, -4),
		asm.LoadMapPtr(asm.R1, m.FD()),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "out"),
		asm.Mov.Imm(asm.R1, 1),
		asm.StoreXAdd(asm.R0, asm.R1, asm.DWord),
		asm.Mov.Imm(asm.R0, -1).WithSymbol("out"),
		asm.Return(),
	}})
	if err != nil {
		t.Fatalf("%+v", err)
	}
	t.Cleanup(func() { prog.Close() })
	err = dev.Host.Do(func() error {
		l, err := link.AttachTCX(link.TCXOptions{
			Interface: dev.Index, Program: prog, Attach: ebpf.AttachTCXIngress, Anchor: link.Head(),
		})
		if err == nil {
			t.Cleanup(func() { l.Close() })
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return func(t *testing.T) (n uint64) {
		t.Helper()
		if err := m.Lookup(uint32(0), &n); err != nil {
			t.Fatal(err)
		}
		return n
	}
}
