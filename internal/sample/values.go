package sample

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/runtime/abi"
	"github.com/fastrelay/fastrelay-gen/sim"
)

// addresses are few, so that packets and rows often have the same ones; the last ones are odd.
var addresses = []netip.Addr{
	netip.MustParseAddr("198.51.100.7"), netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("203.0.113.9"),
	netip.MustParseAddr("10.255.0.1"), netip.MustParseAddr("2001:db8::7"), netip.MustParseAddr("2001:db8::1"),
	netip.MustParseAddr("2001:db8:ffff::9"), netip.MustParseAddr("fd00::ffff:ffff:ffff:ffff"),
	netip.MustParseAddr("255.255.255.255"), netip.MustParseAddr("0.0.0.1"), netip.MustParseAddr("::1"),
	netip.MustParseAddr("ff02::1"),
	netip.MustParseAddr("198.51.100.70"), netip.MustParseAddr("192.0.2.129"), netip.MustParseAddr("10.254.0.1"),
	netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("224.0.0.251"), netip.MustParseAddr("239.255.255.255"),
	netip.MustParseAddr("240.0.0.1"), netip.MustParseAddr("255.255.255.254"), netip.MustParseAddr("223.255.255.255"),
	netip.MustParseAddr("0.0.0.0"), netip.MustParseAddr("1.0.0.0"), netip.MustParseAddr("128.0.0.1"),
	netip.MustParseAddr("::"), netip.MustParseAddr("::2"), netip.MustParseAddr("::1:0:0:1"),
	netip.MustParseAddr("fe80::1"),
	netip.MustParseAddr("2001:db8:1::1"), netip.MustParseAddr("2001:db8:2::1"), netip.MustParseAddr("2001:db8:3::1"),
}

const evenAddresses = 8 // of addresses, those that are ordinary

// Source makes random values. Integers are often ones that a plan compares something with.
type Source struct {
	*rand.Rand
	known   []uint64
	near    []bytesHint // addresses and prefixes that a plan knows
	credits creditRange
	Wire    uint32 // the device of all hops; 0: that of copies

	branches map[ir.Stmt]*branches // of a plan's conditions and lookups
}

func NewSource(seed uint64) Source { return Source{Rand: rand.New(rand.NewPCG(seed, 0x5eed))} }

// One reports true once in n times.
func (s Source) One(n int) bool { return s.IntN(n) == 0 }

func Pick[T any](s Source, list []T) T { return list[s.IntN(len(list))] }

func (s Source) address() netip.Addr {
	if len(s.near) > 0 && s.One(3) {
		return netip.AddrFrom16([16]byte(Pick(s, s.near).make(s, 16))).Unmap()
	}
	if s.One(10) {
		return Pick(s, addresses)
	}
	return addresses[s.IntN(evenAddresses)]
}

func (s Source) bytes(n int) []byte {
	b := make([]byte, n)
	s.fill(b)
	return b
}

func (s Source) fill(b []byte) {
	for i := 0; i < len(b); i += 8 {
		var word [8]byte
		binary.LittleEndian.PutUint64(word[:], s.Uint64())
		copy(b[i:], word[:])
	}
}

// integer is a number of so many bits, often at a bound.
func (s Source) integer(bits int) uint64 {
	top := ^uint64(0) >> (64 - bits)
	if len(s.known) > 0 && s.One(4) {
		return Pick(s, s.known) & top
	}
	switch s.IntN(8) {
	case 0:
		return 0
	case 1:
		return 1 & top
	case 2:
		return top
	case 3:
		return top - 1
	case 4:
		return s.Uint64N(16) & top
	case 5:
		return uint64(1) << s.IntN(bits)
	}
	return s.Uint64() & top
}

// typed is a random value in the layout of a table or a setting, or one for each level of priority.
func (s Source) typed(t ir.Type, is []ir.Range) []byte {
	if t.Levels > 0 && !t.Kind.IsIndex() {
		var all []byte
		for range t.Levels {
			all = append(all, s.typed(t.One(), is)...)
		}
		return all
	}
	addr := func() []byte {
		a := s.address().As16()
		return a[:]
	}
	switch t.Kind {
	case ir.Uint:
		v := s.integer(t.Bits)
		if len(is) > 0 && !s.One(40) {
			r := Pick(s, is)
			v = r.Min + s.Uint64N(min(r.Max-r.Min, 7)+1)
		} else if !s.One(4) {
			v = s.Uint64N(8) & (^uint64(0) >> (64 - t.Bits))
		}
		return binary.LittleEndian.AppendUint64(nil, v)[:t.Size]
	case ir.Bool:
		return []byte{byte(s.IntN(2))}
	case ir.Mac:
		return append([]byte{2, 0, 0, 0, 0}, byte(s.IntN(4)))
	case ir.Addr:
		return addr()
	case ir.Endpoint:
		return binary.LittleEndian.AppendUint16(addr(), s.port())
	case ir.Prefix:
		return s.prefix()
	case ir.NextHop:
		return append(s.hop().Bytes(), addr()...)
	case ir.Hop:
		return s.hop().Bytes()
	case ir.Ctr:
		return binary.LittleEndian.AppendUint32(nil, uint32(s.IntN(Watched)))
	case ir.Credit, ir.Bucket:
		return binary.LittleEndian.AppendUint32(nil, s.credits.index(s, t))
	case ir.Translation:
		return binary.LittleEndian.AppendUint32(nil, s.Uint32N(namespaces))
	}
	if s.One(2) {
		return append(make([]byte, t.Size-1), byte(s.IntN(4)))
	}
	return s.bytes(t.Size)
}

// Watched shared counters are used: 0, which is none, and some more.
const Watched = 16

func (s Source) port() uint16 {
	switch {
	case s.One(8):
		return uint16(s.Uint32())
	case len(s.known) > 0 && s.One(2):
		return uint16(Pick(s, s.known))
	}
	return Pick(s, []uint16{40001, 3478, 50000, 7000, 443, 53, 1, 65535})
}

func (s Source) prefix() []byte {
	a := s.address()
	p := netip.PrefixFrom(a, s.IntN(a.BitLen()+1)).Masked()
	length := p.Bits()
	if a.Is4() {
		length += 96
	}
	if s.One(10) {
		length = s.IntN(129)
	}
	a16 := p.Addr().As16()
	for i := length; i < 128; i++ {
		a16[i/8] &^= 0x80 >> (i % 8)
	}
	return append(binary.LittleEndian.AppendUint32(nil, uint32(length)), a16[:]...)
}

// hop is a next hop: most often a neighbour whose link-layer address is known.
func (s Source) hop() sim.Hop {
	h := sim.Hop{
		Ifindex: max(s.Wire, sim.Wire), MTU: 1500, State: ir.HopDirect,
		Dst: [6]byte{2, 0, 0, 0, 1, byte(s.IntN(256))}, Src: [6]byte{2, 0, 0, 0, 2, byte(s.IntN(256))},
	}
	switch s.IntN(10) {
	case 0, 4, 5, 6:
		h.State = abi.HopState(s.IntN(ir.HopStates))
	case 1:
		h.State = ir.HopNeighbour
	case 2:
		h.MTU = uint16(20 + s.IntN(200))
	case 3:
		h.MTU = 65535
	case 7:
		if s.Wire == 0 { // which matters at XDP alone
			h.Ifindex = sim.Down
		}
	}
	return h
}
