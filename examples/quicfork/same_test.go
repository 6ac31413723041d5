package quicfork

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestSameAsUpstream runs one connection by a script in upstream's tree and in the fork, without hooks, and compares
// all that both ends did (packets with their frames, metrics, timers, each with its time), and each byte that they
// sent. One run in thirty or so differs from the others, in both trees, since Go chooses at random between events of
// the same moment; so several runs are compared. With a tree that was changed, none is the same.
func TestSameAsUpstream(t *testing.T) {
	upstream, err := Upstream()
	if err != nil {
		t.Fatal(err)
	}
	fork, err := Fork(upstream)
	if err != nil {
		t.Fatal(err)
	}
	reference := build(t, upstream)
	if difference := compare(t, reference, build(t, fork)); difference != "" {
		t.Errorf("the fork differs from upstream: %s", difference)
	}

	changed := maps.Clone(fork)
	const name = "internal/ackhandler/received_packet_tracker.go"
	changed[name] = bytes.Replace(changed[name], []byte("packetsBeforeAck = 2"), []byte("packetsBeforeAck = 3"), 1)
	if difference := compare(t, reference, build(t, changed)); difference == "" {
		t.Error("a tree that sends fewer ACKs makes no difference")
	}
}

// build makes the test binary of a tree with the script.
func build(t *testing.T, tree Tree) string {
	t.Helper()
	script, err := queue.ReadFile("_fork/script/script_test.go")
	if err != nil {
		t.Fatal(err)
	}
	tree = maps.Clone(tree)
	tree["script/script_test.go"] = script
	folder := t.TempDir()
	if err := tree.Write(folder); err != nil {
		t.Fatal(err)
	}
	binary := filepath.Join(folder, "script.test")
	cmd := exec.Command("go", "test", "-trimpath", "-c", "-o", binary, "./script")
	cmd.Dir, cmd.Env = folder, append(os.Environ(), "GOWORK=off", "GOFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return binary
}

// compare returns the first difference of what two test binaries do, or "" once they have done the same.
func compare(t *testing.T, a, b string) (difference string) {
	t.Helper()
	var ofA, ofB [][]byte
	for range 6 {
		ofA, ofB = append(ofA, run(t, a)), append(ofB, run(t, b))
		for _, x := range ofA {
			for _, y := range ofB {
				if bytes.Equal(x, y) {
					return ""
				}
			}
		}
	}
	x, y := strings.Split(string(ofA[0]), "\n"), strings.Split(string(ofB[0]), "\n")
	for i := range min(len(x), len(y)) {
		if x[i] != y[i] {
			return fmt.Sprintf("line %d:\n%.500s\n%.500s", i+1, x[i], y[i])
		}
	}
	return fmt.Sprintf("%d and %d lines", len(x), len(y))
}

func run(t *testing.T, binary string) []byte {
	t.Helper()
	record := filepath.Join(t.TempDir(), "record")
	cmd := exec.Command(binary, "-test.run", "^TestScript$")
	// On one processor, goroutines take turns only where they wait.
	cmd.Env = append(os.Environ(), "GOMAXPROCS=1", "GODEBUG=asyncpreemptoff=1", "GOGC=off",
		"FASTRELAY_SCRIPT_RECORD="+record)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	text, err := os.ReadFile(record)
	if err != nil || bytes.Count(text, []byte("\n")) < 1000 {
		t.Fatalf("a record of %d bytes: %v", len(text), err)
	}
	return text
}
