//go:build linux

package lab_test

import (
	"errors"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/fastrelay/fastrelay-gen/internal/lab"
	"github.com/fastrelay/fastrelay-gen/internal/packet"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/namespace"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
)

// frame is a UDP datagram over IPv4 with a right header checksum, which the kernel's own stack forwards.
func frame(t *testing.T, from, to [4]byte, fromPort, toPort byte) []byte {
	t.Helper()
	ip := []byte{0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0}
	ip = append(append(ip, from[:]...), to[:]...)
	sum := uint32(0)
	for i := 0; i < len(ip); i += 2 {
		sum += uint32(ip[i])<<8 | uint32(ip[i+1])
	}
	sum = ^(sum&0xffff + sum>>16)
	ip[10], ip[11] = byte(sum>>8), byte(sum)
	eth := append(packet.DefaultDestination[:], packet.DefaultSource[:]...)
	return append(append(append(eth, 8, 0), ip...), 0, fromPort, 0, toPort, 0, 8, 0, 0)
}

func wait(t *testing.T, what string, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(20 * time.Second); !holds(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatal("not within 20 s: ", what)
		}
	}
}

// open lets the relay's stack forward what arrives.
func open(t *testing.T, n *lab.Network) {
	t.Helper()
	if err := n.Do(netlink.XfrmPolicyFlush); err != nil {
		t.Fatal(err)
	}
}

// The relay's stack forwards nothing, with forwarding on: what arrives at a host was sent by a program, or by the relay
// itself. The last frame of a round shows that those in front of it have been handled.
func TestClosedStack(t *testing.T) {
	needs.Root(t)
	n, err := lab.New(lab.Config{RelayMAC: packet.DefaultDestination, FarMAC: packet.DefaultSource, Routes: true})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	client, peer := [4]byte{198, 51, 100, 7}, [4]byte{203, 0, 113, 9}
	err = n.Send([]lab.Frame{
		{Data: frame(t, client, peer, 1, 2)}, {Device: 1, Leaves: true, Data: frame(t, client, peer, 3, 4)},
	}, 400)
	if err != nil {
		t.Fatal(err)
	}
	wait(t, "40 packets of the relay's own", func() bool {
		all := n.Arrived()
		return len(all) > 0 && all[len(all)-1].Packets >= 40
	})
	if all := n.Arrived(); len(all) != 1 || all[0].String() != "UDP 198.51.100.7:3 -> 203.0.113.9:4" {
		t.Errorf("the stack forwards: %v", all)
	}
}

// Frames leave the hosts, the relay's stack forwards them by the network's routes, and they are counted where they
// arrive. Nothing else arrives, and a network that is closed leaves nothing.
func TestNetwork(t *testing.T) {
	needs.Root(t)
	links, err := netlink.LinkList()
	if err != nil {
		t.Fatal(err)
	}
	client, peer, third := [4]byte{198, 51, 100, 7}, [4]byte{203, 0, 113, 9}, [4]byte{198, 51, 100, 99}
	n, err := lab.New(lab.Config{
		Devices: 3, RelayMAC: packet.DefaultDestination, FarMAC: packet.DefaultSource, Routes: true,
		Hosts: map[netip.Addr]int{netip.AddrFrom4(client): 0, netip.AddrFrom4(third): 2},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	open(t, n)
	err = n.Send([]lab.Frame{
		{Device: 0, Data: frame(t, client, peer, 1, 2)},
		{Device: 1, Data: frame(t, peer, client, 2, 1)},
		{Device: 1, Data: frame(t, peer, third, 3, 4)},
		{Device: 1, Leaves: true, Data: frame(t, third, peer, 5, 6)},
	}, 400)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"UDP 203.0.113.9:2 -> 198.51.100.7:1": "client", "UDP 198.51.100.7:1 -> 203.0.113.9:2": "peer",
		"UDP 203.0.113.9:3 -> 198.51.100.99:4": "host2", "UDP 198.51.100.99:5 -> 203.0.113.9:6": "peer",
	}
	wait(t, "40 packets of each flow", func() bool {
		enough := 0
		for _, a := range n.Arrived() {
			if a.Packets >= 40 {
				enough++
			}
		}
		return enough >= len(want)
	})
	n.Stop()
	got := n.Arrived()
	for _, a := range got {
		if want[a.String()] != a.Host || a.Bytes != 42*a.Packets {
			t.Errorf("arrived at %s: %+v", a.Host, a)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d flows arrived, not %d", len(got), len(want))
	}
	if refused, err := n.Refused(); refused != 0 {
		t.Errorf("%d frames were refused: %v", refused, err)
	}
	if text := n.Topology(); text != "client --- eth0 relay eth1 --- peer, relay eth2 --- host2" {
		t.Error(text)
	}
	if err := errors.Join(n.Close(), n.Close()); err != nil {
		t.Error(err)
	}
	after, err := netlink.LinkList()
	if err != nil || len(after) != len(links) {
		t.Errorf("%d devices before, %d after (%v)", len(links), len(after), err)
	}
}

// More flows than a host counts by themselves are counted together.
func TestManyFlows(t *testing.T) {
	needs.Root(t)
	n, err := lab.New(lab.Config{RelayMAC: packet.DefaultDestination, FarMAC: packet.DefaultSource, Routes: true})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	open(t, n)
	var frames []lab.Frame
	for port := range byte(20) {
		frames = append(frames, lab.Frame{Data: frame(t, [4]byte{198, 51, 100, 7}, [4]byte{203, 0, 113, 9}, 1, port)})
	}
	if err := n.Send(frames, 1000); err != nil {
		t.Fatal(err)
	}
	wait(t, "flows that are counted together", func() bool {
		all := n.Arrived()
		return len(all) == 9 && all[8].String() == "other flows" && all[8].Packets > all[0].Packets
	})
}

// The frames of a program's tests need not be frames that a stack takes: what isn't IP is counted by its EtherType.
func TestOtherFrames(t *testing.T) {
	needs.Root(t)
	n, err := lab.New(lab.Config{RelayMAC: packet.DefaultDestination, FarMAC: packet.DefaultSource})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	data := append(append(packet.DefaultSource[:], packet.DefaultDestination[:]...), 0x88, 0xb5, 1, 2, 3)
	if err := n.Send([]lab.Frame{{Device: 1, Leaves: true, Data: data}}, 100); err != nil {
		t.Fatal(err)
	}
	wait(t, "a frame that isn't IP", func() bool {
		all := n.Arrived()
		return len(all) == 1 && all[0].String() == "EtherType 88b5" && all[0].Host == "peer"
	})
}

// If f ends its goroutine, so does the caller; the thread's namespace is what it was.
func TestOnThread(t *testing.T) {
	needs.Root(t)
	ended := make(chan bool)
	go func() {
		defer close(ended)
		_ = namespace.OnThread(netns.None(), func() error { runtime.Goexit(); return nil })
		t.Error("OnThread returned")
	}()
	<-ended
	failure := errors.New("failure")
	if err := namespace.OnThread(netns.None(), func() error { return failure }); err != failure {
		t.Error(err)
	}
}
