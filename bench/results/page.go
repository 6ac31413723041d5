package results

import (
	_ "embed"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/fastrelay/fastrelay-gen/bench/baseline"
	"github.com/fastrelay/fastrelay-gen/bench/fanout"
	"github.com/fastrelay/fastrelay-gen/bench/ipvs"
	"github.com/fastrelay/fastrelay-gen/bench/segments"
	"github.com/fastrelay/fastrelay-gen/examples/turn/lab"
	"github.com/fastrelay/fastrelay-gen/internal/test/measure"
)

// names are the variants as the pages call them.
var names = map[lab.Variant]string{
	lab.Forwarding:     "plain forwarding",
	lab.InKernel:       "our relay",
	lab.UserSpace:      "pion (user space)",
	baseline.TCByHand:  "TC program by hand",
	baseline.XDPByHand: "XDP program by hand",
	baseline.NAT:       "nftables NAT",
	baseline.Coturn:    "coturn (user space)",
}

// Machine says in a line what was measured, and where.
func (r *Run) Machine() string {
	rounds := "one round"
	if r.Rounds > 1 {
		rounds = fmt.Sprintf("medians of %d rounds in which the variants alternate", r.Rounds)
	}
	return fmt.Sprintf("Commit %s, %s; %d CPUs (%s), Linux %s; %s.", r.Commit, r.Date, r.CPUs, r.CPU, r.Kernel, rounds)
}

//go:embed page.md
var prose string

// said is the part of page.md under a name.
func said(name string) string {
	_, rest, _ := strings.Cut(prose, "<!-- "+name+" -->\n")
	text, _, _ := strings.Cut(rest, "\n<!--")
	return strings.TrimSpace(text)
}

// Page is the page of results.
func (r *Report) Page() string {
	p := &page{}
	p.line("# Results")
	p.line("<!-- Made from bench/results.json by make generate; make results measures anew. -->")
	p.line("%s", r.Machine())
	p.line("%s", said("head"))
	p.through(r)
	p.cost(r)
	p.xdp(r)
	p.fanOut(r)
	p.segments(r)
	p.tunnel(r)
	p.ipvs(r)
	return strings.TrimSuffix(p.String(), "\n")
}

// Blocks are the tables that other pages show, by name.
func (r *Report) Blocks() map[string]string {
	readme, costs := &page{}, &page{}
	readme.summary(r)
	costs.costs(r)
	return map[string]string{"results": readme.String(), "costs": costs.String()}
}

// page is a page that is written, in Markdown.
type page struct{ strings.Builder }

// line writes a paragraph.
func (p *page) line(format string, args ...any) { fmt.Fprintf(p, format+"\n\n", args...) }

// table writes a table. A row may have an empty first cell.
func (p *page) table(head []string, rows [][]string) {
	fmt.Fprintf(p, "| %s |\n|%s\n", strings.Join(head, " | "), strings.Repeat("---|", len(head)))
	for _, r := range rows {
		fmt.Fprintf(p, "| %s |\n", strings.Join(r, " | "))
	}
	fmt.Fprintln(p)
}

func (p *page) through(r *Report) {
	p.line("%s", said("through"))
	for _, c := range r.Through {
		p.line("%s, %s bytes:", direction(c.Direction), number(float64(c.Size)))
		var rows [][]string
		ours := c.Results[lab.InKernel]
		for _, v := range Variants() {
			x, ok := c.Results[v]
			if !ok {
				continue
			}
			rows = append(rows, []string{
				names[v], least(x, x.Peak), without(x), number(x.CPU), measure.Ratio(x.CPU, ours.CPU),
				number(x.P50), number(x.P99),
			})
		}
		p.table([]string{
			"", "delivered pps", "loss-free pps", "CPU, ns a packet", "of our relay's", "p50, µs", "p99, µs",
		}, rows)
	}
}

func direction(d string) string {
	return map[string]string{"to_peer": "To the peer", "to_client": "To the client"}[d]
}

func (p *page) cost(r *Report) {
	if r.Cost == nil {
		return
	}
	p.line("%s", said("cost"))
	p.costs(r)
	var rows [][]string
	for _, c := range r.Cost.Packets {
		if c.By == Generated && (c.What != "IPv4 to IPv4" && c.What != "back, IPv4 to IPv4") {
			rows = append(rows, []string{
				"`" + c.Program + "`", c.What, number(float64(c.Size)), c.Outcome, number(c.Time),
			})
		}
	}
	p.line("What else the generated programs meet:")
	p.table([]string{"program", "packet", "bytes", "ends as", "ns"}, rows)
	rows = nil
	for _, s := range r.Cost.Programs {
		rows = append(rows, []string{
			"`" + s.Program + "`", number(float64(s.Instructions)), number(float64(s.Verified)),
		})
	}
	p.table([]string{"program", "instructions", "steps of the verifier"}, rows)
}

// costs writes what a packet costs in the kernel, by who wrote the program.
func (p *page) costs(r *Report) {
	if r.Cost == nil {
		return
	}
	authors := []string{Generated, string(baseline.TCByHand), string(baseline.XDPByHand)}
	var rows [][]string
	for _, c := range r.Cost.Packets {
		if c.By != Generated || (c.What != "IPv4 to IPv4" && c.What != "back, IPv4 to IPv4") {
			continue
		}
		row := []string{fmt.Sprintf("%s, %s bytes", direction(c.Program), number(float64(c.Size)))}
		for _, by := range authors {
			i := slices.IndexFunc(r.Cost.Packets, func(o PacketCost) bool {
				return o.By == by && o.Program == c.Program && o.What == c.What && o.Size == c.Size
			})
			if i < 0 {
				row = append(row, "–")
				continue
			}
			text := number(r.Cost.Packets[i].Time) + " ns"
			if by != Generated {
				text += " (ours: " + measure.Ratio(c.Time, r.Cost.Packets[i].Time) + " times)"
			}
			row = append(row, text)
		}
		rows = append(rows, row)
	}
	p.table([]string{"IPv4", authors[0], authors[1], authors[2]}, rows)
}

func (p *page) fanOut(r *Report) {
	if r.FanOut == nil {
		return
	}
	p.line("%s", said("fan-out"))
	for _, c := range r.FanOut.Path {
		p.line("%d receivers, %s bytes:", c.Receivers, number(float64(c.Size)))
		var rows [][]string
		ours := c.Results[fanout.Relay]
		for _, v := range fanout.Variants {
			x, ok := c.Results[v]
			if !ok {
				continue
			}
			rows = append(rows, []string{
				string(v), number(inKernel(r.FanOut, c, v)), number(x.LossFree), number(x.CPU),
				measure.Ratio(x.CPU, ours.CPU), number(x.Single), number(x.P50),
			})
		}
		p.table([]string{
			"", "in the kernel, ns a copy", "loss-free pps", "CPU, ns a copy", "of our relay's", "one by one, ns",
			"p50, µs",
		}, rows)
	}
}

// inKernel is what a copy costs in the kernel; 0 if nothing runs there.
func inKernel(f *FanOut, c fanout.Cell, v fanout.Variant) float64 {
	for _, k := range f.Kernel {
		if k.Receivers == c.Receivers && k.Size == c.Size {
			return k.Times[v]
		}
	}
	return 0
}

func (p *page) segments(r *Report) {
	if r.Segments == nil {
		return
	}
	p.line("%s", said("segments"))
	p.line("%s", r.Segments.Where())
	var rows [][]string
	for _, c := range r.Segments.Report.Cells {
		row := []string{fmt.Sprintf("IPv%d, %d receivers, %s bytes", c.Family, c.Receivers, number(float64(c.Size)))}
		for _, method := range segments.Methods {
			row = append(row, number(c.NS[method]))
		}
		ours := c.NS[segments.Segments]
		row = append(row, measure.Ratio(ours, c.NS[segments.Each]), measure.Ratio(ours, c.NS[segments.Mmsg]))
		rows = append(rows, row)
	}
	head := []string{"ns a packet", "`sendmsg`", "`sendmmsg`", "segments", "segments / `sendmsg`", "… / `sendmmsg`"}
	p.table(head, rows)
}

func (p *page) tunnel(r *Report) {
	if len(r.Tunnel) == 0 {
		return
	}
	p.line("%s", said("tunnel"))
	var rows [][]string
	for _, t := range r.Tunnel {
		unit := t.Unit
		if t.AtLeast {
			unit += ", at least"
		}
		rows = append(rows, []string{
			t.Traffic, unit, number(t.Relay), number(t.Device), measure.Ratio(t.Relay, t.Device),
		})
	}
	p.table([]string{"", "", "relay", "device", "relay / device"}, rows)
}

func (p *page) ipvs(r *Report) {
	if r.IPVS == nil {
		return
	}
	p.line("%s", said("ipvs"))
	p.line("Commit %s, %s; Linux %s.", r.IPVS.Commit, r.IPVS.Date, r.IPVS.Kernel)
	head := []string{"instructions a packet"}
	for _, v := range ipvs.Variants {
		head = append(head, string(v))
	}
	var rows [][]string
	for _, c := range r.IPVS.Cells {
		row := []string{fmt.Sprintf("%s, %s bytes", c.Direction, number(float64(c.Size)))}
		for _, v := range ipvs.Variants {
			text := number(c.Instructions[v])
			if v != ipvs.Routing && c.Instructions[v] != 0 {
				text += " (" + measure.Ratio(c.Instructions[v], c.Instructions[ipvs.Routing]) + " times)"
			}
			row = append(row, text)
		}
		rows = append(rows, row)
	}
	p.table(head, rows)
}

// summary writes the README's table.
func (p *page) summary(r *Report) {
	p.line("%s", r.Machine())
	columns := []lab.Variant{
		lab.Forwarding, baseline.TCByHand, lab.InKernel, baseline.Coturn, lab.UserSpace,
	}
	head := []string{""}
	for _, v := range columns {
		head = append(head, names[v])
	}
	var rows [][]string
	add := func(name string, c Comparison, figure func(measure.Result) string) {
		row := []string{name}
		for _, v := range columns {
			row = append(row, figure(c.Results[v]))
		}
		rows = append(rows, row)
	}
	cpu := func(x measure.Result) string { return number(x.CPU) + " ns" }
	for _, c := range r.Through {
		switch {
		case c.Direction == "to_peer" && c.Size == 120:
			add("TURN, to the peer, 120 bytes: delivered pps", c,
				func(x measure.Result) string { return least(x, x.Peak) })
			add("… CPU time a packet", c, cpu)
			add("… median delay at 10,000 pps", c, func(x measure.Result) string { return number(x.P50) + " µs" })
		case c.Direction == "to_client" && c.Size == 1200:
			add("TURN, to the client, 1,200 bytes: CPU time a packet", c, cpu)
		}
	}
	p.table(head, rows)
	if r.FanOut == nil {
		return
	}
	for _, c := range r.FanOut.Path {
		if c.Receivers != 64 || c.Size != 1200 {
			continue
		}
		time := func(v fanout.Variant) string { return number(c.Results[v].CPU) + " ns" }
		p.table(
			[]string{"", "bare clones", "our relay", "`sendmmsg` (user space)", "… with `UDP_SEGMENT`"},
			[][]string{{
				"64 receivers, 1,200 bytes: CPU time a copy", time(fanout.Bare), time(fanout.Relay), time(fanout.Mmsg),
				time(fanout.GSO),
			}})
	}
}

// least is a rate, at least which the variant reached if the generator was the limit.
func least(r measure.Result, pps float64) string {
	if r.AtLeast {
		return "≥ " + number(pps)
	}
	return number(pps)
}

// without is the highest rate without loss.
func without(r measure.Result) string {
	if r.LossFree == 0 {
		return measure.NoRate
	}
	return least(r, r.LossFree)
}

// number is a figure with as many digits as matter: three from 100,000 on.
func number(x float64) string {
	switch {
	case x == 0:
		return "–"
	case x < 10:
		return strconv.FormatFloat(x, 'f', 1, 64)
	}
	if x >= 1e5 {
		unit := math.Pow(10, math.Floor(math.Log10(x))-2)
		x = math.Round(x/unit) * unit
	}
	digits := strconv.FormatFloat(x, 'f', 0, 64)
	for at := len(digits) - 3; at > 0; at -= 3 {
		digits = digits[:at] + "," + digits[at:]
	}
	return digits
}
