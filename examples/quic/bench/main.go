// The bench command measures the relay of package server: with the kernel's part, beside a relay in user space on the
// same library, both without protection; and with the encrypted clients that any QUIC client is, beside a relay with
// quinn. Variants alternate within one run, and the report gives medians and ratios: absolute figures don't carry over
// to other machines or runs. ../../../bench/README.md says how, and what the figures mean.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/fastrelay/fastrelay-gen/bench/fanout"
	"github.com/fastrelay/fastrelay-gen/internal/test/measure"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

func main() {
	measure.Main()
	relayMain()
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

const loadPriority = 1

// Report is the result of a run.
type Report struct {
	CPUs   int           `json:"cpus"`
	Copies []fanout.Copy `json:"copies,omitempty"`
	Path   []Cell        `json:"path,omitempty"`
}

func run() (err error) {
	rounds := flag.Int("rounds", 3, "rounds over which medians are taken")
	only := flag.String("only", "", "`part` to run: copies (cost of a copy in the kernel) or path (the whole relay)")
	subscribers := flag.String("subscribers", "1,8,64", "`counts` of subscribers (path)")
	objects := flag.String("objects", "60,1", "`counts` of objects in a stream (path)")
	names := flag.String("variants", "user space,kernel,stock,quinn",
		"`relays` to measure, of these and kernel thinned, stock thinned, stock segments, stock waiting "+
			"(a publisher's packets, for 3 ms), quinn thinned (path)")
	rates := flag.String("rate", "8000", "how many `deliveries` a second, to all subscribers together (path)")
	acks := flag.String("acks", "10,20",
		"`packets,milliseconds` after which the thinned variants ask subscribers for an ACK (path)")
	profiles := flag.String("profiles", "",
		"`folder` that profiles of the relay's process are written into, if it is in Go")
	picture := flag.String("plot", "", "PNG `file` that the curves are drawn into")
	out := flag.String("json", "", "`file` that the report is written to as JSON")
	flag.Parse()
	if os.Geteuid() != 0 {
		return testnet.ErrNotRoot
	}
	if runtime.NumCPU() < 2 {
		return errors.New("two processors are needed: one for the load, one for the relay")
	}
	o := options{rounds: *rounds, acks: *acks, profiles: *profiles}
	if o.rates, err = numbers(*rates, 1<<20); err != nil {
		return err
	}
	if o.variants, err = variantsOf(*names); err != nil {
		return err
	}
	if o.subscribers, err = numbers(*subscribers, most); err != nil {
		return err
	}
	if o.objects, err = numbers(*objects, 1<<20); err != nil {
		return err
	}
	if *only != "copies" && slices.ContainsFunc(o.variants, Variant.quinn) {
		if _, err := quinnRelay(); err != nil { // while this process is an ordinary one
			return err
		}
	}
	// What else runs on the machine mustn't hold up the load.
	runtime.GOMAXPROCS(1)
	if err := errors.Join(
		measure.Prefer(os.Getpid(), measure.LoadCPU), measure.SetRealTime(os.Getpid(), loadPriority),
	); err != nil {
		return err
	}
	undo, err := fanout.PrepareMachine()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, undo()) }()
	report := Report{CPUs: runtime.NumCPU()}
	if *only != "path" {
		if report.Copies, err = measureCopies(o.rounds); err != nil {
			return err
		}
		printCopies(os.Stdout, report.Copies)
	}
	if *only != "copies" {
		if report.Path, err = measurePath(o); err != nil {
			return err
		}
		printPath(os.Stdout, report.Path)
		if *picture != "" {
			if err := plot(*picture, report.Path); err != nil {
				return err
			}
		}
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

func numbers(text string, most int) (list []int, err error) {
	for one := range strings.SplitSeq(text, ",") {
		n, err := strconv.Atoi(one)
		if err != nil || n < 1 || n > most {
			return nil, fmt.Errorf("%q is not a number from 1 to %d", one, most)
		}
		list = append(list, n)
	}
	return list, nil
}
