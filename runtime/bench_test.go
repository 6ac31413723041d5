package runtime

import (
	"net/netip"
	"testing"
)

// BenchmarkOpen opens and closes a session in a network whose routes are asked of the kernel: each peer is new.
func BenchmarkOpen(b *testing.B) {
	n := network(b)
	r := n.load(b, Options{})
	v := flow(1)
	b.ResetTimer()
	for i := range b.N {
		v[4] = netip.AddrPortFrom(netip.AddrFrom4([4]byte{203, 0, 113, byte(i)}), uint16(1+i%60000))
		s, err := r.Open("flow", v...)
		if err != nil {
			b.Fatal(err)
		}
		if err := s.Close(); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkCounts reads all counters of a program.
func BenchmarkCounts(b *testing.B) {
	r := load(b, Options{})
	for range b.N {
		if _, err := r.Program("fwd").Counts(); err != nil {
			b.Fatal(err)
		}
	}
}
