package test

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fastrelay/fastrelay-gen/runtime/quic/quic-go"
)

// TestKeys has a sender seal packets. There are so many that keys are updated, which only its packets give a reason for.
func TestKeys(t *testing.T) {
	s := newSender()
	var phases []uint64
	keys := s.hooks.SendKeys
	s.hooks.SendKeys = func(k *quic.Sealer) {
		keys(k)
		s.locked(func() { phases = append(phases, k.Phase) })
	}
	l := s.start(t, options{clientConfig: wide()})
	if l.server.Outside().NullProtection() {
		t.Fatal("the client didn't ask for null protection")
	}
	done := make(chan error, 1)
	go func() { done <- receive(l.ctx, l.client, 30, 10000) }()
	for range 3 {
		s.send(t, 10, 10000)
		out, err := l.server.OpenStreamSync(l.ctx) // the library decides on an update when it sends something itself
		if err != nil {
			t.Fatal(err)
		}
		out.Write([]byte("x"))
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if len(phases) < 2 || phases[0] != 0 || phases[1] != 1 {
		t.Errorf("keys of the phases %v were handed over", phases)
	}
	l.alive(t)
}

// inbox takes packets that hold an ACK frame and nothing else away from the server's library, as a program in the kernel
// does, and hands them over in batches.
type inbox struct {
	sender        *sender
	mutex         sync.Mutex
	opener        *quic.Opener
	fresh         bool
	acks          []quic.ACK
	taken, passed atomic.Int64
}

func (i *inbox) take(b []byte) bool {
	if !shortHeader(b) {
		return true
	}
	i.mutex.Lock()
	defer i.mutex.Unlock()
	if i.opener == nil {
		return true
	}
	if i.fresh { // the library opens the first packet of a phase
		if _, _, err := i.opener.Open(nil, b, 9); err == nil {
			i.fresh = false
		}
		return true
	}
	payload, number, err := i.opener.Open(nil, b, 9)
	if err != nil || !onlyACK(payload) {
		i.passed.Add(1)
		return true
	}
	i.taken.Add(1)
	i.acks = append(i.acks, quic.ACK{
		Number: number, KeyPhase: i.opener.Phase, Frame: payload, Time: time.Now(), Size: len(b),
	})
	return false
}

func (i *inbox) flush() {
	i.mutex.Lock()
	acks := i.acks
	i.acks = nil
	i.mutex.Unlock()
	if len(acks) > 0 {
		i.sender.link.server.Outside().ReceiveACKs(acks)
	}
}

// onlyACK reports whether a payload is an ACK frame.
func onlyACK(b []byte) bool {
	if len(b) == 0 || b[0] != 0x02 && b[0] != 0x03 {
		return false
	}
	n := 1
	varint := func() (v uint64) {
		if n >= len(b) {
			return 0
		}
		size := 1 << (b[n] >> 6)
		v = uint64(b[n] & 0x3f)
		for _, x := range b[n+1 : min(len(b), n+size)] {
			v = v<<8 | uint64(x)
		}
		n += size
		return v
	}
	varint()
	varint()
	for range 1 + 2*varint() {
		varint()
	}
	if b[0] == 0x03 {
		for range 3 {
			varint()
		}
	}
	return n == len(b)
}

// TestReceiveACKs takes ACKs away from the library, and hands them over in batches.
func TestReceiveACKs(t *testing.T) {
	for name, client := range map[string]*quic.Hooks{"null": nullClient, "protected": nil} {
		t.Run(name, func(t *testing.T) {
			s := newSender()
			in := &inbox{sender: s}
			s.hooks.ReceiveKeys = func(o *quic.Opener) {
				in.mutex.Lock()
				in.opener, in.fresh = o, true
				in.mutex.Unlock()
			}
			s.lose = func(n uint64) bool { return n%50 == 0 }
			l := s.start(t, options{client: client, clientConfig: wide()})
			l.serverSocket.tap(nil, in.take)
			stop := make(chan struct{})
			defer close(stop)
			go func() {
				for tick := time.Tick(5 * time.Millisecond); ; {
					select {
					case <-tick:
						in.flush()
					case <-stop:
						return
					}
				}
			}()
			const streams, size = 30, 40000
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
			if in.taken.Load() < 50 {
				t.Errorf("%d ACKs were taken away, %d packets were left", in.taken.Load(), in.passed.Load())
			}
			// the library knows which packets were received: what the peer sends now has short numbers
			out, err := l.client.OpenUniStream()
			if err != nil {
				t.Fatal(err)
			}
			out.Write(object(out.StreamID(), 50000))
			out.Close()
			if err := receive(l.ctx, l.server, 1, 50000); err != nil {
				t.Fatal(err)
			}
			s.mutex.Lock()
			if lost := len(s.lost); lost > streams*size/1000/10 {
				t.Errorf("%d packets were reported lost", lost)
			}
			s.mutex.Unlock()
			l.alive(t)
		})
	}
}

// TestWrongACKs hands over what isn't an ACK frame, and one for a packet that wasn't sent.
func TestWrongACKs(t *testing.T) {
	for name, frame := range map[string][]byte{
		"PING": {0x01}, "cut off": {0x02, 0x05}, "not sent": {0x02, 0xbf, 0xff, 0xff, 0xff, 0, 0, 0}, "empty": {},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSender()
			l := s.start(t, options{client: nullClient})
			l.server.Outside().ReceiveACKs([]quic.ACK{{Number: 1 << 20, Frame: frame, Time: time.Now()}})
			until(t, "the connection is closed", func() bool { return l.server.Context().Err() != nil })
		})
	}
}
