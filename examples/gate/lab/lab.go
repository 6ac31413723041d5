// Package lab has what the tests and the experiment of the gate need: a network with clients, a server and attackers,
// an HTTP/3 server with the gate, without it, and with the same rules in user space, clients at full speed, and
// attacks.
package lab

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/fastrelay/fastrelay-gen/internal/test/offloads"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// Port is where the server listens.
const Port = 443

// Clients is how many there are.
const Clients = 8

// Lab is a server between clients and attackers.
type Lab struct {
	Server, Clients, Attacker *testnet.Host

	// ServerDev leads to the clients, AttackedDev to the attackers.
	ServerDev, ClientDev, AttackedDev, AttackDev *testnet.Dev
}

// Addr is the server's address.
var Addr = netip.MustParseAddr("192.0.2.1")

// At is the server's address and port.
var At = netip.AddrPortFrom(Addr, Port)

// ClientAddr is the address of a client.
func ClientAddr(i int) netip.Addr { return netip.AddrFrom4([4]byte{192, 0, 2, byte(11 + i)}) }

// fewSources are the attackers' own addresses.
const fewSources = 8

func attackerAddr(i int) netip.Addr { return netip.AddrFrom4([4]byte{198, 51, 100, byte(11 + i)}) }

// New makes the network.
func New(n *testnet.Net) (*Lab, error) {
	l := &Lab{}
	for _, h := range []struct {
		host **testnet.Host
		name string
	}{{&l.Server, "server"}, {&l.Clients, "clients"}, {&l.Attacker, "attacker"}} {
		var err error
		if *h.host, err = n.Host(h.name); err != nil {
			return nil, err
		}
	}
	var err error
	if l.ClientDev, l.ServerDev, err = n.Join(l.Clients, "eth0", l.Server, "eth0"); err != nil {
		return nil, err
	}
	if l.AttackDev, l.AttackedDev, err = n.Join(l.Attacker, "eth0", l.Server, "eth1"); err != nil {
		return nil, err
	}
	attacker := netip.MustParseAddr("198.51.100.2")
	errs := []error{
		l.ServerDev.AddAddr(Addr.String() + "/24"), l.AttackedDev.AddAddr("198.51.100.1/24"),
		l.AttackDev.AddAddr(attacker.String() + "/24"),
		// What the server answers goes to the attackers' network, whatever source they say, and is lost there.
		l.AttackedDev.AddNeighbour(attacker, l.AttackDev.MAC), l.AttackedDev.AddRoute("0.0.0.0/0", attacker.String()),
		offloads.Segmentation(l.ClientDev, false), offloads.Segmentation(l.ServerDev, false),
		offloads.Segmentation(l.AttackedDev, false),
	}
	for i := range Clients {
		errs = append(errs, l.ClientDev.AddAddr(ClientAddr(i).String()+"/24"))
	}
	for i := range fewSources {
		errs = append(errs, l.AttackedDev.AddNeighbour(attackerAddr(i), l.AttackDev.MAC))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("gate lab: %w", err)
	}
	return l, nil
}
