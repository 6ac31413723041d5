package testlink

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"time"
)

// Config says what a link does to the packets of its two ends. The zero value does nothing.
type Config struct {
	Seed         uint64
	FromA, FromB Direction
}

// Direction says what a link does to the packets that one of its ends sends. Shares are between 0 and 1.
type Direction struct {
	Delay time.Duration
	// Loss is the share of packets that are lost, each independently of others.
	Loss float64
	// Bursts lose several packets in a row.
	Bursts Bursts
	// Duplicates is the share of packets that arrive twice, one right after the other.
	Duplicates float64
	Reordering Reordering
	// Rate is in bits per second, counted with Ethernet headers. 0 means no limit.
	Rate int
	// Queue is how many bytes may wait because of Rate; others are refused. 0 means 50 ms of the rate, at least 15,000.
	Queue int
}

// Bursts are losses of several packets in a row: a chain of two states (Gilbert), in one of which everything is lost.
type Bursts struct {
	Loss   float64 // the share of packets that are lost in bursts
	Length float64 // the mean number of packets in a burst, at least 1
	// Exact makes all bursts of that many packets; otherwise some are several times as long. A sender that doubles its
	// timeout each time, as QUIC's does, is silent for half a minute when twenty packets in a row are lost.
	Exact bool
}

// start returns the probability that a burst begins with a packet before which there was none: with it, the chain is in
// its lossy state for the share Loss of all packets.
func (b Bursts) start() float64 {
	if b.Loss == 0 {
		return 0
	}
	return b.Loss / (b.Length * (1 - b.Loss))
}

// Reordering holds packets back until others have overtaken them.
type Reordering struct {
	Share float64 // of packets that are held back
	By    int     // how many later packets of the direction go first, lost ones included

	// Hold is how long a packet waits beyond its delay if too few packets follow; 0: 100 ms.
	Hold time.Duration
}

func (r Reordering) hold() time.Duration {
	if r.Hold == 0 {
		return holdLimit
	}
	return r.Hold
}

// holdLimit is Reordering.Hold if none is given.
const holdLimit = 100 * time.Millisecond

func (c Config) check() error {
	return errors.Join(c.FromA.check("FromA"), c.FromB.check("FromB"))
}

func (d Direction) check(name string) error {
	var errs []error
	wrong := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("testlink: %s: %s", name, fmt.Sprintf(format, args...)))
	}
	for _, s := range []struct {
		name  string
		share float64
	}{
		{"Loss", d.Loss}, {"Bursts.Loss", d.Bursts.Loss}, {"Duplicates", d.Duplicates},
		{"Reordering.Share", d.Reordering.Share},
	} {
		if !(s.share >= 0 && s.share <= 1) {
			wrong("%s is a share, between 0 and 1, not %v", s.name, s.share)
		}
	}
	if b := d.Bursts; b.Loss > 0 && (!(b.Length >= 1) || !(b.start() <= 1)) {
		wrong("bursts of %v packets on average can't lose %v of all packets", b.Length, b.Loss)
	}
	if b := d.Bursts; b.Exact && b.Length != math.Trunc(b.Length) {
		wrong("bursts of exactly %v packets", b.Length)
	}
	if r := d.Reordering; r.Share > 0 && r.By < 1 {
		wrong("Reordering.By is the number of packets that overtake one, at least 1, not %d", r.By)
	}
	if d.Delay < 0 || d.Rate < 0 || d.Queue < 0 {
		wrong("a delay, a rate or a queue is negative")
	}
	return errors.Join(errs...)
}

// Fate is what happens to one packet.
type Fate struct {
	Lost      bool // independently of others
	InBurst   bool // lost in a burst
	Twice     bool // arrives twice
	Overtaken int  // by so many later packets
}

// Fates are the fates of the packets of one direction, in their order.
type Fates struct {
	d                                   Direction
	loss, bursts, duplicates, reordered *rand.Rand
	burst                               float64 // how many packets of a burst were lost; 0: there is none
}

// Fates returns what will happen to the packets of both directions. Each property has random numbers of its own, so
// changing one doesn't change which packets another one concerns.
func (c Config) Fates() (fromA, fromB *Fates) {
	return newFates(c.Seed, 0, c.FromA), newFates(c.Seed, 1, c.FromB)
}

func newFates(seed, side uint64, d Direction) *Fates {
	source := func(property uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, side<<8|property)) }
	return &Fates{d: d, loss: source(0), bursts: source(1), duplicates: source(2), reordered: source(3)}
}

// Next returns the fate of the next packet.
func (f *Fates) Next() Fate {
	turn, b := f.bursts.Float64(), f.d.Bursts
	switch {
	case f.burst == 0 && turn < b.start(), f.burst > 0 && b.Exact && f.burst < b.Length,
		f.burst > 0 && !b.Exact && turn >= 1/b.Length:
		f.burst++
	default:
		f.burst = 0
	}
	fate := Fate{
		Lost:    f.loss.Float64() < f.d.Loss,
		InBurst: f.burst > 0,
		Twice:   f.duplicates.Float64() < f.d.Duplicates,
	}
	if f.reordered.Float64() < f.d.Reordering.Share {
		fate.Overtaken = f.d.Reordering.By
	}
	return fate
}
