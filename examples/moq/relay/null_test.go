package relay

import (
	"context"
	"crypto/tls"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fastrelay/fastrelay-gen/examples/moq/wire"
	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go"
)

// nullAt has relays at these addresses do without protection.
func nullAt(prefixes ...string) func(*Config) {
	return func(c *Config) {
		for _, p := range prefixes {
			c.Null = append(c.Null, netip.MustParsePrefix(p))
		}
	}
}

// TestNull has a relay above another do without protection if both are told so. Players, and publishers at the same
// address, are protected.
func TestNull(t *testing.T) {
	loopback, other := nullAt("192.0.2.0/24", "127.0.0.0/8"), nullAt("192.0.2.0/24")
	both(t, func(t *testing.T, o options) {
		for _, c := range []struct {
			name         string
			above, below func(*Config)
			null         bool
		}{
			{"both", loopback, loopback, true},
			{"one above", loopback, nil, false}, {"one below", nil, loopback, false},
			{"another above", other, loopback, false}, {"another below", loopback, other, false},
		} {
			t.Run(c.name, func(t *testing.T) {
				root := start(t, c.above)
				below := startBelow(t, o, c.below, root)
				p, a := dial(t, root, options{}), dial(t, below, options{})
				p.publishes("live")
				player := a.subscribes(track0("live"), wire.Parameters{})
				publisher(p, 77, track0("live"), wire.SubscribeOK{})
				expect[*wire.SubscribeOK](player)
				p.opens(header(77, 5, 0)).send(items(0, 3, 10_000)...).close()
				v := a.views()
				v.has(items(0, 3, 10_000)...)
				v.ends()
				same(t, below.Stats().Upstreams[0].Null, c.null)
				sessions := root.Stats().Open
				for i, s := range append(sessions, below.Stats().Open...) {
					if want := c.null && i == 0; s.Null != want { // the relay below is connected before others
						t.Errorf("null protection is %t of %+v", s.Null, s)
					}
				}
			})
		}
	})
}

// A mover is a socket that has another address when it is told to.
type mover struct{ now atomic.Pointer[net.UDPConn] }

func (m *mover) ReadFrom(b []byte) (int, net.Addr, error) {
	for {
		c := m.now.Load()
		n, from, err := c.ReadFrom(b)
		if err == nil || c == m.now.Load() {
			return n, from, err
		}
	}
}

func (m *mover) WriteTo(b []byte, to net.Addr) (int, error) { return m.now.Load().WriteTo(b, to) }
func (m *mover) Close() error                               { return m.now.Load().Close() }
func (m *mover) LocalAddr() net.Addr                        { return m.now.Load().LocalAddr() }
func (m *mover) SetDeadline(t time.Time) error              { return m.now.Load().SetDeadline(t) }
func (m *mover) SetReadDeadline(t time.Time) error          { return m.now.Load().SetReadDeadline(t) }
func (m *mover) SetWriteDeadline(t time.Time) error         { return m.now.Load().SetWriteDeadline(t) }

// TestNullMoved has peers without protection move: to where they may have none, or not.
func TestNullMoved(t *testing.T) {
	for prefix, stays := range map[string]bool{"127.0.0.0/8": true, "127.0.0.1/32": false} {
		t.Run(prefix, func(t *testing.T) {
			r := start(t, nullAt(prefix))
			var sockets [2]*net.UDPConn
			for i, host := range []string{"127.0.0.1", "127.0.0.2"} {
				var err error
				sockets[i], err = net.ListenUDP("udp4", &net.UDPAddr{IP: net.ParseIP(host)})
				if err != nil {
					t.Fatal(err)
				}
				defer sockets[i].Close()
			}
			m := &mover{}
			m.now.Store(sockets[0])
			from := &quic.Transport{Conn: m}
			defer from.Close()
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			config := &tls.Config{InsecureSkipVerify: true, NextProtos: []string{wire.Draft22.ALPN()}}
			ctx = quic.WithHooks(ctx, &quic.Hooks{NullProtection: true})
			q, err := from.Dial(ctx, net.UDPAddrFromAddrPort(r.Addr()), config,
				&quic.Config{EnableDatagrams: true, EnableStreamResetPartialDelivery: true})
			if err != nil {
				t.Fatal(err)
			}
			same(t, q.Outside().NullProtection(), true)
			control, err := q.OpenUniStream()
			if err == nil {
				_, err = control.Write([]byte{0xc0}) // the beginning of a type
			}
			if err != nil {
				t.Fatal(err)
			}
			until(t, "the relay has the session", func() bool {
				s := r.Stats().Open
				return len(s) == 1 && s[0].Null
			})
			_ = m.now.Swap(sockets[1]).Close()
			if _, err = control.Write([]byte{0}); err != nil {
				t.Fatal(err)
			}
			until(t, "the relay knows the new address", func() bool {
				s := r.Stats().Open
				return len(s) == 0 || s[0].Remote == sockets[1].LocalAddr().String()
			})
			if !stays {
				until(t, "the session is closed", func() bool { return r.Stats().Sessions == 0 })
			} else if err := context.Cause(q.Context()); err != nil || r.Stats().Sessions != 1 {
				t.Errorf("the session has ended: %v", err)
			}
		})
	}
}
