package server

import (
	"log/slog"
	"math"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/pion/rtcp"
	"github.com/pion/rtp"

	"github.com/fastrelay/fastrelay-gen/examples/sfu/sfurelay"
)

// newTestServer starts a server without the kernel that has a subscriber of a publisher.
func newTestServer(t *testing.T) (*Server, *Publisher, *Subscriber) {
	t.Helper()
	host := netip.MustParseAddr("127.0.0.1")
	s, err := Start(Config{Addresses: []netip.Addr{host}, NoOffload: true, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	if _, err := s.Publish(Publish{Name: "cam"}); err != nil {
		t.Fatal(err)
	}
	to := netip.AddrPortFrom(host, 9)
	if _, err := s.Subscribe(Subscribe{Name: "u", Publisher: new("cam"), Address: &to}); err != nil {
		t.Fatal(err)
	}
	return s, s.publisher("cam"), s.subscriber("u")
}

// A change that comes between a stream's first packet and its group doesn't give anyone the stream without the group:
// the kernel would never forward it to them.
func TestAttachBeforeGroup(t *testing.T) {
	s, p, u := newTestServer(t)
	first := rtp.Packet{
		Header: rtp.Header{Version: 2, PayloadType: VP8, SSRC: 7}, Payload: []byte{0x90, 0x20, 0, 0, 1, 2, 3},
	}
	data, err := first.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	s.control.Lock() // of a change that has begun before the packet came
	p.receive(data, netip.MustParseAddrPort("127.0.0.1:5004"), time.Now())
	s.attach(u, p)
	early := u.feed != nil
	s.control.Unlock()
	if early {
		t.Error("the subscriber gets the stream before its group was opened")
	}
	if !await(10*time.Second, func() bool { return u.Stats().Publisher == "cam" }) {
		t.Error("the subscriber doesn't get the stream")
	}
}

// A subscriber that says that it can take more than any number here is not limited.
func TestLargestBandwidth(t *testing.T) {
	s, _, u := newTestServer(t)
	rates := [Layers]int{100, 60, 140}
	check := func(what string) {
		t.Helper()
		if !await(10*time.Second, func() bool { return u.Stats().Bandwidth != 0 }) {
			t.Fatalf("%s: nothing has changed", what)
		}
		s.control.Lock()
		defer s.control.Unlock()
		if best := u.fits(rates, 0); u.bandwidth < 1<<30 && math.MaxInt > 1<<31 || best != Layers-1 {
			t.Errorf("%s: a limit of %d bits a second, and layer %d", what, u.bandwidth, best)
		}
		s.limit(u, 0)
	}
	data, err := rtcp.Marshal([]rtcp.Packet{
		&rtcp.ReceiverReport{SSRC: 1},
		&rtcp.ReceiverEstimatedMaximumBitrate{SenderSSRC: 1, Bitrate: 0x3FFFFp+63, SSRCs: []uint32{u.ssrc}},
	})
	if err != nil {
		t.Fatal(err)
	}
	u.control(data, time.Now())
	check("REMB")
	if _, err := s.Change(Subscribe{Name: "u", Bandwidth: new(math.MaxInt)}); err != nil {
		t.Fatal(err)
	}
	check("API")
}

// Packets come in the kernel's records: the one of its port gets each, and user space sends it to those that the kernel
// doesn't send to. What is of no publisher is left.
func TestRelayed(t *testing.T) {
	s, p, u := newTestServer(t)
	far, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.MustParseAddrPort("127.0.0.1:0")))
	if err != nil {
		t.Fatal(err)
	}
	defer far.Close()
	u.remote = far.LocalAddr().(*net.UDPAddr).AddrPort() // nothing was sent yet
	come := func(sequence uint16, server netip.AddrPort) {
		t.Helper()
		q := rtp.Packet{Header: rtp.Header{Version: 2, PayloadType: 111, SequenceNumber: sequence, SSRC: 7}}
		content, err := q.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		s.relayed(&sfurelay.PacketEvent{
			Time: time.Now(), Publisher: netip.MustParseAddrPort("127.0.0.1:5004"), Server: server, Content: content,
		})
	}
	come(1, p.local)
	if !await(10*time.Second, func() bool { return u.Stats().Publisher == "cam" }) {
		t.Fatal("the subscriber doesn't get the stream")
	}
	if s.apart.Load() != 1 {
		t.Errorf("%d feeds are user space's", s.apart.Load())
	}
	come(2, netip.MustParseAddrPort("127.0.0.1:9"))
	for n := range 10 {
		come(uint16(2+n), p.local)
	}
	_ = far.SetReadDeadline(time.Now().Add(10 * time.Second))
	for n := range 10 {
		if _, err := far.Read(make([]byte, 100)); err != nil {
			t.Fatalf("packet %d: %v", n, err)
		}
	}
	if st := p.Stats(); st.Packets != 11 || st.Late > 0 || st.Repeated > 0 {
		t.Errorf("%+v", st)
	}
	if err := s.Unsubscribe("u"); err != nil || s.apart.Load() != 0 {
		t.Errorf("%v, %d feeds are user space's", err, s.apart.Load())
	}
}
