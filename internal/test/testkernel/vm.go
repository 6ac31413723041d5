package testkernel

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// Names of the files of a run in its folder.
const (
	consoleName = "console.log"  // the kernel's messages and the guest's diagnostics
	reportName  = "report.jsonl" // the guest's report
	initrdName  = "initrd.cpio"
)

// ErrPanic says that the guest's kernel panicked.
var ErrPanic = errors.New("the kernel panicked")

// Boot boots a kernel with an image in an emulated machine, waits until the guest powers it off, and reads the
// guest's report. If the context ends first, the machine is killed. The folder keeps console.log and report.jsonl;
// an error names console.log and shows its end. Flags are further arguments of the emulator.
func Boot(ctx context.Context, k *Kernel, image Image, dir string, flags ...string) (*Report, error) {
	report, err := boot(ctx, k, image, dir, flags)
	if err == nil {
		return report, nil
	}
	console := filepath.Join(dir, consoleName)
	text, _ := os.ReadFile(console) // what can't be read can't be shown
	switch {
	case ctx.Err() != nil:
		err = fmt.Errorf("it hung and was killed: %w", context.Cause(ctx))
	case bytes.Contains(text, []byte("Kernel panic")):
		err = fmt.Errorf("%w: %w", ErrPanic, err)
	}
	return report, fmt.Errorf("kernel %s: %w\nits console, in full in %s, ends:\n%s",
		k.Release, err, console, lastLines(text, 30))
}

func boot(ctx context.Context, k *Kernel, image Image, dir string, flags []string) (*Report, error) {
	initrd, err := os.Create(filepath.Join(dir, initrdName))
	if err != nil {
		return nil, err
	}
	defer os.Remove(initrd.Name())
	_, err = image.WriteTo(initrd)
	if err := errors.Join(err, initrd.Close()); err != nil {
		return nil, err
	}
	report := filepath.Join(dir, reportName)
	m := machines[k.Source.Arch]
	args := slices.Concat(m.args, flags)
	w := &wire{}
	if os.Geteuid() == 0 { // else there are no devices, and the guest's check of them fails
		if w, err = newWire(); err != nil {
			return nil, err
		}
		args = append(args, w.args()...)
	}
	defer w.close()
	cmd := exec.CommandContext(ctx, m.emulator, append(args,
		"-accel", "tcg", // KVM is rare in virtual machines, and not needed
		"-m", "1024", "-smp", "1",
		"-nodefaults", "-no-user-config", "-no-reboot", "-display", "none",
		"-serial", "file:"+filepath.Join(dir, consoleName),
		"-serial", "file:"+report,
		"-kernel", k.Image(), "-initrd", initrd.Name(),
		"-append", "console="+m.console+" quiet panic=-1 oops=panic mitigations=off")...)
	cmd.ExtraFiles = w.taps
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("qemu: %w: %s", err, bytes.TrimSpace(out))
	}
	file, err := os.Open(report)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return ReadReport(file)
}

func lastLines(text []byte, n int) string {
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
