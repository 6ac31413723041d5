package main

import (
	"fmt"
	"testing"
	"time"

	"github.com/gopacket/gopacket/layers"

	"github.com/fastrelay/fastrelay-gen/examples/tunnel/gateway"
	"github.com/fastrelay/fastrelay-gen/examples/tunnel/lab"
	"github.com/fastrelay/fastrelay-gen/examples/tunnel/tunnelrelay"
	"github.com/fastrelay/fastrelay-gen/internal/test/testnet"
)

// dscp is what packets have inside.
const dscp = 10 << 2

// rfc6040 is the mark of a packet that comes out of a tunnel, by those outside and inside: 0 (not ECN capable), 1, 2
// and 3 (congestion).
var rfc6040 = [4][4]uint8{{0, 1, 2, 3}, {0, 1, 1, 3}, {0, 1, 2, 3}, {0, 3, 3, 3}}

// class is the traffic class of the outermost IP header.
func class(t *testing.T, f testnet.Frame) uint8 {
	t.Helper()
	switch ip := f.Packet().NetworkLayer().(type) {
	case *layers.IPv4:
		return ip.TOS
	case *layers.IPv6:
		return ip.TrafficClass
	}
	t.Fatal("no IP packet")
	return 0
}

// marks sends packets with all combinations of ECN marks through the tunnel to the client, and returns the traffic
// class that each arrives with, by the marks outside and inside. A packet that is dropped has none.
func marks(t *testing.T, l *lab.Lab, inner int) map[[2]uint8]uint8 {
	t.Helper()
	capture, err := l.ClientDev.Capture()
	if err != nil {
		t.Fatal(err)
	}
	name := func(o, i uint8) []byte { return fmt.Appendf(nil, "outside %d, inside %d", o, i) }
	for o := range uint8(4) {
		for i := range uint8(4) {
			frame, err := l.Encapsulated(46<<2|o, lab.Packet{
				Src: l.Inner.Of(inner), Dst: l.ClientAddr.Of(inner), Class: dscp | i, Hops: 64, Payload: name(o, i),
			})
			if err != nil {
				t.Fatal(err)
			}
			if err := l.PeerDev.Inject(frame); err != nil {
				t.Fatal(err)
			}
		}
	}
	got := map[[2]uint8]uint8{}
	err = testnet.Until(2*time.Second, "the last packet arrives", func() bool {
		_, ok := lab.Find(capture.Frames(), name(3, 3))
		return ok
	})
	if err != nil {
		t.Fatal(err)
	}
	frames, err := capture.Stop()
	if err != nil {
		t.Fatal(err)
	}
	for o := range uint8(4) {
		for i := range uint8(4) {
			if f, ok := lab.Find(frames, name(o, i)); ok {
				got[[2]uint8{o, i}] = class(t, f)
				if err := f.Check(); err != nil {
					t.Error(err)
				}
			}
		}
	}
	return got
}

// What comes out of a tunnel has the marks that RFC 6040 says (figure 4), and the kernel's own device gives it the
// same.
func TestECN(t *testing.T) {
	for _, outside := range []int{4, 6} {
		for _, inside := range []int{4, 6} {
			t.Run(fmt.Sprintf("IPv%d over IPv%d", inside, outside), func(t *testing.T) {
				l, g := start(t, lab.Options{Kind: gateway.VXLAN, Outside: outside})
				if err := l.Ping(inside, 10); err != nil { // both know their neighbours
					t.Fatal(err)
				}
				relay := marks(t, l, inside)
				if n, err := g.Relay().VxlanIn.Count(tunnelrelay.VxlanInDropEcn); err != nil || n.Packets != 1 {
					t.Error("dropped for their marks:", n, err)
				}
				if err := g.Relay().DetachAll(); err != nil {
					t.Fatal(err)
				}
				stock := marks(t, l, inside)
				for o := range uint8(4) {
					for i := range uint8(4) {
						want, arrives := dscp|rfc6040[o][i], o != 3 || i != 0
						was, sent := relay[[2]uint8{o, i}]
						if sent != arrives || sent && was != want {
							t.Errorf("outside %d, inside %d: %#x, %v; want %#x, %v", o, i, was, sent, want, arrives)
						}
						if is, ok := stock[[2]uint8{o, i}]; ok != sent || is != was {
							t.Errorf("outside %d, inside %d: %#x, %v; the kernel's %#x, %v", o, i, was, sent, is, ok)
						}
					}
				}
			})
		}
	}
}

// What goes into a tunnel has the DSCP and the mark of the packet outside. A mark of congestion is copied, too
// (RFC 6040 §4.1, normal mode); the kernel's own device writes ECT(0) in its place (RFC 3168).
func TestClassOutside(t *testing.T) {
	for _, inside := range []int{4, 6} {
		l, g := start(t, lab.Options{Kind: gateway.VXLAN, Outside: 4})
		if err := l.Ping(inside, 10); err != nil {
			t.Fatal(err)
		}
		for _, who := range []string{"relay", "device"} {
			capture, err := l.PeerDev.Capture()
			if err != nil {
				t.Fatal(err)
			}
			for ecn := range uint8(4) {
				payload := fmt.Appendf(nil, "marked %d, %s", ecn, who)
				frame, err := l.Plain(lab.Packet{
					Src: l.ClientAddr.Of(inside), Dst: l.Inner.Of(inside), Class: dscp | ecn, Hops: 64,
					Payload: payload,
				})
				if err != nil {
					t.Fatal(err)
				}
				if err := l.ClientDev.Inject(frame); err != nil {
					t.Fatal(err)
				}
				f, want := wait(t, capture, payload), dscp|ecn
				if who == "device" && ecn == 3 {
					want = dscp | 2
				}
				if got := class(t, f); got != want {
					t.Errorf("%s: the packet has %#x inside, and %#x outside", who, dscp|ecn, got)
				}
				if f.TTL() != 64 {
					t.Errorf("%s: hop limit outside: %d", who, f.TTL())
				}
				if err := f.Check(); err != nil {
					t.Error(err)
				}
			}
			if _, err := capture.Stop(); err != nil {
				t.Fatal(err)
			}
			if err := g.Relay().DetachAll(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// wait waits for a frame that ends with these bytes.
func wait(t *testing.T, c *testnet.Capture, payload []byte) (f testnet.Frame) {
	t.Helper()
	err := testnet.Until(2*time.Second, fmt.Sprintf("%q arrives", payload), func() (ok bool) {
		f, ok = lab.Find(c.Frames(), payload)
		return ok
	})
	if err != nil {
		t.Fatal(err)
	}
	return f
}
