package server

import (
	"flag"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fastrelay/fastrelay-gen/examples/quic/client"
	"github.com/fastrelay/fastrelay-gen/internal/test/testlink"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

var whole = flag.Bool("whole", false, "test each shape of traffic with each number of subscribers and each kind of "+
	"loss, 10,000 objects each (two hours)")

// A shape is how objects of 1,000 bytes are sent.
type shape struct {
	name   string
	stream int     // objects in a stream; 0: each is a datagram
	share  float64 // of all bytes in streams, the least that the kernel sends if no packet is lost
}

var (
	single = shape{"one object a stream", 1, 0.75}
	sixty  = shape{"60 objects a stream", 60, 0.95}
	// Frames of video that are larger have a larger share.
	video = shape{"frames of 5 kB", 5, 0.95}
	loose = shape{"datagrams", 0, 0}
)

// A weather is what happens to packets on both links.
type weather struct {
	name string
	link testlink.Direction
}

var (
	fair   = weather{"no loss", testlink.Direction{Delay: delay}}
	light  = weather{"1% lost", testlink.Direction{Delay: delay, Loss: 0.01}}
	heavy  = weather{"5% lost", testlink.Direction{Delay: delay, Loss: 0.05}}
	bursts = weather{"bursts of 20", testlink.Direction{
		Delay: delay, Bursts: testlink.Bursts{Loss: 0.02, Length: 20, Exact: true},
	}}
	confused = weather{"duplicates, other order", testlink.Direction{
		Delay: delay, Loss: 0.01, Duplicates: 0.01, Reordering: testlink.Reordering{Share: 0.01, By: 5},
	}}
)

// A cell is a test of the matrix.
type cell struct {
	shape
	subscribers, objects int
	weather
	stock bool // publisher and subscribers are as any: no packet goes through the kernel
}

// deliveries is how many objects all subscribers get a second.
const deliveries = 8000

func (c cell) rate() int { return min(1000, deliveries/c.subscribers) }

// ahead is how many objects may be on their way: as many as the smallest congestion window takes without losses.
func (c cell) ahead() int {
	if c.weather.name == fair.name {
		return 24
	}
	return 250
}

// cells returns what is tested: a choice, unless all is.
func cells() (all []cell) {
	if !*whole {
		return []cell{
			{single, 1, 4000, fair, false}, {sixty, 1, 4000, fair, false}, {single, 8, 3000, fair, false},
			{sixty, 8, 6000, fair, false}, {single, 8, 1000, light, false}, {sixty, 8, 1200, heavy, false},
			{single, 8, 1000, bursts, false}, {sixty, 1, 2400, bursts, false}, {sixty, 64, 600, light, false},
			{single, 64, 400, fair, false}, {single, 8, 1000, confused, false}, {video, 8, 3000, fair, false},
			{loose, 8, 1000, fair, false}, {loose, 8, 1000, heavy, false},
			{sixty, 8, 1200, fair, true}, {single, 8, 1000, light, true}, {sixty, 8, 600, heavy, true},
			{video, 8, 1000, bursts, true}, {single, 8, 1000, confused, true},
		}
	}
	for _, s := range []shape{single, sixty, video, loose} {
		for _, n := range []int{1, 8, 64} {
			for _, w := range []weather{fair, light, heavy, bursts, confused} {
				if s != loose || w.link.Duplicates == 0 { // the kernel copies each duplicate
					all = append(all, cell{s, n, 10_000, w, false})
				}
				if s != loose {
					all = append(all, cell{s, n, 10_000, w, true})
				}
			}
		}
	}
	return all
}

// TestMatrix has subscribers get what a publisher sends: each stream whole, or reset and counted once. What the kernel
// sent, what user space sent, and what was dropped add up to all objects for each subscriber.
func TestMatrix(t *testing.T) {
	for _, c := range cells() {
		name := fmt.Sprintf("%s, %d subscribers, %s", c.shape.name, c.subscribers, c.weather.name)
		if c.stock {
			name += ", stock"
		}
		t.Run(name, c.test)
	}
}

func (c cell) test(t *testing.T) {
	back := testlink.Direction{Delay: delay, Loss: c.link.Loss}
	b := newBed(t, options{
		in:  testlink.Config{Seed: 1, FromA: back, FromB: c.link},
		out: testlink.Config{Seed: 2, FromA: c.link, FromB: back},
	})
	if c.link.Bursts.Loss > 0 {
		b.trickle()
	}
	viewers := make([]*viewer, c.subscribers)
	for i := range viewers {
		viewers[i] = b.subscribe(!c.stock, wide())
	}
	var alone lone
	p := b.publish(!c.stock, alone.in(wide()))
	if c.stream == 0 {
		kernel := c.datagrams(b, p, viewers, size)
		t.Logf("the kernel has sent %d datagrams", kernel)
		closed := b.declined("refused_window")
		if want := alone.Load() * uint64(c.subscribers); c.weather.name == fair.name && kernel+closed != want {
			t.Errorf("the kernel has sent %d datagrams, and no window was open for %d: want %d", kernel, closed, want)
		}
		return
	}
	kernel, all := c.streams(b, p, viewers)
	if c.stock {
		sum := b.server.Stats()[0].Sum()
		t.Logf("%d packets were sealed, for %d bytes", sum.SealedPackets, sum.UserBytes)
		return
	}
	share := float64(kernel) / float64(all)
	t.Logf("the kernel's share is %.1f%%", 100*share)
	if c.weather.name == fair.name && share < c.share {
		t.Errorf("the kernel's share is %.1f%%, less than %.0f%%", 100*share, 100*c.share)
	}
}

// size is how many bytes of data an object has.
const size = 1000

// streams sends the objects in streams. It returns how many bytes the kernel has sent, of all that were sent.
func (c cell) streams(b *bed, from *client.Conn, viewers []*viewer) (kernel, all uint64) {
	p := plan{
		streams: c.objects / c.stream, objects: c.stream, rate: c.rate(), viewers: viewers, ahead: c.ahead(),
	}
	b.play(from, p)
	if n := b.account(viewers, p); n > 0 && c.weather.name == fair.name {
		b.Errorf("%d streams were reset", n)
	}
	for _, s := range b.server.Stats()[0].Subscribers {
		kernel, all = kernel+s.KernelBytes, all+s.KernelBytes+s.UserBytes
	}
	return kernel, all
}

// datagrams sends the objects in datagrams of that size, which may be lost. It returns how many the kernel has sent.
func (c cell) datagrams(b *bed, p *client.Conn, viewers []*viewer, size int) (kernel uint64) {
	got, news := make([]atomic.Int64, len(viewers)), make(chan struct{}, 1)
	for i, v := range viewers {
		go c.receive(b, v, &got[i], news)
	}
	lossless := c.weather.name == fair.name
	await := func(n int) { // until each subscriber has got so many
		for i := range got {
			for limit := time.After(time.Minute); lossless && got[i].Load() < int64(n); {
				select {
				case <-news:
				case <-limit:
					b.Fatalf("subscriber %d got %d datagrams of %d", i, got[i].Load(), n)
				}
			}
		}
	}
	next := time.Now()
	for i := range c.objects {
		await(i - c.ahead())
		b.check(p.SendDatagram(content(uint64(i), size)))
		pace(&next, c.rate())
	}
	await(c.objects)
	var feed FeedStats
	b.check(testnet.Until(5*time.Second, "each datagram is counted for each subscriber", func() bool {
		feed = b.server.Stats()[0]
		for _, s := range feed.Subscribers {
			if s.KernelDatagrams+s.UserDatagrams+s.DroppedDatagrams != feed.Datagrams {
				return false
			}
		}
		return !lossless || feed.Datagrams == uint64(c.objects)
	}))
	for i := range got {
		s := feed.Subscribers[i]
		sent := s.KernelDatagrams + s.UserDatagrams
		if n := uint64(got[i].Load()); n > sent || lossless && s.DroppedDatagrams > 0 {
			b.Errorf("subscriber %d: got %d datagrams; the kernel has sent %d, user space %d; %d were dropped", i, n,
				s.KernelDatagrams, s.UserDatagrams, s.DroppedDatagrams)
		}
		kernel += s.KernelDatagrams
	}
	return kernel
}

// receive checks the datagrams that a subscriber gets, and counts them.
func (c cell) receive(b *bed, v *viewer, got *atomic.Int64, news chan<- struct{}) {
	seen := make([]bool, c.objects)
	for {
		d, err := v.ReceiveDatagram(b.ctx)
		if err != nil {
			return
		}
		if n, err := checkStream(d); err != nil || seen[n] {
			b.Errorf("datagram %d came before, or isn't right: %v", n, err)
		} else {
			seen[n] = true
		}
		got.Add(1)
		select {
		case news <- struct{}{}:
		default:
		}
	}
}
