// Command guest tests relays on the kernel that it runs on, and reports on standard output (see testkernel.Line).
// In a virtual machine it is the only program: as init it sets up the system, runs itself as the test, and powers
// off. The same binary also tests the machine that it was built on.
package main

import (
	"flag"
	"fmt"
	"os"

	"github.com/fastrelay/fastrelay-gen/internal/test/testkernel"
)

func main() {
	if os.Getpid() == 1 {
		testkernel.Init()
	}
	root := flag.String("root", "", "the folder with the specs and their objects")
	packets := flag.Int("packets", 0, "random packets for each spec")
	whole := flag.Bool("whole", false, "the kernel has to have every kind of device")
	flag.Parse()
	if err := run(*root, *packets, *whole); err != nil {
		fmt.Fprintln(os.Stderr, "guest:", err)
		os.Exit(1)
	}
}

func run(root string, packets int, whole bool) error {
	if err := os.Chdir(root); err != nil { // specs are named by their path in the module
		return err
	}
	r := newReporter(os.Stdout)
	if err := r.kernel(); err != nil {
		return err
	}
	specs, err := testkernel.FindSpecs(".")
	if err != nil {
		return err
	}
	for _, spec := range specs {
		checkSpec(r, spec, packets)
		switch spec {
		case testkernel.TurnDir:
			checkForwarding(r, spec)
			checkFrames(r, spec, whole)
		case testkernel.TunnelDir:
			checkTunnels(r, spec)
		case testkernel.DevicesDir:
			checkDevices(r, spec, whole)
		}
	}
	return r.err
}
