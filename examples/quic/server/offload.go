package server

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/fastrelay/fastrelay-gen/examples/quic/quicrelay"
	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go"
	"github.com/fastrelay/fastrelay-gen/runtime"
)

// load loads the relay and attaches it to the interfaces. What a server before this one has left is removed: its
// connections ended with it.
func load(config Config) (_ *quicrelay.Relay, err error) {
	relay, err := quicrelay.Load(quicrelay.Options{PinPath: config.Pins, Lease: lease, Logger: config.Logger,
		Control: config.Watch.OwnGroups()})
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, relay.Close())
		}
	}()
	for g := range relay.Subscribers.All() {
		err = errors.Join(err, g.Close(context.Background()))
	}
	for e, bad := range relay.Connections.All() {
		if bad != nil {
			return nil, errors.Join(err, bad)
		}
		err = errors.Join(err, relay.Connections.Delete(e.Key))
	}
	for e, bad := range relay.Dropped.All() {
		if bad != nil {
			return nil, errors.Join(err, bad)
		}
		err = errors.Join(err, relay.Dropped.Delete(e.Key))
	}
	for _, bad := range relay.Pending(context.Background()) { // they are about connections that are over
		err = errors.Join(err, bad)
	}
	for _, name := range config.Interfaces {
		err = errors.Join(err, attach(relay, name))
	}
	return relay, err
}

// attach attaches the programs to an interface. What most packets are comes first.
func attach(relay *quicrelay.Relay, name string) error {
	return errors.Join(relay.Streams.Attach(name), relay.StreamsAfterAck.Attach(name), relay.Acks.Attach(name),
		relay.Datagrams.Attach(name))
}

// lease is how long the kernel forwards for a server that doesn't answer.
const lease = 500 * time.Millisecond

// A receiver is a subscriber's receiver in its feed's group.
type receiver struct {
	server *Server
	v      *quicrelay.SubscribersReceiver
	id     uint32        // of the subscriber
	from   uint64        // the number of the first stream that the kernel has forwarded
	begin  uint64        // and of the first one that it forwards now
	margin quic.StreamID // IDs that programs may take which have seen the last one free: one on each processor
	paused bool
	room   uint64 // the window's limit

	withheld map[uint64]bool
	over     []uint64 // streams below Begin since the last call of finished
}

func newReceiver(server *Server, v *quicrelay.SubscribersReceiver, id uint32, processors int) *receiver {
	return &receiver{server: server, v: v, id: id, margin: 4 * quic.StreamID(processors), withheld: map[uint64]bool{}}
}

func (r *receiver) setBegin(number uint64) {
	r.begin = number
	r.v.State.Begin.Store(number)
}

func (r *receiver) setData(limit uint64)        { r.v.State.Data.SetLimit(limit) }
func (r *receiver) forwards(number uint64) bool { return number >= r.from }

func (r *receiver) setWindow(limit uint64) {
	if r.room = limit; !r.paused {
		r.v.State.Window.SetLimit(limit)
	}
}

func (r *receiver) setUrgent(level int) { r.v.State.Urgent.Store(uint64(level)) }

// pause stops the kernel while it would send to a former address, or with a former connection ID.
func (r *receiver) pause(paused bool) {
	if r.paused = paused; paused {
		r.v.State.Window.SetLimit(0)
	} else {
		r.v.State.Window.SetLimit(r.room)
	}
}

func (r *receiver) stop() {
	r.pause(true)
	r.v.State.Data.SetLimit(0)
	r.v.State.Leased.Store(0)
}

func (r *receiver) setPath(largestAcked int64, size int) {
	r.v.State.Acked.Store(uint64(max(0, largestAcked)))
	r.v.State.Size.Store(uint64(max(0, size)))
}

func (r *receiver) setIDs(end quic.StreamID) { r.v.State.Leased.Store(uint64(max(0, end-r.margin))) }

// takeID takes an ID below end for a stream. It takes none if the receiver is gone: then the next one reads 0, which
// is an ID of the client's.
func (r *receiver) takeID(end quic.StreamID) (quic.StreamID, bool) {
	for {
		next := r.v.State.NextStream.Load()
		if next == 0 || quic.StreamID(next) >= end-r.margin {
			return 0, false
		}
		if r.v.State.NextStream.CompareAndSwap(next, next+4) {
			return quic.StreamID(next), true
		}
	}
}

func (r *receiver) name(number uint64) (id quic.StreamID, ok bool) {
	n, err := r.v.State.Streams.Get(number)
	return quic.StreamID(n), err == nil
}

func (r *receiver) setName(number uint64, id quic.StreamID) (now quic.StreamID, ok bool) {
	n, _, err := r.v.State.Streams.Put(number, uint64(id))
	return quic.StreamID(n), err == nil
}

func (r *receiver) withhold(number uint64) error {
	if r.withheld[number] || number < r.begin {
		return nil
	}
	row := quicrelay.DroppedRow{Since: uint64(time.Now().UnixNano())}
	if err := r.server.relay.Dropped.Put(quicrelay.DroppedKey{Subscriber: r.id, Stream: number}, row); err != nil {
		return fmt.Errorf("stream %d isn't withheld: %w", number, err)
	}
	r.withheld[number] = true
	r.v.State.Drops.Add(1)
	return nil
}

// finished frees what the kernel keeps of streams that are over. A packet that comes late must not be taken for one of
// a new stream: so the kernel forwards no stream before the first one that isn't over, and rows go with the next call.
func (r *receiver) finished(numbers []uint64, floor uint64) (left []uint64) {
	for _, number := range r.over {
		r.server.freed = append(r.server.freed, runtime.TranslationKey{Translation: r.v.State.Streams, Key: number})
		r.release(number)
	}
	r.over = nil
	r.setBegin(max(r.from, floor))
	for _, number := range numbers {
		if number < r.begin {
			r.over = append(r.over, number)
		} else {
			left = append(left, number)
		}
	}
	return left
}

func (r *receiver) release(number uint64) {
	if r.withheld[number] {
		delete(r.withheld, number)
		_ = r.server.relay.Dropped.Delete(quicrelay.DroppedKey{Subscriber: r.id, Stream: number})
		r.v.State.Drops.Add(^uint64(0))
	}
}

// remove removes the receiver, and all that the kernel keeps for it.
func (r *receiver) remove() error {
	for number := range r.withheld {
		r.release(number)
	}
	err := r.v.Remove(context.Background())
	if errors.Is(err, runtime.ErrClosed) {
		return nil
	}
	return err
}

// A dropper ends streams that were given up, several at a time: it has the kernel withhold them, waits until no program
// sends any more of them and all copies are known, and resets them.
type dropper struct {
	mu    sync.Mutex
	drops []drop
	kick  chan struct{} // capacity 1: there are drops
}

type drop struct {
	*outgoing
	code quic.StreamErrorCode
}

func newDropper() *dropper { return &dropper{kick: make(chan struct{}, 1)} }

// add never waits: whoever drops a stream holds locks that its end needs.
func (d *dropper) add(o *outgoing, code quic.StreamErrorCode) {
	d.mu.Lock()
	d.drops = append(d.drops, drop{o, code})
	d.mu.Unlock()
	select {
	case d.kick <- struct{}{}:
	default:
	}
}

func (d *dropper) take() (all []drop) {
	d.mu.Lock()
	defer d.mu.Unlock()
	all, d.drops = d.drops, nil
	return all
}

func (s *Server) runDropper(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.dropper.kick:
			s.end(ctx, s.dropper.take())
		}
	}
}

// end ends streams that were given up.
func (s *Server) end(ctx context.Context, all []drop) {
	kernel := false
	for _, d := range all {
		d.of.feed.mu.Lock()
		if k := d.of.kernel; k != nil && !d.of.gone {
			kernel = true
			if err := k.withhold(d.st.number); err != nil {
				s.log.Error("closing a connection: the kernel can't be stopped", "error", err)
				go d.of.close()
			}
		}
		d.of.feed.mu.Unlock()
	}
	if kernel {
		if err := s.quiesce(ctx); err != nil {
			if ctx.Err() == nil { // else the server closes, and all connections with it
				s.log.Error("waiting for the kernel's programs", "error", err)
			}
			return
		}
		s.read()
	}
	for _, d := range all {
		d.of.feed.mu.Lock()
		d.of.end(d.outgoing, d.code)
		d.of.feed.mu.Unlock()
	}
}
