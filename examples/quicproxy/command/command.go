// Package command is the quicproxy command: the proxy, and the agent.
package command

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/fastrelay/fastrelay-gen/examples/quicproxy/client"
	"github.com/fastrelay/fastrelay-gen/examples/quicproxy/server"
	"github.com/fastrelay/fastrelay-gen/runtime"
)

const usage = `quicproxy forwards QUIC packets with a short header in the kernel.

  sudo quicproxy proxy --listen 192.0.2.1:443 --target 203.0.113.0/24 --interfaces eth0,eth1
  quicproxy agent --listen 127.0.0.1:4433 --proxy 192.0.2.1:443 --target 203.0.113.2:4433

SIGUSR1 has the proxy print its counters, and the agent move to a new port. Flags:
`

// Run runs the command line until a signal ends it, and returns the exit status.
func Run(args []string, stdout, stderr io.Writer) int {
	fail := func(status int, err error) int {
		fmt.Fprintln(stderr, "quicproxy:", err)
		return status
	}
	part := ""
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		part, args = args[0], args[1:]
	}
	var proxy server.Config
	var agent client.Config
	flags := flag.NewFlagSet("quicproxy", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() {
		fmt.Fprint(stderr, usage)
		flags.PrintDefaults()
	}
	address := func(into *netip.AddrPort) func(string) error {
		return func(s string) (err error) {
			*into, err = netip.ParseAddrPort(s)
			return err
		}
	}
	flags.Func("listen", "`address:port` for tunnels and forwarded packets (proxy), or for clients (agent)",
		address(&proxy.Listen))
	flags.Func("proxy", "`address:port` of the proxy (agent)", address(&agent.Proxy))
	target := "`prefix` that clients may reach, may be repeated (proxy); host:port (agent)"
	flags.Func("target", target, func(s string) error {
		agent.Target = s
		if part != "proxy" {
			return nil
		}
		prefix, err := netip.ParsePrefix(s)
		proxy.Targets = append(proxy.Targets, prefix)
		return err
	})
	interfaces := flags.String("interfaces", "", "`names` of the devices that clients and targets are behind (proxy)")
	flags.TextVar(&proxy.Hook, "hook", runtime.HookAuto,
		"`hook` that packets come to: tc, auto (XDP first, if that is right for the device) or xdp (proxy)")
	flags.DurationVar(&proxy.Lease, "lease", time.Second,
		"how long the kernel goes on without the proxy, if that is killed or gets no CPU time (proxy)")
	proxy.Control.Define(flags)
	flags.BoolVar(&proxy.NoOffload, "no-offload", false, "forward everything in user space (proxy)")
	flags.DurationVar(&agent.Idle, "idle", time.Minute, "how long a tunnel without packets is kept (agent)")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return 0
		}
		return 2
	}
	if flags.NArg() > 0 {
		return fail(2, fmt.Errorf("unexpected argument %q", flags.Arg(0)))
	}
	agent.Listen = proxy.Listen
	if *interfaces != "" {
		proxy.Interfaces = strings.Split(*interfaces, ",")
	}
	switch part {
	case "proxy":
		p, err := server.Start(proxy)
		if err != nil {
			return fail(1, err)
		}
		fmt.Fprintf(stdout, "listening on %v\n", p.Addr())
		return until(p, fail, func() error {
			s, err := p.Stats()
			return errors.Join(err, json.NewEncoder(stdout).Encode(s))
		})
	case "agent":
		if !agent.Listen.IsValid() || !agent.Proxy.IsValid() || agent.Target == "" {
			return fail(2, errors.New("the agent needs --listen, --proxy and --target"))
		}
		a, err := client.Start(agent)
		if err != nil {
			return fail(1, err)
		}
		fmt.Fprintf(stdout, "listening on %v\n", a.Addr())
		return until(a, fail, a.Rebind)
	}
	return fail(2, errors.New("say what to run: quicproxy proxy, or quicproxy agent (--help)"))
}

// until waits for the signal that ends the program; before that, SIGUSR1 runs f.
func until(c io.Closer, fail func(int, error) int, f func() error) int {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGUSR1)
	for s := range signals {
		if s != syscall.SIGUSR1 {
			break
		}
		if err := f(); err != nil {
			fmt.Fprintln(os.Stderr, "quicproxy:", err)
		}
	}
	if err := c.Close(); err != nil {
		return fail(1, err)
	}
	return 0
}
