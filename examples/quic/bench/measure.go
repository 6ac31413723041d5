package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fastrelay/fastrelay-gen/bench/fanout"
	"github.com/fastrelay/fastrelay-gen/examples/quic/bench/line"
	"github.com/fastrelay/fastrelay-gen/internal/test/measure"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// A Cell is what all variants did with one kind of traffic.
type Cell struct {
	Subscribers int                `json:"subscribers"`
	Objects     int                `json:"objects"` // in a stream
	Rate        int                `json:"rate"`    // deliveries a second, as they were meant to be
	Results     map[Variant]Result `json:"results"`
}

// A Result is what one variant did. A delivery is an object that a subscriber got.
type Result struct {
	Rate  float64 `json:"deliveries"` // a second
	CPU   float64 `json:"cpu_us"`     // of the relay's processor, a delivery
	Calls float64 `json:"calls"`      // system calls a delivery
	// From when an object is at the relay's device until a copy leaves through it; 0: packets are encrypted.
	P50  float64 `json:"p50_us,omitempty"`
	P99  float64 `json:"p99_us,omitempty"`
	Unit float64 `json:"forwarding_p50_us,omitempty"` // the same, if the relay's host is a plain router
	// From the publisher's call of Write until a subscriber has read the whole object.
	ReadP50 float64 `json:"read_p50_us"`
	ReadP99 float64 `json:"read_p99_us"`
	Share   float64 `json:"kernel_percent"` // of the bytes, those that the kernel has sent
	// of the bytes, those that subscribers never got: the relay has reset their streams
	Missing float64 `json:"missing_percent"`
}

type options struct {
	rounds               int
	subscribers, objects []int
	variants             []Variant
	rates                []int // deliveries a second, to all subscribers together
	acks, profiles       string
}

const (
	warmUp    = 1500 * time.Millisecond
	intervals = 10
	interval  = 150 * time.Millisecond
	pause     = 100 * time.Millisecond // between intervals: ordinary work of the processor isn't kept waiting
	watching  = time.Second
)

func measurePath(o options) (cells []Cell, err error) {
	b := &bench{}
	if b.busy, err = measure.NewBusy(measure.RelayCPU); err != nil {
		return nil, err
	}
	defer b.busy.Close()
	if b.calls, err = fanout.NewCallCounter(); err != nil {
		return nil, err
	}
	defer b.calls.Close()
	for _, objects := range o.objects {
		for _, rate := range o.rates {
			for _, n := range o.subscribers {
				c := Cell{Subscribers: n, Objects: objects, Rate: rate, Results: map[Variant]Result{}}
				if err := b.cell(o, &c); err != nil {
					return cells, err
				}
				cells = append(cells, c)
			}
		}
	}
	fmt.Fprintf(os.Stderr, "\r%-70s\r", "")
	return cells, nil
}

// cell measures all variants of a cell, one after the other in each round.
func (b *bench) cell(o options, c *Cell) error {
	all := map[Variant][]Result{}
	for round := range o.rounds {
		for _, v := range o.variants {
			what := fmt.Sprintf("%d subscribers, %d objects a stream, %d/s, %s", c.Subscribers, c.Objects, c.Rate, v)
			fmt.Fprintf(os.Stderr, "\r%-70s", fmt.Sprintf("%s, round %d", what, round+1))
			s := settings{acks: o.acks}
			if o.profiles != "" {
				name := strings.ReplaceAll(string(v), " ", "-")
				s.profile = filepath.Join(o.profiles,
					fmt.Sprintf("%d-%d-%d-%s.pprof", c.Subscribers, c.Objects, c.Rate, name))
			}
			r, err := b.measure(v, c, s)
			if err != nil {
				return fmt.Errorf("%s: %w", what, err)
			}
			all[v] = append(all[v], r)
		}
	}
	for v, results := range all {
		c.Results[v] = medians(results)
	}
	return nil
}

func medians(results []Result) (m Result) {
	of := func(f func(*Result) *float64) {
		var values []float64
		for i := range results {
			values = append(values, *f(&results[i]))
		}
		*f(&m) = measure.Median(values)
	}
	of(func(r *Result) *float64 { return &r.Rate })
	of(func(r *Result) *float64 { return &r.CPU })
	of(func(r *Result) *float64 { return &r.Calls })
	of(func(r *Result) *float64 { return &r.P50 })
	of(func(r *Result) *float64 { return &r.P99 })
	of(func(r *Result) *float64 { return &r.Unit })
	of(func(r *Result) *float64 { return &r.ReadP50 })
	of(func(r *Result) *float64 { return &r.ReadP99 })
	of(func(r *Result) *float64 { return &r.Share })
	of(func(r *Result) *float64 { return &r.Missing })
	return m
}

// added is the median delay that a relay adds to that of plain forwarding.
func (r *Result) added() float64 { return max(0, r.P50-r.Unit) }

// bench is what measures all variants alike.
type bench struct {
	busy  *measure.Busy
	calls *fanout.CallCounter
}

// measure measures one variant of a cell.
func (b *bench) measure(v Variant, c *Cell, s settings) (r Result, err error) {
	n, rate := c.Subscribers, float64(c.Rate)/float64(c.Subscribers)
	hosts, l, err := line.New()
	if err != nil {
		return r, err
	}
	defer hosts.Close()
	p, err := start(l, v, s)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, p.stop()) }()
	a, err := subscribe(v, l, n)
	if err != nil {
		return r, err
	}
	defer a.close()
	idle, err := b.idle()
	if err != nil {
		return r, err
	}
	if v.null() {
		unit, err := forwarding(l, rate)
		if err != nil {
			return r, err
		}
		r.Unit = micro(unit.Quantile(0.5))
	}
	load, err := publish(v, l, a, rate, c.Objects)
	if err != nil {
		return r, err
	}
	defer load.dialled.close()
	time.Sleep(warmUp)
	if _, err := p.share(); err != nil { // begins the profile
		return r, err
	}
	if err := b.cost(a, idle, &r); err != nil {
		return r, err
	}
	if err := b.watch(p, a, &r); err != nil {
		return r, err
	}
	if v.null() {
		delays, err := capture(l, func() error { time.Sleep(watching); return nil })
		if err != nil {
			return r, err
		}
		r.P50, r.P99 = micro(delays.Quantile(0.5)), micro(delays.Quantile(0.99))
	}
	if r.Share, err = p.share(); err != nil {
		return r, err
	}
	if err := load.close(); err != nil {
		return r, fmt.Errorf("publishing: %w", err)
	}
	all := load.sent.Load() * objectSize * uint64(n)
	_ = testnet.Until(2*time.Second, "all", func() bool { return uint64(a.bytes.Load()) >= all }) // or some are missing
	r.Missing = 100 * (1 - float64(a.bytes.Load())/float64(all))
	return r, nil
}

// idle returns the share of the relay's processor that is taken without any load.
func (b *bench) idle() (float64, error) {
	var shares []float64
	for range 3 {
		share, err := b.busy.Interval(interval / 2)
		if err != nil {
			return 0, err
		}
		shares = append(shares, share)
	}
	return slices.Min(shares), nil
}

// cost measures the CPU time of a delivery: the median over several intervals.
func (b *bench) cost(a *audience, idle float64, r *Result) error {
	var costs []float64
	began, first := time.Now(), a.bytes.Load()
	for range intervals {
		time.Sleep(pause)
		start, before := time.Now(), a.bytes.Load()
		share, err := b.busy.Interval(interval)
		if err != nil {
			return err
		}
		rate := float64(a.bytes.Load()-before) / objectSize / time.Since(start).Seconds()
		if rate > 0 {
			costs = append(costs, (share-idle)*1e6/rate)
		}
	}
	r.Rate = float64(a.bytes.Load()-first) / objectSize / time.Since(began).Seconds()
	if len(costs) == 0 {
		return errors.New("nothing was delivered")
	}
	r.CPU = measure.Median(costs)
	return nil
}

// watch measures system calls, and delays until objects are read.
func (b *bench) watch(p *process, a *audience, r *Result) error {
	if err := b.calls.Watch(p.cmd.Process.Pid); err != nil {
		return err
	}
	var before, after uint64
	var delivered int64
	delays, err := a.watch(func() (err error) {
		before, err = b.calls.Count()
		delivered = a.bytes.Load()
		time.Sleep(watching)
		delivered = a.bytes.Load() - delivered
		if err == nil {
			after, err = b.calls.Count()
		}
		return err
	})
	if err != nil {
		return err
	}
	r.Calls = float64(after-before) * objectSize / float64(delivered)
	r.ReadP50, r.ReadP99 = micro(delays.Quantile(0.5)), micro(delays.Quantile(0.99))
	return nil
}

func micro(d time.Duration) float64 { return float64(d) / 1e3 }

// forwarding measures the delays of objects that the relay's host only forwards.
func forwarding(l *testnet.Line, rate float64) (delays measure.Delays, err error) {
	if err := l.Relay.SetForwarding(true); err != nil {
		return nil, err
	}
	var from, to *net.UDPConn
	if err := l.Peer.Do(func() (err error) {
		to, err = net.ListenUDP("udp4", &net.UDPAddr{IP: l.PeerAddr.V4.AsSlice()})
		return err
	}); err != nil {
		return nil, err
	}
	defer to.Close()
	if err := l.Client.Do(func() (err error) {
		from, err = net.DialUDP("udp4", nil, to.LocalAddr().(*net.UDPAddr))
		return err
	}); err != nil {
		return nil, err
	}
	defer from.Close()
	return capture(l, func() error {
		next := time.Now()
		for i := range int(rate * watching.Seconds()) {
			if _, err := from.Write(object(uint64(i))); err != nil {
				return err
			}
			next = next.Add(time.Duration(float64(time.Second) / rate))
			time.Sleep(time.Until(next)) // not a ticker, which would leave out what is late
		}
		return nil
	})
}

// capture returns the delays of what passes the relay's host meanwhile.
func capture(l *testnet.Line, meanwhile func() error) (measure.Delays, error) {
	in, err := l.RelayIn.Capture()
	if err != nil {
		return nil, err
	}
	out, err := l.RelayOut.Capture()
	if err != nil {
		_, _ = in.Stop()
		return nil, err
	}
	err = meanwhile()
	received, problem := in.Stop()
	left, other := out.Stop()
	if err := errors.Join(err, problem, other); err != nil {
		return nil, err
	}
	delays := delaysOf(received, left)
	if len(delays) == 0 {
		return nil, errors.New("no object was seen on its way through the relay")
	}
	return delays, nil
}

// delaysOf returns for each copy of each object the time from when the relay's host had the object to when it sent the
// copy. An object that is in several packets counts with the first one that has its number.
func delaysOf(received, left []testnet.Frame) (all measure.Delays) {
	at := map[uint64]time.Time{}
	for _, f := range received {
		if !f.Outgoing {
			for _, number := range objectsIn(f.Data) {
				if _, again := at[number]; !again {
					at[number] = f.At
				}
			}
		}
	}
	type copied struct {
		number uint64
		port   uint16
	}
	seen := map[copied]bool{}
	for _, f := range left {
		if !f.Outgoing || len(f.Data) < destination+2 {
			continue
		}
		for _, number := range objectsIn(f.Data) {
			c := copied{number, binary.BigEndian.Uint16(f.Data[destination:])}
			if since, ok := at[number]; ok && !seen[c] {
				seen[c] = true
				all = append(all, f.At.Sub(since))
			}
		}
	}
	slices.Sort(all)
	return all
}

// destination is where the destination port is in a UDP packet over IPv4 without options.
const destination = 14 + 20 + 2

// objectsIn returns the numbers of the objects that are in a frame.
func objectsIn(frame []byte) (numbers []uint64) {
	for {
		_, rest, found := bytes.Cut(frame, []byte(mark))
		if !found || len(rest) < 8 {
			return numbers
		}
		if n := binary.BigEndian.Uint64(rest); !slices.Contains(numbers, n) {
			numbers = append(numbers, n)
		}
		frame = rest
	}
}
