package testrun

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math/bits"
	"net"
	"net/netip"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/runtime/abi"
	"github.com/fastrelay/fastrelay-gen/sim"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// Encode lays a literal out as a table or a setting holds it. A next hop gets hop as the way to it.
func Encode(l spec.Literal, t ir.Type, hop sim.Hop) ([]byte, error) {
	switch t.Kind {
	case ir.Uint, ir.Ctr, ir.Credit, ir.Bucket, ir.Translation:
		width := t.Bits
		if t.Kind != ir.Uint {
			width = 8 * t.Size // an index
		}
		if l.Kind != spec.LitInt {
			return nil, fmt.Errorf("it wants an integer")
		}
		if bits.Len64(l.Int) > width {
			return nil, fmt.Errorf("%d doesn't fit into %d bits", l.Int, width)
		}
		return binary.LittleEndian.AppendUint64(nil, l.Int)[:t.Size], nil
	case ir.Bool:
		if l.Kind != spec.LitBool {
			return nil, fmt.Errorf("it wants true or false")
		}
		if l.Bool {
			return []byte{1}, nil
		}
		return []byte{0}, nil
	}
	if l.Kind != spec.LitString && l.Kind != spec.LitEndpoint {
		return nil, fmt.Errorf("it wants a string")
	}
	switch t.Kind {
	case ir.Mac:
		m, err := net.ParseMAC(l.Text)
		if err != nil || len(m) != 6 {
			return nil, fmt.Errorf("%q is not a link-layer address", l.Text)
		}
		return m, nil
	case ir.Addr, ir.NextHop:
		a, err := netip.ParseAddr(l.Text)
		if err != nil || a.Zone() != "" {
			return nil, fmt.Errorf("%q is not an IP address", l.Text)
		}
		a16 := a.As16()
		if t.Kind == ir.NextHop {
			return append(hop.Bytes(), a16[:]...), nil
		}
		return a16[:], nil
	case ir.Endpoint:
		ap, err := netip.ParseAddrPort(l.Text)
		if err != nil || ap.Addr().Zone() != "" {
			return nil, fmt.Errorf("%q is not an endpoint such as 192.0.2.1:3478 or [2001:db8::1]:3478", l.Text)
		}
		a16 := ap.Addr().As16()
		return binary.LittleEndian.AppendUint16(a16[:], ap.Port()), nil
	case ir.Prefix:
		p, err := netip.ParsePrefix(l.Text)
		if err != nil {
			return nil, fmt.Errorf("%q is not a prefix such as 192.0.2.0/24", l.Text)
		}
		length := p.Bits()
		if p.Addr().Is4() {
			length += 96
		}
		a16 := p.Masked().Addr().As16()
		return append(binary.LittleEndian.AppendUint32(nil, uint32(length)), a16[:]...), nil
	}
	b, err := hex.DecodeString(l.Text)
	if err != nil || len(b) != t.Size {
		return nil, fmt.Errorf("%q is not %d bytes in hexadecimal digits", l.Text, t.Size)
	}
	return b, nil
}

// Show is the inverse of Encode: a value as a person would write it.
func Show(b []byte, t ir.Type) string {
	addr := func(b []byte) netip.Addr { return netip.AddrFrom16([16]byte(b)).Unmap() }
	switch t.Kind {
	case ir.Uint, ir.Ctr, ir.Credit, ir.Bucket, ir.Translation:
		var v uint64
		for i, x := range b {
			v |= uint64(x) << (8 * i)
		}
		return fmt.Sprint(v)
	case ir.Bool:
		return fmt.Sprint(b[0] != 0)
	case ir.Mac:
		return net.HardwareAddr(b).String()
	case ir.Addr:
		return addr(b).String()
	case ir.NextHop:
		return addr(b[abi.HopSize:]).String()
	case ir.Endpoint:
		return netip.AddrPortFrom(addr(b), binary.LittleEndian.Uint16(b[16:])).String()
	case ir.Prefix:
		length, a := int(binary.LittleEndian.Uint32(b)), netip.AddrFrom16([16]byte(b[4:]))
		if a.Is4In6() && length >= 96 {
			return netip.PrefixFrom(a.Unmap(), length-96).String()
		}
		return netip.PrefixFrom(a, length).String()
	}
	return hex.EncodeToString(b)
}
