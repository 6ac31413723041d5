package server

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/fastrelay/fastrelay-gen/examples/quic/client"
	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go"
	"github.com/fastrelay/fastrelay-gen/internal/test/testlink"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

const delay = 5 * time.Millisecond

func delayed() testlink.Config {
	return testlink.Config{FromA: testlink.Direction{Delay: delay}, FromB: testlink.Direction{Delay: delay}}
}

// rows counts what the kernel has.
func (b *bed) rows() (connections, receivers int) {
	for _, err := range b.server.relay.Connections.All() {
		b.check(err)
		connections++
	}
	_, receivers = b.server.relay.Subscribers.Count()
	return connections, receivers
}

// TestJoin has subscribers come while a publisher sends: each gets whole streams, from the one on that is being sent.
func TestJoin(t *testing.T) {
	b := newBed(t, options{in: delayed(), out: delayed()})
	first := b.subscribe(true, wide())
	var late [30]*viewer
	var coming sync.WaitGroup
	b.play(b.publish(true, nil), plan{streams: 30, objects: 20, rate: 1000, then: func(i int) {
		if i%7 == 3 {
			coming.Go(func() { late[i] = b.subscribe(i%2 == 0, wide()) })
		}
	}})
	coming.Wait()
	b.await(first, 30)
	for _, v := range late {
		if v == nil {
			continue
		}
		if err := testnet.Until(5*time.Second, "all streams from the first one on", func() bool {
			v.mu.Lock()
			defer v.mu.Unlock()
			begin := 30
			for index := range v.seen {
				begin = min(begin, int(index))
			}
			return begin < 30 && len(v.seen) == 30-begin
		}); err != nil || v.wrong.Load()+v.reset.Load() > 0 {
			t.Errorf("%d streams whole, %d reset, %d wrong: %v", v.whole.Load(), v.reset.Load(), v.wrong.Load(), err)
		}
	}
}

// TestLeave has subscribers, and then the publisher, leave. Nothing of them stays.
func TestLeave(t *testing.T) {
	b := newBed(t, options{in: delayed(), out: delayed()})
	stays, leaves := b.subscribe(true, wide()), b.subscribe(true, wide())
	p := b.publish(true, nil)
	b.play(p, plan{streams: 20, objects: 20, rate: 1000, then: func(i int) {
		if i == 10 {
			leaves.Close()
		}
	}})
	b.await(stays, 20)
	b.check(testnet.Until(5*time.Second, "the subscriber's receiver is removed", func() bool {
		_, receivers := b.rows()
		return receivers == 1
	}))
	p.Close()
	stays.Close()
	b.check(testnet.Until(5*time.Second, "all rows are removed", func() bool {
		connections, receivers := b.rows()
		return connections == 0 && receivers == 0 && len(b.server.Stats()) == 0
	}))
}

// TestClose has clients learn at once that the server has ended.
func TestClose(t *testing.T) {
	for name, fast := range map[string]bool{"in the kernel": true, "protected": false} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t, options{in: delayed(), out: delayed()})
			v, p := b.subscribe(fast, wide()), b.publish(fast, nil)
			b.play(p, plan{streams: 3, objects: 20, rate: 1000, viewers: []*viewer{v}})
			b.await(v, 3)
			b.check(b.server.Close())
			for _, c := range []*client.Conn{v.Conn, p} {
				select {
				case <-c.Context().Done():
				case <-time.After(5 * time.Second):
					t.Fatal("a client isn't told")
				}
				var told *quic.ApplicationError
				if err := context.Cause(c.Context()); !errors.As(err, &told) || !told.Remote || told.ErrorCode != 0 {
					t.Error(err)
				}
			}
		})
	}
}

// TestNames has clients ask for what can't be printed.
func TestNames(t *testing.T) {
	b := newBed(t, options{})
	for _, name := range []string{"two words", "\x1b[31m", "a\x01b", "not\xffUTF-8", "a\tb", "a\u2028b"} {
		c, err := client.Subscribe(b.ctx, name, client.Config{
			Server: address, TLS: secrets(), Socket: b.socket(b.users), QUIC: wide(),
		})
		var refused *quic.ApplicationError
		if !errors.As(err, &refused) || refused.ErrorCode != codeRequest {
			t.Errorf("%q: %v, %v", name, c, err)
		}
	}
	v, err := client.Subscribe(b.ctx, "café\r", client.Config{
		Server: address, TLS: secrets(), Socket: b.socket(b.users), QUIC: wide(),
	})
	b.check(err)
	defer v.Close()
	if all := b.server.Stats(); len(all) != 1 || all[0].Name != "café" {
		t.Errorf("%+v", all)
	}
}

// TestMoved has a NAT give a subscriber another port while no stream is sent. In one round trip the relay validates the
// new address. So two packets from there suffice, and no more get through: what it sees first, and the answer to its
// challenge.
func TestMoved(t *testing.T) {
	b := newBed(t, options{in: delayed(), out: delayed()})
	to := b.rebound(b.users)
	v := b.subscribeFrom(to, true, wide())
	b.publish(true, nil)
	to.left.Store(0)
	b.move(to, b.users)
	to.answers.Store(1)
	to.left.Store(1)
	port := uint16(to.LocalAddr().(*net.UDPAddr).Port)
	b.check(v.SendDatagram([]byte("from elsewhere")))
	b.check(testnet.Until(10*time.Second, "the receiver has moved", func() bool {
		for g := range b.server.relay.Subscribers.All() {
			return g.Receivers()[0].Row().Remote.Port() == port
		}
		return false
	}))
}

// TestRebinding has NATs give subscriber and publisher other ports while streams are sent.
func TestRebinding(t *testing.T) {
	b := newBed(t, options{in: delayed(), out: delayed()})
	to, from := b.rebound(b.users), b.rebound(b.publishers)
	v := b.subscribeFrom(to, true, wide())
	p := b.publishFrom(from, true, nil)
	all := plan{streams: 60, objects: 20, rate: 1000, viewers: []*viewer{v}, ahead: 200}
	all.then = func(i int) {
		switch i {
		case 15:
			b.move(to, b.users)
			b.check(v.SendDatagram([]byte("from elsewhere")))
		case 30:
			b.move(from, b.publishers)
		}
	}
	b.play(p, all)
	b.await(v, 60)
	if st := b.server.Stats()[0].Sum(); v.reset.Load() > 0 || st.KernelBytes < 600_000 {
		t.Errorf("%d streams were reset; %+v", v.reset.Load(), st)
	}
}

// TestResets has a publisher reset streams, and leave others open when it goes. Another one follows.
func TestResets(t *testing.T) {
	b := newBed(t, options{in: delayed(), out: delayed()})
	viewers := []*viewer{b.subscribe(true, wide()), b.subscribe(true, wide()), b.subscribe(false, wide())}
	p := b.publish(true, nil)
	b.play(p, plan{streams: 20, objects: 5, rate: 1000, then: func(int) {
		out, err := p.OpenUniStreamSync(b.ctx)
		b.check(err)
		_, err = out.Write(make([]byte, 1500))
		b.check(err)
		out.CancelWrite(7)
	}})
	out, err := p.OpenUniStreamSync(b.ctx)
	b.check(err)
	_, err = out.Write(make([]byte, 3000))
	b.check(err)
	for _, v := range viewers {
		b.await(v, 40)
	}
	p.Close()
	for _, v := range viewers {
		b.await(v, 41)
		if v.whole.Load() != 20 || v.reset.Load() != 21 {
			t.Errorf("%d streams are whole, %d were reset", v.whole.Load(), v.reset.Load())
		}
	}
	b.check(testnet.Until(5*time.Second, "the publisher is gone", func() bool {
		return !b.server.Stats()[0].Publisher
	}))
	b.play(b.publish(true, nil), plan{first: 100, streams: 20, objects: 20, rate: 1000})
	for _, v := range viewers {
		b.await(v, 61)
	}
	if st := b.server.Stats()[0].Subscribers[0]; st.EndedStreams != 21 || st.DroppedStreams != [levels]uint64{} {
		t.Errorf("%+v", st)
	}
}

// TestStock has stock clients, whose connections are protected, take part.
func TestStock(t *testing.T) {
	for _, fast := range []bool{true, false} {
		b := newBed(t, options{in: delayed(), out: delayed()})
		viewers := []*viewer{b.subscribe(true, wide()), b.subscribe(false, wide()), b.subscribe(false, nil)}
		b.play(b.publish(fast, nil), plan{streams: 50, objects: 10, rate: 1000, viewers: viewers, ahead: 24})
		for _, v := range viewers {
			b.await(v, 50)
		}
		st := b.server.Stats()[0]
		for i, u := range st.Subscribers {
			if share := u.KernelBytes * 100 / 500_000; (share > 50) != (fast && i == 0) || u.DroppedBytes > 0 {
				t.Errorf("the publisher fast: %v, subscriber %d: the kernel's share is %d%%, %d bytes were dropped",
					fast, i, share, u.DroppedBytes)
			}
		}
	}
}

// TestLimits has subscribers that allow little: few streams, little data, or little of a stream.
func TestLimits(t *testing.T) {
	for name, change := range map[string]func(*quic.Config){
		"streams":     func(c *quic.Config) { c.MaxIncomingUniStreams = 6 },
		"two streams": func(c *quic.Config) { c.MaxIncomingUniStreams = 2 }, // too few for the kernel
		"data": func(c *quic.Config) {
			c.InitialConnectionReceiveWindow, c.MaxConnectionReceiveWindow = 300_000, 300_000
		},
		"little data": func(c *quic.Config) {
			c.InitialConnectionReceiveWindow, c.MaxConnectionReceiveWindow = 30_000, 30_000
		},
		"stream data": func(c *quic.Config) { c.InitialStreamReceiveWindow, c.MaxStreamReceiveWindow = 4000, 4000 },
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t, options{in: delayed(), out: delayed()})
			config := wide()
			change(config)
			viewers := []*viewer{b.subscribe(true, config), b.subscribe(false, config), b.subscribe(true, wide())}
			b.play(b.publish(true, nil), plan{streams: 80, objects: 10, rate: 1000})
			for _, v := range viewers {
				b.await(v, 80)
				if v.reset.Load() > 0 {
					t.Errorf("%d streams were reset", v.reset.Load())
				}
			}
		})
	}
}

// TestSlow has a subscriber whose link takes 2 Mbit/s, beside one whose link takes 100 Mbit/s, of 8 Mbit/s. The fast
// one gets all. What the slow one doesn't get is of the least urgent level in use.
func TestSlow(t *testing.T) {
	out := delayed()
	out.FromA.Rate = 100_000_000
	b := newBed(t, options{in: delayed(), out: out})
	far, err := b.net.Host("far")
	b.check(err)
	config := delayed()
	config.FromA.Rate = 2_000_000
	slow := testlink.Start(t, b.net, b.relay, "slow", far, "eth0", config)
	b.check(errors.Join(slow.A.AddAddr("10.3.0.1/24"), slow.B.AddAddr("10.3.0.2/24"),
		slow.B.AddRoute("0.0.0.0/0", "10.3.0.1")))
	b.check(b.server.relay.Acks.Attach("slow"))
	fast, narrow := b.subscribe(true, wide()), b.subscribeFrom(b.socket(far), true, wide())
	p := plan{streams: 400, objects: 10, rate: 1000, level: func(i int) int8 { return int8(i % levels) }}
	b.play(b.publish(true, nil), p)
	b.account([]*viewer{fast, narrow}, p)
	if b.declined("refused_window") == 0 {
		t.Error("there was always room in the slow one's window")
	}
	st := b.server.Stats()[0].Subscribers
	t.Logf("fast: %+v", st[0])
	t.Logf("slow: %+v", st[1])
	if fast.reset.Load() > 0 || st[0].DroppedBytes > 0 {
		t.Errorf("the fast one lost %d streams", fast.reset.Load())
	}
	d := st[1].DroppedStreams
	total := d[0] + d[1] + d[2] + d[3]
	if d[0] > 0 || total < 50 {
		t.Errorf("the slow one: %d streams were dropped by level", d)
	}
	if 100*st[1].DroppedBefore > total {
		t.Errorf("the slow one: of %d streams, %d were dropped while something less urgent waited",
			total, st[1].DroppedBefore)
	}
}
