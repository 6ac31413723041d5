package server

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/fastrelay/fastrelay-gen/examples/quic/outside"
	"github.com/fastrelay/fastrelay-gen/examples/quic/quicrelay"
	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go"
)

// A feed is what one publisher at a time sends to its subscribers. Its streams are numbered from one publisher to the
// next: a publisher's stream IDs are added to where the one before has ended.
type feed struct {
	server *Server
	name   string
	id     uint32
	group  *quicrelay.SubscribersGroup // nil: no subscriber is in the kernel yet; guarded by the server's opening

	mu          sync.Mutex
	publisher   *conn // nil: there is none now
	base        uint64
	next        uint64 // the number after the highest one
	streams     map[uint64]*stream
	over        outside.Spans // the numbers of streams that were forgotten
	subscribers []*subscriber
	received    uint64              // bytes of data
	loose       uint64              // datagrams that were received
	used        [levels]time.Time   // when the publisher last sent something of each level of priority
	urgent      int                 // the most urgent level that is in use
	datagrams   map[datagram]copies // that are on their way from the socket
	left        SubscriberStats
}

func (f *feed) stream(number uint64) *stream {
	st := f.streams[number]
	if st == nil {
		st = &stream{number: number, level: levels - 1}
		f.streams[number] = st
		f.next = max(f.next, number+4)
	}
	return st
}

// frame takes a STREAM frame of the publisher: each subscriber gets what the kernel hasn't sent it.
func (f *feed) frame(from *conn, fr *quic.StreamFrame) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.publisher != from {
		return
	}
	st := f.stream(f.base + uint64(fr.ID))
	if fr.Level >= 0 && len(st.chunks) == 0 {
		st.level = min(fr.Level, levels-1)
	}
	c, added := st.add(fr)
	f.received += added
	f.use(st.level, c.at)
	for _, u := range f.subscribers {
		u.offer(st, c)
		if u.kernel == nil || u.queued > 0 { // else the kernel has sent it, and its limits are what they were
			u.pump(c.at)
		}
	}
}

// inUse is how long a level of priority stays in use after something of it came.
const inUse = time.Second

// use notes that something of a level came. The kernel keeps a subscriber's window free for it from now on.
func (f *feed) use(level int, at time.Time) {
	f.used[level] = at
	f.setUrgent(min(f.urgent, level))
}

// idle takes levels out of use of which nothing came for a while.
func (f *feed) idle(now time.Time) {
	level := f.urgent
	for level < levels-1 && now.Sub(f.used[level]) > inUse {
		level++
	}
	f.setUrgent(level)
}

func (f *feed) setUrgent(level int) {
	if f.urgent == level {
		return
	}
	f.urgent = level
	for _, u := range f.subscribers {
		if u.kernel != nil {
			u.kernel.setUrgent(level)
		}
	}
}

// resetStream ends a stream that its publisher has reset.
func (f *feed) resetStream(from *conn, id quic.StreamID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.publisher == from {
		f.abandon(f.stream(f.base + uint64(id)))
	}
}

// abandon ends a stream of which no more will come.
func (f *feed) abandon(st *stream) {
	st.reset = true
	for _, u := range f.subscribers {
		if st.number >= u.begin && !u.gone {
			u.drop(u.outgoing(st), codeEnded)
		}
	}
}

// publish makes a connection the feed's publisher, unless there is one.
func (f *feed) publish(c *conn) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.publisher != nil {
		return false
	}
	f.publisher, f.base = c, (f.next+3)&^3
	return true
}

// unpublish ends the streams that a publisher has left open.
func (f *feed) unpublish(c *conn) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.publisher != c {
		return
	}
	f.publisher = nil
	for _, st := range f.streams {
		if !st.whole() && !st.reset {
			f.abandon(st)
		}
	}
}

// join adds a subscriber. It begins with the newest stream that is kept from its beginning, or with the next one.
func (f *feed) join(u *subscriber, now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	u.begin = f.next
	var first *stream
	for _, st := range f.streams {
		if st.fromStart() && (first == nil || st.number > first.number) {
			first = st
		}
	}
	f.subscribers = append(f.subscribers, u)
	if first == nil {
		return
	}
	u.begin = first.number
	for i := range first.chunks {
		u.offer(first, &first.chunks[i])
	}
	u.pump(now)
}

// leave removes a subscriber, whose connection is closed.
func (f *feed) leave(u *subscriber) {
	f.mu.Lock()
	defer f.mu.Unlock()
	u.gone = true
	if u.kernel != nil {
		u.kernel.stop()
	}
	f.subscribers = slices.DeleteFunc(f.subscribers, func(v *subscriber) bool { return v == u })
	f.left.add(&u.stats)
}

// copied takes note of the copies that the kernel sent of a packet, and to whom: nil who is gone.
func (f *feed) copied(to []*subscriber, e *quicrelay.SentEvent) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var st *stream
	if f.streams[e.Stream] != nil || !f.over.Contain(e.Stream) { // else the publisher has sent it again, much later
		st = f.stream(e.Stream)
	}
	for i, u := range to {
		if u != nil {
			u.copiedByKernel(st, e, &e.Copies[i])
		}
	}
}

// A datagram is what the kernel knows of the packet of a datagram: the lowest bytes of its number.
type datagram struct {
	number uint32
	size   uint8 // of the number, in bytes
}

// copies are what the kernel has sent of a datagram.
type copies struct {
	to []*subscriber
	at time.Time
}

// copiedDatagram takes note of the copies that the kernel sent of a datagram.
func (f *feed) copiedDatagram(to []*subscriber, e *quicrelay.DatagramEvent) {
	f.mu.Lock()
	defer f.mu.Unlock()
	d := datagram{e.Was, e.WasSize}
	c := copies{f.datagrams[d].to, e.Time}
	for i, u := range to {
		if u == nil {
			continue
		}
		c.to = append(c.to, u)
		u.stats.KernelDatagrams++
		u.Sent(quic.OutsidePacket{Number: e.Copies[i].PN, Time: e.Time, Size: int(e.Size)})
	}
	f.datagrams[d] = c
}

// datagram takes a DATAGRAM frame of the publisher. Subscribers to whom the kernel hasn't copied it get it if there is
// room now.
func (f *feed) datagram(from *conn, r *quic.ReceivedDatagram) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.publisher != from {
		return
	}
	f.loose++
	if r.Level >= 0 {
		f.use(min(r.Level, levels-1), time.Now())
	}
	var have []*subscriber
	for size := uint8(1); size <= 4; size++ {
		d := datagram{uint32(r.Number & (1<<(8*size) - 1)), size}
		if c, ok := f.datagrams[d]; ok {
			have = c.to
			delete(f.datagrams, d)
		}
	}
	var data []byte
	for _, u := range f.subscribers {
		if slices.Contains(have, u) {
			continue
		}
		if data == nil {
			data = slices.Clone(r.Data)
		}
		select {
		case u.datagrams <- data:
			u.stats.UserDatagrams++
		default:
			u.stats.DroppedDatagrams++
		}
	}
}

// acked takes an ACK that the kernel took from a subscriber.
func (f *feed) acked(u *subscriber, e *quicrelay.AckedEvent) {
	f.mu.Lock()
	defer f.mu.Unlock()
	u.stats.ACKs++
	u.Acked(&outside.Acked{
		PN: e.PN, PNSize: e.PNSize, Size: e.Size, Type: e.Type, Largest: e.Largest, Delay: e.Delay, First: e.First,
		ECT0: e.Ect0, ECT1: e.Ect1, CE: e.Ce, Time: e.Time,
	})
}

// ending reports whether a subscriber's stream was dropped, and isn't reset yet.
func (f *feed) ending(number uint64) bool {
	return slices.ContainsFunc(f.subscribers, func(u *subscriber) bool {
		o := u.streams[number]
		return o != nil && o.dropped && !o.ended
	})
}

// tick forgets what is over, and drops what has waited for too long. It reports whether the kernel sends to some
// subscribers, and to all, all there is.
func (f *feed) tick(now time.Time) (some, all bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.idle(now)
	keep := f.server.config.Keep
	maps.DeleteFunc(f.datagrams, func(_ datagram, c copies) bool { return now.Sub(c.at) > keep })
	floor := f.next
	var over []uint64
	for number, st := range f.streams {
		st.expire(now, keep)
		if (st.whole() || st.reset) && len(st.chunks) == 0 && !f.ending(number) {
			over = append(over, number)
		} else {
			floor = min(floor, number)
		}
	}
	all = f.publisher == nil || f.publisher.isFast()
	for _, u := range f.subscribers {
		some, all = some || u.kernel != nil, all && u.kernel != nil
		u.pump(now)
		for _, number := range over {
			if o, ok := u.streams[number]; ok {
				delete(u.streams, number)
				delete(u.byID, o.id)
				u.retired = append(u.retired, number)
			}
		}
		if u.kernel != nil && len(u.retired) > 0 {
			u.retired = u.kernel.finished(u.retired, floor)
		}
	}
	for _, number := range over {
		delete(f.streams, number)
		f.over.Add(number, number+4)
	}
	return some, all
}
