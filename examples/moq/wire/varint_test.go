package wire_test

import (
	"encoding/hex"
	"math"
	"testing"

	. "github.com/fastrelay/fastrelay-gen/examples/moq/wire"
)

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// The draft's examples (§8.1), one of which isn't the shortest encoding.
func TestVarintExamples(t *testing.T) {
	for _, c := range []struct {
		hex      string
		value    uint64
		shortest bool
	}{
		{"25", 37, true},
		{"8025", 37, false},
		{"bbbd", 15293, true},
		{"ed7f3e7d", 226442877, true},
		{"faa1a0e403d8", 2893212287960, true},
		{"fc8998abc66bc0", 151288809941952, true},
		{"fefa318fa8e3ca11", 70423237261249041, true},
		{"ffffffffffffffffff", math.MaxUint64, true},
		{"8000", 0, false},
		{"c00000", 0, false},
		{"ff0000000000000000", 0, false},
	} {
		b := unhex(t, c.hex)
		if v, n := ParseVarint(append(b, 0x55)); v != c.value || n != len(b) {
			t.Errorf("%s: parsed %d of %d bytes, want %d of %d", c.hex, v, n, c.value, len(b))
		}
		if got := hex.EncodeToString(AppendVarint(nil, c.value)); c.shortest != (got == c.hex) {
			t.Errorf("%d: appended %s", c.value, got)
		}
		for n := range b {
			if _, got := ParseVarint(b[:n]); got != 0 {
				t.Errorf("%s: %d bytes were enough", c.hex, n)
			}
		}
	}
}

// Each length ends where the draft's table says, and each value comes back.
func TestVarintLengths(t *testing.T) {
	for n := 1; n <= MaxVarint; n++ {
		last := uint64(math.MaxUint64)
		if n < MaxVarint {
			last = 1<<(7*n) - 1
		}
		for _, v := range []uint64{last, last - 1, last / 2, last/2 + 1} {
			b := AppendVarint(nil, v)
			if len(b) != VarintLen(v) {
				t.Errorf("%d: %d bytes, VarintLen says %d", v, len(b), VarintLen(v))
			}
			if got, m := ParseVarint(b); got != v || m != len(b) {
				t.Errorf("%d: %x is parsed as %d of %d bytes", v, b, got, m)
			}
		}
		if got := VarintLen(last); got != n {
			t.Errorf("%d takes %d bytes, want %d", last, got, n)
		}
		if n < MaxVarint && VarintLen(last+1) != n+1 {
			t.Errorf("%d takes %d bytes, want %d", last+1, VarintLen(last+1), n+1)
		}
	}
}
