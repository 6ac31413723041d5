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
	droppedBehind                  // the subscription is ended, as it has fallen behind for too long
	reasons
)

// reasonNames are the reasons in counters.
var reasonNames = [reasons]string{
	"", "cancelled", "stopped", "reset_upstream", "timeout", "backlog", "expired", "malformed", "too_far_behind",
}

// reasonDocs say which streams are meant.
var reasonDocs = [reasons]string{
	"",
	"streams whose subscriber left, paused, or changed its filter", "streams that the subscriber has stopped",
	"streams that the publisher has reset", "streams that were over a delivery timeout",
	"streams that were too much for the session's backlog", "streams whose objects weren't kept any more",
	"streams of a malformed track", "streams of a subscription that was ended, as it had fallen behind for too long",
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
	case droppedBehind:
		return quic.StreamErrorCode(wire.ResetTooFarBehind)
	}
	return quic.StreamErrorCode(wire.ResetCancelled)
}

// An outgoing is a subgroup as a subscription gets it: a stream, from its first byte on or from a later object. What
// comes is given to the library at once, if nothing waits. Else it has a goroutine, which waits in the library while
// the peer, or the congestion window, has no room: so the library has little of it that isn't sent, and what is more
// urgent goes first.
type outgoing struct {
	subscription *subscription
	subgroup     *subgroup
	wake         chan struct{}

	// The track's mutex guards these.
	joined bool   // an object that is asked for has come
	head   []byte // what the stream begins with
	pos    uint64 // what follows, in the subgroup
	limit  uint64 // where what is asked for ends, in the subgroup
	idle   bool   // the goroutine waits for more
	sieve  *sieve // what passes range filters, instead of all from pos to limit; nil: all does
	above  *above // the stream that the kernel may copy; nil: user space sends all

	// The session's.
	waits  int  // bytes that are to be sent
	listed bool // it is in the session's list

	mu      sync.Mutex
	stream  subgroupStream // nil: it isn't open yet
	urgency int8           // of it
	cancel  context.CancelFunc
	why     reason
}

// noLimit is a limit beyond everything.
const noLimit = 1<<64 - 1

// joinKept begins with the first object that is kept and asked for, if there is one.
func (o *outgoing) joinKept() {
	sg := o.subgroup
	for i := range sg.objects {
		one := &sg.objects[i]
		expired := sg.timeouts.cacheDuration > 0 && time.Since(one.time) > sg.timeouts.cacheDuration
		switch {
		case expired:
		case o.sieve != nil:
			o.waits += o.siftOne(one)
		case o.subscription.passes(sg.location(one.id)):
			o.joinAt(one)
			return
		}
	}
}

// joinAt begins with an object.
func (o *outgoing) joinAt(one *object) {
	pos := one.body
	if one.at == 0 {
		pos = 0
	}
	o.join(o.subgroup.headFrom(one, true), pos)
	o.bound()
}

// headFrom returns what a stream begins with whose first object is given. From the first byte on, the stream is as the
// publisher's; else the object's ID is absolute, and the header says which subgroup it is. A stream that may leave out
// the subgroup's last object doesn't say that it ends the group.
func (sg *subgroup) headFrom(one *object, whole bool) []byte {
	if one.at == 0 && (whole || !sg.header.EndOfGroup) {
		return sg.head
	}
	h := sg.header
	h.EndOfGroup = h.EndOfGroup && whole
	if one.at == 0 {
		return h.Append(nil)
	}
	h.SubgroupIsFirst, h.FirstObject = false, false
	return wire.AppendVarint(h.Append(nil), one.id)
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
	if o.sieve != nil {
		o.offerSifted(data, objects)
		return
	}
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
	if len(objects) > 0 && o.limit == noLimit {
		for i := range objects {
			if !o.subscription.passes(sg.location(objects[i].id)) {
				o.limit = objects[i].at
				break
			}
		}
	}
	if left := o.direct(data); left > 0 {
		o.subscription.session.wait(o, left)
		o.signal()
	}
}

// direct sends bytes that have come, or gives them to the library, if nothing that came before waits: they leave with
// those of other subscribers, and the goroutine isn't woken. It returns how many are left.
func (o *outgoing) direct(data []byte) (left int) {
	if !o.idle || o.limit != noLimit || o.pos+uint64(len(data)) != o.subgroup.size {
		return len(data)
	}
	o.mu.Lock()
	stream, why := o.stream, o.why
	o.mu.Unlock()
	if why != kept {
		return len(data)
	}
	s := o.subscription.session
	sealed := s.quic.seal(s, stream, data)
	sent := len(data)
	if data = data[sealed:]; len(data) > 0 && stream.TryWriteNext(data) != nil { // the goroutine finds out why
		sent = sealed
	}
	o.pos += uint64(sent)
	o.sent(sent)
	if sealed > 0 {
		o.subscription.count(func(st *SubscriptionStats) { st.SealedBytes += uint64(sealed) })
	}
	return sealed + len(data) - sent
}

func (o *outgoing) offerSifted(data []byte, objects []object) {
	joined := o.joined
	switch n := o.sift(objects, len(data)); {
	case joined && n > 0:
		o.subscription.session.wait(o, n)
		o.signal()
	case joined && o.sieve.over:
		o.signal()
	case o.joined && !joined:
		o.waits = n
		o.start()
	}
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
	if a := o.subgroup.above; a != nil && !o.subgroup.ended() && o.sieve == nil && o.pos == 0 &&
		len(o.head) == a.head && o.subscription.last == all {
		o.above = a
	}
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
	o.sent(0)
	u.count(func(st *SubscriptionStats) {
		if whole {
			st.Whole++
		} else {
			st.Dropped[why]++
		}
	})
	o.forget()
	u.keepsUp(whole, why)
	u.finish()
}

// send sends the stream; whole reports whether all of it was given to the library.
func (o *outgoing) send(ctx context.Context) (whole bool) {
	u := o.subscription
	s := u.session
	stream, err := o.open(ctx)
	if err != nil {
		return false
	}
	u.track.mu.Lock()
	u.opened++
	u.count(func(st *SubscriptionStats) { st.Streams++ })
	u.track.mu.Unlock()
	err = o.begin(stream)
	if errors.Is(err, quic.ErrWouldBlock) {
		_, err = stream.Write(o.head)
	}
	if err != nil {
		o.failed(err)
		return false
	}
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
			case <-stream.Context().Done(): // the subscriber has stopped it, or it is closed (finish)
				if err := context.Cause(stream.Context()); !errors.Is(err, quic.ErrStreamClosed) {
					o.failed(err)
					return false
				}
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
		case unasked:
			o.drop(droppedCancelled)
			return false
		}
	}
}

// open opens the stream: one on which the kernel sends as well, if it can.
func (o *outgoing) open(ctx context.Context) (subgroupStream, error) {
	s := o.subscription.session
	if l, err := s.relay.kernel.open(ctx, o); l != nil || err != nil {
		return orNil[subgroupStream](l, err)
	}
	return s.conn.OpenUniStreamSync(ctx)
}

// errGivenUp says that a stream was given up before it was open.
var errGivenUp = errors.New("the stream was given up")

// begin gives the library what the stream begins with, which leaves together: its header, what there is of objects, and
// the end. It returns quic.ErrWouldBlock if flow control has no room for the header.
func (o *outgoing) begin(stream subgroupStream) error {
	s := o.subscription.session
	s.relay.socket.Begin()
	defer s.relay.socket.End()
	// A reset leaves the header, so that the stream is counted (§11.3.2), if flow control has room for it: the library
	// would exceed the peer's limit.
	err := stream.TryWriteAll(o.head)
	if err == nil {
		stream.SetReliableBoundary()
	}
	if o.opened(stream) {
		return errGivenUp
	}
	s.rank()
	if err != nil {
		return err
	}
	t := o.subscription.track
	t.mu.Lock()
	defer t.mu.Unlock()
	if o.sieve != nil {
		return nil
	}
	was := o.pos
	data, next := o.take()
	switch {
	case next != sending:
	case stream.TryWriteAll(data) != nil:
		o.pos = was
	default:
		s.wait(o, -len(data))
		o.sent(len(data))
		o.finish()
	}
	return nil
}

// sent counts bytes that were given to the library.
func (o *outgoing) sent(n int) {
	kernel := uint64(0)
	if l, ok := o.stream.(*leased); ok {
		kernel = l.byKernel()
	}
	o.subscription.count(func(st *SubscriptionStats) {
		st.Bytes += uint64(n)
		st.KernelBytes += kernel
	})
}

// finish ends the stream if all of it was given to the library, so that its end leaves with its last bytes. The
// goroutine finds that out.
func (o *outgoing) finish() {
	if o.subgroup.fin && o.pos == o.subgroup.size && o.limit == noLimit && o.sieve == nil {
		_ = o.stream.Close()
	}
}

// opened notes the stream; it reports whether it was given up before it was open.
func (o *outgoing) opened(stream subgroupStream) bool {
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
	unasked // what follows isn't asked for
)

// next returns what is to be sent next.
func (o *outgoing) next() (data []byte, next step) {
	u := o.subscription
	u.track.mu.Lock()
	defer u.track.mu.Unlock()
	data, next = o.take()
	o.idle = next == waiting
	o.sent(len(data))
	return data, next
}

func (o *outgoing) take() ([]byte, step) {
	sg := o.subgroup
	if o.sieve != nil {
		return o.sieve.next(o)
	}
	if o.pos < sg.base {
		return nil, unasked // it was dropped for that
	}
	end := min(sg.size, o.limit)
	switch {
	case o.pos < end:
	case o.pos == o.limit:
		return nil, unasked
	case sg.fin:
		return nil, ending
	case sg.broken:
		return nil, broken
	default:
		return nil, waiting
	}
	data := sg.bytes(o.pos)
	data, timely := o.timely(o.pos, data[:min(uint64(len(data)), end-o.pos)])
	if !timely {
		return nil, late
	}
	o.pos += uint64(len(data))
	return data, sending
}

// timely returns what of data, which is at an offset, may be sent now: one object at a time if there is a timeout,
// since what is given to the library can't be late any more (§5.2). It reports whether that isn't late.
func (o *outgoing) timely(at uint64, data []byte) ([]byte, bool) {
	sg := o.subgroup
	timeout := least(o.subscription.objectTimeout, sg.timeouts.objectTimeout, sg.timeouts.cacheDuration)
	if timeout == 0 {
		return data, true
	}
	i := sg.object(at)
	if i > 0 && sg.objects[i-1].body == at { // the first one of a stream that began there
		i--
	}
	if i < len(sg.objects) && sg.objects[i].at <= at {
		if time.Since(sg.objects[i].time) > timeout {
			return nil, false
		}
		i++
	}
	if i < len(sg.objects) {
		data = data[:min(uint64(len(data)), sg.objects[i].at-at)]
	}
	return data, true
}
