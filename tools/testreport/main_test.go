package main

import (
	"bytes"
	"strings"
	"testing"
)

func run(t *testing.T, lines ...string) (string, bool) {
	t.Helper()
	var out bytes.Buffer
	r := &report{out: &out, output: map[string][]string{}}
	if err := r.read(strings.NewReader(strings.Join(lines, "\n"))); err != nil {
		t.Fatal(err)
	}
	ok := r.close()
	return out.String(), ok
}

const (
	passTest = `{"Action":"pass","Package":"a","Test":"TestX"}`
	passLine = `{"Action":"output","Package":"a","Output":"ok  \ta\t0.1s\n"}`
	passPkg  = `{"Action":"pass","Package":"a"}`
)

func TestAllPass(t *testing.T) {
	out, ok := run(t, passTest, passLine, passPkg)
	const total = "1 packages: 1 tests passed, 0 failed, 0 skipped"
	if !ok || !strings.Contains(out, "ok  \ta\t0.1s") || !strings.Contains(out, total) {
		t.Errorf("ok %v, output %q", ok, out)
	}
}

func TestASkippedTestFails(t *testing.T) {
	out, ok := run(t, passTest, `{"Action":"output","Package":"a","Test":"TestY","Output":"needs a device\n"}`,
		`{"Action":"skip","Package":"a","Test":"TestY"}`, passPkg)
	if ok || !strings.Contains(out, "SKIPPED a TestY: needs a device") {
		t.Errorf("ok %v, output %q", ok, out)
	}
}

func TestAFailureIsShown(t *testing.T) {
	out, ok := run(t, `{"Action":"output","Package":"a","Test":"TestY","Output":"=== RUN   TestY\n"}`,
		`{"Action":"output","Package":"a","Test":"TestY","Output":"x is 3\n"}`,
		`{"Action":"fail","Package":"a","Test":"TestY"}`, `{"Action":"fail","Package":"a"}`, passTest, passPkg)
	if ok || !strings.Contains(out, "x is 3") || !strings.Contains(out, "FAILED  a") || strings.Contains(out, "===") {
		t.Errorf("ok %v, output %q", ok, out)
	}
}

func TestABrokenBuildFails(t *testing.T) {
	out, ok := run(t, `{"ImportPath":"a","Action":"build-output","Output":"undefined: x\n"}`,
		`{"Action":"fail","Package":"a"}`, passTest, passPkg)
	if ok || !strings.Contains(out, "undefined: x") {
		t.Errorf("ok %v, output %q", ok, out)
	}
}

func TestNoTestsFail(t *testing.T) {
	if _, ok := run(t, `{"Action":"skip","Package":"a"}`); ok {
		t.Error("a run without a test passed")
	}
}
