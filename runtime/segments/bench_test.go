package segments

import (
	"log/slog"
	"testing"

	"golang.org/x/sys/unix"
)

// A packet to each of 64 receivers, which are on a host of the same machine: their receiving is measured as well.
func BenchmarkSend(b *testing.B) {
	for name, oneByOne := range map[string]bool{"segments": false, "sendmmsg": true} {
		b.Run(name, func(b *testing.B) {
			const receivers = 64
			bed := newBed(b)
			check(b, bed.sender.Close())
			bed.do(func() (err error) {
				bed.sender, err = New(Config{Conn: bed.conn, OneByOne: oneByOne, Logger: slog.New(slog.DiscardHandler)})
				return err
			})
			var packets []Packet
			for n := range receivers {
				packets = append(packets, Packet{To: bed.client(4).Receiver, Payload: payload(1200, n)})
			}
			cpu := func() (all int64) {
				var u unix.Rusage
				check(b, unix.Getrusage(unix.RUSAGE_SELF, &u))
				return u.Utime.Nano() + u.Stime.Nano()
			}
			check(b, bed.sender.Send(packets))
			began := cpu()
			for b.Loop() {
				check(b, bed.sender.Send(packets))
			}
			b.ReportMetric(float64(cpu()-began)/float64(b.N*receivers), "cpu-ns/packet")
		})
	}
}
