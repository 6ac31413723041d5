package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/fastrelay/fastrelay-gen/bench/baseline"
	"github.com/fastrelay/fastrelay-gen/bench/results"
	"github.com/fastrelay/fastrelay-gen/examples/turn/lab"
	"github.com/fastrelay/fastrelay-gen/internal/test/measure"
)

// retries is how often a variant is measured again that other work of the machine kept from its rate.
const retries = 1

// measurePath compares all variants on all kinds of traffic.
func measurePath(rounds int, partial bool) ([]results.Comparison, error) {
	busy, err := measure.NewBusy(measure.RelayCPU)
	if err != nil {
		return nil, err
	}
	defer busy.Close()
	var paths []*lab.Path
	add := func(p *lab.Path, err error) error {
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
	for _, v := range []lab.Variant{lab.Forwarding, lab.InKernel, lab.UserSpace} {
		if err := add(lab.NewPath(v, partial)); err != nil {
			return nil, fmt.Errorf("%s: %w", v, err)
		}
	}
	for _, b := range baseline.Variants {
		if partial && b.Traffic == lab.Channel {
			continue // the relays by hand take complete checksums only
		}
		if err := add(lab.NewBaseline(b, partial)); err != nil {
			return nil, fmt.Errorf("%s: %w", b.Variant, err)
		}
	}
	var list []results.Comparison
	for _, direction := range []string{"to_peer", "to_client"} {
		for _, size := range []int{120, 1200} {
			medians, err := comparePaths(paths, direction, size, rounds, busy)
			if err != nil {
				return nil, err
			}
			list = append(list, results.Comparison{Direction: direction, Size: size, Results: medians})
		}
	}
	fmt.Fprintf(os.Stderr, "\r%-40s\r", "")
	return list, nil
}

// comparePaths measures all paths in turn, for so many rounds, on one kind of traffic, and returns the medians.
func comparePaths(paths []*lab.Path, direction string, size, rounds int, busy *measure.Busy) (
	map[lab.Variant]measure.Result, error) {
	all := map[lab.Variant][]measure.Result{}
	for range rounds {
		for _, p := range paths {
			fmt.Fprintf(os.Stderr, "\r%-40s", fmt.Sprintf("%s, %d bytes: %s", direction, size, p.Variant))
			r, err := p.Measure(direction, size, busy)
			for again := 0; err != nil && again < retries; again++ {
				r, err = p.Measure(direction, size, busy)
			}
			if err != nil && !errors.Is(err, measure.ErrUnsteady) {
				return nil, fmt.Errorf("%s, %s, %d bytes: %w", p.Variant, direction, size, err)
			}
			all[p.Variant] = append(all[p.Variant], r)
		}
	}
	medians := map[lab.Variant]measure.Result{}
	for v, list := range all {
		medians[v] = measure.Medians(list)
	}
	return medians, nil
}
