package cli_test

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/gen/glue"
	"github.com/fastrelay/fastrelay-gen/internal/build"
	"github.com/fastrelay/fastrelay-gen/runtime"
	"github.com/fastrelay/fastrelay-gen/runtime/control"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/bpftest"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// terminal is a pseudo-terminal with a command of fastrelay-gen on it.
type terminal struct {
	*testing.T
	master *os.File
	cmd    *exec.Cmd
	mu     sync.Mutex
	out    bytes.Buffer
	width  uint16
}

func onTerminal(t *testing.T, args ...string) *terminal {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	n, err1 := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	err2 := unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0)
	slave, err3 := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err := errors.Join(err1, err2, err3); err != nil {
		t.Fatal(err)
	}
	p := &terminal{T: t, master: master, width: 150}
	p.resize()
	p.cmd = &exec.Cmd{
		Path: "/proc/self/exe", Args: append([]string{"fastrelay-gen"}, args...),
		Stdin: slave, Stdout: slave, Stderr: slave, Env: append(os.Environ(), "TERM=xterm-256color"),
		SysProcAttr: &syscall.SysProcAttr{Setsid: true, Setctty: true},
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	slave.Close()
	go func() {
		buf := make([]byte, 1<<16)
		for {
			n, err := master.Read(buf)
			p.mu.Lock()
			p.out.Write(buf[:n])
			p.mu.Unlock()
			if err != nil { // the other end is closed
				return
			}
		}
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		master.Close()
	})
	return p
}

// resize has the whole screen drawn anew.
func (p *terminal) resize() {
	p.width ^= 1
	size := &unix.Winsize{Row: 40, Col: p.width}
	if err := unix.IoctlSetWinsize(int(p.master.Fd()), unix.TIOCSWINSZ, size); err != nil {
		p.Fatal(err)
	}
}

// sequence is what moves the cursor and colours text.
var sequence = regexp.MustCompile("\x1b(\\[[0-9;?<>=$]*[a-zA-Z@]|[()][A-Z0-9]|\\][^\a\x1b]*(\a|\x1b\\\\)|[=>M78])")

// press presses keys, and waits until the screen shows words, in this order.
func (p *terminal) press(keys string, words ...string) string {
	p.Helper()
	p.mu.Lock()
	p.out.Reset()
	p.mu.Unlock()
	if _, err := p.master.WriteString(keys); err != nil {
		p.Fatal(err)
	}
	text := ""
	drawn := time.Time{}
	err := testnet.Until(2*time.Second, fmt.Sprintf("after %q the screen shows %q", keys, words), func() bool {
		if time.Since(drawn) > 300*time.Millisecond { // the screen is drawn anew in less
			drawn = time.Now()
			p.resize()
		}
		p.mu.Lock()
		text = sequence.ReplaceAllString(p.out.String(), " ")
		p.mu.Unlock()
		at := 0
		for _, w := range words {
			i := strings.Index(text[at:], w)
			if i < 0 {
				return false
			}
			at += i + len(w)
		}
		return true
	})
	if err != nil {
		p.Fatalf("%v:\n%.3000s", err, text)
	}
	return text
}

// A person looks at programs, sessions and receivers, sorts and scrolls, and leaves.
func TestWatch(t *testing.T) {
	needs.Root(t)
	built, list, err := build.Spec(t.Context(), "../test/control/testdata/spec.cue", build.Options{})
	if err != nil || list.Len() > 0 {
		t.Fatal(err, list)
	}
	desc := glue.Desc(built.Plan)
	socket := filepath.Join(t.TempDir(), "lab.sock")
	relay, err := runtime.Load(&desc, built.Object(), runtime.Options{Control: control.Socket(socket)})
	if err != nil {
		t.Fatal(err)
	}
	defer relay.Close()
	ep := netip.MustParseAddrPort
	for i := range 100 {
		if _, err := relay.Open("call", ep("198.51.100.7:40001"), ep("192.0.2.1:7000"), i, ep("192.0.2.1:50000"),
			ep("203.0.113.9:7000")); err != nil {
			t.Fatal(err)
		}
	}
	group, err := relay.GroupKind("viewers").Open(t.Context(), ep("198.51.100.7:40001"), 9)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := group.Add(t.Context(), ep("192.0.2.1:7000"), ep("203.0.113.9:6001"), 77); err != nil {
		t.Fatal(err)
	}
	// Packets that no rule takes.
	stop := make(chan struct{})
	var sender sync.WaitGroup
	sender.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			_, err := bpftest.Run(relay.Program("calls").Kernel(), ebpf.RunOptions{Data: make([]byte, 64)})
			if err != nil {
				t.Error(err)
				return
			}
		}
	})
	defer sender.Wait()
	defer close(stop)

	p := onTerminal(t, "watch", "--socket", socket)
	p.press("", "lab", "running", "call 100/65,536", "[1 programs]", "calls", "ns/packet", "Mbit/s", "█", "spread",
		"no packet yet")
	p.press("\t", "[2 sessions]", "SESSION", "call", "number=0 ", "1 to 36 of 101 lines")
	p.press("\x1b[6~", "number=50 ", "of 101 lines") // page down
	p.press("g", "1 to 36")
	p.press("ssssss", "sorts (by session)")
	p.press("r", "call 99-1", "call 98-1")
	p.press("3", "[3 receivers]", "RECEIVER", "viewers 198.51.100.7:40001,9 / 1", "number=77")
	p.press("1", "[1 programs]", "calls")
	if _, err := p.master.WriteString("q"); err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Wait(); err != nil {
		t.Error(err)
	}
}

// Watch has the kernel measure programs, and no longer than it runs: also if it is killed.
func TestWatchStats(t *testing.T) {
	needs.Root(t)
	built, list, err := build.Spec(t.Context(), "../../examples/gate/spec.cue", build.Options{})
	if err != nil || list.Len() > 0 {
		t.Fatal(err, list)
	}
	desc := glue.Desc(built.Plan)
	socket := filepath.Join(t.TempDir(), "gate.sock")
	relay, err := runtime.Load(&desc, built.Object(), runtime.Options{Control: control.Socket(socket)})
	if err != nil {
		t.Fatal(err)
	}
	defer relay.Close()
	prog := relay.Programs()[0].Kernel()
	measured := func() bool {
		before, err1 := prog.Stats()
		_, err2 := bpftest.Run(prog, ebpf.RunOptions{Data: make([]byte, 64)})
		after, err3 := prog.Stats()
		if err := errors.Join(err1, err2, err3); err != nil {
			t.Fatal(err)
		}
		return after.RunCount > before.RunCount
	}
	becomes := func(what string, want bool) {
		t.Helper()
		// Another test may have them measured for a while.
		if err := testnet.Until(30*time.Second, what, func() bool { return measured() == want }); err != nil {
			t.Fatal(err)
		}
	}
	becomes("nothing is measured", false)
	for _, leave := range []func(p *terminal) error{
		func(p *terminal) error { _, err := p.master.WriteString("q"); return err },
		func(p *terminal) error { return p.cmd.Process.Kill() },
	} {
		p := onTerminal(t, "watch", "--socket", socket)
		p.press("", "gate", "running")
		becomes("programs are measured", true)
		if err := leave(p); err != nil {
			t.Fatal(err)
		}
		_ = p.cmd.Wait() // killed, or 0
		becomes("programs aren't measured any more", false)
	}
}

// When the relay ends, watch says so, and leaves.
func TestWatchEnds(t *testing.T) {
	needs.Root(t)
	built, list, err := build.Spec(t.Context(), "../../examples/gate/spec.cue", build.Options{})
	if err != nil || list.Len() > 0 {
		t.Fatal(err, list)
	}
	desc := glue.Desc(built.Plan)
	socket := filepath.Join(t.TempDir(), "gate.sock")
	relay, err := runtime.Load(&desc, built.Object(), runtime.Options{Control: control.Socket(socket)})
	if err != nil {
		t.Fatal(err)
	}
	defer relay.Close()
	p := onTerminal(t, "watch", "-s", socket)
	p.press("", "gate", "no packet yet")
	if err := relay.Close(); err != nil {
		t.Fatal(err)
	}
	p.press("", "FR0525", "there is no socket")
	var status *exec.ExitError
	if err := p.cmd.Wait(); !errors.As(err, &status) || status.ExitCode() != 1 {
		t.Errorf("it ends with %v", err)
	}
}
