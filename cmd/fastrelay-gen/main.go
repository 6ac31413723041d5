// Command fastrelay-gen compiles relays; see package internal/cli.
package main

import (
	"os"

	"github.com/fastrelay/fastrelay-gen/internal/cli"
)

func main() {
	os.Exit(cli.Do(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}
