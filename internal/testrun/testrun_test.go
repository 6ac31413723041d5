package testrun_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/fastrelay/fastrelay-gen/internal/build"
	"github.com/fastrelay/fastrelay-gen/internal/testrun"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/bpftest"
)

const child = "FASTRELAY_TEST_CHILD"

// The error names the rights that a process lacks; it does not say that a limit could not be raised.
func TestLoadWithoutRights(t *testing.T) {
	if os.Getenv(child) != "" {
		r, list, err := build.Spec(t.Context(), "../../examples/paths/spec.cue", build.Options{})
		if err != nil || list.Len() > 0 {
			t.Fatal(err, list.Err())
		}
		if _, err := testrun.Load(r.Plan, r.Object(), nil); err != nil {
			t.Fatal(err)
		}
		return
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("setpriv", "--bounding-set", "-all", "--inh-caps", "-all", self, "-test.run",
		"^TestLoadWithoutRights$")
	cmd.Env = append(os.Environ(), child+"=1")
	out, err := cmd.CombinedOutput()
	if err == nil {
		t.Fatal("loaded without rights")
	}
	for _, want := range []string{
		"this process lacks CAP_BPF, CAP_NET_ADMIN, CAP_PERFMON", "run it as root",
		"CAP_BPF", "CAP_NET_ADMIN", "CAP_PERFMON",
	} {
		if !strings.Contains(string(out), want) {
			t.Errorf("the message doesn't say %q:\n%s", want, out)
		}
	}
}

// Tests that can't prepare themselves fail at once.
func TestUnprepared(t *testing.T) { bpftest.Unprepared(t) }
