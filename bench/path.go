package main

import (
	"fmt"
	"os"

	"github.com/fastrelay/fastrelay-gen/bench/baseline"
	"github.com/fastrelay/fastrelay-gen/internal/test/turnlab"
)

// variants are all that are compared: ours, then the others.
func variants() []turnlab.Variant {
	list := []turnlab.Variant{turnlab.Forwarding, turnlab.InKernel, turnlab.UserSpace}
	for _, b := range baseline.Variants {
		list = append(list, b.Variant)
	}
	return list
}

// Comparison is what all variants did with one kind of traffic.
type Comparison struct {
	Direction string                             `json:"direction"` // "to_peer", "to_client"
	Size      int                                `json:"size"`      // bytes of payload
	Results   map[turnlab.Variant]turnlab.Result `json:"results"`
}

// measurePath compares all variants on all kinds of traffic.
func measurePath(rounds int, partial bool) ([]Comparison, error) {
	busy, err := turnlab.NewBusy(turnlab.RelayCPU)
	if err != nil {
		return nil, err
	}
	defer busy.Close()
	var paths []*turnlab.Path
	add := func(p *turnlab.Path, err error) error {
		if err == nil {
			paths = append(paths, p)
		}
		return err
	}
	defer func() {
		for _, p := range paths {
			p.Close()
		}
	}()
	for _, v := range []turnlab.Variant{turnlab.Forwarding, turnlab.InKernel, turnlab.UserSpace} {
		if err := add(turnlab.NewPath(v, partial)); err != nil {
			return nil, fmt.Errorf("%s: %w", v, err)
		}
	}
	for _, b := range baseline.Variants {
		if partial && b.Traffic == turnlab.Channel {
			continue // the relays by hand take complete checksums only
		}
		if err := add(turnlab.NewBaseline(b, partial)); err != nil {
			return nil, fmt.Errorf("%s: %w", b.Variant, err)
		}
	}
	var list []Comparison
	for _, direction := range []string{"to_peer", "to_client"} {
		for _, size := range []int{120, 1200} {
			all := map[turnlab.Variant][]turnlab.Result{}
			for range rounds {
				for _, p := range paths {
					fmt.Fprintf(os.Stderr, "\r%-40s", fmt.Sprintf("%s, %d bytes: %s", direction, size, p.Variant))
					r, err := p.Measure(direction, size, busy)
					if err != nil {
						return nil, fmt.Errorf("%s, %s, %d bytes: %w", p.Variant, direction, size, err)
					}
					all[p.Variant] = append(all[p.Variant], r)
				}
			}
			c := Comparison{Direction: direction, Size: size, Results: map[turnlab.Variant]turnlab.Result{}}
			for v, results := range all {
				c.Results[v] = turnlab.Medians(results)
			}
			list = append(list, c)
		}
	}
	fmt.Fprintf(os.Stderr, "\r%-40s\r", "")
	return list, nil
}
