package quicproxy

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/fastrelay/fastrelay-gen/internal/test/measure"
)

// Comparison is what kernel and user space did with one kind of traffic.
type Comparison struct {
	Traffic string         `json:"traffic"`
	Size    int            `json:"size"` // bytes of the UDP payload as it is sent
	Kernel  measure.Result `json:"kernel"`
	User    measure.Result `json:"user_space"`
}

// traffic is a direction, and the length of the target's connection ID.
type traffic struct {
	name     string
	realSize int
	toClient bool
}

// Measure compares kernel and user space: medians of rounds in which they alternate.
func Measure(rounds int, progress io.Writer) ([]Comparison, error) {
	busy, err := measure.NewBusy(measure.RelayCPU)
	if err != nil {
		return nil, err
	}
	defer busy.Close()
	var list []Comparison
	for _, t := range []traffic{
		{"to the target, 8 bytes by 8", 8, false}, {"to the target, 8 bytes by 20", 20, false},
		{"to the client, 8 bytes by 8", 8, true},
	} {
		inKernel, err := newPath(t.realSize, true)
		if err != nil {
			return nil, err
		}
		defer inKernel.close()
		inUser, err := newPath(t.realSize, false)
		if err != nil {
			return nil, err
		}
		defer inUser.close()
		for _, size := range []int{120, 1200} {
			var kernel, user []measure.Result
			for range rounds {
				fmt.Fprintf(progress, "\r%-50s", fmt.Sprintf("%s, %d bytes", t.name, size))
				k, err := inKernel.measure(t, size, busy, nil)
				if err != nil {
					return nil, fmt.Errorf("kernel, %s: %w", t.name, err)
				}
				used := func() (time.Duration, error) { return measure.CPUTime(inUser.proxy.Process.Pid) }
				u, err := inUser.measure(t, size, busy, used)
				if err != nil {
					return nil, fmt.Errorf("user space, %s: %w", t.name, err)
				}
				kernel, user = append(kernel, k), append(user, u)
			}
			list = append(list, Comparison{t.name, size, measure.Medians(kernel), measure.Medians(user)})
		}
	}
	fmt.Fprintf(progress, "\r%-50s\r", "")
	return list, nil
}

// measure sends packets and finds the rates that the proxy takes, and what one costs. used is the CPU time of the
// proxy so far; nil if the kernel forwards.
func (p *path) measure(
	t traffic, size int, busy *measure.Busy, used func() (time.Duration, error),
) (measure.Result, error) {
	to, sender := p.line.PeerDev, measure.NewSender(p.client, p.at(), p.packet(p.virtual, size))
	if t.toClient {
		to, sender = p.line.ClientDev, measure.NewSender(p.target, p.relayed, p.packet(p.own, size))
	}
	return measure.Throughput(to, sender, busy, used)
}

// Print prints a table for each kind of traffic.
func Print(w io.Writer, list []Comparison) {
	for _, c := range list {
		fmt.Fprintf(w, "\nQUIC proxy, %s, packets of %d bytes\n", c.Traffic, c.Size)
		t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
		fmt.Fprintln(t, "\tdelivered kpps\tloss-free kpps\tCPU ns/packet\t")
		k, u := c.Kernel, c.User
		fmt.Fprintf(t, "kernel\t%.0f\t%s\t%.0f\t\n", k.Peak/1e3, measure.LossFreeKpps(k.LossFree), k.CPU)
		fmt.Fprintf(t, "user space\t%.0f\t%s\t%.0f\t\n", u.Peak/1e3, measure.LossFreeKpps(u.LossFree), u.CPU)
		fmt.Fprintf(t, "kernel / user space\t%s\t%s\t%s\t\n",
			measure.Ratio(k.Peak, u.Peak), measure.Ratio(k.LossFree, u.LossFree), measure.Ratio(k.CPU, u.CPU))
		t.Flush()
	}
}
