//go:build linux

package bpf_test

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fastrelay/fastrelay-gen/gen/glue"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/test/dissect"
	"github.com/fastrelay/fastrelay-gen/internal/test/turnlab"
	"github.com/fastrelay/fastrelay-gen/runtime"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
	"github.com/fastrelay/fastrelay-gen/sim"
)

// strange is a frame that a stack wouldn't take, or not from the wire, or not alone.
type strange struct {
	name   string
	family int    // 0: both
	link   string // the frame's destination; "": the relay's
	src    string // "": the client
	dst    string // "": the relay
	sum    bool   // the IPv4 header checksum is wrong
	reason string // of the program that takes no multicast
	other  string // of the one that does; "": the same
	stack  bool   // the relay's stack takes it: it reaches the socket as it came
}

var strangers = []strange{
	{name: "ordinary", reason: "sent"},
	{name: "header checksum wrong", family: 4, sum: true, reason: "ipv4_checksum"},
	{name: "for another host", link: "\x02\x00\x00\x00\x77\x77", reason: "other_host"},
	{name: "a broadcast frame", link: "\xff\xff\xff\xff\xff\xff", reason: "link_broadcast", stack: true},
	{name: "a multicast frame", link: "\x01\x00\x5e\x00\x00\x01", reason: "link_multicast", stack: true},
	{name: "from loopback", family: 4, src: "127.0.0.1", reason: "martian_source"},
	{name: "from a multicast group", family: 4, src: "224.0.0.1", reason: "martian_source"},
	{name: "from everybody", family: 4, src: "255.255.255.255", reason: "martian_source"},
	{name: "from nobody", family: 4, src: "0.0.0.0", reason: "martian_source"},
	{name: "from net 0", family: 4, src: "0.1.2.3", reason: "martian_source"},
	{name: "from class E", family: 4, src: "240.0.0.1", reason: "sent"},
	{name: "to loopback", family: 4, dst: "127.0.0.1", reason: "martian_destination"},
	{name: "to nobody", family: 4, dst: "0.0.0.0", reason: "martian_destination"},
	{name: "to a group", family: 4, dst: "224.0.0.251", reason: "multicast", other: "heard"},
	{name: "to a group, in its frame", family: 4, dst: "224.0.0.251", link: "\x01\x00\x5e\x00\x00\xfb",
		reason: "link_multicast", other: "heard"},
	{name: "to everybody", family: 4, dst: "255.255.255.255", link: "\xff\xff\xff\xff\xff\xff",
		reason: "link_broadcast", other: "heard"},
	{name: "to a group, for another host", family: 4, dst: "224.0.0.251", link: "\x02\x00\x00\x00\x77\x77",
		reason: "other_host"},
	{name: "from loopback", family: 6, src: "::1", reason: "martian_source"},
	{name: "from a multicast group", family: 6, src: "ff02::1", reason: "martian_source"},
	{name: "from nobody", family: 6, src: "::", reason: "martian_source"},
	{name: "to loopback", family: 6, dst: "::1", reason: "martian_destination"},
	{name: "to nobody", family: 6, dst: "::", reason: "martian_destination"},
	{name: "to a group", family: 6, dst: "ff02::fb", reason: "multicast", other: "heard"},
	{name: "to a group, in its frame", family: 6, dst: "ff02::fb", link: "\x33\x33\x00\x00\x00\xfb",
		reason: "link_multicast", other: "heard"},
}

// frame builds the frame, which comes from the client.
func (s *strange) frame(t *testing.T, line *testnet.Line, family int, port uint16, payload []byte) []byte {
	t.Helper()
	link, src, dst := line.RelayIn.MAC, line.ClientAddr.Of(family), line.RelayInAddr.Of(family)
	if s.link != "" {
		link = net.HardwareAddr(s.link)
	}
	if s.src != "" {
		src = netip.MustParseAddr(s.src)
	}
	if s.dst != "" {
		dst = netip.MustParseAddr(s.dst)
	}
	f, err := turnlab.UDPFrame(line.ClientDev.MAC, link, netip.AddrPortFrom(src, 40001), netip.AddrPortFrom(dst, port),
		payload)
	if err != nil {
		t.Fatal(err)
	}
	if s.sum {
		f[24] ^= 1
	}
	return f
}

// Frames that the stack wouldn't take pass to the stack and nowhere else, on a real device: the program counts them
// under their reason, none leaves, the stack gets those that are for it as they came, and the model says the same.
func TestStrangeFrames(t *testing.T) {
	needs.Root(t)
	u := compile(t, "testdata/taken.cue")
	for _, clsact := range []bool{false, true} {
		for _, name := range []string{"forward", "listen"} {
			t.Run(fmt.Sprintf("%s, clsact %v", name, clsact), func(t *testing.T) {
				line, err := testnet.Start(t).Line()
				if err != nil {
					t.Fatal(err)
				}
				b := startStrange(t, u, line, name, clsact)
				for _, s := range strangers {
					for _, family := range []int{4, 6} {
						if s.family == 0 || s.family == family {
							t.Run(fmt.Sprintf("IPv%d, %s", family, s.name), func(t *testing.T) { b.try(t, s, family) })
						}
					}
				}
			})
		}
	}
}

// strangeBed is a relay between a client and a peer. Each family has a port of its own.
type strangeBed struct {
	line    *testnet.Line
	program *runtime.AnyProgram
	model   *sim.Relay
	sockets map[int]*net.UDPConn
	capture *testnet.Capture
	name    string
	n       byte
}

func portOf(family int) uint16 { return uint16(7000 + family) }

func startStrange(t *testing.T, u *unit, line *testnet.Line, name string, clsact bool) *strangeBed {
	t.Helper()
	b := &strangeBed{line: line, name: name, sockets: map[int]*net.UDPConn{}}
	desc := glue.Desc(u.plan)
	var relay *runtime.Relay
	if err := line.Relay.Do(func() (err error) {
		relay, err = runtime.Load(&desc, u.object, runtime.Options{Lease: time.Minute, Clsact: clsact})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { relay.Close() })
	var err error
	if b.model, err = sim.New(u.plan, nil); err != nil {
		t.Fatal(err)
	}
	for _, family := range []int{4, 6} {
		peer, port := line.PeerAddr.Of(family), portOf(family)
		if err := line.RelayOut.AddNeighbour(peer, line.PeerDev.MAC); err != nil {
			t.Fatal(err)
		}
		if err := relay.Table("routes").Put([]any{port}, []any{peer}); err != nil {
			t.Fatal(err)
		}
		hop := sim.Hop{
			Ifindex: uint32(line.RelayOut.Index), MTU: 1500, State: ir.HopDirect, Dst: [6]byte(line.PeerDev.MAC),
			Src: [6]byte(line.RelayOut.MAC),
		}
		to, key := peer.As16(), make([]byte, u.plan.Tables[0].Key.Size)
		binary.LittleEndian.PutUint16(key, port)
		if !b.model.Table("routes").Put(key, append(hop.Bytes(), to[:]...)) {
			t.Fatal("the model's table takes no row")
		}
		b.sockets[family] = listen(t, line.Relay, netip.AddrPortFrom(line.RelayInAddr.Of(family), port))
	}
	b.program = relay.Program(name)
	if err := b.program.Attach(line.RelayIn.Name); err != nil {
		t.Fatal(err)
	}
	if b.capture, err = line.PeerDev.Capture(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.capture.Stop() })
	return b
}

func (b *strangeBed) try(t *testing.T, s strange, family int) {
	reason := s.reason
	if b.name == "listen" && s.other != "" {
		reason = s.other
	}
	b.n++
	payload := fmt.Appendf(nil, "packet %d of a stranger", b.n)
	frame := s.frame(t, b.line, family, portOf(family), payload)
	want, err := b.model.Run(b.name, sim.Packet{Data: frame, Link: sim.LinkType(frame, [6]byte(b.line.RelayIn.MAC))})
	if err != nil || want.Reason != reason {
		t.Errorf("the model says %s (%v), want %s", want.Reason, err, reason)
	}
	before, errorsBefore := reasons(b.program), b.headerErrors(t)
	if err := b.line.ClientDev.Inject(frame); err != nil {
		t.Fatal(err)
	}
	awaitReason(t, s.name, b.program, before, reason)
	arrived := func() bool {
		return slices.ContainsFunc(b.capture.Frames(), func(f testnet.Frame) bool {
			return !f.Outgoing && strings.HasSuffix(string(f.Data), string(payload))
		})
	}
	switch {
	case reason == "sent":
		if err := testnet.Until(2*time.Second, "the packet arrives at the peer", arrived); err != nil {
			t.Error(err)
		}
		return
	case s.stack:
		b.sockets[family].SetReadDeadline(time.Now().Add(patience))
		got := make([]byte, 2000)
		n, from, err := b.sockets[family].ReadFromUDPAddrPort(got)
		if err != nil || string(got[:n]) != string(payload) || from.Addr().Unmap() != b.line.ClientAddr.Of(family) {
			t.Errorf("the stack's socket got %q from %v, %v", got[:n], from, err)
		}
	case s.sum:
		if err := testnet.Until(2*time.Second, "the stack drops it", func() bool {
			return b.headerErrors(t) == errorsBefore+1
		}); err != nil {
			t.Error(err)
		}
	}
	// What was injected later is sent in order: after an ordinary packet nothing can come any more.
	b.n++
	ordinary := fmt.Appendf(nil, "packet %d, ordinary", b.n)
	last := (&strange{}).frame(t, b.line, family, portOf(family), ordinary)
	before = reasons(b.program)
	if err := b.line.ClientDev.Inject(last); err != nil {
		t.Fatal(err)
	}
	awaitReason(t, "ordinary", b.program, before, "sent")
	if err := testnet.Until(2*time.Second, "the ordinary packet arrives", func() bool {
		return slices.ContainsFunc(b.capture.Frames(), func(f testnet.Frame) bool {
			return strings.HasSuffix(string(f.Data), string(ordinary)) && dissect.Check(f) == nil
		})
	}); err != nil {
		t.Error(err)
	}
	if arrived() {
		t.Errorf("a packet that passed to the stack under %s reached the peer as well", reason)
	}
}

// headerErrors is how many IPv4 packets the relay's stack has dropped for their header.
func (b *strangeBed) headerErrors(t *testing.T) (n int) {
	t.Helper()
	var text []byte
	if err := b.line.Relay.Do(func() (err error) {
		text, err = os.ReadFile("/proc/thread-self/net/snmp")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	var lines [][]string
	for l := range strings.Lines(string(text)) {
		if strings.HasPrefix(l, "Ip:") {
			lines = append(lines, strings.Fields(l))
		}
	}
	if _, err := fmt.Sscan(lines[1][slices.Index(lines[0], "InHdrErrors")], &n); err != nil {
		t.Fatal(err)
	}
	return n
}
