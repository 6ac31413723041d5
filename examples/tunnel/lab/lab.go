// Package lab has the network that the tunnel example is tested and measured in.
package lab

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"

	"github.com/fastrelay/fastrelay-gen/examples/tunnel/gateway"
	"github.com/fastrelay/fastrelay-gen/internal/test/testnet"
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

	Tunnel gateway.Tunnel // as the gateway has it
	Inner  testnet.Addrs  // of the peer, inside the tunnel
	Own    testnet.Addrs  // of the gateway, inside the tunnel

	near, far end
}

// Options say which tunnel it is.
type Options struct {
	Kind    gateway.Kind
	Outside int  // IPv4 or IPv6: 4 or 6
	Sums    bool // UDP checksums outside; without, over IPv6 by RFC 6935
	Alone   bool // no device at the gateway
}

func (o Options) String() string {
	s := fmt.Sprintf("%v over IPv%d", o.Kind, o.Outside)
	if o.Sums {
		s += " with checksums"
	}
	return s
}

const vni = 4242

func addrs(v4, v6 string) testnet.Addrs {
	return testnet.Addrs{V4: netip.MustParseAddr(v4), V6: netip.MustParseAddr(v6)}
}

// New builds the network. The gateway isn't started yet.
func New(n *testnet.Net, o Options) (*Lab, error) {
	line, err := n.Line()
	if err != nil {
		return nil, err
	}
	near := end{
		line.RelayOutAddr.Of(o.Outside), addrs("10.9.0.1", "2001:db8:9::1"), net.HardwareAddr{2, 0, 0, 0, 0x10, 1},
	}
	far := end{
		line.PeerAddr.Of(o.Outside), addrs("10.9.0.2", "2001:db8:9::2"), net.HardwareAddr{2, 0, 0, 0, 0x10, 2},
	}
	l := &Lab{Line: line, Options: o, Inner: far.inner, Own: near.inner, near: near, far: far}
	l.Tunnel = gateway.Tunnel{
		Kind: o.Kind, Local: near.out, Remote: far.out, VNI: vni, MAC: near.mac, RemoteMAC: far.mac,
		Networks: []netip.Prefix{netip.MustParsePrefix("10.9.0.0/24"), netip.MustParsePrefix("2001:db8:9::/64")},
	}
	if !o.Alone {
		if err := line.Relay.Do(func() error { return addDevice(o, near, far) }); err != nil {
			return nil, err
		}
	}
	err = line.Peer.Do(func() error {
		if err := addDevice(o, far, near); err != nil {
			return err
		}
		link, err := netlink.LinkByName(Device)
		if err != nil {
			return err
		}
		return errors.Join(
			addRoute(link, "192.0.2.0/24", near.inner.V4), addRoute(link, "2001:db8:1::/64", near.inner.V6))
	})
	return l, errors.Join(err, line.Relay.SetForwarding(true))
}

// Start starts the gateway.
func (l *Lab) Start() (g *gateway.Gateway, err error) {
	err = l.Relay.Do(func() (err error) {
		g, err = gateway.Start(gateway.Config{
			Outside: []string{l.RelayOut.Name}, Inside: []string{l.RelayIn.Name}, Tunnels: []gateway.Tunnel{l.Tunnel},
		})
		return err
	})
	return g, err
}
