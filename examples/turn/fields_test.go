package main

import (
	"encoding/binary"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/fastrelay/fastrelay-gen/internal/test/dissect"
	"github.com/fastrelay/fastrelay-gen/internal/test/turnlab"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// ipFields are the fields of an IP header that a relay of datagrams chooses values for.
type ipFields struct {
	ttl, dscp, ecn  byte
	mayFragment     bool   // IPv4: DF is 0
	id              uint16 // IPv4
	label           uint32 // IPv6
	fragment, plain bool   // IPv4: it is a fragment; there are no options
}

func fieldsOf(frame []byte) (f ipFields) {
	ip := frame[offIP:]
	if ip[0]>>4 == 6 {
		word := binary.BigEndian.Uint32(ip)
		return ipFields{
			ttl: ip[7], dscp: byte(word >> 22 & 63), ecn: byte(word >> 20 & 3),
			label: word & 0xFFFFF, plain: ip[6] == 17,
		}
	}
	flags := binary.BigEndian.Uint16(ip[6:])
	return ipFields{
		ttl: ip[8], dscp: ip[1] >> 2, ecn: ip[1] & 3, mayFragment: flags&0x4000 == 0, fragment: flags&0x3FFF != 0,
		id: binary.BigEndian.Uint16(ip[4:]), plain: ip[0]&15 == 5,
	}
}

func (f ipFields) put(frame []byte) []byte {
	ip := frame[offIP:]
	if ip[0]>>4 == 6 {
		binary.BigEndian.PutUint32(ip, 6<<28|uint32(f.dscp)<<22|uint32(f.ecn)<<20|f.label)
		ip[7] = f.ttl
		return frame
	}
	ip[1], ip[8] = f.dscp<<2|f.ecn, f.ttl
	binary.BigEndian.PutUint16(ip[4:], f.id)
	flags := uint16(0x4000)
	if f.mayFragment {
		flags = 0
	}
	binary.BigEndian.PutUint16(ip[6:], flags)
	return fixIP(frame)
}

// translations is the table of the README: what RFC 8656 prefers for a field, and what leaves, by the IP versions of
// the packet that comes and of the one that leaves ("4 4").
var translations = []struct {
	field string
	rows  []string // of the README
	// what leaves, for the packets that come of each pair
	leaves func(came, left ipFields) bool
}{
	{"hop limit", []string{
		"| TTL, hop limit | all four | one less than the packet's; else the default of packets that the server sends " +
			"| 64 |",
	}, func(_, left ipFields) bool { return left.ttl == 64 }},
	{"DSCP", []string{
		"| DSCP | all four | the packet's | the packet's |",
	}, func(came, left ipFields) bool { return left.dscp == came.dscp }},
	{"ECN", []string{
		"| ECN | all four | the packet's | the packet's |",
	}, func(came, left ipFields) bool { return left.ecn == came.ecn }},
	{"DF", []string{
		"| DF | IPv4 to IPv4 | the packet's; else 0 | 1 |",
		"| DF | IPv6 to IPv4 | 0 up to 1,260 bytes, 1 above (RFC 7915 §5.1); else the server's default " +
			"| 1 |",
	}, func(_, left ipFields) bool { return !left.mayFragment && !left.fragment }},
	{"identification", []string{
		"| identification | to IPv4 | as of a packet that the server originates | " +
			"0, as of any datagram that is not to be fragmented (RFC 6864 §4.1) |",
	}, func(_, left ipFields) bool { return left.id == 0 }},
	{"flow label", []string{
		"| flow label | IPv4 to IPv6 | of the 5-tuple of the relayed address and the peer (RFC 6437 §3), " +
			"or 0 where a server can't | 0 |",
		"| flow label | IPv6 to IPv6 | the same; never the packet's | 0 |",
	}, func(_, left ipFields) bool { return left.label == 0 }},
	{"options", []string{
		"| options, extension headers | all four | the system's default | " +
			"none; a packet with some passes to the server |",
	}, func(_, left ipFields) bool { return left.plain }},
}

// Each field of the IP header of a packet that leaves is what the README says beside what RFC 8656 prefers, for all
// pairs of IP versions, in both directions, on both sides of the size where a translator would change DF.
func TestIPFields(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	check(t, err)
	for _, f := range translations {
		for _, row := range f.rows {
			if !strings.Contains(string(readme), "\n"+row+"\n") {
				t.Errorf("README.md lacks this row:\n%s", row)
			}
		}
	}
	needs.Root(t)
	packets := []ipFields{
		{ttl: 57, dscp: 46, ecn: 1, mayFragment: true, id: 0x1234, label: 0xABCDE},
		{ttl: 200, dscp: 0, ecn: 3, id: 0xFFFF, label: 1},
		{ttl: 2, dscp: 63, ecn: 2, mayFragment: true},
		{ttl: 1, dscp: 10, ecn: 0},
	}
	for _, pair := range families {
		t.Run(fmt.Sprintf("IPv%d to IPv%d", pair.client, pair.peer), func(t *testing.T) {
			b := newBed(t, pair.client, pair.peer)
			b.roundTrip(1)
			ob := &oddBed{bed: b}
			for _, size := range []int{150, 1300} {
				payload := turnlab.Payload(size)
				for _, p := range packets {
					out := ob.frameToPeer(turnlab.ChannelData(channel, payload))
					b.inKernel(1, func() {
						b.through(p, b.line.ClientDev, b.line.PeerDev, out)
						b.through(p, b.line.PeerDev, b.line.ClientDev, ob.frameToClient(payload))
					})
				}
			}
		})
	}
}

// through injects a packet with certain fields on one side, and looks at the fields of the one that arrives at the
// other.
func (b *bed) through(came ipFields, in, out *testnet.Dev, frame []byte) {
	b.Helper()
	left := b.arrives(in, out, came.put(frame))
	for _, f := range translations {
		if !f.leaves(came, left) {
			b.Errorf("%s: came %+v, left %+v", f.field, came, left)
		}
	}
}

// arrives injects a frame on one side, and returns the fields of the UDP packet that arrives at the other.
func (b *bed) arrives(in, out *testnet.Dev, frame []byte) (left ipFields) {
	b.Helper()
	capture, err := out.Capture()
	check(b.T, err)
	check(b.T, in.Inject(frame))
	check(b.T, testnet.Until(wait, "the packet arrives", func() bool {
		for _, f := range capture.Frames() {
			if _, _, ok := dissect.UDP(f); ok {
				left = fieldsOf(f.Data)
				return true
			}
		}
		return false
	}))
	_, err = capture.Stop()
	check(b.T, err)
	return left
}

// In user space the server's packets have the same hop limit and DF: a peer doesn't see which way a packet took. DSCP
// and ECN are lost there.
func TestIPFieldsOfUserSpace(t *testing.T) {
	needs.Root(t)
	b := newBed(t, 4, 4, "--no-offload")
	b.roundTrip(1)
	ob := &oddBed{bed: b}
	came := ipFields{ttl: 57, dscp: 46, ecn: 1, mayFragment: true, id: 0x1234}
	left := b.arrives(b.line.ClientDev, b.line.PeerDev,
		came.put(ob.frameToPeer(turnlab.ChannelData(channel, turnlab.Payload(150)))))
	if left.ttl != 64 || left.mayFragment || left.dscp != 0 || left.ecn != 0 {
		b.Errorf("user space sent %+v", left)
	}
}
