package testrun

import (
	"testing"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/sim"
)

// Bytes after the datagram can't be cut off in a run on an old kernel if the packet moves to another buffer.
func TestShowsResult(t *testing.T) {
	frame := func(size int) []byte { // IPv6 without a payload
		b := make([]byte, size)
		b[12], b[13] = 0x86, 0xDD
		return b
	}
	for _, c := range []struct {
		name            string
		l2, moved, cuts bool
		in, out         int
		shown           bool
	}{
		{"no link layer", false, true, true, 54, 54, false},
		{"nothing is cut off", true, true, false, 54, 112, true},
		{"a byte is cut off", true, true, false, 55, 112, false},
		{"a newer kernel", true, true, true, 55, 112, true},
		{"it fits in front", true, true, false, 55, 98, true},
		{"it doesn't", true, true, false, 55, 99, false},
		{"nothing moves", true, false, false, 55, 112, true},
	} {
		in := &sim.Packet{Data: frame(c.in)}
		want := &sim.Result{Moved: c.moved, Packet: sim.Packet{Data: frame(c.out)}}
		if why := showsResult(&ir.Program{L2: c.l2}, in, want, c.cuts); (why == "") != c.shown {
			t.Errorf("%s: %q", c.name, why)
		}
	}
}
