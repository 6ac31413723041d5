package main

import (
	"strings"
	"testing"

	"github.com/fastrelay/fastrelay-gen/examples/tunnel/gateway"
	"github.com/fastrelay/fastrelay-gen/examples/tunnel/lab"
	"github.com/fastrelay/fastrelay-gen/examples/tunnel/tunnelrelay"
	"github.com/fastrelay/fastrelay-gen/internal/test/bpftest"
	"github.com/fastrelay/fastrelay-gen/internal/test/needs"
	"github.com/fastrelay/fastrelay-gen/internal/test/testnet"
)

// start builds the network and starts the gateway.
func start(t *testing.T, o lab.Options) (*lab.Lab, *gateway.Gateway) {
	t.Helper()
	needs.Root(t)
	l, err := lab.New(testnet.Start(t), o)
	if err != nil {
		t.Fatal(err)
	}
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

// Packets come out of tunnels whose other end is the kernel's own device: datagrams, and a stream.
func TestThrough(t *testing.T) {
	for _, o := range []lab.Options{
		{Kind: gateway.VXLAN, Outside: 4},
		{Kind: gateway.VXLAN, Outside: 4, Sums: true},
		{Kind: gateway.VXLAN, Outside: 6},
		{Kind: gateway.VXLAN, Outside: 6, Sums: true},
	} {
		t.Run(o.String(), func(t *testing.T) {
			l, g := start(t, o)
			for _, family := range []int{4, 6} {
				for range 2 {
					if err := l.Ping(family, 100); err != nil {
						t.Errorf("IPv%d: ping: %v", family, err)
					}
				}
				if err := l.UDP(family, 1000); err != nil {
					t.Errorf("IPv%d: UDP: %v", family, err)
				}
				if err := l.TCP(family, 3_000_000); err != nil {
					t.Errorf("IPv%d: TCP: %v", family, err)
				}
			}
			if n, err := g.Relay().VxlanIn.Count(tunnelrelay.VxlanInSent); err != nil || n.Packets < 4 && !o.Sums {
				t.Error("the relay has sent", n, err)
			}
		})
	}
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
		{"vxlan", "gre"}, {"vni=42", "vni=16777216"}, {"vni=42", "vni"}, {"vni", "number"}, {"203.0.113.2", "2001:db8::1"},
		{"mac=02:00:00:00:10:01,", ""}, {"local=192.0.2.1,", ""}, {"kind=vxlan,", ""}, {"10.9.0.0/24", "10.9.0.0"},
	} {
		if _, err := parse(strings.Replace(right, change[0], change[1], 1)); err == nil {
			t.Errorf("%s is taken for a tunnel with %q in place of %q", right, change[1], change[0])
		}
	}
}

// Tests that can't prepare themselves fail at once.
func TestUnprepared(t *testing.T) { bpftest.Unprepared(t) }
