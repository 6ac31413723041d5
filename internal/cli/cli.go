// Package cli is the command line of fastrelay-gen: its commands, what they print, and their exit statuses.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/fastrelay/fastrelay-gen/internal/diag"
	"github.com/fastrelay/fastrelay-gen/internal/interrupt"
	"github.com/fastrelay/fastrelay-gen/internal/spell"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/bpfload"
)

// Exit statuses.
const (
	statusOK      = 0
	statusError   = 1
	statusDiffers = 2
	statusSignal  = 128 // and the number of the signal
)

// filesNeeded is how many files any command may have open at once: pipes to clang, what it waits with.
const filesNeeded = 24

// Do runs the command line args (without the program's name) and returns the exit status. At SIGINT, SIGTERM and SIGHUP
// it returns at once, with the status that shells give to what a signal has ended, and what the command computes is
// left running: main exits. A command that has more to put in order says so (package interrupt).
func Do(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	a := &app{in: stdin, out: stdout, err: stderr}
	// Go's runtime panics if it can't open what it waits for files with.
	if err := bpfload.Room(filesNeeded); err != nil {
		return a.status(&diag.Diagnostic{Code: codeFailure, Message: err.Error()})
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	if !signal.Ignored(syscall.SIGHUP) && !detached() { // of nohup; of a relay in the background, which has a log
		signal.Notify(signals, syscall.SIGHUP)
	}
	defer signal.Stop(signals)
	gate := &interrupt.Gate{}
	ctx, cancel := context.WithCancel(interrupt.With(context.Background(), gate))
	defer cancel()
	root := a.root()
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	done := make(chan error, 1)
	go func() { done <- root.ExecuteContext(ctx) }()
	select {
	case err := <-done:
		return a.status(err)
	case s := <-signals:
		cancel()
		if !gate.Close() {
			return a.status(<-done)
		}
		return statusSignal + int(s.(syscall.Signal))
	}
}

// app is one run of the command line.
type app struct {
	in       io.Reader
	out, err io.Writer
	machine  bool   // messages are for machines: --format json
	stdin    []byte // what was read from standard input, to show a line of it
}

// exit is an error that has been shown already.
type exit int

func (e exit) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

// status shows an error unless it has been shown, and returns its exit status.
func (a *app) status(err error) int {
	var shown exit
	switch {
	case err == nil:
		return statusOK
	case errors.As(err, &shown):
		return int(shown)
	}
	a.showError(err)
	return statusError
}

// Command is the tree of commands, for man pages.
func Command() *cobra.Command { return (&app{}).root() }

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "fastrelay-gen",
		Short: "A compiler for packet relays: from a page of CUE to packets forwarded in the kernel",
		Long: `fastrelay-gen compiles the spec of a packet relay, written in CUE, to a TC eBPF program and a Go
package that loads the program, attaches it, and registers sessions.

Exit status: 0 success, 1 error, 2 difference (build --check, fmt -l), 129, 130 or 143 if SIGHUP, SIGINT or
SIGTERM ended it.`,
		Example: `  fastrelay-gen init myrelay            a spec to begin with
  fastrelay-gen test myrelay/spec.cue   run the tests that it holds
  fastrelay-gen build myrelay/spec.cue  write the C, the object and the Go package
  fastrelay-gen doctor                  what this machine has and lacks`,
		SilenceErrors:     true,
		SilenceUsage:      true,
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
		Args:              cobra.ArbitraryArgs,
	}
	versions := root.Flags().Bool("version", false, "print versions, as the command version does")
	root.RunE = func(cmd *cobra.Command, args []string) error {
		if *versions {
			return a.version(cmd.Context(), "text")
		}
		if len(args) == 0 {
			return cmd.Help()
		}
		return unknownCommand(root, args[0])
	}
	root.SetFlagErrorFunc(flagError)
	root.AddCommand(
		a.initCommand(), a.buildCommand(), a.vetCommand(), a.fmtCommand(), a.testCommand(), a.tryCommand(),
		a.runCommand(), a.explainCommand(), a.dumpCommand(), a.diagramCommand(), a.docCommand(),
		a.dissectorCommand(), a.schemaCommand(), a.lspCommand(), a.doctorCommand(), a.versionCommand(),
		a.completionCommand(root),
	)
	root.AddCommand(a.controlCommands()...)
	return root
}

func unknownCommand(root *cobra.Command, name string) error {
	var names []string
	for _, c := range root.Commands() {
		names = append(names, c.Name())
	}
	return usage("unknown command %q", name).nearest(name, names, "").see("fastrelay-gen --help")
}

// flagError makes pflag's errors ours, with the flag that was probably meant.
func flagError(cmd *cobra.Command, err error) error {
	help := cmd.CommandPath() + " --help"
	var absent *pflag.NotExistError
	if !errors.As(err, &absent) {
		return usage("%s", strings.ReplaceAll(err.Error(), `"`, "'")).see(help)
	}
	name := absent.GetSpecifiedName()
	if absent.GetSpecifiedShortnames() != "" {
		return usage("%s has no flag -%s", cmd.CommandPath(), name).see(help)
	}
	var names []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	return usage("%s has no flag --%s", cmd.CommandPath(), name).nearest(name, names, "--").see(help)
}

// usageError is a mistake on the command line.
type usageError struct {
	message string
	hints   []string
}

func usage(format string, args ...any) *usageError {
	return &usageError{message: fmt.Sprintf(format, args...)}
}

func (e *usageError) Error() string { return e.message }

// nearest adds what was probably meant.
func (e *usageError) nearest(given string, known []string, prefix string) *usageError {
	if n := spell.Nearest(given, known); n != "" {
		e.hints = append(e.hints, fmt.Sprintf("did you mean %s%s?", prefix, n))
	}
	return e
}

func (e *usageError) hint(format string, args ...any) *usageError {
	e.hints = append(e.hints, fmt.Sprintf(format, args...))
	return e
}

// see points to where more is said.
func (e *usageError) see(where string) *usageError {
	e.hints = append(e.hints, where)
	return e
}

func (e *usageError) hintText() string { return strings.Join(e.hints, "\n") }

// exactly asks for a number of arguments by name: exactly("SPEC").
func exactly(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) < len(names):
			return usage("%s is missing", names[len(args)]).hint("usage: %s", cmd.UseLine()).
				see(cmd.CommandPath() + " --help")
		case len(args) > len(names):
			return usage("extra argument %q", args[len(names)]).hint("usage: %s", cmd.UseLine()).
				see(cmd.CommandPath() + " --help")
		}
		return nil
	}
}

// oneOf checks the value of a flag that takes a few words.
func oneOf(flag, value string, allowed ...string) error {
	for _, a := range allowed {
		if value == a {
			return nil
		}
	}
	return usage("--%s is %q; it must be %s", flag, value, strings.Join(allowed, " or ")).nearest(value, allowed, "")
}
