package sfu

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
	"syscall"
	"time"
)

const usage = `segments is an SFU for WebRTC that sends the copies of each packet by one call.

  sudo segments -address 192.0.2.1:5004
  segments -address [2001:db8::1]:5004 -sends plain -api 127.0.0.1:8080

Flags:
`

type options struct {
	config Config
	api    string
}

// parseFlags reads the command line. It returns flag.ErrHelp if help was asked for and printed.
func parseFlags(args []string, stderr io.Writer) (*options, error) {
	o := &options{config: Config{Sends: Segments}}
	flags := flag.NewFlagSet("segments", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() {
		fmt.Fprint(stderr, usage)
		flags.PrintDefaults()
	}
	flags.Func("address", "`address:port` of this host that all media comes to and leaves from, over UDP",
		func(s string) (err error) {
			o.config.Address, err = netip.ParseAddrPort(s)
			return err
		})
	flags.Func("sends", "`how` packets are sent: plain (one call each), sendmmsg or segments (default segments)",
		func(s string) error {
			o.config.Sends = Sends(s)
			return o.config.Sends.check()
		})
	flags.StringVar(&o.api, "api", "127.0.0.1:8080", "`address:port` of the HTTP API: whoever reaches it may publish")
	o.config.Watch.Define(flags)
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	switch {
	case flags.NArg() > 0:
		return nil, fmt.Errorf("segments: unexpected argument %q; flags only, see -help", flags.Arg(0))
	case !o.config.Address.IsValid():
		return nil, errors.New("segments: no address; add -address with one of this host's and a port")
	}
	return o, nil
}

// Command is the segments command: it runs a server until SIGINT or SIGTERM and returns the exit status.
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

// serve runs the server and its API until ctx ends, and prints the counters when it is asked for them.
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
	o.config.Logger.Info("ready", "api", listener.Addr().String(), "address", o.config.Address, "sends", o.config.Sends)
	for {
		select {
		case err := <-failed:
			return err
		case <-ctx.Done():
			return nil
		case <-counters:
		}
		st, err := s.Stats()
		if err == nil {
			err = json.NewEncoder(stdout).Encode(st)
		}
		if err != nil {
			return err
		}
	}
}
