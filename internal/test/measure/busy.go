package measure

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// Busy measures how much of a processor the kernel takes for interrupts and what they bring, such as forwarding
// packets, which its own accounting only samples. For a short interval a process of real-time priority reads the clock
// without a pause; each time that it was held up for longer than reading takes, the kernel was at work. Other processes
// don't run meanwhile, so they don't count; nor can a user-space relay be measured so.
type Busy struct {
	cmd      *exec.Cmd
	commands io.WriteCloser
	replies  *bufio.Reader
}

const (
	// holdUp is the time between two readings of the clock (25 to 60 ns) from which on the kernel must have been at
	// work; an interrupt that handles a single packet takes several times that.
	holdUp = 150 * time.Nanosecond
	// longestInterval keeps a processor from its other users for no longer than they may not notice, and below what
	// the scheduler allows real-time processes in a row.
	longestInterval = 200 * time.Millisecond
)

// NewBusy prepares to measure one processor.
func NewBusy(cpu int) (*Busy, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	b := &Busy{cmd: exec.Command(self, strconv.Itoa(cpu))}
	b.cmd.Env = append(os.Environ(), role+"=busy", "GOMAXPROCS=1", "GODEBUG=asyncpreemptoff=1")
	b.cmd.Stderr = os.Stderr
	if b.commands, err = b.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := b.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	b.replies = bufio.NewReader(out)
	if err := testnet.StartChild(b.cmd); err != nil {
		return nil, err
	}
	if _, err := b.Interval(time.Millisecond); err != nil {
		_ = b.Close()
		return nil, fmt.Errorf("the process that measures CPU time does not work: %w", err)
	}
	return b, nil
}

// Close ends the measuring process.
func (b *Busy) Close() error {
	_ = b.commands.Close()
	return b.cmd.Wait()
}

// Start begins an interval. Wait has to follow.
func (b *Busy) Start(d time.Duration) error {
	if d > longestInterval {
		return fmt.Errorf("an interval of %v is too long, at most %v", d, longestInterval)
	}
	_, err := fmt.Fprintln(b.commands, int64(d))
	return err
}

// Wait waits for the end of the interval and returns the share (0 to 1) of it in which the kernel had the processor.
func (b *Busy) Wait() (share float64, err error) {
	_, err = fmt.Fscanln(b.replies, &share)
	return share, err
}

// Interval is Start and Wait.
func (b *Busy) Interval(d time.Duration) (share float64, err error) {
	if err := b.Start(d); err != nil {
		return 0, err
	}
	return b.Wait()
}

// busyMain is the measuring process: for each number of nanoseconds that it reads, it prints the share that was taken.
func busyMain() error {
	cpu, err := strconv.Atoi(os.Args[1])
	if err != nil {
		return err
	}
	debug.SetGCPercent(-1)
	runtime.LockOSThread()
	if err := pinThread(cpu); err != nil {
		return err
	}
	attr := unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 1}
	if err := unix.SchedSetAttr(0, &attr, 0); err != nil {
		return err
	}
	in := bufio.NewReader(os.Stdin)
	for {
		var nanoseconds int64
		if _, err := fmt.Fscanln(in, &nanoseconds); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		fmt.Println(spin(time.Duration(nanoseconds)))
	}
}

// spin reads the clock for a time and returns the share of it in which the thread was held up. It makes no system call.
func spin(d time.Duration) float64 {
	start := time.Now()
	var taken, last time.Duration
	for last < d {
		t := time.Since(start)
		if t-last > holdUp {
			taken += t - last
		}
		last = t
	}
	return float64(taken) / float64(last)
}
