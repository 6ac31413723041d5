package turnlab

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/internal/testnet"
)

// Busy measures how much of a processor everything else takes, interrupts included, which the kernel's own accounting only
// samples. A process of the lowest priority reads the clock without a pause; each time that it was held up for longer than
// reading takes, something else ran. The processor never idles meanwhile, so waking it costs nothing to anyone.
type Busy struct {
	cmd *exec.Cmd
	mem []byte
}

// holdUp is the time between two readings of the clock (25 to 60 ns) from which on something else must have run; an
// interrupt that handles a single packet takes several times that.
const holdUp = 200 * time.Nanosecond

// busyState is what the two processes share, at the start of one page.
type busyState struct {
	taken atomic.Int64 // nanoseconds that others had
	at    atomic.Int64 // CLOCK_MONOTONIC at that reading
}

func stateIn(mem []byte) *busyState { return (*busyState)(unsafe.Pointer(&mem[0])) }

// NewBusy starts to measure one processor.
func NewBusy(cpu int) (*Busy, error) {
	fd, err := unix.MemfdCreate("turnlab-busy", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(fd), "turnlab-busy")
	defer file.Close()
	if err := file.Truncate(int64(os.Getpagesize())); err != nil {
		return nil, err
	}
	mem, err := unix.Mmap(fd, 0, os.Getpagesize(), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	b := &Busy{cmd: exec.Command(self, strconv.Itoa(cpu)), mem: mem}
	b.cmd.Env = append(os.Environ(), role+"=busy", "GOMAXPROCS=1", "GODEBUG=asyncpreemptoff=1")
	b.cmd.ExtraFiles = []*os.File{file}
	b.cmd.Stderr = os.Stderr
	ready, err := b.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := testnet.StartChild(b.cmd); err != nil {
		return nil, err
	}
	if _, err := io.ReadFull(ready, make([]byte, 1)); err != nil {
		return nil, fmt.Errorf("the process that measures processor time did not start: %w", err)
	}
	return b, nil
}

// Close ends the measuring process.
func (b *Busy) Close() error {
	_ = b.cmd.Process.Kill()
	_ = b.cmd.Wait() // killed, so its status says nothing
	return unix.Munmap(b.mem)
}

// Pause lets the processor idle as it would without the measurement.
func (b *Busy) Pause() error { return b.cmd.Process.Signal(syscall.SIGSTOP) }

// Resume ends a pause; the next reading is good once the process has run again.
func (b *Busy) Resume() error {
	if err := b.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		return err
	}
	paused := b.Read()
	return testnet.Until(2*time.Second, "the measuring process runs again", func() bool { return b.Read().at > paused.at+int64(time.Millisecond) })
}

// Reading is the state of a measurement at one time.
type Reading struct{ taken, at int64 }

// Read returns the processor's state as of its last free moment.
func (b *Busy) Read() Reading {
	state := stateIn(b.mem)
	for {
		at := state.at.Load()
		taken := state.taken.Load()
		if state.at.Load() == at {
			return Reading{taken, at}
		}
	}
}

// Until returns the time between two readings.
func (r Reading) Until(later Reading) time.Duration { return time.Duration(later.at - r.at) }

// Share returns which part of the time between two readings others had the processor, 0 to 1.
func (r Reading) Share(later Reading) float64 {
	if later.at == r.at {
		return 1
	}
	return float64(later.taken-r.taken) / float64(later.at-r.at)
}

// busyMain is the measuring process. It never returns.
func busyMain() {
	cpu, err := strconv.Atoi(os.Args[1])
	if err == nil {
		err = measureBusy(cpu)
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

func measureBusy(cpu int) error {
	const inherited = 3 // the first of exec.Cmd.ExtraFiles
	mem, err := unix.Mmap(inherited, 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	debug.SetGCPercent(-1)
	runtime.LockOSThread()
	if err := pinThread(cpu); err != nil {
		return err
	}
	if err := unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_IDLE}, 0); err != nil {
		return err
	}
	if _, err := os.Stdout.Write([]byte{'.'}); err != nil {
		return err
	}
	// The runtime must not look at this thread while it is held up, and a system call would be a moment of its own: from here on
	// nothing but the clock (read without entering the kernel) and stores.
	state := stateIn(mem)
	last, taken, parent := time.Now(), int64(0), os.Getppid()
	start := now() - int64(time.Since(last))
	origin := last
	for i := uint64(1); ; i++ {
		t := time.Now()
		if d := t.Sub(last); d > holdUp {
			taken += int64(d)
		}
		last = t
		state.taken.Store(taken)
		state.at.Store(start + int64(t.Sub(origin)))
		if i%(1<<24) == 0 && os.Getppid() != parent {
			return context.Canceled
		}
	}
}
