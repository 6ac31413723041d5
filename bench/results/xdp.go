package results

import (
	"fmt"
	"math"

	"github.com/fastrelay/fastrelay-gen/bench/live"
	"github.com/fastrelay/fastrelay-gen/bench/veth"
	"github.com/fastrelay/fastrelay-gen/bench/wire"
	"github.com/fastrelay/fastrelay-gen/internal/test/measure"
)

func (p *page) xdp(r *Report) {
	x := r.XDP
	if x.Live == nil && x.Veth == nil && x.Wire == nil {
		return
	}
	p.line("%s", said("xdp"))
	if x.Live != nil {
		p.line("%s", said("live"))
		p.line("%s", x.Live.Where())
		p.frames(x.Live.Report.Frames)
		p.line("%s", said("programs"))
		p.programs(x.Live.Report)
	}
	if x.Veth != nil {
		p.line("%s", said("veth"))
		p.line("%s", x.Veth.Where())
		p.veth(x.Veth.Report)
	}
	if x.Wire != nil {
		p.line("%s", said("wire"))
		p.line("%s Drivers: %s.", x.Wire.Where(), x.Wire.Report.Drivers)
		p.wire(x.Wire.Report)
	}
	if x.Live != nil {
		p.line("%s", said("paper"))
		p.paper(x.Live.Report.Frames)
		p.line("%s", said("after paper"))
	}
}

// Where says in a line what was measured, where, and beside what.
func (p *Part[R]) Where() string {
	return fmt.Sprintf("%s Just before, other work took %.0f%% of the CPUs' time.", p.Machine(), 100*p.Load)
}

// kind names a kind of frames.
func kind(t live.Traffic) string {
	s := fmt.Sprintf("%s, IPv%d, %s bytes", direction(t.Direction), t.Family, number(float64(t.Size)))
	if t.Sessions > 1 {
		s += ", " + sessions(t.Sessions) + " sessions"
	}
	return s
}

// sessions is their number, all of its digits.
func sessions(n int) string {
	if n >= 1e6 {
		return fmt.Sprintf("%d,%03d,%03d", n/1e6, n/1e3%1e3, n%1e3)
	}
	return number(float64(n))
}

func (p *page) frames(cells []live.Cell) {
	var rows [][]string
	for _, c := range cells {
		row := []string{kind(c.Traffic)}
		for _, v := range live.Variants {
			row = append(row, number(c.Time[v]))
		}
		rows = append(rows, append(row,
			measure.Ratio(c.Time[live.XDP], c.Time[live.TC]), measure.Ratio(c.Time[live.XDP], c.Time[live.Checks])))
	}
	head := []string{"ns a frame"}
	for _, v := range live.Variants {
		head = append(head, string(v))
	}
	p.table(append(head, "XDP / TC", "XDP / by hand, checks"), rows)
}

func (p *page) programs(r *live.Report) {
	var rows [][]string
	for i, c := range r.InPlace {
		row := []string{kind(c.Traffic)}
		for _, ns := range []map[live.Variant]float64{c.Time, r.Alone[i].Time} {
			row = append(row, number(ns[live.TC]), number(ns[live.XDP]), number(ns[live.Checks]),
				measure.Ratio(ns[live.XDP], ns[live.TC]))
		}
		rows = append(rows, row)
	}
	p.table([]string{
		"ns", "on these frames: TC", "XDP", "by hand, checks", "XDP / TC", "one a call: TC", "XDP", "by hand, checks",
		"XDP / TC",
	}, rows)
}

func (p *page) veth(r *veth.Report) {
	var rows [][]string
	for _, c := range r.Cost {
		row := []string{fmt.Sprintf("%s, %s bytes", direction(c.Direction), number(float64(c.Size)))}
		for _, v := range veth.Variants {
			row = append(row, number(c.CPU[v]))
		}
		rows = append(rows, append(row, measure.Ratio(c.CPU[veth.XDP], c.CPU[veth.TC]),
			measure.Ratio(c.CPU[veth.XDP], c.CPU[veth.TCPolled])))
	}
	head := []string{"CPU, ns a packet"}
	for _, v := range veth.Variants {
		head = append(head, string(v))
	}
	p.table(append(head, "XDP / TC", "XDP / TC, NAPI"), rows)
	p.line("TCP from the client to the relay's own host, in Mbit/s: %s with TC, %s with TC and NAPI, %s with XDP.",
		number(r.TCP[veth.TC]), number(r.TCP[veth.TCPolled]), number(r.TCP[veth.XDP]))
}

func (p *page) wire(w *wire.Report) {
	var rows [][]string
	for _, c := range w.Cells {
		for _, hook := range []string{"TC", "XDP"} {
			r := c.Results[hook]
			rows = append(rows, []string{
				fmt.Sprintf("%s, %s bytes, %s", direction(c.Direction), number(float64(c.Size)), hook),
				number(r.Offered), number(r.Peak), number(r.Full),
				without(measure.Result{LossFree: r.LossFree, AtLeast: r.AtLeast}),
				fmt.Sprintf("%s at %s", number(r.CPU), number(r.CPURate)),
			})
		}
		tc, xdp := c.Results["TC"], c.Results["XDP"]
		rows = append(rows, []string{
			"… XDP / TC", measure.Ratio(xdp.Offered, tc.Offered), measure.Ratio(xdp.Peak, tc.Peak),
			measure.Ratio(xdp.Full, tc.Full), measure.Ratio(xdp.LossFree, tc.LossFree),
			measure.Ratio(xdp.CPU, tc.CPU),
		})
	}
	p.table([]string{
		"", "offered pps", "came back, pps", "CPU, ns a frame", "loss-free pps", "CPU, ns a frame at a rate",
	}, rows)
}

// Published, of one CPU (page.md says where): what a frame takes by XDP from one port of a card to another, and by the
// kernel's own forwarding.
const (
	redirected = 1e9 / 8_649_872
	forwarded  = 1e9 / 1_739_672
)

// framing is what a frame takes on the wire beside its bytes: preamble, checksum and gap; headers are those of IPv4,
// UDP and ChannelData.
const (
	framing = 8 + 4 + 12
	headers = 14 + 20 + 8 + 4
)

// paper writes what cards of several rates ask for.
func (p *page) paper(cells []live.Cell) {
	var adds []float64
	for _, c := range cells {
		if c.Sessions == 1 && c.Family == 4 {
			adds = append(adds, c.Time[live.XDP]-c.Time[live.Bare])
		}
	}
	add := measure.Median(adds)
	p.line("The relay adds %.0f ns to a bare redirect (live frames above; IPv4, one session, the median). So a frame"+
		" takes %.0f + %.0f = %.0f ns at XDP, which is %s frames a second on one CPU, and %.0f ns at TC, which is %s.",
		add, redirected, add, redirected+add, number(1e9/(redirected+add)), forwarded, number(1e9/forwarded))
	var rows [][]string
	for _, gigabits := range []float64{10, 25, 100} {
		for _, size := range []float64{120, 1200} {
			rate := gigabits * 1e9 / (8 * (size + headers + framing))
			cpus := func(ns float64) string {
				n := rate * ns / 1e9
				return fmt.Sprintf("%.1f → %.0f", n, math.Ceil(n))
			}
			rows = append(rows, []string{
				fmt.Sprintf("%.0f Gbit/s, %s bytes", gigabits, number(size)), number(rate),
				number(1e9 / rate), cpus(redirected + add), cpus(forwarded),
			})
		}
	}
	p.table([]string{"one direction", "frames a second", "ns a frame", "CPUs, XDP", "CPUs, TC"}, rows)
}
