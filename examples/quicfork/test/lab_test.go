// Package test tests the fork's hooks through its exported API. Each patch, and each of the changes in _fork/without,
// names a test here that fails without the hook: cmd/hookcheck tries them.
package test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"flag"
	"fmt"
	"io"
	"math/big"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go"
	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go/quicvarint"
)

// patience is how long a test waits for what has to happen.
var patience = flag.Duration("patience", 20*time.Second, "how long a test waits for what has to happen")

// secrets returns a server's TLS configuration; a client may use it as well.
func secrets(t testing.TB) *tls.Config {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Config{
		Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}},
		NextProtos:   []string{"test"}, InsecureSkipVerify: true,
	}
}

// until waits for a condition.
func until(t testing.TB, what string, condition func() bool) {
	t.Helper()
	ticker := time.NewTicker(time.Millisecond)
	defer ticker.Stop()
	for end := time.After(*patience); !condition(); {
		select {
		case <-ticker.C:
		case <-end:
			t.Fatalf("not within %v: %s", *patience, what)
		}
	}
}

// A socket is a UDP socket with taps. It can be exchanged for another one, as a NAT does.
type socket struct {
	current atomic.Pointer[net.UDPConn]
	mutex   sync.Mutex
	out, in func(packet []byte) bool // false: the packet is lost
}

func listen(t testing.TB) *net.UDPConn {
	t.Helper()
	c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func newSocket(t testing.TB) *socket {
	s := &socket{}
	s.current.Store(listen(t))
	return s
}

// tap sets the taps.
func (s *socket) tap(out, in func([]byte) bool) {
	s.mutex.Lock()
	s.out, s.in = out, in
	s.mutex.Unlock()
}

func (s *socket) WriteTo(b []byte, to net.Addr) (int, error) {
	s.mutex.Lock()
	out := s.out
	s.mutex.Unlock()
	if out != nil && !out(b) {
		return len(b), nil
	}
	return s.current.Load().WriteTo(b, to)
}

func (s *socket) ReadFrom(b []byte) (int, net.Addr, error) {
	for {
		c := s.current.Load()
		n, from, err := c.ReadFrom(b)
		if err != nil && c != s.current.Load() {
			continue // the NAT forgot this one
		}
		s.mutex.Lock()
		in := s.in
		s.mutex.Unlock()
		if err != nil || in == nil || in(b[:n]) {
			return n, from, err
		}
	}
}

func (s *socket) Close() error                       { return s.current.Load().Close() }
func (s *socket) LocalAddr() net.Addr                { return s.current.Load().LocalAddr() }
func (s *socket) SetDeadline(t time.Time) error      { return s.current.Load().SetDeadline(t) }
func (s *socket) SetReadDeadline(t time.Time) error  { return s.current.Load().SetReadDeadline(t) }
func (s *socket) SetWriteDeadline(t time.Time) error { return s.current.Load().SetWriteDeadline(t) }

// A link is a connection, seen from both ends.
type link struct {
	server, client             *quic.Conn
	serverSocket, clientSocket *socket
	ctx                        context.Context
}

// An options says what the ends of a link want.
type options struct {
	server, client             *quic.Hooks
	serverConfig, clientConfig *quic.Config
	plain                      bool // UDP sockets without taps, so that the library can use what the kernel has
	resetKey                   *quic.StatelessResetKey
}

// connect makes a link, whose handshake is complete at both ends.
func connect(t testing.TB, o options) *link {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3**patience)
	t.Cleanup(cancel)
	l := &link{serverSocket: newSocket(t), clientSocket: newSocket(t), ctx: ctx}
	transport := func(s *socket) *quic.Transport {
		tr := &quic.Transport{Conn: s, ConnectionIDLength: 8}
		if o.plain {
			tr.Conn = s.current.Load()
		}
		return tr
	}
	st, ct := transport(l.serverSocket), transport(l.clientSocket)
	st.StatelessResetKey = o.resetKey
	if o.server != nil {
		st.ConnContext = func(ctx context.Context, _ *quic.ClientInfo) (context.Context, error) {
			return quic.WithHooks(ctx, o.server), nil
		}
	}
	listener, err := st.Listen(secrets(t), o.serverConfig)
	if err != nil {
		t.Fatal(err)
	}
	dial := ctx
	if o.client != nil {
		dial = quic.WithHooks(ctx, o.client)
	}
	if l.client, err = ct.Dial(dial, l.serverSocket.LocalAddr(), secrets(t), o.clientConfig); err != nil {
		t.Fatal(err)
	}
	if l.server, err = listener.Accept(ctx); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		l.client.CloseWithError(0, "")
		l.server.CloseWithError(0, "")
		ct.Close()
		st.Close()
	})
	<-l.server.HandshakeComplete()
	return l
}

// alive fails a test whose connection was closed.
func (l *link) alive(t testing.TB) {
	t.Helper()
	for name, c := range map[string]*quic.Conn{"server": l.server, "client": l.client} {
		if err := context.Cause(c.Context()); err != nil {
			t.Fatalf("the %s's connection is closed: %v", name, err)
		}
	}
}

// A sender sends packets on the server's connection outside of the library, as a program in the kernel, or a sender of
// sealed batches, would do.
type sender struct {
	hooks quic.Hooks
	link  *link

	counter atomic.Uint64

	mutex   sync.Mutex // the number, the keys, the connection ID and the registration belong together
	sealer  *quic.Sealer
	cid     quic.ConnectionID
	ring    []quic.OutsidePacket
	acks    []quic.ACK // that the library hasn't received
	state   quic.PathState
	limits  quic.Limits
	changes []quic.ConnectionIDChange
	acked   []quic.OutsidePacket
	lost    []quic.OutsidePacket
	lose    func(number uint64) bool // packets that aren't sent, though they are registered
	marked  quic.ECN
}

// newSender returns a sender whose hooks keep track of the connection, and send again what is lost.
func newSender() *sender {
	s := &sender{}
	s.hooks = quic.Hooks{
		NullProtection: true,
		Drain: func(register func(quic.OutsidePacket)) []quic.ACK {
			s.mutex.Lock()
			ring, acks := s.ring, s.acks
			s.ring, s.acks = nil, nil
			s.mutex.Unlock()
			for _, p := range ring {
				register(p)
			}
			return acks
		},
		Acked: func(p quic.OutsidePacket) { s.locked(func() { s.acked = append(s.acked, p) }) },
		Lost: func(p quic.OutsidePacket) []quic.StreamData {
			s.locked(func() { s.lost = append(s.lost, p) })
			if d, ok := p.User.(quic.StreamData); ok {
				return []quic.StreamData{d}
			}
			return nil
		},
		Path:     func(state quic.PathState) { s.locked(func() { s.state = state }) },
		Limits:   func(limits quic.Limits) { s.locked(func() { s.limits = limits }) },
		SendKeys: func(k *quic.Sealer) { s.locked(func() { s.sealer = k }) },
		ConnectionID: func(c quic.ConnectionIDChange) {
			s.locked(func() {
				s.changes = append(s.changes, c)
				if c.Event == quic.ConnectionIDActive {
					s.cid = c.ID
				}
			})
		},
	}
	return s
}

// handOver has the library receive ACKs.
func (s *sender) handOver(acks ...quic.ACK) {
	s.locked(func() { s.acks = append(s.acks, acks...) })
	s.link.server.Outside().Notify()
}

func (s *sender) locked(f func()) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	f()
}

// start connects a sender's server, and makes it share its packet numbers.
func (s *sender) start(t testing.TB, o options) *link {
	t.Helper()
	o.server = &s.hooks
	s.link = connect(t, o)
	if err := s.link.server.Outside().ShareNumbers(s.link.ctx, &s.counter); err != nil {
		t.Fatal(err)
	}
	return s.link
}

// packet sends a packet with a payload.
func (s *sender) packet(payload []byte, user any) { s.put(payload, quic.OutsidePacket{User: user}) }

// taken sends a frame that was taken from a stream.
func (s *sender) taken(f *quic.OutsideFrame) { s.put(f.Append(nil), quic.OutsidePacket{Frame: f}) }

func (s *sender) put(payload []byte, p quic.OutsidePacket) {
	s.mutex.Lock()
	number := s.counter.Add(1) - 1
	b := make([]byte, 0, 1500)
	b = append(append(b, 0x43), s.cid.Bytes()...)
	at := len(b)
	b = append(binary.BigEndian.AppendUint32(b, uint32(number)), payload...)
	b = s.sealer.Seal(b, at, number)
	p.Number, p.Time, p.Size, p.KeyPhase, p.ECN = number, time.Now(), len(b), s.sealer.Phase, s.marked
	s.ring = append(s.ring, p)
	lose := s.lose != nil && s.lose(number)
	s.mutex.Unlock()
	if !lose {
		s.link.serverSocket.current.Load().WriteTo(b, s.link.server.RemoteAddr())
	}
}

// stream sends a STREAM frame.
func (s *sender) stream(d quic.StreamData) { s.packet(streamFrame(d), d) }

func streamFrame(d quic.StreamData) []byte {
	kind := byte(0x0e)
	if d.Fin {
		kind |= 1
	}
	b := quicvarint.Append([]byte{kind}, uint64(d.ID))
	b = quicvarint.Append(b, d.Offset)
	b = quicvarint.Append(b, uint64(len(d.Data)))
	return append(b, d.Data...)
}

// room waits until the congestion window has room for a packet.
func (s *sender) room(t testing.TB) {
	t.Helper()
	has := func() (room bool) {
		s.locked(func() {
			waiting := 0
			for _, p := range s.ring {
				waiting += p.Size
			}
			room = waiting+1500 < s.state.Window
		})
		return room
	}
	if has() {
		return
	}
	s.link.server.Outside().Notify()
	until(t, "room in the congestion window", has)
}

// object is what a test sends on a stream: n bytes that say which.
func object(id quic.StreamID, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(uint64(id)*31 + uint64(i)/7*3)
	}
	return b
}

// receive accepts n streams, and checks that each is a whole object.
func receive(ctx context.Context, c *quic.Conn, n, size int) error {
	for range n {
		in, err := c.AcceptUniStream(ctx)
		if err != nil {
			return fmt.Errorf("%w; the connection: %w", err, context.Cause(c.Context()))
		}
		got, err := io.ReadAll(in)
		if err != nil {
			return err
		}
		if string(got) != string(object(in.StreamID(), size)) {
			return fmt.Errorf("stream %d isn't whole: %d bytes", in.StreamID(), len(got))
		}
	}
	return nil
}

// send sends objects on leased streams, in packets of at most 1,000 bytes of data.
func (s *sender) send(t testing.TB, streams, size int) {
	t.Helper()
	first, n := s.link.server.Outside().LeaseUniStreams(streams)
	if n != streams {
		t.Fatalf("%d streams were leased, not %d", n, streams)
	}
	if got := s.link.server.Outside().LeaseData(uint64(streams * size)); got != uint64(streams*size) {
		t.Fatalf("%d bytes were leased, not %d", got, streams*size)
	}
	for at := 0; at < size; at += 1000 {
		for i := range streams {
			id := first + quic.StreamID(4*i)
			end := min(at+1000, size)
			s.room(t)
			s.stream(quic.StreamData{
				ID: id, Offset: uint64(at), Data: object(id, size)[at:end], Fin: end == size,
			})
		}
		s.link.server.Outside().Notify()
	}
}

// wide is a configuration whose limits aren't in the way.
func wide() *quic.Config {
	return &quic.Config{
		MaxIncomingUniStreams: 1 << 16, EnableDatagrams: true,
		InitialStreamReceiveWindow: 1 << 24, MaxStreamReceiveWindow: 1 << 24,
		InitialConnectionReceiveWindow: 1 << 28, MaxConnectionReceiveWindow: 1 << 28,
	}
}

func withHooks(h *quic.Hooks) func(context.Context, *quic.ClientInfo) (context.Context, error) {
	return func(ctx context.Context, _ *quic.ClientInfo) (context.Context, error) {
		return quic.WithHooks(ctx, h), nil
	}
}
