package test

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go"
	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go/qlog"
	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go/qlogwriter"
	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go/quicvarint"
)

// requests takes note of the ACK_FREQUENCY frames that a connection gets, and counts the ACK frames that it sends.
type requests struct {
	frames
	got  []qlog.AckFrequencyFrame
	acks int
	at   []time.Time // when packets were sent that elicit an ACK
}

func (r *requests) trace(context.Context, bool, quic.ConnectionID) qlogwriter.Trace { return r }
func (r *requests) AddProducer() qlogwriter.Recorder                                { return r }

func (r *requests) RecordEvent(e qlogwriter.Event) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	switch p := e.(type) {
	case qlog.PacketReceived:
		for _, f := range p.Frames {
			if f, ok := f.Frame.(*qlog.AckFrequencyFrame); ok {
				r.got = append(r.got, *f)
			}
		}
	case qlog.PacketSent:
		if p.Header.PacketType != qlog.PacketType1RTT {
			return
		}
		elicits := false
		for _, f := range p.Frames {
			if _, ok := f.Frame.(*qlog.AckFrame); ok {
				r.acks++
			} else {
				elicits = true
			}
		}
		if elicits {
			r.at = append(r.at, time.Now())
		}
	}
}

// sequences returns the sequence numbers of the frames that were received.
func (r *requests) sequences() (numbers []uint64) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	for _, f := range r.got {
		numbers = append(numbers, f.SequenceNumber)
	}
	return numbers
}

// sent returns how many ACK frames were sent.
func (r *requests) sent() int {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	return r.acks
}

// objects sends objects on streams, one after the other, through the library.
func (l *link) objects(t testing.TB, from, to *quic.Conn, streams, size int) {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- receive(l.ctx, to, streams, size) }()
	for range streams {
		out, err := from.OpenUniStreamSync(l.ctx)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := out.Write(object(out.StreamID(), size)); err != nil {
			t.Fatal(err)
		}
		out.Close()
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// TestRequestACKs loses a request that a newer one follows, and isn't sent again, and one that none follows, and is.
func TestRequestACKs(t *testing.T) {
	got := &requests{}
	config := wide()
	config.Tracer = got.trace
	l := connect(t, options{
		server: &quic.Hooks{NullProtection: true}, client: &quic.Hooks{NullProtection: true}, clientConfig: config,
	})
	l.objects(t, l.server, l.client, 1, 1000) // the handshake is over
	request := func(packets int, delay time.Duration) {
		t.Helper()
		if !l.server.Outside().RequestACKs(packets, delay) {
			t.Fatal("the client doesn't offer ACK_FREQUENCY")
		}
	}
	lose := func(sequence byte) (lost <-chan struct{}) {
		first := make(chan struct{})
		var once sync.Once
		l.serverSocket.tap(func(b []byte) (keep bool) {
			keep = true
			if bytes.Contains(b, []byte{0x40, 0xaf, sequence}) {
				once.Do(func() { close(first); keep = false })
			}
			return keep
		}, nil)
		return first
	}
	lost := lose(0)
	request(5, 10*time.Millisecond)
	<-lost
	request(10, 20*time.Millisecond)
	until(t, "the newer request", func() bool { return slices.Contains(got.sequences(), 1) })
	l.objects(t, l.server, l.client, 10, 5000)
	if s := got.sequences(); slices.Contains(s, 0) {
		t.Errorf("requests %v were received, and 0 was lost before 1: it must not be sent again", s)
	}
	lost = lose(2)
	request(20, 30*time.Nanosecond)
	<-lost
	until(t, "the lost request", func() bool { return slices.Contains(got.sequences(), 2) })
	got.mutex.Lock()
	last := got.got[len(got.got)-1]
	got.mutex.Unlock()
	if want := (qlog.AckFrequencyFrame{
		SequenceNumber: 2, AckElicitingThreshold: 19, RequestMaxAckDelay: time.Millisecond, ReorderingThreshold: 2,
	}); last != want {
		t.Errorf("%+v, want %+v", last, want)
	}
	l.alive(t)
}

// TestRequestNotOffered asks a client without hooks, which gets no frame that it doesn't know.
func TestRequestNotOffered(t *testing.T) {
	l := connect(t, options{server: &quic.Hooks{}, clientConfig: wide()})
	if l.server.Outside().RequestACKs(10, 20*time.Millisecond) {
		t.Error("a client without hooks was asked")
	}
	l.objects(t, l.server, l.client, 10, 5000)
	l.alive(t)
}

// TestRequestedDelay measures when a packet that isn't acknowledged is followed by a probe: after the requested delay.
func TestRequestedDelay(t *testing.T) {
	const delay = 400 * time.Millisecond
	got, sent := &requests{}, &requests{}
	config := wide()
	config.Tracer = got.trace
	l := connect(t, options{
		server: &quic.Hooks{}, serverConfig: &quic.Config{Tracer: sent.trace, DisablePathMTUDiscovery: true},
		client: &quic.Hooks{}, clientConfig: config,
	})
	l.objects(t, l.server, l.client, 10, 5000)
	l.server.Outside().RequestACKs(2, delay)
	until(t, "the request", func() bool { return len(got.sequences()) > 0 })
	l.objects(t, l.server, l.client, 10, 5000)
	l.serverSocket.tap(func([]byte) bool { return false }, nil)
	times := func() []time.Time {
		sent.mutex.Lock()
		defer sent.mutex.Unlock()
		return slices.Clone(sent.at)
	}
	before := len(times())
	out, err := l.server.OpenUniStreamSync(l.ctx)
	if err != nil {
		t.Fatal(err)
	}
	out.Write([]byte("x"))
	until(t, "a packet and a probe", func() bool { return len(times()) >= before+2 })
	at := times()
	if after := at[before+1].Sub(at[before]); after < delay {
		t.Errorf("a probe was sent after %v, and an ACK may take %v", after, delay)
	}
}

// ackFrequency is a frame.
func ackFrequency(sequence, threshold uint64, delay time.Duration, reordering uint64) (b []byte) {
	for _, n := range []uint64{0xaf, sequence, threshold, uint64(delay / time.Microsecond), reordering} {
		b = quicvarint.Append(b, n)
	}
	return b
}

// asked makes a link, over which a sender can ask the client for ACKs.
func asked(t *testing.T) (*sender, *requests) {
	got := &requests{}
	config := wide()
	config.Tracer = got.trace
	s := newSender()
	l := s.start(t, options{client: nullClient, clientConfig: config})
	l.objects(t, l.server, l.client, 1, 1000)
	return s, got
}

// paced sends packets that elicit an ACK, one by one: what comes together is acknowledged together.
func (s *sender) paced(n int, gap time.Duration) {
	pace := time.NewTicker(gap)
	defer pace.Stop()
	for range n {
		<-pace.C
		s.packet([]byte{0x01, 0, 0, 0}, nil)
	}
}

// pings sends packets that elicit an ACK, and returns how many ACKs were sent until the last one was acknowledged.
func (s *sender) pings(t *testing.T, r *requests, n int, gap time.Duration, last []byte) int {
	t.Helper()
	before := r.sent()
	s.paced(n, gap)
	number := uint64(s.counter.Load())
	s.packet(last, "last")
	s.link.server.Outside().Notify()
	until(t, "the last packet is acknowledged", func() (acked bool) {
		s.locked(func() {
			acked = slices.ContainsFunc(s.acked, func(p quic.OutsidePacket) bool { return p.Number >= number })
		})
		return acked
	})
	return r.sent() - before
}

const immediateACK = "\x1f\x00\x00\x00"

// TestACKFrequency asks for few ACKs, and for one at once.
func TestACKFrequency(t *testing.T) {
	s, r := asked(t)
	s.packet(ackFrequency(7, 9, time.Second, 0), nil)
	if n := s.pings(t, r, 100, time.Millisecond, []byte(immediateACK)); n < 3 || n > 14 {
		t.Errorf("100 packets got %d ACKs, not every tenth", n)
	}
	s.packet(ackFrequency(6, 0, time.Second, 0), nil) // older: not obeyed
	if n := s.pings(t, r, 100, time.Millisecond, []byte(immediateACK)); n < 3 || n > 14 {
		t.Errorf("after an older request, 100 packets got %d ACKs", n)
	}
	start := time.Now()
	s.packet(ackFrequency(8, 1000, 10*time.Second, 0), nil)
	if n := s.pings(t, r, 100, time.Millisecond, []byte(immediateACK)); n > 3 || time.Since(start) > 5*time.Second {
		t.Errorf("100 packets got %d ACKs, the last one after %v", n, time.Since(start))
	}
	s.packet(ackFrequency(9, 0, time.Second, 1), nil)
	if n := s.pings(t, r, 20, 5*time.Millisecond, []byte{0x01, 0, 0, 0}); n < 4 {
		t.Errorf("20 packets, each of which wants an ACK, got %d", n)
	}
	s.link.alive(t)
}

// TestACKReordering leaves out packet numbers: with a reordering threshold of 0 they get no ACK of their own, with
// others they do.
func TestACKReordering(t *testing.T) {
	for threshold, want := range map[uint64][2]int{0: {0, 5}, 1: {6, 100}, 3: {6, 60}} {
		s, r := asked(t)
		s.packet(ackFrequency(1, 1000, 10*time.Second, threshold), nil)
		s.packet([]byte(immediateACK), nil)
		missing := 0
		s.lose = func(uint64) bool {
			missing++
			return missing%5 == 0
		}
		before := r.sent()
		s.paced(100, time.Millisecond)
		s.lose = nil
		s.pings(t, r, 0, time.Millisecond, []byte(immediateACK))
		if n := r.sent() - before; n < want[0] || n > want[1] {
			t.Errorf("reordering threshold %d: %d ACKs, want %v", threshold, n, want)
		}
		s.link.alive(t)
	}
}

// TestACKAlarm sends packets so slowly that none comes later than the requested delay after the one before, and less
// than the threshold in all. Their ACKs are as late as the delay says, and no later.
func TestACKAlarm(t *testing.T) {
	s, r := asked(t)
	s.packet(ackFrequency(1, 1000, 50*time.Millisecond, 1), nil)
	start := time.Now()
	n := s.pings(t, r, 60, 10*time.Millisecond, []byte(immediateACK))
	if most := int(time.Since(start) / (50 * time.Millisecond)); n < 3 || n > most+4 {
		t.Errorf("%d ACKs in %v, want one every 50 ms", n, time.Since(start))
	}
	s.link.alive(t)
}

// TestACKFrequencyWrong sends frames that close the connection.
func TestACKFrequencyWrong(t *testing.T) {
	for name, wrong := range map[string]struct {
		frame []byte
		code  quic.TransportErrorCode
	}{
		"a delay below min_ack_delay": {ackFrequency(1, 9, 999*time.Microsecond, 1), quic.ProtocolViolation},
		"a frame that is cut off":     {ackFrequency(1, 9, time.Second, 1)[:5], quic.FrameEncodingError},
	} {
		s, _ := asked(t)
		s.packet(wrong.frame, nil)
		var closed sync.WaitGroup
		closed.Go(func() {
			select {
			case <-s.link.client.Context().Done():
			case <-time.After(*patience):
			}
		})
		closed.Wait()
		var cause *quic.TransportError
		if err := context.Cause(s.link.client.Context()); !errors.As(err, &cause) || cause.ErrorCode != wrong.code {
			t.Errorf("%s: the connection's error is %v, want %v", name, err, wrong.code)
		}
	}
}
