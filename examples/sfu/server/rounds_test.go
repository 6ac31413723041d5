package server

import (
	"log/slog"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/pion/rtp"
)

// fakeGroup is a group in the kernel that does nothing by itself.
type fakeGroup struct{}

func (fakeGroup) add(*feed, row, int) (receiver, error) { return &fakeKernel{}, nil }
func (fakeGroup) begin(uint16) error                    { return nil }
func (fakeGroup) close() error                          { return nil }

// While the kernel sends to all who get a stream, Go's poller hasn't got the publisher's socket, and who asks for what
// has come gets all of it. If a subscriber gets the stream from user space, packets are read as they come.
func TestRounds(t *testing.T) {
	s, err := Start(Config{
		Addresses: []netip.Addr{netip.MustParseAddr("127.0.0.1")}, NoOffload: true,
		Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	to, err := s.Publish(Publish{Name: "cam"})
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(to.Server))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	sequence := uint16(0)
	send := func(n int) {
		t.Helper()
		for range n {
			q := rtp.Packet{Header: rtp.Header{Version: 2, PayloadType: 111, SequenceNumber: sequence, SSRC: 7}}
			sequence++
			data, err := q.Marshal()
			if err == nil {
				_, err = conn.Write(data)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	p := s.publisher("cam")
	idle := func(d time.Duration) {
		s.rounds.mu.Lock()
		defer s.rounds.mu.Unlock()
		s.rounds.idle = d
	}
	idle(time.Hour)
	become := func(what string, polled bool) {
		t.Helper()
		if !await(10*time.Second, func() bool {
			p.publisherSocket.mu.Lock()
			defer p.publisherSocket.mu.Unlock()
			return (p.polled != nil) == polled
		}) {
			t.Fatalf("%s: Go's poller has the socket: %t", what, !polled)
		}
	}
	send(1)
	if !await(10*time.Second, func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.begun
	}) {
		t.Fatal("the stream doesn't begin")
	}
	become("user space", true)
	p.mu.Lock()
	p.group = fakeGroup{}
	p.mu.Unlock()
	send(1)
	become("the kernel", false)
	for range 50 {
		send(10)
		if st := p.Stats(); st.Packets != uint64(sequence) {
			t.Fatalf("%d packets of %d", st.Packets, sequence)
		}
	}
	far, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.MustParseAddrPort("127.0.0.1:0")))
	if err != nil {
		t.Fatal(err)
	}
	defer far.Close()
	p.mu.Lock()
	p.group = nil
	p.mu.Unlock()
	become("user space again", true)
	at, cam := far.LocalAddr().(*net.UDPAddr).AddrPort(), "cam"
	if _, err := s.Subscribe(Subscribe{Name: "u", Address: &at, Publisher: &cam}); err != nil {
		t.Fatal(err)
	}
	send(100)
	_ = far.SetReadDeadline(time.Now().Add(10 * time.Second))
	for n := range 100 {
		if _, err := far.Read(make([]byte, 100)); err != nil {
			t.Fatalf("packet %d: %v", n, err)
		}
	}
	if err := s.Unsubscribe("u"); err != nil {
		t.Fatal(err)
	}
	p.mu.Lock()
	p.group = fakeGroup{}
	p.mu.Unlock()
	for range 2 {
		send(1)
		become("the kernel again", false)
		idle(0)
		become("nothing for a while", true)
		idle(time.Hour)
	}
	send(1)
	become("the kernel", false)
	if err := s.Unpublish("cam"); err != nil {
		t.Fatal(err)
	}
}
