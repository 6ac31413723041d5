// Moq runs a relay for Media over QUIC Transport: see package relay.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/examples/moq/operate"
	"github.com/fastrelay/fastrelay-gen/examples/moq/relay"
	"github.com/fastrelay/fastrelay-gen/runtime/control"
)

func main() {
	if err := run(os.Args[1:]); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "moq:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	flags := flag.NewFlagSet("moq", flag.ContinueOnError)
	o := define(flags)
	if err := flags.Parse(args); err != nil {
		return err
	}
	if err := agree(flags); err != nil {
		return err
	}
	config, err := o.config()
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	r, err := relay.Start(config)
	if err != nil {
		return err
	}
	fmt.Println("listening on", r.Addr())
	if o.watch != (control.Flags{}) {
		shown := operate.New("moq", r)
		server := &control.Server{Path: o.watch.Socket, Metrics: o.watch.Metrics, Stop: stop}
		if err := server.Show(shown); err != nil {
			if errors.Is(err, fs.ErrPermission) && o.watch.Socket == "" {
				err = fmt.Errorf("%w; -control PATH has the control socket be elsewhere", err)
			}
			return errors.Join(fmt.Errorf("-control and -metrics: %w", err), r.Close())
		}
		defer server.Close()
		looking, end := context.WithCancel(context.Background()) // also while it is drained
		defer end()
		go shown.Run(looking)
		if at := server.MetricsAddr(); at != nil {
			fmt.Println("metrics on", at)
		}
	}
	return serve(ctx, stop, r, o.every)
}

// serve prints counters until ctx ends, and then drains the relay. A second signal ends the process.
func serve(ctx context.Context, stop func(), r *relay.Relay, every time.Duration) error {
	var tick <-chan time.Time
	if every > 0 {
		ticker := time.NewTicker(every)
		defer ticker.Stop()
		tick = ticker.C
	}
	for {
		select {
		case <-ctx.Done():
			stop()
			fmt.Println("draining: peers are asked to leave")
			return r.Drain(context.Background())
		case <-tick:
			print(r.Stats())
		}
	}
}

func print(s relay.Stats) {
	for _, t := range s.Tracks {
		dropped := uint64(0)
		for _, n := range t.Sent.DroppedStreams() {
			dropped += n
		}
		fmt.Printf("%s %s: %d publishers, %d subscribers; %d bytes received, %d sent, %d streams dropped\n",
			t.Scope, t.Name, t.Publishers, len(t.Subscriptions), t.Received.Bytes, t.Sent.Bytes, dropped)
	}
}
