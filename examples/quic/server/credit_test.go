package server

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/fastrelay/fastrelay-gen/examples/quic/outside"
	"github.com/fastrelay/fastrelay-gen/examples/quic/quicrelay"
	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go"
)

// A world is a publisher, the kernel, user space and a subscriber, in which things happen in any order. The subscriber
// counts as a QUIC endpoint does.
type world struct {
	r      *rand.Rand
	feed   *feed
	user   *subscriber
	conn   *conn // the publisher's
	window uint64
	now    time.Time
	loss   float64 // the share of the publisher's packets that are lost at first
	often  []int   // how often things happen

	// the publisher
	written, ends map[uint64]uint64 // by stream ID: what it has sent; where the stream ends
	allowed       uint64            // MAX_DATA of the server
	lost          []frame           // will be sent again
	// the kernel
	limit, spent uint64
	room, used   uint64
	next, leased uint64
	names        map[uint64]uint64
	held         map[uint64]bool
	running      []program // that have decided, and not sent
	socket       []frame
	ring         []quicrelay.SentEvent
	// the library
	handed              map[uint64]*outside.Spans
	maxData, leasedData uint64
	maxStreams, opened  uint64
	// the subscriber
	maxStreamData map[quic.StreamID]uint64
	got           map[quic.StreamID]*received
	copies, given int
}

type frame struct {
	id, offset uint64
	data       []byte
	fin        bool
}

type program struct {
	frame
	limit uint64 // as it was when the program looked
}

type received struct {
	end   uint64
	final int64
	data  outside.Spans
	reset bool
}

func newWorld(seed uint64) *world {
	r := rand.New(rand.NewPCG(seed, 1))
	w := &world{
		r: r, window: 2000 + r.Uint64N(6000), now: time.Unix(1000, 0), conn: &conn{},
		written: map[uint64]uint64{}, ends: map[uint64]uint64{}, names: map[uint64]uint64{}, held: map[uint64]bool{},
		handed: map[uint64]*outside.Spans{}, maxStreamData: map[quic.StreamID]uint64{},
		got: map[quic.StreamID]*received{},
	}
	s := &Server{
		config:  Config{Window: w.window, Backlog: 5000 + r.IntN(20000), Keep: 2 * time.Second},
		dropper: newDropper(), read: w.read,
	}
	s.quiesce = func(context.Context) error {
		for len(w.running) > 0 {
			w.send(0)
		}
		return nil
	}
	w.feed = &feed{server: s, streams: map[uint64]*stream{}, datagrams: map[datagram]copies{}, publisher: w.conn}
	w.allowed = w.window
	w.user = &subscriber{
		feed: w.feed, library: w, close: func() {},
		Sender:  outside.Sender{Library: w, Traffic: func() (sent, lost uint64) { return 0, 0 }},
		streams: map[uint64]*outgoing{},
		byID:    map[quic.StreamID]*outgoing{}, unopened: map[quic.StreamErrorCode]int{},
	}
	w.user.Room = 1 << 20
	w.maxData, w.maxStreams = 1000+r.Uint64N(20000), 3+r.Uint64N(60)
	w.loss = r.Float64() * r.Float64()
	for what, n := range []int{10, 4, 6, 1, 2, 1} {
		for range 1 + r.IntN(2*n) {
			w.often = append(w.often, what)
		}
	}
	w.user.lease(w.limits())
	w.user.budget.margin = w.window
	w.next = uint64(w.user.nextID)
	w.user.kernel = w
	w.setIDs(w.user.endID)
	w.feed.join(w.user, w.now)
	return w
}

const (
	processors = 2
	packet     = 200 // the most data of a packet
	perStream  = 3000
)

func (w *world) limits() quic.Limits {
	return quic.Limits{MaxData: w.maxData, MaxUniStreams: w.maxStreams, MaxStreamData: perStream}
}

// The kernel's part.

func (w *world) setData(limit uint64)         { w.limit = limit }
func (w *world) setWindow(limit uint64)       { w.room = limit }
func (w *world) setUrgent(int)                {}
func (w *world) setIDs(end quic.StreamID)     { w.leased = max(4*processors, uint64(end)) - 4*processors }
func (w *world) forwards(uint64) bool         { return true }
func (w *world) withhold(number uint64) error { w.held[number] = true; return nil }
func (w *world) setPath(int64, int)           {}
func (w *world) stop()                        { w.limit = 0 }

func (w *world) takeID(quic.StreamID) (quic.StreamID, bool) {
	if w.next >= w.leased {
		return 0, false
	}
	w.next += 4
	return quic.StreamID(w.next - 4), true
}

func (w *world) name(number uint64) (quic.StreamID, bool) {
	id, ok := w.names[number]
	// The kernel may name it right after, unless it withholds it.
	return quic.StreamID(id), ok && (w.held[number] || w.r.IntN(4) > 0)
}

func (w *world) setName(number uint64, id quic.StreamID) (quic.StreamID, bool) {
	if _, ok := w.names[number]; !ok {
		w.names[number] = uint64(id)
	}
	return quic.StreamID(w.names[number]), true
}

func (w *world) finished(numbers []uint64, _ uint64) []uint64 { return numbers }

// arrive runs a program on a packet, until it has decided.
func (w *world) arrive(f frame) {
	if len(w.running) == processors {
		w.send(w.r.IntN(processors))
	}
	size := uint64(len(f.data))
	if f.offset+size > perStream || w.next >= w.leased || w.held[f.id] {
		w.socket = append(w.socket, f)
		return
	}
	w.running = append(w.running, program{f, w.limit})
}

// send ends a program.
func (w *world) send(i int) {
	p := w.running[i]
	w.running = append(w.running[:i], w.running[i+1:]...)
	size := uint64(len(p.data))
	name, ok := w.names[p.id]
	if !ok {
		name = w.next
		w.names[p.id] = name
		w.next += 4
	}
	if w.spent+size+1 <= p.limit && w.used+size <= w.room && w.r.IntN(20) > 0 {
		w.spent += size
		w.used += size
		kind := uint8(0x0e)
		if p.fin {
			kind |= 1
		}
		w.ring = append(w.ring, quicrelay.SentEvent{
			Stream: p.id, Offset: p.offset, Length: uint32(size), Size: uint32(size), Type: kind,
			Copies: []quicrelay.SentCopy{{ID: name}},
		})
		w.copies++
		w.receive(quic.StreamID(name), p.offset, size, p.fin)
	}
	w.socket = append(w.socket, p.frame)
}

// User space.

func (w *world) read() {
	for i := range w.ring {
		w.feed.copied([]*subscriber{w.user}, &w.ring[i])
	}
	w.ring = nil
}

// handle has user space handle a datagram: first the ring, then the frame, after which the publisher may send more.
func (w *world) handle() {
	if len(w.socket) == 0 {
		return
	}
	f := w.socket[0]
	w.socket = w.socket[1:]
	w.read()
	if w.handed[f.id] == nil {
		w.handed[f.id] = &outside.Spans{}
	}
	if w.handed[f.id].Add(f.offset, end(f.offset, uint64(len(f.data)), f.fin)) == 0 {
		return // the library leaves out what has come before
	}
	w.feed.frame(w.conn, &quic.StreamFrame{
		ID: quic.StreamID(f.id), Offset: f.offset, Data: f.data, Fin: f.fin, Level: int(f.id/4) % levels, Time: w.now,
	})
	processed := uint64(0)
	for _, st := range w.feed.streams {
		if n := len(st.have); n > 0 {
			end := st.have[n-1].To
			if st.ended {
				end = min(end, st.size)
			}
			processed += end
		}
	}
	w.allowed = max(w.allowed, processed+w.window)
}

// The library's part.

func (w *world) LeaseUniStreams(n int) (first quic.StreamID, leased int) {
	first = quic.StreamID(4*w.opened + 3)
	leased = min(n, int(w.maxStreams-w.opened))
	w.opened += uint64(leased)
	return first, leased
}

func (w *world) LeaseData(n uint64) uint64 {
	n = min(n, w.maxData-w.leasedData)
	w.leasedData += n
	return n
}

func (w *world) Send(data ...quic.StreamData) {
	for _, d := range data {
		w.given++
		w.receive(d.ID, d.Offset, uint64(len(d.Data)), d.Fin)
	}
}

func (w *world) Reset(id quic.StreamID, _ quic.StreamErrorCode, finalSize uint64) {
	g := w.stream(id)
	if g.end > finalSize {
		panic(fmt.Sprintf("stream %d was reset at %d, after %d", id, finalSize, g.end))
	}
	g.end, g.final, g.reset = finalSize, int64(finalSize), true
	w.count()
}

func (w *world) Notify() {}

func (w *world) RequestACKs(int, time.Duration) bool { return false }

// The subscriber.

func (w *world) stream(id quic.StreamID) *received {
	if uint64(id)/4 >= w.maxStreams {
		panic(fmt.Sprintf("stream %d, of %d that are allowed", id, w.maxStreams))
	}
	if w.got[id] == nil {
		w.got[id] = &received{final: -1}
		w.maxStreamData[id] = max(w.maxStreamData[id], perStream)
	}
	return w.got[id]
}

func (w *world) receive(id quic.StreamID, offset, size uint64, fin bool) {
	g := w.stream(id)
	end := offset + size
	if g.final >= 0 && (end > uint64(g.final) || fin && end != uint64(g.final)) {
		panic(fmt.Sprintf("stream %d ends at %d, and has data up to %d", id, g.final, end))
	}
	if fin {
		g.final = int64(end)
	}
	g.end = max(g.end, end)
	g.data.Add(offset, end)
	if g.end > w.maxStreamData[id] {
		panic(fmt.Sprintf("stream %d: %d bytes, of %d that are allowed", id, g.end, w.maxStreamData[id]))
	}
	w.count()
}

func (w *world) count() {
	sum := uint64(0)
	for _, g := range w.got {
		sum += g.end
	}
	if sum > w.maxData {
		panic(fmt.Sprintf("%d bytes, of %d that are allowed", sum, w.maxData))
	}
}

// publish sends some packets of a stream, as far as it may. The first ones may be lost.
func (w *world) publish() {
	if len(w.lost) > 0 && w.r.IntN(3) == 0 {
		f := w.lost[0]
		w.lost = w.lost[1:]
		w.transmit(f)
		return
	}
	id := uint64(4*w.r.IntN(2+len(w.written)) + 2)
	if w.ends[id] == 0 {
		w.ends[id] = 1 + w.r.Uint64N(perStream*3/2)
	}
	sum := uint64(0)
	for _, n := range w.written {
		sum += n
	}
	burst, lost := 1, 0
	if w.r.IntN(3) == 0 {
		burst = 1 + w.r.IntN(30)
	}
	if w.r.Float64() < w.loss {
		lost = w.r.IntN(burst + 1)
	}
	for i := range burst {
		at := w.written[id]
		n := min(1+w.r.Uint64N(packet), w.ends[id]-at, w.allowed-sum)
		if n == 0 {
			return
		}
		w.written[id] = at + n
		sum += n
		f := frame{id: id, offset: at, data: make([]byte, n), fin: at+n == w.ends[id]}
		if i < lost {
			w.lost = append(w.lost, f)
		} else {
			w.transmit(f)
		}
	}
}

func (w *world) transmit(f frame) {
	if w.r.IntN(20) == 0 {
		w.lost = append(w.lost, f) // it is sent again though it arrives
	}
	w.arrive(f)
}

// step does one thing.
func (w *world) step() {
	switch w.often[w.r.IntN(len(w.often))] {
	case 0:
		w.publish()
	case 1:
		if len(w.running) > 0 {
			w.send(w.r.IntN(len(w.running)))
		}
	case 2:
		w.handle()
	case 3:
		_ = w.feed.server.quiesce(context.Background()) // no program runs for milliseconds
		w.now = w.now.Add(time.Duration(w.r.IntN(50)) * time.Millisecond)
		w.feed.tick(w.now)
	case 4:
		switch w.r.IntN(3) {
		case 0:
			sum := uint64(0)
			for _, g := range w.got {
				sum += g.end
			}
			w.maxData = max(w.maxData, sum+w.r.Uint64N(2*w.window))
		case 1:
			w.maxStreams += w.r.Uint64N(3)
		case 2:
			for id := range w.got {
				w.maxStreamData[id] += w.r.Uint64N(2000)
				w.user.raise(id, w.maxStreamData[id])
				break
			}
		}
		w.user.lease(w.limits())
		w.user.pump(w.now)
	case 5:
		d := w.feed.server.dropper
		all := d.take()
		n := w.r.IntN(len(all) + 1) // the others come later
		w.feed.server.end(context.Background(), all[:n])
		d.drops = all[n:]
	}
}

// TestCredits has things happen in any order: no limit of the subscriber is ever exceeded, and in the end, when all
// limits are raised, each stream is whole or was reset.
func TestCredits(t *testing.T) {
	copies, given, whole, reset := 0, 0, 0, 0
	for seed := range uint64(1000) {
		func() {
			w := newWorld(seed)
			defer func() {
				if p := recover(); p != nil {
					t.Errorf("seed %d: %v", seed, p)
				}
			}()
			for range 1500 {
				w.step()
			}
			w.maxData, w.maxStreams = 1<<30, 1<<20
			for id := range w.got {
				w.maxStreamData[id] = 1 << 30
				w.user.raise(id, 1<<30)
			}
			for id, end := range w.ends { // the publisher ends its streams
				at := w.written[id]
				w.lost = append(w.lost, frame{id: id, offset: at, data: make([]byte, end-at), fin: true})
			}
			w.socket = append(w.socket, w.lost...)
			_ = w.feed.server.quiesce(context.Background())
			for len(w.socket) > 0 {
				w.handle()
			}
			for range 3 {
				w.user.lease(w.limits())
				w.feed.tick(w.now)
				for id, o := range w.user.byID {
					w.maxStreamData[id], o.limit = 1<<30, 1<<30
				}
			}
			for all := w.feed.server.dropper.take(); len(all) > 0; all = w.feed.server.dropper.take() {
				w.feed.server.end(context.Background(), all)
			}
			w.user.pump(w.now)
			copies, given = copies+w.copies, given+w.given
			stats, resets, wholes, written := &w.user.stats, uint64(0), 0, uint64(0)
			for _, g := range w.got {
				if g.reset {
					resets++
				}
			}
			for id, end := range w.ends {
				written += end
				name, ok := w.names[id]
				g := w.got[quic.StreamID(name)]
				if !ok || g != nil && g.reset {
					continue
				}
				if g == nil || g.final != int64(end) || len(g.data) != 1 || g.data[0] != (outside.Span{To: end}) {
					t.Errorf("seed %d: stream %d of %d bytes isn't whole: %+v", seed, id, end, g)
				}
				wholes++
			}
			dropped := uint64(0)
			for _, n := range stats.DroppedStreams {
				dropped += n
			}
			if resets != dropped || wholes+int(resets) != len(w.ends) {
				t.Errorf("seed %d: of %d streams %d are whole, %d were reset, %d are counted as dropped",
					seed, len(w.ends), wholes, resets, dropped)
			}
			if stats.KernelBytes+stats.UserBytes+stats.DroppedBytes != written {
				t.Errorf("seed %d: %d bytes were sent by the kernel, %d by user space, %d were dropped, of %d", seed,
					stats.KernelBytes, stats.UserBytes, stats.DroppedBytes, written)
			}
			whole, reset = whole+wholes, reset+int(resets)
		}()
	}
	t.Logf("%d copies by the kernel, %d frames by user space; %d streams whole, %d reset", copies, given, whole, reset)
	if copies < 10000 || given < 10000 || whole < 1000 || reset < 100 {
		t.Error("too little happened")
	}
}

// TestForgotten has a publisher send a packet again whose stream was forgotten. The kernel copies it again, which the
// library has to know; otherwise it changes nothing.
func TestForgotten(t *testing.T) {
	w := newWorld(1)
	w.maxData, w.maxStreams = 1<<20, 1<<10
	w.user.lease(w.limits())
	w.user.pump(w.now)
	f := frame{id: 2, data: make([]byte, 100), fin: true}
	again := func() {
		for was := w.copies; w.copies == was; { // it may refuse
			w.arrive(f)
			w.send(0)
		}
	}
	again()
	for len(w.socket) > 0 {
		w.handle()
	}
	w.now = w.now.Add(w.feed.server.config.Keep + time.Second)
	w.feed.tick(w.now)
	if len(w.feed.streams) != 0 {
		t.Fatalf("%d streams are kept", len(w.feed.streams))
	}
	before, known := w.user.stats, w.user.Waiting()
	again()
	w.read()
	if got := w.user.stats; len(w.feed.streams) != 0 || got.KernelBytes != before.KernelBytes ||
		got.KernelPackets != before.KernelPackets+1 || w.user.Waiting() <= known {
		t.Errorf("%d streams are kept; before: %+v; then: %+v", len(w.feed.streams), before, got)
	}
}
