package bpftest

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
)

// Rights ends a test at once if this process may not load programs into the kernel.
func Rights(t testing.TB) {
	t.Helper()
	needs.Root(t)
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.SchedCLS, License: "GPL", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()},
	})
	if err != nil {
		t.Fatalf("this test loads programs into the kernel: and root isn't allowed to here: %v", err)
	}
	p.Close()
}

// unprepared is set if the tests run without what they need.
const unprepared = "FASTRELAY_TEST_UNPREPARED"

// Unprepared runs all tests of the calling package without the programs that they call (clang, ip, tshark, …), and
// without rights: a test that can't prepare itself has to fail at once, with a message. None may wait for what no one
// will send, or go on with what it hasn't got.
func Unprepared(t *testing.T) {
	needs.All(t)
	if os.Getenv(unprepared) != "" {
		return
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	const limit = 4 * time.Minute // seconds on a quiet machine
	for _, test := range []struct {
		name string
		args []string
		env  string
	}{
		{"no programs", []string{self}, "PATH=/nonexistent"},
		{"no rights", []string{"setpriv", "--bounding-set", "-all", "--inh-caps", "-all", self}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			// if it doesn't even notice its own limit
			ctx, cancel := context.WithTimeout(t.Context(), limit+10*time.Second)
			defer cancel()
			cmd := exec.CommandContext(ctx, test.args[0], append(test.args[1:], "-test.timeout="+limit.String())...)
			cmd.Env = append(os.Environ(), unprepared+"=1", test.env)
			cmd.WaitDelay = time.Second
			out, err := cmd.CombinedOutput()
			for _, sign := range []string{"panic: ", "fatal error: "} {
				if at := strings.Index(string(out), sign); at >= 0 && (at == 0 || out[at-1] == '\n') {
					t.Fatalf("%v\n%s", err, out[:min(len(out), at+3000)])
				}
			}
			if ctx.Err() != nil {
				t.Fatalf("it doesn't end: %s", out)
			}
		})
	}
}
