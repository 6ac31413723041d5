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
)

// Kind is a kind of tunnel.
type Kind uint8

// The kinds, as the spec has them.
const (
	VXLAN Kind = 1 + iota
	GENEVE
)

// Tunnel is a tunnel to another host.
type Tunnel struct {
	Kind          Kind
	Local, Remote netip.Addr // outside, of this end and the other one
	VNI           uint32

	// Inside, the link-layer addresses of this end and the other one. No one asks for them: both ends are told.
	MAC, RemoteMAC net.HardwareAddr

	Networks []netip.Prefix // what is at the other end
}

// Config says what a gateway does.
type Config struct {
	Outside []string // interfaces that packets in tunnels come in at
	Inside  []string // interfaces of the own networks
	Tunnels []Tunnel
	Logger  *slog.Logger // nil: slog.Default
}

// Gateway is a running gateway.
type Gateway struct {
	relay  *tunnelrelay.Relay
	follow *follower
}

// Start starts a gateway, in the network namespace of the calling thread. The kernel's own routes to the other ends and
// in the own networks hold, as they change.
func Start(c Config) (*Gateway, error) {
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	relay, err := tunnelrelay.Load(tunnelrelay.Options{Logger: c.Logger})
	if err != nil {
		return nil, err
	}
	g := &Gateway{relay: relay}
	for _, t := range c.Tunnels {
		if err == nil {
			err = g.Add(t)
		}
	}
	if err == nil {
		g.follow, err = follow(relay.Routes, c.Inside, c.Logger)
	}
	if err == nil {
		err = g.attach(c)
	}
	if err != nil {
		return nil, errors.Join(err, g.Close())
	}
	return g, nil
}

func (g *Gateway) attach(c Config) error {
	r := g.relay
	for _, name := range c.Outside {
		if err := errors.Join(r.VxlanIn.Attach(name), r.GeneveIn.Attach(name)); err != nil {
			return err
		}
	}
	return nil
}

// Close ends the gateway.
func (g *Gateway) Close() error {
	if g.follow != nil {
		g.follow.close()
	}
	return g.relay.Close()
}

// Relay returns the gateway's relay, for its counters.
func (g *Gateway) Relay() *tunnelrelay.Relay { return g.relay }

// Add adds a tunnel.
func (g *Gateway) Add(t Tunnel) error {
	if err := t.Check(); err != nil {
		return fmt.Errorf("tunnel to %v: %w", t.Remote, err)
	}
	key := tunnelrelay.PeersKey{Remote: t.Remote, Local: t.Local, Kind: uint8(t.Kind), VNI: t.VNI}
	if err := g.relay.Peers.Put(key, tunnelrelay.PeersRow{MAC: t.MAC}); err != nil {
		return fmt.Errorf("tunnel to %v: %w", t.Remote, err)
	}
	return nil
}

var kinds = map[Kind]string{VXLAN: "vxlan", GENEVE: "geneve"}

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
	case len(t.MAC) != 6 || len(t.RemoteMAC) != 6:
		return errors.New("mac or remote-mac, the link-layer addresses inside, is missing")
	}
	return nil
}
