package relay

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/fastrelay/fastrelay-gen/examples/moq/certificate"
	"github.com/fastrelay/fastrelay-gen/examples/moq/webtransport"
	"github.com/fastrelay/fastrelay-gen/examples/moq/wire"
	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go"
	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go/http3"
)

// patience is how long a test waits for what has to come.
const patience = 10 * time.Second

// start starts a relay on this host, which is closed with the test.
func start(t *testing.T, change func(*Config)) *Relay {
	t.Helper()
	pair, err := certificate.Development(netip.MustParseAddr("127.0.0.1"))
	if err != nil {
		t.Fatal(err)
	}
	config := Config{
		Address: netip.MustParseAddrPort("127.0.0.1:0"), TLS: &tls.Config{Certificates: []tls.Certificate{pair}},
		Logger: slog.New(slog.DiscardHandler),
	}
	if change != nil {
		change(&config)
	}
	r, err := Start(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
	})
	return r
}

// A peer is a client of the relay, with as little behaviour as a test needs.
type peer struct {
	t        *testing.T
	draft    wire.Draft
	conn     transport
	control  sendStream
	messages chan wire.Message // of the relay's control stream
	requests chan *call        // of the relay's
	streams  chan *viewed
	nextID   uint64
}

// options are what a peer differs in.
type options struct {
	http  bool
	draft wire.Draft // 22 unless it is said
	setup *wire.Setup
	quiet bool // it sends no SETUP
	lazy  bool // it accepts no streams until it is told to
	quic  quic.Config
	from  *quic.Transport // nil: one of its own
}

// both runs a test on QUIC and on WebTransport.
func both(t *testing.T, f func(t *testing.T, o options)) {
	t.Run("quic", func(t *testing.T) { f(t, options{}) })
	t.Run("webtransport", func(t *testing.T) { f(t, options{http: true}) })
}

// dial connects to the relay.
func dial(t *testing.T, r *Relay, o options) *peer {
	t.Helper()
	return dialAt(t, r.Addr(), o)
}

// dialAt connects to the relay at an address.
func dialAt(t *testing.T, address netip.AddrPort, o options) *peer {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if o.draft == 0 {
		o.draft = wire.Draft22
	}
	protocol := o.draft.ALPN()
	if o.http {
		protocol = http3.NextProtoH3
	}
	o.quic.EnableDatagrams, o.quic.EnableStreamResetPartialDelivery = true, true
	client := &tls.Config{InsecureSkipVerify: true, NextProtos: []string{protocol}}
	var q *quic.Conn
	var err error
	if o.from != nil {
		q, err = o.from.Dial(ctx, net.UDPAddrFromAddrPort(address), client, &o.quic)
	} else {
		q, err = quic.DialAddr(ctx, address.String(), client, &o.quic)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = q.CloseWithError(0, "") })
	p := &peer{
		t: t, draft: o.draft, conn: rawQUIC{q}, messages: make(chan wire.Message, 16), requests: make(chan *call, 64),
		streams: make(chan *viewed, 4096),
	}
	if o.http {
		s, err := webtransport.Dial(ctx, q, "https://"+address.String()+"/", o.draft.ALPN())
		if err != nil {
			t.Fatal(err)
		}
		p.conn = overHTTP{s}
	}
	if p.control, err = p.conn.OpenUniStreamSync(ctx); err != nil {
		t.Fatal(err)
	}
	if o.setup == nil {
		o.setup = &wire.Setup{Implementation: "test"}
	}
	if !o.quiet {
		p.write(p.control, o.setup)
	}
	if !o.lazy {
		go p.acceptUni()
	}
	go p.acceptRequests()
	return p
}

func (p *peer) acceptUni() {
	for {
		s, err := p.conn.AcceptUniStream(p.conn.Context())
		if err != nil {
			return
		}
		go func() {
			v := &viewed{t: p.t, stream: s}
			for {
				kind, err := wire.ParseStreamType(v.buf)
				switch {
				case kind == wire.StreamControl:
					p.readControl(io.MultiReader(bytes.NewReader(v.buf), s))
					return
				case err == nil:
					p.streams <- v
					return
				case !errors.Is(err, wire.ErrIncomplete) || v.more() != nil:
					return
				}
			}
		}()
	}
}

func (p *peer) readControl(r io.Reader) {
	reader := wire.NewReader(r, p.draft)
	for {
		m, err := reader.Next()
		if err != nil {
			return
		}
		p.messages <- m
	}
}

func (p *peer) acceptRequests() {
	for {
		s, err := p.conn.AcceptStream(p.conn.Context())
		if err != nil {
			return
		}
		c := &call{p, s, wire.NewReader(s, p.draft), nil}
		go func() {
			if c.first, err = c.reader.Next(); err == nil {
				p.requests <- c
			}
		}()
	}
}

func (p *peer) write(w io.Writer, messages ...wire.Message) {
	p.t.Helper()
	for _, m := range messages {
		b, err := wire.Append(nil, p.draft, m)
		if err != nil {
			p.t.Fatal(err)
		}
		if _, err := w.Write(b); err != nil {
			p.t.Fatal(err)
		}
	}
}

// id returns the next request ID.
func (p *peer) id() uint64 {
	p.nextID += 2
	return p.nextID - 2
}

// A call is a request, of the peer's or of the relay's.
type call struct {
	p      *peer
	stream bidiStream
	reader *wire.Reader
	first  wire.Message // of the relay's
}

// call sends a request.
func (p *peer) call(m ...wire.Message) *call {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), patience)
	defer cancel()
	s, err := p.conn.OpenStreamSync(ctx)
	if err != nil {
		p.t.Fatal(err)
	}
	p.write(s, m...)
	return &call{p, s, wire.NewReader(s, p.draft), nil}
}

func (c *call) send(m ...wire.Message) {
	c.p.t.Helper()
	c.p.write(c.stream, m...)
}

// cancel cancels a request (§6.4.2.3).
func (c *call) cancel() {
	c.stream.CancelWrite(quic.StreamErrorCode(wire.ResetCancelled))
	c.stream.CancelRead(quic.StreamErrorCode(wire.ResetCancelled))
}

// next returns the next message.
func (c *call) next() (wire.Message, error) {
	_ = c.stream.SetReadDeadline(time.Now().Add(patience))
	return c.reader.Next()
}

// expect returns the next message, which has to be of a type.
func expect[M wire.Message](c *call) M {
	c.p.t.Helper()
	m, err := c.next()
	if err != nil {
		c.p.t.Fatalf("%v instead of a message", err)
	}
	got, ok := m.(M)
	if !ok {
		c.p.t.Fatalf("%#v isn't a %T", m, got)
	}
	return got
}

// fails expects a REQUEST_ERROR, and the end of the stream.
func (c *call) fails(code wire.RequestCode) *wire.RequestError {
	c.p.t.Helper()
	e := expect[*wire.RequestError](c)
	if e.Code != code {
		c.p.t.Fatalf("the request failed with %#x (%s), not %#x", uint64(e.Code), e.Reason, uint64(code))
	}
	c.ends()
	return e
}

// ends expects the end of the stream.
func (c *call) ends() {
	c.p.t.Helper()
	if m, err := c.next(); !errors.Is(err, io.EOF) {
		c.p.t.Fatalf("%#v, %v instead of the stream's end", m, err)
	}
}

// asked returns the relay's next request, which has to be of a type.
func asked[M wire.Message](p *peer) (*call, M) {
	p.t.Helper()
	select {
	case c := <-p.requests:
		m, ok := c.first.(M)
		if !ok {
			p.t.Fatalf("the relay's request is %#v, not a %T", c.first, m)
		}
		return c, m
	case <-time.After(patience):
		p.t.Fatal("the relay has sent no request")
	case <-p.conn.Context().Done():
		p.t.Fatal(context.Cause(p.conn.Context()))
	}
	panic("unreachable")
}

// none expects that the relay has sent no request: all that it was to do before is done, as it has answered one.
func (p *peer) none() {
	p.t.Helper()
	c := p.call(&wire.TrackStatus{RequestID: p.id(), Track: track0("no such namespace")})
	c.fails(wire.DoesNotExist)
	select {
	case c := <-p.requests:
		p.t.Fatalf("the relay has sent a request: %#v", c.first)
	default:
	}
}

// closes expects that the relay closes the session with a code.
func (p *peer) closes(code wire.SessionCode) {
	p.t.Helper()
	select {
	case <-p.conn.Context().Done():
	case <-time.After(patience):
		p.t.Fatal("the session isn't closed")
	}
	var raw *quic.ApplicationError
	var http *webtransport.Error
	got := wire.SessionCode(1 << 62)
	switch err := context.Cause(p.conn.Context()); {
	case errors.As(err, &http):
		got = wire.SessionCode(http.Code)
	case errors.As(err, &raw):
		got = wire.SessionCode(raw.ErrorCode)
	default:
		p.t.Fatal(err)
	}
	if got != code {
		p.t.Fatalf("the session was closed with %#x, not %#x: %v", got, code, context.Cause(p.conn.Context()))
	}
}

// track0 is a track of a namespace with one field.
func track0(namespace string) wire.Track {
	return wire.Track{Namespace: wire.Namespace{namespace}, Name: "track"}
}

// publishes has a peer publish a namespace.
func (p *peer) publishes(namespace string) *call {
	p.t.Helper()
	c := p.call(&wire.PublishNamespace{RequestID: p.id(), Namespace: wire.Namespace{namespace}})
	expect[*wire.RequestOK](c)
	return c
}

// subscribes sends SUBSCRIBE.
func (p *peer) subscribes(t wire.Track, parameters wire.Parameters) *call {
	p.t.Helper()
	return p.call(&wire.Subscribe{RequestID: p.id(), Track: t, Parameters: parameters})
}

// An item is an object of a test.
type item struct {
	id         uint64
	properties wire.Properties
	status     wire.Status
	payload    []byte
}

// A flow is a subgroup stream of a peer's.
type flow struct {
	p      *peer
	stream sendStream
	writer wire.Subgroup
	sent   []byte
}

// opens opens a subgroup stream.
func (p *peer) opens(h wire.SubgroupHeader) *flow {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), patience)
	defer cancel()
	s, err := p.conn.OpenUniStreamSync(ctx)
	if err != nil {
		p.t.Fatal(err)
	}
	f := &flow{p: p, stream: s, writer: wire.Subgroup{Header: h}}
	f.write(h.Append(nil))
	return f
}

func (f *flow) write(b []byte) {
	f.p.t.Helper()
	f.sent = append(f.sent, b...)
	if _, err := f.stream.Write(b); err != nil {
		f.p.t.Fatal(err)
	}
}

// object returns an object as it is sent.
func (f *flow) object(i item) []byte {
	f.p.t.Helper()
	b, err := f.writer.Append(nil, wire.Object{
		ID: i.id, Properties: i.properties, Length: uint64(len(i.payload)), Status: i.status,
	})
	if err != nil {
		f.p.t.Fatal(err)
	}
	return append(b, i.payload...)
}

func (f *flow) send(items ...item) *flow {
	f.p.t.Helper()
	for _, i := range items {
		f.write(f.object(i))
	}
	return f
}

func (f *flow) close() {
	f.p.t.Helper()
	if err := f.stream.Close(); err != nil {
		f.p.t.Fatal(err)
	}
}

// A viewed is a subgroup stream as a peer gets it.
type viewed struct {
	t      *testing.T
	stream receiveStream
	buf    []byte
	parser wire.Subgroup
	header wire.SubgroupHeader
	all    []byte // all bytes that were read
}

// views returns the next subgroup stream, of which the header is read.
func (p *peer) views() *viewed {
	p.t.Helper()
	select {
	case v := <-p.streams:
		if _, ok := v.parse(); !ok {
			p.t.Fatal("a stream ends before its header does")
		}
		return v
	case <-time.After(patience):
		p.t.Fatal("no stream has come")
	case <-p.conn.Context().Done():
		p.t.Fatal(context.Cause(p.conn.Context()))
	}
	panic("unreachable")
}

// parse reads the header; ok is false if the stream ends before.
func (v *viewed) parse() (h wire.SubgroupHeader, ok bool) {
	for {
		h, n, err := wire.ParseSubgroupHeader(v.buf)
		if err == nil {
			v.header, v.parser.Header, v.buf = h, h, v.buf[n:]
			return h, true
		}
		if !errors.Is(err, wire.ErrIncomplete) || v.more() != nil {
			return h, false
		}
	}
}

func (v *viewed) more() error {
	var b [4096]byte
	_ = v.stream.SetReadDeadline(time.Now().Add(patience))
	n, err := v.stream.Read(b[:])
	v.buf, v.all = append(v.buf, b[:n]...), append(v.all, b[:n]...)
	if n > 0 {
		return nil
	}
	return err
}

// next returns the next object, or the stream's end as an error.
func (v *viewed) next() (item, error) {
	for {
		before := v.parser
		o, n, err := v.parser.Next(v.buf)
		if err == nil && uint64(len(v.buf)-n) >= o.Length {
			i := item{id: o.ID, status: o.Status, properties: o.Properties, payload: v.buf[n : n+int(o.Length)]}
			v.buf = v.buf[n+int(o.Length):]
			return i, nil
		}
		if err != nil && !errors.Is(err, wire.ErrIncomplete) {
			v.t.Fatal(err)
		}
		v.parser = before
		if err := v.more(); err != nil {
			return item{}, err
		}
	}
}

// has expects objects to come next.
func (v *viewed) has(items ...item) {
	v.t.Helper()
	for _, want := range items {
		got, err := v.next()
		if err != nil {
			v.t.Fatalf("%v instead of object %d", err, want.id)
		}
		if got.id != want.id || got.status != want.status || !bytes.Equal(got.payload, want.payload) ||
			!bytes.Equal(got.properties, want.properties) {
			v.t.Fatalf("object %+v instead of %+v", got, want)
		}
	}
}

// ends expects the end of the stream: a FIN.
func (v *viewed) ends() {
	v.t.Helper()
	if i, err := v.next(); !errors.Is(err, io.EOF) {
		v.t.Fatalf("object %+v, %v instead of the stream's end", i, err)
	}
}

// isReset expects that the stream is reset with one of some codes, after any objects.
func (v *viewed) isReset(codes ...wire.ResetCode) {
	v.t.Helper()
	for {
		_, err := v.next()
		var reset *quic.StreamError
		switch {
		case err == nil:
		case errors.As(err, &reset) && reset.Remote && slices.Contains(codes, wire.ResetCode(reset.ErrorCode)):
			return
		default:
			v.t.Fatalf("%v instead of a reset with one of %#x", err, codes)
		}
	}
}

// items makes objects with consecutive IDs, whose payloads have a size.
func items(first uint64, n, size int) []item {
	all := make([]item, n)
	for i := range all {
		all[i] = item{id: first + uint64(i), payload: bytes.Repeat([]byte{byte(first) + byte(i)}, size)}
	}
	return all
}

// properties makes properties.
func properties(t *testing.T, list ...wire.Property) wire.Properties {
	t.Helper()
	p, err := wire.NewProperties(list...)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// until waits until something holds, which another goroutine brings about.
func until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	timeout := time.After(patience)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-timeout:
			t.Fatalf("it isn't so that %s", what)
		}
	}
}

// same expects two values to be equal.
func same[V any](t *testing.T, got, want V) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("%+v instead of %+v", got, want)
	}
}

// isReset reports whether an error is the peer's reset of a stream, with a code.
func isReset(err error, code wire.ResetCode) bool {
	var reset *quic.StreamError
	return errors.As(err, &reset) && reset.Remote && wire.ResetCode(reset.ErrorCode) == code
}
