package server

import (
	"flag"
	"fmt"
	"testing"

	"github.com/fastrelay/fastrelay-gen/examples/quic/client"
	"github.com/fastrelay/fastrelay-gen/internal/test/testlink"
)

var whole = flag.Bool("whole", false, "test each shape of traffic with each number of subscribers and each kind of "+
	"loss, 10,000 objects each (half an hour)")

// A shape is how objects of 1,000 bytes are sent.
type shape struct {
	name   string
	stream int     // objects in a stream
	share  float64 // of all bytes, the least that the kernel sends where no packet is lost
}

var (
	single = shape{"one object a stream", 1, 0.75}
	sixty  = shape{"60 objects a stream", 60, 0.95}
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
		Delay: delay, Bursts: testlink.Bursts{Loss: 0.02, Length: 20},
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
}

// deliveries is how many objects all subscribers get a second.
const deliveries = 8000

func (c cell) rate() int { return min(1000, deliveries/c.subscribers) }

// cells returns what is tested: a choice, unless all is.
func cells() (all []cell) {
	if !*whole {
		return []cell{
			{single, 1, 4000, fair}, {sixty, 1, 4000, fair}, {single, 8, 3000, fair}, {sixty, 8, 6000, fair},
			{single, 8, 1000, light}, {sixty, 8, 1200, heavy}, {single, 8, 1000, bursts}, {sixty, 1, 2400, bursts},
			{sixty, 64, 600, light}, {single, 64, 400, fair}, {single, 8, 1000, confused},
		}
	}
	for _, s := range []shape{single, sixty} {
		for _, n := range []int{1, 8, 64} {
			for _, w := range []weather{fair, light, heavy, bursts, confused} {
				all = append(all, cell{s, n, 10_000, w})
			}
		}
	}
	return all
}

// TestMatrix has subscribers get what a publisher sends: each stream whole, or reset and counted once. What the kernel
// sent, what user space sent, and what was dropped add up to all objects for each subscriber.
func TestMatrix(t *testing.T) {
	for _, c := range cells() {
		t.Run(fmt.Sprintf("%s, %d subscribers, %s", c.shape.name, c.subscribers, c.weather.name), c.test)
	}
}

func (c cell) test(t *testing.T) {
	back := testlink.Direction{Delay: delay, Loss: c.link.Loss}
	b := newBed(t, options{
		in:  testlink.Config{Seed: 1, FromA: back, FromB: c.link},
		out: testlink.Config{Seed: 2, FromA: c.link, FromB: back},
	})
	viewers := make([]*viewer, c.subscribers)
	for i := range viewers {
		viewers[i] = b.subscribe(true, wide())
	}
	p := b.publish(true, nil)
	var kernel, all uint64
	for i, s := range c.streams(b, p, viewers) {
		sent := s.KernelBytes + s.UserBytes
		if s.Waiting > 0 || sent+s.DroppedBytes != uint64(c.objects*size) {
			t.Errorf("subscriber %d: of %d objects, %d bytes were sent by the kernel, %d by user space, "+
				"%d were dropped and %d wait", i, c.objects, s.KernelBytes, s.UserBytes, s.DroppedBytes, s.Waiting)
		}
		kernel, all = kernel+s.KernelBytes, all+sent
	}
	share := float64(kernel) / float64(all)
	t.Logf("the kernel's share is %.1f%%", 100*share)
	if c.weather.name == fair.name && share < c.share {
		t.Errorf("the kernel's share is %.1f%%, less than %.0f%%", 100*share, 100*c.share)
	}
}

// size is how many bytes of data an object has.
const size = 1000

// streams sends the objects in streams.
func (c *cell) streams(b *bed, p *client.Conn, viewers []*viewer) []SubscriberStats {
	streams := c.objects / c.stream
	c.objects = streams * c.stream
	b.play(p, plan{streams: streams, objects: c.stream, rate: c.rate()})
	for _, v := range viewers {
		b.await(v, streams)
	}
	stats := b.server.Stats()[0].Subscribers
	for i, v := range viewers {
		dropped := uint64(0)
		for _, n := range stats[i].DroppedStreams {
			dropped += n
		}
		if got, reset := v.whole.Load(), v.reset.Load(); uint64(reset) != dropped || got+reset != int64(streams) {
			b.Errorf("subscriber %d: of %d streams, %d are whole, and %d were reset; %d were dropped",
				i, streams, got, reset, dropped)
		}
		if c.weather.name == fair.name && dropped > 0 {
			b.Errorf("subscriber %d: %d streams were dropped", i, dropped)
		}
	}
	return stats
}
