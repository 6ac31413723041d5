package runtime

import (
	"fmt"
	"os"
)

// childMode makes the test binary play a process of its own.
const childMode = "FASTRELAY_RUNTIME_CHILD"

func child(mode string) int {
	fmt.Fprintf(os.Stderr, "no such mode: %s\n", mode)
	return 2
}
