// The bench command measures the TURN example: what a packet costs in the kernel, and the whole relay across namespaces
// beside plain kernel forwarding and beside the same server in user space. Variants alternate within one run, and the
// report gives medians and ratios: absolute figures don't carry over to other machines or runs.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"runtime"

	"github.com/fastrelay/fastrelay-gen/internal/testnet"
	"github.com/fastrelay/fastrelay-gen/internal/turnlab"
)

func main() {
	turnlab.Main()
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// Report is the result of a run.
type Report struct {
	Kernel  string       `json:"kernel"`
	Pending bool         `json:"pending_checksums"`
	CPUs    int          `json:"cpus"`
	Cost    *Cost        `json:"cost,omitempty"`
	Through []Comparison `json:"through,omitempty"`
}

func run() error {
	rounds := flag.Int("rounds", 3, "rounds over which medians are taken")
	only := flag.String("only", "", "`part` to run: kernel (cost of a packet in the kernel) or path (across namespaces)")
	pending := flag.Bool("pending", false, "send packets with pending checksums, as from a virtual machine on the same host")
	out := flag.String("json", "", "`file` that the report is written to as JSON")
	flag.Parse()
	if os.Geteuid() != 0 {
		return testnet.ErrNotRoot
	}
	if runtime.NumCPU() < 2 {
		return errors.New("two processors are needed: one for the load, one for the relay")
	}
	report := Report{Kernel: kernelRelease(), CPUs: runtime.NumCPU(), Pending: *pending}
	fmt.Printf("Linux %s, %d processors\n", report.Kernel, report.CPUs)
	var err error
	if *only != "path" {
		if report.Cost, err = measureCost(*rounds); err != nil {
			return err
		}
		printCost(os.Stdout, report.Cost)
	}
	if *only != "kernel" {
		// All of this process stays away from the relay's processor.
		if err := turnlab.Prefer(os.Getpid(), turnlab.LoadCPU); err != nil {
			return err
		}
		if report.Through, err = measurePath(*rounds, *pending); err != nil {
			return err
		}
		printPath(os.Stdout, report.Through)
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
