package runtime

import (
	"fmt"
	"iter"
	"math"
	"net"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/fastrelay/fastrelay-gen/runtime/abi"
)

// encodeLevels is encode for a value for each of some levels of priority: an array or a slice of them. 0 levels are a
// single value.
func encodeLevels(buf []byte, kind abi.Kind, bits, levels int, v any) error {
	if levels == 0 {
		return encode(buf, kind, bits, v)
	}
	list := reflect.ValueOf(v)
	if !list.IsValid() || list.Kind() != reflect.Array && list.Kind() != reflect.Slice {
		return typeError(v, fmt.Sprintf("an array of %d values, one for each level of priority,", levels))
	}
	if list.Len() != levels {
		return fmt.Errorf("has %d values, must have %d: one for each level of priority", list.Len(), levels)
	}
	size := len(buf) / levels
	for i := range levels {
		if err := encode(buf[i*size:(i+1)*size], kind, bits, list.Index(i).Interface()); err != nil {
			return fmt.Errorf("%w (level %d)", err, i)
		}
	}
	return nil
}

// decodeLevels is the inverse of encodeLevels.
func decodeLevels(buf []byte, kind abi.Kind, levels int) any {
	if levels == 0 {
		return decode(buf, kind)
	}
	var out []any
	for one := range slices.Chunk(buf, len(buf)/levels) {
		out = append(out, decode(one, kind))
	}
	return out
}

// Levels gives the values of a member that has one for each level of priority their type. Generated packages call it.
func Levels[T any](values any, one func(value any) T) (all []T) {
	for _, v := range values.([]any) {
		all = append(all, one(v))
	}
	return all
}

// encode writes v into buf (of the kind's size), checked against its range.
func encode(buf []byte, kind abi.Kind, bits int, v any) error {
	switch kind {
	case abi.KindUint:
		n, err := toUint(v, bits)
		if err != nil {
			return err
		}
		putUint(buf, n)
	case abi.KindBool:
		b, ok := v.(bool)
		if !ok {
			return typeError(v, "bool")
		}
		buf[0] = 0
		if b {
			buf[0] = 1
		}
	case abi.KindBytes:
		b, ok := toBytes(v)
		if !ok {
			return typeError(v, "[]byte")
		}
		if len(b) != len(buf) {
			return fmt.Errorf("has %d bytes, must have %d", len(b), len(buf))
		}
		copy(buf, b)
	case abi.KindMAC:
		b, ok := toBytes(v)
		if !ok {
			return typeError(v, "net.HardwareAddr")
		}
		if len(b) != 6 {
			return fmt.Errorf("has %d bytes, must have 6", len(b))
		}
		copy(buf, b)
	case abi.KindAddr:
		a, ok := v.(netip.Addr)
		if !ok {
			return typeError(v, "netip.Addr")
		}
		return putAddr(buf, a)
	case abi.KindEndpoint:
		ep, ok := v.(netip.AddrPort)
		if !ok {
			return typeError(v, "netip.AddrPort")
		}
		if err := putAddr(buf, ep.Addr()); err != nil {
			return err
		}
		abi.Order.PutUint16(buf[abi.EndpointPort:], ep.Port())
	case abi.KindPrefix:
		p, ok := v.(netip.Prefix)
		if !ok {
			return typeError(v, "netip.Prefix")
		}
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
	case abi.KindNextHop:
		a, ok := v.(netip.Addr)
		if !ok {
			return typeError(v, "netip.Addr")
		}
		return putAddr(buf[abi.NextHopAddr:], a)
	default:
		return fmt.Errorf("can't be given a value")
	}
	return nil
}

// decode reads a value of the kind from buf. abi.KindCounter and hidden kinds have no value of their own.
func decode(buf []byte, kind abi.Kind) any {
	switch kind {
	case abi.KindUint:
		return getUint(buf)
	case abi.KindBool:
		return buf[0] != 0
	case abi.KindBytes:
		return append([]byte(nil), buf...)
	case abi.KindMAC:
		return net.HardwareAddr(append([]byte(nil), buf...))
	case abi.KindAddr:
		return getAddr(buf)
	case abi.KindEndpoint:
		return netip.AddrPortFrom(getAddr(buf), abi.Order.Uint16(buf[abi.EndpointPort:]))
	case abi.KindPrefix:
		addr := netip.AddrFrom16([16]byte(buf[abi.PrefixAddr:abi.PrefixSize]))
		n := int(abi.Order.Uint32(buf))
		if addr.Is4In6() && n >= 96 {
			return netip.PrefixFrom(addr.Unmap(), n-96)
		}
		return netip.PrefixFrom(addr, n)
	case abi.KindNextHop:
		return getAddr(buf[abi.NextHopAddr:])
	}
	return nil
}

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
func toUint(v any, bits int) (uint64, error) {
	rv := reflect.ValueOf(v)
	var n uint64
	switch {
	case v == nil:
		return 0, typeError(v, "an integer")
	case rv.CanUint():
		n = rv.Uint()
	case rv.CanInt():
		if rv.Int() < 0 {
			return 0, fmt.Errorf("is negative")
		}
		n = uint64(rv.Int())
	default:
		return 0, typeError(v, "an integer")
	}
	if limit := maxUint(bits); n > limit {
		return 0, fmt.Errorf("doesn't fit in %d bits (at most %d)", bits, limit)
	}
	return n, nil
}

func maxUint(bits int) uint64 {
	if bits <= 0 || bits >= 64 {
		return math.MaxUint64
	}
	return 1<<bits - 1
}

func toBytes(v any) ([]byte, bool) {
	switch b := v.(type) {
	case []byte:
		return b, true
	case net.HardwareAddr:
		return b, true
	}
	// Generated code passes fixed arrays: [8]byte.
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

// encodeMembers writes values, in the order of the members that are not hidden, into a new buffer.
func encodeMembers(where string, members []abi.Member, size int, values []any) ([]byte, error) {
	want := 0
	for range visible(members) {
		want++
	}
	if len(values) != want {
		return nil, fmt.Errorf("%s: %d values given, %d needed (%s)", where, len(values), want, memberNames(members))
	}
	buf := make([]byte, size)
	for i, m := range visible(members) {
		if m.Kind.IsState() {
			continue // allocated by the table
		}
		if err := encodeLevels(buf[m.Off:m.Off+m.Size], m.Kind, m.Bits, m.Levels, values[i]); err != nil {
			return nil, &ValueError{Where: where + ", " + strconv.Quote(m.Name), Value: values[i], Reason: err.Error()}
		}
	}
	return buf, nil
}

// decodeMembers is the inverse of encodeMembers; state finds what an index stands for.
func decodeMembers(members []abi.Member, buf []byte, state func(m abi.Member, index uint32) any) []any {
	var out []any
	for _, m := range visible(members) {
		b := buf[m.Off : m.Off+m.Size]
		if m.Kind.IsState() {
			out = append(out, state(m, abi.Order.Uint32(b)))
			continue
		}
		out = append(out, decodeLevels(b, m.Kind, m.Levels))
	}
	return out
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

func memberNames(members []abi.Member) string {
	var names []string
	for _, m := range visible(members) {
		names = append(names, m.Name)
	}
	return strings.Join(names, ", ")
}
