package wire

import (
	"encoding/binary"
	"math/bits"
)

// MaxVarint is the length of the longest variable-length integer, in bytes.
const MaxVarint = 9

// VarintLen returns the length of the shortest encoding of v, 1 to 9 bytes.
func VarintLen(v uint64) int {
	return min(max(1, (bits.Len64(v)+6)/7), MaxVarint)
}

// AppendVarint appends v in its shortest encoding: the number of leading ones of the first byte is the number of bytes
// that follow it, and the rest is the value, most significant byte first (§8.1).
func AppendVarint(b []byte, v uint64) []byte {
	n := VarintLen(v)
	if n == MaxVarint {
		return binary.BigEndian.AppendUint64(append(b, 0xFF), v)
	}
	v |= ^(^uint64(0) >> (n - 1)) >> (64 - 8*n)
	for i := n - 1; i >= 0; i-- {
		b = append(b, byte(v>>(8*i)))
	}
	return b
}

// ParseVarint returns the integer that b begins with and its length, which is 0 if b ends before it does. Encodings
// that are longer than needed are valid (§8.1).
func ParseVarint(b []byte) (v uint64, n int) {
	if len(b) == 0 {
		return 0, 0
	}
	if b[0] < 0x80 {
		return uint64(b[0]), 1
	}
	n = bits.LeadingZeros8(^b[0]) + 1
	if len(b) < n {
		return 0, 0
	}
	if n == MaxVarint {
		return binary.BigEndian.Uint64(b[1:]), n
	}
	v = uint64(b[0]) & (0xFF >> n)
	for _, c := range b[1:n] {
		v = v<<8 | uint64(c)
	}
	return v, n
}
