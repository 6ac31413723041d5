// Package needs says what a test needs of the machine.
package needs

import (
	"os"
	"testing"
)

// Root skips a test that loads programs into the kernel or makes network namespaces, where that isn't allowed to this
// user. As root, nothing is skipped: a test that root can't run fails, and tools/testreport counts a
// skipped test as a failure.
func Root(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: it loads programs into the kernel, or makes network namespaces (sudo make test runs all " +
			"tests)")
	}
}
