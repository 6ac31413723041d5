// The paths command is a router with a fast and a slow path to each network. It takes the other path if the
// neighbouring router doesn't answer over one, and moves flows while they run:
//
//	paths -interface eth0,fast,slow -route 203.0.113.0/24=192.0.2.1,192.0.2.65
//
// Orders are read from standard input, one a line: "fast 198.51.100.7:40001 203.0.113.9:5201" has a flow take the fast
// path from its next pause on, "slow …" the slow one, and "rules …" the one of its ports and DSCP.
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/signal"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/examples/paths/router"
	"github.com/fastrelay/fastrelay-gen/runtime"
)

func main() {
	var c router.Config
	interfaces := flag.String("interface", "eth0", "`names` of the interfaces that packets come in at")
	flag.Func("route", "`network=fast,slow`: the two next hops to a network; may be repeated", func(s string) error {
		route, err := parseRoute(s)
		c.Routes = append(c.Routes, route)
		return err
	})
	flag.DurationVar(&c.Hello, "hello", 50*time.Millisecond, "between two hellos to next hops; 0: none")
	flag.DurationVar(&c.Dead, "dead", 250*time.Millisecond, "after which a next hop that doesn't answer isn't used")
	pause := flag.Duration("pause", 200*time.Millisecond, "of a flow before it moves; longer than a queue drains")
	flag.TextVar(&c.Hook, "hook", runtime.HookTC,
		"`hook` that packets come to: tc, auto (XDP first, if that is right for the device) or xdp; no queue of a "+
			"device has what leaves from XDP")
	c.Control.Define(flag.CommandLine)
	flag.Parse()
	c.Interfaces = strings.Split(*interfaces, ",")
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	if err := run(ctx, c, *pause, os.Stdin); err != nil {
		fmt.Fprintln(os.Stderr, "paths:", err)
		os.Exit(1)
	}
}

func parseRoute(s string) (r router.Route, err error) {
	dst, hops, ok := strings.Cut(s, "=")
	fast, slow, two := strings.Cut(hops, ",")
	if !ok || !two {
		return r, errors.New("a route is written as 203.0.113.0/24=192.0.2.1,192.0.2.65")
	}
	var errs [3]error
	r.Dst, errs[0] = netip.ParsePrefix(dst)
	r.Fast, errs[1] = netip.ParseAddr(fast)
	r.Slow, errs[2] = netip.ParseAddr(slow)
	return r, errors.Join(errs[:]...)
}

func run(ctx context.Context, c router.Config, pause time.Duration, orders io.Reader) error {
	r, err := router.Start(c)
	if err != nil {
		return err
	}
	go follow(ctx, r, pause, orders)
	<-ctx.Done()
	return r.Close()
}

// follow executes orders. Each flow waits for its own pause.
func follow(ctx context.Context, r *router.Router, pause time.Duration, orders io.Reader) {
	lines := bufio.NewScanner(orders)
	for lines.Scan() {
		path, src, dst, err := parseOrder(lines.Text())
		if err != nil {
			fmt.Fprintln(os.Stderr, "paths:", err)
			continue
		}
		go func() {
			if err := r.Move(ctx, src, dst, path, pause); err != nil {
				fmt.Fprintln(os.Stderr, "paths:", err)
			}
		}()
	}
}

func parseOrder(line string) (path router.Path, src, dst netip.AddrPort, err error) {
	words := strings.Fields(line)
	paths := map[string]router.Path{"fast": router.Fast, "slow": router.Slow, "rules": router.ByRules}
	if len(words) != 3 {
		return path, src, dst, fmt.Errorf("%q is no order; one is: fast 198.51.100.7:40001 203.0.113.9:5201", line)
	}
	path, ok := paths[words[0]]
	if !ok {
		return path, src, dst, fmt.Errorf("%q is no path; there are fast, slow, rules", words[0])
	}
	src, err = netip.ParseAddrPort(words[1])
	if err == nil {
		dst, err = netip.ParseAddrPort(words[2])
	}
	return path, src, dst, err
}
