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
// sent, and an independent program finds nothing wrong with the segments. What the kernel can't cut, segments that are
// too large, and what would be larger than a header can say, pass to the stack.
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
					const want = "[1 2 3 4 5 6 7 8 9 1 2 3 4 5 6 7 8 9]" // of two families
					if order := fmt.Sprint(lab.Numbers(came, 1000, 9)); order != want {
						t.Errorf("the datagrams are %s on the wire, want %s", order, want)
					}
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
				if err := l.RelayOut.SetGSOMaxSize(1 << 17); err != nil { // so large ones leave in one piece
					t.Fatal(err)
				}
				for _, family := range o.Families() {
					if err := l.Datagrams(family, 1000, 64); err != nil {
						t.Errorf("IPv%d, 64,000 bytes: %v", family, err)
					}
					for reason, datagrams := range map[string][2]int{
						"too_big": {1430, 3}, "gso_packet": {1056, 62}, // with headers in front, above 65,535 bytes
					} {
						before := count(reason)
						if err := l.SendDatagrams(family, datagrams[0], datagrams[1]); err != nil {
							t.Error(err)
						}
						err := testnet.Until(5*time.Second, reason, func() bool { return count(reason) > before })
						if err != nil {
							t.Error(err)
						}
					}
				}
			})
		}
	}
}

// What GRO merges at the gateway goes into a tunnel in one piece, too, but for lists of packets: these the kernel's own
// device takes.
func TestMerged(t *testing.T) {
	l, g := start(t, lab.VXLAN()[0])
	out := g.Out(l.Kind)
	err := errors.Join(l.ClientDev.SetSegmentation(false), l.RelayIn.SetGRO(true), l.PeerDev.SetTxChecksum(false))
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range l.Families() {
		if err := l.Ping(family, 10); err != nil { // all know their neighbours
			t.Fatal(err)
		}
		datagrams := func() error { return l.Datagrams(family, 1000, 9) }
		for _, c := range []struct {
			name      string
			one, list bool // of datagrams
			send      func() error
			sent, up  [2]uint64 // least and most
		}{
			// 287 segments, and what acknowledges what comes back
			{"TCP", false, false, func() error { return l.TCP(family, 400_000) }, [2]uint64{10, 286}, [2]uint64{}},
			{"datagrams", false, false, datagrams, [2]uint64{9, 9}, [2]uint64{}},
			{"merged datagrams", true, false, datagrams, [2]uint64{1, 8}, [2]uint64{}},
			{"lists", false, true, datagrams, [2]uint64{0, 7}, [2]uint64{1, 4}},
		} {
			t.Run(fmt.Sprintf("%s, IPv%d", c.name, family), func(t *testing.T) {
				if err := l.RelayIn.SetMergeUDP(c.one, c.list); err != nil {
					t.Fatal(err)
				}
				counted := func(reason string) uint64 {
					n, err := out.Count(reason)
					if err != nil {
						t.Fatal(err)
					}
					return n.Packets
				}
				// GRO merges what it finds, less where the machine is busy. Merged or not, all of it arrives.
				if err := testnet.Until(10*time.Second, "packets that GRO has merged", func() bool {
					sent, up := counted("sent"), counted("gso_packet")
					if err := c.send(); err != nil {
						t.Fatal(err)
					}
					sent, up = counted("sent")-sent, counted("gso_packet")-up
					if up > 0 && !c.list {
						t.Fatalf("%d packets passed to the stack", up)
					}
					return sent >= c.sent[0] && sent <= c.sent[1] && up >= c.up[0] && up <= c.up[1]
				}); err != nil {
					t.Error(err)
				}
			})
		}
	}
}
