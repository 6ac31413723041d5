package cli

import (
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/fastrelay/fastrelay-gen/runtime/control/api"
)

// defaultRate is how many packets a second --traffic sends.
const defaultRate = 1000

// detachedVar is set in the environment of a process in the background: the path of its log.
const detachedVar = "FASTRELAY_DETACHED"

func detached() bool { return os.Getenv(detachedVar) != "" }

type runOptions struct {
	attach, settings, sessions, rows, receivers []string

	hook         string
	control, pin string
	detach, grow bool

	http       string // the address of a page
	httpPublic bool   // other machines may read it

	once, events bool
	traffic      bool
	rate         int // packets a second of --traffic
	format       string
	duration     time.Duration
	interval     time.Duration
	lease        time.Duration
}

func (a *app) runCommand() *cobra.Command {
	opt := runOptions{interval: time.Second, rate: defaultRate}
	cmd := &cobra.Command{
		Use:   "run SPEC {--attach PROGRAM=INTERFACE | --traffic}",
		Short: "Load and attach a relay, and show its counters until it is stopped",
		Long: `Compiles the spec in memory, loads it, opens the given sessions and groups of receivers, attaches the
given programs, and shows live counters. Ctrl-C or SIGTERM detaches everything and unloads the relay; so does the end of
its terminal (SIGHUP).

With --traffic the relay runs in a network namespace between two others, client and peer, which send the packets of the
spec's tests in turn. It has the settings, sessions, rows and groups of the tests, unless some are given; a test that
contradicts an earlier one is left out. Credits are topped up once a second. Packets that arrive at client and peer are
counted, too. Nothing outside of the namespaces is changed.

On a terminal the counters are updated in place; otherwise there is one line a second. With --events, standard output
has the records that programs emit, one in each line, and the counters go to standard error. With --format json both
are JSON, one object in each line: records have "event", counters have "programs", and the first line of standard error
has "attached".

Receivers with the same key are one group, in the given order. The key is before the slash. The value of a counter is
its first number (default: 0), of a credit its limit, of a bucket units a second and a burst (125000/30000); credits for
each priority level all get the same value.

With --control the relay has a control socket: show, watch, open, close and so on look at it and change it. With
--detach it goes on in the background after the command has returned, until stop; it is pinned, so that another run
of the same command takes it over when its process was killed. SIGHUP has it open its log anew, for logrotate. With a
--lease that is longer than a restart takes, no packet passes to the stack meanwhile; nor does one while the process
hangs, and next hops aren't followed.

With --grow it also takes over a relay of the same spec with smaller tables or fewer sessions: all rows, sessions and
counters are copied. Packets pass to the stack meanwhile, and count as inactive; nothing is forwarded by what is half
copied. Rows with credits or buckets, groups, translations and the ring of events can't grow. A relay that runs is ended
by SIGKILL for that, which leaves its pins; stop removes them.

With --http there is a page for a browser: what the programs decide, with live rates, a plot of the last ten minutes,
sessions and groups; /metrics is for Prometheus. It changes nothing. Every user of this machine can read it;
--http-public allows an address that other machines reach, too. Port 0 is a free one.`,
		Example: `  sudo fastrelay-gen run examples/turn/spec.cue --traffic
  sudo fastrelay-gen run examples/turn/spec.cue --traffic --http 127.0.0.1:8080
  sudo fastrelay-gen run examples/turn/spec.cue --attach to_peer=eth0 --attach to_client=eth1 \
      --session 'channel=client=198.51.100.7:40001 server=192.0.2.1:3478 number=0x4001 ` +
			`relayed=192.0.2.1:50000 peer=203.0.113.9:7000'
  sudo fastrelay-gen run examples/gate/spec.cue --attach short=eth0 --row 'known=id=7 packets=0'
  sudo fastrelay-gen run examples/paths/spec.cue --attach forward=eth0 ` +
			`--row 'routes=dst=203.0.113.0/24 fast=192.0.2.1 slow=192.0.2.65'
  sudo fastrelay-gen run spec.cue --attach spread=eth0 --events \
      --receiver 'listeners=server=192.0.2.1:7000 channel=7 / local=192.0.2.1:7000 remote=203.0.113.2:6000 ` +
			`credit=1000000' \
      --receiver 'listeners=server=192.0.2.1:7000 channel=7 / local=192.0.2.1:7000 remote=203.0.113.3:6000 ` +
			`credit=1000000'`,
		Args: exactly("SPEC"), ValidArgsFunction: specFiles,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := a.setFormat(opt.format); err != nil {
				return err
			}
			return a.run(cmd.Context(), args[0], opt)
		},
	}
	flags := cmd.Flags()
	flags.StringArrayVar(&opt.attach, "attach", nil,
		"attach a program to an interface, after the programs that are there: PROGRAM=INTERFACE; before all of them:\n"+
			"PROGRAM=INTERFACE:first; before one, by its name in the kernel: PROGRAM=INTERFACE:before=NAME "+
			"(may be repeated)")
	flags.StringVar(&opt.hook, "hook", "auto", hookHelp)
	flags.BoolVar(&opt.traffic, "traffic", false, "send the packets of the spec's tests, in network namespaces")
	flags.IntVar(&opt.rate, "rate", defaultRate, "packets a second that --traffic sends")
	flags.StringArrayVar(&opt.settings, "set", nil, "give a setting a value: SETTING=VALUE (may be repeated)")
	flags.StringArrayVar(&opt.sessions, "session", nil,
		"open a session: 'KIND=FIELD=VALUE FIELD=VALUE…' (may be repeated)")
	flags.StringArrayVar(&opt.rows, "row", nil,
		"put a row into a table: 'TABLE=MEMBER=VALUE MEMBER=VALUE…' (may be repeated)")
	flags.StringArrayVar(&opt.receivers, "receiver", nil,
		"put a receiver into a group: 'GROUP=KEY=VALUE… / FIELD=VALUE…' (may be repeated)")
	flags.BoolVar(&opt.events, "events", false, "print the records that programs emit as they come")
	flags.StringVar(&opt.control, "control", "", "make a control socket: its path, or a name in "+api.DefaultFolder)
	flags.StringVar(&opt.http, "http", "", "serve a page about the relay at this address, for example 127.0.0.1:8080")
	flags.BoolVar(&opt.httpPublic, "http-public", false, "the page's address may be one that other machines reach")
	flags.BoolVar(&opt.grow, "grow", false, "carry what is pinned over into tables that are larger now")
	flags.BoolVar(&opt.detach, "detach", false, "leave the relay running in the background, until stop")
	flags.StringVar(&opt.pin, "pin", "",
		"keep the relay's state in this folder of the bpf file system, or take over what is there")
	flags.DurationVar(&opt.lease, "lease", time.Second,
		"how long the kernel goes on forwarding when the process is killed or hangs")
	formatFlag(cmd, &opt.format)
	flags.BoolVar(&opt.once, "once", false, "print the counters once, after a second or --duration, and stop")
	flags.DurationVar(&opt.duration, "duration", 0, "stop after this time (for example 30s)")
	completeFlags(cmd, map[string]cobra.CompletionFunc{
		"attach": assigned(programsOf, targets), "set": assigned(settingsOf, noValues),
		"session": assigned(sessionsOf, noValues),
		"row":     assigned(tablesOf, noValues), "receiver": assigned(groupsOf, noValues),
	})
	return cmd
}
