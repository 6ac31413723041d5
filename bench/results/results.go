// Package results has what the bench measures, as its JSON file has it, and the pages that are made of it.
package results

import (
	"github.com/fastrelay/fastrelay-gen/bench/baseline"
	"github.com/fastrelay/fastrelay-gen/bench/compile"
	"github.com/fastrelay/fastrelay-gen/bench/fanout"
	"github.com/fastrelay/fastrelay-gen/bench/ipvs"
	"github.com/fastrelay/fastrelay-gen/bench/live"
	"github.com/fastrelay/fastrelay-gen/bench/quicproxy"
	"github.com/fastrelay/fastrelay-gen/bench/segments"
	"github.com/fastrelay/fastrelay-gen/bench/tunnel"
	"github.com/fastrelay/fastrelay-gen/bench/veth"
	"github.com/fastrelay/fastrelay-gen/bench/wire"
	"github.com/fastrelay/fastrelay-gen/examples/turn/lab"
	"github.com/fastrelay/fastrelay-gen/internal/test/measure"
)

// Run says what was measured, and where.
type Run struct {
	Commit string `json:"commit"`
	Date   string `json:"date"`
	Kernel string `json:"kernel"`
	CPU    string `json:"cpu"` // model
	CPUs   int    `json:"cpus"`
	Rounds int    `json:"rounds"`
}

// Part is a part of a report that may be measured in a run of its own.
type Part[R any] struct {
	Run
	Load   float64 `json:"load"` // share of all processors' time that was in use before
	Report *R      `json:"report"`
}

// XDP are the parts that compare hooks.
type XDP struct {
	Live *Part[live.Report] `json:"live,omitempty"`
	Veth *Part[veth.Report] `json:"veth,omitempty"`
	Wire *Part[wire.Report] `json:"wire,omitempty"`
}

// Report is the result of a run.
type Report struct {
	Run
	Partial bool         `json:"partial_checksums"`
	Cost    *Cost        `json:"cost,omitempty"`
	XDP     XDP          `json:"xdp,omitzero"`
	Through []Comparison `json:"through,omitempty"`
	FanOut  *FanOut      `json:"fanout,omitempty"`

	Segments  *Part[segments.Report] `json:"segments,omitempty"`
	QUICProxy []quicproxy.Comparison `json:"quicproxy,omitempty"`
	Tunnel    []tunnel.Comparison    `json:"tunnel,omitempty"`
	IPVS      *ipvs.Report           `json:"ipvs,omitempty"`
	Compile   *compile.Report        `json:"compile,omitempty"`
}

// FanOut is the part of a report about one-to-many relays.
type FanOut struct {
	Kernel []fanout.Copy `json:"kernel"`
	Path   []fanout.Cell `json:"path"`
}

// Comparison is what all variants did with one kind of traffic.
type Comparison struct {
	Direction string                         `json:"direction"` // "to_peer", "to_client"
	Size      int                            `json:"size"`      // bytes of payload
	Results   map[lab.Variant]measure.Result `json:"results"`
}

// Cost is what the programs cost, without a packet's path to them and from them.
type Cost struct {
	Programs []ProgramSize `json:"programs"`
	Packets  []PacketCost  `json:"packets"`
}

// ProgramSize is the size of a program as the kernel has it.
type ProgramSize struct {
	Program      string `json:"program"`
	Instructions int    `json:"instructions"` // as the kernel runs them
	// steps that the verifier took; 0 if the kernel doesn't say (before 5.16)
	Verified uint32 `json:"verified"`
}

// PacketCost is the time that a program takes for one kind of packet.
type PacketCost struct {
	By      string  `json:"by"` // Generated, or the variant by hand
	Program string  `json:"program"`
	What    string  `json:"what"` // such as "IPv4 to IPv6"
	Size    int     `json:"size"` // bytes of payload
	Outcome string  `json:"outcome"`
	Time    float64 `json:"ns"`
}

// Generated is who wrote the programs that are compared with those by hand.
const Generated = "generated"

// Variants are all that are compared: ours, then the others.
func Variants() []lab.Variant {
	list := []lab.Variant{lab.Forwarding, lab.InKernel, lab.UserSpace}
	for _, b := range baseline.Variants {
		list = append(list, b.Variant)
	}
	return list
}
