package test

import (
	"encoding/binary"
	"io"
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	upstream "github.com/quic-go/quic-go"

	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go"
)

// shortHeader reports whether a packet is a 1-RTT packet, which isn't padding of a probe.
func shortHeader(b []byte) bool { return b[0]&0xc0 == 0x40 }

// TestNullProtection asks for null protection at both ends, at one, and at none.
func TestNullProtection(t *testing.T) {
	for _, c := range []struct {
		name           string
		server, client bool
	}{{"both", true, true}, {"server", true, false}, {"client", false, true}, {"none", false, false}} {
		t.Run(c.name, func(t *testing.T) {
			l := connect(t, options{
				server: &quic.Hooks{NullProtection: c.server}, client: &quic.Hooks{NullProtection: c.client},
				clientConfig: wide(),
			})
			null := c.server && c.client
			if l.server.Outside().NullProtection() != null || l.client.Outside().NullProtection() != null {
				t.Errorf("null protection: server %v, client %v, want %v",
					l.server.Outside().NullProtection(), l.client.Outside().NullProtection(), null)
			}
			var mutex sync.Mutex
			var packets, open, updated int
			l.serverSocket.tap(func(b []byte) bool {
				if !shortHeader(b) {
					return true
				}
				mutex.Lock()
				defer mutex.Unlock()
				packets++
				if [16]byte(b[len(b)-16:]) == [16]byte{} {
					open++
				}
				if b[0]&0x04 != 0 {
					updated++
				}
				return true
			}, nil)
			for range 300 { // so many that keys would be updated
				out, err := l.server.OpenUniStreamSync(l.ctx)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := out.Write(object(out.StreamID(), 100)); err != nil {
					t.Fatal(err)
				}
				out.Close()
				if err := receive(l.ctx, l.client, 1, 100); err != nil {
					t.Fatal(err)
				}
			}
			mutex.Lock()
			defer mutex.Unlock()
			if packets < 100 || null && open != packets || !null && open != 0 {
				t.Errorf("%d of %d packets are open", open, packets)
			}
			if null && updated != 0 {
				t.Errorf("%d of %d packets have another key phase", updated, packets)
			}
		})
	}
}

// TestForgedKeyPhase sends packets of another key phase on a connection with null protection.
func TestForgedKeyPhase(t *testing.T) {
	s := newSender()
	l := s.start(t, options{client: &quic.Hooks{NullProtection: true}, clientConfig: wide()})
	first, _ := l.server.Outside().LeaseUniStreams(1)
	l.server.Outside().LeaseData(100)
	data := object(first, 100)
	s.locked(func() { s.sealer.Phase = 1 })
	s.stream(quic.StreamData{ID: first, Data: make([]byte, 100), Fin: true}) // isn't accepted
	s.locked(func() { s.sealer.Phase = 0 })
	s.stream(quic.StreamData{ID: first, Data: data, Fin: true})
	if err := receive(l.ctx, l.client, 1, 100); err != nil {
		t.Fatal(err)
	}
	l.alive(t)
}

// TestUpstreamClient has a client of upstream's quic-go talk to a server that asks for all that the fork has, in one
// program.
func TestUpstreamClient(t *testing.T) {
	s := newSender()
	s.hooks.Levels, s.hooks.LongNumbers = 4, true
	socket := newSocket(t)
	accepted := make(chan *quic.Conn, 1)
	tr := &quic.Transport{Conn: socket, ConnectionIDLength: 8, ConnContext: withHooks(&s.hooks)}
	defer tr.Close()
	listener, err := tr.Listen(secrets(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		if c, err := listener.Accept(t.Context()); err == nil {
			accepted <- c
		}
	}()
	client, err := upstream.DialAddr(t.Context(), socket.LocalAddr().String(), secrets(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer client.CloseWithError(0, "")
	s.link = &link{server: <-accepted, serverSocket: socket, ctx: t.Context()}
	if err := s.link.server.Outside().ShareNumbers(t.Context(), &s.counter); err != nil {
		t.Fatal(err)
	}
	if s.link.server.Outside().NullProtection() {
		t.Error("the client didn't ask for null protection")
	}
	const streams = 20
	s.send(t, streams, 5000)
	for range streams {
		in, err := client.AcceptUniStream(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(in)
		if err != nil || string(got) != string(object(quic.StreamID(in.StreamID()), 5000)) {
			t.Errorf("stream %d: %d bytes, %v", in.StreamID(), len(got), err)
		}
	}
}

// TestLongNumbers counts the bytes of packet numbers.
func TestLongNumbers(t *testing.T) {
	l := connect(t, options{
		server: &quic.Hooks{NullProtection: true}, client: &quic.Hooks{NullProtection: true, LongNumbers: true},
	})
	var mutex sync.Mutex
	var sizes [5]int
	l.clientSocket.tap(func(b []byte) bool {
		if shortHeader(b) {
			mutex.Lock()
			sizes[b[0]&3+1]++
			mutex.Unlock()
		}
		return true
	}, nil)
	out, err := l.client.OpenUniStream()
	if err != nil {
		t.Fatal(err)
	}
	out.Write(object(out.StreamID(), 100000))
	out.Close()
	if err := receive(l.ctx, l.server, 1, 100000); err != nil {
		t.Fatal(err)
	}
	mutex.Lock()
	defer mutex.Unlock()
	if sizes[4] < 50 || sizes[1]+sizes[2]+sizes[3] > 0 {
		t.Errorf("packets by the size of their numbers: %v", sizes)
	}
}

// TestSharedNumbers mixes packets of a sender's with the library's.
func TestSharedNumbers(t *testing.T) {
	s := newSender()
	l := s.start(t, options{client: &quic.Hooks{NullProtection: true}, clientConfig: wide()})
	var mutex sync.Mutex
	var library []uint32
	l.serverSocket.tap(func(b []byte) bool {
		mutex.Lock()
		defer mutex.Unlock()
		if shortHeader(b) && (b[0]&3 == 3 || len(library) > 0) { // shorter ones may still be in a queue
			if b[0]&3 != 3 {
				t.Errorf("a number of %d bytes", b[0]&3+1)
			}
			library = append(library, binary.BigEndian.Uint32(b[9:]))
		}
		return true
	}, nil)
	const streams, size = 50, 20000
	done := make(chan error, 1)
	go func() { done <- receive(l.ctx, l.client, 2*streams, size) }()
	go func() {
		for range streams {
			out, err := l.server.OpenUniStreamSync(l.ctx)
			if err != nil {
				return
			}
			out.Write(object(out.StreamID(), size))
			out.Close()
		}
	}()
	s.send(t, streams, size)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	until(t, "all packets acknowledged", func() (all bool) {
		l.server.Outside().Notify()
		s.locked(func() { all = len(s.acked)+len(s.lost) == streams*size/1000 })
		return all
	})
	l.alive(t)
	s.mutex.Lock()
	defer s.mutex.Unlock()
	mutex.Lock()
	defer mutex.Unlock()
	numbers := map[uint64]int{}
	for _, p := range slices.Concat(s.acked, s.lost) {
		numbers[p.Number]++
	}
	for _, n := range library {
		numbers[uint64(n)]++
	}
	for n, count := range numbers {
		if count != 1 {
			t.Errorf("%d packets have the number %d", count, n)
		}
	}
	if len(library) < 100 || !slices.IsSorted(library) {
		t.Errorf("the library's %d numbers aren't ascending", len(library))
	}
}

// TestWrongNumbers registers what can't have been sent.
func TestWrongNumbers(t *testing.T) {
	for name, number := range map[string]func(next uint64) []uint64{
		"not allocated": func(next uint64) []uint64 { return []uint64{next + 5} },
		"twice":         func(next uint64) []uint64 { return []uint64{next - 1, next - 1} },
	} {
		t.Run(name, func(t *testing.T) {
			s := newSender()
			l := s.start(t, options{client: &quic.Hooks{NullProtection: true}})
			s.locked(func() {
				for _, n := range number(s.counter.Add(1)) {
					s.ring = append(s.ring, quic.OutsidePacket{Number: n, Time: time.Now(), Size: 100})
				}
			})
			l.server.Outside().Notify()
			until(t, "the connection is closed", func() bool { return l.server.Context().Err() != nil })
		})
	}
}

// TestRandomRegistration registers packets late and in any order.
func TestRandomRegistration(t *testing.T) {
	s := newSender()
	drain := s.hooks.Drain
	s.hooks.Drain = func(register func(quic.OutsidePacket)) []quic.ACK {
		var all []quic.OutsidePacket
		acks := drain(func(p quic.OutsidePacket) { all = append(all, p) })
		slices.Reverse(all)
		for _, p := range all {
			register(p)
		}
		return acks
	}
	l := s.start(t, options{client: &quic.Hooks{NullProtection: true}, clientConfig: wide()})
	done := make(chan error, 1)
	go func() { done <- receive(l.ctx, l.client, 40, 10000) }()
	s.send(t, 40, 10000)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	l.alive(t)
}

// TestOptimisticACK looks for numbers that were allocated, and that no packet has: a peer that acknowledges them hasn't
// received what it says (RFC 9000, section 21.4).
func TestOptimisticACK(t *testing.T) {
	s := newSender()
	l := s.start(t, options{client: &quic.Hooks{NullProtection: true}, clientConfig: wide()})
	var mutex sync.Mutex
	used, first, last := 0, uint32(math.MaxUint32), uint32(0)
	l.serverSocket.tap(func(b []byte) bool {
		mutex.Lock()
		defer mutex.Unlock()
		if shortHeader(b) && b[0]&3 == 3 { // shorter ones may still be in a queue
			n := binary.BigEndian.Uint32(b[9:])
			used, first, last = used+1, min(first, n), max(last, n)
		}
		return true
	}, nil)
	for range 2000 { // one in 512, and ever fewer
		out, err := l.server.OpenUniStreamSync(l.ctx)
		if err != nil {
			t.Fatal(err)
		}
		out.Write(object(out.StreamID(), 100))
		out.Close()
		if err := receive(l.ctx, l.client, 1, 100); err != nil {
			t.Fatal(err)
		}
	}
	mutex.Lock()
	defer mutex.Unlock()
	if skipped := int(last-first) + 1 - used; skipped <= 0 || skipped > 20 {
		t.Errorf("%d numbers of %d were left out", skipped, last-first+1)
	}
	l.alive(t)
}
