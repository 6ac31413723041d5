package main

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/fastrelay/fastrelay-gen/examples/tunnel/lab"
	"github.com/fastrelay/fastrelay-gen/internal/test/testnet"
)

// A stream and datagrams that come as GSO packets go into a tunnel without a checksum outside in one piece: there is no
// device beside the relay that could take them. Cut by the kernel or not, the device at the other end gets what was
// sent, and an independent program finds nothing wrong with the segments. What the kernel can't cut, and segments that
// are too large, pass to the stack.
func TestSuperPackets(t *testing.T) {
	for _, o := range lab.VXLAN() {
		o.Alone = !o.Sums
		for _, cut := range []bool{false, true} {
			t.Run(fmt.Sprintf("%v, cut %v", o, cut), func(t *testing.T) {
				l, g := start(t, o)
				err := errors.Join(l.ClientDev.SetSegmentation(true), l.ClientDev.SetTxChecksum(true),
					l.PeerDev.SetTxChecksum(false), l.RelayOut.SetTxChecksum(!cut))
				if err != nil {
					t.Fatal(err)
				}
				capture, err := l.PeerDev.Capture()
				if err != nil {
					t.Fatal(err)
				}
				for _, family := range o.Families() {
					if err := errors.Join(l.TCP(family, 400_000), l.Datagrams(family, 1000, 9)); err != nil {
						t.Errorf("IPv%d: %v", family, err)
					}
				}
				frames, err := capture.Stop()
				if err != nil {
					t.Fatal(err)
				}
				count := func(reason string) uint64 {
					n, err := g.Out(o.Kind).Count(reason)
					if err != nil {
						t.Fatal(err)
					}
					return n.Packets
				}
				if n := count("gso_packet"); (n > 0) != o.Sums {
					t.Errorf("%d GSO packets have passed to the stack", n)
				}
				came := slices.DeleteFunc(frames, func(f testnet.Frame) bool { return f.Outgoing })
				large := slices.ContainsFunc(came, func(f testnet.Frame) bool { return len(f.Data) > 1514 })
				switch {
				case large == cut:
					t.Errorf("frames above the MTU: %v", large)
				case cut:
					if o.Outside == 6 && !o.Sums { // tshark doesn't know that this tunnel goes without
						came = inner(t, came)
					}
					if err := testnet.CheckTshark(came); err != nil {
						t.Error(err)
					}
				}
				if o.Sums {
					return
				}
				for _, family := range o.Families() {
					before := count("too_big")
					if err := l.SendDatagrams(family, 1430, 3); err != nil {
						t.Error(err)
					}
					err := testnet.Until(5*time.Second, "too large", func() bool { return count("too_big") > before })
					if err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
}
