package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/fastrelay/fastrelay-gen/examples/internal/command"
	"github.com/fastrelay/fastrelay-gen/runtime"
)

// options are the command line, parsed.
type options struct {
	config Config
	stats  time.Duration
	json   bool
}

const usage = `turn is a TURN server that forwards channel data in the kernel.

  sudo turn --listen 0.0.0.0:3478 --user alice=secret
  sudo turn --listen 192.0.2.1:3478 --user alice=secret --interfaces eth0,eth1 --stats 5s

Flags:
`

// parse reads the command line. It returns flag.ErrHelp if help was asked for and printed.
func parse(args []string, stderr io.Writer) (*options, error) {
	o := &options{config: Config{Users: map[string]string{}}}
	flags := command.Flags("turn", usage, stderr)
	flags.Func("listen", "`address:port` to listen on; may be repeated; 0.0.0.0 and [::] take all of the host's "+
		"(default 0.0.0.0:3478)", func(s string) error {
		addr, err := netip.ParseAddrPort(s)
		if err == nil {
			o.config.Listen = append(o.config.Listen, addr)
		}
		return err
	})
	flags.Func("relay", "`address` for allocations, or LOCAL=PUBLIC behind a NAT; one of each family (default: the "+
		"one that faces the internet)", func(s string) error {
		local, public, mapped := strings.Cut(s, "=")
		addr := RelayAddr{}
		var err error
		if addr.Local, err = netip.ParseAddr(local); err != nil {
			return err
		}
		if mapped {
			addr.Public, err = netip.ParseAddr(public)
		}
		o.config.Relay = append(o.config.Relay, addr)
		return err
	})
	flags.Func("user", "`name=password` of a user; may be repeated", func(s string) error {
		return o.addUser(s)
	})
	flags.Func("users", "`file` with a name=password on each line, which no list of processes shows", o.addUsers)
	flags.Func("interfaces", "`devices` that packets come in through, separated by commas (default: all that are up)",
		func(s string) error {
			o.config.Interfaces = strings.Split(s, ",")
			return nil
		})
	flags.StringVar(&o.config.Realm, "realm", "fastrelay", "`realm` of the users")
	flags.BoolVar(&o.config.First, "first", false, "attach before the programs that interfaces have, such as Cilium's")
	flags.TextVar(&o.config.Hook, "hook", runtime.HookAuto,
		"`hook` that packets come to: tc, auto (XDP first, if that is right for the device) or xdp")
	o.config.Control.Define(flags)
	flags.BoolVar(&o.config.NoOffload, "no-offload", false, "forward in user space only")
	flags.DurationVar(&o.config.ChannelLifetime, "channel-lifetime", 0,
		"`time` after which a channel ends unless refreshed (default 10m)")
	flags.DurationVar(&o.config.AllocationLifetime, "allocation-lifetime", 0,
		"`time` that an allocation lasts unless the client asks for another (default 10m)")
	flags.DurationVar(&o.stats, "stats", 0, "print counters every such `interval`; they are always printed on SIGUSR1")
	flags.BoolVar(&o.json, "json", false, "print counters as JSON, one object a line")
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	if flags.NArg() > 0 {
		return nil, fmt.Errorf("turn: unexpected argument %q; flags only, see --help", flags.Arg(0))
	}
	if len(o.config.Users) == 0 {
		return nil, errors.New("turn: no user; add --user name=password or --users FILE")
	}
	if len(o.config.Listen) == 0 {
		o.config.Listen = []netip.AddrPort{netip.MustParseAddrPort("0.0.0.0:3478")}
	}
	return o, nil
}

func (o *options) addUser(text string) error {
	name, password, ok := strings.Cut(text, "=")
	if !ok || name == "" || password == "" {
		return errors.New("want name=password")
	}
	o.config.Users[name] = password
	return nil
}

func (o *options) addUsers(file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		if err := o.addUser(line); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
	}
	return nil
}

// Command is the turn command: it runs a server until SIGINT or SIGTERM and returns the exit status.
func Command(args []string, stdout, stderr io.Writer) int {
	return command.Run(func() (command.Serve, error) {
		o, err := parse(args, stderr)
		return func(ctx context.Context, log *slog.Logger, counters <-chan os.Signal) error {
			o.config.Logger = log
			return serve(ctx, o, counters, stdout)
		}, err
	}, stderr)
}

// serve runs the server until ctx ends.
func serve(ctx context.Context, o *options, counters <-chan os.Signal, stdout io.Writer) (err error) {
	s, err := Start(o.config)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	o.config.Logger.Info("listening", "addresses", s.Addrs())
	return command.Print(ctx, counters, o.stats, nil, func() error {
		if err := printStats(stdout, s, o.json); err != nil {
			o.config.Logger.Error("counters", "error", err)
		}
		return nil
	})
}

func printStats(w io.Writer, s *Server, asJSON bool) error {
	if asJSON {
		return json.NewEncoder(w).Encode(s.Stats())
	}
	_, err := fmt.Fprintln(w, s.Stats())
	return err
}
