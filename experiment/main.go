// The experiment command repeats what a paper measured, on the same kind of work: `make experiment NAME=paths`. An
// experiment runs each of its variants several times, in turns, and writes a table, plots and all raw data into a
// folder. docs/experiments.md says what is measured and what came out.
package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/experiment/congestion"
	"github.com/fastrelay/fastrelay-gen/experiment/gate"
	"github.com/fastrelay/fastrelay-gen/experiment/paths"
	"github.com/fastrelay/fastrelay-gen/experiment/tree"
	"github.com/fastrelay/fastrelay-gen/experiment/trial"
	"github.com/fastrelay/fastrelay-gen/internal/test/measure"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// experiments are all experiments by name.
var experiments = map[string]func(context.Context, *trial.Book) error{
	"congestion": congestion.Run,
	"gate":       gate.Run,
	"paths":      paths.Run,
	"tree":       tree.Run,
}

func main() {
	slog.SetLogLoggerLevel(slog.LevelWarn) // that a relay is attached is no news here
	// Copies of this program measure a processor, or count beside a transfer.
	measure.Main()
	congestion.Main()
	gate.Main()
	tree.Main()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "experiment:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	names := strings.Join(slices.Sorted(maps.Keys(experiments)), ", ")
	runs := flag.Int("runs", 8, "runs of each variant")
	dir := flag.String("o", "", "`folder` for the results; .cache/experiment/NAME by default")
	only := flag.String("only", "", "`variants` to run, separated by commas; all by default")
	parallel := flag.Int("parallel", 1, "runs at the same time, where the experiment allows it")
	add := flag.Bool("add", false, "add runs to the results that are in the folder")
	flag.Usage = func() {
		fmt.Fprintf(flag.CommandLine.Output(), "usage: experiment [flags] NAME\n\nNAME is one of: %s\n\n", names)
		flag.PrintDefaults()
	}
	flag.Parse()
	experiment := experiments[flag.Arg(0)]
	if flag.NArg() != 1 || experiment == nil {
		return fmt.Errorf("%q is no experiment; there are: %s", strings.Join(flag.Args(), " "), names)
	}
	if *runs < 1 || *parallel < 1 {
		return fmt.Errorf("-runs %d -parallel %d: at least 1 of each", *runs, *parallel)
	}
	if os.Geteuid() != 0 {
		return testnet.ErrNotRoot
	}
	if *dir == "" {
		*dir = filepath.Join(".cache", "experiment", flag.Arg(0))
	}
	book, err := trial.New(*dir, *runs, *add, os.Stdout)
	if err != nil {
		return err
	}
	book.Parallel = *parallel
	if *only != "" {
		book.Only = strings.Split(*only, ",")
	}
	return book.Finish(experiment(ctx, book))
}
