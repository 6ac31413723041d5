package server

import (
	"fmt"
	"testing"

	"github.com/fastrelay/fastrelay-gen/internal/test/testlink"
)

var (
	sixty = plan{streams: 30, objects: 60, rate: 1000}
	one   = plan{streams: 1000, objects: 1, rate: 1000}
)

// TestStreams sends streams without losses: nothing is dropped, and the kernel sends most.
func TestStreams(t *testing.T) {
	for _, c := range []struct {
		n     int
		p     plan
		share float64
	}{{1, sixty, 0.95}, {8, sixty, 0.95}, {1, one, 0.75}, {8, one, 0.75}} {
		t.Run(fmt.Sprintf("%d subscribers, %d objects a stream", c.n, c.p.objects), func(t *testing.T) {
			b := newBed(t, options{in: delayed(), out: delayed()})
			sum := b.stream(c.n, c.p)
			share := float64(sum.KernelBytes) / float64(sum.KernelBytes+sum.UserBytes)
			t.Logf("the kernel's share is %.1f%%", 100*share)
			if share < c.share || sum.DroppedBytes > 0 {
				t.Errorf("the kernel's share is %.1f%%, %d bytes were dropped", 100*share, sum.DroppedBytes)
			}
		})
	}
}

// TestLosses sends streams over links that lose packets.
func TestLosses(t *testing.T) {
	for name, d := range map[string]testlink.Direction{
		"none": {Delay: delay}, "1%": {Delay: delay, Loss: 0.01}, "5%": {Delay: delay, Loss: 0.05},
		"bursts": {Delay: delay, Bursts: testlink.Bursts{Loss: 0.02, Length: 20}},
		"all":    {Delay: delay, Loss: 0.01, Duplicates: 0.01, Reordering: testlink.Reordering{Share: 0.01, By: 5}},
	} {
		for _, p := range []plan{{streams: 10, objects: 60, rate: 1000}, {streams: 600, objects: 1, rate: 1000}} {
			t.Run(fmt.Sprintf("%s, %d objects a stream", name, p.objects), func(t *testing.T) {
				back := testlink.Direction{Delay: delay, Loss: d.Loss}
				b := newBed(t, options{
					in: testlink.Config{Seed: 1, FromA: back, FromB: d}, out: testlink.Config{Seed: 2, FromA: d, FromB: back},
				})
				b.stream(4, p)
			})
		}
	}
}

// stream has subscribers get what a publisher sends by a plan, and adds up.
func (b *bed) stream(n int, p plan) SubscriberStats {
	b.Helper()
	var viewers []*viewer
	for range n {
		viewers = append(viewers, b.subscribe(true, wide()))
	}
	b.play(b.publish(true, nil), p)
	for _, v := range viewers {
		b.await(v, p.streams)
	}
	sum := b.server.Stats()[0].Sum()
	b.Logf("%+v", sum)
	if sum.KernelBytes+sum.UserBytes+sum.DroppedBytes != uint64(n*p.streams*p.objects*1000) {
		b.Errorf("%d bytes were sent by the kernel, %d by user space, and %d were dropped: not %d subscribers × %d objects",
			sum.KernelBytes, sum.UserBytes, sum.DroppedBytes, n, p.streams*p.objects)
	}
	return sum
}
