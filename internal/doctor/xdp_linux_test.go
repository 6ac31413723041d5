package doctor

import (
	"regexp"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"github.com/fastrelay/fastrelay-gen/internal/test/offloads"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/netdev"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// What it says of devices without asking the kernel.
func TestFrames(t *testing.T) {
	card := netlink.LinkAttrs{Name: "card", ParentDevBus: "pci"}
	all := netdev.Basic | netdev.Redirect | netdev.Transmit | netdev.TransmitBuffer
	busy := netlink.LinkAttrs{Name: "busy", Xdp: &netlink.LinkXdp{Attached: true, ProgId: 7}}
	for _, c := range []struct {
		attrs netlink.LinkAttrs
		dev   netdev.Device
		want  string
	}{
		{card, netdev.Device{Features: all, Tag: true},
			"only if asked for: " + netdev.ErrCard.Error() + "; takes frames of other devices"},
		{card, netdev.Device{Features: netdev.Transmit}, "no: its driver (dummy) has no XDP; takes frames of other " +
			"devices, in one buffer only"},
		{busy, netdev.Device{Features: all &^ netdev.Transmit, Tag: true},
			"no: program 7 is there, and lets no other in (bpftool prog show id 7); takes no frames of other devices"},
		{netlink.LinkAttrs{Name: "none"}, netdev.Device{Features: all},
			"no: it takes VLAN tags out of frames: ethtool -K none rxvlan off; takes frames of other devices"},
	} {
		got := frames(&netlink.Dummy{LinkAttrs: c.attrs}, c.dev)
		if got.Found != c.want || (got.Status == OK) != strings.HasPrefix(c.want, "only") {
			t.Errorf("%s: %+v", c.attrs.Name, got)
		}
	}
}

// A veth takes frames once its far end has GRO on, and one program. Before Linux 6.8 it hides tags from that.
func TestAtXDP(t *testing.T) {
	needs.Root(t)
	n := testnet.Start(t)
	a, b := host(t, n, "a"), host(t, n, "b")
	near, far, err := n.Join(a, "near", b, "far")
	if err != nil {
		t.Fatal(err)
	}
	says := func(want string) {
		t.Helper()
		var found []string
		err := a.Do(func() error {
			for _, c := range atXDP() {
				found = append(found, c.Name+" "+c.Found)
			}
			return nil
		})
		if text := strings.Join(found, ", "); err != nil || !regexp.MustCompile("^xdp near "+want).MatchString(text) {
			t.Errorf("%q, not %q, %v", text, want, err)
		}
	}
	says("(only if asked for: on a veth .*|no: a veth .* 6.8); takes no frames of other devices")
	if err := offloads.GRO(far, true); err != nil {
		t.Fatal(err)
	}
	says("(only if asked for: on a veth .*|no: a veth .* 6.8); takes frames of other devices")
	pass, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.XDP, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 2), asm.Return()}})
	if err != nil {
		t.Fatal(err)
	}
	defer pass.Close()
	err = a.Do(func() error {
		l, err := link.AttachXDP(link.XDPOptions{Program: pass, Interface: near.Index, Flags: link.XDPDriverMode})
		if err == nil {
			t.Cleanup(func() { l.Close() })
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	says("no: (program|a veth) ")
}

func host(t *testing.T, n *testnet.Net, name string) *testnet.Host {
	t.Helper()
	h, err := n.Host(name)
	if err != nil {
		t.Fatal(err)
	}
	return h
}
