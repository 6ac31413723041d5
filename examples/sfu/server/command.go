package server

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
	"strings"
	"time"

	"github.com/fastrelay/fastrelay-gen/examples/internal/command"
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
	flags := command.Flags("sfu", usage, stderr)
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
	return command.Run(func() (command.Serve, error) {
		o, err := parseFlags(args, stderr)
		return func(ctx context.Context, log *slog.Logger, counters <-chan os.Signal) error {
			o.config.Logger = log
			return serve(ctx, o, counters, stdout)
		}, err
	}, stderr)
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
	failed, shutdown := command.API(listener, s.Handler())
	defer shutdown()
	o.config.Logger.Info("ready", "api", listener.Addr().String(), "addresses", o.config.Addresses)
	return command.Print(ctx, counters, o.stats, failed, func() error {
		return json.NewEncoder(stdout).Encode(s.Stats())
	})
}
