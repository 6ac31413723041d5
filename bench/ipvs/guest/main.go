// Command guest measures directors on the kernel of the virtual machine in which it is the only program, and reports on
// standard output (see testkernel.Line).
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"

	"github.com/fastrelay/fastrelay-gen/bench/ipvs"
	"github.com/fastrelay/fastrelay-gen/internal/doctor"
	"github.com/fastrelay/fastrelay-gen/internal/test/testkernel"
)

func main() {
	if os.Getpid() == 1 {
		testkernel.Init()
	}
	rounds := flag.Int("rounds", 1, "rounds over which medians are taken")
	flag.Parse()
	if err := run(*rounds); err != nil {
		fmt.Fprintln(os.Stderr, "guest:", err)
		os.Exit(1)
	}
}

func run(rounds int) error {
	out := json.NewEncoder(os.Stdout)
	release, _, _ := doctor.Release()
	if err := out.Encode(testkernel.Line{Kernel: release}); err != nil {
		return err
	}
	return ipvs.Compare(rounds, func(c ipvs.Cell) error {
		text, err := json.Marshal(c)
		if err != nil {
			return err
		}
		return out.Encode(testkernel.Line{Result: text})
	})
}
