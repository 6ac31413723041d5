package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go"
	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go/quicvarint"
	"github.com/fastrelay/fastrelay-gen/internal/test/selfsigned"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// relay forwards STREAM frames as they come from a publisher, out of order as well, to all subscribers.
type relay struct {
	socket    *net.UDPConn
	transport *quic.Transport
	listener  *quic.Listener
	protected bool

	mutex       sync.Mutex
	subscribers []*subscriber
	frames      int // from the publisher
}

func newRelay(host *testnet.Host, protected bool) (*relay, error) {
	socket, err := listen(host, port)
	if err != nil {
		return nil, err
	}
	secrets, err := selfsigned.Config(protocol)
	if err != nil {
		return nil, err
	}
	r := &relay{socket: socket, protected: protected}
	r.transport = &quic.Transport{
		Conn: socket, ConnectionIDLength: 8,
		// Each connection has hooks of its own; who connects is known by its address.
		ConnContext: func(ctx context.Context, client *quic.ClientInfo) (context.Context, error) {
			if ip := client.RemoteAddr.(*net.UDPAddr).IP.To4(); ip[2] == 0 {
				return quic.WithHooks(ctx, r.publisherHooks()), nil
			}
			s := &subscriber{relay: r, to: client.RemoteAddr, streams: map[quic.StreamID]*stream{}}
			r.mutex.Lock()
			r.subscribers = append(r.subscribers, s)
			r.mutex.Unlock()
			return quic.WithHooks(ctx, s.hooks()), nil
		},
	}
	r.listener, err = r.transport.Listen(secrets, &quic.Config{MaxIncomingUniStreams: 40})
	return r, err
}

func (r *relay) close() {
	_ = r.listener.Close()
	_ = r.transport.Close()
	_ = r.socket.Close()
}

// subscribe accepts the subscriber that has just connected, and shares packet numbers with its connection. Meanwhile
// the library sends notes of the relay's own.
func (r *relay) subscribe(ctx context.Context) error {
	conn, err := r.listener.Accept(ctx)
	if err != nil {
		return err
	}
	r.mutex.Lock()
	s := r.subscribers[len(r.subscribers)-1]
	r.mutex.Unlock()
	if err := conn.Outside().ShareNumbers(ctx, &s.numbers); err != nil {
		return err
	}
	s.locked(func() { s.conn = conn })
	go func() {
		ticker := time.NewTicker(10 * time.Millisecond)
		defer ticker.Stop()
		for n := range notes {
			out, err := conn.OpenUniStreamSync(ctx)
			if err != nil {
				return // the subscriber misses a note
			}
			fmt.Fprintf(out, "%s%d", note, n)
			_ = out.Close()
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
		}
	}()
	return nil
}

// publish accepts the publisher, of which hooks do the rest.
func (r *relay) publish(ctx context.Context) error {
	_, err := r.listener.Accept(ctx)
	return err
}

func (r *relay) publisherHooks() *quic.Hooks {
	return &quic.Hooks{
		NullProtection: !r.protected, SparseMaxStreams: true,
		StreamFrame: func(f quic.StreamFrame) {
			data := append([]byte(nil), f.Data...) // kept until all subscribers have it
			r.mutex.Lock()
			defer r.mutex.Unlock()
			r.frames++
			for _, s := range r.subscribers {
				s.forward(quic.StreamData{ID: f.ID, Offset: f.Offset, Data: data, Fin: f.Fin})
			}
		},
	}
}

func (r *relay) report(out io.Writer) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	fmt.Fprintf(out, "relay: %d STREAM frames came\n", r.frames)
	for i, s := range r.subscribers {
		s.mutex.Lock()
		fmt.Fprintf(out, "relay to subscriber %d: %d packets sent outside of the library, which sent %d itself, "+
			"with data of %d that were lost and of %d too large ones\n", i+1, s.sent,
			int(s.conn.ConnectionStats().PacketsSent)-s.sent, s.lost, s.tooLarge)
		s.mutex.Unlock()
	}
}

// subscriber is a connection that packets are sent on outside of the library.
type subscriber struct {
	relay   *relay
	to      net.Addr
	numbers atomic.Uint64 // the next packet number, the library's as well

	// What follows belongs together: a packet's number, its keys, its connection ID and its registration.
	mutex      sync.Mutex
	conn       *quic.Conn // from when numbers are shared
	sealer     *quic.Sealer
	cid        quic.ConnectionID
	closed     bool
	path       quic.PathState
	limits     quic.Limits
	credit     uint64 // bytes of the connection's flow control that were leased and not used
	waiting    []quic.StreamData
	registered int                  // bytes that the path's state doesn't have yet
	ring       []quic.OutsidePacket // sent, and not registered yet
	streams    map[quic.StreamID]*stream

	sent, lost, tooLarge int
}

// stream is one of the publisher's, on its way to a subscriber.
type stream struct {
	id    quic.StreamID // to the subscriber
	end   uint64        // the highest offset sent, which flow control counts
	limit uint64
}

func (s *subscriber) locked(f func()) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	f()
}

func (s *subscriber) hooks() *quic.Hooks {
	return &quic.Hooks{
		NullProtection: !s.relay.protected,
		Drain: func(register func(quic.OutsidePacket)) []quic.ACK {
			s.mutex.Lock()
			ring := s.ring
			s.ring = nil
			for _, p := range ring {
				s.registered += p.Size
			}
			s.mutex.Unlock()
			for _, p := range ring {
				register(p)
			}
			return nil
		},
		Lost: func(p quic.OutsidePacket) []quic.StreamData {
			s.locked(func() { s.lost++ })
			return []quic.StreamData{p.User.(quic.StreamData)}
		},
		Path: func(p quic.PathState) {
			s.locked(func() {
				s.path, s.registered = p, 0
				s.send()
			})
		},
		Limits: func(l quic.Limits) {
			s.locked(func() {
				s.limits = l
				s.send()
			})
		},
		StreamLimit: func(id quic.StreamID, limit uint64) {
			s.locked(func() {
				for _, stream := range s.streams {
					if stream.id == id {
						stream.limit = limit
					}
				}
				s.send()
			})
		},
		SendKeys: func(k *quic.Sealer) { s.locked(func() { s.sealer = k }) },
		ConnectionID: func(c quic.ConnectionIDChange) {
			if c.Event == quic.ConnectionIDActive {
				s.locked(func() { s.cid = c.ID })
			}
		},
		Closing: func(error) { s.locked(func() { s.closed = true }) },
	}
}

// forward sends data of a publisher's stream, as soon as it may be sent.
func (s *subscriber) forward(d quic.StreamData) {
	s.locked(func() {
		s.waiting = append(s.waiting, d)
		s.send()
	})
}

// send sends what waits, as far as congestion control and flow control allow.
func (s *subscriber) send() {
	if s.conn == nil { // numbers aren't shared yet
		return
	}
	n := 0
	for ; n < len(s.waiting) && !s.closed && s.sendOne(s.waiting[n]); n++ {
	}
	s.waiting = s.waiting[n:]
	if n > 0 {
		s.conn.Outside().Notify()
	}
}

// sendOne sends one frame, or returns false if it isn't allowed yet.
func (s *subscriber) sendOne(d quic.StreamData) bool {
	outside := s.conn.Outside()
	to := s.streams[d.ID]
	if to == nil {
		id, leased := outside.LeaseUniStreams(1)
		if leased == 0 {
			return false
		}
		to = &stream{id: id, limit: s.limits.MaxStreamData}
		s.streams[d.ID] = to
	}
	end := d.Offset + uint64(len(d.Data))
	if end > to.limit {
		return false
	}
	more := max(end, to.end) - to.end
	if more > s.credit {
		s.credit += outside.LeaseData(more - s.credit)
		if more > s.credit {
			return false
		}
	}
	d.ID = to.id
	packet := s.packet(d)
	size := len(packet) + 16
	if size > s.path.MaxPacketSize {
		s.credit -= more
		to.end = max(end, to.end)
		s.tooLarge++
		outside.Send(d)
		return true
	}
	inFlight := s.registered
	for _, p := range s.ring {
		inFlight += p.Size
	}
	if inFlight+size > s.path.Window {
		return false
	}
	s.credit -= more
	to.end = max(end, to.end)

	number := s.numbers.Add(1) - 1
	at := 1 + s.cid.Len()
	binary.BigEndian.PutUint32(packet[at:], uint32(number))
	packet = s.sealer.Seal(packet, at, number)
	s.ring = append(s.ring, quic.OutsidePacket{
		Number: number, Time: time.Now(), Size: len(packet), KeyPhase: s.sealer.Phase, User: d,
	})
	s.sent++
	// A packet that the socket doesn't take is lost, as on any link.
	if _, err := s.relay.socket.WriteTo(packet, s.to); errors.Is(err, net.ErrClosed) {
		s.closed = true
	}
	return true
}

// packet returns a 1-RTT packet (RFC 9000, section 17.3.1) with a STREAM frame, and room for its number and its tag.
func (s *subscriber) packet(d quic.StreamData) []byte {
	b := make([]byte, 0, 1500)
	b = append(append(b, 0x43), s.cid.Bytes()...) // a number of 4 bytes
	b = append(b, 0, 0, 0, 0)
	kind := byte(0x0e) // with an offset and a length
	if d.Fin {
		kind |= 1
	}
	b = quicvarint.Append(append(b, kind), uint64(d.ID))
	b = quicvarint.Append(b, d.Offset)
	b = quicvarint.Append(b, uint64(len(d.Data)))
	return append(b, d.Data...)
}
