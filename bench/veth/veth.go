// Package veth measures the TURN relay at XDP beside itself at tc/ingress across namespaces, which veth pairs join:
// what a packet costs the relay's processor, and what a program at XDP costs a sender of GSO packets.
package veth

import (
	"errors"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/fastrelay/fastrelay-gen/examples/turn/lab"
	"github.com/fastrelay/fastrelay-gen/internal/test/measure"
)

// Variants. A veth runs XDP where NAPI polls it, and NAPI of a veth is off by default.
const (
	TC       lab.Variant = "TC"       // packets are steered to the relay's processor, as in the bench's part "path"
	TCPolled lab.Variant = "TC, NAPI" // NAPI polls the devices in threads, as it has to for XDP
	XDP      lab.Variant = "XDP"      // likewise
)

// Variants are all of them, after the unit.
var Variants = []lab.Variant{lab.Forwarding, TC, TCPolled, XDP}

// Report is what was measured.
type Report struct {
	Cost []Cell                  `json:"cost"`
	TCP  map[lab.Variant]float64 `json:"tcp_mbps"` // of a connection to the relay's own host
}

// Cell is what a packet of a kind costs the relay's processor, in ns, by variant.
type Cell struct {
	Direction string                  `json:"direction"` // "to_peer", "to_client"
	Size      int                     `json:"size"`      // bytes of payload
	CPU       map[lab.Variant]float64 `json:"cpu_ns"`
}

// retries is how often something is measured again that other work of the machine kept from its rate.
const retries = 3

// Measure measures all variants in turn, and returns medians over rounds.
func Measure(rounds int, progress io.Writer) (_ *Report, err error) {
	busy, err := measure.NewBusy(measure.RelayCPU)
	if err != nil {
		return nil, err
	}
	defer busy.Close()
	var paths []*path
	defer func() {
		for _, p := range paths {
			p.Close()
		}
	}()
	for _, v := range Variants {
		p, err := newPath(v)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", v, err)
		}
		paths = append(paths, p)
	}
	r := &Report{}
	for _, size := range []int{120, 1200} {
		for _, direction := range []string{"to_peer", "to_client"} {
			cpu, err := alternate(paths, rounds, func(p *path) (float64, error) {
				fmt.Fprintf(progress, "\r%-50s", fmt.Sprintf("%s, %d bytes: %s", direction, size, p.Variant))
				return p.cost(direction, size, busy)
			})
			if err != nil {
				return nil, fmt.Errorf("%s, %d bytes: %w", direction, size, err)
			}
			r.Cost = append(r.Cost, Cell{direction, size, cpu})
		}
	}
	r.TCP, err = alternate(paths[1:], rounds, func(p *path) (float64, error) {
		fmt.Fprintf(progress, "\r%-50s", fmt.Sprintf("TCP: %s", p.Variant))
		return p.tcp()
	})
	fmt.Fprintf(progress, "\r%-50s\r", "")
	return r, err
}

// alternate measures paths in turn, and returns the medians.
func alternate(paths []*path, rounds int, one func(*path) (float64, error)) (map[lab.Variant]float64, error) {
	all := map[lab.Variant][]float64{}
	for range rounds {
		for _, p := range paths {
			x, err := one(p)
			for again := 0; errors.Is(err, measure.ErrUnsteady) && again < retries; again++ {
				x, err = one(p)
			}
			if err != nil {
				return nil, fmt.Errorf("%s: %w", p.Variant, err)
			}
			all[p.Variant] = append(all[p.Variant], x)
		}
	}
	medians := map[lab.Variant]float64{}
	for v, list := range all {
		medians[v] = measure.Median(list)
	}
	return medians, nil
}

// Print prints tables.
func Print(w io.Writer, r *Report) {
	fmt.Fprintf(w, "\nacross namespaces by veth, ns of the relay's processor a packet\n")
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	for _, v := range Variants {
		fmt.Fprintf(t, "\t%s", v)
	}
	fmt.Fprintf(t, "\tXDP / TC\tXDP / TC, NAPI\tXDP / forwarding\t\n")
	for _, c := range r.Cost {
		fmt.Fprintf(t, "%s, %d bytes", c.Direction, c.Size)
		for _, v := range Variants {
			fmt.Fprintf(t, "\t%.0f", c.CPU[v])
		}
		for _, by := range []lab.Variant{TC, TCPolled, lab.Forwarding} {
			fmt.Fprintf(t, "\t%s", measure.Ratio(c.CPU[XDP], c.CPU[by]))
		}
		fmt.Fprintln(t, "\t")
	}
	t.Flush()
	fmt.Fprintf(w, "TCP to the relay's host, Mbit/s: ")
	for _, v := range Variants[1:] {
		fmt.Fprintf(w, "%s %.0f, ", v, r.TCP[v])
	}
	fmt.Fprintf(w, "XDP / TC %s\n", measure.Ratio(r.TCP[XDP], r.TCP[TC]))
}
