// Quicfork writes the fork of quic-go that package [github.com/fastrelay/fastrelay-gen/examples/quicfork] describes.
//
//	quicfork DIR            write it into a folder of the module that DIR is in, as packages of that module
//	quicfork -replace DIR   write it as a module of its own, under quic-go's path, tests included; the main module
//	                        then has to say: replace github.com/quic-go/quic-go => DIR
//
// DIR is made, or made anew. Run it again after each update of fastrelay-gen.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"

	"github.com/fastrelay/fastrelay-gen/examples/quicfork"
)

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "quicfork:", err)
		os.Exit(1)
	}
}

func run(args []string, out io.Writer) error {
	flags := flag.NewFlagSet("quicfork", flag.ContinueOnError)
	replace := flags.Bool("replace", false, "write a module of its own, under quic-go's path, tests included")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() != 1 {
		return errors.New("say which folder the fork goes to: quicfork [-replace] DIR")
	}
	folder, err := filepath.Abs(flags.Arg(0))
	if err != nil {
		return err
	}
	upstream, err := quicfork.Upstream()
	if err != nil {
		return err
	}
	tree, err := quicfork.Fork(upstream)
	if err != nil {
		return err
	}
	use := "replace " + quicfork.UpstreamPath + " => " + flags.Arg(0)
	if !*replace {
		prefix, err := importPath(folder)
		if err != nil {
			return err
		}
		if tree, err = tree.Library(prefix); err != nil {
			return err
		}
		use = "import " + prefix
	}
	if err := tree.Write(folder); err != nil {
		return err
	}
	fmt.Fprintf(out, "%s %s with the hooks of a relay is in %s (%s)\n",
		quicfork.UpstreamPath, quicfork.UpstreamVersion, flags.Arg(0), use)
	return nil
}

// importPath returns the import path of a folder that needn't exist yet, in the module of the folders above it.
func importPath(folder string) (string, error) {
	at := filepath.Dir(folder)
	for {
		if _, err := os.Stat(at); err == nil {
			break
		}
		at = filepath.Dir(at)
	}
	list := exec.Command("go", "list", "-m", "-json")
	list.Dir, list.Env = at, append(os.Environ(), "GOWORK=off")
	answer, err := list.Output()
	var module struct{ Path, Dir string }
	if err != nil || json.Unmarshal(answer, &module) != nil || module.Dir == "" {
		return "", fmt.Errorf("%s isn't in a Go module: run go mod init first, or use -replace", folder)
	}
	rel, err := filepath.Rel(module.Dir, folder)
	if err != nil || rel == "." || strings.HasPrefix(rel, "..") {
		return "", fmt.Errorf("%s has to be a folder below %s", folder, module.Dir)
	}
	return path.Join(module.Path, filepath.ToSlash(rel)), nil
}
