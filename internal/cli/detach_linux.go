package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/internal/diag"
	"github.com/fastrelay/fastrelay-gen/runtime/abi"
	"github.com/fastrelay/fastrelay-gen/runtime/control/api"
)

// A relay lives as long as its process, which renews its lease. So `run --detach` starts itself again, in a session of
// its own, and returns when that process says that the relay is attached.

// readyFD is where the process in the background says that it is ready.
const readyFD = 3

// detach runs the same command in the background.
func (a *app) detach(ctx context.Context, desc *abi.Desc, opt *runOptions) error {
	if opt.traffic || opt.once || opt.events {
		return usage("--traffic, --once and --events print to a terminal, which --detach has none of").
			see("fastrelay-gen events --help")
	}
	socket := api.PathOf(opt.control)
	path := strings.TrimSuffix(socket, ".sock") + ".log"
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	log, err := openLog(path)
	if err != nil {
		return err
	}
	defer log.Close()
	before, err := log.Seek(0, io.SeekEnd) // it has what others have said before
	if err != nil {
		return err
	}
	ready, say, err := os.Pipe()
	if err != nil {
		return err
	}
	defer ready.Close()
	cmd := &exec.Cmd{
		Path: "/proc/self/exe", Args: os.Args,
		Env: append(os.Environ(), detachedVar+"="+path), Stdout: log, Stderr: log, ExtraFiles: []*os.File{say},
		SysProcAttr: &syscall.SysProcAttr{Setsid: true},
	}
	if err := cmd.Start(); err != nil {
		say.Close()
		return err
	}
	say.Close()
	// What interrupts this process doesn't reach the child, which is in a session of its own.
	finish := context.AfterFunc(ctx, func() { _ = cmd.Process.Signal(unix.SIGTERM) })
	text, err := io.ReadAll(ready) // until the child has closed it, or has ended
	if err != nil {
		return err
	}
	if !finish() {
		_ = cmd.Wait() // it takes back what it has done, and its log says so
		return ctx.Err()
	}
	if len(text) == 0 {
		end := cmd.Wait() // its log says more
		why, err := io.ReadAll(io.NewSectionReader(log, before, 1<<20))
		if err != nil {
			return err
		}
		if len(why) == 0 {
			return &diag.Diagnostic{Code: codeRun, Message: fmt.Sprint("the process in the background ended: ", end)}
		}
		if a.machine {
			_, err = a.out.Write(why)
		} else {
			_, err = a.err.Write(why)
		}
		return errors.Join(err, exit(statusError))
	}
	if a.machine {
		return a.json(map[string]any{"relay": desc.Name, "pid": cmd.Process.Pid, "socket": socket, "log": path})
	}
	_, err = fmt.Fprintf(a.out,
		"%s\nIt runs as process %d until `fastrelay-gen stop --socket %s`. Its messages are in %s.\n",
		strings.TrimSpace(strings.ReplaceAll(string(text), " Ctrl-C detaches.", "")), cmd.Process.Pid, opt.control,
		path)
	return err
}

// reopenLog has a process in the background open its log anew at each SIGHUP, since who has renamed it (logrotate)
// wants a new one.
func (a *app) reopenLog(path string) {
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, unix.SIGHUP)
	go func() {
		said := slog.New(slog.NewTextHandler(a.err, nil))
		for range hangups {
			f, err := openLog(path)
			if err == nil {
				fd := int(f.Fd())
				err = errors.Join(unix.Dup3(fd, unix.Stdout, 0), unix.Dup3(fd, unix.Stderr, 0), f.Close())
			}
			if err != nil {
				said.Error("the log can't be opened anew; messages go to the old one", "path", path, "error", err)
			} else {
				said.Info("the log is opened anew", "path", path)
			}
		}
	}()
}

func openLog(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_APPEND|unix.O_NOFOLLOW, 0o600)
}

// background is what the process in the background does, after the relay is attached.
func (r *relayRun) background(ctx context.Context, attached string, opt runOptions) error {
	ready := os.NewFile(readyFD, "ready")
	if ready == nil {
		return &diag.Diagnostic{Code: codeRun, Message: detachedVar + " is set, and no process waits for this one"}
	}
	_, err := fmt.Fprintln(ready, attached)
	if err = errors.Join(err, ready.Close()); err != nil {
		return err
	}
	var end <-chan time.Time
	if opt.duration > 0 {
		end = time.After(opt.duration)
	}
	select {
	case <-ctx.Done():
	case <-end:
	}
	return nil
}
