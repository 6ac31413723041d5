package testrun

import (
	"errors"
	"fmt"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/sim"
)

// LooksUp reports whether a plan asks the kernel for routes.
func LooksUp(plan *ir.Plan) bool {
	var block func([]ir.Stmt) bool
	block = func(stmts []ir.Stmt) bool {
		for _, s := range stmts {
			switch s := s.(type) {
			case *ir.CheckHop:
				if s.Hop.Row == nil {
					return true
				}
			case *ir.If:
				if block(s.Then) || block(s.Else) {
					return true
				}
			}
		}
		return false
	}
	for _, p := range plan.Programs {
		if block(p.Body) {
			return true
		}
	}
	return false
}

// Alone moves the calling thread, which Pin has tied to its goroutine, into a new network namespace that routes nothing, so
// that the kernel's route lookups don't depend on the machine: they say what NoRoute says. The function returned moves it
// back.
func Alone() (func() error, error) {
	old, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return nil, fmt.Errorf("find the network namespace: %w", err)
	}
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		old.Close()
		return nil, fmt.Errorf("make a network namespace: %w", err)
	}
	back := func() error {
		defer old.Close()
		if err := unix.Setns(int(old.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("return to the network namespace: %w", err)
		}
		return nil
	}
	// A new namespace may take IPv4 forwarding over from the first one.
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("0"), 0); err != nil {
		return nil, fmt.Errorf("switch forwarding off: %w", errors.Join(err, back()))
	}
	return back, nil
}

// NoRoute is sim.World.Route where Alone has moved the thread: forwarding is off (bpf_fib_lookup says FWD_DISABLED), but
// IPv6 addresses that never leave a link are told apart before that (bpf_ipv6_fib_lookup in net/core/filter.c).
func NoRoute(from, to netip.Addr) sim.Hop {
	strict := func(a netip.Addr) bool {
		return a.IsValid() && !a.Is4In6() && (a.IsMulticast() || a.IsLinkLocalUnicast() || a.IsLoopback())
	}
	if strict(from) || strict(to) {
		return sim.Hop{State: ir.HopLocal}
	}
	return sim.Hop{State: ir.HopNone}
}
