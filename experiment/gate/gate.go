// Package gate is the experiment "gate": an HTTP/3 server under attack, without a gate, with the rules of examples/gate
// in user space, and with the gate in the kernel.
package gate

import (
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/examples/gate/gate"
	"github.com/fastrelay/fastrelay-gen/examples/gate/lab"
	"github.com/fastrelay/fastrelay-gen/experiment/trial"
	"github.com/fastrelay/fastrelay-gen/internal/test/measure"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// Main lets a copy of this program be a server.
func Main() { lab.Main() }

const (
	warm     = time.Second     // of load, until sources are known
	measured = 3 * time.Second // of load, under attack
	size     = 4096            // bytes of an answer
	requests = 200             // of a connection
	openings = 3000            // packets a second of an attack that has the server make connections
	cheap    = 150_000         // of one whose packets cost it little
	times    = 10              // the clients' packets, of a mixture
	filtered = 50_000          // packets a second, if only the cost of filtering is measured
)

const (
	none     = "no attack"
	together = "all together"
)

// attacks are what servers are exposed to, with packets a second.
func attacks(clients float64) map[string]lab.Rates {
	all := map[string]lab.Rates{none: {}}
	all[string(lab.Handshakes)] = lab.Rates{lab.Handshakes: openings}
	all[string(lab.Initials)] = lab.Rates{lab.Initials: openings}
	all[string(lab.Garbage)] = lab.Rates{lab.Garbage: cheap}
	all[string(lab.UnknownIDs)] = lab.Rates{lab.UnknownIDs: cheap}
	all[string(lab.Flood)] = lab.Rates{lab.Flood: times * clients}
	all[together] = lab.Rates{
		lab.Handshakes: openings, lab.Initials: openings,
		lab.Garbage: times * clients / 2, lab.UnknownIDs: times * clients / 2,
	}
	return all
}

// scenes are the attacks in order.
func scenes() []string {
	list := []string{none}
	for _, a := range lab.Attacks {
		list = append(list, string(a))
	}
	return append(list, together)
}

func name(v lab.Variant, scene string) string { return scene + ": " + string(v) }

const filtering = "filtering"

func filterName(v lab.Variant) string { return name(v, filtering) }

// unread is a variant without a gate where the attacked device drops all that it receives: what it costs to receive
// attacks, and the most that a filter can achieve.
const unread lab.Variant = "dropped unread"

// Run runs the experiment.
func Run(ctx context.Context, b *trial.Book) error {
	// Clients and attackers share one processor, the server and what the kernel does with its packets has the other.
	if err := pin(os.Getpid(), measure.LoadCPU); err != nil {
		return err
	}
	b.Parallel = 1
	clients, err := clientPackets(ctx)
	if err != nil {
		return err
	}
	kinds := attacks(clients)
	b.Printf("8 clients, %d bytes an answer, a new connection after %d requests; they send %.0f packets a second.\n",
		size, requests, clients)
	b.Printf("Packets a second: handshakes and Initials %d, garbage and unknown IDs %d, ten times %.0f; together as "+
		"many handshakes and Initials, and %.0f of garbage and of unknown IDs each.\n", openings, cheap,
		times*clients, times*clients/2)
	var names []string
	for _, scene := range scenes() {
		for _, v := range lab.Variants {
			names = append(names, name(v, scene))
		}
		if scene == string(lab.Flood) {
			names = append(names, name(unread, scene))
		}
	}
	err = b.Alternate(ctx, names, func(ctx context.Context, n string, _ int) (trial.Result, error) {
		scene, variant, _ := strings.Cut(n, ": ")
		figures, err := load(ctx, lab.Variant(variant), kinds[scene])
		return trial.Result{Figures: figures}, err
	})
	if err != nil {
		return err
	}
	filters := []string{filterName(unread)}
	for _, v := range lab.Variants {
		filters = append(filters, filterName(v))
	}
	err = b.Alternate(ctx, filters, func(_ context.Context, n string, _ int) (trial.Result, error) {
		_, variant, _ := strings.Cut(n, ": ")
		figures, err := filter(lab.Variant(variant))
		return trial.Result{Figures: figures}, err
	})
	return errors.Join(err, summarize(b))
}

// server is a lab with a server that runs on its own processor.
type server struct {
	*lab.Lab
	*lab.Process
	net     *testnet.Net
	discard link.Link // nil: the device takes packets
}

func start(v lab.Variant) (_ *server, err error) {
	s := &server{}
	if s.net, err = testnet.New(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.receive(), s.net.Close())
		}
	}()
	if s.Lab, err = lab.New(s.net); err != nil {
		return nil, err
	}
	err = errors.Join(
		s.ServerDev.SetReceiveCPU(measure.RelayCPU), s.AttackedDev.SetReceiveCPU(measure.RelayCPU),
		s.ClientDev.SetReceiveCPU(measure.LoadCPU), s.AttackDev.SetReceiveCPU(measure.LoadCPU))
	if err != nil {
		return nil, err
	}
	if v == unread {
		if s.discard, err = discard(s.Lab); err != nil {
			return nil, err
		}
		v = lab.NoGate
	}
	config := gate.Config{Interfaces: []string{"eth0", "eth1"}, Quotas: gate.Defaults}
	if s.Process, err = s.Start(v, config); err != nil {
		return nil, err
	}
	if err = pin(s.Pid(), measure.RelayCPU); err != nil {
		s.Kill()
	}
	return s, err
}

// pin has all threads of a process, and those that it starts later, run on one processor, with the priority of all: the
// kernel's own thread for packets has no other.
func pin(pid, cpu int) error {
	var set unix.CPUSet
	set.Set(cpu)
	tasks, err := os.ReadDir(filepath.Join("/proc", strconv.Itoa(pid), "task"))
	for _, t := range tasks {
		tid, e := strconv.Atoi(t.Name())
		if e == nil {
			e = unix.SchedSetaffinity(tid, &set)
		}
		if !errors.Is(e, unix.ESRCH) {
			err = errors.Join(err, e)
		}
	}
	return err
}

func (s *server) close() error { return errors.Join(s.receive(), s.Stop(), s.net.Close()) }

// receive has the device take packets again.
func (s *server) receive() error {
	if s.discard == nil {
		return nil
	}
	return s.discard.Close()
}

func (s *server) clients(ctx context.Context, d time.Duration) (lab.Result, error) {
	ctx, stop := context.WithTimeout(ctx, d)
	defer stop()
	return lab.Load{Bytes: size, Reconnect: requests, Host: s.Clients, Server: lab.At}.Run(ctx)
}

// clientPackets measures how many packets a second clients send.
func clientPackets(ctx context.Context) (float64, error) {
	s, err := start(lab.NoGate)
	if err != nil {
		return 0, err
	}
	most := 0.0 // of several intervals: the machine may be slow for a while
	for range 3 {
		before, err1 := s.ServerDev.Received()
		r, err2 := s.clients(ctx, measured/2)
		after, err3 := s.ServerDev.Received()
		if err := errors.Join(err1, err2, err3); err != nil {
			return 0, errors.Join(err, s.close())
		}
		most = max(most, float64(after-before)/r.Took.Seconds())
	}
	return math.Round(most/1000) * 1000, s.close()
}

// load measures requests under attack.
func load(ctx context.Context, v lab.Variant, rates lab.Rates) (map[string]float64, error) {
	s, err := start(v)
	if err != nil {
		return nil, err
	}
	if _, err := s.clients(ctx, warm); err != nil {
		return nil, errors.Join(err, s.close())
	}
	stop, err := s.Attack(rates)
	if err != nil {
		return nil, errors.Join(err, s.close())
	}
	r, err := s.clients(ctx, measured)
	sent, err2 := stop()
	dropped, err3 := s.Dropped()
	ms := func(d time.Duration) float64 { return d.Seconds() * 1000 }
	return map[string]float64{
		"requests": r.PerSecond(), "mean": ms(r.Mean()), "median": ms(r.Quantile(0.5)), "99%": ms(r.Quantile(0.99)),
		"failed": float64(r.Failed), "attack": float64(sent) / r.Took.Seconds(), "dropped": float64(dropped),
	}, errors.Join(err, err2, err3, s.close())
}

// summarize writes the tables, the comparisons and the plots.
func summarize(b *trial.Book) error {
	err := b.Table(
		trial.Column{Figure: "requests", Unit: "1/s"}, trial.Column{Figure: "mean", Unit: "ms", Digits: 2},
		trial.Column{Figure: "median", Unit: "ms", Digits: 2}, trial.Column{Figure: "99%", Unit: "ms", Digits: 1},
		trial.Column{Figure: "failed"}, trial.Column{Figure: "attack", Unit: "packets/s"})
	if err != nil {
		return err
	}
	quiet := name(lab.NoGate, none)
	for _, scene := range scenes() {
		with, without := name(lab.Kernel, scene), name(lab.NoGate, scene)
		if math.IsNaN(ratio(b, with, without, "requests")) {
			continue
		}
		b.Printf("%s: gate against no gate: throughput %+.0f%% (p = %.2g), mean duration %+.0f%%; against user space: "+
			"throughput %+.0f%%; %.0f%% of the throughput without an attack and a gate.\n\n", scene,
			change(b, with, without, "requests"),
			trial.Greater(b.Values(with, "requests"), b.Values(without, "requests")), change(b, with, without, "mean"),
			change(b, with, name(lab.UserSpace, scene), "requests"), 100*ratio(b, with, quiet, "requests"))
	}
	flood := string(lab.Flood)
	most := name(unread, flood)
	if share := ratio(b, most, quiet, "requests"); !math.IsNaN(share) {
		b.Printf("%s: where the device drops all of it unread: %.0f%% of the throughput without an attack; the gate "+
			"has %.0f%% of that.\n\n", flood, 100*share, 100*ratio(b, name(lab.Kernel, flood), most, "requests"))
	}
	err = b.Table(
		trial.Column{Figure: "processor", Unit: "ns a packet"}, trial.Column{Figure: "kernel", Unit: "of them"},
		trial.Column{Figure: "process", Unit: "of them"},
		trial.Column{Figure: "system calls", Unit: "a thousand packets", Digits: 1},
		trial.Column{Figure: "refused", Unit: "%", Digits: 1}, trial.Column{Figure: "rate", Unit: "packets/s"})
	if err != nil {
		return err
	}
	with, without := filterName(lab.Kernel), filterName(lab.UserSpace)
	received := b.Median(filterName(unread), "processor")
	gate, user := b.Median(with, "processor")-received, b.Median(without, "processor")-received
	if !math.IsNaN(gate + user) {
		b.Printf("Filtering, without what it costs to receive: %.0f ns a packet in the gate, %.0f in user space, "+
			"%+.0f%%; system calls %+.1f%%.\n", gate, user, 100*(gate/user-1), change(b, with, without, "system calls"))
	}
	return errors.Join(b.Spread("requests.png", "requests", "1/s"), b.Spread("duration.png", "mean", "ms"),
		b.Spread("processor.png", "processor", "ns a packet"))
}

// change is how much a figure of a variant differs from another one's, in percent.
func change(b *trial.Book, with, without, figure string) float64 {
	return 100 * (ratio(b, with, without, figure) - 1)
}

// ratio compares a figure of two variants run by run, and returns the median: if the machine is slow for a while, it
// is slow for both.
func ratio(b *trial.Book, with, without, figure string) float64 {
	x, y := b.Values(with, figure), b.Values(without, figure)
	n := min(len(x), len(y))
	if n == 0 {
		return math.NaN()
	}
	all := make([]float64, n)
	for i := range all {
		all[i] = x[i] / y[i]
	}
	slices.Sort(all)
	return (all[(n-1)/2] + all[n/2]) / 2
}
