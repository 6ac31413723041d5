package server

import (
	"fmt"
	"maps"
	"math"
	"testing"
	"time"

	"github.com/fastrelay/fastrelay-gen/examples/congestion/control"
	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go"
	"github.com/fastrelay/fastrelay-gen/internal/test/testlink"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// fixed is an algorithm whose window never changes.
type fixed float64

func (f fixed) Signal(control.Signal) control.Decision { return control.Decision{Cwnd: float64(f)} }
func (f fixed) Rules() control.Rules                   { return control.Rules{Keep: 1, Firm: true} }

// A log has what an algorithm was told, and what it has decided. The feed's mutex guards it.
type log struct {
	control.Flow
	signals   []control.Signal
	decisions []control.Decision
}

func (l *log) Signal(s control.Signal) control.Decision {
	d := l.Flow.Signal(s)
	l.signals, l.decisions = append(l.signals, s), append(l.decisions, d)
	return d
}

const (
	bottleneck = 16_000_000 // bits a second
	trip       = 10 * time.Millisecond
)

// packets is the window of the algorithm "fixed".
const packets = 12

func algorithms() map[string]control.Algorithm {
	all := map[string]control.Algorithm{"fixed": func(float64, uint32) control.Flow { return fixed(packets) }}
	maps.Copy(all, control.Algorithms)
	return all
}

// What a publisher may be ahead of its subscriber: so little that the bottleneck isn't filled, or more than it takes.
const (
	fits  = 16
	fills = 200
)

// TestControl has the algorithms of TCP flows decide what the kernel sends to a subscriber through a bottleneck: of a
// publisher that doesn't fill it, and of one that sends more than it takes. How much of it is filled, and by whom, is
// measured (BenchmarkRatios): if a machine stalls, packets are lost, and the algorithm rightly sends less.
func TestControl(t *testing.T) {
	for name, algorithm := range algorithms() {
		for _, ahead := range []int{fits, fills} {
			if name == "fixed" && ahead == fits {
				continue // it doesn't fit into this window
			}
			t.Run(fmt.Sprintf("%s, %d ahead", name, ahead), func(t *testing.T) {
				most := 1.0 * bottleneck
				if name == "fixed" {
					most = 1.2 * packets * 1400 * 8 / (2 * trip).Seconds() // its window in each round trip
				}
				if rate, share := play(t, algorithm, ahead); rate > most || share == 0 && ahead == fits {
					t.Errorf("%.1f Mbit/s, at most %.1f are allowed; %.0f%% by the kernel", rate/1e6, most/1e6,
						100*share)
				}
			})
		}
	}
}

// BenchmarkRatios measures for each algorithm how much of the bottleneck a publisher fills that sends more than it
// takes, and how much the kernel sends of one that doesn't fill it.
func BenchmarkRatios(b *testing.B) {
	for name, algorithm := range algorithms() {
		b.Run(name, func(b *testing.B) {
			var rate, share float64
			for range b.N {
				filled, _ := play(b, algorithm, fills)
				_, kernel := play(b, algorithm, fits)
				rate, share = rate+filled, share+kernel
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(rate/float64(b.N)/bottleneck, "of-the-bottleneck")
			b.ReportMetric(share/float64(b.N), "by-the-kernel")
		})
	}
}

// play has a publisher be at most so many objects ahead of a subscriber. It returns how many bits a second that makes,
// and the kernel's share.
func play(t testing.TB, algorithm control.Algorithm, ahead int) (rate, share float64) {
	l := &log{}
	b := newBed(t, options{
		in: delayed(),
		out: testlink.Config{
			FromA: testlink.Direction{Delay: trip, Rate: bottleneck, Queue: 60_000},
			FromB: testlink.Direction{Delay: trip},
		},
		change: func(c *Config) {
			c.Control = func(cwnd float64, mss uint32) control.Flow {
				l.Flow = algorithm(cwnd, mss)
				return l
			}
		},
	})
	v := b.subscribe(true, wide())
	w := b.watch()
	p := plan{streams: 60, objects: 60, rate: 4000, viewers: []*viewer{v}, ahead: ahead}
	began := time.Now()
	b.play(b.publish(true, wide()), p)
	resets := b.account([]*viewer{v}, p)
	took := time.Since(began)
	st := b.server.Stats()[0].Subscribers[0]
	w.user.feed.mu.Lock()
	defer w.user.feed.mu.Unlock()
	if w.wrong != nil || w.times < 100 {
		t.Errorf("the credit was given %d times: %v", w.times, w.wrong)
	}
	rtt, last := time.Duration(0), control.Decision{}
	for i, s := range l.signals {
		rtt += s.RTT / time.Duration(len(l.signals))
		last = l.decisions[i]
	}
	all := float64(p.streams * p.objects * size)
	rate, share = 8*all/took.Seconds(), float64(st.KernelBytes)/all
	t.Logf("%.1f Mbit/s, %.0f%% by the kernel; %d streams were reset; %d signals, a round trip takes %v, last %+v",
		rate/1e6, 100*share, resets, len(l.signals), rtt, last)
	if most := int(took / (2 * trip)); len(l.signals) < 10 || len(l.signals) > most+1 {
		t.Errorf("%d signals in %v, want 10 to %d", len(l.signals), took, most)
	}
	return rate, share
}

// watched is the kernel's part of a subscriber, and sees each credit that it is given.
type watched struct {
	kernel
	user         *subscriber
	times        int
	limit, spent uint64 // the last time
	wrong        error
}

// setWindow checks that the kernel has spent no more than it was given, and that it isn't given more than the window
// that was decided has room for.
func (w *watched) setWindow(limit uint64) {
	spent, room := w.kernel.(*receiver).v.State.Window.Spent(), w.user.Limit(w.user.steering.room(), 0)
	if w.wrong == nil && (w.times > 0 && spent > max(w.limit, w.spent) || limit > room) {
		w.wrong = fmt.Errorf("%d is spent, after %d, of %d; %d is given, and there is room up to %d: %+v", spent,
			w.spent, w.limit, limit, room, w.user.steering)
	}
	w.kernel.setWindow(limit)
	w.times, w.limit, w.spent = w.times+1, limit, max(spent, w.kernel.(*receiver).v.State.Window.Spent())
}

// watch watches the credit of the only subscriber.
func (b *bed) watch() (w *watched) {
	b.Helper()
	b.check(testnet.Until(5*time.Second, "the kernel sends to the subscriber", func() bool {
		for _, f := range b.server.list() {
			f.mu.Lock()
			for _, u := range f.subscribers {
				if u.steering != nil {
					w = &watched{kernel: u.kernel, user: u}
					u.kernel = w
				}
			}
			f.mu.Unlock()
		}
		return w != nil
	}))
	return w
}

// The window is the library's until the first loss, and then what is decided, or what a loss leaves of it. What was
// lost together counts once.
func TestSteering(t *testing.T) {
	now := time.Unix(1000, 0)
	at := func(ms int) time.Time { return now.Add(time.Duration(ms) * time.Millisecond) }
	l := &log{Flow: control.Reno(32, 1200)}
	s := newSteering(func(float64, uint32) control.Flow { return l }, quic.PathState{CongestionWindow: 38_400}, now)
	path := quic.PathState{
		CongestionWindow: 48_000, BytesInFlight: 40_000, SmoothedRTT: 20 * time.Millisecond,
		MinRTT: 18 * time.Millisecond, MaxPacketSize: 1200,
	}
	s.update(path, 40_000, 0, at(10))
	if s.bytes() != 48_000 || s.room() != 8000 || len(l.signals) > 0 {
		t.Errorf("in the first round trip: %d, room for %d, %d signals", s.bytes(), s.room(), len(l.signals))
	}
	s.update(path, 42_400, 0, at(25))
	if got := l.signals[0]; got.Acked != 2 || got.Cwnd != 40 || !got.SlowStart || got.Limited || got.Reduced ||
		got.RTT != path.SmoothedRTT || got.MinRTT != path.MinRTT || got.Rate != 0 {
		t.Errorf("the first signal is %+v", got)
	}
	path.BytesInFlight = 47_500
	s.update(path, 52_300, 1200, at(30))
	if s.bytes() != 24_000 || s.room() != 0 {
		t.Errorf("after a loss: %d, room for %d", s.bytes(), s.room())
	}
	path.BytesInFlight = 23_500
	s.update(path, 52_300, 2400, at(50))
	if got := l.signals[1]; !got.Reduced || got.Lost != 2 || s.bytes() != 24_000 || s.room() != 500 {
		t.Errorf("losses in the same round trip are one: %d, %+v", s.bytes(), got)
	}
	s.update(path, 59_500, 2400, at(75))
	if got := l.signals[2]; got.SlowStart || !got.Limited || got.Acked != 6 || math.Abs(got.Rate-240) > 1e-6 ||
		s.bytes() != 24_360 {
		t.Errorf("the next window: %d, %+v", s.bytes(), got)
	}
	s.update(path, 59_500, 1200, at(80)) // a packet wasn't lost
	s.update(path, 59_500, 2400, at(85))
	if s.bytes() != 12_180 {
		t.Errorf("after another loss: %d", s.bytes())
	}
}
