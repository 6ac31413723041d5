// Package lab has the network that the tunnel example is tested and measured in.
package lab

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"

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
	Logger *slog.Logger   // of the gateway

	near, far end
}

// Options say which tunnel it is.
type Options struct {
	Kind    gateway.Kind
	Outside int  // IPv4 or IPv6: 4 or 6
	Inside  int  // of FOU: which one the device takes
	Sums    bool // UDP checksums outside; without, over IPv6 by RFC 6935
	Alone   bool // no device at the gateway
}

func (o Options) String() string {
	s := fmt.Sprintf("%v over IPv%d", o.Kind, o.Outside)
	if o.Kind == gateway.FOU {
		s = fmt.Sprintf("%v of IPv%d over IPv%d", o.Kind, o.Inside, o.Outside)
	}
	if o.Sums {
		s += " with checksums"
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
		Kind: o.Kind, Local: near.out, Remote: far.out, Sums: o.Sums,
		Networks: []netip.Prefix{netip.MustParsePrefix("10.9.0.0/24"), netip.MustParsePrefix("2001:db8:9::/64")},
	}
	if o.ethernet() {
		l.Tunnel.VNI, l.Tunnel.MAC, l.Tunnel.RemoteMAC = vni, near.mac, far.mac
	}
	if o.Kind == gateway.GENEVE {
		l.Tunnel.Option = Option
	}
	if !o.Alone {
		if err := line.Relay.Do(func() error { return addDevice(o, near, far) }); err != nil {
			return nil, err
		}
	}
	err = line.Peer.Do(func() error { return addDevice(o, far, near, "192.0.2.0/24", "2001:db8:1::/64") })
	return l, errors.Join(err, line.Relay.SetForwarding(true))
}

// Start starts the gateway.
func (l *Lab) Start() (g *gateway.Gateway, err error) {
	err = l.Relay.Do(func() (err error) {
		g, err = gateway.Start(gateway.Config{
			Outside: []string{l.RelayOut.Name}, Inside: []string{l.RelayIn.Name}, Tunnels: []gateway.Tunnel{l.Tunnel},
			Logger: l.Logger,
		})
		return err
	})
	return g, err
}
