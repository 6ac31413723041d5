// Package lab has the network that the paths example is tested and measured in.
package lab

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/fastrelay/fastrelay-gen/examples/paths/router"
	"github.com/fastrelay/fastrelay-gen/internal/test/offloads"
	"github.com/fastrelay/fastrelay-gen/runtime"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// Lab is two routers with two links between them, and a host at each:
//
//	client eth0 ——— host s1 fast ——— fast s2 host ——— eth0 server
//	                        slow ——— slow
//
// What leaves from XDP passes no queue of its device, so with routers at XDP each link has a switch in its middle,
// whose ports have the queues.
type Lab struct {
	Client, Server *testnet.Host
	Routers        [2]Router // the client's and the server's

	ClientDev              *testnet.Dev
	Ends                   [2]*testnet.Dev // of the cables of the client's router, where taps see all that comes
	hook                   runtime.Hook
	ClientAddr, ServerAddr testnet.Addrs
}

// Router is one of the two routers.
type Router struct {
	Host             *testnet.Host
	Port, Fast, Slow *testnet.Dev // to its own host, and to the other router

	FastQueue, SlowQueue *testnet.Dev // whose queues the links have
}

// Rates are the bit rates of both links. A queue holds 64 full packets, as in bmv2, the software switch of the P4
// project; more are dropped.
const (
	FastRate = 6_000_000
	SlowRate = 5_000_000
	Queue    = 64 * 1514
)

func addrs(v4, v6 string) testnet.Addrs {
	return testnet.Addrs{V4: netip.MustParseAddr(v4), V6: netip.MustParseAddr(v6)}
}

// Addresses at the two ends of each cable: a host and its router, or the two routers.
var (
	hostAddrs = [2][2]testnet.Addrs{
		{addrs("198.51.100.2", "2001:db8:1::2"), addrs("198.51.100.1", "2001:db8:1::1")},
		{addrs("203.0.113.2", "2001:db8:2::2"), addrs("203.0.113.1", "2001:db8:2::1")},
	}
	fastAddrs = [2]testnet.Addrs{addrs("192.0.2.1", "2001:db8:f::1"), addrs("192.0.2.2", "2001:db8:f::2")}
	slowAddrs = [2]testnet.Addrs{addrs("192.0.2.65", "2001:db8:5::1"), addrs("192.0.2.66", "2001:db8:5::2")}
)

// New builds the network for routers at a hook. They forward nothing yet; no neighbour is known to anyone.
func New(n *testnet.Net, hook runtime.Hook) (*Lab, error) {
	l := &Lab{ClientAddr: hostAddrs[0][0], ServerAddr: hostAddrs[1][0], hook: hook}
	var errs []error
	for i, name := range []string{"client", "server"} {
		host, err := n.Host(name)
		if err != nil {
			return nil, err
		}
		r := &l.Routers[i]
		if r.Host, err = n.Host([]string{"s1", "s2"}[i]); err != nil {
			return nil, err
		}
		dev, port, err := n.Join(host, "eth0", r.Host, "host")
		if err != nil {
			return nil, err
		}
		r.Port = port
		own, gateway := hostAddrs[i][0], hostAddrs[i][1]
		errs = append(errs, assign(dev, own, 24), assign(port, gateway, 24),
			dev.AddRoute("0.0.0.0/0", gateway.V4.String()), dev.AddRoute("::/0", gateway.V6.String()),
			// Packets over the MTU, which a real host's network card would cut up, don't fit the links' queues.
			host.Run("ethtool", "-K", "eth0", "tso", "off", "gso", "off", "gro", "off"),
			r.Host.Run("ethtool", "-K", "host", "gro", "off"))
		if hook != runtime.HookTC { // it takes frames from XDP, and XDP its own
			errs = append(errs, offloads.GRO(dev, true), offloads.TxChecksum(dev, false))
		}
		if i == 0 {
			l.Client, l.ClientDev = host, dev
		} else {
			l.Server = host
		}
	}
	a, b := &l.Routers[0], &l.Routers[1]
	fast, err := l.link(n, "fast")
	if err != nil {
		return nil, err
	}
	slow, err := l.link(n, "slow")
	if err != nil {
		return nil, err
	}
	a.Fast, b.Fast, a.FastQueue, b.FastQueue = fast.ends[0], fast.ends[1], fast.queues[0], fast.queues[1]
	a.Slow, b.Slow, a.SlowQueue, b.SlowQueue = slow.ends[0], slow.ends[1], slow.queues[0], slow.queues[1]
	l.Ends = [2]*testnet.Dev{fast.near, slow.near}
	for i, r := range l.Routers {
		errs = append(errs, assign(r.Fast, fastAddrs[i], 26), assign(r.Slow, slowAddrs[i], 26), r.SetRates())
	}
	return l, errors.Join(errs...)
}

// link is a link between the routers.
type link struct {
	ends, queues [2]*testnet.Dev // at each router, and what has the queue to the other one
	near         *testnet.Dev    // the other end of the cable of the client's router
}

func (l *Lab) link(n *testnet.Net, name string) (k link, err error) {
	a, b := l.Routers[0].Host, l.Routers[1].Host
	if l.hook == runtime.HookTC {
		k.ends[0], k.ends[1], err = n.Join(a, name, b, name)
		k.queues, k.near = k.ends, k.ends[1]
		return k, err
	}
	between, err := n.Host(name + "-switch")
	if err != nil {
		return k, err
	}
	ip := func(args ...string) { err = errors.Join(err, between.Run("ip", append([]string{"link"}, args...)...)) }
	ip("add", "switch", "type", "bridge")
	ip("set", "switch", "up")
	for i, router := range []*testnet.Host{a, b} {
		end, port, joined := n.Join(router, name, between, fmt.Sprintf("port%d", i))
		if joined != nil {
			return k, joined
		}
		k.ends[i], k.queues[1-i] = end, port
		ip("set", port.Name, "master", "switch")
		err = errors.Join(err, offloads.GRO(port, true))
	}
	k.near = k.queues[1]
	return k, err
}

func assign(d *testnet.Dev, a testnet.Addrs, bits int) error {
	return errors.Join(
		d.AddAddr(netip.PrefixFrom(a.V4, bits).String()), d.AddAddr(netip.PrefixFrom(a.V6, 64).String()))
}

// SetRates gives both links of the router their rates and queues.
func (r Router) SetRates() error {
	return errors.Join(r.FastQueue.SetRate(FastRate, Queue), r.SlowQueue.SetRate(SlowRate, Queue))
}

// Use says which links carry packets between the routers.
type Use int

// Uses of the links.
const (
	BothPaths Use = iota
	FastOnly
	SlowOnly
)

// Routes returns the routes of a router, 0 or 1: one to its own host, and one to the other's. This is all that differs
// between the uses of links.
func Routes(of int, use Use) (routes []router.Route) {
	other := 1 - of
	for _, family := range []int{4, 6} {
		own, far := hostAddrs[of][0].Of(family), hostAddrs[other][0].Of(family)
		fast, slow := fastAddrs[other].Of(family), slowAddrs[other].Of(family)
		switch use {
		case FastOnly:
			slow = fast
		case SlowOnly:
			fast = slow
		}
		routes = append(routes,
			router.Route{Dst: netip.PrefixFrom(own, own.BitLen()), Fast: own, Slow: own},
			router.Route{Dst: netip.PrefixFrom(far, far.BitLen()), Fast: fast, Slow: slow})
	}
	return routes
}

// Start starts both routers.
func (l *Lab) Start(use Use, c router.Config) (routers [2]*router.Router, err error) {
	c.Interfaces, c.Hook = []string{"host", "fast", "slow"}, l.hook
	for i, r := range l.Routers {
		c.Routes = Routes(i, use)
		err := r.Host.Do(func() (err error) {
			routers[i], err = router.Start(c)
			return err
		})
		if err != nil {
			if i == 1 {
				err = errors.Join(err, routers[0].Close())
			}
			return routers, err
		}
	}
	return routers, nil
}
