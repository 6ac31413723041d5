package packet

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math/bits"
	"net"
	"net/netip"
	"strings"

	"github.com/fastrelay/fastrelay-gen/runtime/tool/literal"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// Value is the value of a field: an integer, or bytes as they are in the packet.
type Value struct {
	Int   uint64
	Bytes []byte // nil: an integer
}

// Uint returns an integer value.
func Uint(v uint64) Value { return Value{Int: v} }

// Bytes returns a byte string value.
func Bytes(b []byte) Value {
	if b == nil {
		b = []byte{}
	}
	return Value{Bytes: b}
}

func (v Value) equal(w Value) bool {
	return (v.Bytes == nil) == (w.Bytes == nil) && v.Int == w.Int && string(v.Bytes) == string(w.Bytes)
}

// text shows a value of a field as a person would write it.
func (v Value) text(f *spec.Field) string {
	switch {
	case v.Bytes == nil && v.Int > 9 && f.Bits%8 == 0 && f.Bits >= 16 && f.Counts == nil:
		return fmt.Sprintf("%d (0x%0*x)", v.Int, f.Bits/4, v.Int)
	case v.Bytes == nil:
		return fmt.Sprint(v.Int)
	case f.Type == "ip" && (len(v.Bytes) == 4 || len(v.Bytes) == 16):
		a, _ := netip.AddrFromSlice(v.Bytes)
		return a.String()
	case f.Type == "mac" && len(v.Bytes) == 6:
		return net.HardwareAddr(v.Bytes).String()
	case len(v.Bytes) == 0:
		return "nothing"
	}
	return hex.EncodeToString(v.Bytes)
}

// parseLiteral gives a literal the type of a field. The error says what the field wants.
func parseLiteral(l spec.Literal, f *spec.Field) (Value, error) {
	if width := f.MaxBits(); width > 0 {
		b, err := hex.DecodeString(l.Text)
		given := l.Kind == spec.LitString && err == nil && len(b) > 0 // as it is written
		switch {
		case given && f.Kind == spec.FieldVarint && len(b) == 1<<(b[0]>>6), given && f.SizedUint() && len(b) <= f.Max:
			return Bytes(b), nil
		case l.Kind == spec.LitBool && width == 1:
			if l.Bool {
				return Uint(1), nil
			}
			return Uint(0), nil
		case l.Kind != spec.LitInt:
			return Value{}, fmt.Errorf("it wants an integer of %d bits", width)
		case bits.Len64(l.Int) > width:
			return Value{}, fmt.Errorf("%d doesn't fit into its %d bits", l.Int, width)
		}
		return Uint(l.Int), nil
	}
	if l.Kind != spec.LitString {
		return Value{}, fmt.Errorf("it wants %s, as a string", wants(f))
	}
	switch f.Type {
	case "ip":
		a, err := literal.Addr(l.Text)
		if err != nil || a.BitLen() != f.Bytes*8 {
			return Value{}, fmt.Errorf("%q is not %s", l.Text, wants(f))
		}
		return Bytes(a.AsSlice()), nil
	case "mac":
		m, err := literal.Mac(l.Text)
		if err != nil {
			return Value{}, fmt.Errorf("%q is not %s", l.Text, wants(f))
		}
		return Bytes(m), nil
	}
	b, err := hex.DecodeString(strings.ReplaceAll(l.Text, " ", ""))
	switch {
	case err != nil || (f.Kind == spec.FieldBytes && len(b) != f.Bytes):
		return Value{}, fmt.Errorf("%q is not %s", l.Text, wants(f))
	case f.Kind == spec.FieldSized && len(b) > f.Max:
		return Value{}, fmt.Errorf("%d bytes are more than its %d", len(b), f.Max)
	}
	return Bytes(b), nil
}

func wants(f *spec.Field) string {
	switch {
	case f.Type == "ip" && f.Bytes == 4:
		return "an IPv4 address"
	case f.Type == "ip":
		return "an IPv6 address"
	case f.Type == "mac":
		return "a link-layer address such as 02:00:00:00:00:01"
	case f.Kind == spec.FieldSized:
		return "hexadecimal digits, two a byte"
	}
	return fmt.Sprintf("%d bytes in hexadecimal digits", f.Bytes)
}

// first returns the first value that a constraint allows: the literal that comes first, else the lower end of a range.
func first(c *spec.Constraint, f *spec.Field) (Value, bool) {
	for _, v := range candidates(c, f) {
		if allows(c, f, v) {
			return v, true
		}
	}
	return Value{}, false
}

// candidates returns values at the edges of a constraint's parts; if anything satisfies the constraint, one of these
// does.
func candidates(c *spec.Constraint, f *spec.Field) []Value {
	if c == nil {
		return nil
	}
	if c.Op == spec.IsAnd || c.Op == spec.IsOr {
		var all []Value
		for _, a := range c.Args {
			all = append(all, candidates(a, f)...)
		}
		return all
	}
	if f.Type == "ip" && c.Value.Kind == spec.LitString {
		if p, err := literal.Prefix(c.Value.Text); err == nil && p.Addr().BitLen() == f.Bytes*8 {
			return []Value{Bytes(p.Masked().Addr().AsSlice())}
		}
	}
	v, err := parseLiteral(c.Value, f)
	if err != nil {
		return nil
	}
	if v.Bytes != nil || c.Op == spec.IsEq {
		return []Value{v}
	}
	out := []Value{Uint(0), v, Uint(v.Int + 1)}
	if v.Int > 0 {
		out = append(out, Uint(v.Int-1))
	}
	return out
}

// Allows reports whether a constraint allows a value of a field.
func Allows(c *spec.Constraint, f *spec.Field, v Value) bool { return c == nil || allows(c, f, v) }

// Literal gives a literal of a constraint the type of its field.
func Literal(l spec.Literal, f *spec.Field) (Value, error) { return parseLiteral(l, f) }

// Prefix returns what the bytes of a field begin with if a literal of a constraint says that: hexadecimal digits,
// of which so many bits count.
func Prefix(l spec.Literal, f *spec.Field) (digits string, n int, ok bool) {
	if p, err := literal.Prefix(l.Text); f.Type == "ip" && err == nil {
		return hex.EncodeToString(p.Masked().Addr().AsSlice()), p.Bits(), p.Addr().BitLen() == 8*f.Bytes
	}
	v, err := parseLiteral(l, f)
	return hex.EncodeToString(v.Bytes), 8 * len(v.Bytes), err == nil && v.Bytes != nil && f.MaxBits() == 0
}

// allows reports whether a value satisfies a constraint.
func allows(c *spec.Constraint, f *spec.Field, v Value) bool {
	switch c.Op {
	case spec.IsAnd:
		for _, a := range c.Args {
			if !allows(a, f, v) {
				return false
			}
		}
		return true
	case spec.IsOr:
		for _, a := range c.Args {
			if allows(a, f, v) {
				return true
			}
		}
		return false
	}
	if v.Bytes == nil && bits.Len64(v.Int) > f.MaxBits() {
		return false
	}
	if p, err := literal.Prefix(c.Value.Text); f.Type == "ip" && err == nil {
		a, _ := netip.AddrFromSlice(v.Bytes)
		return p.Contains(a) == (c.Op == spec.IsEq)
	}
	w, err := parseLiteral(c.Value, f)
	if err != nil {
		return false
	}
	switch c.Op {
	case spec.IsEq:
		return v.equal(w)
	case spec.IsNe:
		return !v.equal(w)
	case spec.IsLt:
		return v.Int < w.Int
	case spec.IsLe:
		return v.Int <= w.Int
	case spec.IsGt:
		return v.Int > w.Int
	case spec.IsGe:
		return v.Int >= w.Int
	}
	return false
}

// varint encodes a QUIC variable-length integer (RFC 9000 §16) in its shortest form.
func varint(v uint64) []byte {
	switch {
	case v < 1<<6:
		return []byte{byte(v)}
	case v < 1<<14:
		return binary.BigEndian.AppendUint16(nil, uint16(v)|1<<14)
	case v < 1<<30:
		return binary.BigEndian.AppendUint32(nil, uint32(v)|1<<31)
	}
	return binary.BigEndian.AppendUint64(nil, v|3<<62)
}

// getBits reads bits that start bit bits after the first bit of b, the most significant first.
func getBits(b []byte, bit, n int) uint64 {
	var v uint64
	for i := bit; i < bit+n; i++ {
		v = v<<1 | uint64(b[i/8]>>(7-i%8)&1)
	}
	return v
}

// putBits writes n bits.
func putBits(b []byte, bit, n int, v uint64) {
	for i := range n {
		at := bit + n - 1 - i
		mask := byte(0x80) >> (at % 8)
		b[at/8] &^= mask
		if v>>i&1 != 0 {
			b[at/8] |= mask
		}
	}
}
