package server

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/pion/rtp"
)

// fakeKernel is a receiver in the kernel that does nothing by itself.
type fakeKernel struct {
	row   row
	stock int // bytes that may be spent
	n     Sent
}

func (k *fakeKernel) set(r row) error { k.row = r; return nil }
func (k *fakeKernel) limit(int)       {}
func (k *fakeKernel) spend(n int) bool {
	if n > k.stock {
		return false
	}
	k.stock -= n
	return true
}
func (k *fakeKernel) sent() Sent    { return k.n }
func (k *fakeKernel) remove() error { return nil }

// desk is a feed and the socket of the one who gets it.
type desk struct {
	*testing.T
	pub  *Publisher
	feed *feed
	got  *net.UDPConn
	now  time.Time
	lost uint64 // events
}

func newDesk(t *testing.T, layer uint8, kernel receiver) *desk {
	t.Helper()
	loopback := net.UDPAddrFromAddrPort(netip.MustParseAddrPort("127.0.0.1:0"))
	var conns [3]*net.UDPConn
	for i := range conns {
		c, err := net.ListenUDP("udp", loopback)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		conns[i] = c
	}
	port := func(c *net.UDPConn) netip.AddrPort { return c.LocalAddr().(*net.UDPAddr).AddrPort() }
	s := &Server{offload: &offload{}}
	d := &desk{T: t, got: conns[0], now: time.Now()}
	d.pub = &Publisher{
		conn: conns[1], name: "cam", s: s, local: port(conns[1]), remote: port(conns[1]), ssrc: 7, live: true,
		clock: 90000, requests: map[uint16]time.Time{},
	}
	u := &Subscriber{
		name: "u", s: s, conn: conns[2], local: port(conns[2]), remote: port(conns[0]), ssrc: 9, payloadType: 97,
	}
	d.feed = &feed{
		pub: d.pub, sub: u, kernel: kernel, begun: d.now, row: row{
			first: 100, timestamp: 50, layer: layer, before: layer,
		},
	}
	d.pub.feeds = []*feed{d.feed}
	return d
}

// come lets a packet come: the first, of a key frame, or one of a layer.
func (d *desk) come(sequence uint16, layer uint8, key bool) {
	d.Helper()
	inter := byte(1)
	if key {
		inter = 0
	}
	q := rtp.Packet{
		Header: rtp.Header{
			Version: 2, PayloadType: VP8, SequenceNumber: sequence, Timestamp: uint32(sequence) * 3000, SSRC: 7,
		},
		Payload: []byte{0x90, 0x20, layer << 6, inter, 1, 2, 3},
	}
	data, err := q.Marshal()
	if err != nil {
		d.Fatal(err)
	}
	d.now = d.now.Add(33 * time.Millisecond)
	d.pub.receive(data, d.pub.remote, d.now)
}

// report lets the kernel report a copy.
func (d *desk) report(original, number uint16) {
	d.feed.reported(original, number, func() uint64 { return d.lost })
}

// read returns what arrived, at least so many packets if they come: the numbers, and for padding their negative.
func (d *desk) read(least int) (numbers []int) {
	d.Helper()
	buf := make([]byte, 1500)
	for {
		patience := 20 * time.Millisecond
		if len(numbers) < least {
			patience = 10 * time.Second
		}
		_ = d.got.SetReadDeadline(time.Now().Add(patience))
		n, err := d.got.Read(buf)
		if err != nil {
			return numbers
		}
		var q rtp.Packet
		if err := q.Unmarshal(buf[:n]); err != nil {
			d.Fatal(err)
		}
		if q.SSRC != 9 || q.PayloadType != 97 {
			d.Errorf("%v", q.Header)
		}
		number := int(q.SequenceNumber)
		if q.Padding {
			number = -number
		} else if original := (q.Timestamp - 50) / 3000; (q.Timestamp-50)%3000 != 0 || original > 1<<16 {
			d.Errorf("timestamp %d", q.Timestamp)
		}
		numbers = append(numbers, number)
	}
}

func (d *desk) want(what string, numbers ...int) {
	d.Helper()
	got := d.read(len(numbers))
	if len(got) != len(numbers) {
		d.Fatalf("%s: got %v, want %v", what, got, numbers)
	}
	for i := range got {
		if got[i] != numbers[i] {
			d.Fatalf("%s: got %v, want %v", what, got, numbers)
		}
	}
}

// Without the kernel: nothing before a key frame, layers left out without a gap, losses with one, late packets into it.
func TestForward(t *testing.T) {
	d := newDesk(t, 1, nil)
	d.come(65533, 0, false)
	d.want("before the key frame")
	d.come(65534, 0, true)
	d.come(65535, 2, false)
	d.come(0, 1, false)
	d.want("a layer is left out", 100, 101)
	d.come(3, 0, false) // 1 and 2 are lost
	d.want("a loss is seen", 104)
	d.come(1, 1, false)
	d.want("what is late takes its number", 102)
	d.come(2, 2, false)
	d.want("what is late and not wanted is padding", -103)
	d.come(2, 2, false)
	d.want("what comes twice comes once")
	if st := d.feed.stats; st.Filled != 1 || st.Padded != 1 || st.LeftOut != 1 {
		t.Errorf("%+v", st)
	}
}

// With the kernel: what it didn't send, though it was there, is sent; what it left out isn't, whether its packets or
// its events come first.
func TestRepair(t *testing.T) {
	k := &fakeKernel{stock: 1 << 20}
	d := newDesk(t, 0, k)
	d.come(10, 0, true)
	d.report(10, 100)
	d.come(11, 2, false)
	d.come(12, 0, false) // declined, such as over the MTU
	d.come(13, 1, false)
	d.come(14, 0, false)
	d.want("the kernel sends")
	d.report(14, 102)
	d.want("what it declined", 101)
	d.report(18, 104) // before its packets: 15 and 17 left out, 16 late
	d.come(15, 1, false)
	d.come(17, 1, false)
	d.come(18, 0, false)
	d.want("nothing is sent before it is there")
	d.come(16, 0, false)
	d.want("what is late", 103)
	if st := d.feed.sent(); st.Filled != 2 || st.Padded != 0 {
		t.Errorf("%+v", st)
	}
	d.lost = 2
	d.report(22, 107)
	d.come(19, 0, false)
	d.come(20, 1, false)
	d.want("a gap in the events isn't one of the packets")
	k.stock = 0
	d.report(24, 109)
	d.come(23, 0, false)
	d.want("what the limit refuses")
	if st := d.feed.sent(); st.Refused == 0 {
		t.Errorf("%+v", st)
	}
}

// What a subscriber missed is sent again as it was, or asked for.
func TestMissed(t *testing.T) {
	d := newDesk(t, 0, &fakeKernel{stock: 1 << 20})
	for n := range uint16(8) {
		if n != 5 {
			d.come(n, [4]uint8{0, 2, 1, 2}[n%4], n == 0)
		}
	}
	d.come(8, 0, false)
	d.report(0, 100)
	d.report(4, 101)
	d.report(8, 103) // 5 was lost before the kernel saw it
	d.want("the kernel sends")
	var ask []uint16
	missed := func(n uint16) bool { return d.feed.missed(n, &ask) }
	if !missed(101) {
		t.Error("101 is none of the feed's numbers")
	}
	d.want("a packet that was sent", 101)
	if !missed(102) || len(ask) != 1 || ask[0] != 5 {
		t.Errorf("for 102, the publisher is asked for %v", ask)
	}
	d.want("a packet that isn't there")
	d.come(5, 2, false)
	d.want("it comes, and is not wanted", -102)
	missed(102)
	d.want("its padding is sent again", -102)
	if missed(99) || missed(104) {
		t.Error("numbers that were not sent")
	}
	for n := uint16(9); n < 9+2*window; n++ {
		d.come(n, 0, false)
	}
	missed(101)
	d.want("a packet that is not kept any more")
	if st := d.feed.stats; st.Resent != 2 || st.AskedFor != 1 || st.Padded != 1 || st.Unanswered != 1 {
		t.Errorf("%+v", st)
	}
}

// A layer changes at a frame of the base layer that is still to come, and what was before is forgotten some time after.
func TestChange(t *testing.T) {
	d := newDesk(t, 2, &fakeKernel{})
	for n := range uint16(9) {
		d.come(n, [4]uint8{0, 2, 1, 2}[n%4], n == 0)
	}
	r := d.feed.change(0, d.now)
	if ahead := r.since - 8*3000; r.since%12000 != 0 || ahead == 0 || ahead > 24000 || r.layer != 0 || r.before != 2 {
		t.Errorf("the change is %+v", r)
	}
	if r.allows(r.since-1) != 2 || r.allows(r.since) != 0 || r.allows(r.since+1<<30) != 0 {
		t.Error("the change doesn't divide the frames")
	}
	if again := d.feed.change(1, d.now); again.before != 2 || again.layer != 1 {
		t.Errorf("a change before the last one is in force: %+v", again)
	}
	if _, changed := d.feed.settle(d.now); changed {
		t.Error("what was before is forgotten too early")
	}
	if r, changed := d.feed.settle(d.now.Add(3 * time.Second)); !changed || r.before != 1 || r.layer != 1 {
		t.Errorf("what was before isn't forgotten: %+v", r)
	}
}

// A publisher that begins anew is one; a packet that is very late is not.
func TestStray(t *testing.T) {
	d := newDesk(t, 2, nil)
	d.come(5000, 0, true)
	d.come(100, 0, false)
	if d.pub.stats.Restarts != 0 || d.pub.cache.numbers.highest&0xFFFF != 5000 {
		t.Errorf("one stray packet: %+v", d.pub.stats)
	}
	d.come(5001, 0, false)
	d.want("the stream goes on", 100, 101)
	d.pub.s.closing.Store(true) // nothing is changed here
	d.come(200, 0, false)
	d.come(201, 0, false)
	if d.pub.stats.Restarts != 1 {
		t.Errorf("two in a row: %+v", d.pub.stats)
	}
}

// A subscriber gets the highest layer that fits, and a higher one only if there is room.
func TestFits(t *testing.T) {
	rates := [Layers]int{100, 60, 140}
	for _, c := range []struct {
		bandwidth  int
		wants, now uint8
		rates      [Layers]int
		want       uint8
	}{
		{0, 2, 0, rates, 2}, {300, 2, 2, rates, 2}, {299, 2, 2, rates, 1}, {159, 3, 1, rates, 0}, {10, 2, 2, rates, 0},
		{300, 2, 1, rates, 1}, {375, 2, 1, rates, 2}, {1000, 1, 0, rates, 1}, {1000, 2, 0, [Layers]int{}, 0},
	} {
		u := &Subscriber{bandwidth: c.bandwidth, layer: c.wants}
		if got := u.fits(c.rates, c.now); got != c.want {
			t.Errorf("%+v: layer %d", c, got)
		}
	}
}

func TestBucket(t *testing.T) {
	var b bucket
	now := time.Now()
	if !b.spend(1<<30, 0, now) {
		t.Error("no rate is a limit")
	}
	b = bucket{}
	b.set(1000, 500)
	if !b.spend(300, 200, now) || b.spend(100, 200, now) || !b.spend(100, 100, now) || b.spend(101, 0, now) {
		t.Errorf("%+v", b)
	}
	if !b.spend(200, 0, now.Add(100*time.Millisecond)) || b.spend(1, 0, now.Add(100*time.Millisecond)) {
		t.Errorf("after 100 ms: %+v", b)
	}
	if b.spend(501, 0, now.Add(time.Hour)) || !b.spend(500, 0, now.Add(time.Hour)) {
		t.Errorf("after an hour: %+v", b)
	}
}
