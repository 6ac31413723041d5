package main

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pion/rtcp"
	"github.com/pion/rtp"
	"github.com/pion/webrtc/v4"

	"github.com/fastrelay/fastrelay-gen/examples/segments/lab"
	"github.com/fastrelay/fastrelay-gen/examples/segments/sfu"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/bpftest"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

const wait = 10 * time.Second

// got is what a subscriber has received: how often each payload.
type got struct {
	mu    sync.Mutex
	times map[uint64]int
	last  rtp.Header
	wrong error
}

func (g *got) packet(p *rtp.Packet) {
	g.mu.Lock()
	defer g.mu.Unlock()
	n, err := lab.Number(p.Payload)
	g.times[n]++
	g.last = p.Header
	g.wrong = errors.Join(g.wrong, err)
}

func (g *got) has(n uint64) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.times[n] > 0
}

// bed is an SFU with a publisher, and subscribers behind two devices.
type bed struct {
	*testing.T
	server      *sfu.Server
	publisher   *lab.Publisher
	subscribers []*lab.Subscriber
	got         []*got
}

const subscribers = 8

func newBed(t *testing.T, family int, sends sfu.Sends) *bed {
	t.Helper()
	line, err := testnet.Start(t).Line()
	check(t, err)
	b := &bed{T: t}
	at := line.RelayInAddr.Of(family)
	api := net.JoinHostPort(at.String(), "8080")
	var listener net.Listener
	check(t, line.Relay.Do(func() (err error) {
		b.server, err = sfu.Start(sfu.Config{
			Address: netip.AddrPortFrom(at, 5004), Sends: sends, Logger: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			return err
		}
		listener, err = net.Listen("tcp", api)
		return err
	}))
	t.Cleanup(func() { check(t, b.server.Close()) })
	http := &http.Server{Handler: b.server.Handler()}
	go http.Serve(listener)
	t.Cleanup(func() { http.Close() })
	sites := []lab.Site{
		{Host: line.Client, Addr: line.ClientAddr.Of(family), API: api},
		{Host: line.Peer, Addr: line.PeerAddr.Of(family), API: api},
	}
	b.publisher, err = lab.Publish(sites[0], "cam")
	check(t, err)
	t.Cleanup(func() { b.publisher.Close() })
	var all sync.WaitGroup
	b.subscribers = make([]*lab.Subscriber, subscribers)
	failed := make([]error, subscribers)
	for n := range subscribers {
		g := &got{times: map[uint64]int{}}
		b.got = append(b.got, g)
		all.Go(func() { b.subscribers[n], failed[n] = lab.Subscribe(sites[n%2], "cam", g.packet) })
	}
	all.Wait()
	for _, s := range b.subscribers {
		if s != nil {
			t.Cleanup(func() { s.Close() })
		}
	}
	check(t, errors.Join(failed...))
	return b
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// all waits until all subscribers have a payload.
func (b *bed) all(n uint64, meanwhile func()) {
	b.Helper()
	check(b.T, testnet.Until(wait, fmt.Sprintf("all have payload %d", n), func() bool {
		for _, g := range b.got {
			if !g.has(n) {
				meanwhile()
				return false
			}
		}
		return true
	}))
}

func (b *bed) stats() sfu.Stats {
	b.Helper()
	st, err := b.server.Stats()
	check(b.T, err)
	return st
}

// Each packet of a publisher comes to each subscriber once, encrypted for it, however the SFU sends; and all copies
// leave in segments where it sends those.
func TestSFU(t *testing.T) {
	needs.Root(t)
	for _, family := range []int{4, 6} {
		for _, sends := range sfu.AllSends {
			if testing.Short() && sends == sfu.Plain {
				continue // pion's own
			}
			t.Run(fmt.Sprintf("IPv%d/%s", family, sends), func(t *testing.T) { testSFU(t, family, sends) })
		}
	}
}

func testSFU(t *testing.T, family int, sends sfu.Sends) {
	t.Parallel()
	b := newBed(t, family, sends)
	// A subscriber is connected a moment before the SFU has its keys.
	b.all(0, func() { check(t, b.publisher.Send(0, 100)) })

	const packets, together = 200, 10 // together: no more than a socket has room for
	for n := uint64(1); n <= packets; n++ {
		size := []int{1, 500, 1188}[n%3] + 8
		check(t, b.publisher.Send(n, size))
		if n%together == 0 {
			for seen := n - together + 1; seen <= n; seen++ {
				b.all(seen, func() {})
			}
		}
	}
	for i, g := range b.got {
		g.mu.Lock()
		if g.wrong != nil {
			t.Errorf("subscriber %d: %v", i, g.wrong)
		}
		for n := uint64(1); n <= packets; n++ {
			if g.times[n] != 1 {
				t.Errorf("subscriber %d has got packet %d %d times", i, n, g.times[n])
			}
		}
		if len(g.times) != packets+1 {
			t.Errorf("subscriber %d has got %d payloads, want %d", i, len(g.times), packets+1)
		}
		g.mu.Unlock()
	}
	if st := b.stats(); st.Sends != sends || st.Kernel != (sends == sfu.Segments) || st.Peers != 1+subscribers {
		t.Errorf("it says of itself: %+v", st)
	}
	if sends != sfu.Plain {
		b.counted(packets * subscribers)
	}
}

// counted compares the SFU's counters with what has come to the subscribers' sockets since they are there: all RTP was
// sent as it should be, and perhaps some of what isn't RTP with it. So many copies have been sent to all at once.
func (b *bed) counted(copies uint64) {
	b.Helper()
	var st sfu.Stats
	var rtp, others uint64
	if err := testnet.Until(wait, "all copies are counted", func() bool { // which may be after they have come
		rtp, others = 0, b.publisher.Others()
		for _, s := range b.subscribers {
			rtp, others = rtp+s.RTP(), others+s.Others()
		}
		st = b.stats()
		counted := st.Sent.Relayed + st.Sent.Single
		return counted >= rtp && counted <= rtp+others
	}); err != nil {
		b.Errorf("%v: %d came, and %d other packets; counters: %+v", err, rtp, others, *st.Sent)
	}
	if relayed := st.Sent.Relayed; st.Kernel && relayed < copies || !st.Kernel && relayed > 0 {
		b.Errorf("%d packets have left in segments, of %d", relayed, copies)
	}
	if s := st.Sent; s.Segments != s.Relayed || s.Returned+s.Refused+s.TooBig+s.Failed > 0 {
		b.Errorf("counters: %+v", *s)
	}
}

// offer is one that a server can answer.
func offer(t *testing.T) string {
	t.Helper()
	pc, err := webrtc.NewPeerConnection(webrtc.Configuration{})
	check(t, err)
	t.Cleanup(func() { pc.Close() })
	_, err = pc.AddTransceiverFromKind(webrtc.RTPCodecTypeVideo)
	check(t, err)
	sdp, err := pc.CreateOffer(nil)
	check(t, err)
	return sdp.SDP
}

// Requests that can't be answered are refused, with the reason.
func TestRefusals(t *testing.T) {
	server, err := sfu.Start(sfu.Config{Address: netip.MustParseAddrPort("127.0.0.1:0"), Sends: sfu.Plain})
	check(t, err)
	good := offer(t)
	for _, c := range []struct {
		path, body string
		code       int
		say        string
	}{
		{"/publish/cam", "nonsense", 400, "SDP"},
		{"/subscribe/cam", good, 404, `"cam" has no publisher`},
		{"/publish/cam", good, 201, "v=0"},
		{"/publish/cam", good, 409, `"cam" has a publisher`},
		{"/subscribe/cam", "", 400, "ice-ufrag"},
		{"/publish/big", strings.Repeat("a", 2<<20), 400, "too large"},
		{"/watch/cam", good, 404, "not found"},
	} {
		w := httptest.NewRecorder()
		server.Handler().ServeHTTP(w, httptest.NewRequest("POST", c.path, strings.NewReader(c.body)))
		if said := w.Body.String(); w.Code != c.code || !strings.Contains(said, c.say) {
			t.Errorf("%s: %d %q, want %d and %q", c.path, w.Code, said, c.code, c.say)
		}
	}
	if st, err := server.Stats(); err != nil || st.Peers != 1 {
		t.Errorf("counters: %+v, %v; want one peer", st, err)
	}
	check(t, server.Close())
	w := httptest.NewRecorder()
	server.Handler().ServeHTTP(w, httptest.NewRequest("POST", "/publish/cam", strings.NewReader(good)))
	if w.Code != http.StatusServiceUnavailable {
		t.Errorf("after the end: %d %q", w.Code, w.Body.String())
	}
}

// A packet that a subscriber asks for again is sent to it again.
func TestResend(t *testing.T) {
	needs.Root(t)
	b := newBed(t, 4, sfu.Segments)
	b.all(0, func() { check(t, b.publisher.Send(0, 100)) })
	check(t, b.publisher.Send(1, 100))
	b.all(1, func() {})
	b.subscribers[0].LoseNext()
	for n := uint64(2); n <= 3; n++ {
		check(t, b.publisher.Send(n, 100))
	}
	g := b.got[0]
	check(t, testnet.Until(wait, "the third one comes", func() bool { return g.has(3) }))
	if g.has(2) {
		t.Fatal("the second one isn't lost")
	}
	g.mu.Lock()
	last := g.last
	g.mu.Unlock()
	ask := &rtcp.TransportLayerNack{MediaSSRC: last.SSRC, Nacks: rtcp.NackPairsFromSequenceNumbers(
		[]uint16{last.SequenceNumber - 1, last.SequenceNumber + 100})} // and one that there isn't
	check(t, b.subscribers[0].WriteRTCP([]rtcp.Packet{ask}))
	check(t, testnet.Until(wait, "the second one comes", func() bool { return g.has(2) }))
	g.mu.Lock()
	defer g.mu.Unlock()
	if again := g.last; g.wrong != nil || again.SSRC != last.SSRC || again.PayloadType != last.PayloadType ||
		again.SequenceNumber != last.SequenceNumber-1 {
		t.Errorf("the second one comes as %+v, after %+v: %v", again, last, g.wrong)
	}
}

// A publisher that leaves ends its stream, for the subscribers as well, and the name is free.
func TestPublisherLeaves(t *testing.T) {
	needs.Root(t)
	b := newBed(t, 4, sfu.Plain)
	check(t, b.publisher.Close())
	check(t, testnet.Until(wait, "all have left", func() bool { return b.stats().Peers == 0 }))
}

// A wrong flag is an error at once, and says what is wrong.
func TestCommandLine(t *testing.T) {
	for _, c := range []struct {
		args []string
		code int
		say  string
	}{
		{[]string{"-help"}, 0, "segments is an SFU for WebRTC"},
		{[]string{}, 2, "no address"},
		{[]string{"-address", "nowhere"}, 2, "nowhere"},
		{[]string{"-address", "127.0.0.1:0", "-sends", "pigeons"}, 2, `there is no "pigeons"`},
		{[]string{"-address", "127.0.0.1:0", "extra"}, 2, `unexpected argument "extra"`},
		{[]string{"-address", "0.0.0.0:5004", "-api", "127.0.0.1:0"}, 1, "one of this host's"},
	} {
		var out, say bytes.Buffer
		if code := sfu.Command(c.args, &out, &say); code != c.code || !strings.Contains(say.String(), c.say) {
			t.Errorf("segments %v: status %d, want %d; it said %q, want %q", c.args, code, c.code, say.String(), c.say)
		}
	}
}

// Tests that can't prepare themselves fail at once.
func TestUnprepared(t *testing.T) { bpftest.Unprepared(t) }
