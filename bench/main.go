// The bench command measures the examples. The TURN relay: what a packet costs in the kernel, what a frame costs at XDP
// and at TC, and the whole relay across namespaces beside plain kernel forwarding and beside the same server in user
// space. One to many: what a copy costs, beside bare clones and a user-space relay; and what
// it costs to send copies that user space has made. The QUIC proxy, beside itself in
// user space. A tunnel, beside the kernel's own device. A balancer, beside IPVS. The compiler: each stage against the
// size of a spec. Variants alternate within one run, and the report gives medians and ratios: absolute figures don't
// carry over to other machines or runs.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fastrelay/fastrelay-gen/bench/compile"
	"github.com/fastrelay/fastrelay-gen/bench/fanout"
	"github.com/fastrelay/fastrelay-gen/bench/ipvs"
	"github.com/fastrelay/fastrelay-gen/bench/live"
	"github.com/fastrelay/fastrelay-gen/bench/quicproxy"
	"github.com/fastrelay/fastrelay-gen/bench/results"
	"github.com/fastrelay/fastrelay-gen/bench/segments"
	"github.com/fastrelay/fastrelay-gen/bench/tunnel"
	"github.com/fastrelay/fastrelay-gen/bench/veth"
	"github.com/fastrelay/fastrelay-gen/bench/wire"
	sfu "github.com/fastrelay/fastrelay-gen/examples/sfu/lab"
	turn "github.com/fastrelay/fastrelay-gen/examples/turn/lab"
	"github.com/fastrelay/fastrelay-gen/internal/test/measure"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

func main() {
	slog.SetLogLoggerLevel(slog.LevelWarn) // that a relay is attached is no news here
	turn.Main()
	sfu.Main()
	fanout.Main()
	quicproxy.Main()
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

var parts = []string{
	"kernel", "xdp", "veth", "wire", "path", "fanout", "segments", "quicproxy", "tunnel", "ipvs", "compile",
}

func run() error {
	rounds := flag.Int("rounds", 3, "rounds over which medians are taken")
	only := flag.String("only", "", "`parts` to run, separated by commas: kernel (cost of a packet in the kernel), "+
		"xdp (live frames at XDP and at TC), veth (the same across namespaces), wire (the same between two ports), "+
		"path (across namespaces), fanout (one to many), segments (one to many from user space), quicproxy (QUIC "+
		"packets of encrypted connections), tunnel (VXLAN), ipvs (in a virtual machine) or compile (each stage "+
		"of a build)")
	partial := flag.Bool("partial", false, "send packets with partial checksums, as from a virtual machine on the "+
		"same host (path)")
	ports := flag.String("ports", "", "`source,relay`: two ports of network cards that a cable joins, instead of a "+
		"veth (wire); they are taken from this host meanwhile")
	receivers := flag.String("receivers", "1,8,64,512", "`counts` of receivers (fanout)")
	offload := flag.Bool("offload", false, "leave it to the device to cut GSO packets of a user-space relay, as "+
		"some network cards can (fanout)")
	plot := flag.String("plot", "", "PNG `file` that the curves are drawn into (fanout)")
	out := flag.String("json", "", "`file` that the report is written to as JSON")
	flag.Parse()
	if os.Geteuid() != 0 {
		return testnet.ErrNotRoot
	}
	if runtime.NumCPU() < 2 {
		return errors.New("two processors are needed: one for the load, one for the relay")
	}
	chosen := strings.Split(*only, ",")
	for _, part := range chosen {
		if *only != "" && !slices.Contains(parts, part) {
			return fmt.Errorf("%q is no part of the bench; there are: %s", part, strings.Join(parts, ", "))
		}
	}
	runs := func(part string) bool { return *only == "" || slices.Contains(chosen, part) }
	report := results.Report{
		Run: results.Run{
			Commit: commit(), Date: time.Now().UTC().Format(time.DateOnly), Kernel: kernelRelease(), CPU: processor(),
			CPUs: runtime.NumCPU(), Rounds: *rounds,
		},
		Partial: *partial,
	}
	fmt.Printf("Linux %s, %d processors (%s), commit %s\n", report.Kernel, report.CPUs, report.CPU, report.Commit)
	var err error
	if runs("kernel") {
		if report.Cost, err = measureCost(*rounds); err != nil {
			return err
		}
		printCost(os.Stdout, report.Cost)
	}
	// All of this process stays away from the relay's processor.
	if err := measure.Prefer(os.Getpid(), measure.LoadCPU); err != nil {
		return err
	}
	if report.XDP, err = measureXDP(report.Run, runs, *ports); err != nil {
		return err
	}
	if runs("path") {
		if report.Through, err = measurePath(*rounds, *partial); err != nil {
			return err
		}
		printPath(os.Stdout, report.Through)
	}
	if runs("fanout") {
		if report.FanOut, err = measureFanOut(*rounds, *receivers, *offload, *plot); err != nil {
			return err
		}
	}
	if err := measureOthers(&report, runs); err != nil {
		return err
	}
	if *out == "" {
		return nil
	}
	text, err := json.MarshalIndent(report, "", "\t")
	if err != nil {
		return err
	}
	return os.WriteFile(*out, append(text, '\n'), 0o644)
}

// measureXDP measures the parts that compare hooks, as far as they run.
func measureXDP(run results.Run, runs func(part string) bool, ports string) (x results.XDP, err error) {
	if runs("xdp") {
		x.Live, err = part(run, live.Print, func() (*live.Report, error) {
			return live.Measure(".", run.Rounds, os.Stderr)
		})
	}
	if err == nil && runs("veth") {
		x.Veth, err = part(run, veth.Print, func() (*veth.Report, error) {
			return veth.Measure(run.Rounds, os.Stderr)
		})
	}
	if err == nil && runs("wire") {
		x.Wire, err = part(run, wire.Print, func() (*wire.Report, error) {
			return wire.Measure(ports, run.Rounds, os.Stderr)
		})
	}
	return x, err
}

// part measures a part and prints it. Before, it looks how busy the machine is.
func part[R any](run results.Run, print func(io.Writer, *R), do func() (*R, error)) (*results.Part[R], error) {
	load, err := measure.Load(time.Second)
	if err != nil {
		return nil, err
	}
	r, err := do()
	if err != nil {
		return nil, err
	}
	print(os.Stdout, r)
	return &results.Part[R]{Run: run, Load: load, Report: r}, nil
}

// measureOthers measures the parts that take no options, as far as they run, and prints what came out.
func measureOthers(report *results.Report, runs func(part string) bool) (err error) {
	if runs("segments") {
		report.Segments, err = part(report.Run, segments.Print, func() (*segments.Report, error) {
			return segments.Measure(report.Rounds, os.Stderr)
		})
		if err != nil {
			return err
		}
	}
	if runs("quicproxy") {
		if report.QUICProxy, err = quicproxy.Measure(report.Rounds, os.Stderr); err != nil {
			return err
		}
		quicproxy.Print(os.Stdout, report.QUICProxy)
	}
	if runs("tunnel") {
		if report.Tunnel, err = tunnel.Measure(report.Rounds, os.Stderr); err != nil {
			return err
		}
		tunnel.Print(os.Stdout, report.Tunnel)
	}
	if runs("ipvs") {
		if report.IPVS, err = ipvs.Measure(".", report.Rounds, os.Stderr); err != nil {
			return err
		}
		report.IPVS.Commit, report.IPVS.Date = report.Commit, report.Date
		ipvs.Print(os.Stdout, report.IPVS)
	}
	if runs("compile") {
		if report.Compile, err = compile.Measure(report.Rounds, os.Stderr); err != nil {
			return err
		}
		compile.Print(os.Stdout, report.Compile)
	}
	return nil
}

// measureFanOut measures one-to-many relays, prints what came out and draws the curves.
func measureFanOut(rounds int, receivers string, offload bool, plot string) (*results.FanOut, error) {
	o := fanout.Options{
		Rounds: rounds, Sizes: []int{200, 1200}, Variants: fanout.Variants, Offload: offload, Progress: os.Stderr,
	}
	for _, text := range strings.Split(receivers, ",") {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > fanout.MaxReceivers {
			return nil, fmt.Errorf("%q is not a number of receivers, 1 to %d", text, fanout.MaxReceivers)
		}
		o.Receivers = append(o.Receivers, n)
	}
	f := &results.FanOut{}
	var err error
	if f.Kernel, err = fanout.MeasureKernel(o); err != nil {
		return nil, err
	}
	fanout.PrintKernel(os.Stdout, f.Kernel)
	if f.Path, err = fanout.MeasurePath(o); err != nil {
		return nil, err
	}
	fanout.PrintPath(os.Stdout, f.Path)
	fanout.PrintVerdict(os.Stdout, f.Kernel, f.Path)
	if plot == "" {
		return f, nil
	}
	return f, fanout.Plot(plot, f.Kernel, f.Path)
}
