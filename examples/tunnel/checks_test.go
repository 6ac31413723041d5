package main

import (
	"errors"
	"fmt"
	"testing"

	"github.com/fastrelay/fastrelay-gen/examples/tunnel/lab"
	"github.com/fastrelay/fastrelay-gen/internal/test/hooks"
	"github.com/fastrelay/fastrelay-gen/internal/test/offloads"
	"github.com/fastrelay/fastrelay-gen/runtime"
)

// Here tunnels are VXLAN, which this machine's kernel has. The same goes through all kinds in make test-kernels.

// each runs a check for both IP versions in each tunnel, at each hook. Alone: there is no device at the gateway.
func each(t *testing.T, always, alone bool, check func(l *lab.Lab, inside int) error) {
	t.Helper()
	hooks.Each(t, always, func(t *testing.T, hook runtime.Hook) {
		var l *lab.Lab
		for _, o := range lab.VXLAN() {
			o.Alone = alone
			if l == nil {
				l, _ = start(t, hook, o)
			} else if err := l.Next(o); err != nil {
				t.Fatal(err)
			}
			if err := offloads.TxChecksum(l.PeerDev, false); err != nil { // what comes to the gateway has complete ones
				t.Fatal(err)
			}
			for _, inside := range o.Families() {
				t.Run(fmt.Sprintf("%v, IPv%d inside", o, inside), func(t *testing.T) {
					if err := l.Ping(inside, 10); err != nil { // all know their neighbours
						t.Fatal(err)
					}
					if err := check(l, inside); err != nil {
						t.Error(err)
					}
				})
			}
		}
	})
}

// What comes out of a tunnel has the marks that RFC 6040 says (figure 4), and the kernel's own device gives it the
// same. What is dropped for its marks is dropped at XDP, if the gateway is there.
func TestECN(t *testing.T) {
	each(t, true, false, func(l *lab.Lab, inside int) error {
		dropped := func() (n uint64, err error) {
			in := l.Gateway.In(l.Kind)
			counts, err := in.XDPCounts()
			for i, c := range counts {
				if in.Desc().Reason(i).Name == "ecn" {
					n += c.Packets
				}
			}
			return n, err
		}
		before, err := dropped()
		err = errors.Join(err, l.MarksOut(inside))
		after, failed := dropped()
		if n := after - before; (n == 1) != (l.Hook == runtime.HookXDP) {
			err = errors.Join(err, fmt.Errorf("%d packets are dropped at XDP", n))
		}
		return errors.Join(err, failed)
	})
}

// What goes into a tunnel has the DSCP and the mark of the packet outside, and right headers. A mark of congestion is
// copied, too (RFC 6040 §4.1, normal mode); the kernel's own device writes ECT(0) in its place (RFC 3168).
func TestClassOutside(t *testing.T) {
	each(t, false, false, func(l *lab.Lab, inside int) error {
		if err := l.MarksIn(inside, 3); err != nil {
			return fmt.Errorf("relay: %w", err)
		}
		return l.Without(l.Gateway.Out(l.Kind), l.RelayIn, func() error {
			if err := l.MarksIn(inside, 2); err != nil {
				return fmt.Errorf("device: %w", err)
			}
			return nil
		})
	})
}

// The check of headers finds wrong ones.
func TestPlanted(t *testing.T) { each(t, false, false, (*lab.Lab).Planted) }

// What a packet is inside doesn't matter to a tunnel: with options, or a fragment, the first or the last one, it goes
// in and comes out as any other, with one hop less.
func TestInside(t *testing.T) { each(t, false, false, (*lab.Lab).Unusual) }

// A packet for the gateway itself reaches its socket, without the outer headers.
func TestOwnStack(t *testing.T) { each(t, true, true, (*lab.Lab).OwnStack) }

// A packet that doesn't fit into the network once it is in the tunnel passes to the stack, which answers: the sender
// learns what fits.
func TestTooLarge(t *testing.T) { each(t, false, false, (*lab.Lab).TooLarge) }
