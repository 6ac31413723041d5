//go:build !linux

package cli

import (
	"context"
	"runtime"

	"github.com/fastrelay/fastrelay-gen/internal/diag"
)

func (a *app) run(context.Context, string, runOptions) error { return needsLinux("run") }

func (a *app) remove(string, string, string) error { return needsLinux("remove") }

// runError is not reached: nothing runs here.
func runError(err error) error { return err }

// kernelTests says whether tests can run in the kernel.
func kernelTests() error { return needsLinux("test --kernel") }

// needsLinux is the error of a command that runs a relay.
func needsLinux(command string) error {
	return &diag.Diagnostic{
		Code: codeRun, Message: command + " needs Linux: relays run in its kernel, and this is " + runtime.GOOS,
		Hint: "build, vet, test (in the model), explain and dump work here; copy the generated package to a Linux " +
			"machine",
	}
}
