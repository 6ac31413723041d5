package test

import (
	"bytes"
	"encoding/binary"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go"
	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go/quicvarint"
)

// TestKeys has a sender seal packets. There are so many that keys are updated, which only its packets give a reason
// for.
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
	go func() { done <- receive(l.ctx, l.client, 20, 3000) }()
	s.send(t, 10, 3000)
	l.serverSocket.tap(nil, func([]byte) bool { return false }) // packets that are received would be a reason as well
	for range 120 {
		s.packet([]byte{0x01, 0, 0, 0}, nil)
	}
	out, err := l.server.OpenStreamSync(l.ctx)
	if err != nil {
		t.Fatal(err)
	}
	out.Write([]byte("x")) // the library updates keys when it sends something itself
	until(t, "the next phase's keys", func() (rolled bool) {
		s.locked(func() { rolled = len(phases) == 2 })
		return rolled
	})
	l.serverSocket.tap(nil, nil)
	s.send(t, 10, 3000)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if !slices.Equal(phases, []uint64{0, 1}) {
		t.Errorf("keys of the phases %v were handed over", phases)
	}
	l.alive(t)
}

// inbox takes packets that hold an ACK frame and nothing else away from the server's library, as a program in the
// kernel does, and hands them over in batches.
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
		i.sender.handOver(acks...)
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
			s.handOver(quic.ACK{Number: 1 << 20, Frame: frame, Time: time.Now()})
			until(t, "the connection is closed", func() bool { return l.server.Context().Err() != nil })
		})
	}
}

// ackFrame returns an ACK frame for one packet.
func ackFrame(number uint64) []byte {
	return append(quicvarint.Append([]byte{0x02}, number), 0, 0, 0)
}

// TestMergedACKs hands over ACK frames each of which says something that the others don't, and each twice.
func TestMergedACKs(t *testing.T) {
	s := newSender()
	l := s.start(t, options{client: nullClient})
	l.serverSocket.tap(nil, func([]byte) bool { return false }) // the library hears nothing
	var numbers []uint64
	for range 8 {
		s.locked(func() { numbers = append(numbers, s.counter.Load()) })
		s.packet([]byte{0x01, 0, 0, 0}, nil)
	}
	var acks []quic.ACK
	for i, n := range []uint64{numbers[6], numbers[0], numbers[2], numbers[4], numbers[2]} {
		a := quic.ACK{Number: uint64(1000 + i), Frame: ackFrame(n), Time: time.Now(), Size: 50}
		acks = append(acks, a, a)
	}
	s.handOver(acks...)
	until(t, "the packets that were acknowledged, and no others", func() (right bool) {
		s.locked(func() {
			var acked []uint64
			for _, p := range s.acked {
				acked = append(acked, p.Number)
			}
			slices.Sort(acked)
			right = slices.Equal(acked, []uint64{numbers[0], numbers[2], numbers[4], numbers[6]})
		})
		return right
	})
	l.alive(t)
}

// TestReceivedNumbers hands over an ACK out of a packet with a high number. The next one's number, which is sent with
// two bytes, is understood, and acknowledged.
func TestReceivedNumbers(t *testing.T) {
	const number = 100000
	s := newSender()
	l := s.start(t, options{client: nullClient})
	var cid quic.ConnectionID
	var acked int64
	s.locked(func() {
		acked = s.state.LargestAcked
		for _, c := range s.changes {
			if c.Ours && c.Event == quic.ConnectionIDAdded {
				cid = c.ID
			}
		}
	})
	packet := append([]byte{0x41}, cid.Bytes()...)
	packet = binary.BigEndian.AppendUint16(packet, (number+1)&0xffff)
	packet = append(packet, 0x01, 0, 0, 0) // PING
	packet = append(packet, make([]byte, 16)...)
	largest := make(chan uint64, 100)
	l.serverSocket.tap(func(b []byte) bool {
		if n, _, err := quicvarint.Parse(b[14:]); shortHeader(b) && b[13] == 0x02 && err == nil {
			largest <- n
		}
		return false // the client would object to an ACK for what it didn't send
	}, func(b []byte) bool { return bytes.Equal(b, packet) })
	s.handOver(quic.ACK{Number: number, Frame: ackFrame(uint64(acked)), Time: time.Now()})
	until(t, "an ACK for the packet", func() bool {
		l.clientSocket.current.Load().WriteTo(packet, l.serverSocket.LocalAddr())
		select {
		case n := <-largest:
			return n == number+1
		case <-time.After(10 * time.Millisecond):
			return false
		}
	})
}
