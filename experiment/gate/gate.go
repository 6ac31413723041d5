// Package gate is the experiment "gate": an HTTP/3 server under attack, without a gate, with the rules of examples/gate
// in user space, and with the gate in the kernel.
package gate

import (
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/examples/gate/gate"
	"github.com/fastrelay/fastrelay-gen/examples/gate/lab"
	"github.com/fastrelay/fastrelay-gen/experiment/trial"
	"github.com/fastrelay/fastrelay-gen/internal/test/testnet"
	"github.com/fastrelay/fastrelay-gen/internal/test/turnlab"
)

// Main lets a copy of this program be a server, or count on a processor.
func Main() {
	lab.Main()
	loopMain()
}

const (
	warm     = time.Second     // of load, until sources are known
	measured = 3 * time.Second // of load, under attack
	size     = 4096            // bytes of an answer
	requests = 200             // of a connection
	// perSecond are the packets of an attack of real handshakes, and of one whose packets are cheap for the server.
	openings = 3000
	cheap    = 20_000
	filtered = 20_000 // packets a second, where only the cost of filtering is measured
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
	all[string(lab.Strays)] = lab.Rates{lab.Strays: cheap}
	all[string(lab.Flood)] = lab.Rates{lab.Flood: 10 * clients}
	all[together] = lab.Rates{
		lab.Handshakes: openings, lab.Initials: openings, lab.Garbage: cheap, lab.Strays: cheap,
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

func filterName(v lab.Variant) string { return "filter: " + string(v) }

// Run runs the experiment.
func Run(ctx context.Context, b *trial.Book) error {
	// Clients and attackers share one processor, the server and what the kernel does with its packets has the other.
	if err := pin(os.Getpid(), turnlab.LoadCPU); err != nil {
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
	b.Printf("Packets a second: real handshakes and Initials %d, garbage and unknown IDs %d, ten times %.0f.\n",
		openings, cheap, 10*clients)
	var names []string
	for _, scene := range scenes() {
		for _, v := range lab.Variants {
			names = append(names, name(v, scene))
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
	var filters []string
	for _, v := range lab.Variants {
		filters = append(filters, filterName(v))
	}
	err = b.Alternate(ctx, filters, func(ctx context.Context, n string, _ int) (trial.Result, error) {
		figures, err := filter(ctx, lab.Variant(strings.TrimPrefix(n, "filter: ")))
		return trial.Result{Figures: figures}, err
	})
	return errors.Join(err, summarize(b))
}

// server is a lab with a server that runs on its own processor.
type server struct {
	*lab.Lab
	*lab.Process
	net *testnet.Net
}

func start(v lab.Variant) (_ *server, err error) {
	s := &server{}
	if s.net, err = testnet.New(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.net.Close())
		}
	}()
	if s.Lab, err = lab.New(s.net); err != nil {
		return nil, err
	}
	err = errors.Join(
		s.ServerDev.SetReceiveCPU(turnlab.RelayCPU), s.AttackedDev.SetReceiveCPU(turnlab.RelayCPU),
		s.ClientDev.SetReceiveCPU(turnlab.LoadCPU), s.AttackDev.SetReceiveCPU(turnlab.LoadCPU))
	if err != nil {
		return nil, err
	}
	config := gate.Config{Interfaces: []string{"eth0", "eth1"}, Quotas: gate.Defaults}
	if s.Process, err = s.Start(v, config); err != nil {
		return nil, err
	}
	if err = pin(s.Pid(), turnlab.RelayCPU); err != nil {
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

func (s *server) close() error { return errors.Join(s.Stop(), s.net.Close()) }

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
	before, err := s.ServerDev.Received()
	if err != nil {
		return 0, errors.Join(err, s.close())
	}
	r, err := s.clients(ctx, measured)
	if err != nil {
		return 0, errors.Join(err, s.close())
	}
	after, err := s.ServerDev.Received()
	return math.Round(float64(after-before)/r.Took.Seconds()/1000) * 1000, errors.Join(err, s.close())
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
	quiet := b.Median(name(lab.NoGate, none), "requests")
	for _, scene := range scenes() {
		with, without := name(lab.Kernel, scene), name(lab.NoGate, scene)
		if math.IsNaN(b.Median(with, "requests")) || math.IsNaN(b.Median(without, "requests")) {
			continue
		}
		b.Printf("%s: gate against no gate: throughput %+.0f%% (p = %.2g), mean duration %+.0f%%; %.0f%% of the "+
			"throughput without an attack and a gate.\n\n", scene, change(b, with, without, "requests"),
			trial.Greater(b.Values(with, "requests"), b.Values(without, "requests")), change(b, with, without, "mean"),
			100*b.Median(with, "requests")/quiet)
	}
	err = b.Table(
		trial.Column{Figure: "processor", Unit: "ns a packet"},
		trial.Column{Figure: "system calls", Unit: "a thousand packets", Digits: 1})
	if err != nil {
		return err
	}
	if with, without := filterName(lab.Kernel), filterName(lab.UserSpace); !math.IsNaN(b.Median(with, "processor")) {
		b.Printf("Filtering, gate against user space: processor %+.0f%%, system calls %+.1f%%.\n",
			change(b, with, without, "processor"), change(b, with, without, "system calls"))
	}
	return errors.Join(b.Spread("requests.png", "requests", "1/s"), b.Spread("duration.png", "mean", "ms"),
		b.Spread("processor.png", "processor", "ns a packet"))
}

// change is how much a figure of a variant differs from another one's, in percent.
func change(b *trial.Book, with, without, figure string) float64 {
	return 100 * (b.Median(with, figure)/b.Median(without, figure) - 1)
}
