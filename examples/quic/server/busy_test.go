package server

import (
	"net"
	"testing"
	"time"

	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// TestBusy has so many objects go to stock subscribers that datagrams wait for others (on a machine that isn't busy
// with something else), with losses, while the publisher and a subscriber get other ports, as after a NAT has forgotten
// them: all streams arrive, however packets leave. A publisher's door follows it.
func TestBusy(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"sendmmsg": func(*Config) {},
		"segments": func(c *Config) { c.Segments = true },
	} {
		t.Run(name, func(t *testing.T) {
			out := delayed()
			out.FromA.Loss, out.FromB.Loss = 0.01, 0.01
			b := newBed(t, options{in: delayed(), out: out, change: func(c *Config) {
				c.Keep, c.Backlog = time.Minute, 64<<20 // whatever the machine does, no stream is given up
				change(c)
			}})
			from, to := b.rebound(b.publishers), b.rebound(b.users)
			viewers := []*viewer{b.subscribeFrom(to, false, wide())}
			for len(viewers) < 40 { // or segments aren't worth it
				viewers = append(viewers, b.subscribe(false, wide()))
			}
			busy := false
			p := plan{streams: 100, objects: 10, rate: 250, viewers: viewers, ahead: 100}
			p.then = func(i int) {
				busy = busy || b.server.socket.Busy()
				switch i {
				case p.streams / 3:
					b.move(from, b.publishers)
				case p.streams / 2:
					b.move(to, b.users)
					b.check(viewers[0].SendDatagram([]byte("from elsewhere")))
				}
			}
			b.play(b.publishFrom(from, false, wide()), p)
			for _, v := range viewers {
				b.await(v, p.streams)
				if v.reset.Load() > 0 {
					t.Errorf("%d streams were reset", v.reset.Load())
				}
			}
			t.Logf("datagrams waited at the end of one of the streams: %v", busy)
			b.checkDoor(from.LocalAddr().(*net.UDPAddr).Port)
			if s := b.server.socket.Segments(); s != nil {
				b.check(testnet.Until(5*time.Second, "all segments have left", func() bool {
					st, err := s.Stats()
					return err == nil && st.Segments > 1000 && st.Relayed+st.Returned == st.Segments && st.Failed == 0
				}))
			}
		})
	}
}

// checkDoor waits until the only door is the publisher's, at that port.
func (b *bed) checkDoor(port int) {
	b.Helper()
	b.check(testnet.Until(5*time.Second, "the door is the publisher's", func() bool {
		peers := b.server.socket.Doors()
		return len(peers) == 1 && int(peers[0].Port()) == port
	}))
}
