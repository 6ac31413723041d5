package fanout

import (
	"errors"
	"fmt"
	"io"

	"github.com/fastrelay/fastrelay-gen/internal/test/measure"
)

// Options choose what is measured.
type Options struct {
	Rounds    int
	Receivers []int
	Sizes     []int // bytes of a datagram's payload
	Variants  []Variant
	Offload   bool      // GSO packets of a user-space relay are left whole, as for a network card that cuts them
	Progress  io.Writer // what is being measured, on one line
}

// Cell is what all variants did with one kind of traffic.
type Cell struct {
	Receivers int                `json:"receivers"`
	Size      int                `json:"size"`
	Results   map[Variant]Result `json:"results"`
}

// MeasurePath measures all variants across namespaces. Rounds alternate between them. The calling process has to stay
// away from the relay's processor (measure.Prefer).
func MeasurePath(o Options) (cells []Cell, err error) {
	undo, err := PrepareMachine()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, undo()) }()
	b := &bench{}
	if b.busy, err = measure.NewBusy(measure.RelayCPU); err != nil {
		return nil, err
	}
	defer b.busy.Close()
	if b.calls, err = NewCallCounter(); err != nil {
		return nil, err
	}
	defer b.calls.Close()
	for _, n := range o.Receivers {
		more, err := b.measureReceivers(o, n)
		cells = append(cells, more...)
		if err != nil {
			return cells, err
		}
	}
	fmt.Fprintf(o.Progress, "\r%-60s\r", "")
	return cells, nil
}

// retries is how often a round is measured again that other work of the machine has spoiled.
const retries = 3

// measureReceivers measures all variants with so many receivers; forwarding has only one.
func (b *bench) measureReceivers(o Options, n int) (cells []Cell, err error) {
	var paths []*path
	defer func() {
		for _, p := range paths {
			p.close()
		}
	}()
	for _, v := range o.Variants {
		if v == Forwarding && n != 1 {
			continue
		}
		p, err := newPath(v, n, o.Offload)
		if err != nil {
			return nil, fmt.Errorf("%s, %d receivers: %w", v, n, err)
		}
		paths = append(paths, p)
	}
	for _, size := range o.Sizes {
		all := map[Variant][]Result{}
		for round := range o.Rounds {
			for _, p := range paths {
				fmt.Fprintf(o.Progress, "\r%-60s", fmt.Sprintf("%d receivers, %d bytes, round %d: %s", n, size, round+1,
					p.variant))
				r, err := b.measure(p, size)
				for range retries {
					if err == nil {
						break
					}
					r, err = b.measure(p, size)
				}
				if err != nil {
					return cells, fmt.Errorf("%s, %d receivers, %d bytes: %w", p.variant, n, size, err)
				}
				all[p.variant] = append(all[p.variant], r)
			}
		}
		c := Cell{Receivers: n, Size: size, Results: map[Variant]Result{}}
		for v, results := range all {
			c.Results[v] = medians(results)
		}
		cells = append(cells, c)
	}
	return cells, nil
}

func medians(results []Result) (m Result) {
	of := func(f func(*Result) *float64) {
		var values []float64
		for i := range results {
			values = append(values, *f(&results[i]))
		}
		*f(&m) = measure.Median(values)
	}
	of(func(r *Result) *float64 { return &r.Peak })
	of(func(r *Result) *float64 { return &r.LossFree })
	of(func(r *Result) *float64 { return &r.CPU })
	of(func(r *Result) *float64 { return &r.Single })
	of(func(r *Result) *float64 { return &r.Calls })
	of(func(r *Result) *float64 { return &r.Saturated })
	of(func(r *Result) *float64 { return &r.P50 })
	of(func(r *Result) *float64 { return &r.P99 })
	return m
}
