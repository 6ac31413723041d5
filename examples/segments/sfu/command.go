package sfu

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"

	"github.com/fastrelay/fastrelay-gen/examples/internal/command"
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
	flags := command.Flags("segments", usage, stderr)
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
	return command.Run(func() (command.Serve, error) {
		o, err := parseFlags(args, stderr)
		return func(ctx context.Context, log *slog.Logger, counters <-chan os.Signal) error {
			o.config.Logger = log
			return serve(ctx, o, counters, stdout)
		}, err
	}, stderr)
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
	failed, shutdown := command.API(listener, s.Handler())
	defer shutdown()
	o.config.Logger.Info("ready", "api", listener.Addr().String(), "address", o.config.Address, "sends", o.config.Sends)
	return command.Print(ctx, counters, 0, failed, func() error {
		st, err := s.Stats()
		if err == nil {
			err = json.NewEncoder(stdout).Encode(st)
		}
		return err
	})
}
