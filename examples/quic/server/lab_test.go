package server

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fastrelay/fastrelay-gen/examples/quic/client"
	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go"
	"github.com/fastrelay/fastrelay-gen/internal/test/selfsigned"
	"github.com/fastrelay/fastrelay-gen/internal/test/testlink"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

func TestMain(m *testing.M) {
	testlink.Main()
	if pins := os.Getenv(serveEnv); pins != "" {
		serve(pins)
	}
	os.Exit(m.Run())
}

// A bed is a server between a publisher's host and a subscribers' host, each at the end of a link.
type bed struct {
	testing.TB
	net                      *testnet.Net
	publishers, relay, users *testnet.Host
	in, out                  *testlink.Link
	server                   *Server
	config                   Config
	ctx                      context.Context
}

var (
	address = netip.MustParseAddrPort("10.1.0.1:4433")
	secrets = sync.OnceValue(func() *tls.Config {
		config, err := selfsigned.Config("fastrelay")
		if err != nil {
			panic(err)
		}
		return config
	})
)

// An options says what a bed is like.
type options struct {
	in, out testlink.Config // the links; A is the relay's end
	change  func(*Config)
}

func newBed(t testing.TB, o options) *bed {
	t.Helper()
	needs.Root(t)
	b := &bed{TB: t, net: testnet.Start(t)}
	var errs [3]error
	b.relay, errs[0] = b.net.Host("relay")
	b.publishers, errs[1] = b.net.Host("publishers")
	b.users, errs[2] = b.net.Host("users")
	b.check(errors.Join(errs[:]...))
	b.in = testlink.Start(t, b.net, b.relay, "in", b.publishers, "eth0", o.in)
	b.out = testlink.Start(t, b.net, b.relay, "out", b.users, "eth0", o.out)
	join := func(l *testlink.Link, relay, other string) error {
		return errors.Join(l.A.AddAddr(relay+"/24"), l.B.AddAddr(other+"/24"), l.B.AddRoute("0.0.0.0/0", relay),
			l.A.AddNeighbour(netip.MustParseAddr(other), l.B.MAC),
			l.B.AddNeighbour(netip.MustParseAddr(relay), l.A.MAC))
	}
	b.check(errors.Join(join(b.in, "10.1.0.1", "10.1.0.2"), join(b.out, "10.2.0.1", "10.2.0.2")))
	var cancel context.CancelFunc
	b.ctx, cancel = context.WithTimeout(t.Context(), 10*time.Minute)
	t.Cleanup(cancel)
	b.config = Config{
		Address: address, TLS: secrets(), Interfaces: []string{"in", "out"},
		Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
	}
	if o.change != nil {
		o.change(&b.config)
	}
	if b.config.Address.IsValid() {
		b.start()
	}
	return b
}

func (b *bed) check(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

func (b *bed) start() {
	b.Helper()
	b.check(b.relay.Do(func() (err error) {
		b.server, err = Start(b.config)
		return err
	}))
	b.Cleanup(func() {
		if b.Failed() || testing.Verbose() {
			for _, f := range b.server.Stats() {
				b.Logf("feed %+v", f)
			}
			for _, p := range b.server.relay.Runtime().Programs() {
				counts, _ := p.Counts()
				for i, n := range counts {
					if n.Packets > 0 {
						b.Logf("%s: %d %s", p.Name(), n.Packets, p.Desc().Reason(i).Name)
					}
				}
			}
		}
		b.server.Close()
	})
}

func (b *bed) socket(h *testnet.Host) (c *net.UDPConn) {
	b.Helper()
	b.check(h.Do(func() (err error) {
		c, err = net.ListenUDP("udp4", nil)
		return err
	}))
	b.Cleanup(func() { c.Close() })
	return c
}

// trickle has other packets cross both links all the time. A burst of losses is so many packets, and QUIC's timeout
// doubles with each that is lost: in a burst at the end of what is sent, connections would end as idle.
func (b *bed) trickle() {
	b.Helper()
	port := func(c *net.UDPConn) uint16 { return uint16(c.LocalAddr().(*net.UDPAddr).Port) }
	relay := b.socket(b.relay)
	for host, addresses := range map[*testnet.Host][2]string{
		b.publishers: {"10.1.0.1", "10.1.0.2"}, b.users: {"10.2.0.1", "10.2.0.2"},
	} {
		other := b.socket(host)
		to := netip.AddrPortFrom(netip.MustParseAddr(addresses[0]), port(relay))
		from := netip.AddrPortFrom(netip.MustParseAddr(addresses[1]), port(other))
		go func() {
			pace := time.NewTicker(5 * time.Millisecond)
			defer pace.Stop()
			for {
				select {
				case <-b.ctx.Done():
					return
				case <-pace.C:
					_, _ = other.WriteToUDPAddrPort(nil, to)
					_, _ = relay.WriteToUDPAddrPort(nil, from)
				}
			}
		}()
	}
}

// A rebound socket sends from another port now and then, as after a NAT has forgotten it.
type rebound struct {
	now     atomic.Pointer[net.UDPConn]
	left    atomic.Int64 // how many packets it may still send; others are lost
	answers atomic.Int64 // how many more of the packets that come give it one to send
}

func (r *rebound) ReadFrom(p []byte) (int, net.Addr, error) {
	for {
		c := r.now.Load()
		n, from, err := c.ReadFrom(p)
		if err == nil && r.answers.Add(-1) >= 0 {
			r.left.Store(1)
		}
		if err == nil || c == r.now.Load() {
			return n, from, err
		}
	}
}

func (r *rebound) WriteTo(p []byte, to net.Addr) (int, error) {
	if r.left.Add(-1) < 0 {
		return len(p), nil
	}
	return r.now.Load().WriteTo(p, to)
}

func (r *rebound) Close() error                       { return r.now.Load().Close() }
func (r *rebound) LocalAddr() net.Addr                { return r.now.Load().LocalAddr() }
func (r *rebound) SetDeadline(t time.Time) error      { return r.now.Load().SetDeadline(t) }
func (r *rebound) SetReadDeadline(t time.Time) error  { return r.now.Load().SetReadDeadline(t) }
func (r *rebound) SetWriteDeadline(t time.Time) error { return r.now.Load().SetWriteDeadline(t) }

func (b *bed) rebound(h *testnet.Host) *rebound {
	r := &rebound{}
	r.left.Store(math.MaxInt64)
	r.now.Store(b.socket(h))
	return r
}

// move gives a socket another port.
func (b *bed) move(r *rebound, h *testnet.Host) { r.now.Swap(b.socket(h)).Close() }

// wide is a configuration of a client whose limits aren't in the way.
func wide() *quic.Config {
	return &quic.Config{
		MaxIncomingUniStreams: 1 << 14, EnableDatagrams: true,
		InitialStreamReceiveWindow: 1 << 20, MaxStreamReceiveWindow: 1 << 20,
		InitialConnectionReceiveWindow: 1 << 24, MaxConnectionReceiveWindow: 1 << 24,
	}
}

func (b *bed) publish(fast bool, config *quic.Config) *client.Conn {
	b.Helper()
	return b.publishFrom(b.socket(b.publishers), fast, config)
}

func (b *bed) publishFrom(socket net.PacketConn, fast bool, config *quic.Config) *client.Conn {
	b.Helper()
	c, err := client.Publish(b.ctx, "cam", client.Config{
		Server: address, TLS: secrets(), Socket: socket, Fast: fast, QUIC: config,
	})
	b.check(err)
	b.Cleanup(func() { c.Close() })
	return c
}

// A viewer is a subscriber that checks what it gets.
type viewer struct {
	*client.Conn
	bed                 *bed
	whole, reset, wrong atomic.Int64
	open                atomic.Int64  // bytes of streams that haven't ended
	news                chan struct{} // a signal: one of these has changed
	mu                  sync.Mutex
	problems            []error
	seen                map[uint64]int
}

func (b *bed) subscribe(fast bool, config *quic.Config) *viewer {
	b.Helper()
	return b.subscribeFrom(b.socket(b.users), fast, config)
}

func (b *bed) subscribeFrom(socket net.PacketConn, fast bool, config *quic.Config) *viewer {
	b.Helper()
	v := b.viewer(socket, fast, config)
	go v.run(b.ctx)
	return v
}

// viewer subscribes. The viewer reads nothing before it runs.
func (b *bed) viewer(socket net.PacketConn, fast bool, config *quic.Config) *viewer {
	b.Helper()
	c, err := client.Subscribe(b.ctx, "cam", client.Config{
		Server: address, TLS: secrets(), Socket: socket, Fast: fast, QUIC: config,
	})
	b.check(err)
	b.Cleanup(func() { c.Close() })
	return &viewer{Conn: c, bed: b, news: make(chan struct{}, 1), seen: map[uint64]int{}}
}

func (v *viewer) run(ctx context.Context) {
	for {
		in, err := v.AcceptUniStream(ctx)
		if err != nil {
			return
		}
		go v.read(in)
	}
}

// ended is how many streams have ended.
func (v *viewer) ended() int { return int(v.whole.Load() + v.reset.Load() + v.wrong.Load()) }

// Write takes note of data of a stream that hasn't ended.
func (v *viewer) Write(data []byte) (int, error) {
	v.open.Add(int64(len(data)))
	v.tell()
	return len(data), nil
}

func (v *viewer) tell() {
	select {
	case v.news <- struct{}{}:
	default:
	}
}

func (v *viewer) read(in *quic.ReceiveStream) {
	data, err := io.ReadAll(io.TeeReader(in, v))
	defer func() {
		v.open.Add(-int64(len(data)))
		v.tell()
	}()
	var reset *quic.StreamError
	switch {
	case errors.As(err, &reset):
		v.reset.Add(1)
		return
	case err != nil:
		return
	}
	index, err := checkStream(data)
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.seen[index]++; err == nil && v.seen[index] > 1 {
		err = fmt.Errorf("stream %d came %d times", index, v.seen[index])
	}
	if err != nil {
		v.wrong.Add(1)
		v.problems = append(v.problems, fmt.Errorf("stream %d: %w", in.StreamID(), err))
		return
	}
	v.whole.Add(1)
}

// content is what a publisher sends on its stream of that index.
func content(index uint64, size int) []byte {
	b := make([]byte, max(size, 16))
	binary.BigEndian.PutUint64(b, index)
	binary.BigEndian.PutUint64(b[8:], uint64(len(b)))
	for i := 16; i < len(b); i++ {
		b[i] = byte(index*31 + uint64(i)/7*3)
	}
	return b
}

func checkStream(b []byte) (index uint64, err error) {
	if len(b) < 16 {
		return 0, fmt.Errorf("%d bytes", len(b))
	}
	index = binary.BigEndian.Uint64(b)
	if want := content(index, int(binary.BigEndian.Uint64(b[8:]))); string(want) != string(b) {
		return index, fmt.Errorf("stream %d of the publisher isn't whole: %d bytes", index, len(b))
	}
	return index, nil
}

// A plan says what a publisher sends.
type plan struct {
	streams, objects int              // objects of 1,000 bytes
	rate             int              // objects a second
	first            int              // the index of the first stream
	level            func(i int) int8 // a stream's level of priority
	then             func(i int)      // is called after each stream

	// Viewers that get nothing else. The publisher is never more than ahead objects before any of them, however little
	// CPU time the machine has for it all.
	viewers []*viewer
	ahead   int
}

// follow waits until no viewer is too far behind.
func (b *bed) follow(p *plan, sent int) {
	b.Helper()
	for i, v := range p.viewers {
		for limit := time.After(time.Minute); sent-v.ended()*p.objects-int(v.open.Load())/size > p.ahead; {
			select {
			case <-v.news:
			case <-v.Context().Done():
				b.Fatalf("subscriber %d: %v", i, context.Cause(v.Context()))
			case <-limit:
				b.Fatalf("subscriber %d gets nothing: %d of %d streams have ended, and %d bytes of others have come", i,
					v.ended(), p.streams, v.open.Load())
			}
		}
	}
}

// play sends the streams of a plan, one after the other.
func (b *bed) play(c *client.Conn, p plan) {
	b.Helper()
	next := time.Now()
	for i := range p.streams {
		out, err := c.OpenUniStreamSync(b.ctx)
		b.check(err)
		if p.level != nil {
			out.SetPriority(2*p.level(i), true)
		}
		data := content(uint64(p.first+i), p.objects*size)
		for k := range p.objects {
			b.follow(&p, i*p.objects+k)
			_, err := out.Write(data[k*size : (k+1)*size])
			b.check(err)
			if k == p.objects-1 {
				b.check(out.Close())
			}
			pace(&next, p.rate)
		}
		if p.then != nil {
			p.then(i)
		}
	}
}

// pace waits until the time of the next object. If this one was late, all later ones are.
func pace(next *time.Time, rate int) {
	*next = next.Add(time.Second / time.Duration(rate))
	if now := time.Now(); next.Before(now) {
		*next = now
	}
	time.Sleep(time.Until(*next))
}

// await waits until a viewer has got so many streams, whole or reset.
func (b *bed) await(v *viewer, streams int) {
	b.Helper()
	got := func() bool { return v.ended() >= streams }
	err := testnet.Until(5*time.Second, "all streams", func() bool { return got() || v.Context().Err() != nil })
	if err != nil || !got() {
		b.Errorf("%d streams whole, %d reset, %d wrong, of %d; %v, %v",
			v.whole.Load(), v.reset.Load(), v.wrong.Load(), streams, err, context.Cause(v.Context()))
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(v.problems) > 0 {
		b.Errorf("%d problems: %v", len(v.problems), v.problems[0])
	}
}

// account waits until subscribers have got so many streams, each whole, or reset and counted once; each byte is
// counted once as well, at the latest when the kernel's last event has been read. A stream that is given up since a
// packet seems lost may be whole all the same: on a machine that stalls, ACKs come after the server has stopped
// keeping what it sent. It returns how many streams were reset.
func (b *bed) account(viewers []*viewer, p plan) (resets uint64) {
	b.Helper()
	for _, v := range viewers {
		b.await(v, p.streams)
	}
	all := uint64(p.streams * p.objects * size)
	counted := func(s SubscriberStats) bool {
		return s.Waiting == 0 && s.KernelBytes+s.UserBytes+s.DroppedBytes == all
	}
	var subscribers []SubscriberStats
	_ = testnet.Until(5*time.Second, "each byte is counted", func() bool {
		subscribers = b.server.Stats()[0].Subscribers
		return !slices.ContainsFunc(subscribers, func(s SubscriberStats) bool { return !counted(s) })
	})
	for i, s := range subscribers {
		dropped := uint64(0)
		for _, n := range s.DroppedStreams {
			dropped += n
		}
		whole, reset := int(viewers[i].whole.Load()), uint64(viewers[i].reset.Load())
		if whole+int(reset) != p.streams || reset > dropped {
			b.Errorf("subscriber %d: of %d streams, %d are whole, and %d were reset; %d were dropped",
				i, p.streams, whole, reset, dropped)
		}
		if !counted(s) {
			b.Errorf("subscriber %d: not all %d bytes are counted: %+v", i, all, s)
		}
		resets += reset
	}
	return resets
}
