package test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go"
)

// TestLevels sends streams of each level, on connection IDs of that level.
func TestLevels(t *testing.T) {
	var mutex sync.Mutex
	added, retired := map[int]quic.ConnectionID{}, 0
	server := &quic.Hooks{NullProtection: true, Levels: 4, ConnectionID: func(c quic.ConnectionIDChange) {
		mutex.Lock()
		defer mutex.Unlock()
		switch {
		case c.Ours && c.Event == quic.ConnectionIDAdded && c.Level >= 0:
			added[c.Level] = c.ID
		case c.Ours && c.Event == quic.ConnectionIDRetired:
			retired++
			if c.Sequence != 0 {
				t.Errorf("connection ID %d was retired", c.Sequence)
			}
		}
	}}
	levels := map[int]quic.ConnectionID{}
	client := &quic.Hooks{NullProtection: true, ConnectionID: func(c quic.ConnectionIDChange) {
		mutex.Lock()
		defer mutex.Unlock()
		if !c.Ours && c.Event == quic.ConnectionIDAdded && c.Level >= 0 {
			levels[c.Level] = c.ID
		}
	}}
	l := connect(t, options{server: server, client: client, serverConfig: wide()})
	write := func(urgency int8) error { // each stream is a packet of its own
		out, err := l.client.OpenUniStream()
		if err != nil {
			return err
		}
		out.SetPriority(urgency, true)
		out.Write(object(out.StreamID(), 100))
		out.Close()
		return receive(l.ctx, l.server, 1, 100)
	}
	until(t, "four levels at both ends", func() bool {
		if err := write(3); err != nil {
			t.Fatal(err)
		}
		mutex.Lock()
		defer mutex.Unlock()
		return len(added) == 4 && len(levels) == 4 && retired == 1
	})
	mutex.Lock()
	for level, id := range levels {
		if added[level] != id {
			t.Errorf("level %d is %v at the server, %v at the client", level, added[level], id)
		}
	}
	mutex.Unlock()

	var used map[quic.ConnectionID]int
	l.clientSocket.tap(func(b []byte) bool {
		if shortHeader(b) && len(b) > 100 && len(b) < 500 { // a stream
			mutex.Lock()
			used[quic.ConnectionIDFromBytes(b[1:9])]++
			mutex.Unlock()
		}
		return true
	}, nil)
	for urgency := range int8(8) {
		mutex.Lock()
		used = map[quic.ConnectionID]int{}
		mutex.Unlock()
		if err := write(urgency); err != nil {
			t.Fatal(err)
		}
		mutex.Lock()
		if id := added[int(urgency)/2]; len(used) != 1 || used[id] == 0 || int(id.Bytes()[0]) != int(urgency)/2 {
			t.Errorf("urgency %d was sent on %v, want %v", urgency, used, id)
		}
		mutex.Unlock()
	}
	l.alive(t)
}

// many sends packets of a sender's, so many that connection IDs change.
func (s *sender) many(t *testing.T) {
	for i := range 16000 {
		if i%16 == 0 {
			s.link.server.Outside().Notify()
		}
		s.room(t)
		s.packet([]byte{0x01, 0, 0, 0}, nil)
	}
	until(t, "all is registered", func() (all bool) {
		s.link.server.Outside().Notify()
		s.locked(func() { all = len(s.ring) == 0 })
		return all
	})
	for range 20 { // the library changes connection IDs when it sends something itself
		out, err := s.link.server.OpenUniStreamSync(s.link.ctx)
		if err != nil {
			t.Fatal(err)
		}
		out.Write(object(out.StreamID(), 100))
		out.Close()
		if err := receive(s.link.ctx, s.link.client, 1, 100); err != nil {
			t.Fatal(err)
		}
	}
}

// activated returns how many of the peer's connection IDs became the active one, and how many were retired.
func (s *sender) activated() (active, retired int) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	for _, c := range s.changes {
		switch {
		case !c.Ours && c.Event == quic.ConnectionIDActive:
			active++
		case !c.Ours && c.Event == quic.ConnectionIDRetired:
			retired++
		}
	}
	return active, retired
}

// TestRotation follows the active connection ID. A sender's packets count towards its change.
func TestRotation(t *testing.T) {
	s := newSender()
	l := s.start(t, options{client: nullClient, clientConfig: wide()})
	s.many(t)
	until(t, "the connection ID was changed twice", func() bool {
		active, retired := s.activated()
		return active >= 3 && retired >= 2
	})
	l.alive(t)
}

// TestLevelsStay sends as many packets as TestRotation on connection IDs that are levels.
func TestLevelsStay(t *testing.T) {
	s := newSender()
	l := s.start(t, options{client: &quic.Hooks{NullProtection: true, Levels: 4}, clientConfig: wide()})
	s.many(t)
	if active, retired := s.activated(); active != 2 || retired != 1 {
		t.Errorf("%d connection IDs were active, %d were retired: those of the handshake, and a level", active, retired)
	}
	l.alive(t)
}

// TestShortLevels wants levels in connection IDs of 4 bytes.
func TestShortLevels(t *testing.T) {
	tr := &quic.Transport{Conn: newSocket(t), ConnectionIDLength: 4}
	defer tr.Close()
	ctx := quic.WithHooks(t.Context(), &quic.Hooks{Levels: 2})
	_, err := tr.Dial(ctx, newSocket(t).LocalAddr(), secrets(t), nil)
	if err == nil || !strings.Contains(err.Error(), "connection IDs have 4 bytes, and need 8") {
		t.Error(err)
	}
}

// TestLevelReset has the server forget its connections. Its stateless reset, for a packet on any level, is understood.
func TestLevelReset(t *testing.T) {
	var levels atomic.Int64
	client := &quic.Hooks{ConnectionID: func(c quic.ConnectionIDChange) {
		if !c.Ours && c.Event == quic.ConnectionIDAdded && c.Level >= 0 {
			levels.Add(1)
		}
	}}
	for urgency := int8(0); urgency < 8; urgency += 2 {
		levels.Store(0)
		key := &quic.StatelessResetKey{1, 2, 3}
		l := connect(t, options{
			server: &quic.Hooks{Levels: 4}, client: client, serverConfig: wide(), resetKey: key,
		})
		until(t, "four levels", func() bool {
			out, err := l.client.OpenUniStream()
			if err != nil {
				t.Fatal(err)
			}
			out.Write(object(out.StreamID(), 10))
			out.Close()
			if err := receive(l.ctx, l.server, 1, 10); err != nil {
				t.Fatal(err)
			}
			return levels.Load() == 4
		})
		other := &quic.Transport{Conn: newSocket(t), ConnectionIDLength: 8, StatelessResetKey: key}
		if _, err := other.Listen(secrets(t), nil); err != nil {
			t.Fatal(err)
		}
		l.serverSocket.tap(func([]byte) bool { return false }, nil)
		l.clientSocket.tap(func(b []byte) bool {
			if int8(b[1]) == urgency/2 {
				l.clientSocket.current.Load().WriteTo(b, other.Conn.LocalAddr())
			}
			return false
		}, nil)
		out, err := l.client.OpenUniStream()
		if err != nil {
			t.Fatal(err)
		}
		out.SetPriority(urgency, true)
		out.Write(make([]byte, 500))
		until(t, "the connection is reset", func() bool { return l.client.Context().Err() != nil })
		var reset *quic.StatelessResetError
		if err := context.Cause(l.client.Context()); !errors.As(err, &reset) {
			t.Errorf("urgency %d: the connection was closed by: %v", urgency, err)
		}
		other.Close()
	}
}
