package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fastrelay/fastrelay-gen/examples/moq/moqrelay"
	"github.com/fastrelay/fastrelay-gen/examples/quic/outside"
	"github.com/fastrelay/fastrelay-gen/examples/quic/socket"
	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go"
	"github.com/fastrelay/fastrelay-gen/runtime"
)

// A kernel is the programs that copy packets of upstream relays to relays below (../spec.cue). A nil one has none.
type kernel struct {
	relay   *moqrelay.Relay
	log     *slog.Logger
	local   netip.AddrPort
	socket  *socket.Socket
	running sync.WaitGroup

	reading sync.Mutex  // events are read
	alone   atomic.Bool // all that comes is for hops, so datagrams wait for rounds

	mu        sync.Mutex
	last      uint32 // ID of a group, a source or a hop
	hops      map[uint32]*hop
	receivers map[*moqrelay.ReceiversReceiver]*hop
	resets    []*leased // streams that were given up
	kick      chan struct{}
}

// loadKernel loads the programs and attaches them to the interfaces, what most packets are first. Without interfaces,
// there are none.
func (c *Config) loadKernel() (_ *kernel, err error) {
	switch {
	case len(c.Interfaces) == 0:
		return nil, nil
	case len(c.Null) == 0:
		return nil, errors.New("relays on Interfaces do without protection: Null has to say where they are")
	case c.Address.Addr().IsUnspecified():
		return nil, fmt.Errorf("with Interfaces, %v has to be one address of this host", c.Address.Addr())
	case c.Generation != nil:
		return nil, errors.New("with Interfaces, the address can't be shared, so Generation has to be nil")
	}
	relay, err := moqrelay.Load(moqrelay.Options{Lease: lease, Logger: c.Logger, Control: c.Watch.OwnGroups()})
	if err != nil {
		return nil, err
	}
	for _, name := range c.Interfaces {
		err = errors.Join(err, relay.Streams.Attach(name), relay.StreamsAfterAck.Attach(name), relay.Acks.Attach(name))
	}
	if err != nil {
		return nil, errors.Join(err, relay.Close())
	}
	return &kernel{
		relay: relay, log: c.Logger, hops: map[uint32]*hop{}, receivers: map[*moqrelay.ReceiversReceiver]*hop{},
		kick: make(chan struct{}, 1),
	}, nil
}

// lease is how long the kernel forwards for a relay that doesn't answer.
const lease = 500 * time.Millisecond

// run follows the programs until ctx ends, from when the relay listens.
func (k *kernel) run(ctx context.Context, s *socket.Socket, local netip.AddrPort) {
	if k == nil {
		return
	}
	k.local, k.socket = local, s
	k.running.Go(func() {
		for k.relay.Runtime().AwaitEvents(ctx) == nil && s.StartRounds() == nil {
			select {
			case <-ctx.Done():
				return // events may be left, and rounds that nothing ends any more
			case <-s.RoundsOver():
			}
		}
	})
	k.running.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-k.kick:
				k.endResets(ctx)
			}
		}
	})
}

// close is called when all connections are closed.
func (k *kernel) close() error {
	if k == nil {
		return nil
	}
	k.running.Wait()
	return k.relay.Close()
}

// nextID returns an ID that nothing has.
func (k *kernel) nextID() uint32 {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.last++
	return k.last
}

// drain reads the events up to where they are now.
func (k *kernel) drain() {
	k.reading.Lock()
	defer k.reading.Unlock()
	for e, err := range k.relay.Pending(context.Background()) { // only this process reads them: there is no wait
		if err != nil {
			if !errors.Is(err, runtime.ErrClosed) {
				k.log.Error("reading events", "error", err)
			}
			return
		}
		switch e := e.(type) {
		case moqrelay.SentEvent:
			for i := range e.Copies {
				k.mu.Lock()
				h := k.receivers[e.Copies[i].Receiver]
				k.mu.Unlock()
				if h != nil {
					h.copied(&e, &e.Copies[i])
				}
			}
		case moqrelay.AckedEvent:
			k.mu.Lock()
			h := k.hops[e.Hop]
			k.mu.Unlock()
			if h != nil {
				h.acked(&outside.Acked{
					PN: e.PN, PNSize: e.PNSize, Size: e.Size, Type: e.Type, Largest: e.Largest, Delay: e.Delay,
					First: e.First, ECT0: e.Ect0, ECT1: e.Ect1, CE: e.Ce, Time: e.Time,
				})
			}
		}
	}
}

// handOver hands copies and ACKs over to the connections. It reports whether there were some, and whether a hop waits
// for more.
func (k *kernel) handOver(now time.Time) (some, urgent bool) {
	if k == nil {
		return false, false
	}
	k.drain()
	k.mu.Lock()
	hops := slices.Collect(maps.Values(k.hops))
	k.mu.Unlock()
	for _, h := range hops {
		any, soon := h.handOver(now)
		some, urgent = some || any, urgent || soon
	}
	return some, urgent
}

// notForKernel says why the kernel copies nothing that comes on a session; "" if it may.
func (s *session) notForKernel() string {
	_, raw := s.conn.(rawQUIC)
	switch {
	case !raw:
		return "it is a WebTransport session"
	case !s.quic.isNull():
		return "its packets are protected: each of the two relays has to be in the other's Null (-null)"
	}
	return ""
}

// isForHops reports whether all of a track comes from upstream relays and goes to hops.
func (t *track) isForHops() bool {
	return !slices.ContainsFunc(t.subs, func(u *subscription) bool {
		return u.session.quic == nil || u.session.quic.hop.Load() == nil
	}) && !slices.ContainsFunc(t.sources, func(src *source) bool { return src.session.upstream == nil })
}

// open opens a stream to a relay below of which the kernel sends packets, if the kernel can do that.
func (k *kernel) open(ctx context.Context, o *outgoing) (*leased, error) {
	if k == nil || o.above == nil {
		return nil, nil
	}
	from := o.above.session
	h := k.hop(o.subscription.session, from.upstream)
	if h == nil {
		return nil, nil
	}
	source, err := k.source(from.quic, h.group)
	if err != nil {
		k.log.Warn("an upstream relay's streams stay in user space", "upstream", from.upstream.name, "error", err)
		return nil, nil
	}
	return h.open(ctx, moqrelay.NamedKey{Hop: h.id, Source: source, Stream: uint64(o.above.id)}, uint64(len(o.head)))
}

// source has the kernel take the packets of a connection with an upstream relay.
func (k *kernel) source(c *connection, g *moqrelay.ReceiversGroup) (id uint32, err error) {
	c.entering.Lock()
	defer c.entering.Unlock()
	if c.source == 0 {
		id := k.nextID()
		if err := c.enter(moqrelay.ConnectionsRow{Group: g.Key(), Source: id}); err != nil {
			return 0, err
		}
		c.source = id
	}
	return c.source, nil
}

// hop returns what the kernel has of a connection with a relay below, if it may send it what comes from an upstream
// relay: nil if it can't, can't yet, or sends it what comes from another one.
func (k *kernel) hop(s *session, u *upstream) *hop {
	k.prepare(s, u)
	h := s.quic.hop.Load()
	if h == nil || !h.ready.Load() || h.upstream != u {
		return nil
	}
	return h
}

// prepare has the kernel send to a relay below what comes from an upstream relay, soon: a change of a group waits for
// the kernel's programs. What comes before, user space sends.
func (k *kernel) prepare(s *session, u *upstream) {
	if k == nil || u == nil || s.upstream != nil {
		return
	}
	c := s.quic
	if s.notForKernel() != "" || c.prepared.Swap(true) {
		return
	}
	go func() {
		ctx := c.quic.Load().Context()
		if err := k.newHop(ctx, c, u); err != nil && ctx.Err() == nil {
			k.log.Warn("a relay below stays in user space", "remote", s.conn.RemoteAddr(), "error", err)
		}
	}()
}

// group returns the group of an upstream relay.
func (k *kernel) group(ctx context.Context, u *upstream) (*moqrelay.ReceiversGroup, error) {
	u.grouping.Lock()
	defer u.grouping.Unlock()
	if u.group != nil {
		return u.group, nil
	}
	g, err := k.relay.Receivers.Open(ctx, k.nextID())
	u.group = g
	return g, err
}

// reset has a stream be reset that was given up.
func (k *kernel) reset(l *leased) {
	k.mu.Lock()
	k.resets = append(k.resets, l)
	k.mu.Unlock()
	select {
	case k.kick <- struct{}{}:
	default:
	}
}

// endResets resets streams that were given up: no new packet of theirs is copied. When no program is still sending one,
// and all copies are known, so are their final sizes.
func (k *kernel) endResets(ctx context.Context) {
	k.mu.Lock()
	all := k.resets
	k.resets = nil
	k.mu.Unlock()
	if err := k.relay.Runtime().Quiesce(ctx); err != nil {
		if ctx.Err() == nil { // else the relay closes, and all connections with it
			k.log.Error("waiting for the kernel's programs", "error", err)
		}
		return
	}
	k.drain()
	for _, l := range all {
		l.abandon()
	}
}

// rows are the keys of the connection's rows: its IDs that the peer may use.
func (c *connection) rows() (keys []moqrelay.ConnectionsKey) {
	for _, id := range c.ours {
		if id.Len() == 8 {
			keys = append(keys, moqrelay.ConnectionsKey{
				Remote: c.remote, Local: c.relay.kernel.local, DCID: [8]byte(id.Bytes()),
			})
		}
	}
	return keys
}

// enter has the kernel take the connection's packets.
func (c *connection) enter(row moqrelay.ConnectionsRow) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		return context.Cause(c.quic.Load().Context())
	}
	c.row = &row
	return c.settle()
}

// settle gives the kernel the connection's rows; none if it is over. The mutex is held.
func (c *connection) settle() (err error) {
	if c.row == nil {
		return nil
	}
	var want []moqrelay.ConnectionsKey
	if !c.over {
		want = c.rows()
	}
	table := c.relay.kernel.relay.Connections
	for _, key := range c.entered {
		if !slices.Contains(want, key) {
			err = errors.Join(err, table.Delete(key))
		}
	}
	for _, key := range want {
		if !slices.Contains(c.entered, key) {
			err = errors.Join(err, table.Put(key, *c.row))
		}
	}
	c.entered = want
	return err
}

// follow has the kernel follow a connection whose addresses or connection IDs have changed. The mutex is held.
func (c *connection) follow() {
	if err := c.settle(); err != nil && !errors.Is(err, runtime.ErrClosed) {
		c.relay.log.Warn("the kernel doesn't follow a connection", "remote", c.remote, "error", err)
	}
}

// setID takes note of a connection ID.
func (c *connection) setID(i quic.ConnectionIDChange) {
	c.mu.Lock()
	switch {
	case i.Ours && i.Event == quic.ConnectionIDAdded:
		c.ours[i.Sequence] = i.ID
		c.follow()
	case i.Ours && i.Event == quic.ConnectionIDRetired:
		delete(c.ours, i.Sequence)
		c.follow()
	case !i.Ours && i.Event == quic.ConnectionIDActive:
		c.active = i.ID
	}
	c.mu.Unlock()
	if h := c.hop.Load(); h != nil && !i.Ours && i.Event == quic.ConnectionIDActive {
		h.follow()
	}
}
