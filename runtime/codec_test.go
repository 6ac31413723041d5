package runtime

import (
	"bytes"
	"errors"
	"net"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"github.com/fastrelay/fastrelay-gen/runtime/abi"
)

// Values for each level of priority are given as an array or a slice, and come back as a slice.
func TestLevelValues(t *testing.T) {
	members := []abi.Member{
		{Name: "id", Kind: abi.KindBytes, Levels: 3, Size: 6},
		{Name: "port", Kind: abi.KindUint, Bits: 12, Levels: 3, Size: 6, Off: 6},
		{Name: "at", Kind: abi.KindEndpoint, Levels: 2, Size: 2 * abi.EndpointSize, Off: 12},
	}
	size := 12 + 2*abi.EndpointSize
	ends := [2]netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:5"), netip.MustParseAddrPort("[2001:db8::1]:6")}
	l := layout{"row", members, size}
	b, err := l.encodeAny([]any{[][]byte{{1, 2}, {3, 4}, {5, 6}}, []int{7, 8, 0xFFF}, ends})
	if err != nil {
		t.Fatal(err)
	}
	want := []any{
		[]any{[]byte{1, 2}, []byte{3, 4}, []byte{5, 6}}, []any{uint64(7), uint64(8), uint64(0xFFF)},
		[]any{ends[0], ends[1]},
	}
	got := l.decodeAny(b.data, nil)
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	for reason, ports := range map[string]any{
		"has 2 values, must have 3":                       []int{7, 8},
		"doesn't fit in 12 bits (at most 4095) (level 2)": []int{7, 8, 0x1000},
		"is a int, an array of 3 values":                  7, "is missing": nil,
	} {
		_, err := l.encodeAny([]any{[][]byte{{1, 2}, {3, 4}, {5, 6}}, ports, ends})
		if err == nil || !strings.Contains(err.Error(), reason) {
			t.Errorf("%v: %v", ports, err)
		}
	}
}

// What is laid out comes back, of every kind, and is what a caller without types gets.
func TestCodec(t *testing.T) {
	type row struct {
		small  uint8
		number uint64
		ports  [2]uint16
		yes    bool
		id     [3]byte
		mac    net.HardwareAddr
		addr   netip.Addr
		at     netip.AddrPort
		prefix netip.Prefix
		hop    netip.Addr
	}
	codec := func(c *Codec, r *row) {
		Uint(c, &r.small)
		Uint(c, &r.number)
		Each(c, r.ports[:], Uint[uint16])
		c.Bool(&r.yes)
		c.Bytes(r.id[:])
		c.MAC(&r.mac)
		c.Addr(&r.addr)
		c.AddrPort(&r.at)
		c.Prefix(&r.prefix)
		c.NextHop(&r.hop)
	}
	l := layout{where: "row"}
	add := func(m abi.Member) {
		m.Off = l.size
		l.size += m.Size
		l.members = append(l.members, m)
	}
	add(abi.Member{Name: "small", Kind: abi.KindUint, Bits: 7, Size: 1})
	add(abi.Member{Name: "slot", Kind: abi.KindUint, Bits: 32, Size: 4, Hidden: true})
	add(abi.Member{Name: "number", Kind: abi.KindUint, Bits: 64, Size: 8})
	add(abi.Member{Name: "ports", Kind: abi.KindUint, Bits: 12, Levels: 2, Size: 4})
	add(abi.Member{Name: "yes", Kind: abi.KindBool, Bits: 1, Size: 1})
	add(abi.Member{Name: "id", Kind: abi.KindBytes, Size: 3})
	add(abi.Member{Name: "mac", Kind: abi.KindMAC, Size: 6})
	add(abi.Member{Name: "addr", Kind: abi.KindAddr, Size: 16})
	add(abi.Member{Name: "at", Kind: abi.KindEndpoint, Size: abi.EndpointSize})
	add(abi.Member{Name: "prefix", Kind: abi.KindPrefix, Size: abi.PrefixSize})
	add(abi.Member{Name: "hop", Kind: abi.KindNextHop, Size: abi.NextHopSize})
	in := row{
		small: 127, number: 1 << 63, ports: [2]uint16{7, 4095}, yes: true, id: [3]byte{1, 2, 3},
		mac: net.HardwareAddr{2, 0, 0, 0, 0, 1}, addr: netip.MustParseAddr("192.0.2.1"),
		at:     netip.MustParseAddrPort("[2001:db8::1]:443"),
		prefix: netip.MustParsePrefix("198.51.100.0/24"), hop: netip.MustParseAddr("2001:db8::2"),
	}
	v, err := l.encode(func(c *Codec) { codec(c, &in) })
	if err != nil {
		t.Fatal(err)
	}
	var out row
	l.decode(v.data, nil, func(c *Codec) { codec(c, &out) })
	if !reflect.DeepEqual(in, out) {
		t.Errorf("%+v came back as %+v", in, out)
	}
	again, err := l.encodeAny(l.decodeAny(v.data, nil))
	if err != nil || !bytes.Equal(again.data, v.data) {
		t.Errorf("without types: %x, %v; want %x", again.data, err, v.data)
	}
	for reason, spoil := range map[string]func(*row){
		`row, "small": 128 doesn't fit in 7 bits`:                    func(r *row) { r.small = 128 },
		`row, "ports": 4096 doesn't fit in 12 bits (at most 4095) (`: func(r *row) { r.ports[1] = 4096 },
		`row, "mac":`:    func(r *row) { r.mac = r.mac[:5] },
		`row, "addr":`:   func(r *row) { r.addr = netip.Addr{} },
		`row, "at":`:     func(r *row) { r.at = netip.AddrPort{} },
		`row, "prefix":`: func(r *row) { r.prefix = netip.MustParsePrefix("192.0.2.1/24") },
		`row, "hop":`:    func(r *row) { r.hop = netip.Addr{} },
	} {
		bad := in
		spoil(&bad)
		_, err := l.encode(func(c *Codec) { codec(c, &bad) })
		var value *ValueError
		if !errors.As(err, &value) || !strings.Contains(err.Error(), reason) {
			t.Errorf("%v, want one with %s", err, reason)
		}
	}
	// A function for another layout fails, and doesn't panic.
	short := layout{where: "row", members: l.members[:1], size: 1}
	if _, err := short.encode(func(c *Codec) { codec(c, &in) }); err == nil {
		t.Error("more values than members were laid out")
	}
}
