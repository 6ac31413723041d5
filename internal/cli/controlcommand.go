package cli

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fastrelay/fastrelay-gen/gen/glue"
	"github.com/fastrelay/fastrelay-gen/internal/interrupt"
	"github.com/fastrelay/fastrelay-gen/runtime/abi"
	"github.com/fastrelay/fastrelay-gen/runtime/control/api"
)

// controlFlags are those of all commands for relays that run.
type controlFlags struct{ socket, format string }

func (a *app) addControlFlags(cmd *cobra.Command, f *controlFlags, format bool) {
	cmd.Flags().StringVarP(&f.socket, "socket", "s", "", "the relay's name, or the path of its control socket")
	f.format = "text"
	if format {
		formatFlag(cmd, &f.format)
	}
	completeFlags(cmd, map[string]cobra.CompletionFunc{"socket": socketNames})
}

// onRelay makes a command that asks a running relay.
func (a *app) onRelay(cmd *cobra.Command, f *controlFlags, do func(l *live, args []string) error) *cobra.Command {
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := a.setFormat(f.format); err != nil {
			return err
		}
		interrupt.Handle(cmd.Context())
		l, err := a.find(cmd.Context(), f.socket)
		if err != nil {
			return err
		}
		defer l.client.Close()
		return do(l, args)
	}
	a.addControlFlags(cmd, f, cmd.Name() != "watch")
	return cmd
}

// atLeast asks for arguments by name.
func atLeast(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) < len(names) {
			return usage("%s is missing", names[len(args)]).hint("usage: %s", cmd.UseLine()).
				see(cmd.CommandPath() + " --help")
		}
		return nil
	}
}

// controlCommands are the commands for relays that run.
func (a *app) controlCommands() []*cobra.Command {
	return []*cobra.Command{
		a.psCommand(), a.checkCommand(), a.showCommand(), a.watchCommand(), a.pageCommand(), a.openCommand(),
		a.closeCommand(), a.setCommand(), a.refreshCommand(),
		a.attachCommand("attach", "PUT", "Attach programs of a running relay to interfaces"),
		a.attachCommand("detach", "DELETE", "Detach programs of a running relay from interfaces"),
		a.drainCommand(), a.eventsCommand(), a.stopCommand(), a.removeCommand(), a.apiCommand(),
	}
}

func (a *app) psCommand() *cobra.Command {
	var f controlFlags
	cmd := &cobra.Command{
		Use:   "ps",
		Short: "List the relays that run on this machine",
		Long: `Lists the relays that have a control socket in /run/fastrelay (or in the folder that FASTRELAY_SOCKETS
says): those of ` + "`run --control`" + `, and those of servers that have set Options.Control, or that forward in user
space and have called control.Server.Show.`,
		Example: `  sudo fastrelay-gen ps`,
		Args:    exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := a.setFormat(f.format); err != nil {
				return err
			}
			return a.ps(cmd.Context(), f.socket)
		},
	}
	a.addControlFlags(cmd, &f, true)
	return cmd
}

func (a *app) checkCommand() *cobra.Command {
	var f controlFlags
	var alive bool
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Report whether a running relay is ready, for probes",
		Long: `Exits with status 0 if the relay forwards packets and takes new sessions: its process answers and renews
the lease, all interfaces that programs are attached to are there, and it isn't being drained. Otherwise it
says what is wrong, with status 1. With --alive only the process and its lease count: what a restart helps.`,
		Example: `  sudo fastrelay-gen check --socket turn`,
		Args:    exactly(),
	}
	cmd.Flags().BoolVar(&alive, "alive", false, "only whether its process answers and renews the lease")
	return a.onRelay(cmd, &f, func(l *live, _ []string) error { return l.check(alive) })
}

func (a *app) showCommand() *cobra.Command {
	var f controlFlags
	var missing bool
	cmd := &cobra.Command{
		Use:   "show [WHAT [NAME]]",
		Short: "Show what a running relay knows",
		Long: `Shows a running relay: without an argument, all of it at a glance; else one of

  kinds               kinds of sessions and groups, tables, and the types of their values
  programs [PROGRAM]  where programs are attached, and what became of packets
  sessions [KIND]     open sessions
  groups [KIND]       open groups
  receivers [KIND [KEY=VALUE…]]
                      receivers of all groups, or of one
  rows [TABLE]        rows of tables
  counters            counters of the spec
  settings            values of settings
  hops                next hops; with --missing, only those that are missing, and why`,
		Example: `  sudo fastrelay-gen show
  sudo fastrelay-gen show sessions channel --format json
  sudo fastrelay-gen show hops --missing --socket turn`,
		ValidArgsFunction: a.completeLive(completeShow),
	}
	cmd.Flags().BoolVar(&missing, "missing", false, "with hops: only those that are missing")
	return a.onRelay(cmd, &f, func(l *live, args []string) error {
		topic := ""
		if len(args) > 0 {
			topic, args = args[0], args[1:]
		}
		return l.show(topic, args, missing)
	})
}

func (a *app) watchCommand() *cobra.Command {
	var f controlFlags
	return a.onRelay(&cobra.Command{
		Use:   "watch",
		Short: "Watch a running relay on the whole screen",
		Long: `Shows rates by reason with their last minute, nanoseconds a packet, and sessions and receivers, which
can be sorted and scrolled. The kernel measures the time of all BPF programs while the command runs (bpf_stats),
which costs each of them some nanoseconds a packet; without the right to that, the column is empty.`,
		Example: `  sudo fastrelay-gen watch`,
		Args:    exactly(),
	}, &f, func(l *live, _ []string) error { return l.watch() })
}

func (a *app) openCommand() *cobra.Command {
	var f controlFlags
	var lifetime time.Duration
	cmd := &cobra.Command{
		Use:   "open KIND NAME=VALUE…",
		Short: "Open a session or a group of a running relay",
		Long: `Opens a session by its fields, or a group by its key. Receivers of the group follow, each after a
slash; the group is opened with all of them or not at all. With --lifetime, a session ends after that time unless it
is refreshed.`,
		Example: `  sudo fastrelay-gen open channel client=198.51.100.7:40001 server=192.0.2.1:3478 number=0x4001 ` + `\
      relayed=192.0.2.1:50000 peer=203.0.113.9:7000
  sudo fastrelay-gen open subscribers publisher=192.0.2.2:5004 ssrc=7 / local=192.0.2.1:5004 remote=203.0.113.2:6000`,
		Args: atLeast("KIND"), ValidArgsFunction: a.completeLive(completeKind("session", "group")),
	}
	cmd.Flags().DurationVar(&lifetime, "lifetime", 0, "end the session after this time unless it is refreshed")
	return a.onRelay(cmd, &f, func(l *live, args []string) error { return l.open(args[0], args[1:], lifetime) })
}

func (a *app) closeCommand() *cobra.Command {
	var f controlFlags
	var all bool
	cmd := &cobra.Command{
		Use:   "close KIND {ID… | NAME=VALUE… | --all}",
		Short: "Close sessions or a group of a running relay, or remove a row",
		Long: `Closes sessions by their IDs, or all whose fields have the given values; in one step. Of a group, it
closes the whole group, or after a slash removes receivers by their numbers. Of a table, it removes the row with the
key.`,
		Example: `  sudo fastrelay-gen close channel 17-3
  sudo fastrelay-gen close channel client=198.51.100.7:40001
  sudo fastrelay-gen close subscribers publisher=192.0.2.2:5004 ssrc=7 / 3 4
  sudo fastrelay-gen close sources addr=198.51.100.7`,
		Args: atLeast("KIND"), ValidArgsFunction: a.completeLive(completeOpen("session", "group", "table")),
	}
	cmd.Flags().BoolVar(&all, "all", false, "close all sessions of the kind")
	return a.onRelay(cmd, &f, func(l *live, args []string) error { return l.close(args[0], args[1:], all) })
}

func (a *app) setCommand() *cobra.Command {
	var f controlFlags
	return a.onRelay(&cobra.Command{
		Use:   "set KIND {ID | KEY=VALUE…} NAME=VALUE…",
		Short: "Change a session, a row or a receiver of a running relay",
		Long: `Changes the given fields of a session, which is named by its ID, or by other fields and a slash; its
counters go on. Changes the given values of a row, or puts a new row, which needs all values. Of a group, it changes
the receiver whose number follows a slash; without a number, it adds a receiver. A credit is given as its limit, a
bucket as its rate and its burst (125000/30000), a counter as its value. A change is made as a whole or not at all.`,
		Example: `  sudo fastrelay-gen set channel 17-3 peer=203.0.113.9:7001
  sudo fastrelay-gen set channel client=198.51.100.7:40001 number=0x4001 / peer=203.0.113.9:7001
  sudo fastrelay-gen set sources addr=198.51.100.7 connections=0
  sudo fastrelay-gen set listeners server=192.0.2.1:7000 channel=7 / 3 credit=2000000
  sudo fastrelay-gen set listeners server=192.0.2.1:7000 channel=7 / ` + `\
      local=192.0.2.1:7000 remote=203.0.113.2:6000 credit=0`,
		Args: atLeast("KIND"), ValidArgsFunction: a.completeLive(completeOpen("session", "table", "group")),
	}, &f, func(l *live, args []string) error { return l.set(args[0], args[1:]) })
}

func (a *app) refreshCommand() *cobra.Command {
	var f controlFlags
	var all bool
	var lifetime time.Duration
	cmd := &cobra.Command{
		Use:   "refresh KIND {ID… | NAME=VALUE… | --all}",
		Short: "Give sessions of a running relay their whole time again",
		Long: `Gives sessions their whole lifetime and idle time again: by their IDs, or all whose fields have the given
values. With --lifetime they end after that time unless they are refreshed again, used or not, but not later than the
spec says. Exit status 2: a session is over, or was never open.`,
		Example: `  sudo fastrelay-gen refresh channel 17-3
  sudo fastrelay-gen refresh channel client=198.51.100.7:40001 --lifetime 10m`,
		Args: atLeast("KIND"), ValidArgsFunction: a.completeLive(completeOpen("session")),
	}
	cmd.Flags().BoolVar(&all, "all", false, "refresh all sessions of the kind")
	cmd.Flags().DurationVar(&lifetime, "lifetime", 0, "end them after this time unless they are refreshed again")
	return a.onRelay(cmd, &f, func(l *live, args []string) error {
		return l.refresh(args[0], args[1:], all, lifetime)
	})
}

// hookHelp is what --hook says of itself.
const hookHelp = "of a program whose hook is [\"xdp\", \"tc/ingress\"]: tc, auto (at XDP, too, if that is right for\n" +
	"the device; the default) or xdp (an error if it isn't; on a card or a veth XDP has to be asked for by this)"

func (a *app) attachCommand(name, method, short string) *cobra.Command {
	var f controlFlags
	var hook string
	cmd := &cobra.Command{
		Use: name + " PROGRAM=INTERFACE…", Short: short,
		Example: "  sudo fastrelay-gen " + name + " to_peer=eth0 to_client=eth1",
		Args:    atLeast("PROGRAM=INTERFACE"), ValidArgsFunction: a.completeLive(completeAttach),
	}
	if method == "PUT" {
		cmd.Flags().StringVar(&hook, "hook", "", hookHelp)
	}
	return a.onRelay(cmd, &f, func(l *live, args []string) error { return l.attach(method, args, hook) })
}

func (a *app) drainCommand() *cobra.Command {
	var f controlFlags
	limit := 30 * time.Second
	var closeRest, undo bool
	cmd := &cobra.Command{
		Use:   "drain",
		Short: "Have a running relay take nothing new, and wait until nothing is open",
		Long: `From now on the relay refuses new sessions, groups and receivers, whoever opens them. The command
waits until none is open, at most for --limit. What is left then stays open, unless --close is given. Exit status 2:
something is left.`,
		Example: `  sudo fastrelay-gen drain --limit 10m --close && sudo fastrelay-gen stop`,
		Args:    exactly(),
	}
	cmd.Flags().DurationVar(&limit, "limit", limit, "how long to wait")
	cmd.Flags().BoolVar(&closeRest, "close", false, "close what is left then")
	cmd.Flags().BoolVar(&undo, "undo", false, "take new sessions again")
	return a.onRelay(cmd, &f, func(l *live, _ []string) error { return l.drain(limit, closeRest, undo) })
}

func (a *app) eventsCommand() *cobra.Command {
	var f controlFlags
	return a.onRelay(&cobra.Command{
		Use:   "events [EVENT…]",
		Short: "Print the events of a running relay as they come",
		Long: `Prints the records that programs emit, or only those of the given names, one a line. The relay's own
server gets each of them as well. Whoever reads too slowly is told how many were missed.`,
		Example:           `  sudo fastrelay-gen events --format json`,
		ValidArgsFunction: a.completeLive(completeEvents),
	}, &f, func(l *live, args []string) error { return l.events(args) })
}

func (a *app) stopCommand() *cobra.Command {
	var f controlFlags
	return a.onRelay(&cobra.Command{
		Use:   "stop",
		Short: "End a relay that `run` runs",
		Long: `Ends a relay of ` + "`run`" + ` as Ctrl-C does, and returns when it has ended. Other servers decide on
their own end.`,
		Example: `  sudo fastrelay-gen stop --socket turn`,
		Args:    exactly(),
	}, &f, func(l *live, _ []string) error { return l.stop() })
}

// pinFolder is where relays are pinned by their names.
const pinFolder = "/sys/fs/bpf"

func (a *app) removeCommand() *cobra.Command {
	var pin, socket, format string
	cmd := &cobra.Command{
		Use:   "remove NAME",
		Short: "Remove what a relay has left whose process is dead",
		Long: `Removes what the relay NAME of ` + "`run --detach`" + ` has left whose process was killed: its
attachments, its pins with all sessions and rows, its control socket, and the lock beside it; it says what that was. Its
log stays. Where a process has the relay, nothing is removed: stop ends that one.`,
		Example: `  sudo fastrelay-gen remove turn
  sudo fastrelay-gen remove turn --pin /sys/fs/bpf/other --socket /run/turn.sock`,
		Args: exactly("NAME"),
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return pinnedRelays(), cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := a.setFormat(format); err != nil {
				return err
			}
			if strings.Contains(args[0], "/") {
				return usage("%q is a path, and not a name", args[0]).hint("remove NAME --pin PATH --socket PATH").
					see("fastrelay-gen remove --help")
			}
			interrupt.Handle(cmd.Context())
			return a.remove(args[0], cmp.Or(pin, filepath.Join(pinFolder, args[0])), cmp.Or(socket, args[0]))
		},
	}
	cmd.Flags().StringVar(&pin, "pin", "", "where it is pinned, if not at "+pinFolder+"/NAME")
	cmd.Flags().StringVarP(&socket, "socket", "s", "", "the path of its control socket, or another name")
	formatFlag(cmd, &format)
	return cmd
}

// pinnedRelays lists the names under which relays are pinned.
func pinnedRelays() (names []string) {
	paths, _ := filepath.Glob(filepath.Join(pinFolder, "*", "live", abi.PinnedLayout)) // the pattern is one
	for _, path := range paths {
		names = append(names, filepath.Base(filepath.Dir(filepath.Dir(path))))
	}
	return names
}

func (a *app) apiCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "api SPEC",
		Short: "Print the OpenAPI document of a relay's control socket",
		Long: `Prints the document that describes the control socket of a relay of this spec, in OpenAPI 3.0: the
types of its sessions, groups and tables come from the spec. A relay that runs serves it at /v1/openapi.json.`,
		Example: `  fastrelay-gen api examples/turn/spec.cue > turn.json`,
		Args:    exactly("SPEC"), ValidArgsFunction: specFiles,
		RunE: func(cmd *cobra.Command, args []string) error {
			r, err := a.plan(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			desc := glue.Desc(r.Plan)
			text, err := api.OpenAPI(&desc)
			if err != nil {
				return err
			}
			_, err = a.out.Write(text)
			return err
		},
	}
}

// socketNames completes --socket.
func socketNames(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	var names []string
	for _, path := range sockets() {
		names = append(names, socketName(path))
	}
	return names, cobra.ShellCompDirectiveDefault // else a path
}

// completeLive completes arguments by what a running relay has.
func (a *app) completeLive(words func(l *live, args []string, begun string) []string) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
		socket, err := cmd.Flags().GetString("socket")
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), askFor)
		defer cancel()
		l, err := a.find(ctx, socket)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		defer l.client.Close()
		directive := cobra.ShellCompDirectiveNoFileComp
		var out []string
		for _, w := range words(l, args, begun) {
			if strings.HasPrefix(w, begun) {
				out = append(out, w)
			}
			if strings.HasSuffix(w, "=") {
				directive |= cobra.ShellCompDirectiveNoSpace
			}
		}
		return out, directive
	}
}

func completeShow(l *live, args []string, _ string) []string {
	if len(args) == 0 {
		return showTopics
	}
	what := map[string]string{"sessions": "session", "groups": "group", "receivers": "group", "rows": "table"}[args[0]]
	switch {
	case args[0] == "programs" && len(args) == 1:
		return l.info.Programs
	case args[0] == "receivers" && len(args) > 1:
		return completeKind("group")(l, args[1:], "")
	case len(args) > 1:
		return nil
	}
	return l.kindNames(what)
}

func (l *live) kindNames(what ...string) (names []string) {
	for _, k := range l.kinds() {
		if slices.Contains(what, k.what) && k.Session == "" { // rows of sessions come and go with them
			names = append(names, k.Name)
		}
	}
	return names
}

// completeKind completes a kind, and then the names of its members that were not given yet.
func completeKind(what ...string) func(*live, []string, string) []string {
	return func(l *live, args []string, _ string) (out []string) {
		if len(args) == 0 {
			return l.kindNames(what...)
		}
		k, err := l.kind(args[0], what...)
		if err != nil {
			return nil
		}
		parts := split(args[1:]) // what a slash separates names its members anew
		for _, m := range append(append([]api.Member{}, k.Key...), k.Values...) {
			given := false
			for _, w := range parts[len(parts)-1] {
				given = given || strings.HasPrefix(w, m.Name+"=")
			}
			if !given {
				out = append(out, m.Name+"=")
			}
		}
		return out
	}
}

// completeOpen is completeKind if sessions that are open can be named by ID as well.
func completeOpen(what ...string) func(*live, []string, string) []string {
	return func(l *live, args []string, begun string) []string {
		out := completeKind(what...)(l, args, begun)
		if len(args) == 0 {
			return out
		}
		if k, err := l.kind(args[0], what...); err == nil && k.what == "session" {
			var page api.Page[api.Session]
			if l.get(fmt.Sprintf("/v1/sessions/%s?limit=%d", k.Name, api.MaxPage), &page) == nil {
				for _, s := range page.Items {
					out = append(out, s.ID)
				}
			}
		}
		return out
	}
}

func completeAttach(l *live, _ []string, begun string) (out []string) {
	program, at, ok := strings.Cut(begun, "=")
	for _, p := range l.info.Programs {
		if !ok {
			out = append(out, p+"=")
		} else if p == program {
			for _, target := range targets(at) {
				out = append(out, p+"="+target)
			}
		}
	}
	return out
}

func completeEvents(l *live, _ []string, _ string) (out []string) {
	for _, e := range l.info.Events {
		out = append(out, e.Name)
	}
	return out
}
