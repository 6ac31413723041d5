package main

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/fastrelay/fastrelay-gen/examples/tunnel/lab"
	"github.com/fastrelay/fastrelay-gen/internal/test/dissect"
	"github.com/fastrelay/fastrelay-gen/internal/test/hooks"
	"github.com/fastrelay/fastrelay-gen/internal/test/offloads"
	"github.com/fastrelay/fastrelay-gen/runtime"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// A stream and datagrams that come as GSO packets go into a tunnel without a checksum outside in one piece: there is no
// device beside the relay that could take them. Cut by the kernel or not, the device at the other end gets what was
// sent, and an independent program finds nothing wrong with the segments. What the kernel can't cut, segments that are
// too large, and what would be larger than a header can say, pass to the stack.
func TestSuperPackets(t *testing.T) { hooks.Each(t, false, testSuperPackets) }

func testSuperPackets(t *testing.T, hook runtime.Hook) {
	for _, o := range lab.VXLAN() {
		o.Alone = !o.Sums
		for _, cut := range []bool{false, true} {
			t.Run(fmt.Sprintf("%v, cut %v", o, cut), func(t *testing.T) {
				l, g := start(t, hook, o)
				err := errors.Join(offloads.Segmentation(l.ClientDev, true), offloads.TxChecksum(l.ClientDev, true),
					offloads.TxChecksum(l.PeerDev, false), offloads.TxChecksum(l.RelayOut, !cut))
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
					if err := dissect.Tshark(came); err != nil {
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
// device takes. It merges what is sent by one system call, since the client's kernel cuts that up and hands it on at
// once; how much of it, the capture says.
func TestMerged(t *testing.T) { hooks.Each(t, false, testMerged) }

func testMerged(t *testing.T, hook runtime.Hook) {
	l, g := start(t, hook, lab.VXLAN()[0])
	out := g.Out(l.Kind)
	err := errors.Join(offloads.Segmentation(l.ClientDev, false), offloads.GRO(l.RelayIn, true),
		offloads.TxChecksum(l.PeerDev, false))
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
			merges    bool
		}{
			{"TCP", false, false, func() error { return l.TCP(family, 400_000) }, true},
			{"datagrams", false, false, datagrams, false},
			{"merged datagrams", true, false, datagrams, true},
			{"lists", false, true, datagrams, true},
		} {
			t.Run(fmt.Sprintf("%s, IPv%d", c.name, family), func(t *testing.T) {
				if err := offloads.MergeUDP(l.RelayIn, c.one, c.list); err != nil {
					t.Fatal(err)
				}
				counted := func(reason string) int {
					n, err := out.Count(reason)
					if err != nil {
						t.Fatal(err)
					}
					return int(n.Packets)
				}
				capture, err := l.RelayIn.Capture()
				if err != nil {
					t.Fatal(err)
				}
				sentBefore, upBefore := counted("sent"), counted("gso_packet")
				if err := c.send(); err != nil {
					t.Fatal(err)
				}
				// TCP's last packets are on their way when the transfer has ended.
				var single, merged, sent, up int
				if err := testnet.Until(time.Minute, "each packet is counted", func() bool {
					single, merged = arrivals(capture.Frames(), l.Inner.Of(family))
					sent, up = counted("sent")-sentBefore, counted("gso_packet")-upBefore
					return sent+up == single+merged
				}); err != nil {
					t.Error(err)
				}
				if _, err := capture.Stop(); err != nil {
					t.Error(err)
				}
				passed := 0
				if c.list {
					passed = merged
				}
				if up != passed || c.merges != (merged > 0) {
					t.Errorf("GRO gave %d packets and %d merged ones; %d were sent and %d passed to the stack", single,
						merged, sent, up)
				}
			})
		}
	}
}

// arrivals returns how many packets of one datagram or segment came for an address, and how many of several.
func arrivals(frames []testnet.Frame, to netip.Addr) (single, merged int) {
	at := map[bool]int{true: 14 + 16, false: 14 + 24}[to.Is4()]
	for _, f := range frames {
		switch addr := to.AsSlice(); {
		case f.Outgoing || len(f.Data) < at+len(addr) || !bytes.Equal(f.Data[at:][:len(addr)], addr):
		case len(f.Data) > 1514:
			merged++
		default:
			single++
		}
	}
	return single, merged
}
