// The segments command is an SFU for WebRTC that sends the copies of each packet by one call. See the README beside it.
package main

import (
	"os"

	"github.com/fastrelay/fastrelay-gen/examples/segments/sfu"
)

func main() { os.Exit(sfu.Command(os.Args[1:], os.Stdout, os.Stderr)) }
