// The quicproxy command is a proxy that forwards QUIC packets in the kernel, and its agent on the clients' side. See
// the README beside it.
package main

import (
	"os"

	"github.com/fastrelay/fastrelay-gen/examples/quicproxy/command"
)

func main() { os.Exit(command.Run(os.Args[1:], os.Stdout, os.Stderr)) }
