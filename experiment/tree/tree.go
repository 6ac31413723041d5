// Package tree is the experiment "tree": one publisher, relays on three levels, and a thousand receivers. A relay in
// the middle is killed and replaced; what a tree delivers, what joining costs, and its memory are measured.
package tree

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/fastrelay/fastrelay-gen/bench/fanout"
	"github.com/fastrelay/fastrelay-gen/experiment/trial"
	"github.com/fastrelay/fastrelay-gen/runtime/control/api"
)

// large is the tree of the experiment: 25 relays, 1,000 receivers.
var large = shape{middle: 4, edges: 5, receivers: 50}

const (
	rate   = 50              // packets a second while a relay is replaced
	before = time.Second     // of traffic before it is killed
	stream = 4 * time.Second // of traffic in all

	step   = 500 * time.Millisecond // of traffic, for each rate that is tried
	factor = 1.15                   // from a rate to the next
	enough = 0.999                  // of all copies
	onTime = 0.95                   // of the packets of a rate
)

// The variants. Those in which a relay is killed differ in where its successor has its receivers from.
const (
	undisturbed = "undisturbed"
	pinned      = "killed and adopted"
	rebuilt     = "killed and rebuilt"
	capacity    = "capacity"
	joins       = "joins"
)

var variants = []string{undisturbed, pinned, rebuilt, capacity, joins}

// Run runs the experiment.
func Run(ctx context.Context, b *trial.Book) error {
	for _, only := range b.Only {
		if !slices.Contains(variants, only) {
			return fmt.Errorf("%q is no variant; there are: %s", only, strings.Join(variants, "; "))
		}
	}
	undo, err := fanout.PrepareMachine()
	if err != nil {
		return err
	}
	b.Parallel = 1 // there are no other processors
	b.Printf("%d relays in the middle, %d at the edge, %d receivers; %d copies of a packet of %d bytes of RTP. "+
		"%d packets a second where a relay is replaced.\n", large.middle, large.middle*large.edges, large.all(),
		large.copies(), packetSize, rate)
	err = b.Alternate(ctx, variants, func(ctx context.Context, variant string, _ int) (r trial.Result, err error) {
		t, err := build(ctx, large, variant == pinned)
		if err != nil {
			return r, err
		}
		switch variant {
		case capacity:
			r.Figures, err = t.capacity()
		case joins:
			r.Figures, err = t.joins(ctx)
		default:
			r, err = t.disturbed(ctx, variant != undisturbed)
		}
		return r, errors.Join(err, t.close())
	})
	return errors.Join(err, undo(), summarize(b))
}

// disturbed measures a stream, in the middle of which the first relay in the middle is killed and replaced.
func (t *network) disturbed(ctx context.Context, kill bool) (r trial.Result, err error) {
	if err := t.warm(); err != nil {
		return r, err
	}
	first, began := t.publisher.next, time.Now()
	t.reset()
	var how replacement
	replaced := make(chan error, 1)
	go func() {
		if !kill {
			replaced <- nil
			return
		}
		time.Sleep(before)
		var err error
		how, err = t.middle[0].replace(ctx)
		replaced <- err
	}()
	err = t.publisher.send(stream, rate)
	if err = errors.Join(err, <-replaced); err != nil {
		return r, err
	}
	sent := int(t.publisher.next - first)
	got := t.settle(sent)
	r.Figures = map[string]float64{
		"sent": float64(sent * t.shape.all()), "lost": float64(sent*t.shape.all() - got.packets),
		"doubled": float64(got.doubled), "receivers that lost": float64(got.short), "longest gap": ms(got.gap),
	}
	if kill {
		r.Figures["attached"], r.Figures["replaced"] = ms(how.ready), ms(how.rebuilt)
		r.Figures["adopted"] = map[bool]float64{true: 1}[how.adopted]
	}
	r.Curves = map[string]trial.Curve{"copies below the relay": t.arrivals(began, stream)}
	return r, nil
}

// warm sends until every receiver has had a packet: neighbours have to be resolved.
func (t *network) warm() error {
	for range 100 {
		t.reset()
		first := t.publisher.next
		if err := t.publisher.send(100*time.Millisecond, rate); err != nil {
			return err
		}
		if t.settle(int(t.publisher.next-first)).short == 0 {
			return nil
		}
	}
	return errors.New("not all receivers get the stream")
}

// capacity raises the rate until copies are lost or late.
func (t *network) capacity() (map[string]float64, error) {
	if err := t.warm(); err != nil {
		return nil, err
	}
	most := 0.0
	for rate := float64(rate); ; rate *= factor {
		var done load
		for range 3 { // something else may have taken a processor
			var err error
			if done, err = t.load(rate, step); err != nil {
				return nil, err
			}
			if done.keptUp {
				break
			}
		}
		if !done.keptUp {
			break
		}
		most = done.packets / done.took.Seconds()
	}
	copies := most * float64(t.shape.copies())
	return map[string]float64{
		"packets": most, "copies": copies, "bandwidth": copies * (packetSize + headers) * 8 / 1e9,
		"processor": 1e9 * float64(runtime.NumCPU()) / copies,
	}, nil
}

// headers are the bytes of Ethernet, IPv4 and UDP in front of RTP.
const headers = 14 + 20 + 8

// load is what became of a stream of some rate.
type load struct {
	packets float64
	took    time.Duration // until the last copy came
	keptUp  bool          // nearly all copies arrived, and none of them late
}

func (t *network) load(rate float64, d time.Duration) (l load, err error) {
	t.reset()
	first, began := t.publisher.next, time.Now()
	err = t.publisher.send(d, rate)
	sent := int(t.publisher.next - first)
	got := t.settle(sent)
	l = load{packets: float64(sent), took: time.Since(began)}
	l.keptUp = float64(got.packets) >= enough*float64(sent*t.shape.all()) && l.packets >= onTime*rate*d.Seconds() &&
		onTime*l.took.Seconds() <= d.Seconds()
	return l, err
}

// joins measures how fast receivers join a relay at the edge by its control socket, and what they take in memory.
func (t *network) joins(ctx context.Context) (map[string]float64, error) {
	edge := t.edges[0]
	maps, resident, err := edge.memory()
	if err != nil {
		return nil, err
	}
	extra := func(n int) (list []api.Object) {
		return slices.Repeat([]api.Object{edge.want[0]}, n)
	}
	add := func(receivers []api.Object) error {
		return edge.client.Do(ctx, http.MethodPatch, edge.group(), api.ChangeGroup{Add: receivers}, nil)
	}
	perSecond := func(n int, f func() error) (float64, error) {
		began := time.Now()
		err := f()
		return float64(n) / time.Since(began).Seconds(), err
	}
	const one, many, batch = 30, 200, 200 // and the 50 that are there: fewer than a group may have
	figures := map[string]float64{}
	figures["one by one"], err = perSecond(one, func() (err error) {
		for range one {
			err = errors.Join(err, add(extra(1)))
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	if figures["at once"], err = perSecond(many, func() error {
		return together(many, func(int) error { return add(extra(1)) })
	}); err != nil {
		return nil, err
	}
	figures["in one change"], err = perSecond(batch, func() error { return add(extra(batch)) })
	if err != nil {
		return nil, err
	}
	_, now, err := edge.memory()
	const room = 512 // receivers that the spec has room for
	figures["maps"], figures["a receiver's maps"] = float64(maps)/1024, float64(maps)/room
	figures["process"], figures["process then"] = float64(resident)/(1<<20), float64(now)/(1<<20)
	return figures, err
}

func ms(d time.Duration) float64 { return d.Seconds() * 1000 }

// summarize writes the tables and the plots.
func summarize(b *trial.Book) error {
	err := errors.Join(
		b.Table(trial.Column{Figure: "sent", Unit: "copies"}, trial.Column{Figure: "lost", Unit: "copies"},
			trial.Column{Figure: "receivers that lost"}, trial.Column{Figure: "doubled", Unit: "copies"},
			trial.Column{Figure: "longest gap", Unit: "ms"}, trial.Column{Figure: "attached", Unit: "ms"},
			trial.Column{Figure: "replaced", Unit: "ms"}),
		b.Table(trial.Column{Figure: "packets", Unit: "1/s"}, trial.Column{Figure: "copies", Unit: "1/s"},
			trial.Column{Figure: "bandwidth", Unit: "Gbit/s", Digits: 1},
			trial.Column{Figure: "processor", Unit: "ns a copy"}),
		b.Table(trial.Column{Figure: "one by one", Unit: "1/s"}, trial.Column{Figure: "at once", Unit: "1/s"},
			trial.Column{Figure: "in one change", Unit: "1/s"}, trial.Column{Figure: "maps", Unit: "KiB a relay"},
			trial.Column{Figure: "a receiver's maps", Unit: "bytes"},
			trial.Column{Figure: "process", Unit: "MiB", Digits: 1},
			trial.Column{Figure: "process then", Unit: "MiB", Digits: 1}))
	if lost := b.Median(rebuilt, "lost"); !math.IsNaN(lost) {
		each := lost / float64(large.edges*large.receivers)
		b.Printf("A relay whose receivers were rebuilt: every receiver below it has lost %.1f packets, %.0f ms of the "+
			"stream.\n", each, 1000*each/rate)
	}
	return errors.Join(err, b.Averages("tree.png", "copies below the relay", "1/s", undisturbed, pinned, rebuilt),
		b.Spread("copies.png", "copies", "1/s"))
}
