package runtime

import (
	"bytes"
	"fmt"
	"iter"
	"math"
	"net"
	"net/netip"
	"reflect"

	"github.com/fastrelay/fastrelay-gen/runtime/abi"
)

// encode writes v, a value without a type, into buf (of the kind's size), checked against its range.
func encode(buf []byte, kind abi.Kind, bits int, v any) error {
	switch kind {
	case abi.KindUint:
		n, err := toUint(v)
		if err != nil {
			return err
		}
		return putBits(buf, bits, n)
	case abi.KindBool:
		return as(buf, v, putBool)
	case abi.KindBytes:
		b, ok := toBytes(v)
		if !ok {
			return typeError(v, "[]byte")
		}
		return putBytes(buf, b)
	case abi.KindMAC:
		b, ok := toBytes(v)
		if !ok {
			return typeError(v, "net.HardwareAddr")
		}
		return putBytes(buf, b)
	case abi.KindAddr:
		return as(buf, v, putAddr)
	case abi.KindEndpoint:
		return as(buf, v, putEndpoint)
	case abi.KindPrefix:
		return as(buf, v, putPrefix)
	case abi.KindNextHop:
		return as(buf, v, putNextHop)
	}
	return fmt.Errorf("can't be given a value")
}

// as writes a value that has to be of one type.
func as[T any](buf []byte, v any, put func([]byte, T) error) error {
	one, ok := v.(T)
	if !ok {
		return typeError(v, fmt.Sprintf("%T", one))
	}
	return put(buf, one)
}

// decode is the inverse of encode. Hidden kinds, and those that refer to state, have no value of their own.
func decode(buf []byte, kind abi.Kind) any {
	switch kind {
	case abi.KindUint:
		return getUint(buf)
	case abi.KindBool:
		return getBool(buf)
	case abi.KindBytes, abi.KindData:
		return bytes.Clone(buf)
	case abi.KindMAC:
		return getMAC(buf)
	case abi.KindAddr:
		return getAddr(buf)
	case abi.KindEndpoint:
		return getEndpoint(buf)
	case abi.KindPrefix:
		return getPrefix(buf)
	case abi.KindNextHop:
		return getNextHop(buf)
	}
	return nil
}

func putBool(buf []byte, v bool) error {
	buf[0] = 0
	if v {
		buf[0] = 1
	}
	return nil
}

func getBool(buf []byte) bool { return buf[0] != 0 }

func putBytes(buf, v []byte) error {
	if len(v) != len(buf) {
		return fmt.Errorf("has %d bytes, must have %d", len(v), len(buf))
	}
	copy(buf, v)
	return nil
}

func putMAC(buf []byte, v net.HardwareAddr) error { return putBytes(buf, v) }

func getMAC(buf []byte) net.HardwareAddr { return bytes.Clone(buf) }

func putEndpoint(buf []byte, v netip.AddrPort) error {
	abi.Order.PutUint16(buf[abi.EndpointPort:], v.Port())
	return putAddr(buf, v.Addr())
}

func getEndpoint(buf []byte) netip.AddrPort {
	return netip.AddrPortFrom(getAddr(buf), abi.Order.Uint16(buf[abi.EndpointPort:]))
}

func putPrefix(buf []byte, p netip.Prefix) error {
	if !p.IsValid() {
		return fmt.Errorf("is not a prefix")
	}
	n := p.Bits()
	switch addr := p.Addr(); {
	case addr.Is4():
		n += 96
	case addr.Is4In6() && n < 96:
		return fmt.Errorf("covers more than the IPv4-mapped addresses; write it as an IPv4 prefix")
	}
	if masked := p.Masked(); masked.Addr() != p.Addr() {
		return fmt.Errorf("has bits set beyond its length; did you mean %v?", masked)
	}
	abi.Order.PutUint32(buf, uint32(n))
	a := p.Addr().As16()
	copy(buf[abi.PrefixAddr:], a[:])
	return nil
}

func getPrefix(buf []byte) netip.Prefix {
	addr := netip.AddrFrom16([16]byte(buf[abi.PrefixAddr:abi.PrefixSize]))
	n := int(abi.Order.Uint32(buf))
	if addr.Is4In6() && n >= 96 {
		return netip.PrefixFrom(addr.Unmap(), n-96)
	}
	return netip.PrefixFrom(addr, n)
}

func putNextHop(buf []byte, v netip.Addr) error { return putAddr(buf[abi.NextHopAddr:], v) }

func getNextHop(buf []byte) netip.Addr { return getAddr(buf[abi.NextHopAddr:]) }

func putAddr(buf []byte, a netip.Addr) error {
	switch {
	case !a.IsValid():
		return fmt.Errorf("is not an address")
	case a.Zone() != "":
		return fmt.Errorf("has a zone, which no packet carries")
	}
	b := a.As16()
	copy(buf, b[:])
	return nil
}

// notCarried says why no packet that a relay takes or sends carries an address, or "".
func notCarried(a netip.Addr) string {
	switch a = a.Unmap(); {
	case a.IsUnspecified():
		return "is unspecified: packets carry the address of this host, not the one that a listener was given"
	case a.IsLoopback():
		return "is a loopback address: packets from and to other hosts carry another one"
	case a.Is4() && a.As4()[0] == 0:
		return "is in 0.0.0.0/8: no host has such an address"
	}
	return ""
}

// notAHost says why an address can't be the source or the destination of a packet that a relay sends, or "".
func notAHost(a netip.Addr) string {
	switch a = a.Unmap(); {
	case a.IsMulticast():
		return "is a multicast address: a relay sends from and to single hosts"
	case a == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return "is the broadcast address: a relay sends from and to single hosts"
	case a.Is6() && a.IsLinkLocalUnicast():
		return "is a link-local address, and nothing says of which link; use one that is unique"
	}
	return notCarried(a)
}

func getAddr(buf []byte) netip.Addr { return netip.AddrFrom16([16]byte(buf[:16])).Unmap() }

func putUint(buf []byte, n uint64) {
	switch len(buf) {
	case 1:
		buf[0] = byte(n)
	case 2:
		abi.Order.PutUint16(buf, uint16(n))
	case 4:
		abi.Order.PutUint32(buf, uint32(n))
	default:
		abi.Order.PutUint64(buf, n)
	}
}

func getUint(buf []byte) uint64 {
	switch len(buf) {
	case 1:
		return uint64(buf[0])
	case 2:
		return uint64(abi.Order.Uint16(buf))
	case 4:
		return uint64(abi.Order.Uint32(buf))
	}
	return abi.Order.Uint64(buf)
}

// toUint accepts every integer type of Go, since a person writes 3478 and not uint64(3478).
func toUint(v any) (uint64, error) {
	rv := reflect.ValueOf(v)
	switch {
	case v == nil:
		return 0, typeError(v, "an integer")
	case rv.CanUint():
		return rv.Uint(), nil
	case rv.CanInt():
		if rv.Int() < 0 {
			return 0, fmt.Errorf("is negative")
		}
		return uint64(rv.Int()), nil
	}
	return 0, typeError(v, "an integer")
}

// putBits writes an integer that may have so many bits.
func putBits(buf []byte, bits int, n uint64) error {
	if limit := maxUint(bits); n > limit {
		return fmt.Errorf("doesn't fit in %d bits (at most %d)", bits, limit)
	}
	putUint(buf, n)
	return nil
}

func maxUint(bits int) uint64 {
	if bits <= 0 || bits >= 64 {
		return math.MaxUint64
	}
	return 1<<bits - 1
}

// toBytes accepts slices and arrays of bytes.
func toBytes(v any) ([]byte, bool) {
	switch b := v.(type) {
	case []byte:
		return b, true
	case net.HardwareAddr:
		return b, true
	}
	rv := reflect.ValueOf(v)
	if rv.IsValid() && rv.Kind() == reflect.Array && rv.Type().Elem().Kind() == reflect.Uint8 {
		b := make([]byte, rv.Len())
		reflect.Copy(reflect.ValueOf(b), rv)
		return b, true
	}
	return nil, false
}

func typeError(v any, want string) error {
	if v == nil {
		return fmt.Errorf("is missing, %s is needed", want)
	}
	return fmt.Errorf("is a %T, %s is needed", v, want)
}

// visible yields the members that users give values for, numbered among themselves.
func visible(members []abi.Member) iter.Seq2[int, abi.Member] {
	return func(yield func(int, abi.Member) bool) {
		i := 0
		for _, m := range members {
			if m.Hidden {
				continue
			}
			if !yield(i, m) {
				return
			}
			i++
		}
	}
}

func memberNames(members []abi.Member) (names []string) {
	for _, m := range visible(members) {
		names = append(names, m.Name)
	}
	return names
}
