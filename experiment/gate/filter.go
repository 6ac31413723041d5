package gate

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/examples/gate/lab"
	"github.com/fastrelay/fastrelay-gen/internal/test/testnet"
	"github.com/fastrelay/fastrelay-gen/internal/test/turnlab"
)

// This file measures what it costs to filter packets, in the kernel and in user space alike: a loop counts on the
// server's processor whenever nothing else wants it, and counts less while packets are filtered.

// loopRole has a copy of this program count.
const loopRole = "FASTRELAY_GATELOOP"

// spell is how long is counted.
const spell = time.Second

// loopMain counts with the lowest priority, and prints for each line that it reads how far it has come.
func loopMain() {
	if os.Getenv(loopRole) == "" {
		return
	}
	runtime.LockOSThread()
	var set unix.CPUSet
	set.Set(turnlab.RelayCPU)
	attr := unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_IDLE}
	if err := errors.Join(unix.SchedSetaffinity(0, &set), unix.SchedSetAttr(0, &attr, 0)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	var n atomic.Uint64
	go func() {
		for in := bufio.NewScanner(os.Stdin); in.Scan(); {
			fmt.Println(n.Load())
		}
		os.Exit(0)
	}()
	for {
		n.Add(1)
	}
}

// loop is the counting process.
type loop struct {
	cmd      *exec.Cmd
	commands io.WriteCloser
	replies  *bufio.Reader
}

func startLoop() (*loop, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	l := &loop{cmd: exec.Command(self)}
	l.cmd.Env = append(os.Environ(), loopRole+"=1")
	l.cmd.Stderr = os.Stderr
	if l.commands, err = l.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := l.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	l.replies = bufio.NewReader(out)
	return l, testnet.StartChild(l.cmd)
}

func (l *loop) close() error {
	return errors.Join(l.commands.Close(), l.cmd.Wait())
}

func (l *loop) count() (n uint64, err error) {
	if _, err := fmt.Fprintln(l.commands); err != nil {
		return 0, err
	}
	_, err = fmt.Fscanln(l.replies, &n)
	return n, err
}

// rate is how fast it counts during a spell.
func (l *loop) rate() (float64, error) {
	before, err := l.count()
	if err != nil {
		return 0, err
	}
	begin := time.Now()
	time.Sleep(spell)
	after, err := l.count()
	return float64(after-before) / time.Since(begin).Seconds(), err
}

// calls counts the system calls of a process.
type calls struct {
	counter *ebpf.Map
	link    link.Link
}

func countCalls(pid int) (_ *calls, err error) {
	c := &calls{}
	spec := &ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1}
	if c.counter, err = ebpf.NewMap(spec); err != nil {
		return nil, err
	}
	code := asm.Instructions{
		asm.FnGetCurrentPidTgid.Call(), asm.RSh.Imm(asm.R0, 32), asm.JNE.Imm(asm.R0, int32(pid), "end"),
		asm.StoreImm(asm.RFP, -4, 0, asm.Word), asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, -4),
		asm.LoadMapPtr(asm.R1, c.counter.FD()), asm.FnMapLookupElem.Call(), asm.JEq.Imm(asm.R0, 0, "end"),
		asm.Mov.Imm(asm.R1, 1), asm.AddAtomic.Mem(asm.R0, asm.R1, asm.DWord, 0),
		asm.Mov.Imm(asm.R0, 0).WithSymbol("end"), asm.Return(),
	}
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.RawTracepoint, License: "GPL", Instructions: code})
	if err != nil {
		return nil, errors.Join(err, c.counter.Close())
	}
	defer prog.Close()
	c.link, err = link.AttachRawTracepoint(link.RawTracepointOptions{Name: "sys_enter", Program: prog})
	if err != nil {
		return nil, errors.Join(err, c.counter.Close())
	}
	return c, nil
}

func (c *calls) count() (n uint64, err error) { return n, c.counter.Lookup(uint32(0), &n) }

func (c *calls) close() error { return errors.Join(c.link.Close(), c.counter.Close()) }

// filter measures the cost of a packet that doesn't belong to any connection, without clients.
func filter(_ context.Context, v lab.Variant) (_ map[string]float64, err error) {
	s, err := start(v)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	l, err := startLoop()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, l.close()) }()
	time.Sleep(warm) // the pool of connection IDs is filled
	idle, err := l.rate()
	if err != nil {
		return nil, err
	}
	stop, err := s.Attack(lab.Rates{lab.Garbage: filtered / 2, lab.Strays: filtered / 2})
	if err != nil {
		return nil, err
	}
	time.Sleep(warm / 2)
	busy, packets, system, err := spellUnderAttack(s, l)
	_, err2 := stop()
	if err := errors.Join(err, err2); err != nil {
		return nil, err
	}
	return map[string]float64{
		"processor":    max(0, 1-busy/idle) * 1e9 / packets,
		"system calls": 1000 * system / packets,
	}, nil
}

// spellUnderAttack returns the loop's rate, and packets and system calls a second. Calls are counted apart: that costs.
func spellUnderAttack(s *server, l *loop) (rate, packets, system float64, err error) {
	received := func() (n uint64) {
		if err == nil {
			n, err = s.AttackedDev.Received()
		}
		return n
	}
	before, begin := received(), time.Now()
	if err != nil {
		return 0, 0, 0, err
	}
	if rate, err = l.rate(); err != nil {
		return 0, 0, 0, err
	}
	packets = float64(received()-before) / time.Since(begin).Seconds()
	c, err2 := countCalls(s.Pid())
	if err := errors.Join(err, err2); err != nil {
		return 0, 0, 0, err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	begin = time.Now()
	time.Sleep(spell)
	n, err := c.count()
	return rate, packets, float64(n) / time.Since(begin).Seconds(), err
}
