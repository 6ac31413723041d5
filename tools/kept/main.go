// Command kept runs a check, unless it has passed with the same sources on the same kernel before:
//
//	go run ./tools/kept [-module FOLDER] [-also FOLDERS] NAME PACKAGES… -- COMMAND…
//
// What the check depends on are the sources and tests of the packages (patterns of `go list`), all that these import
// from this tree, and the files or folders after -also, separated by commas. What passed is kept in the folder that
// FASTRELAY_KEPT names; without it the command always runs.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/fastrelay/fastrelay-gen/internal/test/kept"
)

func main() {
	module := flag.String("module", ".", "the folder of the packages' module")
	also := flag.String("also", "", "files and folders that the check reads, separated by commas")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *module, *also, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "kept:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, module, also string, args []string) error {
	at := slices.Index(args, "--")
	if at < 2 || at == len(args)-1 {
		return errors.New("usage: kept [-module FOLDER] [-also FOLDERS] NAME PACKAGES… -- COMMAND…")
	}
	name, patterns, command := args[0], args[1:at], args[at+1:]
	root, err := os.Getwd()
	if err != nil {
		return err
	}
	key, err := kept.NewKey(name + " " + strings.Join(command, " "))
	if err == nil {
		err = key.AddPackages(ctx, root, module, true, nil, patterns...)
	}
	if err != nil {
		return err
	}
	for _, path := range strings.FieldsFunc(also, func(r rune) bool { return r == ',' }) {
		if err := key.AddTree(root, filepath.Clean(path)); err != nil {
			return err
		}
	}
	if _, ok := key.Load(); ok {
		fmt.Printf("%s: passed before, with the same sources on this kernel\n", name)
		return nil
	}
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %s: %w", name, strings.Join(command, " "), err)
	}
	return key.Save(nil)
}
