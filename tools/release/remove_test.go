package main

import (
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
)

// removal kills pinned relays, with and without the specs that they were run from, and removes the package; then it
// finds nothing of them. A relay whose process lives keeps the package. /run, /etc/fastrelay-gen, the bpf file system
// and the network are the script's own.
const removal = `set -eu
spec=$1 prerm=$2
mount -t tmpfs none /run
mount -t bpf none /sys/fs/bpf
mount -t tmpfs none /etc
mkdir /etc/fastrelay-gen
ip link add name va type veth peer name vb
ip link set dev va up
fail() { echo "$case: $*"; exit 1; }
for case in spec deleted alive; do
	cp "$spec" /etc/fastrelay-gen/edge.cue
	said=$(fastrelay-gen run /etc/fastrelay-gen/edge.cue --detach --control edge --pin /sys/fs/bpf/edge \
		--attach to_peer=va)
	pid=$(echo "$said" | sed -n 's/^It runs as process \([0-9]*\) .*/\1/p')
	touch /run/fastrelay/edge.log.1 /run/fastrelay/edge.log.2
	[ $case = spec ] || rm /etc/fastrelay-gen/edge.cue
	if [ $case = alive ]; then
		! sh "$prerm" remove 2>&1 || fail "the package is removed though the relay runs"
		fastrelay-gen check --socket edge || fail "the relay doesn't run any more"
		fastrelay-gen stop --socket edge
	else
		kill -KILL "$pid"
		while kill -0 "$pid" 2>/dev/null; do sleep 0.05; done
		[ -e /sys/fs/bpf/edge ] || fail "the relay wasn't pinned"
	fi
	sh "$prerm" remove || fail "prerm failed"
	left=$(find /sys/fs/bpf /run -path '*edge*' -o -path '/run/fastrelay*')
	[ -z "$left" ] || fail "left: $left"
done
`

// The package's removal leaves nothing of relays whose process is dead.
func TestRemoval(t *testing.T) {
	needs.Root(t)
	dir := t.TempDir()
	build := exec.CommandContext(t.Context(), "go", "build", "-o", dir, "./cmd/fastrelay-gen")
	build.Dir = "../.."
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	spec, err := filepath.Abs("../../examples/turn/spec.cue")
	if err != nil {
		t.Fatal(err)
	}
	prerm, err := filepath.Abs("../../deploy/systemd/prerm")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "unshare", "--mount", "--net", "--pid", "--fork", "--kill-child",
		"--mount-proc", "env", "PATH="+dir+":/usr/sbin:/usr/bin:/sbin:/bin", "sh", "-c", removal, "removal", spec,
		prerm)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}
