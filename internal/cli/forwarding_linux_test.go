package cli_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// detachedRelay is a relay in the background of a host of its own.
type detachedRelay struct {
	host   *testnet.Host
	socket string
}

// cli runs a command in the host and returns what it prints.
func (r *detachedRelay) cli(args ...string) (string, error) {
	var out bytes.Buffer
	cmd := &exec.Cmd{
		Path: "/proc/self/exe", Args: append([]string{"fastrelay-gen"}, args...), Stdout: &out, Stderr: &out,
	}
	err := r.host.Do(cmd.Run)
	return out.String(), err
}

// must fails the test if the command does, and if it doesn't print what it has to.
func (r *detachedRelay) must(t *testing.T, says []string, args ...string) string {
	t.Helper()
	out, err := r.cli(args...)
	if err != nil {
		t.Fatalf("%v: %v: %s", args, err, out)
	}
	for _, text := range says {
		if !strings.Contains(out, text) {
			t.Errorf("%v doesn't say %q:\n%s", args, text, out)
		}
	}
	return out
}

// detach starts `run --detach`, which has to print says.
func detach(t *testing.T, host *testnet.Host, says []string, spec string, args ...string) *detachedRelay {
	t.Helper()
	name := fmt.Sprintf("cli-%d-%d", os.Getpid(), time.Now().UnixNano())
	r := &detachedRelay{host, filepath.Join(t.TempDir(), "relay.sock")}
	r.must(t, says, append([]string{
		"run", spec, "--detach", "--control", r.socket, "--pin", "/sys/fs/bpf/" + name,
	}, args...)...)
	t.Cleanup(func() {
		if out, err := r.cli("stop", "--socket", r.socket); err != nil {
			t.Errorf("stop: %v: %s", err, out)
		}
	})
	return r
}

// If forwarding is off on the interface of a program that looks routes up, all say so, with the command that mends
// it.
func TestForwardingIsOff(t *testing.T) {
	needs.Root(t)
	line, err := testnet.Start(t).Line()
	if err != nil {
		t.Fatal(err)
	}
	dev := line.RelayIn.Name
	if err := line.Relay.SetForwarding(false); err != nil {
		t.Fatal(err)
	}
	mend := []string{"net.ipv4.conf." + dev + ".forwarding=1", "net.ipv6.conf." + dev + ".forwarding=1"}
	r := detach(t, line.Relay, nil, "../../gen/bpf/testdata/echo/spec.cue", "--attach", "back="+dev)
	r.must(t, mend, "check", "--socket", r.socket)
	r.must(t, []string{"forwarding of IPv4 is off"}, "attach", "--socket", r.socket, "back="+dev)
	if out, _ := r.cli("doctor"); !strings.Contains(out, mend[0]) || !strings.Contains(out, mend[1]) {
		t.Errorf("doctor doesn't say %q:\n%s", mend, out)
	}
	for i, version := range []string{"ipv4", "ipv6"} {
		if err := line.Relay.Sysctl("net/"+version+"/conf/"+dev+"/forwarding", "1"); err != nil {
			t.Fatal(err)
		}
		if out := r.must(t, nil, "check", "--socket", r.socket); strings.Contains(out, mend[i]) {
			t.Errorf("forwarding is on, and check says:\n%s", out)
		}
	}
}
