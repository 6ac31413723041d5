package testlive

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/lab"
)

// Packets without a link-layer header, as tunnel devices have them:
//
//	inN: gate, watch, the Nth program, watch     at egress: a packet socket sends
//	inN: stamp, watch, the Nth program, watch    at ingress: they are written to the tun device's file
//
// The second watch keeps what the program passes. Markers are sent on fr0, after what has left through it.

// tunnel puts a program on a tun device.
func (l *Live) tunnel(e *entrance, name string, p *ir.Program, guard *ebpf.Program,
	watches map[int]*ebpf.Program) (err error) {
	if err := l.openMarkers(); err != nil {
		return err
	}
	if e.device, err = lab.OpenTun(name, true); err != nil {
		return fmt.Errorf("make the tun device %s: %w", name, err)
	}
	if e.dev, err = netlink.LinkByName(name); err != nil {
		return fmt.Errorf("find %s: %w", name, err)
	}
	if err := errors.Join(netlink.LinkSetMTU(e.dev, liveMTU), netlink.LinkSetUp(e.dev)); err != nil {
		return fmt.Errorf("set %s up: %w", name, err)
	}
	hook, first := ebpf.AttachTCXEgress, guard
	if e.written = p.Hook == "tc/ingress"; e.written {
		hook = ebpf.AttachTCXIngress
		if first, err = l.load("stamp", stamp); err != nil {
			return err
		}
	} else if e.fd, err = packetSocket(e.dev.Attrs().Index); err != nil {
		return fmt.Errorf("a packet socket on %s: %w", name, err)
	}
	for _, prog := range []*ebpf.Program{first, watches[SeenComing], l.relay.Program(p.Name), watches[SeenPassed]} {
		if err := l.attach(e.dev, hook, prog); err != nil {
			return err
		}
	}
	return nil
}

// openMarkers opens the socket that sends markers on fr0.
func (l *Live) openMarkers() error {
	if l.markers >= 0 {
		return nil
	}
	out, err := netlink.LinkByIndex(int(l.out))
	if err != nil {
		return fmt.Errorf("find fr0: %w", err)
	}
	prog, err := l.load("marker", marker)
	if err != nil {
		return err
	}
	if err := l.attach(out, ebpf.AttachTCXEgress, prog); err != nil {
		return err
	}
	if l.markers, err = packetSocket(int(l.out)); err != nil {
		return fmt.Errorf("a packet socket on fr0: %w", err)
	}
	return nil
}

// sendBare sends a packet, with a struct virtio_net_hdr in front. The kernel takes it for the IP version that its first
// byte says.
func (e *entrance) sendBare(packet [][]byte) error {
	if e.written {
		_, err := unix.Writev(e.device, packet)
		return err
	}
	to := &unix.SockaddrLinklayer{Ifindex: e.dev.Attrs().Index, Protocol: swap16(unix.ETH_P_IP)}
	if data := packet[1]; len(data) > 0 && data[0]>>4 == 6 {
		to.Protocol = swap16(unix.ETH_P_IPV6)
	}
	_, err := unix.SendmsgBuffers(e.fd, packet, nil, to, 0)
	return err
}

// stamp marks the packets of a device as those of Send: there are no others.
var stamp = asm.Instructions{
	asm.StoreImm(asm.R1, ctxTCIndex, ours, asm.Word),
	asm.Mov.Imm(asm.R0, -1),
	asm.Return(),
}

// marker marks markers.
var marker = asm.Instructions{
	asm.LoadMem(asm.R2, asm.R1, ctxProtocol, asm.Word),
	asm.JNE.Imm(asm.R2, int32(swap16(markerProto)), "out"),
	asm.StoreImm(asm.R1, ctxTCIndex, ours, asm.Word),
	asm.Mov.Imm(asm.R0, -1).WithSymbol("out"),
	asm.Return(),
}
