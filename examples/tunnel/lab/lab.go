// Package lab has the network that the tunnel example is tested and measured in.
package lab

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"

	"github.com/fastrelay/fastrelay-gen/examples/tunnel/gateway"
	"github.com/fastrelay/fastrelay-gen/runtime"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// Lab is a gateway with a host in its own network, and another host with the kernel's own tunnel device:
//
//	client eth0 ——— eth0 relay eth1 ——— eth0 peer
//	                       (tun0) ===== tun0
//
// The device at the gateway takes what the relay passes to the stack.
type Lab struct {
	*testnet.Line
	Options

	Tunnel  gateway.Tunnel // as the gateway has it
	Inner   testnet.Addrs  // of the peer, inside the tunnel
	Own     testnet.Addrs  // of the gateway, inside the tunnel
	Logger  *slog.Logger   // of the gateway
	Hook    runtime.Hook   // of the gateway
	Gateway *gateway.Gateway

	near, far end
	tunnels   int // so many were made
}

// Options say which tunnel it is.
type Options struct {
	Kind    gateway.Kind
	Outside int  // IPv4 or IPv6: 4 or 6
	Inside  int  // of FOU: which one the device takes
	Sums    bool // UDP checksums outside; without, over IPv6 by RFC 6935
	Alone   bool // no device at the gateway
	Dummy   bool // the device at the gateway only has the tunnel's MTU
}

func (o Options) String() string {
	s := fmt.Sprintf("%v over IPv%d", o.Kind, o.Outside)
	if o.Kind == gateway.FOU {
		s = fmt.Sprintf("%v of IPv%d over IPv%d", o.Kind, o.Inside, o.Outside)
	}
	if o.Sums {
		s += " with checksums"
	}
	if o.Dummy {
		s += " beside a dummy device"
	}
	return s
}

// Families are the IP versions inside.
func (o Options) Families() []int {
	if o.Kind == gateway.FOU {
		return []int{o.Inside}
	}
	return []int{4, 6}
}

const vni = 4242

func addrs(v4, v6 string) testnet.Addrs {
	return testnet.Addrs{V4: netip.MustParseAddr(v4), V6: netip.MustParseAddr(v6)}
}

// Tunnels are those to the kernel's own devices. Any kernel of a server has the first ones, of VXLAN.
var Tunnels = []Options{
	{Kind: gateway.VXLAN, Outside: 4}, {Kind: gateway.VXLAN, Outside: 4, Sums: true},
	{Kind: gateway.VXLAN, Outside: 6}, {Kind: gateway.VXLAN, Outside: 6, Sums: true},
	{Kind: gateway.GENEVE, Outside: 4}, {Kind: gateway.GENEVE, Outside: 4, Sums: true},
	{Kind: gateway.GENEVE, Outside: 6}, {Kind: gateway.GENEVE, Outside: 6, Sums: true},
	{Kind: gateway.IPIP, Outside: 4}, {Kind: gateway.IPIP, Outside: 6},
	{Kind: gateway.FOU, Outside: 4, Inside: 4}, {Kind: gateway.FOU, Outside: 4, Inside: 4, Sums: true},
	{Kind: gateway.FOU, Outside: 4, Inside: 6}, {Kind: gateway.FOU, Outside: 4, Inside: 6, Sums: true},
	{Kind: gateway.FOU, Outside: 6, Inside: 4, Sums: true}, {Kind: gateway.FOU, Outside: 6, Inside: 6, Sums: true},
	{Kind: gateway.FOU, Outside: 4, Inside: 4, Dummy: true},
}

// VXLAN returns the tunnels of VXLAN.
func VXLAN() []Options {
	return slices.DeleteFunc(slices.Clone(Tunnels), func(o Options) bool { return o.Kind != gateway.VXLAN })
}

// New builds the network. The gateway isn't started yet.
func New(n *testnet.Net, o Options) (*Lab, error) {
	line, err := n.Line()
	if err != nil {
		return nil, err
	}
	l := &Lab{Line: line}
	return l, errors.Join(l.add(o), line.Relay.SetForwarding(true))
}

// add makes a tunnel: its devices, and how the gateway will have it. Each has networks of its own, so that no host
// remembers anything of an earlier one.
func (l *Lab) add(o Options) error {
	n := l.tunnels
	l.tunnels++
	inside := func(host int) testnet.Addrs {
		return addrs(fmt.Sprintf("10.9.%d.%d", n, host), fmt.Sprintf("2001:db8:9:%x::%d", n, host))
	}
	l.near = end{l.RelayOutAddr.Of(o.Outside), inside(1), net.HardwareAddr{2, 0, 0, 0, 0x10, 1}}
	l.far = end{l.PeerAddr.Of(o.Outside), inside(2), net.HardwareAddr{2, 0, 0, 0, 0x10, 2}}
	l.Options, l.Inner, l.Own = o, l.far.inner, l.near.inner
	l.Tunnel = gateway.Tunnel{
		Kind: o.Kind, Local: l.near.out, Remote: l.far.out, Sums: o.Sums,
		Networks: []netip.Prefix{
			netip.PrefixFrom(l.near.inner.V4, 24).Masked(), netip.PrefixFrom(l.near.inner.V6, 64).Masked(),
		},
	}
	if o.ethernet() {
		l.Tunnel.VNI, l.Tunnel.MAC, l.Tunnel.RemoteMAC = vni, l.near.mac, l.far.mac
	}
	if o.Kind == gateway.GENEVE {
		l.Tunnel.Option = Option
	}
	if !o.Alone {
		if err := l.Relay.Do(func() error {
			if o.Dummy {
				return addDummy(o, l.Tunnel.Networks)
			}
			return addDevice(o, l.near, l.far)
		}); err != nil {
			return err
		}
	}
	return l.Peer.Do(func() error { return addDevice(o, l.far, l.near, "192.0.2.0/24", "2001:db8:1::/64") })
}

// Next puts another tunnel in the place of this one, while the gateway runs.
func (l *Lab) Next(o Options) error {
	remove := func() error { return removeDevice(l.Options) }
	if err := l.Peer.Do(remove); err != nil {
		return err
	}
	if !l.Alone {
		if err := l.Relay.Do(remove); err != nil {
			return err
		}
	}
	if err := l.add(o); err != nil {
		return err
	}
	return l.Relay.Do(func() error { return l.Gateway.Add(l.Tunnel) })
}

// Start starts the gateway.
func (l *Lab) Start() (*gateway.Gateway, error) {
	err := l.Relay.Do(func() (err error) {
		l.Gateway, err = gateway.Start(gateway.Config{
			Outside: []string{l.RelayOut.Name}, Inside: []string{l.RelayIn.Name}, Tunnels: []gateway.Tunnel{l.Tunnel},
			Logger: l.Logger, Hook: l.Hook,
		})
		return err
	})
	return l.Gateway, err
}

// Device returns the tunnel device at the peer.
func (l *Lab) Device() (*testnet.Dev, error) {
	device := &testnet.Dev{Host: l.Peer, Name: Device}
	err := l.Peer.Do(func() error {
		dev, err := net.InterfaceByName(Device)
		if err == nil {
			device.Index = dev.Index
		}
		return err
	})
	return device, err
}
