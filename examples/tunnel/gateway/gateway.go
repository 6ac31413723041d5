// Package gateway runs the relay of the tunnel example: one end of tunnels of several kinds.
package gateway

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/fastrelay/fastrelay-gen/examples/tunnel/tunnelrelay"
	"github.com/fastrelay/fastrelay-gen/runtime"
	"github.com/fastrelay/fastrelay-gen/runtime/control"
)

// Kind is a kind of tunnel.
type Kind uint8

// The kinds, as the spec has them.
const (
	VXLAN Kind = 1 + iota
	GENEVE
	IPIP
	FOU // IP in UDP, IPv4 at port 5555 and IPv6 at 5556
)

// Tunnel is a tunnel to another host.
type Tunnel struct {
	Kind          Kind
	Local, Remote netip.Addr // outside, of this end and the other one
	Sums          bool       // UDP checksums outside; without, over IPv6 by RFC 6935
	Networks      []netip.Prefix

	// Of VXLAN and GENEVE. Inside, no one is asked for the link-layer addresses of this end and the other one: both
	// ends are told.
	VNI            uint32
	MAC, RemoteMAC net.HardwareAddr
	Option         uint32 // of GENEVE
}

// Config says what a gateway does.
type Config struct {
	Outside []string     // interfaces that packets in tunnels come in at
	Inside  []string     // interfaces of the own networks
	Hook    runtime.Hook // whether packets in tunnels come to the relay at XDP first
	Tunnels []Tunnel
	Control control.Flags // how the relay is watched and operated
	Logger  *slog.Logger  // nil: slog.Default
}

// Gateway is a running gateway.
type Gateway struct {
	config   Config
	relay    *tunnelrelay.Relay
	follow   *follower
	attached map[Kind]bool
}

// Start starts a gateway, in the network namespace of the calling thread. The kernel's own routes to the other ends and
// in the own networks hold, as they change.
func Start(c Config) (*Gateway, error) {
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	relay, err := tunnelrelay.Load(tunnelrelay.Options{Logger: c.Logger, Control: c.Control.Control()})
	if err != nil {
		return nil, err
	}
	g := &Gateway{config: c, relay: relay, attached: map[Kind]bool{}}
	g.follow, err = follow(relay.Own, c.Logger)
	for _, t := range c.Tunnels {
		if err == nil {
			err = g.Add(t)
		}
	}
	if err != nil {
		return nil, errors.Join(err, g.Close())
	}
	return g, nil
}

// In returns the program that takes packets out of tunnels of a kind.
func (g *Gateway) In(k Kind) *runtime.AnyProgram {
	return g.relay.Runtime().Program(k.String() + "_in")
}

// Out returns the program that puts packets into tunnels of a kind.
func (g *Gateway) Out(k Kind) *runtime.AnyProgram {
	return g.relay.Runtime().Program(k.String() + "_out")
}

// attach attaches the programs of a kind.
func (g *Gateway) attach(k Kind) error {
	var errs []error
	for _, name := range g.config.Outside {
		errs = append(errs, g.In(k).AttachAt(name, runtime.AttachOptions{Hook: g.config.Hook}))
	}
	for _, name := range g.config.Inside {
		errs = append(errs, g.Out(k).Attach(name))
	}
	g.attached[k] = true
	return errors.Join(errs...)
}

// Close ends the gateway.
func (g *Gateway) Close() error {
	if g.follow != nil {
		g.follow.close()
	}
	return g.relay.Close()
}

// Add adds a tunnel. The first one of its kind has the programs of the kind attached, in the network namespace of the
// calling thread.
func (g *Gateway) Add(t Tunnel) error {
	if err := t.Check(); err != nil {
		return fmt.Errorf("tunnel to %v: %w", t.Remote, err)
	}
	own, mac := t.MAC, t.RemoteMAC
	if !t.ethernet() {
		own, mac = make(net.HardwareAddr, 6), make(net.HardwareAddr, 6)
	}
	key := tunnelrelay.PeersKey{Remote: t.Remote, Local: t.Local, Kind: uint8(t.Kind), VNI: t.VNI}
	err := g.relay.Peers.Put(key, tunnelrelay.PeersRow{Own: own, Zero: !t.Sums})
	for _, dst := range t.Networks {
		if err == nil {
			err = g.relay.Networks.Put(dst, tunnelrelay.NetworksRow{
				Kind: uint8(t.Kind), V6: t.Local.Is6(), Sums: t.Sums, Local: t.Local, Remote: t.Remote,
				VNI: t.VNI, Option: t.Option, Own: own, MAC: mac,
			})
		}
	}
	if err == nil && !g.attached[t.Kind] {
		err = g.attach(t.Kind)
	}
	if err != nil {
		return fmt.Errorf("tunnel to %v: %w", t.Remote, err)
	}
	return nil
}

var kinds = map[Kind]string{VXLAN: "vxlan", GENEVE: "geneve", IPIP: "ipip", FOU: "fou"}

func (k Kind) String() string { return kinds[k] }

// ParseKind reads the name of a kind.
func ParseKind(name string) (Kind, error) {
	for k, n := range kinds {
		if n == name {
			return k, nil
		}
	}
	names := slices.Sorted(maps.Values(kinds))
	return 0, fmt.Errorf("%q is no kind of tunnel; there are %s", name, strings.Join(names, ", "))
}

// Check reports what is missing, or doesn't fit.
func (t Tunnel) Check() error {
	switch {
	case t.Kind == 0:
		return errors.New("kind is missing")
	case !t.Local.IsValid() || !t.Remote.IsValid():
		return errors.New("local or remote is missing")
	case t.Local.Is4() != t.Remote.Is4():
		return errors.New("local and remote are of two IP versions")
	case t.ethernet() && (len(t.MAC) != 6 || len(t.RemoteMAC) != 6):
		return errors.New("mac or remote-mac, the link-layer addresses inside, is missing")
	case !t.ethernet() && (t.VNI != 0 || t.MAC != nil || t.RemoteMAC != nil):
		return fmt.Errorf("%v has no vni, mac and remote-mac", t.Kind)
	case t.Kind != GENEVE && t.Option != 0:
		return fmt.Errorf("%v has no option", t.Kind)
	}
	return nil
}

// ethernet reports whether frames are inside, and not IP packets.
func (t Tunnel) ethernet() bool { return t.Kind == VXLAN || t.Kind == GENEVE }
