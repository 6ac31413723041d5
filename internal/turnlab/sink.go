package turnlab

import (
	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	"github.com/fastrelay/fastrelay-gen/internal/testnet"
)

// Sink drops all that a device receives, as early as its host can, so that a receiver costs next to nothing. The
// device's own statistics tell how much that was. It needs TCX (Linux 6.6).
type Sink struct {
	program *ebpf.Program
	link    link.Link
}

// NewSink attaches a sink.
func NewSink(dev *testnet.Dev) (*Sink, error) {
	const drop = 2 // TC_ACT_SHOT (linux/pkt_cls.h)
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name:         "turnlab_sink",
		Type:         ebpf.SchedCLS,
		License:      "MIT",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, drop), asm.Return()},
	})
	if err != nil {
		return nil, err
	}
	s := &Sink{program: program}
	err = dev.Host.Do(func() (err error) {
		s.link, err = link.AttachTCX(link.TCXOptions{Interface: dev.Index, Program: program, Attach: ebpf.AttachTCXIngress})
		return err
	})
	if err != nil {
		program.Close()
		return nil, err
	}
	return s, nil
}

// Close lets packets through again.
func (s *Sink) Close() error {
	err := s.link.Close()
	s.program.Close()
	return err
}
