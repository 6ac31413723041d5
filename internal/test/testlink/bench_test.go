package testlink

import (
	"errors"
	"math"
	"net"
	"testing"
	"time"

	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// BenchmarkRatios measures how many datagrams the link carries a second, beside a plain cable in the same run, and how
// near a rate comes to what was asked for. The link has carried more than 20,000 a second on any machine so far.
func BenchmarkRatios(b *testing.B) {
	b.Run("carried", func(b *testing.B) {
		l := start(b, Config{})
		n := testnet.Start(b)
		left, errLeft := n.Host("left")
		right, errRight := n.Host("right")
		if err := errors.Join(errLeft, errRight); err != nil {
			b.Fatal(err)
		}
		cable := &Link{}
		var err error
		if cable.A, cable.B, err = n.Join(left, "eth0", right, "eth0"); err != nil {
			b.Fatal(err)
		}
		addAddrs(b, cable)
		var seconds [2]float64
		for range b.N {
			for i, l := range []*Link{l, cable} {
				seconds[i] += carry10000(b, l)
			}
		}
		b.ReportMetric(0, "ns/op")
		b.ReportMetric(10_000*float64(b.N)/seconds[0], "packets/s")
		b.ReportMetric(seconds[1]/seconds[0], "of-a-cable")
	})
	b.Run("rate", func(b *testing.B) {
		const rate, count = 8_000_000, 1000 // 1,000 bytes with headers, so 1,000 a second
		l := start(b, Config{FromA: Direction{Rate: rate, Queue: 1000 * count}})
		addNeighbours(b, l)
		from, to := listenUDP(b, l.A, addrA[4]), listenUDP(b, l.B, addrB[4])
		var bits, seconds float64
		for range b.N {
			got := stream(b, from, to, count, count, math.Inf(1), 958)
			if b.Failed() {
				return
			}
			first := len(got) / 2 // the queue's burst has long gone
			bits += float64(8 * 1000 * (len(got) - 1 - first))
			seconds += got[len(got)-1].at.Sub(got[first].at).Seconds()
		}
		b.ReportMetric(0, "ns/op")
		b.ReportMetric(bits/seconds/rate, "of-the-rate")
	})
}

// carry10000 sends datagrams, some at a time, and returns for how long they were on their way.
func carry10000(b *testing.B, l *Link) float64 {
	addNeighbours(b, l)
	from, to := listenUDP(b, l.A, addrA[4]), listenUDP(b, l.B, addrB[4])
	payload, dest := make([]byte, 200), to.LocalAddr().(*net.UDPAddr).AddrPort()
	began := time.Now()
	for range 10_000 / 100 {
		for range 100 {
			if _, err := from.WriteToUDPAddrPort(payload, dest); err != nil {
				b.Fatal(err)
			}
		}
		if got, err := receive(to, 100, time.Minute); err != nil || len(got) != 100 {
			b.Fatalf("%d datagrams of 100 arrived: %v", len(got), err)
		}
	}
	return time.Since(began).Seconds()
}
