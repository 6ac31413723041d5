package main

import (
	"bytes"
	"strings"
	"testing"
)

func run(t *testing.T, lines ...string) (string, bool) {
	t.Helper()
	var out bytes.Buffer
	r := &report{out: &out, output: map[string][]string{}, seed: "7"}
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

// A test that make test leaves to make test-all isn't one that this machine can't run.
func TestLeftToAll(t *testing.T) {
	out, ok := run(t,
		`{"Action":"output","Package":"a","Test":"TestY","Output":"    a_test.go:3: left to make test-all\n"}`,
		`{"Action":"skip","Package":"a","Test":"TestY"}`, passTest, passPkg)
	const want = "1 tests are left to make test-all\n1 packages: 1 tests passed, 0 failed, 0 skipped"
	if !ok || !strings.Contains(out, want) {
		t.Errorf("ok %v, output %q", ok, out)
	}
}

// A failure comes with the command that repeats it.
func TestAFailureIsRepeated(t *testing.T) {
	out, _ := run(t, `{"Action":"fail","Package":"a","Test":"TestY/of(x)"}`, `{"Action":"fail","Package":"a"}`,
		passTest)
	const again = `again: FASTRELAY_TEST_SEED=7 go test -count=1 -run '^TestY$/^of\(x\)$' a`
	if !strings.Contains(out, again) {
		t.Errorf("output %q, without %q", out, again)
	}
}

func TestSlowest(t *testing.T) {
	out, _ := run(t, `{"Action":"pass","Package":"a","Test":"TestX","Elapsed":2.5}`,
		`{"Action":"pass","Package":"a","Test":"TestX/y","Elapsed":2.4}`, `{"Action":"pass","Package":"a","Elapsed":3}`,
		`{"Action":"pass","Package":"b","Elapsed":7}`)
	const want = "slowest packages:\n    7.0 s  b\n    3.0 s  a\nslowest tests:\n    2.5 s  a TestX\n"
	if !strings.Contains(out, want) {
		t.Errorf("output %q, without %q", out, want)
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

func TestBacklogDrops(t *testing.T) {
	if n := backlogDrops("0001a2b3 00000010 00000001\n00000002 00000003 00000000\n"); n != 0x13 {
		t.Errorf("%#x packets", n)
	}
	if n := backlogDrops(""); n != 0 {
		t.Errorf("%d packets without counters", n)
	}
}
