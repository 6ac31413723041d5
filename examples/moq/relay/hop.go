package relay

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fastrelay/fastrelay-gen/examples/moq/moqrelay"
	"github.com/fastrelay/fastrelay-gen/examples/quic/outside"
	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go"
	"github.com/fastrelay/fastrelay-gen/runtime"
)

// A library is what a hop needs of its connection (quic.Outside).
type library interface {
	LeaseUniStreams(n int) (first quic.StreamID, leased int)
	LeaseData(n uint64) (leased uint64)
	ReturnData(n uint64)
	Send(data ...quic.StreamData)
	Reset(id quic.StreamID, code quic.StreamErrorCode, finalSize uint64)
}

// A hop is a connection with a relay below, on which the kernel sends what comes from one upstream relay. Its mutex is
// taken after all others.
type hop struct {
	kernel   *kernel
	conn     *connection
	ctx      context.Context // the connection's
	library  library
	upstream *upstream
	group    *moqrelay.ReceiversGroup
	id       uint32
	receiver *moqrelay.ReceiversReceiver
	named    names
	ready    atomic.Bool // the kernel may send

	updating sync.Mutex // of the receiver's row

	mu sync.Mutex
	outside.Sender
	limits  quic.Limits
	piece   uint64        // the most data of a packet
	window  uint64        // of flow control, as it was at first
	spare   uint64        // credit of flow control that no stream has
	more    chan struct{} // is closed when the peer allows more
	streams map[quic.StreamID]*leased
	waiting map[*leased]struct{} // those of which user space has something to send
	// The kernel sends nothing while the peer's address or connection ID was changed, and the row wasn't.
	changes, changed int
	gone             bool
}

// names are the kernel's rows of streams.
type names interface {
	Put(key moqrelay.NamedKey, row moqrelay.NamedRow) error
	Delete(key moqrelay.NamedKey) error
}

// newHop has the kernel send to a relay below.
func (k *kernel) newHop(ctx context.Context, c *connection, u *upstream) error {
	group, err := k.group(ctx, u)
	if err != nil {
		return err
	}
	q := c.quic.Load()
	h := &hop{
		kernel: k, conn: c, ctx: ctx, library: q.Outside(), upstream: u, group: group, id: k.nextID(),
		named: k.relay.Named,
		more:  make(chan struct{}), streams: map[quic.StreamID]*leased{}, waiting: map[*leased]struct{}{},
		Sender: outside.Sender{Library: q.Outside(), Traffic: func() (sent, lost uint64) {
			s := q.ConnectionStats()
			return s.BytesSent, s.BytesLost
		}},
	}
	row := moqrelay.ReceiversRow{Local: k.local, ID: h.id}
	if row.Remote, row.DCID, err = c.destination(); err != nil {
		return err
	}
	if h.receiver, err = group.Add(ctx, row); err != nil { // without credit, it gets no copies yet
		return err
	}
	k.mu.Lock()
	k.hops[h.id], k.receivers[h.receiver] = h, h
	k.mu.Unlock()
	c.hop.Store(h)
	context.AfterFunc(ctx, h.remove)
	if err := q.Outside().ShareNumbers(ctx, h.receiver.State.Next.Memory()); err != nil {
		return err
	}
	c.mu.Lock()
	path, limits := c.path, c.limits
	c.mu.Unlock()
	h.mu.Lock()
	h.window = limits.MaxData
	h.mu.Unlock()
	h.setLimits(limits)
	h.setPath(path)
	if err := c.enter(moqrelay.ConnectionsRow{Hop: h.id}); err != nil {
		return err
	}
	h.ready.Store(true)
	return nil
}

// remove removes all that the kernel has of a connection that is closed.
func (h *hop) remove() {
	k := h.kernel
	k.mu.Lock()
	delete(k.hops, h.id)
	delete(k.receivers, h.receiver)
	k.mu.Unlock()
	if err := h.receiver.Remove(context.Background()); err != nil && !errors.Is(err, runtime.ErrClosed) {
		k.log.Warn("the kernel keeps a row of a connection that is closed", "error", err)
	}
}

// stop has the kernel send nothing any more: the connection is closed.
func (h *hop) stop() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.gone {
		return
	}
	h.gone = true
	h.receiver.State.Window.SetLimit(0)
	close(h.more)
	for _, l := range h.streams {
		l.unname()
	}
}

// destination is where the peer's packets go.
func (c *connection) destination() (at netip.AddrPort, id [8]byte, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.active.Len() != 8 {
		return at, id, errors.New("its connection IDs don't have 8 bytes")
	}
	return c.remote, [8]byte(c.active.Bytes()), nil
}

// follow has the kernel send to the peer's new address, or with its new connection ID. Until then it sends nothing.
func (h *hop) follow() {
	h.mu.Lock()
	h.changes++
	change := h.changes
	if !h.gone {
		h.receiver.State.Window.SetLimit(0)
	}
	h.mu.Unlock()
	go func() { // a change waits for the kernel
		h.updating.Lock()
		defer h.updating.Unlock()
		remote, id, err := h.conn.destination()
		if err == nil {
			err = h.receiver.Update(h.ctx, func(r *moqrelay.ReceiversRow) { r.Remote, r.DCID = remote, id })
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		if err != nil {
			if !h.gone {
				h.kernel.log.Warn("a relay below goes back to user space", "remote", remote, "error", err)
			}
			return
		}
		h.changed = change
		h.pump(time.Now())
	}()
}

// overhead is what a packet has at most beside a stream's data: its header with a number of 4 bytes, type, stream ID,
// offset, length, and the tag.
const overhead = 1 + 8 + 4 + 1 + 8 + 8 + 2 + 16

// setPath takes what may be sent on the path.
func (h *hop) setPath(p quic.PathState) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.gone || p.MaxPacketSize <= overhead {
		return
	}
	h.Size, h.Room = p.CongestionWindow, p.Window
	h.receiver.State.Acked.Store(uint64(max(0, p.LargestAcked)))
	h.receiver.State.Size.Store(uint64(p.MaxPacketSize))
	h.piece = uint64(p.MaxPacketSize - overhead)
	h.pump(time.Now())
}

// setLimits takes what the peer allows.
func (h *hop) setLimits(l quic.Limits) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.gone {
		return
	}
	h.limits = l
	close(h.more)
	h.more = make(chan struct{})
	h.pump(time.Now())
}

// raise takes MAX_STREAM_DATA.
func (h *hop) raise(id quic.StreamID, limit uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if l := h.streams[id]; l != nil && limit > l.limit {
		l.limit = limit
		l.extend()
		h.pump(time.Now())
	}
}

// stopped takes STOP_SENDING.
func (h *hop) stopped(id quic.StreamID, code quic.StreamErrorCode) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if l := h.streams[id]; l != nil {
		l.cancel(&quic.StreamError{StreamID: id, ErrorCode: code, Remote: true})
	}
}

// copied takes note of a packet that the kernel has sent.
func (h *hop) copied(e *moqrelay.SentEvent, c *moqrelay.SentCopy) {
	h.mu.Lock()
	defer h.mu.Unlock()
	p := quic.OutsidePacket{Number: c.PN, Time: e.Time, Size: int(e.Size)}
	if l := h.streams[quic.StreamID(c.ID)]; l != nil {
		p.User = l.copied(e.Offset, uint64(e.Length), e.Type&1 != 0)
	}
	h.Sent(p)
}

func (h *hop) acked(a *outside.Acked) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.Acked(a)
}

func (h *hop) register(register func(quic.OutsidePacket)) []quic.ACK {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.Register(register)
}

// settled takes note of a copy that was acknowledged.
func (h *hop) settled(p quic.OutsidePacket) {
	if c, ok := p.User.(copied); ok {
		h.mu.Lock()
		defer h.mu.Unlock()
		c.settle(c.Span)
	}
}

// lost returns the data of a copy that was lost, for the library to send.
func (h *hop) lost(p quic.OutsidePacket) []quic.StreamData {
	c, ok := p.User.(copied)
	if !ok {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return c.lost(c.Span)
}

// handOver has the library learn of ACKs and copies. It reports whether there is something to do, and whether ACKs are
// urgent.
func (h *hop) handOver(now time.Time) (any, urgent bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.gone {
		return false, false
	}
	urgent = h.IsUrgent(len(h.waiting) > 0, h.Size, h.Room)
	return h.HandOver(now, urgent), urgent
}

// room is how much may be sent now.
func (h *hop) room(now time.Time) int { return h.Room - h.Waiting() - h.Backlog(now) }

// pump gives the library what waits, the most urgent first, as far as there is room. The kernel has what is left of it.
func (h *hop) pump(now time.Time) {
	if h.gone {
		return
	}
	var give []quic.StreamData
	room, given := 0, 0
	if len(h.waiting) > 0 {
		room = h.room(now)
		for _, l := range slices.SortedFunc(maps.Keys(h.waiting), func(a, b *leased) int {
			return cmp.Or(cmp.Compare(a.urgency, b.urgency), cmp.Compare(a.id, b.id))
		}) {
			given += l.take(room-given, &give)
		}
	}
	h.send(give, given, now)
}

// send gives the library data.
func (h *hop) send(give []quic.StreamData, n int, now time.Time) {
	if len(give) > 0 {
		h.Give(n, now)
		h.library.Send(give...)
	}
	if h.changed == h.changes {
		h.receiver.State.Window.SetLimit(h.Limit(h.Room, h.Backlog(now)))
	}
}
