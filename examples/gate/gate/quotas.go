package gate

import (
	"context"
	"errors"
	"net/netip"
	"reflect"
	"time"

	"github.com/fastrelay/fastrelay-gen/examples/gate/gaterelay"
	"github.com/fastrelay/fastrelay-gen/runtime"
)

// Limits are token buckets in memory that the kernel and this process both map: to move one is no system call. Rows are
// made for sources that were admitted; so a flood from random addresses makes no more rows than are admitted.

// Quotas limit new connections. If a rate is 0, the default is taken.
type Quotas struct {
	Source    runtime.Rate // of an address
	Best      runtime.Rate // … that has finished many handshakes
	Worst     runtime.Rate // … that has only begun them
	Network   runtime.Rate // of a /24 or /48
	Elsewhere runtime.Rate // of all networks together that no connection was admitted from yet
	Regulars  runtime.Rate // of all addresses together that have finished a handshake
	Newcomers runtime.Rate // of all others together
	Strays    runtime.Rate // packets of unknown connections; a server answers some with a stateless reset
	Moves     runtime.Rate // connection IDs that are seen at a known address for the first time (Config.Watch)
}

// Defaults are quotas for a server that makes some thousand handshakes a second.
var Defaults = Quotas{
	Source: runtime.Rate{PerSecond: 20, Burst: 40}, Best: runtime.Rate{PerSecond: 200, Burst: 400},
	Worst: runtime.Rate{PerSecond: 1, Burst: 2}, Network: runtime.Rate{PerSecond: 100, Burst: 200},
	Elsewhere: runtime.Rate{PerSecond: 100, Burst: 200}, Regulars: runtime.Rate{PerSecond: 1000, Burst: 2000},
	Newcomers: runtime.Rate{PerSecond: 100, Burst: 200}, Strays: runtime.Rate{PerSecond: 20, Burst: 40},
	Moves: runtime.Rate{PerSecond: 1000, Burst: 2000},
}

// or replaces rates of 0.
func (q Quotas) or(other Quotas) Quotas {
	v, o := reflect.ValueOf(&q).Elem(), reflect.ValueOf(other)
	for i := range v.NumField() {
		if v.Field(i).IsZero() {
			v.Field(i).Set(o.Field(i))
		}
	}
	return q
}

// source is an address that new connections came from.
type source struct {
	bucket       *runtime.Bucket
	regular      bool
	done, failed int // handshakes
	last         time.Time
}

const (
	forgetNewcomer = 30 * time.Second // without a finished handshake
	forgetRegular  = time.Hour
	failures       = 8 // handshakes that are only begun, until the quota is lowered
)

func network(a netip.Addr) netip.Prefix {
	bits := 48
	if a.Is4() {
		bits = 24
	}
	p, _ := a.Prefix(bits) // bits are in range
	return p
}

// rows makes the rows that there always are, and finds those of a predecessor.
func (g *Gate) rows() (err error) {
	g.sources, g.nets = map[netip.Addr]*source{}, map[netip.Prefix]*runtime.Bucket{}
	if g.total, err = g.relay.Totals.Get(g.config.Port); errors.Is(err, runtime.ErrNotFound) {
		if err = g.relay.Totals.Put(g.config.Port, gaterelay.TotalsRow{}); err == nil {
			g.total, err = g.relay.Totals.Get(g.config.Port)
		}
	}
	if err != nil {
		return err
	}
	now := time.Now()
	for e, err := range g.relay.Sources.All() {
		if err != nil {
			return err
		}
		g.sources[e.Key] = &source{bucket: e.Value.New, regular: e.Value.Regular, last: now}
		if e.Value.Regular {
			g.sources[e.Key].done = 1
		}
	}
	for e, err := range g.relay.Networks.All() {
		if err != nil {
			return err
		}
		g.nets[e.Key] = e.Value.New
	}
	q := g.config.Quotas
	for _, all := range []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")} {
		if err := g.addNetwork(all, q.Elsewhere); err != nil {
			return err
		}
	}
	g.setQuotas(q)
	if g.config.Watch {
		return g.adoptFlows(now)
	}
	return nil
}

func (g *Gate) addNetwork(p netip.Prefix, rate runtime.Rate) error {
	if g.nets[p] != nil {
		return nil
	}
	if err := g.relay.Networks.Put(p, gaterelay.NetworksRow{New: runtime.NewBucket(rate)}); err != nil {
		return err
	}
	row, err := g.relay.Networks.Get(p)
	if err != nil {
		return err
	}
	g.nets[p] = row.New
	return nil
}

// SetQuotas changes limits while connections run.
func (g *Gate) SetQuotas(q Quotas) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.config.Quotas = q.or(Defaults)
	g.setQuotas(g.config.Quotas)
}

func (g *Gate) setQuotas(q Quotas) {
	g.total.Regulars.SetRate(q.Regulars)
	g.total.Newcomers.SetRate(q.Newcomers)
	g.total.Strays.SetRate(q.Strays)
	g.total.Moves.SetRate(q.Moves)
	for p, b := range g.nets {
		if p.Bits() == 0 {
			b.SetRate(q.Elsewhere)
		} else {
			b.SetRate(q.Network)
		}
	}
	for _, s := range g.sources {
		g.rate(s)
	}
}

// rate sets a source's limit to what it deserves.
func (g *Gate) rate(s *source) { s.bucket.SetRate(g.deserved(s)) }

func (g *Gate) deserved(s *source) runtime.Rate {
	switch q := g.config.Quotas; {
	case s.done == 0 && s.failed >= failures:
		return q.Worst
	case s.done < failures:
		return q.Source
	default:
		return q.Best
	}
}

// newcomer makes rows for a source that was admitted.
func (g *Gate) newcomer(a netip.Addr) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed || g.sources[a] != nil {
		return nil
	}
	if err := g.addNetwork(network(a), g.config.Quotas.Network); err != nil {
		return err
	}
	return g.addSource(a)
}

func (g *Gate) addSource(a netip.Addr) error {
	s := &source{last: time.Now()}
	first := runtime.NewBucket(g.deserved(s))
	if err := g.relay.Sources.Put(a, gaterelay.SourcesRow{New: first}); err != nil {
		return err
	}
	row, err := g.relay.Sources.Get(a)
	if err != nil {
		return err
	}
	s.bucket, g.sources[a] = row.New, s
	return nil
}

// Done says that a source has finished a handshake: what it spent is given back, and its quota rises.
func (g *Gate) Done(a netip.Addr) error {
	g.say(end{a, true})
	return nil
}

// end is a handshake that is over.
type end struct {
	addr netip.Addr
	done bool
}

func (g *Gate) say(e end) {
	g.said.Lock()
	g.ends = append(g.ends, e)
	g.said.Unlock()
	select {
	case g.awake <- struct{}{}:
	default:
	}
}

// hear moves quotas by what the server says.
func (g *Gate) hear(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-g.awake:
		}
		g.said.Lock()
		ends := g.ends
		g.ends = nil
		g.said.Unlock()
		g.mu.Lock()
		for _, e := range ends {
			if !e.done {
				g.fail(e.addr)
			} else if err := g.done(e.addr); err != nil {
				g.log.Error("the gate's quotas can't be changed", "error", err)
			}
		}
		g.mu.Unlock()
	}
}

func (g *Gate) done(a netip.Addr) error {
	a = a.Unmap()
	if g.closed {
		return nil
	}
	s := g.sources[a]
	if s == nil { // its event isn't read yet
		if err := errors.Join(g.addNetwork(network(a), g.config.Quotas.Network), g.addSource(a)); err != nil {
			return err
		}
		s = g.sources[a]
	}
	s.done++
	s.last = time.Now()
	s.bucket.Refund(1)
	g.nets[network(a)].Refund(1)
	if s.regular {
		g.total.Regulars.Refund(1)
	} else {
		g.total.Newcomers.Refund(1)
		s.regular = true
		if err := g.relay.Sources.Put(a, gaterelay.SourcesRow{New: s.bucket, Regular: true}); err != nil {
			return err
		}
	}
	if s.done == 1 || s.done == failures {
		g.rate(s)
	}
	return nil
}

// Failed says that a connection of a source has ended before its handshake did. A source that has finished none has its
// quota lowered.
func (g *Gate) Failed(a netip.Addr) { g.say(end{a, false}) }

func (g *Gate) fail(a netip.Addr) {
	if s := g.sources[a.Unmap()]; s != nil && !g.closed {
		s.failed++
		if s.failed == failures {
			g.rate(s)
		}
	}
}

// forget removes the rows of sources that nothing was heard of for long.
func (g *Gate) forget(now time.Time) error {
	var old []netip.Addr
	used := map[netip.Prefix]bool{}
	for a, s := range g.sources {
		limit := forgetNewcomer
		if s.regular {
			limit = forgetRegular
		}
		if now.Sub(s.last) > limit {
			old = append(old, a)
			delete(g.sources, a)
		}
	}
	if len(old) == 0 {
		return nil
	}
	for a := range g.sources {
		used[network(a)] = true
	}
	var nets []netip.Prefix
	for p := range g.nets {
		if p.Bits() > 0 && !used[p] {
			nets = append(nets, p)
			delete(g.nets, p)
		}
	}
	_, err := g.relay.Sources.DeleteMany(old...)
	_, err2 := g.relay.Networks.DeleteMany(nets...)
	return errors.Join(err, err2)
}

// Quota returns the limit of a source, and whether there is one.
func (g *Gate) Quota(a netip.Addr) (runtime.Rate, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if s := g.sources[a]; s != nil {
		return s.bucket.Rate(), true
	}
	return runtime.Rate{}, false
}
