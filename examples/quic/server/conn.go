package server

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/fastrelay/fastrelay-gen/examples/quic/outside"
	"github.com/fastrelay/fastrelay-gen/examples/quic/quicrelay"
	"github.com/fastrelay/fastrelay-gen/examples/quic/socket"
	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go"
)

// A conn is a connection: of a publisher, of a subscriber, or of one that hasn't said yet which.
type conn struct {
	server *Server
	hooks  quic.Hooks
	quic   *quic.Conn
	feed   atomic.Pointer[feed]       // of a publisher
	sub    atomic.Pointer[subscriber] // of a subscriber

	changed chan struct{} // a signal: addresses or connection IDs are others
	pauses  atomic.Int64  // a receiver was paused that often

	mu     sync.Mutex
	ours   map[uint64]quic.ConnectionID // by sequence number
	theirs map[uint64]peerID
	active quic.ConnectionID // of theirs
	remote netip.AddrPort
	limits quic.Limits
	path   quic.PathState
	row    *quicrelay.ConnectionsRow             // of the connection; nil: it isn't on the fast path
	rows   map[quicrelay.ConnectionsKey]struct{} // of the kernel's table
	fast   *receiver                             // of a subscriber
	door   *socket.Door                          // of a publisher; nil: it has none
	sealer outside.Sealer                        // of a subscriber
}

type peerID struct {
	id    quic.ConnectionID
	level int
}

type connKey struct{}

func (s *Server) newConn(ctx context.Context, _ *quic.ClientInfo) (context.Context, error) {
	c := &conn{
		server: s, ours: map[uint64]quic.ConnectionID{}, theirs: map[uint64]peerID{},
		rows: map[quicrelay.ConnectionsKey]struct{}{}, changed: make(chan struct{}, 1),
		sealer: outside.Sealer{Socket: s.socket},
	}
	c.hooks = quic.Hooks{
		NullProtection: s.relay != nil, Levels: levels, SparseMaxStreams: true, Turns: &s.socket.Turns,
		Drain: func(register func(quic.OutsidePacket)) (acks []quic.ACK) {
			c.with(func(u *subscriber) { acks = u.Register(register) })
			return acks
		},
		Lost: func(p quic.OutsidePacket) (data []quic.StreamData) {
			if d, ok := p.User.(copied); ok {
				c.with(func(u *subscriber) { data = u.lost(d) })
			}
			return data
		},
		Path: c.setPath, Limits: c.setLimits,
		StreamLimit: func(id quic.StreamID, limit uint64) { c.with(func(u *subscriber) { u.raise(id, limit) }) },
		StopSending: func(id quic.StreamID, code quic.StreamErrorCode) {
			c.with(func(u *subscriber) { u.unwanted(id, code) })
		},
		ConnectionID: c.setID, Moved: c.move, SendKeys: c.sealer.SetKeys,
		Closing: func(error) {
			c.sealer.Stop()
			c.with(func(u *subscriber) {
				if u.kernel != nil {
					u.kernel.stop()
				}
			})
		},
		StreamFrame: func(f quic.StreamFrame) {
			if feed := c.feed.Load(); feed != nil {
				feed.frame(c, &f)
			}
		},
		Datagram: func(d quic.ReceivedDatagram) {
			if feed := c.feed.Load(); feed != nil {
				feed.datagram(c, &d)
			}
		},
		StreamReset: func(id quic.StreamID, _ quic.StreamErrorCode, _ uint64) {
			if feed := c.feed.Load(); feed != nil {
				feed.resetStream(c, id)
			}
		},
	}
	return quic.WithHooks(context.WithValue(ctx, connKey{}, c), &c.hooks), nil
}

// with calls f with the connection's subscriber, if it is one's.
func (c *conn) with(f func(u *subscriber)) {
	if u := c.sub.Load(); u != nil {
		u.feed.mu.Lock()
		defer u.feed.mu.Unlock()
		f(u)
	}
}

func (c *conn) setPath(p quic.PathState) {
	c.mu.Lock()
	c.path = p
	c.mu.Unlock()
	c.with(func(u *subscriber) { u.setPath(p) })
}

func (c *conn) setLimits(l quic.Limits) {
	c.mu.Lock()
	c.limits = l
	c.mu.Unlock()
	c.with(func(u *subscriber) {
		u.lease(l)
		u.pump(time.Now())
	})
}

func (c *conn) setID(i quic.ConnectionIDChange) {
	c.mu.Lock()
	switch {
	case i.Ours && i.Event == quic.ConnectionIDAdded:
		c.ours[i.Sequence] = i.ID
	case i.Ours && i.Event == quic.ConnectionIDRetired:
		delete(c.ours, i.Sequence)
	case i.Event == quic.ConnectionIDAdded:
		c.theirs[i.Sequence] = peerID{i.ID, i.Level}
	case i.Event == quic.ConnectionIDActive:
		c.active = i.ID
		c.sealer.SetID(i.ID)
	case i.Event == quic.ConnectionIDRetired:
		delete(c.theirs, i.Sequence)
	}
	c.mu.Unlock()
	c.follow(!i.Ours)
}

func (c *conn) move(_, remote net.Addr) {
	c.mu.Lock()
	c.remote = addrPort(remote)
	c.sealer.SetRemote(c.remote)
	c.mu.Unlock()
	c.follow(true)
}

// follow has the kernel's rows changed; until they are, it sends nothing to the peer if it would be wrong.
func (c *conn) follow(pause bool) {
	if pause {
		c.with(func(u *subscriber) {
			if r, ok := u.kernel.(*receiver); ok {
				c.pauses.Add(1)
				r.pause(true)
			}
		})
	}
	select {
	case c.changed <- struct{}{}:
	default:
	}
}

func addrPort(a net.Addr) netip.AddrPort {
	u, ok := a.(*net.UDPAddr)
	if !ok {
		return netip.AddrPort{}
	}
	at := u.AddrPort()
	return netip.AddrPortFrom(at.Addr().Unmap(), at.Port())
}

// errNoFastPath says why a subscriber's streams are sent by user space.
var errNoFastPath = errors.New("connection IDs don't have 8 bytes")

// destinations returns the connection IDs that the peer's packets carry, by level.
func (c *conn) destinations() (ids [levels][8]byte, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.active.Len() != 8 {
		return ids, errNoFastPath
	}
	for level := range ids {
		ids[level] = [8]byte(c.active.Bytes())
	}
	for _, p := range c.theirs {
		if p.level >= 0 && p.level < levels && p.id.Len() == 8 {
			ids[p.level] = [8]byte(p.id.Bytes())
		}
	}
	return ids, nil
}

// settle gives the kernel's rows the connection's addresses and connection IDs.
func (c *conn) settle(ctx context.Context) error {
	relay := c.server.relay
	c.mu.Lock()
	row, fast, door, remote := c.row, c.fast, c.door, c.remote
	want := map[quicrelay.ConnectionsKey]struct{}{}
	if row != nil {
		for _, id := range c.ours {
			if id.Len() == 8 {
				want[quicrelay.ConnectionsKey{
					Remote: remote, Local: c.server.config.Address, DCID: [8]byte(id.Bytes()),
				}] = struct{}{}
			}
		}
	}
	old := slices.Collect(maps.Keys(c.rows))
	c.rows = want
	c.mu.Unlock()
	var errs []error
	if door != nil {
		errs = append(errs, door.Connect(remote))
	}
	for _, key := range old {
		if _, ok := want[key]; !ok {
			errs = append(errs, relay.Connections.Delete(key))
		}
	}
	for key := range want {
		if !slices.Contains(old, key) {
			errs = append(errs, relay.Connections.Put(key, *row))
		}
	}
	if fast == nil {
		return errors.Join(errs...)
	}
	pauses := c.pauses.Load()
	ids, err := c.destinations()
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	if now := fast.v.Row(); now.Remote != remote || now.DCID != ids {
		errs = append(errs, fast.v.Update(ctx, func(r *quicrelay.SubscribersRow) { r.Remote, r.DCID = remote, ids }))
	}
	c.with(func(*subscriber) {
		if c.pauses.Load() == pauses {
			fast.pause(false)
		}
	})
	return errors.Join(errs...)
}

// serve does what the client asks for: a line on a bidirectional stream, which is answered by "ok".
func (c *conn) serve(ctx context.Context) error {
	control, err := c.quic.AcceptStream(ctx)
	if err != nil {
		return err
	}
	line, err := bufio.NewReader(io.LimitReader(control, 256)).ReadString('\n')
	if err != nil {
		return c.refuse("the request isn't a line of at most 256 bytes")
	}
	verb, name, _ := strings.Cut(strings.TrimSuffix(strings.TrimSuffix(line, "\n"), "\r"), " ")
	if name == "" || !utf8.ValidString(name) || strings.ContainsFunc(name, isOdd) {
		return c.refuse(`a request is "publish NAME" or "subscribe NAME"; a name has no space, and what can be printed`)
	}
	ok := func() error {
		_, err := control.Write([]byte("ok\n"))
		return errors.Join(err, control.Close())
	}
	f := c.server.feed(name)
	defer c.server.release(f)
	switch verb {
	case "publish":
		return c.publish(ctx, f, ok)
	case "subscribe":
		return c.subscribe(ctx, f, ok)
	}
	return c.refuse(fmt.Sprintf("%q is neither publish nor subscribe", verb))
}

// isOdd reports whether a character can't be in a name, which is logged and printed.
func isOdd(r rune) bool { return r == ' ' || !unicode.IsPrint(r) }

func (c *conn) refuse(why string) error { return c.quic.CloseWithError(codeRequest, why) }

func (c *conn) publish(ctx context.Context, f *feed, ok func() error) error {
	if !f.publish(c) {
		return c.refuse("the feed has a publisher")
	}
	c.feed.Store(f)
	defer f.unpublish(c)
	if err := c.openDoor(); err != nil {
		c.server.log.Warn("a publisher's datagrams wait as others do", "feed", f.name, "error", err)
	} else {
		defer c.closeDoor()
	}
	if c.quic.Outside().NullProtection() {
		defer c.leaveFastPath()
		if err := c.onFastPath(ctx, quicrelay.ConnectionsRow{Feed: f.id, Base: uint32(f.base)}); err != nil {
			c.server.log.Warn("a publisher stays in user space", "feed", f.name, "error", err)
		}
	}
	return c.stay(ctx, ok)
}

func (c *conn) openDoor() error {
	c.mu.Lock()
	remote := c.remote
	c.mu.Unlock()
	d, err := c.server.socket.Open(remote)
	if err != nil {
		return err
	}
	c.mu.Lock()
	c.door = d
	moved := c.remote != remote
	c.mu.Unlock()
	if moved { // before it was known that there is a door
		c.follow(false)
	}
	return nil
}

func (c *conn) closeDoor() {
	c.mu.Lock()
	d := c.door
	c.door = nil
	c.mu.Unlock()
	_ = d.Close() // nothing follows from it
}

func (c *conn) subscribe(ctx context.Context, f *feed, ok func() error) error {
	u := c.server.newSubscriber(c, f)
	f.join(u, time.Now())
	defer f.leave(u)
	go c.sendDatagrams(ctx, u)
	if c.quic.Outside().NullProtection() {
		defer c.leaveFastPath()
		if err := c.server.accelerate(ctx, c, u); err != nil {
			c.server.log.Warn("a subscriber stays in user space", "feed", f.name, "error", err)
		}
	} else {
		defer c.server.forget(u, nil)
		if err := c.server.seal(ctx, c, u); err != nil {
			return err
		}
	}
	return c.stay(ctx, ok)
}

// sendDatagrams gives the library datagrams, which may wait for room.
func (c *conn) sendDatagrams(ctx context.Context, u *subscriber) {
	for {
		select {
		case <-ctx.Done():
			return
		case data := <-u.datagrams:
			if err := c.quic.SendDatagram(data); err != nil { // too large for it, or it takes none
				u.feed.mu.Lock()
				u.stats.UserDatagrams--
				u.stats.DroppedDatagrams++
				u.feed.mu.Unlock()
			}
		}
	}
}

// stay answers, and follows the connection until it is closed.
func (c *conn) stay(ctx context.Context, ok func() error) error {
	if err := ok(); err != nil {
		return err
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-c.changed:
			if err := c.settle(ctx); err != nil && ctx.Err() == nil {
				c.server.log.Warn("the kernel doesn't follow a connection", "remote", c.quic.RemoteAddr(), "error", err)
			}
		}
	}
}

// onFastPath has the kernel take the connection's packets.
func (c *conn) onFastPath(ctx context.Context, row quicrelay.ConnectionsRow) error {
	c.mu.Lock()
	c.row = &row
	c.mu.Unlock()
	return c.settle(ctx)
}

// isFast reports whether the kernel takes the connection's packets.
func (c *conn) isFast() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.row != nil
}

// leaveFastPath removes all that the kernel has of the connection, which is closed.
func (c *conn) leaveFastPath() {
	c.mu.Lock()
	fast := c.fast
	c.row, c.fast = nil, nil
	c.mu.Unlock()
	err := c.settle(context.Background())
	if fast != nil {
		c.server.forget(c.sub.Load(), fast.v)
		err = errors.Join(err, fast.remove())
	}
	if err != nil {
		c.server.log.Warn("the kernel keeps rows of a connection that is closed", "error", err)
	}
}
