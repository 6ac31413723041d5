package main

import (
	"errors"
	"fmt"
	"log/slog"
	"os"

	"github.com/fastrelay/fastrelay-gen/examples/tunnel/lab"
	"github.com/fastrelay/fastrelay-gen/internal/test/offloads"
	"github.com/fastrelay/fastrelay-gen/internal/test/testkernel"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// checkTunnels has packets go through tunnels, of which the relay is one end and the kernel's own device the other, in
// both directions. The programs are loaded once: to verify them takes most of the time.
func checkTunnels(rep *reporter, dir string) {
	list := lab.VXLAN()
	if _, err := os.Stat(testkernel.GuestModules); err == nil { // this machine's kernel may have no other devices
		list = lab.Tunnels
	}
	var n *testnet.Net
	var l *lab.Lab
	if !rep.check(dir, "tunnels", func() (_ string, err error) {
		if n, err = testnet.New(); err == nil {
			l, err = tunnels(n, list[0])
		}
		return "", err
	}) {
		return
	}
	for i, o := range list {
		rep.check(dir, o.String(), func() (string, error) {
			if i > 0 {
				if err := l.Next(o); err != nil {
					return "", err
				}
			}
			if o.Dummy {
				return "ping, UDP, TCP, too large packets", beside(l)
			}
			return "ping, UDP, TCP, GSO packets, headers, marks, options, fragments, own stack, too large packets",
				through(l)
		})
	}
	rep.check(dir, "tunnels end", func() (string, error) { return "", errors.Join(l.Gateway.Close(), n.Close()) })
}

// tunnels builds the network and starts the gateway.
func tunnels(n *testnet.Net, o lab.Options) (*lab.Lab, error) {
	l, err := lab.New(n, o)
	if err != nil {
		return nil, err
	}
	l.Logger = slog.New(slog.DiscardHandler)
	// What comes to the relay has complete checksums, as from a network, and is no GSO packet.
	err = errors.Join(offloads.TxChecksum(l.PeerDev, false), offloads.Segmentation(l.ClientDev, false))
	if err != nil {
		return nil, err
	}
	_, err = l.Start()
	return l, err
}

// beside sends packets through a tunnel beside a device that is only there for its MTU.
func beside(l *lab.Lab) error {
	for _, family := range l.Families() {
		if err := l.Stream(family, 20_000, 20); err != nil {
			return fmt.Errorf("IPv%d inside, stream: %w", family, err)
		}
		if err := l.TooLarge(family); err != nil {
			return fmt.Errorf("IPv%d inside, a packet that is too large: %w", family, err)
		}
	}
	return nil
}

// through sends packets through a tunnel.
func through(l *lab.Lab) error {
	device, err := l.Device()
	if err != nil {
		return err
	}
	if err := offloads.Segmentation(device, false); err != nil {
		return err
	}
	for _, family := range l.Families() {
		for _, c := range []struct {
			name  string
			check func(family int) error
		}{
			{"stream", func(family int) error { return l.Stream(family, 20_000, 20) }},
			{"headers outside", func(family int) error { return l.MarksIn(family, 3) }}, {"wrong headers", l.Planted},
			{"marks that come out", l.MarksOut}, {"options and fragments", l.Unusual},
			{"a packet for the gateway", l.OwnStack}, {"a packet that is too large", l.TooLarge},
		} {
			if err := c.check(family); err != nil {
				return fmt.Errorf("IPv%d inside, %s: %w", family, c.name, err)
			}
		}
	}
	return l.SuperPackets()
}
