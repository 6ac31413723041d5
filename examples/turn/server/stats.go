package server

import (
	"fmt"
	"strings"
	"text/tabwriter"
)

// Stats is what a server has and has done since it started.
type Stats struct {
	Allocations int `json:"allocations"`
	Channels    int `json:"channels"`
	InKernel    int `json:"in_kernel"` // channels that the kernel forwards

	// Datagrams that passed through user space, on all sockets.
	UserReceived uint64 `json:"user_received"`
	UserSent     uint64 `json:"user_sent"`

	// Kernel is what became of the packets that the programs saw, without the reasons that never applied.
	Kernel []Outcome `json:"kernel,omitempty"`
}

// Outcome counts the packets of a program by reason.
type Outcome struct {
	Program string `json:"program"`
	Reason  string `json:"reason"`
	Packets uint64 `json:"packets"`
}

// Stats returns the server's counters.
func (s *Server) Stats() Stats {
	st := Stats{UserReceived: s.user.received.Load(), UserSent: s.user.sent.Load(), Kernel: s.offload.outcomes()}
	st.Allocations, st.Channels, st.InKernel = s.channels.counts()
	return st
}

// Offloaded says whether the kernel forwards channel data, and if not, why.
func (s *Server) Offloaded() (forwards bool, why string) { return s.offload.state() }

// Packets returns the number of packets of a program with a reason.
func (s Stats) Packets(program, reason string) uint64 {
	for _, o := range s.Kernel {
		if o.Program == program && o.Reason == reason {
			return o.Packets
		}
	}
	return 0
}

// String is a table for people.
func (s Stats) String() string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(&b, "%d allocations, %d channels, %d of them in the kernel\n", s.Allocations, s.Channels, s.InKernel)
	fmt.Fprintf(w, "user space\t%d\treceived\t\n\t%d\tsent\t\n", s.UserReceived, s.UserSent)
	last := ""
	for _, o := range s.Kernel {
		name := o.Program
		if name == last {
			name = ""
		}
		last = o.Program
		fmt.Fprintf(w, "%s\t%d\t%s\t\n", name, o.Packets, o.Reason)
	}
	w.Flush()
	return b.String()
}
