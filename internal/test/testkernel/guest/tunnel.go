package main

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"

	"github.com/fastrelay/fastrelay-gen/examples/tunnel/gateway"
	"github.com/fastrelay/fastrelay-gen/examples/tunnel/lab"
	"github.com/fastrelay/fastrelay-gen/internal/test/testkernel"
	"github.com/fastrelay/fastrelay-gen/internal/test/testnet"
	"github.com/fastrelay/fastrelay-gen/runtime"
)

// tunnelDir is the relay whose tunnels end at the kernel's own devices.
const tunnelDir = "examples/tunnel"

// checkTunnels has packets go through tunnels, of which the relay is one end and the kernel's own device the other, in
// both directions.
func checkTunnels(rep *reporter, dir string) {
	list := []lab.Options{{Kind: gateway.VXLAN, Outside: 4}, {Kind: gateway.VXLAN, Outside: 6, Sums: true}}
	if _, err := os.Stat(testkernel.GuestModules); err == nil { // this machine's kernel may have no other devices
		list = append(list,
			lab.Options{Kind: gateway.GENEVE, Outside: 4}, lab.Options{Kind: gateway.GENEVE, Outside: 6},
			lab.Options{Kind: gateway.IPIP, Outside: 4}, lab.Options{Kind: gateway.IPIP, Outside: 6},
			lab.Options{Kind: gateway.FOU, Outside: 4, Inside: 4},
			lab.Options{Kind: gateway.FOU, Outside: 4, Inside: 6},
			lab.Options{Kind: gateway.FOU, Outside: 6, Inside: 4, Sums: true},
			lab.Options{Kind: gateway.FOU, Outside: 6, Inside: 6, Sums: true})
	}
	for _, o := range list {
		o.Alone = true
		rep.check(dir, o.String(), func() (string, error) { return through(o) })
	}
}

// through sends packets through a tunnel.
func through(o lab.Options) (note string, err error) {
	n, err := testnet.New()
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, n.Close()) }()
	l, err := lab.New(n, o)
	if err != nil {
		return "", err
	}
	// What comes to the relay has complete checksums, as from a network.
	if err := l.PeerDev.SetTxChecksum(false); err != nil {
		return "", err
	}
	l.Logger = slog.New(slog.DiscardHandler)
	g, err := l.Start()
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, g.Close()) }()
	for _, family := range o.Families() {
		for what, err := range map[string]error{"ping": l.Ping(family, 100), "UDP": l.UDP(family, 1001)} {
			if err != nil {
				return "", fmt.Errorf("IPv%d inside, %s: %w", family, what, errors.Join(err, counted(g, o.Kind)))
			}
		}
	}
	for _, p := range []*runtime.Program{g.In(o.Kind), g.Out(o.Kind)} {
		count, err := p.Count("sent")
		if want := 2 * len(o.Families()); err != nil || count.Packets < uint64(want) {
			return "", errors.Join(fmt.Errorf("%s has not sent %d packets", p.Name(), want), err, counted(g, o.Kind))
		}
	}
	return "ping and UDP through it", nil
}

// counted is an error that says what became of packets.
func counted(g *gateway.Gateway, k gateway.Kind) error {
	var list []string
	for _, p := range []*runtime.Program{g.In(k), g.Out(k)} {
		counts, err := p.Counts()
		if err != nil {
			return err
		}
		for i, c := range counts {
			if c.Packets > 0 {
				list = append(list, fmt.Sprintf("%s %s %d", p.Name(), p.Desc().Reason(i).Name, c.Packets))
			}
		}
	}
	return errors.New(strings.Join(list, ", "))
}
