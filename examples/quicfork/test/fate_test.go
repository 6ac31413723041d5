package test

import (
	"errors"
	"io"
	"sync/atomic"
	"testing"

	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go"
)

var nullClient = &quic.Hooks{NullProtection: true}

// TestNotify has a sender's packets registered though nothing else happens on the connection.
func TestNotify(t *testing.T) {
	s := newSender()
	l := s.start(t, options{client: nullClient})
	l.serverSocket.tap(nil, func([]byte) bool { return false }) // no ACK arrives
	s.packet([]byte{0x01}, nil)                                 // PING
	l.server.Outside().Notify()
	until(t, "the packet was registered", func() (empty bool) {
		s.locked(func() { empty = len(s.ring) == 0 })
		return empty
	})
}

// TestDrainBeforeACK leaves it to ACKs that a sender's packets are registered.
func TestDrainBeforeACK(t *testing.T) {
	s := newSender()
	l := s.start(t, options{client: nullClient})
	for range 20 {
		var sent uint64
		s.locked(func() { sent = s.counter.Load() })
		s.packet([]byte{0x01}, nil)
		until(t, "the packet is acknowledged", func() (acked bool) {
			s.locked(func() { acked = s.state.LargestAcked >= int64(sent) })
			return acked || l.server.Context().Err() != nil
		})
		l.alive(t)
	}
}

// TestLost loses every seventh packet of a sender's. The library sends them again; they are counted once.
func TestLost(t *testing.T) {
	s := newSender()
	var dropped atomic.Int64
	s.lose = func(n uint64) bool {
		if n%7 == 3 {
			dropped.Add(1)
			return true
		}
		return false
	}
	l := s.start(t, options{client: nullClient, clientConfig: wide()})
	const streams, size = 50, 20000
	done := make(chan error, 1)
	go func() { done <- receive(l.ctx, l.client, streams, size) }()
	s.send(t, streams, size)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	until(t, "the fate of each packet", func() (all bool) {
		l.server.Outside().Notify()
		s.locked(func() { all = len(s.acked)+len(s.lost) == streams*size/1000 })
		return all
	})
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if lost := int64(len(s.lost)); lost < dropped.Load() {
		t.Errorf("%d packets were dropped, %d were reported", dropped.Load(), lost)
	}
	if stats := l.server.ConnectionStats(); stats.CongestionWindow == 0 || stats.PacketsSent < streams*size/1000 {
		t.Errorf("the statistics don't count a sender's packets: %+v", stats)
	}
	l.alive(t)
}

// TestSend leaves all of a leased stream to the library, and parts of others.
func TestSend(t *testing.T) {
	s := newSender()
	l := s.start(t, options{client: nullClient, clientConfig: wide()})
	const size = 30000
	first, _ := l.server.Outside().LeaseUniStreams(20)
	l.server.Outside().LeaseData(20 * size)
	done := make(chan error, 1)
	go func() { done <- receive(l.ctx, l.client, 20, size) }()
	for i := range 20 {
		id := first + quic.StreamID(4*i)
		data := object(id, size)
		for at := 0; at < size; at += 1000 {
			d := quic.StreamData{ID: id, Offset: uint64(at), Data: data[at : at+1000], Fin: at+1000 == size, Urgency: 5}
			if i%2 == 0 || at%3000 == 0 {
				l.server.Outside().Send(d)
				continue
			}
			s.room(t)
			s.stream(d)
		}
	}
	l.server.Outside().Notify()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	l.alive(t)
}

// TestReset abandons leased streams: one that the sender began, one that the library began, and one without data.
func TestReset(t *testing.T) {
	s := newSender()
	l := s.start(t, options{client: nullClient, clientConfig: wide()})
	first, _ := l.server.Outside().LeaseUniStreams(3)
	l.server.Outside().LeaseData(2000)
	s.stream(quic.StreamData{ID: first, Data: object(first, 1000)})
	l.server.Outside().Send(quic.StreamData{ID: first + 4, Data: object(first+4, 1000)})
	for i := range 3 {
		finalSize := uint64(1000)
		if i == 2 {
			finalSize = 0
		}
		l.server.Outside().Reset(first+quic.StreamID(4*i), quic.StreamErrorCode(40+i), finalSize)
	}
	for i := range 3 {
		in, err := l.client.AcceptUniStream(l.ctx)
		if err != nil {
			t.Fatal(err)
		}
		_, err = io.ReadAll(in)
		var e *quic.StreamError
		if !errors.As(err, &e) || e.ErrorCode != quic.StreamErrorCode(40+i) || !e.Remote {
			t.Errorf("stream %d: %v", in.StreamID(), err)
		}
	}
	l.alive(t)
}

// TestDatagramsOutside sends DATAGRAM frames outside, some of which are lost: nothing is sent again.
func TestDatagramsOutside(t *testing.T) {
	s := newSender()
	s.lose = func(n uint64) bool { return n%5 == 0 }
	l := s.start(t, options{client: nullClient, clientConfig: wide(), serverConfig: wide()})
	const n = 100
	got := make(chan error, 1)
	var received atomic.Int64
	go func() {
		for {
			if _, err := l.client.ReceiveDatagram(l.ctx); err != nil {
				got <- err
				return
			}
			received.Add(1)
		}
	}()
	for range n {
		s.room(t)
		s.packet(append([]byte{0x30}, "datagram"...), nil)
		l.server.Outside().Notify()
	}
	until(t, "the fate of each packet", func() (all bool) {
		l.server.Outside().Notify()
		s.locked(func() { all = len(s.acked)+len(s.lost) == n })
		return all
	})
	l.alive(t)
	if r := received.Load(); r < n*4/5-1 || r > n*4/5+1 {
		t.Errorf("%d of %d datagrams were received, and a fifth was dropped", r, n)
	}
}
