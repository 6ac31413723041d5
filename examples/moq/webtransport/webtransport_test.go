package webtransport

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net/http"
	"net/netip"
	"reflect"
	"testing"
	"time"

	"github.com/fastrelay/fastrelay-gen/examples/moq/certificate"
	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go"
	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go/http3"
)

// soon is how long a test waits for what has to come.
const soon = 10 * time.Second

// serve starts a server, and returns a QUIC connection to it.
func serve(t *testing.T, s *Server) *quic.Conn {
	t.Helper()
	pair, err := certificate.Development(netip.MustParseAddr("127.0.0.1"))
	if err != nil {
		t.Fatal(err)
	}
	config := &quic.Config{EnableDatagrams: true, EnableStreamResetPartialDelivery: true}
	listener, err := quic.ListenAddr("127.0.0.1:0",
		&tls.Config{Certificates: []tls.Certificate{pair}, NextProtos: []string{http3.NextProtoH3}}, config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept(t.Context())
			if err != nil {
				return
			}
			go func() { _ = s.Serve(conn) }()
		}
	}()
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	conn, err := quic.DialAddr(ctx, listener.Addr().String(),
		&tls.Config{InsecureSkipVerify: true, NextProtos: []string{http3.NextProtoH3}}, config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.CloseWithError(0, "") })
	return conn
}

// pair returns both ends of a session.
func pair(t *testing.T) (client, server *Session) {
	t.Helper()
	sessions := make(chan *Session, 1)
	conn := serve(t, &Server{Protocols: []string{"b", "a"}, Handle: func(s *Session, r *http.Request) {
		if r.URL.Path != "/path" {
			t.Errorf("the path is %s", r.URL.Path)
		}
		sessions <- s
		<-s.Context().Done()
	}})
	client, err := Dial(t.Context(), conn, "https://localhost/path", "a", "b")
	if err != nil {
		t.Fatal(err)
	}
	server = <-sessions
	if client.Protocol() != "b" || server.Protocol() != "b" {
		t.Errorf("the protocols are %q and %q", client.Protocol(), server.Protocol())
	}
	return client, server
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestStreams sends on streams of both kinds, opened by both ends.
func TestStreams(t *testing.T) {
	client, server := pair(t)
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	data := bytes.Repeat([]byte("data"), 10_000)
	for _, ends := range [][2]*Session{{client, server}, {server, client}} {
		uni, err := ends[0].OpenUniStreamSync(ctx)
		check(t, err)
		go func() {
			_, err := uni.Write(data)
			if err = errors.Join(err, uni.Close()); err != nil {
				t.Error(err)
			}
		}()
		in, err := ends[1].AcceptUniStream(ctx)
		check(t, err)
		got, err := io.ReadAll(in)
		check(t, err)
		if !bytes.Equal(got, data) {
			t.Fatalf("%d bytes of %d came", len(got), len(data))
		}
		out, err := ends[0].OpenStream()
		check(t, err)
		_, err = out.Write([]byte("question"))
		check(t, err)
		back, err := ends[1].AcceptStream(ctx)
		check(t, err)
		check(t, out.Close())
		got, err = io.ReadAll(back)
		check(t, err)
		_, err = back.Write(append(got, '!'))
		check(t, err)
		check(t, back.Close())
		got, err = io.ReadAll(out)
		check(t, err)
		if string(got) != "question!" {
			t.Fatalf("the answer is %q", got)
		}
	}
}

// TestCodesOfStreams resets and stops streams: codes arrive as they were given.
func TestCodesOfStreams(t *testing.T) {
	client, server := pair(t)
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	const code = 1<<32 - 1
	out, err := client.OpenUniStreamSync(ctx)
	check(t, err)
	out.CancelWrite(code)
	in, err := server.AcceptUniStream(ctx) // a reset leaves the head of the stream
	check(t, err)
	_, err = in.Read(make([]byte, 1))
	var reset *quic.StreamError
	if !errors.As(err, &reset) || reset.ErrorCode != code || !reset.Remote {
		t.Fatal(err)
	}
	out, err = client.OpenUniStreamSync(ctx)
	check(t, err)
	in, err = server.AcceptUniStream(ctx)
	check(t, err)
	in.CancelRead(30)
	<-out.Context().Done()
	_, err = out.Write([]byte("x"))
	if !errors.As(err, &reset) || reset.ErrorCode != 30 || !reset.Remote {
		t.Fatal(err)
	}
}

// TestCodes maps all codes of a session to others, and back.
func TestCodes(t *testing.T) {
	for _, n := range []quic.StreamErrorCode{0, 1, 28, 29, 30, 31, 59, 60, 1 << 16, 1<<32 - 2, 1<<32 - 1} {
		w := toWire(n)
		if (w-0x21)%0x1f == 0 {
			t.Errorf("%#x becomes %#x, which HTTP/3 reserves", n, w)
		}
		if got := fromWire(w); got != n {
			t.Errorf("%#x becomes %#x, and then %#x", n, w, got)
		}
	}
	if toWire(0) != firstCode || toWire(1<<32-1) != lastCode || toWire(1<<40) != lastCode {
		t.Error("the range of codes isn't the draft's")
	}
	for _, w := range []quic.StreamErrorCode{0, 0x100, firstCode - 1, lastCode + 1, codeSessionGone} {
		if fromWire(w) != 0 {
			t.Errorf("%#x is taken for a session's code", w)
		}
	}
}

// TestDatagrams sends datagrams in both directions.
func TestDatagrams(t *testing.T) {
	client, server := pair(t)
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	for _, ends := range [][2]*Session{{client, server}, {server, client}} {
		check(t, ends[0].SendDatagram([]byte("datagram")))
		b, err := ends[1].ReceiveDatagram(ctx)
		check(t, err)
		if string(b) != "datagram" {
			t.Fatalf("%q", b)
		}
	}
}

// TestClose closes a session from either end: the other one learns why, and its streams end.
func TestClose(t *testing.T) {
	for _, byServer := range []bool{false, true} {
		a, b := pair(t)
		if byServer {
			a, b = b, a
		}
		ctx, cancel := context.WithTimeout(t.Context(), soon)
		defer cancel()
		out, err := b.OpenUniStreamSync(ctx)
		check(t, err)
		check(t, a.CloseWithError(77, "reason"))
		select {
		case <-b.Context().Done():
		case <-ctx.Done():
			t.Fatal("the session isn't closed")
		}
		want := &Error{Code: 77, Reason: "reason", Remote: true}
		if err := context.Cause(b.Context()); !reflect.DeepEqual(err, want) {
			t.Fatal(err)
		}
		if err := context.Cause(a.Context()); !reflect.DeepEqual(err, &Error{Code: 77, Reason: "reason"}) {
			t.Fatal(err)
		}
		select {
		case <-out.Context().Done():
		case <-ctx.Done():
			t.Fatal("the stream hasn't ended")
		}
		if _, err := b.OpenUniStreamSync(ctx); err == nil {
			t.Fatal("a session that is closed opens a stream")
		}
		if _, err := b.AcceptStream(ctx); !reflect.DeepEqual(err, want) {
			t.Fatal(err)
		}
		check(t, a.CloseWithError(1, "")) // changes nothing
		check(t, b.CloseWithError(1, ""))
	}
}

// TestRefused answers requests that don't become sessions.
func TestRefused(t *testing.T) {
	conn := serve(t, &Server{Protocols: []string{"a"}, Handle: func(s *Session, _ *http.Request) {
		<-s.Context().Done()
	}})
	h3 := (&http3.Transport{EnableDatagrams: true}).NewClientConn(conn)
	request := func(method, proto, protocols string) int {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), soon)
		defer cancel()
		r, err := http.NewRequestWithContext(ctx, method, "https://localhost/", nil)
		check(t, err)
		r.Proto = proto
		if protocols != "" {
			r.Header.Set(availableProtocols, protocols)
		}
		str, err := h3.OpenRequestStream(ctx)
		check(t, err)
		check(t, str.SendRequestHeader(r))
		answer, err := str.ReadResponse()
		check(t, err)
		return answer.StatusCode
	}
	for _, tt := range []struct {
		method, proto, protocols string
		want                     int
	}{
		{http.MethodGet, "", "", http.StatusNotFound},
		{http.MethodConnect, "websocket", "", http.StatusNotFound},
		{http.MethodConnect, "webtransport", "", http.StatusBadRequest},
		{http.MethodConnect, "webtransport", `"b"`, http.StatusBadRequest},
		{http.MethodConnect, "webtransport", `a`, http.StatusBadRequest},
		{http.MethodConnect, "webtransport-h3", `"b", "a";x="y,\"z"`, http.StatusOK},
		{http.MethodConnect, "webtransport", `"a"`, http.StatusTooManyRequests},
	} {
		if got := request(tt.method, tt.proto, tt.protocols); got != tt.want {
			t.Errorf("%s %s with protocols %s: %d, not %d", tt.method, tt.proto, tt.protocols, got, tt.want)
		}
	}
	_, err := Dial(t.Context(), serve(t, &Server{Protocols: []string{"a"}}), "https://localhost/", "b")
	if err == nil {
		t.Fatal("a session without a common protocol")
	}
}

// TestForeign closes a connection with streams of a session that can't be one, and refuses those of none.
func TestForeign(t *testing.T) {
	conn := serve(t, &Server{Protocols: []string{"a"}, Handle: func(s *Session, _ *http.Request) {
		<-s.Context().Done()
	}})
	_, err := Dial(t.Context(), conn, "https://localhost/", "a")
	check(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	str, err := conn.OpenUniStreamSync(ctx)
	check(t, err)
	_, err = str.Write([]byte{0x40, uniStream, 0x40, 0x84}) // session 132
	check(t, err)
	select {
	case <-str.Context().Done():
	case <-ctx.Done():
		t.Fatal("the stream isn't refused")
	}
	var stopped *quic.StreamError
	err = context.Cause(str.Context())
	if !errors.As(err, &stopped) || stopped.ErrorCode != codeBufferedStreamRejected {
		t.Fatal(err)
	}
	str, err = conn.OpenUniStreamSync(ctx)
	check(t, err)
	_, err = str.Write([]byte{0x40, uniStream, 1}) // a session whose ID is no request's
	check(t, err)
	select {
	case <-conn.Context().Done():
	case <-ctx.Done():
		t.Fatal("the connection isn't closed")
	}
	var closed *quic.ApplicationError
	if err := context.Cause(conn.Context()); !errors.As(err, &closed) || closed.ErrorCode != codeIDError {
		t.Fatal(err)
	}
}

// TestUnused closes a connection for which no session is asked.
func TestUnused(t *testing.T) {
	conn := serve(t, &Server{Protocols: []string{"a"}, Patience: time.Millisecond})
	select {
	case <-conn.Context().Done():
	case <-time.After(soon):
		t.Fatal("the connection isn't closed")
	}
	var closed *quic.ApplicationError
	if err := context.Cause(conn.Context()); !errors.As(err, &closed) || closed.ErrorCode != codeNoError {
		t.Fatal(err)
	}
}

// TestFields writes and parses lists of strings (RFC 9651).
func TestFields(t *testing.T) {
	for _, want := range [][]string{{"a"}, {"moqt-22", "moqt-18"}, {`quo"te`, `back\slash`, ""}} {
		if got := parseStrings([]string{formatStrings(want...)}); !reflect.DeepEqual(got, want) {
			t.Errorf("%q instead of %q", got, want)
		}
	}
	for _, tt := range []struct {
		lines []string
		want  []string
	}{
		{[]string{`"a"`, `"b"`}, []string{"a", "b"}},
		{[]string{`"a";q=1 ,  "b";x="c,d"`}, []string{"a", "b"}},
		{[]string{`"a`}, nil}, {[]string{`a`}, nil}, {[]string{`"a\b"`}, nil}, {[]string{"\"\x01\""}, nil},
		{[]string{`"a";x="b`}, nil}, {[]string{`"a\`}, nil}, {[]string{``}, nil}, {nil, nil},
	} {
		if got := parseStrings(tt.lines); !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%q: %q instead of %q", tt.lines, got, tt.want)
		}
	}
}
