package runtime

import (
	"encoding/binary"
	"net/netip"
	"testing"
	"time"

	"github.com/cilium/ebpf"
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

// BenchmarkDelete deletes 1,000 rows one by one, and together, in turns: "times" is how much faster the latter is.
func BenchmarkDelete(b *testing.B) {
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Hash, KeySize: 16, ValueSize: 16, MaxEntries: 65536})
	if err != nil {
		b.Fatal(err)
	}
	defer m.Close()
	keys := make([][]byte, 1000)
	for i := range keys {
		keys[i] = make([]byte, 16)
		binary.LittleEndian.PutUint64(keys[i], uint64(i))
	}
	timed := func(remove func() error) time.Duration {
		for _, key := range keys {
			if err := m.Put(key, key); err != nil {
				b.Fatal(err)
			}
		}
		start := time.Now()
		if err := remove(); err != nil {
			b.Fatal(err)
		}
		return time.Since(start)
	}
	var single, batch time.Duration
	for range b.N {
		single += timed(func() error {
			for _, key := range keys {
				if err := m.Delete(key); err != nil {
					return err
				}
			}
			return nil
		})
		batch += timed(func() error { _, err := deleteKeys(m, keys); return err })
	}
	rows := float64(b.N * len(keys))
	b.ReportMetric(float64(single.Nanoseconds())/rows, "ns/row-single")
	b.ReportMetric(float64(batch.Nanoseconds())/rows, "ns/row-batch")
	b.ReportMetric(float64(single)/float64(batch), "times")
	b.ReportMetric(0, "ns/op")
}
