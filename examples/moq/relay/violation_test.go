package relay

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/fastrelay/fastrelay-gen/examples/moq/wire"
	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go"
)

// TestViolations has peers violate the draft: each session is closed with the draft's code, and no other one is.
func TestViolations(t *testing.T) {
	unknownMessage := []byte{0x3f, 0, 0}
	for _, tt := range []struct {
		name string
		code wire.SessionCode
		raw  bool // it is one of QUIC alone
		http bool // it is one of WebTransport alone
		o    options
		do   func(p *peer)
	}{
		{name: "a request ID of the server's", code: wire.InvalidRequestID, do: func(p *peer) {
			p.call(&wire.Subscribe{RequestID: 1, Track: track0("x")})
		}},
		{name: "a request ID twice", code: wire.InvalidRequestID, do: func(p *peer) {
			p.subscribes(track0("x"), wire.Parameters{})
			p.nextID = 0
			p.subscribes(track0("x"), wire.Parameters{})
		}},
		{name: "a request ID twice, in an update", code: wire.InvalidRequestID, do: func(p *peer) {
			p.publishes("y").send(&wire.RequestUpdate{RequestID: 0})
		}},
		{name: "an answer as a request", code: wire.ProtocolViolation, do: func(p *peer) { p.call(&wire.RequestOK{}) }},
		{name: "a request on a request", code: wire.ProtocolViolation, do: func(p *peer) {
			p.publishes("y").send(&wire.Subscribe{RequestID: p.id(), Track: track0("x")})
		}},
		{name: "an answer to no request", code: wire.ProtocolViolation, do: func(p *peer) {
			c := p.call(&wire.Publish{RequestID: p.id(), Track: track0("x")})
			expect[*wire.RequestOK](c)
			c.send(&wire.RequestOK{})
		}},
		{name: "PUBLISH_DONE of a subscriber", code: wire.ProtocolViolation, do: func(p *peer) {
			c := p.call(&wire.Publish{RequestID: p.id(), Track: track0("z"), TrackAlias: 1})
			expect[*wire.RequestOK](c)
			c = p.subscribes(track0("z"), wire.Parameters{})
			expect[*wire.SubscribeOK](c)
			c.send(&wire.PublishDone{})
		}},
		{name: "PUBLISH_DONE in answer to SUBSCRIBE", code: wire.ProtocolViolation, do: func(p *peer) {
			p.publishes("y")
			p.subscribes(track0("y"), wire.Parameters{})
			c, _ := asked[*wire.Subscribe](p)
			c.send(&wire.PublishDone{})
		}},
		{name: "an alias of two tracks", code: wire.DuplicateTrackAlias, do: func(p *peer) {
			p.call(&wire.Publish{RequestID: p.id(), Track: track0("a"), TrackAlias: 3})
			p.call(&wire.Publish{RequestID: p.id(), Track: track0("b"), TrackAlias: 3})
		}},
		{name: "an unknown message", code: wire.ProtocolViolation, do: func(p *peer) {
			_, _ = p.publishes("y").stream.Write(unknownMessage)
		}},
		{name: "a message that isn't whole", code: wire.ProtocolViolation, do: func(p *peer) {
			c := p.publishes("y")
			_, _ = c.stream.Write([]byte{2, 0})
			_ = c.stream.Close()
		}},
		{name: "a request on the control stream", code: wire.ProtocolViolation, do: func(p *peer) {
			p.write(p.control, &wire.Subscribe{RequestID: p.id(), Track: track0("x")})
		}},
		{name: "SETUP twice", code: wire.ProtocolViolation, do: func(p *peer) { p.write(p.control, &wire.Setup{}) }},
		{name: "two control streams", code: wire.ProtocolViolation, do: func(p *peer) { p.writeUni(setupBytes()) }},
		{name: "a control stream that ends", code: wire.ProtocolViolation, do: func(p *peer) { _ = p.control.Close() }},
		{name: "a control stream that is reset", code: wire.ProtocolViolation, do: func(p *peer) {
			p.publishes("y") // SETUP has come
			p.control.CancelWrite(0)
		}},
		{name: "GOAWAY twice", code: wire.ProtocolViolation, do: func(p *peer) {
			p.write(p.control, &wire.GoAway{}, &wire.GoAway{})
		}},
		{name: "GOAWAY with a URI", code: wire.ProtocolViolation, do: func(p *peer) {
			p.write(p.control, &wire.GoAway{URI: "moqt://example.com"})
		}},
		{name: "GOAWAY twice on a request", code: wire.ProtocolViolation, do: func(p *peer) {
			p.publishes("y").send(&wire.GoAway{}, &wire.GoAway{})
		}},
		{name: "no SETUP", code: wire.ControlMessageTimeout, o: options{quiet: true}, do: func(*peer) {}},
		{name: "a path that isn't one", code: wire.MalformedPath, raw: true,
			o: options{setup: &wire.Setup{Path: wire.Some("/%zz")}}, do: func(*peer) {}},
		{name: "an authority that isn't one", code: wire.MalformedAuthority, raw: true,
			o: options{setup: &wire.Setup{Authority: wire.Some("a b")}}, do: func(*peer) {}},
		{name: "a path on WebTransport", code: wire.InvalidPath, http: true,
			o: options{setup: &wire.Setup{Path: wire.Some("/")}}, do: func(*peer) {}},
		{name: "an authority on WebTransport", code: wire.InvalidAuthority, http: true,
			o: options{setup: &wire.Setup{Authority: wire.Some("example.com")}}, do: func(*peer) {}},
		{name: "an unknown stream type", code: wire.ProtocolViolation, do: func(p *peer) { p.writeUni([]byte{1}) }},
		{name: "a fetch stream", code: wire.ProtocolViolation, do: func(p *peer) {
			p.writeUni(wire.AppendFetchHeader(nil, 0))
		}},
		{name: "an unknown datagram", code: wire.ProtocolViolation, do: func(p *peer) {
			_ = p.conn.SendDatagram([]byte{0x10, 0, 0})
		}},
		{name: "a stream that ends within an object", code: wire.ProtocolViolation, do: func(p *peer) {
			expect[*wire.RequestOK](p.call(&wire.Publish{RequestID: p.id(), Track: track0("x"), TrackAlias: 1}))
			f := p.opens(header(1, 0, 0))
			f.write(f.object(item{payload: make([]byte, 10)})[:5])
			f.close()
		}},
		{name: "an object of an unknown status", code: wire.ProtocolViolation, do: func(p *peer) {
			expect[*wire.RequestOK](p.call(&wire.Publish{RequestID: p.id(), Track: track0("x"), TrackAlias: 1}))
			p.opens(header(1, 0, 0)).write([]byte{0, 0, 1})
		}},
		{name: "an unknown alias of a token", code: wire.UnknownAuthTokenAlias, do: func(p *peer) {
			p.subscribes(track0("x"), wire.Parameters{Tokens: []wire.Token{{AliasType: wire.UseAlias, Alias: 1}}})
		}},
		{name: "an alias of a token twice", code: wire.DuplicateAuthTokenAlias, do: func(p *peer) {
			p.subscribes(track0("x"), wire.Parameters{Tokens: []wire.Token{
				{AliasType: wire.Register, Alias: 1, Value: "a"}, {AliasType: wire.Register, Alias: 1, Value: "b"}}})
		}},
		{name: "too many tokens", code: wire.AuthTokenCacheOverflow, do: func(p *peer) {
			p.subscribes(track0("x"), wire.Parameters{Tokens: []wire.Token{
				{AliasType: wire.Register, Alias: 1, Value: string(make([]byte, maxTokens))}}})
		}},
	} {
		for _, http := range []bool{false, true} {
			if tt.http && !http || tt.raw && http {
				continue
			}
			t.Run(fmt.Sprintf("%s/webtransport=%v", tt.name, http), func(t *testing.T) {
				r := start(t, func(c *Config) { c.Patience = 2 * time.Second })
				other := dial(t, r, options{})
				o := tt.o
				o.http = http
				p := dial(t, r, o)
				tt.do(p)
				p.closes(tt.code)
				other.none()
				same(t, r.Stats().FailedSessions, 1)
			})
		}
	}
}

func setupBytes() []byte {
	b, err := wire.Append(nil, wire.Draft22, &wire.Setup{})
	if err != nil {
		panic(err) // it has nothing in it
	}
	return b
}

// writeUni opens a unidirectional stream.
func (p *peer) writeUni(b []byte) sendStream {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), patience)
	defer cancel()
	s, err := p.conn.OpenUniStreamSync(ctx)
	if err != nil {
		p.t.Fatal(err)
	}
	if _, err := s.Write(b); err != nil {
		p.t.Fatal(err)
	}
	return s
}

// TestTolerated has peers do what the draft allows: sessions stay.
func TestTolerated(t *testing.T) {
	both(t, func(t *testing.T, o options) {
		r := start(t, nil)
		o.setup = &wire.Setup{Unknown: properties(t, wire.Property{Type: 0x9d, Bytes: []byte("grease")})}
		p := dial(t, r, o)
		p.writeUni(append(wire.AppendPaddingType(nil, false), make([]byte, 1000)...))
		if err := p.conn.SendDatagram(append(wire.AppendPaddingType(nil, true), make([]byte, 100)...)); err != nil {
			t.Fatal(err)
		}
		// Requests in any order, and one that is reset before it says what it is.
		p.nextID = 100
		p.none()
		p.nextID = 4
		p.none()
		c := p.call()
		c.cancel()
		// A stream of a track that isn't one is stopped (§11.3.1).
		f := p.opens(header(99, 0, 0)).send(items(0, 1, 10)...)
		select {
		case <-f.stream.Context().Done():
		case <-time.After(patience):
			t.Fatal("the stream isn't stopped")
		}
		if err := context.Cause(f.stream.Context()); !isRemote(err) {
			t.Fatal(err)
		}
		// GOAWAY, after which the relay sends no requests any more (§9.2).
		p.publishes("live")
		p.write(p.control, &wire.GoAway{})
		until(t, "GOAWAY has come", func() bool {
			r.mu.Lock()
			defer r.mu.Unlock()
			for s := range r.sessions {
				s.mu.Lock()
				defer s.mu.Unlock()
				return s.leaving
			}
			return false
		})
		p.subscribes(track0("live"), wire.Parameters{}).fails(wire.RequestInternalError)
		p.none()
		same(t, r.Stats().FailedSessions, 0)
	})
}

// TestSessionLimit refuses sessions beyond Config.Sessions.
func TestSessionLimit(t *testing.T) {
	r := start(t, func(c *Config) { c.Sessions = 1 })
	first := dial(t, r, options{})
	first.none()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	second, err := quic.DialAddr(ctx, r.Addr().String(),
		&tls.Config{InsecureSkipVerify: true, NextProtos: []string{wire.Draft22.ALPN()}},
		&quic.Config{EnableDatagrams: true})
	if err != nil {
		t.Fatal(err)
	}
	_, err = second.AcceptStream(ctx)
	var closed *quic.ApplicationError
	if !errors.As(err, &closed) || closed.ErrorCode != quic.ApplicationErrorCode(wire.SessionInternalError) {
		t.Fatal(err)
	}
	_ = first.conn.CloseWithError(0, "")
	until(t, "the first is gone", func() bool { return r.Stats().Sessions == 0 })
	dial(t, r, options{}).none()
}

// TestRequestLimit keeps a peer from having more requests open than Config.Requests.
func TestRequestLimit(t *testing.T) {
	r := start(t, func(c *Config) { c.Requests = 2 })
	p := dial(t, r, options{})
	first := p.publishes("a")
	p.publishes("b")
	if _, err := p.conn.OpenStream(); err == nil {
		t.Fatal("a third request is allowed")
	} else if _, ok := err.(*quic.StreamLimitReachedError); !ok {
		t.Fatal(err)
	}
	first.cancel()
	p.publishes("c") // as soon as the relay allows it
}
