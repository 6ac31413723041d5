package relay

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fastrelay/fastrelay-gen/examples/quic/outside"
	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go"
)

// A sealed is a protected connection, on which the relay makes packets with objects itself where that is cheaper (see
// the package's comment). Its mutex is taken after all others but the library's.
type sealed struct {
	relay    *Relay
	sealer   outside.Sealer
	prepared atomic.Bool // the packet numbers are shared, or will be

	mu sync.Mutex
	outside.Sender
	ready  bool // packets may be sent
	ecn    quic.ECN
	piece  int  // the most data of a packet
	listed bool // the library doesn't know of some packets
}

// prepare has packets be sealed from soon on.
func (s *sealed) prepare(q *quic.Conn) {
	if q == nil || s.prepared.Swap(true) {
		return
	}
	go func() {
		if q.Outside().ShareNumbers(context.Background(), &s.sealer.Counter) == nil { // else the connection is closed
			s.mu.Lock()
			s.Library, s.ready = q.Outside(), true
			s.mu.Unlock()
		}
	}()
}

func (s *sealed) setPath(p quic.PathState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.Size, s.Room, s.ecn, s.piece = p.CongestionWindow, p.Window, p.ECN, p.MaxPacketSize-outside.Overhead
}

// send sends the next bytes of a stream; it returns how many. The rest is the library's.
func (s *sealed) send(stream subgroupStream, data []byte) (sent int) {
	s.mu.Lock()
	if !s.ready || s.piece <= 0 || 2*len(data) < s.piece || len(data) > outside.AtOnce*s.piece ||
		len(data)+(len(data)/s.piece+1)*outside.Overhead > s.Room-s.Waiting() {
		s.mu.Unlock()
		return 0
	}
	for sent < len(data) {
		part := data[sent:min(len(data), sent+s.piece)]
		f := stream.TakeNext(part)
		if f == nil {
			break
		}
		sent += len(part)
		p, ok := s.sealer.Send(f.Append, s.ecn)
		if !ok {
			f.Abandon()
			break
		}
		p.Frame = f
		s.Sent(p)
	}
	list := sent > 0 && !s.listed
	s.listed = s.listed || list
	s.mu.Unlock()
	if list {
		s.relay.rounds.add(s)
	}
	if sent > 0 {
		_ = s.relay.socket.StartRounds() // which fails if it is closed, and its connections with it
	}
	return sent
}

func (s *sealed) register(register func(quic.OutsidePacket)) []quic.ACK {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.Register(register)
}

// handOver has the library learn of packets; false: it knows of all.
func (s *sealed) handOver(now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.listed = s.HandOver(now, false)
	return s.listed
}

// While there are events of the kernel, they are read once in a round, which is short while a hop has to wait for its
// end. The library learns of sealed packets at the end of one, if it doesn't before.
const (
	round      = 4 * time.Millisecond
	shortRound = time.Millisecond
	quiet      = 100 * time.Millisecond // without anything to hand over
)

// rounds are the socket's.
type rounds struct {
	latest time.Time // when there was something to hand over

	mu     sync.Mutex
	sealed []*sealed
}

func (r *rounds) add(s *sealed) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sealed = append(r.sealed, s)
}

// handOver reports whether there is something left, or was.
func (r *rounds) handOver(now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	left := r.sealed[:0]
	for _, s := range r.sealed {
		if s.handOver(now) {
			left = append(left, s)
		}
	}
	some := len(r.sealed) > 0
	clear(r.sealed[len(left):])
	r.sealed = left
	return some
}

// endRound has connections learn of what was sent and received outside of the library.
func (r *Relay) endRound(now time.Time) (length time.Duration, wait bool) {
	some, urgent := r.kernel.handOver(now)
	some = r.rounds.handOver(now) || some
	switch {
	case some || r.rounds.latest.IsZero():
		r.rounds.latest = now
	case now.Sub(r.rounds.latest) > quiet:
		r.rounds.latest = time.Time{}
		return 0, false
	}
	wait = r.kernel != nil && r.kernel.alone.Load()
	if urgent {
		return shortRound, wait
	}
	return round, wait
}
