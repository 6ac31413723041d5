package relay

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"testing"

	"github.com/fastrelay/fastrelay-gen/examples/moq/wire"
	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go"
)

// TestNarrow has subscribers whose flow control allows little, beside one that allows much: what is given to the
// library at once, and what waits, are the same bytes for all, in order.
func TestNarrow(t *testing.T) {
	both(t, func(t *testing.T, o options) {
		r := start(t, nil)
		p := dial(t, r, o)
		p.publishes("live")
		windows := []uint64{1 << 20, 900, 3000, 20_000}
		var subscribers []*peer
		for i, window := range windows {
			own := o
			own.quic = quic.Config{InitialStreamReceiveWindow: window, MaxStreamReceiveWindow: window}
			s := dial(t, r, own)
			c := s.subscribes(track0("live"), wire.Parameters{})
			if i == 0 {
				publisher(p, 1, track0("live"), wire.SubscribeOK{})
			}
			expect[*wire.SubscribeOK](c)
			subscribers = append(subscribers, s)
		}
		random := rand.New(rand.NewPCG(1, 2))
		f := p.opens(header(1, 0, 0))
		var all []item
		views, read := make([]*viewed, len(windows)), make([]int, len(windows))
		for n := range 300 {
			all = append(all, items(uint64(n), 1, random.IntN(3000))...)
			f.send(all[n])
			for i, s := range subscribers {
				if n == 0 {
					views[i] = s.views()
				}
				if random.IntN(3) > 0 { // else it is behind for a while
					views[i].has(all[read[i]:]...)
					read[i] = len(all)
				}
			}
		}
		f.close()
		for i, v := range views {
			v.has(all[read[i]:]...)
			v.ends()
		}
		for _, reason := range r.Stats().Tracks[0].Sent.Dropped {
			same(t, reason, 0)
		}
	})
}

// TestDoor has a publisher whose datagrams don't wait for others: it has a door, which follows it to another address,
// and is closed with its session.
func TestDoor(t *testing.T) {
	r := start(t, nil)
	here, elsewhere := transportOf(t), transportOf(t)
	p, a := dial(t, r, options{from: here}), dial(t, r, options{})
	p.publishes("live")
	c := a.subscribes(track0("live"), wire.Parameters{})
	publisher(p, 1, track0("live"), wire.SubscribeOK{})
	expect[*wire.SubscribeOK](c)
	q := p.conn.(rawQUIC).Conn
	is := func(at net.PacketConn) func() bool {
		return func() bool {
			doors := r.socket.Doors()
			return len(doors) == 1 && doors[0].Port() == addressOf(at.LocalAddr()).Port()
		}
	}
	until(t, "the publisher has a door", is(here.Conn))
	f := p.opens(header(1, 0, 0)).send(items(0, 1, 100)...)
	v := a.views()
	v.has(items(0, 1, 100)...)
	path, err := q.AddPath(elsewhere)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := errors.Join(path.Probe(ctx), path.Switch()); err != nil {
		t.Fatal(err)
	}
	f.send(items(1, 1, 100)...)
	v.has(items(1, 1, 100)...)
	until(t, "the door follows", is(elsewhere.Conn))
	f.send(items(2, 1, 100)...)
	v.has(items(2, 1, 100)...)
	_ = p.conn.CloseWithError(0, "")
	until(t, "the door is closed", func() bool { return len(r.socket.Doors()) == 0 })
}

// transportOf makes a transport of this host's.
func transportOf(t *testing.T) *quic.Transport {
	t.Helper()
	c, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	from := &quic.Transport{Conn: c}
	t.Cleanup(func() { _, _ = from.Close(), c.Close() })
	return from
}
