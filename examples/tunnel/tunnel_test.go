package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/fastrelay/fastrelay-gen/examples/tunnel/gateway"
	"github.com/fastrelay/fastrelay-gen/examples/tunnel/lab"
	"github.com/fastrelay/fastrelay-gen/internal/test/dissect"
	"github.com/fastrelay/fastrelay-gen/internal/test/hooks"
	"github.com/fastrelay/fastrelay-gen/internal/test/offloads"
	"github.com/fastrelay/fastrelay-gen/runtime"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/bpftest"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// start builds the network and starts the gateway.
func start(t *testing.T, hook runtime.Hook, o lab.Options) (*lab.Lab, *gateway.Gateway) {
	t.Helper()
	l, err := lab.New(testnet.Start(t), o)
	if err != nil {
		t.Fatal(err)
	}
	l.Hook = hook
	g, err := l.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	})
	return l, g
}

// Packets go through tunnels whose other end is the kernel's own device: datagrams, and a stream. Their checksums are
// left to devices or not, and so is cutting up a stream; what the devices don't do is done by the kernel as it sends.
// An independent program verifies what is on the cables.
func TestThrough(t *testing.T) { hooks.Each(t, true, testThrough) }

func testThrough(t *testing.T, hook runtime.Hook) {
	for i, o := range lab.VXLAN() {
		if hook != runtime.HookTC && needs.Left(i, 4) {
			continue
		}
		for _, left := range []struct {
			to             string
			segments, sums bool
		}{{"segments and checksums", true, true}, {"checksums", false, true}, {"nothing", false, false}} {
			t.Run(fmt.Sprintf("%v, %s left to devices", o, left.to), func(t *testing.T) {
				l, g := start(t, hook, o)
				device := &testnet.Dev{Host: l.Peer, Name: lab.Device}
				for _, d := range []*testnet.Dev{l.ClientDev, device} {
					err := errors.Join(offloads.Segmentation(d, left.segments), offloads.TxChecksum(d, left.sums))
					if err != nil {
						t.Fatal(err)
					}
				}
				if err := offloads.TxChecksum(l.PeerDev, left.sums); err != nil {
					t.Fatal(err)
				}
				// What leaves the relay has complete checksums.
				err := errors.Join(offloads.TxChecksum(l.RelayIn, false), offloads.TxChecksum(l.RelayOut, false))
				if err != nil {
					t.Fatal(err)
				}
				captures := [2]*testnet.Capture{}
				for i, d := range []*testnet.Dev{l.ClientDev, l.PeerDev} {
					var err error
					if captures[i], err = d.Capture(); err != nil {
						t.Fatal(err)
					}
				}
				for _, family := range o.Families() {
					err := errors.Join(l.Ping(family, 100), l.UDP(family, 1001), l.TCP(family, 150_000))
					if err != nil {
						t.Errorf("IPv%d: %v", family, err)
					}
				}
				least := uint64(4)
				if !left.segments {
					least = 100
				}
				for _, p := range []*runtime.AnyProgram{g.In(o.Kind), g.Out(o.Kind)} {
					if n, err := p.Count("sent"); err != nil || n.Packets < least {
						t.Error(p.Name(), "has sent", n, err)
					}
				}
				for i, c := range captures {
					frames, err := c.Stop()
					if err != nil {
						t.Fatal(err)
					}
					came := slices.DeleteFunc(frames, func(f testnet.Frame) bool { return f.Outgoing })
					if i == 1 && o.Outside == 6 && !o.Sums { // tshark doesn't know that this tunnel goes without
						came = inner(t, came)
					}
					if err := dissect.Tshark(came); err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
}

// inner returns the frames inside of those that are in a VXLAN tunnel over IPv6 without a checksum.
func inner(t *testing.T, frames []testnet.Frame) (list []testnet.Frame) {
	t.Helper()
	for _, f := range frames {
		if udp, payload, ok := dissect.UDP(f); ok && udp.DstPort == 4789 {
			if udp.Checksum != 0 {
				t.Fatalf("there is a checksum: %#x", udp.Checksum)
			}
			f.Data = f.Data[len(f.Data)-len(payload)+8:]
			list = append(list, f)
		}
	}
	if len(list) == 0 {
		t.Fatal("nothing came")
	}
	return list
}

// The command reads tunnels.
func TestWords(t *testing.T) {
	const right = "kind=vxlan,local=192.0.2.1,remote=203.0.113.2,vni=42,mac=02:00:00:00:10:01," +
		"remote-mac=02:00:00:00:10:02,net=10.9.0.0/24"
	tunnel, err := parse(right)
	if err != nil || tunnel.Kind != gateway.VXLAN || tunnel.VNI != 42 || len(tunnel.Networks) != 1 {
		t.Error(tunnel, err)
	}
	for _, change := range [][2]string{
		{"vxlan", "gre"}, {"vni=42", "vni=16777216"}, {"vni=42", "vni"}, {"vni", "number"},
		{"203.0.113.2", "2001:db8::1"},
		{"mac=02:00:00:00:10:01,", ""}, {"local=192.0.2.1,", ""}, {"kind=vxlan,", ""}, {"10.9.0.0/24", "10.9.0.0"},
	} {
		if _, err := parse(strings.Replace(right, change[0], change[1], 1)); err == nil {
			t.Errorf("%s is taken for a tunnel with %q in place of %q", right, change[1], change[0])
		}
	}
}

// Tests that can't prepare themselves fail at once.
func TestUnprepared(t *testing.T) { bpftest.Unprepared(t) }
