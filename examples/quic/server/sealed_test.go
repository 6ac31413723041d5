package server

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/examples/quic/outside"
	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go"
)

// TestSealed sends objects one after the other to protected subscribers: hardly any of the packets is the library's,
// and the keys are updated meanwhile (after 100 packets, in quic-go). All are marked for ECN (RFC 9000, section 13.4).
// What came in a packet that is larger than theirs takes several.
func TestSealed(t *testing.T) {
	b := newBed(t, options{in: delayed(), out: delayed()})
	const mtu, large = "1310", 1400 // what the publisher's packets have room for, and subscribers' haven't
	b.check(b.relay.Run("ip", "link", "set", "out", "mtu", mtu))
	viewers := []*viewer{b.subscribe(false, wide()), b.subscribe(false, nil)}
	p := plan{streams: 300, objects: 1, rate: 10_000, viewers: viewers}
	publisher := b.publish(false, &quic.Config{InitialPacketSize: 1452})
	b.play(publisher, p)
	for _, v := range viewers {
		b.await(v, p.streams)
	}
	for i, u := range b.server.Stats()[0].Subscribers {
		if u.SealedPackets < 200 || u.UserBytes != uint64(p.streams*size) {
			t.Errorf("subscriber %d: %d packets were sealed for %d bytes", i, u.SealedPackets, u.UserBytes)
		}
	}
	more := plan{streams: 100, objects: 1, rate: 10_000, first: p.streams, viewers: viewers, ahead: -p.streams}
	capture, err := b.out.A.Capture()
	b.check(err)
	b.play(publisher, more)
	for _, v := range viewers {
		b.await(v, p.streams+more.streams)
	}
	frames, err := capture.Stop()
	b.check(err)
	marks := [4]int{}
	for _, f := range frames { // of Ethernet, IPv4, UDP, and with more than an ACK
		if f.Outgoing && len(f.Data) > 300 && f.Data[23] == unix.IPPROTO_UDP && f.Data[42]>>6 == 1 {
			marks[f.Data[15]&3]++
		}
	}
	if marks[2] < more.streams || marks != [4]int{2: marks[2]} { // ECT(0), as the library's are
		t.Errorf("packets by ECN codepoint: %v", marks)
	}
	before := b.server.Stats()[0].Sum().SealedPackets
	const objects = 50
	for i := range objects {
		out, err := publisher.OpenUniStreamSync(b.ctx)
		b.check(err)
		_, err = out.Write(content(uint64(p.streams+more.streams+i), large))
		b.check(errors.Join(err, out.Close()))
		for _, v := range viewers {
			b.await(v, p.streams+more.streams+i+1)
		}
	}
	sum := b.server.Stats()[0].Sum()
	// What is too large for the path is lost, and sent again; on a machine that stalls, a few others are, too.
	all, again := uint64(objects*len(viewers)), sum.RetransmittedBytes
	if n := sum.SealedPackets - before; n < all*3/2 || again > all*large/2 {
		t.Errorf("%d packets were sealed for %d objects of %d bytes, which take two; %d bytes were sent again", n, all,
			large, again)
	}
	b.server.mu.Lock()
	defer b.server.mu.Unlock()
	if len(b.server.subscribers) != len(viewers) {
		t.Errorf("%d subscribers", len(b.server.subscribers))
	}
	for _, u := range b.server.subscribers {
		if phase, ok := u.sealer.KeyPhase(); !ok || phase == 0 {
			t.Errorf("the keys weren't updated")
		}
	}
}

// What is too much at once, or small, is the library's; a large piece takes several packets; without keys nothing is
// sent.
func TestSealedOrNot(t *testing.T) {
	for _, c := range []struct {
		what  string
		sizes []int
		room  int
		rest  int
	}{
		{"one small piece", []int{10}, 1 << 20, 1},
		{"eleven packets", []int{11 * 1300}, 1 << 20, 1},
		{"small pieces", []int{100, 100}, 1 << 20, 2},
		{"no room", []int{1000}, 900, 1},
	} {
		u := &subscriber{sealer: &outside.Sealer{}, packetSize: 1300}
		var give []quic.StreamData
		for _, n := range c.sizes {
			give = append(give, quic.StreamData{Data: make([]byte, n)})
		}
		if rest := u.seal(give, c.room); len(rest) != c.rest || u.stats.SealedPackets > 0 {
			t.Errorf("%s: %d of %d pieces are left, %d packets were sent", c.what, len(rest), len(give),
				u.stats.SealedPackets)
		}
	}
}
