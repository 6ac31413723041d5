// Package needs says what a test needs of the machine.
package needs

import (
	"os"
	"strconv"
	"testing"
)

// Root skips a test that loads programs into the kernel or makes network namespaces, if that isn't allowed to this
// user. As root, nothing is skipped: a test that root can't run fails, and tools/testreport counts a
// skipped test as a failure.
func Root(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: it loads programs into the kernel, or makes network namespaces (sudo make test runs all " +
			"tests)")
	}
}

// All leaves a test to `make test-all`. `make test` (go test -short) doesn't run it, and tools/testreport counts it
// apart from tests that were skipped.
func All(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("left to make test-all")
	}
}

// Seed is where random packets, specs and losses begin: the same for each run of `make test`, whose result depends on
// nothing else, and a new one for each run of `make test-all`, given as FASTRELAY_TEST_SEED. A failure shows it.
func Seed(t testing.TB) uint64 {
	t.Helper()
	text := os.Getenv("FASTRELAY_TEST_SEED")
	if text == "" {
		return 1
	}
	seed, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("FASTRELAY_TEST_SEED is %q, not a number", text)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("with FASTRELAY_TEST_SEED=%d", seed)
		}
	})
	return seed
}

// Left reports whether the ith of many cases that are much alike is left to `make test-all`: all but one in n are.
func Left(i, n int) bool { return testing.Short() && i%n != 0 }

// Of is how much a test does: few in `make test`, many in `make test-all`.
func Of(few, many int) int {
	if testing.Short() {
		return few
	}
	return many
}
