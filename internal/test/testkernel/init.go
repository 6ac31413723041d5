package testkernel

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// Init does init's work in a guest: it sets up the system, runs the same program again with the arguments given to
// [Pack], its output being the report, reports its status and powers the machine off. It never returns. If it can't
// report, the report has no end, and the reason is on the console.
func Init() {
	if err := serve(); err != nil {
		fmt.Fprintln(os.Stderr, "guest: init:", err)
	}
	unix.Sync()
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
	os.Exit(1) // a machine that can't be powered off panics now, which ends it as well
}

func serve() error {
	if err := mountAll(); err != nil {
		return err
	}
	if err := loadModules(); err != nil {
		return err
	}
	args, err := os.ReadFile(GuestArgs)
	if err != nil {
		return err
	}
	port, err := os.OpenFile(ReportPort(Arch(runtime.GOARCH)), os.O_WRONLY|unix.O_NOCTTY, 0)
	if err != nil {
		return err
	}
	test := exec.Command("/proc/self/exe", strings.Fields(string(args))...)
	test.Stdout, test.Stderr = port, os.Stderr
	test.Env = []string{"HOME=/tmp", "TMPDIR=/tmp", "PATH=/"}
	status := 0
	if err := test.Run(); err != nil {
		var exit *exec.ExitError
		if !errors.As(err, &exit) {
			return err
		}
		fmt.Fprintln(os.Stderr, "guest: the test ended with", exit)
		if status = exit.ExitCode(); status == 0 {
			status = -1
		}
	}
	if err := json.NewEncoder(port).Encode(Line{Done: true, Status: status}); err != nil {
		return err
	}
	// Wait until the port has sent everything (tcdrain).
	return unix.IoctlSetInt(int(port.Fd()), unix.TCSBRK, 1)
}

func mountAll() error {
	for _, m := range []struct{ kind, at string }{
		{"proc", "/proc"}, {"sysfs", "/sys"}, {"devtmpfs", "/dev"},
		{"tmpfs", "/tmp"}, {"tmpfs", "/run"}, {"bpf", "/sys/fs/bpf"},
	} {
		if err := os.MkdirAll(m.at, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(m.kind, m.at, m.kind, 0, ""); err != nil {
			return fmt.Errorf("mount %s: %w", m.at, err)
		}
	}
	return nil
}

// loadModules loads the modules in the order of their names. Those of tunnels make a device in each namespace, unless
// the kernel is told not to.
func loadModules() error {
	if err := os.WriteFile("/proc/sys/net/core/fb_tunnels_only_for_init_net", []byte("1"), 0); err != nil {
		return err
	}
	files, err := filepath.Glob(GuestModules + "/*.ko")
	if err != nil {
		return err
	}
	for _, name := range files {
		file, err := os.Open(name)
		if err != nil {
			return err
		}
		err = unix.FinitModule(int(file.Fd()), "", 0)
		file.Close()
		if err != nil {
			return fmt.Errorf("load %s: %w", name, err)
		}
	}
	return nil
}
