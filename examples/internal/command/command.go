// Package command runs the examples' servers as commands: exit statuses, signals, counters, an HTTP API.
package command

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// Flags makes a set of flags whose help is a text and the flags.
func Flags(name, usage string, stderr io.Writer) *flag.FlagSet {
	flags := flag.NewFlagSet(name, flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() {
		fmt.Fprint(stderr, usage)
		flags.PrintDefaults()
	}
	return flags
}

// A Serve runs a server until ctx ends. It gets a signal for each time that its counters are asked for.
type Serve func(ctx context.Context, log *slog.Logger, counters <-chan os.Signal) error

// Run runs what flags ask for until SIGINT or SIGTERM, and returns the exit status: 2 if the flags are wrong. parse
// returns flag.ErrHelp if help was asked for and printed.
func Run(parse func() (Serve, error), stderr io.Writer) int {
	serve, err := parse()
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		fmt.Fprintln(stderr, err)
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// A channel of its own: it may be full of requests for counters, and a signal that finds it full is lost.
	counters := make(chan os.Signal, 1)
	signal.Notify(counters, syscall.SIGUSR1)
	defer signal.Stop(counters)
	if err := serve(ctx, slog.New(slog.NewTextHandler(stderr, nil)), counters); err != nil {
		fmt.Fprintln(stderr, err)
		return 1
	}
	return 0
}

// Print calls print when counters are asked for, and every so often (0: never else), until ctx ends, print fails or
// failed says why the server can't go on.
func Print(ctx context.Context, counters <-chan os.Signal, every time.Duration, failed <-chan error,
	print func() error) error {
	var tick <-chan time.Time
	if every > 0 {
		ticker := time.NewTicker(every)
		defer ticker.Stop()
		tick = ticker.C
	}
	for {
		select {
		case <-tick:
		case <-counters:
		case err := <-failed:
			return err
		case <-ctx.Done():
			return nil
		}
		if err := print(); err != nil {
			return err
		}
	}
}

// API serves an HTTP API until shutdown, or until something goes wrong, which failed says then.
func API(listener net.Listener, handler http.Handler) (failed <-chan error, shutdown func()) {
	api := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second}
	ended := make(chan error, 1)
	go func() { ended <- api.Serve(listener) }()
	return ended, func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = api.Shutdown(ctx) // requests that take longer are cut off
	}
}
