package testkernel

import (
	"errors"
	"fmt"
	"os"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"github.com/fastrelay/fastrelay-gen/internal/lab"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/namespace"
)

// WireMACs are the link-layer addresses of the virtio-net devices of a machine. The first two are the ends of a cable,
// and so on.
var WireMACs = [6]string{
	"52:54:00:fa:57:00", "52:54:00:fa:57:01", "52:54:00:fa:57:02", "52:54:00:fa:57:03", "52:54:00:fa:57:04",
	"52:54:00:fa:57:05",
}

// wire is the cables between a machine's virtio-net devices, outside of it: taps in a network namespace of their own,
// and a program at each that hands its frames to the cable's other one. What the kernel knows of a frame goes along:
// checksums that are left to a device, and segments. The namespace ends with the taps' files.
type wire struct {
	taps  []*os.File
	links []link.Link
	prog  []*ebpf.Program
}

// newWire lays the cables. It needs root.
func newWire() (w *wire, err error) {
	w = &wire{}
	ns, err := namespace.New(w.lay)
	if err == nil {
		err = ns.Close()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("cables for virtio-net devices: %w", err), w.close())
	}
	return w, nil
}

func (w *wire) lay() error {
	var taps []netlink.Link
	for i := range WireMACs {
		name := fmt.Sprintf("tap%d", i)
		fd, err := lab.OpenTap(name)
		if err != nil {
			return err
		}
		w.taps = append(w.taps, os.NewFile(uintptr(fd), name))
		tap, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		if err := netlink.LinkSetUp(tap); err != nil {
			return err
		}
		taps = append(taps, tap)
	}
	for i, tap := range taps {
		prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "wire", Type: ebpf.SchedCLS, License: "GPL",
			Instructions: asm.Instructions{
				asm.Mov.Imm(asm.R1, int32(taps[i^1].Attrs().Index)),
				asm.Mov.Imm(asm.R2, 0),
				asm.FnRedirect.Call(),
				asm.Return(),
			}})
		if err != nil {
			return err
		}
		w.prog = append(w.prog, prog)
		l, err := link.AttachTCX(link.TCXOptions{
			Interface: tap.Attrs().Index, Program: prog, Attach: ebpf.AttachTCXIngress,
		})
		if err != nil {
			return err
		}
		w.links = append(w.links, l)
	}
	return nil
}

// args are an emulator's arguments for the devices. Its files begin with the taps.
func (w *wire) args() (args []string) {
	for i, mac := range WireMACs {
		args = append(args,
			"-netdev", fmt.Sprintf("tap,id=wire%d,fd=%d,vhost=off", i, 3+i),
			"-device", fmt.Sprintf("virtio-net-pci,netdev=wire%d,mac=%s,romfile=", i, mac))
	}
	return args
}

func (w *wire) close() error {
	var errs []error
	for _, l := range w.links {
		errs = append(errs, l.Close())
	}
	for _, p := range w.prog {
		errs = append(errs, p.Close())
	}
	for _, f := range w.taps {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}
