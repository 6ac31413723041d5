package relay

import (
	"math/rand/v2"
	"net"
	"testing"

	"github.com/fastrelay/fastrelay-gen/examples/moq/wire"
	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go"
)

// A lossy socket loses some of what comes, once it may. It isn't a UDP socket for the library, which then reads and
// writes one datagram at a time.
type lossy struct {
	net.PacketConn
	random *rand.Rand // of who reads
}

func (l lossy) ReadFrom(b []byte) (n int, from net.Addr, err error) {
	for {
		n, from, err = l.PacketConn.ReadFrom(b)
		if long := n > 0 && b[0]&0x80 != 0; err != nil || long || l.random.IntN(20) > 0 {
			return n, from, err
		}
	}
}

// TestSealed has objects leave in packets that the relay seals itself: to players that lose none, and to one that loses
// one datagram in 20, as it does of what the library sends. Streams end, and are reset.
func TestSealed(t *testing.T) {
	both(t, func(t *testing.T, o options) {
		r := start(t, func(c *Config) { c.sealAll = true })
		p := dial(t, r, o)
		p.publishes("live")
		socket, err := net.ListenPacket("udp4", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		from := &quic.Transport{Conn: lossy{socket, rand.New(rand.NewPCG(1, 1))}}
		t.Cleanup(func() {
			_ = from.Close()
			_ = socket.Close()
		})
		bad := o
		bad.from = from
		players := []*peer{dial(t, r, o), dial(t, r, o), dial(t, r, bad)}
		follows(p, 7, track0("live"), players...)
		for g := range uint64(20) {
			f := p.opens(header(7, g, 0))
			var views []*viewed
			sizes := []int{1000, 1100, 4000, 100, 1, 9000, 1200}
			for i := range 3 * len(sizes) {
				all := items(uint64(i), 1, sizes[i%len(sizes)])
				f.send(all...)
				if i == 0 {
					for _, a := range players {
						views = append(views, a.views())
					}
				}
				for _, v := range views {
					v.has(all...)
				}
			}
			if g%4 == 3 {
				f.stream.CancelWrite(quic.StreamErrorCode(wire.ResetCancelled))
				for _, v := range views {
					v.isReset(wire.ResetCancelled)
				}
				continue
			}
			f.close()
			for _, v := range views {
				v.ends()
			}
		}
		for _, s := range r.Stats().Tracks[0].Subscriptions {
			if s.SealedBytes < s.Bytes/2 {
				t.Errorf("%d of %d bytes were sealed", s.SealedBytes, s.Bytes)
			}
		}
	})
}
