package server

import "testing"

// TestStreams sends streams without losses.
func TestStreams(t *testing.T) {
	for _, n := range []int{1, 8} {
		for name, p := range map[string]plan{"60 objects a stream": {20, 60, 1000}, "1 object a stream": {1000, 1, 1000}} {
			t.Run(name, func(t *testing.T) {
				b := newBed(t, options{})
				var viewers []*viewer
				for range n {
					viewers = append(viewers, b.subscribe(true, wide()))
				}
				b.play(b.publish(true, nil), p)
				for _, v := range viewers {
					b.await(v, p.streams)
				}
				st := b.server.Stats()[0]
				sum := st.Sum()
				t.Logf("%d subscribers, %s: %+v", n, name, sum)
				if sum.KernelBytes+sum.UserBytes+sum.DroppedBytes != uint64(n*p.streams*p.objects*1000) {
					t.Errorf("%d + %d + %d bytes", sum.KernelBytes, sum.UserBytes, sum.DroppedBytes)
				}
			})
		}
	}
}
