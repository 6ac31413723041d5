package server

import (
	"slices"
	"time"

	"github.com/fastrelay/fastrelay-gen/examples/quic/acks"
	"github.com/fastrelay/fastrelay-gen/examples/quic/outside"
	"github.com/fastrelay/fastrelay-gen/examples/quic/quicrelay"
	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go"
)

// levels is how many levels of priority there are.
const levels = 4

// Codes of RESET_STREAM and of CONNECTION_CLOSE.
const (
	codeDropped = 1 // data of the stream couldn't be sent in time
	codeEnded   = 2 // the stream's publisher is gone, or has reset it
	codeRequest = 3 // the client's request isn't one
)

// A library is what a subscriber needs of its connection (quic.Outside).
type library interface {
	outside.Library
	LeaseUniStreams(n int) (first quic.StreamID, leased int)
	LeaseData(n uint64) (leased uint64)
	Send(data ...quic.StreamData)
	Reset(id quic.StreamID, code quic.StreamErrorCode, finalSize uint64)
	RequestACKs(packets int, delay time.Duration) bool
}

// A kernel is the part of a subscriber that the kernel works on.
type kernel interface {
	setData(limit uint64) // of its budget
	setWindow(limit uint64)
	setUrgent(level int)                                                  // the most urgent one that is in use
	setIDs(end quic.StreamID)                                             // of the leased stream IDs
	takeID(end quic.StreamID) (quic.StreamID, bool)                       // one of them
	name(number uint64) (id quic.StreamID, ok bool)                       // a stream's ID, if it has one
	setName(number uint64, id quic.StreamID) (now quic.StreamID, ok bool) // gives it one, unless it has
	forwards(number uint64) bool                                          // whether it sends packets of a stream
	finished(numbers []uint64, floor uint64) (left []uint64)              // what is over, and the first that isn't
	withhold(number uint64) error                                         // a stream
	setPath(largestAcked int64, size int)
	stop()
}

// A subscriber gets the streams of a feed. The feed's mutex guards it.
type subscriber struct {
	feed    *feed
	id      uint32
	library library
	outside.Sender
	kernel kernel          // nil: user space sends all
	sealer *outside.Sealer // of a protected connection; nil: the library makes all packets

	close     func()
	datagrams chan []byte // for the library

	begin   uint64 // the number of the first stream that it gets
	streams map[uint64]*outgoing
	byID    map[quic.StreamID]*outgoing
	retired []uint64 // streams that are over, and may have a translation in the kernel
	queue   [levels][]piece
	queued  int // bytes in queue

	limits  quic.Limits
	nextID  quic.StreamID // of the leased stream IDs; the kernel's counter if there is a kernel
	endID   quic.StreamID
	spare   []quic.StreamID // that were taken, and no stream has
	starved bool            // a stream waits for an ID
	// How many streams were dropped, by code, before there was an ID for them.
	unopened   map[quic.StreamErrorCode]int
	leasedIDs  uint64
	budget     budget
	packetSize int // the largest UDP payload that the path takes
	ecn        quic.ECN
	steering   *steering // nil: the library decides the window
	requests   acks.Requests
	gone       bool

	stats SubscriberStats
}

// A piece is a part of a stream that user space has to send.
type piece struct {
	of *outgoing
	outside.Span
	at time.Time // when the data came
}

// An outgoing is a stream as a subscriber gets it.
type outgoing struct {
	of    *subscriber
	st    *stream
	id    quic.StreamID
	hasID bool
	done  outside.Spans // sent by the kernel, or given to the library
	reach
	limit   uint64 // MAX_STREAM_DATA
	dropped bool   // given up,
	ended   bool   // so that the kernel sends nothing of it any more,
	reset   bool   // and the subscriber knows, or will know
	unsent  uint64 // bytes of what was dropped: as counted
}

// copied is what a copy that the kernel sent carries: what quic.OutsidePacket has as User.
type copied struct {
	*outgoing
	outside.Span
	dataEnd uint64
}

func (u *subscriber) outgoing(st *stream) *outgoing {
	o := u.streams[st.number]
	if o == nil {
		o = &outgoing{of: u, st: st, limit: u.limits.MaxStreamData}
		u.streams[st.number] = o
	}
	return o
}

// offer takes note of data that has come; what the kernel hasn't sent of it is queued.
func (u *subscriber) offer(st *stream, c *chunk) {
	if st.number < u.begin || u.gone {
		return
	}
	o := u.outgoing(st)
	u.budget.see(&o.reach, c.dataEnd())
	if o.dropped {
		u.countUnsent(o)
		return
	}
	for _, part := range o.done.Missing(c.offset, c.end()) {
		u.queue[st.level] = append(u.queue[st.level], piece{o, part, c.at})
		u.queued += int(part.To - part.From)
	}
}

// copiedByKernel takes note of a copy of a packet; st is nil if its stream was forgotten.
func (u *subscriber) copiedByKernel(st *stream, e *quicrelay.SentEvent, c *quicrelay.SentCopy) {
	if st == nil {
		u.sentByKernel(e, c, nil)
		return
	}
	o, dataEnd := u.outgoing(st), e.Offset+uint64(e.Length)
	u.named(o, quic.StreamID(c.ID))
	part := outside.Span{From: e.Offset, To: end(e.Offset, uint64(e.Length), e.Type&1 != 0)}
	u.stats.KernelBytes += o.done.Add(part.From, dataEnd)
	o.done.Add(part.From, part.To)
	if o.dropped {
		u.countUnsent(o)
	}
	u.budget.send(&o.reach, dataEnd)
	u.sentByKernel(e, c, copied{o, part, dataEnd})
}

// sentByKernel takes note of a packet, for which user is the library's OutsidePacket's.
func (u *subscriber) sentByKernel(e *quicrelay.SentEvent, c *quicrelay.SentCopy, user any) {
	u.stats.KernelPackets++
	u.budget.charged += uint64(e.Length)
	u.Sent(quic.OutsidePacket{Number: c.PN, Time: e.Time, Size: int(e.Size), User: user})
}

// pump gives the library what is queued, as far as there is room and credit, and then sets the kernel's limits.
func (u *subscriber) pump(now time.Time) {
	if u.gone || u.kernel == nil && u.queued == 0 && len(u.unopened) == 0 {
		return
	}
	backlog := u.Backlog(now)
	window := u.Room
	if u.steering != nil {
		window = min(window, u.steering.room())
	}
	room := window - u.Waiting() - backlog
	if u.kernel != nil {
		u.kernel.setData(u.budget.limit())
	}
	u.starved = false
	var give []quic.StreamData
	var expired []*outgoing
	given := 0
	for level, pieces := range u.queue {
		var kept []piece
		for i, p := range pieces {
			if given >= room {
				kept = append(kept, pieces[i:]...)
				break
			}
			before := len(give)
			if !u.take(p, &give, &kept) {
				expired = append(expired, p.of)
			}
			for _, d := range give[before:] {
				given += len(d.Data)
			}
		}
		u.queue[level] = kept
	}
	for _, o := range expired {
		u.drop(o, codeDropped)
	}
	if backlog == 0 {
		give = u.seal(give, u.Room-u.Waiting())
	}
	if len(give) > 0 {
		given = 0
		for _, d := range give {
			given += len(d.Data)
		}
		u.Give(given, now)
		backlog = u.Backlog(now)
		u.library.Send(give...)
	}
	if u.kernel != nil {
		u.kernel.setData(u.budget.limit())
		if u.steering != nil && backlog == 0 && u.queued == 0 {
			window = u.steering.room()
		}
		u.kernel.setWindow(u.Limit(window, backlog))
	}
	u.lighten(now)
	if !u.starved {
		u.resetUnopened()
	}
}

// take appends what is to be sent of a piece, and what has to wait for credit; ok is false if the data is gone.
func (u *subscriber) take(p piece, give *[]quic.StreamData, wait *[]piece) (ok bool) {
	o := p.of
	u.queued -= int(p.To - p.From)
	for _, part := range o.done.Missing(p.From, p.To) {
		first := part
		if limit := min(o.limit, o.reach.sent+u.budget.room()); o.st.dataEnd(part) > limit {
			first.To = max(part.From, limit)
		}
		if first != part {
			*wait = append(*wait, piece{o, outside.Span{From: first.To, To: part.To}, p.at})
			u.queued += int(part.To - first.To)
		}
		if first.From == first.To {
			continue
		}
		parts, kept := o.st.slice(first)
		if !kept {
			return false
		}
		if !u.giveID(o) {
			u.starved = true
			*wait = append(*wait, piece{o, first, p.at})
			u.queued += int(first.To - first.From)
			continue
		}
		for i := range parts {
			parts[i].ID = o.id
			u.stats.UserBytes += uint64(len(parts[i].Data))
		}
		*give = append(*give, parts...)
		o.done.Add(first.From, first.To)
		u.budget.send(&o.reach, o.st.dataEnd(first))
	}
	return true
}

// lost returns the data of a copy that was lost, for the library to send.
func (u *subscriber) lost(c copied) []quic.StreamData {
	if u.gone || c.dropped {
		return nil
	}
	if len(c.st.have.Missing(c.From, c.To)) > 0 {
		// The publisher's frame is still on its way from the socket: its data is queued when it comes.
		u.stats.KernelBytes -= c.done.Remove(c.From, c.dataEnd)
		c.done.Remove(c.From, c.To)
		return nil
	}
	parts, ok := c.st.slice(c.Span)
	if !ok {
		u.drop(c.outgoing, codeDropped)
		return nil
	}
	again := 0
	for i := range parts {
		parts[i].ID = c.id
		u.stats.RetransmittedBytes += uint64(len(parts[i].Data))
		again += len(parts[i].Data)
	}
	if u.steering != nil {
		u.Give(again, time.Now())
	}
	return parts
}

// lighten drops what has waited for too long, and of what is too much the least urgent. If something urgent has waited
// for too long, what is less urgent waits in vain.
func (u *subscriber) lighten(now time.Time) {
	keep, old := u.feed.server.config.Keep, levels
	for level := range u.queue {
		if len(u.queue[level]) > 0 && now.Sub(u.queue[level][0].at) > keep {
			old = level
			break
		}
	}
	for level := levels - 1; level >= 0; level-- {
		for len(u.queue[level]) > 0 && (u.queued > u.feed.server.config.Backlog || level > old ||
			level == old && now.Sub(u.queue[level][0].at) > keep) {
			u.drop(u.queue[level][0].of, codeDropped)
		}
	}
}

// drop gives a stream up: nothing more of it is sent, and it is reset when the kernel sends nothing of it any more.
func (u *subscriber) drop(o *outgoing, code quic.StreamErrorCode) {
	if o.dropped {
		return
	}
	o.dropped = true
	if code == codeDropped && slices.ContainsFunc(u.queue[o.st.level+1:], func(q []piece) bool { return len(q) > 0 }) {
		u.stats.DroppedBefore++
	}
	if code == codeEnded {
		u.stats.EndedStreams++
	} else {
		u.stats.DroppedStreams[o.st.level]++
	}
	u.countUnsent(o)
	for level := range u.queue {
		u.queue[level] = slices.DeleteFunc(u.queue[level], func(p piece) bool {
			if p.of == o {
				u.queued -= int(p.To - p.From)
			}
			return p.of == o
		})
	}
	u.feed.server.dropper.add(o, code)
}

// countUnsent counts what has come of a stream that was dropped, and wasn't sent.
func (u *subscriber) countUnsent(o *outgoing) {
	n := uint64(0)
	for _, received := range o.st.have {
		for _, part := range o.done.Missing(received.From, o.st.dataEnd(received)) {
			n += part.To - part.From
		}
	}
	u.stats.DroppedBytes += n - o.unsent
	o.unsent = n
}

// end ends a stream that was dropped: the kernel sends nothing of it any more.
func (u *subscriber) end(o *outgoing, code quic.StreamErrorCode) {
	o.ended = true
	if u.gone || o.reset {
		return
	}
	o.reset = true
	if u.giveID(o) {
		u.library.Reset(o.id, code, o.reach.sent)
	} else {
		u.unopened[code]++
	}
}

// resetUnopened resets streams that were dropped before they had an ID, of which nothing was sent, as far as there are
// IDs now.
func (u *subscriber) resetUnopened() {
	for code, n := range u.unopened {
		for ; n > 0; n-- {
			id, ok := u.takeID()
			if !ok {
				break
			}
			u.library.Reset(id, code, 0)
		}
		u.unopened[code] = n
	}
}

// reserved is credit that is left to the library, for streams of its own.
const reserved = 4096

// lease takes what the peer allows.
func (u *subscriber) lease(l quic.Limits) {
	u.limits = l
	if l.MaxUniStreams > u.leasedIDs {
		first, n := u.library.LeaseUniStreams(int(l.MaxUniStreams - u.leasedIDs))
		if u.endID == 0 {
			u.nextID = first
		}
		if n > 0 {
			u.endID = first + 4*quic.StreamID(n)
			u.leasedIDs += uint64(n)
		}
	}
	if keep := u.budget.leased + min(reserved, l.MaxData/16); l.MaxData > keep {
		u.budget.leased += u.library.LeaseData(l.MaxData - keep)
	}
	if u.kernel != nil {
		u.kernel.setIDs(u.endID)
	}
}

// giveID gives a stream its ID, if there is one left.
func (u *subscriber) giveID(o *outgoing) bool {
	if o.hasID {
		return true
	}
	named := u.kernel != nil && u.kernel.forwards(o.st.number)
	if named {
		if id, ok := u.kernel.name(o.st.number); ok {
			u.named(o, id)
			return true
		}
	}
	id, ok := u.takeID()
	if !ok {
		return false
	}
	if named {
		var now quic.StreamID
		if now, ok = u.kernel.setName(o.st.number, id); now != id || !ok {
			u.spare = append(u.spare, id) // the kernel has named it meanwhile
		}
		id = now
	}
	if ok {
		u.named(o, id)
	}
	return ok
}

// takeID returns a leased stream ID that no stream has.
func (u *subscriber) takeID() (id quic.StreamID, ok bool) {
	switch n := len(u.spare); {
	case n > 0:
		id, ok = u.spare[n-1], true
		u.spare = u.spare[:n-1]
	case u.kernel != nil:
		id, ok = u.kernel.takeID(u.endID)
	case u.nextID < u.endID:
		id, ok = u.nextID, true
		u.nextID += 4
	}
	return id, ok
}

func (u *subscriber) named(o *outgoing, id quic.StreamID) {
	o.id, o.hasID = id, true
	u.byID[id] = o
}

// raise takes a MAX_STREAM_DATA frame.
func (u *subscriber) raise(id quic.StreamID, limit uint64) {
	if o := u.byID[id]; o != nil && limit > o.limit {
		o.limit = limit
		u.pump(time.Now())
	}
}

// unwanted takes a STOP_SENDING frame.
func (u *subscriber) unwanted(id quic.StreamID, code quic.StreamErrorCode) {
	if o := u.byID[id]; o != nil {
		u.drop(o, code)
	}
}

// setPath takes what may be sent on the path.
func (u *subscriber) setPath(p quic.PathState) {
	u.Size, u.Room, u.packetSize, u.ecn = p.CongestionWindow, p.Window, p.MaxPacketSize, p.ECN
	if u.steering != nil {
		sent, lost := u.Traffic()
		u.steering.update(p, sent, lost, time.Now())
	}
	u.thin(p.CongestionWindow, p.MaxPacketSize)
	if u.kernel != nil {
		u.kernel.setPath(p.LargestAcked, p.MaxPacketSize)
	}
	u.pump(time.Now())
}

// thin asks the subscriber for fewer ACKs.
func (u *subscriber) thin(window, size int) {
	if u.steering != nil && window > 0 {
		window = min(window, u.steering.bytes())
	}
	u.requests.Update(u.library, u.feed.server.config.ACKs, window, size)
}

// handOver has the library learn of ACKs that the kernel took, and of copies. It reports whether there is, or will be,
// something to do, and whether ACKs are urgent.
func (u *subscriber) handOver(now time.Time) (any, urgent bool) {
	if u.gone {
		return false, false
	}
	if u.kernel != nil {
		size, room := u.Size, u.Room
		if u.steering != nil {
			size, room = u.steering.bytes(), u.steering.room()
		}
		urgent = u.IsUrgent(u.queued > 0, size, room)
	}
	return u.HandOver(now, urgent), urgent
}
