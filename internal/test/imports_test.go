// Package test has the packages that only tests use.
package test

import (
	"os/exec"
	"strings"
	"testing"
)

// TestProduct makes sure that what is shipped doesn't import what serves tests. Labs, demos, benchmarks,
// experiments and tools may.
func TestProduct(t *testing.T) {
	const module = "github.com/fastrelay/fastrelay-gen"
	cmd := exec.Command("go", "list", "-f", `{{.ImportPath}} {{join .Imports " "}}`, "./...")
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
		for _, folder := range []string{"internal/test/", "bench", "experiment", "tools/"} {
			serves = serves || strings.HasPrefix(path, folder)
		}
		if serves {
			continue
		}
		n++
		for _, imported := range strings.Fields(imports) {
			if strings.HasPrefix(imported, module+"/internal/test/") {
				t.Errorf("%s imports %s, which serves tests", path, strings.TrimPrefix(imported, module+"/"))
			}
		}
	}
	if n < 20 {
		t.Errorf("only %d packages were looked at", n)
	}
}
