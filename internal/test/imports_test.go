// Package test has the packages that only tests use.
package test

import (
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// TestProduct makes sure that what is shipped doesn't import what serves tests. Labs, demos, benchmarks,
// experiments and tools may.
func TestProduct(t *testing.T) {
	const (
		module = "github.com/fastrelay/fastrelay-gen"
		tool   = module + "/runtime/tool/"
	)
	shared := []string{tool + "bpftest", tool + "needs", tool + "testnet"}
	cmd := exec.Command("go", "list", "-f", `{{.ImportPath}} {{join .Imports " "}}`, "work")
	cmd.Dir = "../.."
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("list the packages: %v", err)
	}
	n := 0
	for line := range strings.Lines(string(out)) {
		pkg, imports, _ := strings.Cut(strings.TrimSpace(line), " ")
		path := strings.TrimPrefix(pkg, module+"/")
		serves := strings.HasSuffix(path, "/demo") || strings.HasSuffix(path, "/lab")
		for _, folder := range []string{
			"internal/test/", "examples/internal/", "bench", "experiment", "tools/", "runtime/tool/",
		} {
			serves = serves || strings.HasPrefix(path, folder)
		}
		if serves {
			continue
		}
		n++
		for _, imported := range strings.Fields(imports) {
			if strings.HasPrefix(imported, module+"/internal/test/") || slices.Contains(shared, imported) {
				t.Errorf("%s imports %s, which serves tests", path, strings.TrimPrefix(imported, module+"/"))
			}
		}
	}
	if n < 20 {
		t.Errorf("only %d packages were looked at", n)
	}
}

// TestBuild makes sure that what builds a package has nothing of what runs programs on packets in the kernel, or makes
// networks for them: of what tests use, a build has the model and random packets (package sample), to rehearse plans.
func TestBuild(t *testing.T) {
	cmd := exec.Command("go", "list", "-deps", "./internal/build")
	cmd.Dir = "../.."
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("list the packages: %v", err)
	}
	for _, not := range []string{
		"internal/lab", "internal/spectest", "internal/test/", "internal/testrun", "runtime\n", "runtime/control",
		"runtime/tool/bpftest", "runtime/tool/namespace", "runtime/tool/needs", "runtime/tool/testnet",
	} {
		if strings.Contains(string(out), "fastrelay/fastrelay-gen/"+not) {
			t.Errorf("a build has %s", strings.TrimSpace(not))
		}
	}
}

// TestRuntimeModule makes sure that who imports a relay gets few modules: those that package runtime and those below it
// are built of, without the workspace, and none for their tests.
func TestRuntimeModule(t *testing.T) {
	cmd := exec.Command("go", "list", "-mod=readonly", "-deps", "-test",
		"-f", `{{with .Module}}{{.Path}}{{end}}`, "./...")
	cmd.Dir, cmd.Env = "../../runtime", append(os.Environ(), "GOWORK=off")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("list the packages: %v", err)
	}
	modules := map[string]bool{}
	for module := range strings.FieldsSeq(string(out)) {
		modules[module] = true
	}
	got := slices.Sorted(maps.Keys(modules))
	want := []string{"github.com/cilium/ebpf", "github.com/fastrelay/fastrelay-gen/runtime",
		"github.com/safchain/ethtool", "github.com/vishvananda/netlink", "github.com/vishvananda/netns",
		"golang.org/x/net", "golang.org/x/sys"}
	if !slices.Equal(got, want) {
		t.Errorf("the runtime is built of %q, want %q", got, want)
	}
}
