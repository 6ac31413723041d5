// Package ipvs measures what a packet costs a director that balances UDP over servers: the kernel's IPVS, and a
// generated relay that does the same, beside plain routing. All of them run in one virtual machine with a kernel of
// Debian's, since this machine's kernel need not have IPVS. Its processor is emulated, and its clock counts
// instructions, so that costs are the same on every machine, whatever else that does.
package ipvs

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"text/tabwriter"
	"time"

	"github.com/fastrelay/fastrelay-gen/internal/test/testkernel"
)

// Variant is what the director does.
type Variant string

// Variants.
const (
	Routing Variant = "plain routing"
	NAT     Variant = "IPVS, NAT"
	Direct  Variant = "IPVS, direct routing" // requests alone: answers don't come by the director
	Relay   Variant = "our relay"            // balance/spec.cue: what NAT does
)

// Variants are all of them.
var Variants = []Variant{Routing, NAT, Direct, Relay}

// Report is what was measured, on which kernel.
type Report struct {
	Commit string `json:"commit"`
	Date   string `json:"date"`
	Kernel string `json:"kernel"`
	Cells  []Cell `json:"cells"`
}

// Cell has the costs of one kind of packets.
type Cell struct {
	Direction string `json:"direction"` // Request or Answer
	Size      int    `json:"size"`      // bytes of payload
	// A packet, from when the director's device has it until the receiver's has it.
	Instructions map[Variant]float64 `json:"instructions"`
}

// kernel has IPVS, which the kernels of virtual machines come with as modules.
var kernel = testkernel.Source{
	Name: "ipvs", Suite: "trixie", Series: "6.12", Arch: testkernel.AMD64,
	Modules: []string{"veth", "ip_vs", "ip_vs_rr"},
}

// clock has each instruction take one nanosecond of the machine's time, and an idle processor none.
var clock = []string{"-icount", "shift=0,sleep=off"}

const limit = 10 * time.Minute // of this machine's time

// Measure measures in a virtual machine: medians of rounds in which the variants alternate. It fetches the kernel if
// it isn't in the cache of the module, whose folder is given. It needs root.
func Measure(folder string, rounds int, progress io.Writer) (*Report, error) {
	ctx, cancel := context.WithTimeoutCause(context.Background(), limit, fmt.Errorf("%v are over", limit))
	defer cancel()
	cache := os.Getenv("FASTRELAY_CACHE")
	if cache == "" {
		cache = filepath.Join(folder, ".cache")
	}
	k, err := testkernel.Fetch(ctx, kernel, cache, func(text string) { fmt.Fprintln(progress, text) })
	if err != nil {
		return nil, err
	}
	work, err := os.MkdirTemp("", "bench-ipvs-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(work)
	guest := filepath.Join(work, "guest")
	if err := testkernel.BuildGuest(ctx, filepath.Join(folder, "bench/ipvs/guest"), kernel.Arch, guest); err != nil {
		return nil, err
	}
	image, err := testkernel.Pack(k, guest, "", "-rounds", fmt.Sprint(rounds))
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(progress, "\r%-40s", "IPVS, in a virtual machine")
	lines, err := testkernel.Boot(ctx, k, image, work, clock...)
	fmt.Fprintf(progress, "\r%-40s\r", "")
	if err != nil {
		return nil, err
	}
	r := &Report{Kernel: lines.Kernel}
	for _, l := range lines.Lines {
		var c Cell
		if err := json.Unmarshal(l.Result, &c); err != nil {
			return nil, err
		}
		r.Cells = append(r.Cells, c)
	}
	return r, nil
}

// Print prints a report.
func Print(w io.Writer, r *Report) {
	fmt.Fprintf(w, "\nIPVS, in a virtual machine with Linux %s\n", r.Kernel)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "\tbytes\t\tinstructions\t/ plain routing\t")
	for _, c := range r.Cells {
		for _, v := range Variants {
			if n, ok := c.Instructions[v]; ok {
				fmt.Fprintf(t, "%s\t%d\t%s\t%.0f\t%.2f\t\n", c.Direction, c.Size, v, n, n/c.Instructions[Routing])
			}
		}
	}
	t.Flush()
}
