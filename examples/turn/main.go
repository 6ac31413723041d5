// The turn command is a TURN server (RFC 8656) that forwards channel data in the kernel. See the README beside it.
package main

import (
	"os"

	"github.com/fastrelay/fastrelay-gen/examples/turn/server"
)

func main() { os.Exit(server.Command(os.Args[1:], os.Stdout, os.Stderr)) }
