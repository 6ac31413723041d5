package relay

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/fastrelay/fastrelay-gen/internal/test/testlink"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// TestSegments has so many players that what leaves for them at once leaves in segments of few datagrams.
func TestSegments(t *testing.T) {
	needs.Root(t)
	b := &bed{T: t, net: testnet.Start(t)}
	n, users := b.host("relay", "10.1.0.1"), b.host("users", "10.1.0.2")
	l := testlink.Start(t, b.net, n.host, "users", users.host, "eth0", testlink.Config{Seed: 1})
	b.check(errors.Join(l.A.AddAddr("10.1.0.1/24"), l.B.AddAddr("10.1.0.2/24"),
		l.A.AddNeighbour(users.at.Addr(), l.B.MAC), l.B.AddNeighbour(netip.MustParseAddr("10.1.0.1"), l.A.MAC)))
	b.start(n, func(c *Config) { c.Segments = true })
	users.at = n.at
	p := b.dial(users)
	p.publishes("live")
	var players []*peer
	for range 40 {
		players = append(players, b.dial(users))
	}
	follows(p, 7, track0("live"), players...)
	for g := range uint64(5) {
		passes(p, header(7, g, 0), players...)
	}
	until(t, "all segments have left", func() bool {
		s, err := n.socket.Segments().Stats()
		return err == nil && s.Segments > 1000 && s.Relayed+s.Returned == s.Segments && s.Failed == 0
	})
}
