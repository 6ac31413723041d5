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
	"github.com/cilium/ebpf/link"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/test/dissect"
	"github.com/fastrelay/fastrelay-gen/internal/test/offloads"
	"github.com/fastrelay/fastrelay-gen/runtime/abi"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/bpftest"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// Packets of real sockets on real devices have partial checksums, which no BPF_PROG_TEST_RUN can show. Here they go
// through the TURN relay with transmit checksum offload on and off on either side: if it is off, the kernel
// completes the checksum itself, at the place that it remembers. That place is what a relay that
// moves headers gets wrong.

// turn is the loaded TURN relay.
type turn struct {
	*ebpf.Collection
	plan *ir.Plan
}

func endpoint(a netip.AddrPort) []byte {
	b := a.Addr().As16()
	return binary.LittleEndian.AppendUint16(b[:], a.Port())
}

// hop is how packets leave through a device.
func hop(state abi.HopState, from, to *testnet.Dev) []byte {
	b := binary.LittleEndian.AppendUint32(nil, uint32(from.Index))
	b = binary.LittleEndian.AppendUint16(b, 1500)
	b = append(b, byte(state), 0)
	return append(append(b, to.MAC...), from.MAC...)
}

func put(t *testing.T, m *ebpf.Map, key, value any) {
	t.Helper()
	if err := m.Put(key, value); err != nil {
		t.Fatal(err)
	}
}

// open opens the lease and a channel.
func (r *turn) open(t *testing.T, client, server, relayed, peer netip.AddrPort, toPeer, toClient []byte) {
	t.Helper()
	put(t, r.Maps["fr_lease"], uint32(0), append(binary.LittleEndian.AppendUint64(nil, math.MaxUint64),
		make([]byte, 32)...))
	put(t, r.Maps["fr_slots"], uint32(channelSlot), append(binary.LittleEndian.AppendUint64(nil, math.MaxUint64), 1, 0,
		0, 0, 0, 0, 0, 0))
	for table, row := range channelRows(client, server, relayed, peer, toPeer, toClient) {
		put(t, r.Maps["tbl_"+table], row.key, row.value)
	}
}

// channelSlot is the slot of the sessions that channelRows belong to; its generation is 1.
const channelSlot = 7

type row struct{ key, value []byte }

// channelRows are the rows of channel 0x4001, by table.
func channelRows(client, server, relayed, peer netip.AddrPort, toPeer, toClient []byte) map[string]row {
	number, slot := []byte{0x01, 0x40, 0, 0}, []byte{channelSlot, 0, 0, 0, 1, 0, 0, 0}
	join := func(parts ...[]byte) []byte { return bytes.Join(parts, nil) }
	return map[string]row{
		"by_channel": {join(endpoint(client), endpoint(server), number),
			join(endpoint(relayed), endpoint(peer), toPeer, slot)},
		"by_peer": {join(endpoint(peer), endpoint(relayed)),
			join(endpoint(client), endpoint(server), number, toClient, slot, make([]byte, 4))},
	}
}

// counts returns the packets of each reason of a program, by name.
func (r *turn) counts(t *testing.T, program string) map[string]uint64 {
	t.Helper()
	out := map[string]uint64{}
	for _, p := range r.plan.Programs {
		if p.Name != program {
			continue
		}
		for i, reason := range p.Reasons {
			var perCPU [][2]uint64
			if err := r.Maps["fr_reasons"].Lookup(uint32(r.plan.Tallies().Of(p, i)), &perCPU); err != nil {
				t.Fatal(err)
			}
			for _, c := range perCPU {
				if c[0] > 0 {
					out[reason.Name] += c[0]
				}
			}
		}
	}
	return out
}

// attach attaches a program to a device.
func (r *turn) attach(t *testing.T, program string, dev *testnet.Dev) {
	t.Helper()
	err := dev.Host.Do(func() error {
		l, err := link.AttachTCX(link.TCXOptions{
			Interface: dev.Index, Program: r.Programs["prog_"+program], Attach: ebpf.AttachTCXIngress,
		})
		if err == nil {
			t.Cleanup(func() { l.Close() })
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func listen(t *testing.T, host *testnet.Host, at netip.AddrPort) *net.UDPConn {
	t.Helper()
	var conn *net.UDPConn
	err := host.Do(func() (err error) {
		conn, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

func TestPartialChecksums(t *testing.T) {
	needs.Root(t)
	u := compile(t, "../../examples/turn/spec.cue")
	for i, families := range [][2]int{{4, 4}, {6, 6}, {4, 6}, {6, 4}} {
		for k, offload := range [][2]bool{{true, true}, {true, false}, {false, true}, {false, false}} {
			if needs.Left(i+k, 4) {
				continue
			}
			for state, name := range map[abi.HopState]string{ir.HopDirect: "direct", ir.HopNeighbour: "neighbour"} {
				t.Run(fmt.Sprintf("IPv%d to IPv%d, sender %v, relay %v, %s", families[0], families[1], offload[0],
					offload[1], name), func(t *testing.T) {
					partialChecksums(t, u, families, offload, state)
				})
			}
		}
	}
}

func partialChecksums(t *testing.T, u *unit, families [2]int, offload [2]bool, state abi.HopState) {
	line, err := testnet.Start(t).Line()
	if err != nil {
		t.Fatal(err)
	}
	for dev, on := range map[*testnet.Dev]bool{
		line.ClientDev: offload[0], line.PeerDev: offload[0], line.RelayIn: offload[1], line.RelayOut: offload[1],
	} {
		if err := offloads.TxChecksum(dev, on); err != nil {
			t.Fatal(err)
		}
	}
	client := netip.AddrPortFrom(line.ClientAddr.Of(families[0]), 40001)
	server := netip.AddrPortFrom(line.RelayInAddr.Of(families[0]), 3478)
	relayed := netip.AddrPortFrom(line.RelayOutAddr.Of(families[1]), 50000)
	peer := netip.AddrPortFrom(line.PeerAddr.Of(families[1]), 7000)
	relay := &turn{u.load(t), u.plan}
	relay.open(t, client, server, relayed, peer, hop(state, line.RelayOut, line.PeerDev),
		hop(state, line.RelayIn, line.ClientDev))
	relay.attach(t, "to_peer", line.RelayIn)
	relay.attach(t, "to_client", line.RelayOut)
	atClient, atPeer := listen(t, line.Client, client), listen(t, line.Peer, peer)

	seen := map[string]*testnet.Capture{}
	for name, dev := range map[string]*testnet.Dev{"client": line.ClientDev, "peer": line.PeerDev} {
		if seen[name], err = dev.Capture(); err != nil {
			t.Fatal(err)
		}
		defer seen[name].Stop()
	}
	sizes := []int{0, 1, 2, 3, 4, 5, 33, 120, 1200, 1201, 1400}
	sent := 0
	for _, size := range sizes {
		payload := make([]byte, size)
		for i := range payload {
			payload[i] = byte(i*7 + size)
		}
		channelData := append([]byte{0x40, 0x01, byte(size >> 8), byte(size)}, payload...)
		for padding := range 4 {
			exchange(t, atClient, server, append(bytes.Clone(channelData), 0xEE, 0xDD, 0xCC)[:len(channelData)+padding],
				atPeer, relayed, payload)
			sent++
		}
		exchange(t, atPeer, relayed, payload, atClient, server, channelData)
	}
	for program, want := range map[string]int{"to_peer": sent, "to_client": len(sizes)} {
		if got := relay.counts(t, program)["sent"]; got != uint64(want) {
			t.Errorf("%s: %d packets were sent by the relay, want %d: %v", program, got, want, relay.counts(t, program))
		}
	}
	for name, c := range seen {
		want := map[string]int{"client": len(sizes), "peer": sent}[name]
		if err := testnet.Until(2*time.Second, fmt.Sprintf("%d packets at the %s", want, name), func() bool {
			return len(arrived(c)) >= want
		}); err != nil {
			t.Error(err)
		}
		for _, f := range arrived(c) {
			if err := dissect.Check(f); err != nil {
				t.Errorf("at the %s: %v\n%x", name, err, f.Data)
			}
			if f.Partial && !offload[1] {
				t.Errorf("at the %s: a checksum is partial after a device without offload", name)
			}
		}
	}
}

// arrived returns the UDP packets that came in.
func arrived(c *testnet.Capture) (out []testnet.Frame) {
	for _, f := range c.Frames() {
		if _, _, ok := dissect.UDP(f); ok && !f.Outgoing {
			out = append(out, f)
		}
	}
	return out
}

// patience is how long a packet may take that has to arrive.
const patience = 20 * time.Second

// exchange sends a datagram and expects what the relay makes of it.
func exchange(t *testing.T, from *net.UDPConn, to netip.AddrPort, datagram []byte, at *net.UDPConn,
	source netip.AddrPort, want []byte) {
	t.Helper()
	if _, err := from.WriteToUDPAddrPort(datagram, to); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 2048)
	if err := at.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	n, sender, err := at.ReadFromUDPAddrPort(buf)
	if err != nil {
		t.Fatalf("%d bytes: %v", len(datagram), err)
	}
	if sender = netip.AddrPortFrom(sender.Addr().Unmap(), sender.Port()); sender != source {
		t.Errorf("%d bytes came from %v, want %v", n, sender, source)
	}
	if !bytes.Equal(buf[:n], want) {
		t.Errorf("a datagram of %d bytes became\n%x, want\n%x", len(datagram), buf[:n], want)
	}
}

// Tests that can't prepare themselves fail at once.
func TestUnprepared(t *testing.T) { bpftest.Unprepared(t) }
