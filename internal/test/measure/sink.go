package measure

import (
	"errors"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// Sink drops all packets that a device receives, as early as its host can, so that a receiver costs next to
// nothing. The device's statistics count them.
type Sink struct {
	program *ebpf.Program
	detach  func() error
}

// NewSink attaches a sink.
func NewSink(dev *testnet.Dev) (*Sink, error) {
	const drop = 2 // TC_ACT_SHOT (linux/pkt_cls.h)
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name:         "measure_sink",
		Type:         ebpf.SchedCLS,
		License:      "MIT",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, drop), asm.Return()},
	})
	if err != nil {
		return nil, err
	}
	s := &Sink{program: program}
	err = s.attachTCX(dev)
	if errors.Is(err, ebpf.ErrNotSupported) { // before Linux 6.6
		err = s.attachFilter(dev)
	}
	if err != nil {
		program.Close()
		return nil, err
	}
	return s, nil
}

func (s *Sink) attachTCX(dev *testnet.Dev) error {
	options := link.TCXOptions{Interface: dev.Index, Program: s.program, Attach: ebpf.AttachTCXIngress}
	return dev.Host.Do(func() error {
		l, err := link.AttachTCX(options)
		if err == nil {
			s.detach = l.Close
		}
		return err
	})
}

func (s *Sink) attachFilter(dev *testnet.Dev) error {
	clsact := &netlink.GenericQdisc{QdiscType: "clsact", QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: dev.Index, Parent: netlink.HANDLE_CLSACT, Handle: netlink.MakeHandle(0xFFFF, 0),
	}}
	s.detach = func() error {
		return dev.Host.Do(func() error { return netlink.QdiscDel(clsact) })
	}
	return dev.Host.Do(func() error {
		if err := netlink.QdiscAdd(clsact); err != nil {
			return err
		}
		return netlink.FilterAdd(&netlink.BpfFilter{
			FilterAttrs: netlink.FilterAttrs{
				LinkIndex: dev.Index, Parent: netlink.HANDLE_MIN_INGRESS, Handle: 1, Priority: 1,
				Protocol: unix.ETH_P_ALL,
			},
			Fd: s.program.FD(), Name: "measure_sink", DirectAction: true,
		})
	})
}

// Close lets packets through again.
func (s *Sink) Close() error {
	err := s.detach()
	s.program.Close()
	return err
}
