// The sfu command is a selective forwarding unit for RTP that forwards in the kernel. See the README beside it.
package main

import (
	"os"

	"github.com/fastrelay/fastrelay-gen/examples/sfu/server"
)

func main() { os.Exit(server.Command(os.Args[1:], os.Stdout, os.Stderr)) }
