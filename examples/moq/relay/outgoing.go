package relay

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/fastrelay/fastrelay-gen/examples/moq/wire"
	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go"
)

// A reason says why a stream was given up before its subscriber had all of it.
type reason int

// The reasons.
const (
	kept             reason = iota // it wasn't
	droppedCancelled               // the subscriber doesn't want it any more: it left, paused, or changed its filter
	droppedStopped                 // the subscriber has stopped this stream
	droppedReset                   // the publisher has reset it
	droppedTimeout                 // a delivery timeout
	droppedBacklog                 // too much waits for the session
	droppedExpired                 // it isn't kept any more
	droppedMalformed               // the track is malformed
	reasons
)

// reasonNames are the reasons in counters.
var reasonNames = [reasons]string{
	"", "cancelled", "stopped", "reset_upstream", "timeout", "backlog", "expired", "malformed",
}

// code is what a stream that is given up is reset with (§12.5). One that the publisher has reset has the publisher's.
func (r reason) code() quic.StreamErrorCode {
	switch r {
	case droppedTimeout:
		return quic.StreamErrorCode(wire.ResetDeliveryTimeout)
	case droppedBacklog, droppedExpired:
		return quic.StreamErrorCode(wire.ResetExcessiveLoad)
	case droppedMalformed:
		return quic.StreamErrorCode(wire.ResetMalformedTrack)
	}
	return quic.StreamErrorCode(wire.ResetCancelled)
}

// An outgoing is a subgroup as a subscription gets it: a stream, from its first byte on or from a later object. It
// has a goroutine, which waits in the library while the peer, or the congestion window, has no room: so the library
// has no more than a packet of it that isn't sent, and what is more urgent goes first.
type outgoing struct {
	subscription *subscription
	subgroup     *subgroup
	wake         chan struct{}

	// The track's mutex guards these.
	joined bool   // an object that is asked for has come
	head   []byte // what the stream begins with
	pos    uint64 // what follows, in the subgroup
	limit  uint64 // where what is asked for ends, in the subgroup

	// The session's.
	waits  int  // bytes that are to be sent
	listed bool // it is in the session's list

	mu      sync.Mutex
	stream  sendStream // nil: it isn't open yet
	urgency int8       // of it
	cancel  context.CancelFunc
	why     reason
}

// joinKept begins with the first object that is kept and asked for, if there is one.
func (o *outgoing) joinKept() {
	sg := o.subgroup
	for i := range sg.objects {
		one := &sg.objects[i]
		expired := sg.timeouts.cacheDuration > 0 && time.Since(one.time) > sg.timeouts.cacheDuration
		if !expired && o.subscription.passes(sg.location(one.id)) {
			o.joinAt(one)
			return
		}
	}
}

// joinAt begins with an object. From the first byte on, the stream is as it came; else the object's ID is absolute, and
// the header says which subgroup it is.
func (o *outgoing) joinAt(one *object) {
	sg := o.subgroup
	if one.at == 0 {
		o.join(sg.head, 0)
	} else {
		h := sg.header
		h.SubgroupIsFirst, h.FirstObject = false, false
		o.join(wire.AppendVarint(h.Append(nil), one.id), one.body)
	}
	o.bound()
}

func (o *outgoing) join(head []byte, pos uint64) {
	o.joined, o.head, o.pos = true, head, pos
	o.waits = int(o.subgroup.size - pos)
}

// bound ends the stream before the first object after the filter's end.
func (o *outgoing) bound() {
	sg := o.subgroup
	for _, one := range sg.objects[sg.object(o.pos):] {
		if !o.subscription.passes(sg.location(one.id)) {
			o.limit = min(o.limit, one.at)
			return
		}
	}
}

// inRange reports whether what the stream is to carry next may pass the filter.
func (o *outgoing) inRange() bool {
	u, g := o.subscription, o.subgroup.group.id
	return g >= u.first.Group && g <= u.last.Group
}

// offer takes bytes that have come.
func (o *outgoing) offer(data []byte, objects []object) {
	sg := o.subgroup
	if !o.joined {
		for i := range objects {
			if o.subscription.passes(sg.location(objects[i].id)) {
				o.joinAt(&objects[i])
				o.start()
				return
			}
		}
		return
	}
	if len(objects) > 0 && o.limit == 1<<64-1 {
		for i := range objects {
			if !o.subscription.passes(sg.location(objects[i].id)) {
				o.limit = objects[i].at
				break
			}
		}
	}
	o.subscription.session.wait(o, len(data))
	o.signal()
}

// signal has the goroutine look again.
func (o *outgoing) signal() {
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

// start opens the stream.
func (o *outgoing) start() {
	s := o.subscription.session
	ctx, cancel := context.WithCancel(s.ctx)
	o.cancel = cancel
	s.list(o)
	if o.subgroup.fin {
		o.startTimer()
	}
	go o.run(ctx)
}

// forget removes a stream that was never opened.
func (o *outgoing) forget() {
	delete(o.subgroup.outgoing, o)
	delete(o.subscription.outgoing, o)
}

// drop gives the stream up. Unless it has joined, the track's mutex has to be held.
func (o *outgoing) drop(why reason) {
	o.mu.Lock()
	if o.cancel == nil {
		o.mu.Unlock()
		o.forget()
		return
	}
	defer o.mu.Unlock()
	if o.why != kept {
		return
	}
	o.why = why
	if o.stream != nil {
		o.stream.CancelWrite(why.code())
	}
	o.cancel()
}

func (o *outgoing) isDropped() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.why != kept
}

// startTimer gives the stream up if the subgroup isn't delivered in time after its end has come (§5.2).
func (o *outgoing) startTimer() {
	timeout := least(o.subscription.subgroupTimeout, o.subgroup.timeouts.subgroupTimeout)
	if timeout > 0 && o.joined {
		time.AfterFunc(timeout, func() { o.drop(droppedTimeout) })
	}
}

// least returns the smallest duration that isn't 0, or 0.
func least(durations ...time.Duration) time.Duration {
	durations = slices.DeleteFunc(durations, func(d time.Duration) bool { return d == 0 })
	if len(durations) == 0 {
		return 0
	}
	return slices.Min(durations)
}

// run sends the stream to its end.
func (o *outgoing) run(ctx context.Context) {
	u := o.subscription
	t, s := u.track, u.session
	whole := o.send(ctx)
	o.mu.Lock()
	why := o.why
	o.mu.Unlock()
	o.cancel()
	s.unlist(o)
	t.mu.Lock()
	defer t.mu.Unlock()
	u.count(func(st *SubscriptionStats) {
		if whole {
			st.Whole++
		} else {
			st.Dropped[why]++
		}
	})
	o.forget()
	u.finish()
}

// send sends the stream; whole reports whether all of it was given to the library.
func (o *outgoing) send(ctx context.Context) (whole bool) {
	u := o.subscription
	s := u.session
	stream, err := s.conn.OpenUniStreamSync(ctx)
	if err != nil {
		return false
	}
	u.track.mu.Lock()
	u.opened++
	u.count(func(st *SubscriptionStats) { st.Streams++ })
	u.track.mu.Unlock()
	// A reset leaves the header, so that the stream is counted (§11.3.2), if flow control has room for it: the library
	// would exceed the peer's limit.
	err = stream.TryWriteAll(o.head)
	if err == nil {
		stream.SetReliableBoundary()
	} else if errors.Is(err, quic.ErrWouldBlock) {
		_, err = stream.Write(o.head)
	}
	if err != nil {
		o.failed(err)
		return false
	}
	if o.opened(stream) {
		return false
	}
	s.rank()
	for {
		data, next := o.next()
		switch next {
		case sending:
			n, err := stream.Write(data)
			s.wait(o, -n)
			if err != nil {
				o.failed(err)
				return false
			}
		case waiting:
			select {
			case <-o.wake:
			case <-ctx.Done():
				o.failed(context.Cause(ctx))
				return false
			case <-stream.Context().Done(): // the subscriber has stopped it
				o.failed(context.Cause(stream.Context()))
				return false
			}
		case ending:
			return stream.Close() == nil
		case broken:
			o.mu.Lock()
			o.why = droppedReset
			o.mu.Unlock()
			stream.CancelWrite(quic.StreamErrorCode(o.subgroup.code))
			return false
		case late:
			o.drop(droppedTimeout)
			return false
		case outside:
			o.drop(droppedCancelled)
			return false
		}
	}
}

// opened notes the stream; it reports whether it was given up before it was open.
func (o *outgoing) opened(stream sendStream) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.stream, o.urgency = stream, urgencyData
	if o.why != kept {
		stream.CancelWrite(o.why.code())
	}
	return o.why != kept
}

// failed notes why the library doesn't take any more.
func (o *outgoing) failed(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.why != kept:
	case isRemote(err):
		o.why = droppedStopped
	default:
		o.why = droppedCancelled // the session is over
	}
}

// What a stream has to do next.
type step int

const (
	sending step = iota
	waiting
	ending  // all was sent
	broken  // the publisher has reset it, and all that came was sent
	late    // a delivery timeout
	outside // what follows isn't asked for
)

// next returns what is to be sent next.
func (o *outgoing) next() ([]byte, step) {
	u, sg := o.subscription, o.subgroup
	u.track.mu.Lock()
	defer u.track.mu.Unlock()
	if o.pos < sg.base {
		return nil, outside // it was dropped for that
	}
	end := min(sg.size, o.limit)
	switch {
	case o.pos < end:
	case o.pos == o.limit:
		return nil, outside
	case sg.fin:
		return nil, ending
	case sg.broken:
		return nil, broken
	default:
		return nil, waiting
	}
	data := sg.bytes(o.pos)
	data = data[:min(uint64(len(data)), end-o.pos)]
	timeout := least(u.objectTimeout, sg.timeouts.objectTimeout, sg.timeouts.cacheDuration)
	if timeout > 0 {
		// One object at a time: what is given to the library can't be late any more (§5.2).
		i := sg.object(o.pos)
		if i > 0 && sg.objects[i-1].body == o.pos { // the first one of a stream that began there
			i--
		}
		if i < len(sg.objects) && sg.objects[i].at <= o.pos {
			if time.Since(sg.objects[i].time) > timeout {
				return nil, late
			}
			i++
		}
		if i < len(sg.objects) {
			data = data[:min(uint64(len(data)), sg.objects[i].at-o.pos)]
		}
	}
	o.pos += uint64(len(data))
	u.count(func(st *SubscriptionStats) { st.Bytes += uint64(len(data)) })
	return data, sending
}
