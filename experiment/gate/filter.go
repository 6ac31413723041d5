package gate

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/examples/gate/lab"
	"github.com/fastrelay/fastrelay-gen/internal/test/measure"
)

// This file measures what it costs to filter packets, in the kernel and in user space alike: the time of the server's
// process, and that which the kernel has for packets on its processor. What it costs to receive them is subtracted.

// interval is how long is measured.
const interval = time.Second

// tracer runs programs at raw tracepoints. They share a map with one value for each processor.
type tracer struct {
	values *ebpf.Map
	links  []link.Link
}

// newTracer makes one whose values have so many bytes.
func newTracer(size uint32) (*tracer, error) {
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.PerCPUArray, KeySize: 4, ValueSize: size, MaxEntries: 1})
	return &tracer{values: m}, err
}

// at runs code at a tracepoint, with the first argument of the tracepoint in R7, the process in R8, the time in R9, and
// the value in R0. It may jump to "end".
func (t *tracer) at(tracepoint string, code ...asm.Instruction) error {
	all := append(asm.Instructions{
		asm.LoadMem(asm.R7, asm.R1, 0, asm.DWord),
		asm.FnGetCurrentPidTgid.Call(), asm.Mov.Reg(asm.R8, asm.R0), asm.RSh.Imm(asm.R8, 32),
		asm.FnKtimeGetNs.Call(), asm.Mov.Reg(asm.R9, asm.R0),
		asm.StoreImm(asm.RFP, -4, 0, asm.Word), asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, -4),
		asm.LoadMapPtr(asm.R1, t.values.FD()), asm.FnMapLookupElem.Call(), asm.JEq.Imm(asm.R0, 0, "end"),
	}, code...)
	all = append(all, asm.Mov.Imm(asm.R0, 0).WithSymbol("end"), asm.Return())
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.RawTracepoint, License: "GPL", Instructions: all})
	if err != nil {
		return err
	}
	defer prog.Close()
	l, err := link.AttachRawTracepoint(link.RawTracepointOptions{Name: tracepoint, Program: prog})
	if err == nil {
		t.links = append(t.links, l)
	}
	return err
}

func (t *tracer) close() error {
	err := t.values.Close()
	for _, l := range t.links {
		err = errors.Join(err, l.Close())
	}
	return err
}

// add adds a register to the value's number at an offset.
func add(off int16, r asm.Register) []asm.Instruction {
	return []asm.Instruction{
		asm.LoadMem(asm.R2, asm.R0, off, asm.DWord), asm.Add.Reg(asm.R2, r),
		asm.StoreMem(asm.R0, off, asm.R2, asm.DWord),
	}
}

// countCalls counts the system calls of a process.
func countCalls(pid int) (*tracer, error) {
	t, err := newTracer(8)
	if err != nil {
		return nil, err
	}
	code := append([]asm.Instruction{asm.JNE.Imm(asm.R8, int32(pid), "end"), asm.Mov.Imm(asm.R1, 1)}, add(0, asm.R1)...)
	if err := t.at("sys_enter", code...); err != nil {
		return nil, errors.Join(err, t.close())
	}
	return t, nil
}

func (t *tracer) calls() (n uint64, err error) {
	var all []uint64
	err = t.values.Lookup(uint32(0), &all)
	for _, v := range all {
		n += v
	}
	return n, err
}

// timePackets measures how long the kernel works on packets that have come in (NET_RX), except while it interrupts a
// process, whose time it is counted as.
func timePackets(pid int) (*tracer, error) {
	const netRX = 3
	t, err := newTracer(16)
	if err != nil {
		return nil, err
	}
	end := append([]asm.Instruction{
		asm.JNE.Imm(asm.R7, netRX, "end"), asm.JEq.Imm(asm.R8, int32(pid), "end"),
		asm.LoadMem(asm.R1, asm.R0, 0, asm.DWord), asm.Sub.Reg(asm.R9, asm.R1),
	}, add(8, asm.R9)...)
	err = errors.Join(
		t.at("softirq_entry", asm.JNE.Imm(asm.R7, netRX, "end"), asm.StoreMem(asm.R0, 0, asm.R9, asm.DWord)),
		t.at("softirq_exit", end...))
	if err != nil {
		return nil, errors.Join(err, t.close())
	}
	return t, nil
}

// onPackets is how long it was, on the server's processor.
func (t *tracer) onPackets() (time.Duration, error) {
	var all []struct{ Began, Took uint64 }
	err := t.values.Lookup(uint32(0), &all)
	if err != nil {
		return 0, err
	}
	return time.Duration(all[measure.RelayCPU].Took), nil
}

// running is how long the threads of a process have run.
func running(pid int) (sum time.Duration, err error) {
	files, err := filepath.Glob(filepath.Join("/proc", strconv.Itoa(pid), "task", "*", "schedstat"))
	for _, file := range files {
		text, err := os.ReadFile(file)
		if errors.Is(err, unix.ESRCH) || errors.Is(err, os.ErrNotExist) {
			continue
		}
		ran, _, _ := strings.Cut(string(text), " ")
		n, err2 := strconv.ParseInt(ran, 10, 64)
		if err := errors.Join(err, err2); err != nil {
			return 0, err
		}
		sum += time.Duration(n)
	}
	return sum, err
}

// discard has the attacked device drop what it receives, unread.
func discard(on *lab.Lab) (link.Link, error) {
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.SchedCLS, License: "GPL", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, actShot), asm.Return()},
	})
	if err != nil {
		return nil, err
	}
	defer prog.Close()
	var l link.Link
	err = on.Server.Do(func() error {
		l, err = link.AttachTCX(link.TCXOptions{
			Interface: on.AttackedDev.Index, Program: prog, Attach: ebpf.AttachTCXIngress,
		})
		return err
	})
	return l, err
}

// actShot is TC_ACT_SHOT.
const actShot = 2

// filter measures the cost of a packet that doesn't belong to any connection, without clients.
func filter(v lab.Variant) (_ map[string]float64, err error) {
	s, err := start(v)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	stop, err := s.Attack(lab.Rates{lab.Garbage: filtered / 2, lab.UnknownIDs: filtered / 2})
	if err != nil {
		return nil, err
	}
	defer func() {
		_, err2 := stop()
		err = errors.Join(err, err2)
	}()
	time.Sleep(warm)
	figures := map[string]float64{}
	return figures, errors.Join(timed(s, figures), called(s, figures))
}

// during returns by how much each of some numbers rises in an interval.
func during(from ...func() (uint64, error)) ([]float64, error) {
	out, errs := make([]float64, len(from)), make([]error, 0, 2*len(from))
	read := func(sign float64) {
		for i, f := range from {
			n, err := f()
			out[i] += sign * float64(n)
			errs = append(errs, err)
		}
	}
	read(-1)
	time.Sleep(interval)
	read(1)
	return out, errors.Join(errs...)
}

// timed measures the time of the processor that a packet takes, and counts packets that are refused.
func timed(s *server, figures map[string]float64) (err error) {
	t, err := timePackets(s.Pid())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.close()) }()
	n, err := during(s.AttackedDev.Received, s.Dropped,
		func() (uint64, error) { d, err := t.onPackets(); return uint64(d), err },
		func() (uint64, error) { d, err := running(s.Pid()); return uint64(d), err })
	figures["rate"], figures["refused"] = n[0]/interval.Seconds(), 100*n[1]/n[0]
	figures["kernel"], figures["process"], figures["processor"] = n[2]/n[0], n[3]/n[0], (n[2]+n[3])/n[0]
	return err
}

// called counts system calls. It is done apart: it costs something, too.
func called(s *server, figures map[string]float64) (err error) {
	t, err := countCalls(s.Pid())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.close()) }()
	n, err := during(s.AttackedDev.Received, t.calls)
	figures["system calls"] = 1000 * n[1] / n[0]
	return err
}
