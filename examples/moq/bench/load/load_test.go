package load

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/fastrelay/fastrelay-gen/examples/moq/certificate"
	"github.com/fastrelay/fastrelay-gen/examples/moq/relay"
	"github.com/fastrelay/fastrelay-gen/examples/moq/wire"
)

// Subscribers get all tracks, in both drafts, and one that joins gets its first object.
func TestLoad(t *testing.T) {
	for _, draft := range []wire.Draft{wire.Draft22, wire.Draft18} {
		t.Run(draft.ALPN(), func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			c := Config{Relay: startRelay(t), Draft: draft, Tracks: 3, Rate: 100, Size: 2000, Group: 5}
			p, err := Publish(ctx, c)
			if err != nil {
				t.Fatal(err)
			}
			var a Audience
			defer a.Close()
			for range 2 {
				if err := a.Join(ctx, c); err != nil {
					t.Fatal(err)
				}
			}
			for a.Objects() < 100 {
				if _, err := a.Watch(ctx, 10*time.Millisecond); err != nil && ctx.Err() != nil {
					t.Fatal(err)
				}
			}
			took, roundTrip, err := a.First(ctx, c)
			if err != nil || took <= 0 || roundTrip <= 0 {
				t.Error(took, roundTrip, err)
			}
			if err := p.Close(); err != nil {
				t.Error(err)
			}
			if read, sent := a.Objects(), p.Sent(); sent < 50 || read > 3*sent {
				t.Errorf("%d objects were read of %d that were sent", read, sent)
			}
		})
	}
}

// What the relay refuses is an error.
func TestRefused(t *testing.T) {
	c := Config{Relay: startRelay(t), Draft: wire.Draft22, Tracks: 1}
	var a Audience
	defer a.Close()
	if err := a.Join(t.Context(), c); err == nil {
		t.Error("a track without a publisher is subscribed to")
	}
}

func startRelay(t *testing.T) netip.AddrPort {
	pair, err := certificate.Development(netip.MustParseAddr("127.0.0.1"))
	if err != nil {
		t.Fatal(err)
	}
	r, err := relay.Start(relay.Config{
		Address: netip.MustParseAddrPort("127.0.0.1:0"), TLS: &tls.Config{Certificates: []tls.Certificate{pair}},
		Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
	})
	return r.Addr()
}
