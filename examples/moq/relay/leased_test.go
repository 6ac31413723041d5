package relay

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/fastrelay/fastrelay-gen/examples/moq/moqrelay"
	"github.com/fastrelay/fastrelay-gen/examples/quic/outside"
	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go"
)

// A passage is a stream that the kernel and user space send, with a relay above, a library and a relay below, in which
// things happen in any order.
type passage struct {
	*testing.T
	r    *rand.Rand
	h    *hop
	l    *leased
	data []byte // what the relay above sends

	arrived outside.Spans // in user space
	read    uint64
	held    []byte // was read, and isn't written yet
	limit   uint64 // of the kernel's row
	copies  []quic.OutsidePacket
	number  uint64
	maxData uint64
	leased  uint64 // of that
	sent    uint64 // by the library, or outside as it knows

	got    []byte // below
	has    outside.Spans
	reach  uint64
	ended  bool
	resets []uint64
}

func (c *passage) LeaseUniStreams(int) (first quic.StreamID, leased int) { return 3, 1 }

func (c *passage) LeaseData(n uint64) uint64 {
	n = min(n, c.maxData-c.leased)
	c.leased += n
	return n
}

func (c *passage) ReturnData(n uint64) { c.leased -= n }

func (c *passage) Send(data ...quic.StreamData) {
	for _, d := range data {
		c.arrive(d.Offset, d.Data, d.Fin)
		c.sent += uint64(len(d.Data))
	}
}

func (c *passage) Reset(_ quic.StreamID, _ quic.StreamErrorCode, size uint64) {
	c.resets = append(c.resets, size)
}

func (c *passage) Put(_ moqrelay.NamedKey, row moqrelay.NamedRow) error {
	c.limit = row.Limit
	return nil
}

func (c *passage) Delete(moqrelay.NamedKey) error {
	c.limit = 0
	return nil
}

// arrive has a STREAM frame arrive below.
func (c *passage) arrive(offset uint64, data []byte, fin bool) {
	to, size := offset+uint64(len(data)), uint64(len(c.data))
	if c.reach = max(c.reach, to); c.reach > c.leased {
		c.Fatalf("%d bytes were sent, and %d are allowed", c.reach, c.leased)
	}
	copy(c.got[offset:], data)
	c.has.Add(offset, to)
	if fin && to != size {
		c.Fatalf("the stream ends at %d, and not at %d", to, size)
	}
	c.ended = c.ended || fin
}

// packet has a packet come from above, mostly the next one that is missing, which the kernel may copy.
func (c *passage) packet() {
	size := uint64(len(c.data))
	from := c.r.Uint64N(size)
	if missing := c.arrived.Missing(0, size+1); len(missing) > 0 && c.r.IntN(4) > 0 {
		from = min(missing[0].From, size-1)
	}
	s := outside.Span{From: from, To: min(size, from+1+c.r.Uint64N(200))}
	e := &moqrelay.SentEvent{Offset: from, Length: uint32(s.To - from), Size: uint32(s.To - from + 40)}
	copies := from >= c.l.row.First && s.To <= c.limit && c.r.IntN(5) > 0
	if s.To == size {
		e.Type = 1
		s.To++
	}
	if copies {
		c.number++
		p := quic.OutsidePacket{Number: c.number, Size: int(e.Size)}
		if c.h.streams[3] != nil && c.l.err == nil {
			p.User = copied{c.l, s}
		}
		c.h.copied(e, &moqrelay.SentCopy{PN: p.Number, ID: 3})
		c.copies = append(c.copies, p)
		c.reach = max(c.reach, from+uint64(e.Length))
	}
	c.arrived.Add(s.From, s.To)
}

// fate has a copy arrive below, or be lost.
func (c *passage) fate() {
	if len(c.copies) == 0 {
		return
	}
	i := c.r.IntN(len(c.copies))
	p := c.copies[i]
	c.copies = append(c.copies[:i], c.copies[i+1:]...)
	c.h.register(func(p quic.OutsidePacket) { c.sent += uint64(p.Size) })
	s, ok := p.User.(copied)
	switch {
	case c.r.IntN(3) == 0:
		c.Send(c.h.lost(p)...)
	case ok:
		to := min(s.To, uint64(len(c.data)))
		c.arrive(s.From, c.data[s.From:to], s.To > to)
		c.h.settled(p)
	}
}

// write has user space read what has come, and write it.
func (c *passage) write() {
	if len(c.held) == 0 && len(c.arrived) > 0 && c.arrived[0].From == 0 {
		to := min(c.arrived[0].To, uint64(len(c.data)), c.read+1+c.r.Uint64N(500))
		c.held, c.read = c.data[c.read:to], to
	}
	if len(c.held) == 0 {
		return
	}
	err := c.l.try(c.held)
	if errors.Is(err, quic.ErrWouldBlock) && !c.l.waits() && c.r.IntN(2) == 0 { // as Write does, which waits then
		c.h.mu.Lock()
		c.l.add(c.held)
		c.h.pump(time.Now())
		c.h.mu.Unlock()
		err = nil
	}
	if err == nil {
		c.held = nil
	}
}

// more has the relay below allow more, and the congestion window have room.
func (c *passage) more(data uint64, room int) {
	c.maxData += data
	c.h.mu.Lock()
	defer c.h.mu.Unlock()
	c.h.Room = room
	c.h.pump(time.Now())
}

// TestLeased has packets be copied, lost and written in any order: below is what was sent above, with its end, and no
// more of it than was allowed. A stream that is given up is reset at the size that was sent.
func TestLeased(t *testing.T) {
	for seed := range uint64(1000) {
		c := &passage{T: t, r: rand.New(rand.NewPCG(seed, 7))}
		c.data = make([]byte, 1+c.r.IntN(20_000))
		for i := range c.data {
			c.data[i] = byte(c.r.Uint32())
		}
		c.got = make([]byte, len(c.data))
		c.maxData = c.r.Uint64N(50_000)
		c.h = &hop{
			ctx: t.Context(), library: c, named: c, kernel: &kernel{kick: make(chan struct{}, 1)},
			changes: 1, // it has no receiver in the kernel
			piece:   100, window: 60_000, limits: quic.Limits{MaxStreamData: 1 << 20}, more: make(chan struct{}),
			streams: map[quic.StreamID]*leased{}, waiting: map[*leased]struct{}{},
			Sender: outside.Sender{Traffic: func() (sent, lost uint64) { return c.sent, 0 }},
		}
		var err error
		if c.l, err = c.h.open(t.Context(), moqrelay.NamedKey{}, c.r.Uint64N(10)); err != nil {
			t.Fatal(err)
		}
		c.run()
	}
}

func (c *passage) run() {
	size := uint64(len(c.data))
	gone := c.r.IntN(5) == 0
	for i := 0; !c.l.fin || len(c.copies) > 0 || len(c.h.waiting) > 0; i++ {
		switch c.r.IntN(6) {
		case 0, 1:
			c.packet()
		case 2:
			c.fate()
		case 3, 4:
			c.write()
		case 5:
			c.more(c.r.Uint64N(3000), c.r.IntN(5000))
		}
		if gone && c.r.IntN(100) == 0 {
			c.giveUp()
			return
		}
		whole := len(c.arrived) == 1 && c.arrived[0] == outside.Span{To: size + 1}
		if whole && c.read == size && len(c.held) == 0 {
			if err := c.l.Close(); err != nil {
				c.Fatal(err)
			}
		}
		if i > 1_000_000 {
			c.Fatalf("it never ends: %d of %d were written", c.l.written, size)
		}
	}
	if !bytes.Equal(c.got, c.data) || len(c.has) != 1 || c.has[0] != (outside.Span{To: size}) || !c.ended {
		c.Fatalf("of %d bytes, %v have come; the end: %v", size, c.has, c.ended)
	}
	c.h.mu.Lock()
	defer c.h.mu.Unlock()
	if len(c.h.streams) > 0 || c.l.granted != size || c.leased != size+c.h.spare {
		c.Fatalf("%d streams are left; of %d bytes of credit, %d are used", len(c.h.streams), c.leased, size)
	}
}

// giveUp resets the stream.
func (c *passage) giveUp() {
	limit := c.limit
	c.l.CancelWrite(1)
	c.limit = limit
	for range c.r.IntN(3) { // those that were on their way
		c.packet()
	}
	for _, l := range c.h.kernel.resets {
		l.abandon()
	}
	if len(c.resets) == 1 && c.resets[0] != c.reach || len(c.resets) > 1 || len(c.h.streams) > 0 {
		c.Fatalf("reset at %v, after %d bytes; %d streams are left", c.resets, c.reach, len(c.h.streams))
	}
	for _, p := range c.copies {
		if len(c.resets) > 0 && len(c.h.lost(p)) > 0 {
			c.Fatal("what was lost is sent after the reset")
		}
	}
}
