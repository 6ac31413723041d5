package lab

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// Star is the topology: publishers and receivers each behind a cable of their own of the SFU's host.
//
//	publisher eth0 ——— pub sfu r0 ——— eth0 receiver0
//	                           r1 ——— eth0 receiver1
type Star struct {
	Publisher, SFU *testnet.Host
	PublisherAddr  testnet.Addrs
	SFUAddr        testnet.Addrs // where publishers send to
	Receivers      []End
}

// End is a receiver's host.
type End struct {
	Host *testnet.Host
	Dev  *testnet.Dev
	Addr testnet.Addrs
}

// NewStar builds the topology with a number of receivers' hosts.
func NewStar(n *testnet.Net, receivers int) (*Star, error) {
	s := &Star{}
	var err error
	if s.SFU, err = n.Host("sfu"); err != nil {
		return nil, err
	}
	pub, err := s.join(n, "publisher", "pub", 0)
	if err != nil {
		return nil, err
	}
	s.Publisher, s.PublisherAddr = pub.Host, pub.Addr
	s.SFUAddr = sfuAddr(0)
	for i := range receivers {
		end, err := s.join(n, fmt.Sprintf("receiver%d", i), fmt.Sprintf("r%d", i), i+1)
		if err != nil {
			return nil, err
		}
		s.Receivers = append(s.Receivers, end)
	}
	return s, nil
}

func sfuAddr(i int) testnet.Addrs {
	return testnet.Addrs{
		V4: netip.AddrFrom4([4]byte{10, 77, byte(i), 1}), V6: netip.MustParseAddr(fmt.Sprintf("2001:db8:%x::1", i+1)),
	}
}

func (s *Star) join(n *testnet.Net, name, port string, i int) (End, error) {
	host, err := n.Host(name)
	if err != nil {
		return End{}, err
	}
	dev, own, err := n.Join(host, "eth0", s.SFU, port)
	if err != nil {
		return End{}, err
	}
	sfu := sfuAddr(i)
	addr := testnet.Addrs{V4: sfu.V4.Next(), V6: sfu.V6.Next()}
	return End{Host: host, Dev: dev, Addr: addr}, errors.Join(
		own.AddAddr(sfu.V4.String()+"/24"), own.AddAddr(sfu.V6.String()+"/64"),
		dev.AddAddr(addr.V4.String()+"/24"), dev.AddAddr(addr.V6.String()+"/64"),
		dev.AddRoute("0.0.0.0/0", sfu.V4.String()), dev.AddRoute("::/0", sfu.V6.String()))
}
