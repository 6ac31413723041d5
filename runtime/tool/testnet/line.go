package testnet

import (
	"errors"
	"net/netip"
)

// Addrs are one host's addresses on a cable, one of each family.
type Addrs struct{ V4, V6 netip.Addr }

// Of returns the address of the family that is asked for: 4 or 6.
func (a Addrs) Of(family int) netip.Addr {
	if family == 6 {
		return a.V6
	}
	return a.V4
}

// Line is the topology that most tests use:
//
//	client eth0 ——— eth0 relay eth1 ——— eth0 peer
//
// The relay is the router of both others.
type Line struct {
	Client, Relay, Peer                   *Host
	ClientDev, RelayIn, RelayOut, PeerDev *Dev

	ClientAddr, RelayInAddr, RelayOutAddr, PeerAddr Addrs
}

func addrs(v4, v6 string) Addrs { return Addrs{netip.MustParseAddr(v4), netip.MustParseAddr(v6)} }

// Line builds the line topology.
func (n *Net) Line() (*Line, error) {
	l := &Line{
		ClientAddr:   addrs("192.0.2.2", "2001:db8:1::2"),
		RelayInAddr:  addrs("192.0.2.1", "2001:db8:1::1"),
		RelayOutAddr: addrs("203.0.113.1", "2001:db8:2::1"),
		PeerAddr:     addrs("203.0.113.2", "2001:db8:2::2"),
	}
	var err error
	if err = n.hosts3(&l.Client, "client", &l.Relay, "relay", &l.Peer, "peer"); err != nil {
		return nil, err
	}
	if l.ClientDev, l.RelayIn, err = n.Join(l.Client, "eth0", l.Relay, "eth0"); err != nil {
		return nil, err
	}
	if l.RelayOut, l.PeerDev, err = n.Join(l.Relay, "eth1", l.Peer, "eth0"); err != nil {
		return nil, err
	}
	return l, errors.Join(
		l.ClientDev.addrs(l.ClientAddr), l.RelayIn.addrs(l.RelayInAddr),
		l.RelayOut.addrs(l.RelayOutAddr), l.PeerDev.addrs(l.PeerAddr),
		l.ClientDev.routes(l.RelayInAddr), l.PeerDev.routes(l.RelayOutAddr))
}

// Branch is a relay with a single device, which reaches client and peer through a router:
//
//	client eth0 ——— eth0 router eth1 ——— eth0 peer
//	                     eth2 ——— eth0 relay
type Branch struct {
	Client, Relay, Peer, Router  *Host
	ClientDev, RelayDev, PeerDev *Dev

	ClientAddr, RelayAddr, PeerAddr Addrs
}

// Branch builds the branch topology.
func (n *Net) Branch() (*Branch, error) {
	b := &Branch{
		ClientAddr: addrs("192.0.2.2", "2001:db8:1::2"),
		PeerAddr:   addrs("203.0.113.2", "2001:db8:2::2"),
		RelayAddr:  addrs("198.51.100.2", "2001:db8:3::2"),
	}
	var err error
	if err = n.hosts3(&b.Client, "client", &b.Relay, "relay", &b.Peer, "peer"); err != nil {
		return nil, err
	}
	if b.Router, err = n.Host("router"); err != nil {
		return nil, err
	}
	for _, c := range []struct {
		host        *Host
		dev         **Dev
		port        string
		own, router Addrs
	}{
		{b.Client, &b.ClientDev, "eth0", b.ClientAddr, addrs("192.0.2.1", "2001:db8:1::1")},
		{b.Peer, &b.PeerDev, "eth1", b.PeerAddr, addrs("203.0.113.1", "2001:db8:2::1")},
		{b.Relay, &b.RelayDev, "eth2", b.RelayAddr, addrs("198.51.100.1", "2001:db8:3::1")},
	} {
		dev, port, err := n.Join(c.host, "eth0", b.Router, c.port)
		if err != nil {
			return nil, err
		}
		*c.dev = dev
		if err := errors.Join(dev.addrs(c.own), port.addrs(c.router), dev.routes(c.router)); err != nil {
			return nil, err
		}
	}
	return b, b.Router.SetForwarding(true)
}

func (n *Net) hosts3(a **Host, aName string, b **Host, bName string, c **Host, cName string) (err error) {
	if *a, err = n.Host(aName); err != nil {
		return err
	}
	if *b, err = n.Host(bName); err != nil {
		return err
	}
	*c, err = n.Host(cName)
	return err
}

func (d *Dev) addrs(a Addrs) error {
	return errors.Join(d.AddAddr(a.V4.String()+"/24"), d.AddAddr(a.V6.String()+"/64"))
}

// routes makes router the default gateway.
func (d *Dev) routes(router Addrs) error {
	return errors.Join(d.AddRoute("0.0.0.0/0", router.V4.String()), d.AddRoute("::/0", router.V6.String()))
}

// Stub makes a network for a test, of a host and its router, and returns the host's only device, eth0. Its default
// routes lead to the router, whose link-layer address is known, so that each address has a next hop at once. The host
// is 192.0.2.1 and 2001:db8::1, the router 192.0.2.254 and 2001:db8::fe. It answers nothing.
func Stub(t TB) *Dev {
	t.Helper()
	n := Start(t)
	dev, err := n.stub()
	if err != nil {
		t.Fatal("testnet: ", err)
	}
	return dev
}

func (n *Net) stub() (*Dev, error) {
	host, err := n.Host("host")
	if err != nil {
		return nil, err
	}
	router, err := n.Host("router")
	if err != nil {
		return nil, err
	}
	dev, there, err := n.Join(host, "eth0", router, "eth0")
	if err != nil {
		return nil, err
	}
	gateway := addrs("192.0.2.254", "2001:db8::fe")
	return dev, errors.Join(dev.addrs(addrs("192.0.2.1", "2001:db8::1")), dev.routes(gateway),
		dev.AddNeighbour(gateway.V4, there.MAC), dev.AddNeighbour(gateway.V6, there.MAC))
}
