// The tunnel command is a router with tunnels to others, whose ends may be the kernel's own tunnel devices:
//
//	tunnel -outside eth1 -inside eth0 -tunnel kind=vxlan,local=192.0.2.1,remote=203.0.113.2,vni=42,\
//	mac=02:00:00:00:10:01,remote-mac=02:00:00:00:10:02,net=10.9.0.0/24
//
// The flag -tunnel may be repeated, and so may its key net.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/examples/tunnel/gateway"
	"github.com/fastrelay/fastrelay-gen/runtime"
)

func main() {
	var c gateway.Config
	outside := flag.String("outside", "eth1", "`names` of the interfaces that packets in tunnels come in at")
	inside := flag.String("inside", "eth0", "`names` of the interfaces of the own networks")
	flag.Func("tunnel", "a tunnel: `key=value,…`; may be repeated", func(s string) error {
		t, err := parse(s)
		c.Tunnels = append(c.Tunnels, t)
		return err
	})
	flag.TextVar(&c.Hook, "hook", runtime.HookTC,
		"`hook` that packets in tunnels come to: tc, auto (XDP first, if that is right for the device) or xdp")
	c.Control.Define(flag.CommandLine)
	flag.Parse()
	c.Outside, c.Inside = strings.Split(*outside, ","), strings.Split(*inside, ",")
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	if err := run(ctx, c); err != nil {
		fmt.Fprintln(os.Stderr, "tunnel:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, c gateway.Config) error {
	g, err := gateway.Start(c)
	if err != nil {
		return err
	}
	<-ctx.Done()
	return g.Close()
}

// parse reads the flag -tunnel.
func parse(s string) (t gateway.Tunnel, err error) {
	for word := range strings.SplitSeq(s, ",") {
		key, value, ok := strings.Cut(word, "=")
		if !ok {
			return t, fmt.Errorf("%q is no key=value", word)
		}
		switch key {
		case "kind":
			t.Kind, err = gateway.ParseKind(value)
		case "local":
			t.Local, err = netip.ParseAddr(value)
		case "remote":
			t.Remote, err = netip.ParseAddr(value)
		case "vni":
			var n uint64
			n, err = strconv.ParseUint(value, 0, 24)
			t.VNI = uint32(n)
		case "option":
			var n uint64
			n, err = strconv.ParseUint(value, 0, 32)
			t.Option = uint32(n)
		case "sums":
			t.Sums, err = strconv.ParseBool(value)
		case "mac":
			t.MAC, err = net.ParseMAC(value)
		case "remote-mac":
			t.RemoteMAC, err = net.ParseMAC(value)
		case "net":
			var network netip.Prefix
			network, err = netip.ParsePrefix(value)
			t.Networks = append(t.Networks, network)
		default:
			err = errors.New("keys are kind, local, remote, sums, vni, mac, remote-mac, option and net")
		}
		if err != nil {
			return t, fmt.Errorf("%s: %w", key, err)
		}
	}
	return t, t.Check()
}
