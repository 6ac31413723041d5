package server

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

const usage = `sfu is a selective forwarding unit for RTP that forwards in the kernel.

  sudo sfu --address 192.0.2.1
  sudo sfu --address 192.0.2.1 --address 2001:db8::1 --interfaces eth0,eth1 --api 127.0.0.1:8080

Flags:
`

type options struct {
	config Config
	api    string
	stats  time.Duration
}

// parseFlags reads the command line. It returns flag.ErrHelp if help was asked for and printed.
func parseFlags(args []string, stderr io.Writer) (*options, error) {
	o := &options{}
	flags := flag.NewFlagSet("sfu", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() {
		fmt.Fprint(stderr, usage)
		flags.PrintDefaults()
	}
	flags.Func("address", "`address` of this host that publishers send to; one of each family", func(s string) error {
		a, err := netip.ParseAddr(s)
		o.config.Addresses = append(o.config.Addresses, a)
		return err
	})
	flags.Func("interfaces", "`devices` that publishers' packets come in through, separated by commas (default: all "+
		"that are up)", func(s string) error {
		o.config.Interfaces = strings.Split(s, ",")
		return nil
	})
	flags.Func("extension", "`ID` of the header extension that says a packet's layer, 1 to 14 (default: VP8's "+
		"payload descriptor says it)", func(s string) error {
		n, err := fmt.Sscan(s, &o.config.Extension)
		if err == nil && (n != 1 || o.config.Extension < 1 || o.config.Extension > 14) {
			err = errors.New("want a number from 1 to 14")
		}
		return err
	})
	flags.StringVar(&o.api, "api", "127.0.0.1:8080", "`address:port` of the HTTP API: whoever reaches it may do "+
		"everything")
	flags.StringVar(&o.config.State, "state", "", "`file` that lets the next server go on where this one ends, while "+
		"the kernel forwards (default: none)")
	flags.StringVar(&o.config.Pins, "pins", "/sys/fs/bpf/sfu",
		"`path` where the next server finds the relay; used with --state")
	flags.DurationVar(&o.config.Lease, "lease", time.Second, "how long the kernel goes on for a server that was "+
		"killed, until the next one is there")
	o.config.Control.Define(flags)
	flags.BoolVar(&o.config.NoOffload, "no-offload", false, "forward in user space only")
	flags.DurationVar(&o.stats, "stats", 0, "print the counters every such `interval`, as JSON; they are always "+
		"printed on SIGUSR1")
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	switch {
	case flags.NArg() > 0:
		return nil, fmt.Errorf("sfu: unexpected argument %q; flags only, see --help", flags.Arg(0))
	case len(o.config.Addresses) == 0:
		return nil, errors.New("sfu: no address; add --address with one of this host's")
	}
	return o, nil
}

// Command is the sfu command: it runs a server until SIGINT or SIGTERM and returns the exit status.
func Command(args []string, stdout, stderr io.Writer) int {
	o, err := parseFlags(args, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		fmt.Fprintln(stderr, err)
		return 2
	}
	o.config.Logger = slog.New(slog.NewTextHandler(stderr, nil))
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// A channel of its own: it may be full of requests for counters, and a signal that finds it full is lost.
	counters := make(chan os.Signal, 1)
	signal.Notify(counters, syscall.SIGUSR1)
	defer signal.Stop(counters)
	if err := serve(ctx, o, counters, stdout); err != nil {
		fmt.Fprintln(stderr, err)
		return 1
	}
	return 0
}

// serve runs the server and its API until ctx ends.
func serve(ctx context.Context, o *options, counters <-chan os.Signal, stdout io.Writer) (err error) {
	listener, err := net.Listen("tcp", o.api)
	if err != nil {
		return err
	}
	defer listener.Close()
	s, err := Start(o.config)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	api := &http.Server{Handler: s.Handler(), ReadHeaderTimeout: 10 * time.Second}
	failed := make(chan error, 1)
	go func() { failed <- api.Serve(listener) }()
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = api.Shutdown(ctx) // requests that take longer are cut off
	}()
	o.config.Logger.Info("ready", "api", listener.Addr().String(), "addresses", o.config.Addresses)

	var tick <-chan time.Time
	if o.stats > 0 {
		ticker := time.NewTicker(o.stats)
		defer ticker.Stop()
		tick = ticker.C
	}
	for {
		select {
		case <-tick:
		case err := <-failed:
			return err
		case <-ctx.Done():
			return nil
		case <-counters:
		}
		if err := json.NewEncoder(stdout).Encode(s.Stats()); err != nil {
			return err
		}
	}
}
