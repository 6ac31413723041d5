package relay

import (
	"context"
	"errors"
	"time"

	"github.com/fastrelay/fastrelay-gen/examples/moq/moqrelay"
	"github.com/fastrelay/fastrelay-gen/examples/quic/outside"
	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go"
)

// A leased is a stream to a relay below on which the kernel sends as well, packets of a stream of an upstream relay. It
// is written to as others are: what the kernel has sent already costs nothing, and the library gets the rest. The end
// of the stream counts as a byte after its data. The hop's mutex guards it.
type leased struct {
	hop     *hop
	id      quic.StreamID
	ctx     context.Context
	close   context.CancelCauseFunc
	key     moqrelay.NamedKey // of its row
	row     moqrelay.NamedRow
	named   bool // the kernel has the row
	urgency int8
	wake    chan struct{} // capacity 1: nothing waits any more

	chunks  []chunk       // what was written, as far as it may have to be sent again
	written uint64        // all before was written
	fin     bool          // and nothing comes after it
	done    outside.Spans // what was sent: by the kernel, or given to the library
	settled outside.Spans // of that, what won't have to be sent again by us
	reach   uint64        // where data ends that was sent
	granted uint64        // credit of MAX_DATA, up to there
	limit   uint64        // MAX_STREAM_DATA
	kernel  uint64        // bytes that the kernel had sent before they were written
	err     error         // it was given up
}

// copied is what the library keeps of a packet that the kernel has sent.
type copied struct {
	*leased
	outside.Span
}

// open opens a stream. The kernel sends what follows its first bytes, which user space has written anew.
func (h *hop) open(ctx context.Context, key moqrelay.NamedKey, first uint64) (*leased, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for !h.gone {
		if id, n := h.library.LeaseUniStreams(1); n > 0 {
			l := &leased{
				hop: h, id: id, key: key, wake: make(chan struct{}, 1), urgency: urgencyData,
				limit: h.limits.MaxStreamData,
				row:   moqrelay.NamedRow{ID: uint64(id), First: first}, named: true,
			}
			l.ctx, l.close = context.WithCancelCause(h.ctx)
			h.streams[id] = l
			l.extend()
			return l, nil
		}
		more := h.more
		h.mu.Unlock()
		select {
		case <-more:
		case <-ctx.Done():
		}
		h.mu.Lock()
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
	}
	return nil, errClosed
}

var errClosed = errors.New("the connection is closed")

// The kernel may send so much of a stream before user space has seen it, as far as the peer allows it: half of its
// window is for all streams together. Without more than the least, it sends nothing.
const (
	mostAhead  = 128 << 10
	leastAhead = 4 << 10
)

// extend has the kernel send more of the stream.
func (l *leased) extend() {
	h := l.hop
	if !l.named || h.gone || l.granted >= l.written+mostAhead/2 && l.row.Limit >= min(l.granted, l.limit) {
		return
	}
	held := uint64(0)
	for _, s := range h.streams {
		held += max(s.granted, s.written) - s.written
	}
	ahead := min(mostAhead, (max(h.window/2, held)-held)/4)
	if ahead >= leastAhead && l.granted < l.written+ahead/2 {
		l.grant(l.written + ahead)
	}
	if limit := min(l.granted, l.limit); limit > l.row.Limit {
		l.row.Limit = limit
		if err := h.named.Put(l.key, l.row); err != nil {
			h.kernel.log.Warn("a stream stays in user space", "error", err)
			l.named = false
		}
	}
}

// grant takes credit of the connection's flow control, up to an offset; it returns up to which there is some.
func (l *leased) grant(to uint64) uint64 {
	if to > l.granted {
		spare := min(l.hop.spare, to-l.granted)
		l.hop.spare -= spare
		l.granted += spare
		if to > l.granted {
			l.granted += l.hop.library.LeaseData(to - l.granted)
		}
	}
	return l.granted
}

// unname has the kernel send no more packets of the stream than those that are on their way.
func (l *leased) unname() {
	if l.named {
		l.named = false
		if l.row.Limit > 0 {
			_ = l.hop.named.Delete(l.key) // it fails if the relay is closed
		}
	}
}

// end is where what was written ends.
func (l *leased) end() uint64 {
	if l.fin {
		return l.written + 1
	}
	return l.written
}

func (l *leased) waits() bool { return len(l.done.Missing(0, l.end())) > 0 }

// add takes data that follows what was written.
func (l *leased) add(b []byte) {
	to := l.written + uint64(len(b))
	l.kernel += uint64(len(b))
	for _, s := range l.done.Missing(l.written, to) {
		l.kernel -= s.To - s.From
	}
	l.chunks = append(l.chunks, chunk{at: l.written, data: b})
	l.written = to
	l.extend()
	l.update()
}

// update takes note of what was written or sent.
func (l *leased) update() {
	h := l.hop
	for len(l.chunks) > 0 && len(l.settled) > 0 && l.settled[0].From == 0 && l.settled[0].To >= l.chunks[0].end() {
		l.chunks = l.chunks[1:]
	}
	if l.waits() {
		h.waiting[l] = struct{}{}
		return
	}
	delete(h.waiting, l)
	select {
	case l.wake <- struct{}{}:
	default:
	}
	if !l.fin {
		return
	}
	l.unname()
	l.giveBack(l.written)
	if len(l.settled) == 1 && l.settled[0] == (outside.Span{To: l.end()}) {
		delete(h.streams, l.id)
	}
}

// giveBack gives credit back that isn't needed for a stream that ends at an offset.
func (l *leased) giveBack(size uint64) {
	h := l.hop
	if l.granted <= size {
		return
	}
	h.spare += l.granted - size
	l.granted = size
	if most := h.window / 8; h.spare > most { // the library has streams, too
		h.library.ReturnData(h.spare - most)
		h.spare = most
	}
	if len(h.waiting) > 0 { // maybe for that
		go func() {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.pump(time.Now())
		}()
	}
}

// take takes what is to be sent, of at most so many bytes; it returns how many.
func (l *leased) take(room int, give *[]quic.StreamData) (taken int) {
	for _, s := range l.done.Missing(0, l.end()) {
		if room <= taken {
			break
		}
		data := min(s.To, l.written, s.From+uint64(room-taken))
		data = max(s.From, min(data, l.limit, l.grant(data)))
		to := data
		if data == l.written && s.To > l.written {
			to = s.To
		}
		if to == s.From {
			break
		}
		*give = append(*give, l.slice(outside.Span{From: s.From, To: to})...)
		l.done.Add(s.From, to)
		l.settled.Add(s.From, to)
		l.reach = max(l.reach, data)
		taken += int(data - s.From)
	}
	l.update()
	return taken
}

// slice returns what was written, in pieces that fit into packets: the library takes no larger ones.
func (l *leased) slice(s outside.Span) (parts []quic.StreamData) {
	for i := range l.chunks {
		c := &l.chunks[i]
		from, to := max(s.From, c.at), min(s.To, c.end())
		for ; from < to; from += l.hop.piece {
			data := c.data[from-c.at : min(to, from+l.hop.piece)-c.at]
			parts = append(parts, quic.StreamData{ID: l.id, Offset: from, Data: data, Urgency: l.urgency})
		}
	}
	if s.To <= l.written {
		return parts
	}
	if len(parts) == 0 {
		return []quic.StreamData{{ID: l.id, Offset: l.written, Fin: true, Urgency: l.urgency}}
	}
	parts[len(parts)-1].Fin = true
	return parts
}

// copied takes note of what the kernel has sent.
func (l *leased) copied(offset, length uint64, fin bool) any {
	s := outside.Span{From: offset, To: offset + length}
	l.reach = max(l.reach, s.To)
	if fin {
		s.To++
	}
	l.done.Add(s.From, s.To)
	if l.err != nil {
		return nil
	}
	l.update()
	return copied{l, s}
}

// settle takes note of what was acknowledged.
func (l *leased) settle(s outside.Span) {
	l.settled.Add(s.From, s.To)
	if l.err == nil {
		l.update()
	}
}

// lost returns what was lost, as far as it was written. The rest is sent when it is.
func (l *leased) lost(s outside.Span) []quic.StreamData {
	if l.err != nil {
		return nil
	}
	if end := l.end(); s.To > end {
		l.done.Remove(max(s.From, end), s.To)
		s.To = max(s.From, end)
	}
	var parts []quic.StreamData
	for _, m := range l.settled.Missing(s.From, s.To) {
		parts = append(parts, l.slice(m)...)
	}
	l.settle(s)
	return parts
}

// try writes if all that was written before was sent, and this can be sent now.
func (l *leased) try(b []byte) error {
	h := l.hop
	h.mu.Lock()
	defer h.mu.Unlock()
	to := l.written + uint64(len(b))
	missing := 0
	for _, s := range l.done.Missing(l.written, to) {
		missing += int(s.To - s.From)
	}
	now := time.Now()
	switch {
	case l.err != nil:
		return l.err
	case l.waits():
		return quic.ErrWouldBlock
	case missing > 0 && (h.gone || len(h.waiting) > 0 || missing > h.room(now) || to > l.limit || to > l.grant(to)):
		return quic.ErrWouldBlock
	}
	l.add(b)
	if missing > 0 {
		var give []quic.StreamData
		n := l.take(missing, &give)
		h.send(give, n, now)
	}
	return nil
}

func (l *leased) TryWriteAll(b []byte) error  { return l.try(b) }
func (l *leased) TryWriteNext(b []byte) error { return l.try(b) }

// TakeNext returns nil: what the kernel may send isn't the stream's to give away.
func (l *leased) TakeNext([]byte) *quic.OutsideFrame { return nil }

// Write returns when all is sent, or given to the library.
func (l *leased) Write(b []byte) (int, error) {
	h := l.hop
	h.mu.Lock()
	defer h.mu.Unlock()
	if l.err != nil {
		return 0, l.err
	}
	l.add(b)
	h.pump(time.Now())
	for l.err == nil && l.waits() {
		h.mu.Unlock()
		select {
		case <-l.wake:
		case <-l.ctx.Done():
		}
		h.mu.Lock()
		if l.err == nil && l.ctx.Err() != nil {
			return 0, context.Cause(l.ctx)
		}
	}
	if l.err != nil {
		return 0, l.err
	}
	return len(b), nil
}

// Close ends the stream.
func (l *leased) Close() error {
	h := l.hop
	h.mu.Lock()
	defer h.mu.Unlock()
	if l.err != nil || l.fin {
		return l.err
	}
	l.fin = true
	l.close(quic.ErrStreamClosed)
	l.update()
	h.pump(time.Now())
	return nil
}

// CancelWrite gives the stream up.
func (l *leased) CancelWrite(code quic.StreamErrorCode) {
	l.hop.mu.Lock()
	defer l.hop.mu.Unlock()
	l.cancel(&quic.StreamError{StreamID: l.id, ErrorCode: code})
}

func (l *leased) cancel(why *quic.StreamError) {
	h := l.hop
	if l.err != nil || h.streams[l.id] != l { // all of it has arrived
		return
	}
	l.err = why
	l.chunks = nil
	delete(h.waiting, l)
	l.unname()
	l.close(why)
	h.kernel.reset(l)
}

// abandon resets a stream that was given up, of which the kernel sends nothing any more.
func (l *leased) abandon() {
	h := l.hop
	h.mu.Lock()
	defer h.mu.Unlock()
	var why *quic.StreamError
	if errors.As(l.err, &why) && !h.gone {
		h.library.Reset(l.id, why.ErrorCode, l.reach)
		l.giveBack(l.reach)
	}
	delete(h.streams, l.id)
}

// SetPriority says how urgent the stream is.
func (l *leased) SetPriority(urgency int8, _ bool) {
	l.hop.mu.Lock()
	defer l.hop.mu.Unlock()
	l.urgency = urgency
}

// SetReliableBoundary does nothing: a reset leaves nothing of the stream.
func (l *leased) SetReliableBoundary() {}

// Context ends with the stream.
func (l *leased) Context() context.Context { return l.ctx }

// byKernel returns how many more bytes the kernel has sent.
func (l *leased) byKernel() (n uint64) {
	l.hop.mu.Lock()
	defer l.hop.mu.Unlock()
	n, l.kernel = l.kernel, 0
	return n
}
