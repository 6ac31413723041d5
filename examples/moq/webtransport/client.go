package webtransport

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go"
	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go/http3"
)

// Dial makes a session of a QUIC connection that has negotiated HTTP/3, by a request for an https URL. The server
// chooses one of the protocols.
func Dial(ctx context.Context, conn *quic.Conn, url string, protocols ...string) (_ *Session, err error) {
	c := &connection{quic: conn, accepted: make(chan struct{})}
	raw := (&http3.Transport{EnableDatagrams: true, AdditionalSettings: settings()}).NewRawClientConn(conn)
	go c.acceptUni(raw.HandleUnidirectionalStream)
	go func() {
		for {
			str, err := conn.AcceptStream(conn.Context())
			if err != nil {
				return
			}
			go c.bidi(str, raw.HandleBidirectionalStream)
		}
	}()
	select {
	case <-raw.ReceivedSettings():
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-conn.Context().Done():
		return nil, context.Cause(conn.Context())
	}
	if s := raw.Settings(); !s.EnableExtendedConnect || !s.EnableDatagrams {
		return nil, errors.New("the server doesn't offer extended CONNECT and datagrams, which WebTransport needs")
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodConnect, url, nil)
	if err != nil {
		return nil, err
	}
	r.Proto = "webtransport"
	r.Header.Set(availableProtocols, formatStrings(protocols...))
	str, err := raw.OpenRequestStream(ctx)
	if err != nil {
		return nil, err
	}
	if err := str.SendRequestHeader(r); err != nil {
		return nil, err
	}
	answer, err := str.ReadResponse()
	if err != nil {
		return nil, err
	}
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the server answered %s to a request for a WebTransport session", answer.Status)
	}
	chosen := parseStrings(answer.Header.Values(chosenProtocol))
	if len(protocols) > 0 && (len(chosen) != 1 || !slices.Contains(protocols, chosen[0])) {
		return nil, fmt.Errorf("the server chose protocol %q of %q", chosen, protocols)
	}
	c.session = newSession(conn, str, append(chosen, "")[0])
	close(c.accepted)
	return c.session, nil
}
