// Package wire measures the TURN relay at XDP beside itself at tc/ingress between two ports that a cable joins: those
// of network cards, or the ends of a veth. One sends frames and counts what comes back; the relay has the other one,
// and sends by the port that frames come in by.
package wire

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/fastrelay/fastrelay-gen/internal/test/measure"
	"github.com/fastrelay/fastrelay-gen/runtime"
)

// Hooks are where the relay runs.
var Hooks = []runtime.Hook{runtime.HookTC, runtime.HookXDP}

var names = map[runtime.Hook]string{runtime.HookTC: "TC", runtime.HookXDP: "XDP"}

// Report is what was measured.
type Report struct {
	Drivers string `json:"drivers"` // of the source's port and the relay's
	Cells   []Cell `json:"cells"`
}

// Cell is what came of a kind of frames, by hook ("TC", "XDP").
type Cell struct {
	Direction string            `json:"direction"` // "to_peer", "to_client"
	Size      int               `json:"size"`      // bytes of payload
	Results   map[string]Result `json:"results"`
}

// Result is what the relay did at a hook. Rates are in frames a second.
type Result struct {
	Offered  float64 `json:"offered_pps"`     // as many as the source can send
	Peak     float64 `json:"peak_pps"`        // of these, what came back
	LossFree float64 `json:"loss_free_pps"`   // the highest rate of which 99.5% came back; 0: there was none
	AtLeast  bool    `json:"loss_free_least"` // the source was the limit
	Full     float64 `json:"full_ns"`         // of the relay's processor, a frame that comes back, of these
	CPU      float64 `json:"cpu_ns"`          // the same at a rate
	CPURate  float64 `json:"cpu_pps"`         // which is the same for all hooks
}

const (
	tryTime  = 100 * time.Millisecond
	tries    = 4
	steps    = 8 // of the search
	cpuTries = 8
	cpuTime  = 200 * time.Millisecond
	most     = 1 << 18 // frames of a try without a rate
	cpuShare = 0.5     // of TC's loss-free rate
)

// Measure measures the relay between two ports, "SOURCE,RELAY", or if they are "", the ends of a veth. Hooks alternate
// from round to round; figures are medians.
func Measure(ports string, rounds int, progress io.Writer) (_ *Report, err error) {
	var given []string
	if ports != "" {
		if given = strings.Split(ports, ","); len(given) != 2 {
			return nil, fmt.Errorf("%q isn't two ports: SOURCE,RELAY", ports)
		}
	}
	l, err := newLab(given)
	if err != nil {
		return nil, err
	}
	defer l.close()
	r := &Report{}
	if r.Drivers, err = l.drivers(); err != nil {
		return nil, err
	}
	for _, size := range []int{120, 1200} {
		for _, direction := range []string{toPeer, toClient} {
			c, err := l.compare(direction, size, rounds, progress)
			if err != nil {
				return nil, fmt.Errorf("%s, %d bytes: %w", direction, size, err)
			}
			r.Cells = append(r.Cells, c)
		}
	}
	fmt.Fprintf(progress, "\r%-50s\r", "")
	return r, nil
}

func (l *lab) compare(direction string, size, rounds int, progress io.Writer) (Cell, error) {
	c := Cell{direction, size, map[string]Result{}}
	all := map[string][]Result{}
	rate := 0.0
	for range rounds {
		for _, hook := range Hooks {
			fmt.Fprintf(progress, "\r%-50s", fmt.Sprintf("%s, %d bytes: %s", direction, size, names[hook]))
			t, err := l.attach(direction, hook, size)
			if err != nil {
				return c, err
			}
			r, err := t.rates()
			if err != nil {
				return c, err
			}
			if rate == 0 {
				if r.LossFree == 0 {
					return c, fmt.Errorf("%s loses frames at each rate", names[hook])
				}
				rate = cpuShare * min(r.LossFree, r.Peak)
			}
			if r.CPU, err = t.cost(rate); err != nil {
				return c, err
			}
			r.CPURate = rate
			all[names[hook]] = append(all[names[hook]], r)
		}
	}
	for hook, list := range all {
		c.Results[hook] = medians(list)
	}
	return c, nil
}

func medians(list []Result) Result {
	r := list[0]
	of := func(f func(*Result) *float64) {
		var values []float64
		for i := range list {
			values = append(values, *f(&list[i]))
		}
		*f(&r) = measure.Median(values)
	}
	of(func(r *Result) *float64 { return &r.Offered })
	of(func(r *Result) *float64 { return &r.Peak })
	of(func(r *Result) *float64 { return &r.LossFree })
	of(func(r *Result) *float64 { return &r.Full })
	of(func(r *Result) *float64 { return &r.CPU })
	for _, o := range list {
		r.AtLeast = r.AtLeast || o.AtLeast
	}
	return r
}

// rates finds the rates that the relay takes.
func (t *traffic) rates() (r Result, err error) {
	var full []float64
	for range tries { // less comes back if something else took a processor
		o, ns, err := t.offer(most, 0)
		if err != nil {
			return r, err
		}
		full = append(full, ns)
		r.Offered = max(r.Offered, o.Rate)
		r.Peak = max(r.Peak, o.Rate*float64(o.Arrived)/float64(o.Made))
		if o.LossFree() {
			r.LossFree, r.AtLeast = max(r.LossFree, o.Rate), true
		}
	}
	if r.Full = measure.Median(full); r.AtLeast {
		return r, nil
	}
	for low, high, step := 0.0, r.Offered, 0; step < steps; step++ {
		rate := (low + high) / 2
		fine := false
		for try := 0; try < tries && !fine; try++ {
			o, _, err := t.offer(int(rate*tryTime.Seconds()), rate)
			if err != nil {
				return r, err
			}
			if fine = o.LossFree(); fine {
				r.LossFree = max(r.LossFree, o.Rate)
			}
		}
		if fine {
			low = rate
		} else {
			high = rate
		}
	}
	return r, nil
}

// cost returns the nanoseconds of the relay's processor that a frame takes at a rate: the median of several short
// tries, without those in which frames were lost.
func (t *traffic) cost(rate float64) (float64, error) {
	var costs []float64
	for range cpuTries {
		o, ns, err := t.offer(int(rate*cpuTime.Seconds()), rate)
		if err != nil {
			return 0, err
		}
		if o.LossFree() {
			costs = append(costs, ns)
		}
	}
	if len(costs) == 0 {
		return 0, measure.ErrUnsteady
	}
	return measure.Median(costs), nil
}

// Print prints a table.
func Print(w io.Writer, r *Report) {
	fmt.Fprintf(w, "\nbetween two ports (%s), kpps, and ns of the relay's processor a frame\n", r.Drivers)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "\t\toffered\tcame back\tns\tloss-free\tns\tat kpps\t")
	for _, c := range r.Cells {
		for _, hook := range Hooks {
			x := c.Results[names[hook]]
			lossFree := measure.LossFreeKpps(x.LossFree)
			if x.AtLeast {
				lossFree = "≥ " + lossFree
			}
			fmt.Fprintf(t, "%s, %d bytes\t%s\t%.0f\t%.0f\t%.0f\t%s\t%.0f\t%.0f\t\n", c.Direction, c.Size,
				names[hook], x.Offered/1e3, x.Peak/1e3, x.Full, lossFree, x.CPU, x.CPURate/1e3)
		}
		tc, xdp := c.Results["TC"], c.Results["XDP"]
		fmt.Fprintf(t, "\tXDP / TC\t%s\t%s\t%s\t%s\t%s\t\t\n", measure.Ratio(xdp.Offered, tc.Offered),
			measure.Ratio(xdp.Peak, tc.Peak), measure.Ratio(xdp.Full, tc.Full),
			measure.Ratio(xdp.LossFree, tc.LossFree), measure.Ratio(xdp.CPU, tc.CPU))
	}
	t.Flush()
}
