package relay

import (
	"cmp"
	"context"
	"errors"
	"os"
	"slices"
	"time"

	"github.com/fastrelay/fastrelay-gen/examples/moq/wire"
	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go"
)

// A wanted is a range of a track that FETCH or FILL_PARAMETERS ask for.
type wanted struct {
	track   *track
	session *session
	id      uint64 // of the request
	span           // last is at most the largest object
	order   wire.GroupOrder
	objects objectFilter
}

func (w *wanted) descending() bool { return w.order == wire.Descending }

// fetch takes a FETCH until it is over (§9.11). What is kept of the range is served from there, what isn't known is
// asked for. If the relay isn't subscribed to the track, a publisher has to say what there is.
func (s *session) fetch(r *request, m *wire.Fetch) *wire.Rejection {
	name, p := m.Track, &m.Parameters
	var joins *subscription
	if m.Joining != nil {
		var rejection *wire.Rejection
		if joins, rejection = s.joined(m.Joining); rejection != nil {
			return rejection
		}
		name = joins.track.name
	}
	rejection := s.admit(Fetch, name, p.Tokens)
	if rejection == nil {
		rejection = checkFilters(nil, p)
	}
	if rejection != nil {
		return rejection
	}
	t := s.relay.use(s.scope, name)
	defer s.relay.release(t)
	f := s.newFetching(wanted{track: t, session: s, id: m.RequestID, order: p.GroupOrder.Or(wire.Ascending)}, p)
	f.request, f.serial = r, s.relay.counters.subscriptions.Add(1)
	f.properties = p.IncludeProperties.Or(true)
	t.mu.Lock()
	subscribed, largest := t.serves(s), t.largest
	if subscribed {
		f.limit(rangeOf(p.LocationFilter.Value, largest))
	} else {
		f.first, f.last = rangeOf(p.LocationFilter.Value, wire.Optional[wire.Location]{})
	}
	if joins != nil {
		f.joins(joins, m.Joining)
	}
	if subscribed {
		if !largest.Present || largest.Value.Less(f.first) {
			t.mu.Unlock()
			return &wire.Rejection{Code: wire.InvalidRange, Text: "the range begins after the largest object"}
		}
		f.prepare(p.RangeFilters)
	}
	t.mu.Unlock()
	if !subscribed {
		f.publishers, f.asks, f.budget = s.relay.publishers(t), m, s.relay.config.Patience
		f.pieces = []piece{{from: f.first, at: f.last}}
		f.objects = newObjectFilter(updateRanges(nil, p.RangeFilters), nil)
	}
	ctx, cancel := context.WithCancelCause(s.ctx)
	defer cancel(nil)
	served := make(chan struct{})
	t.serve(f, cancel)
	go func() {
		defer close(served)
		f.run(ctx)
		t.served(f)
	}()
	r.updates(f.update, nil)
	cancel(nil) // it is over, or cancelled
	<-served
	return nil
}

// limit sets the range, which ends with the largest object, if there is one.
func (w *wanted) limit(first, last wire.Location) {
	w.first, w.last = first, last
	if l := w.track.largest; l.Present && l.Value.Less(last) {
		w.last = l.Value
	}
}

// A piece is an object that is kept, or a range of which it isn't known what it has.
type piece struct {
	subgroup *subgroup
	object   object  // of the subgroup
	single   *single // unless that is nil
	from, at wire.Location
}

// kept reports whether the piece is an object.
func (p *piece) kept() bool { return p.subgroup != nil || p.single != nil }

// plan returns what there is of a range, in order. What is known not to exist isn't among it. The track's mutex is
// held.
func (w *wanted) plan(in span) (pieces []piece) {
	t := w.track
	var groups []*group
	for _, g := range t.groups {
		if g.id >= in.first.Group && g.id <= in.last.Group {
			groups = append(groups, g)
		}
	}
	slices.SortFunc(groups, func(a, b *group) int { return cmp.Compare(a.id, b.id) })
	if !w.descending() {
		var kept []piece
		for _, g := range groups {
			kept = append(kept, t.keptOf(g, in)...)
		}
		return t.between(in, kept)
	}
	for _, g := range slices.Backward(groups) {
		whole := span{wire.Location{Group: g.id}, wire.Location{Group: g.id, Object: wire.WholeGroup}}
		if apart(whole.last, in.last) || whole.last.Less(in.last) {
			pieces = append(pieces, reversed(t.between(span{wire.Location{Group: g.id + 1}, in.last}, nil))...)
		}
		own := span{later(in.first, whole.first), earlier(in.last, whole.last)}
		pieces = append(pieces, t.between(own, t.keptOf(g, own))...)
		if !in.first.Less(whole.first) {
			return pieces
		}
		in.last = before(whole.first)
	}
	return append(pieces, reversed(t.between(in, nil))...)
}

func reversed(pieces []piece) []piece {
	slices.Reverse(pieces)
	return pieces
}

// between returns the objects that are kept in a range, and what isn't known between them.
func (t *track) between(in span, kept []piece) (pieces []piece) {
	gap := func(first, last wire.Location) {
		for _, s := range t.unknown(first, last) {
			pieces = append(pieces, piece{from: s.first, at: s.last})
		}
	}
	for _, p := range kept {
		if in.first.Less(p.at) {
			gap(in.first, before(p.at))
		}
		pieces = append(pieces, p)
		var more bool
		if in.first, more = after(p.at); !more {
			return pieces
		}
	}
	if !in.last.Less(in.first) {
		gap(in.first, in.last)
	}
	return pieces
}

// keptOf returns the objects of a group that are kept in a range, each once.
func (t *track) keptOf(g *group, in span) (kept []piece) {
	add := func(p piece, since time.Time) {
		d := t.settings.cacheDuration
		if !p.at.Less(in.first) && !in.last.Less(p.at) && (d == 0 || time.Since(since) <= d) {
			p.from = p.at
			kept = append(kept, p)
		}
	}
	for _, sg := range g.subgroups {
		for _, o := range sg.objects {
			if o.at >= sg.base && (o.end <= sg.size || !sg.ended()) {
				add(piece{subgroup: sg, object: o, at: sg.location(o.id)}, o.time)
			}
		}
	}
	for _, o := range g.singles {
		add(piece{single: o, at: wire.Location{Group: g.id, Object: o.ID}}, o.time)
	}
	slices.SortStableFunc(kept, func(a, b piece) int { return cmp.Compare(a.at.Object, b.at.Object) })
	return slices.CompactFunc(kept, func(a, b piece) bool { return a.at == b.at })
}

var (
	// errGone says that an object isn't kept any more, or that the rest of it won't come.
	errGone = errors.New("the object is gone")
	// errLate says that the rest of an object hasn't come in time.
	errLate = errors.New("the object is late")
)

// kept returns an object with its payload, as soon as all of it has come. ok is false for one that fetches don't have,
// since it says where others end.
func (f *fetching) kept(ctx context.Context, p *piece) (o wire.FetchObject, payload []byte, ok bool, err error) {
	if p.single != nil {
		return p.single.FetchObject, p.single.payload, true, nil
	}
	sg := p.subgroup
	for {
		sg.track.mu.Lock()
		more, b := sg.next(), sg.copy(&p.object)
		gone := b == nil && (p.object.at < sg.base || sg.ended())
		sg.track.mu.Unlock()
		if b != nil {
			parser := wire.Subgroup{Header: sg.header}
			own, n, err := parser.Next(b)
			return wire.FetchObject{
				Group: sg.group.id, ID: p.object.id, Subgroup: sg.header.Subgroup, Priority: sg.priority,
				Properties: own.Properties, Length: own.Length,
			}, b[n:], own.Status == wire.Normal, err
		}
		if gone {
			return o, nil, false, errGone
		}
		begin := time.Now()
		select {
		case <-more:
		case <-time.After(f.budget):
			return o, nil, false, errLate
		case <-ctx.Done():
			return o, nil, false, ctx.Err()
		}
		f.spend(begin)
	}
}

// next returns a channel that is closed when more of the subgroup has come, or it has ended.
func (sg *subgroup) next() <-chan struct{} {
	if sg.changed == nil {
		sg.changed = make(chan struct{})
	}
	return sg.changed
}

func (sg *subgroup) notify() {
	if sg.changed != nil {
		close(sg.changed)
		sg.changed = nil
	}
}

// copy returns an object with its header, or nil if not all of it is there.
func (sg *subgroup) copy(o *object) []byte {
	if o.at < sg.base || o.end > sg.size {
		return nil
	}
	b := make([]byte, 0, o.end-o.at)
	for at := o.at; at < o.end; at = o.at + uint64(len(b)) {
		data := sg.bytes(at)
		b = append(b, data[:min(uint64(len(data)), o.end-at)]...)
	}
	return b
}

// fill sends the range that FILL_PARAMETERS ask for, on a stream that belongs to the subscription (§3.4). The track's
// mutex is held.
func (u *subscription) fill(id uint64, p *wire.Parameters) {
	t := u.track
	if p == nil || !u.forward || !t.largest.Present {
		return
	}
	order := u.order.Or(t.settings.order)
	f := u.session.newFetching(wanted{track: t, session: u.session, id: id, order: p.GroupOrder.Or(order)}, p)
	f.of, f.serial, f.answered, f.ordered, f.inherits = u, u.serial, true, order, !p.SubscriberPriority.Present
	filter := u.filter
	if p.LocationFilter.Present {
		filter = p.LocationFilter.Value
	}
	f.limit(rangeOf(filter, t.largest))
	if f.last.Less(f.first) {
		return
	}
	f.prepare(updateRanges(u.ranges, p.RangeFilters))
	ctx, cancel := context.WithCancelCause(u.session.ctx)
	f.cancel = cancel
	u.fills[f] = struct{}{}
	t.fetches[f] = struct{}{}
	go func() {
		defer cancel(nil)
		f.run(ctx)
		t.served(f)
		t.mu.Lock()
		defer t.mu.Unlock()
		delete(u.fills, f)
		u.finish()
	}()
}

// A fetching is a fetch stream to a subscriber, for a FETCH or a fill.
type fetching struct {
	wanted
	request    *request      // nil for a fill
	of         *subscription // of a fill
	climbed    bool          // upstream relays are among the publishers
	asks       *wire.Fetch   // if a publisher has to say what there is; else nil
	publishers []*session    // that may be asked
	pieces     []piece       // that aren't sent yet
	budget     time.Duration // for which it may wait for publishers (§9.20.6)
	properties bool          // FETCH_OK has the track's
	cancel     context.CancelCauseFunc

	answered bool // by FETCH_OK; the track's mutex guards this and what follows
	early    int  // REQUEST_UPDATEs before that

	stream  sendStream
	writer  wire.Fetched
	b       []byte                       // that isn't written yet
	course  course                       // what was sent, or doesn't exist
	absent  wire.Optional[wire.Location] // where what doesn't exist ends, after what was sent last
	unblock func() bool                  // what ctx does to the stream
	lost    error                        // why the subscriber takes no more

	// The session's mutex guards these.
	serial    uint64
	priority  uint8           // the subscriber's, unless it
	inherits  bool            // the subscription's
	ordered   wire.GroupOrder // of the subscription
	publisher uint8           // the publisher's, of the object that is sent
	group     uint64
	urgency   int8
}

func (s *session) newFetching(w wanted, p *wire.Parameters) *fetching {
	budget := s.relay.config.Patience
	if p.FillTimeout.Present {
		budget = min(budget, milliseconds(p.FillTimeout.Value))
	}
	return &fetching{
		wanted: w, budget: budget, priority: p.SubscriberPriority.Or(128), publisher: 128, urgency: urgencyData,
		writer: wire.Fetched{Draft: s.draft, Descending: w.descending()},
	}
}

// prepare plans what is to be sent of a track to which the relay is subscribed. The track's mutex is held.
func (f *fetching) prepare(filters []wire.RangeFilter) {
	t := f.track
	for _, src := range t.sources {
		if reaches(src.session, f.session) {
			f.publishers = append(f.publishers, src.session)
		}
	}
	f.pieces = f.plan(f.span)
	f.objects = newObjectFilter(updateRanges(nil, filters), t.settings.properties)
	f.course = newCourse(f.first, f.last, f.descending())
}

// serve has a fetch end with its track, if that is malformed.
func (t *track) serve(f *fetching, cancel context.CancelCauseFunc) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f.cancel = cancel
	t.fetches[f] = struct{}{}
}

func (t *track) served(f *fetching) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.fetches, f)
}

// answer sends FETCH_OK, once.
func (f *fetching) answer(ok *wire.FetchOK) {
	t := f.track
	t.mu.Lock()
	defer t.mu.Unlock()
	if f.answered {
		return
	}
	f.answered = true
	if ok == nil {
		ok = &wire.FetchOK{End: f.last, Properties: t.settings.properties}
	}
	if !f.properties {
		ok.Properties = nil
	}
	_ = f.request.send(ok)
	for range f.early {
		_ = f.request.send(&wire.RequestOK{})
	}
}

// update takes a REQUEST_UPDATE of the subscriber's. One that fails ends the fetch (§9.5.1).
func (f *fetching) update(m *wire.RequestUpdate, refused *wire.Rejection) *wire.Rejection {
	p, s := &m.Parameters, f.session
	if len(p.RangeFilters) > 0 {
		s.fail(violated("range filters in an update of a fetch"))
		return nil
	}
	if refused == nil && len(p.Tokens) > 0 {
		refused = s.admit(Fetch, f.track.name, p.Tokens)
	}
	if refused != nil {
		f.cancel(errCancelled)
		return refused
	}
	if p.SubscriberPriority.Present {
		s.mu.Lock()
		f.priority = p.SubscriberPriority.Value
		s.assign()
		s.mu.Unlock()
	}
	f.track.mu.Lock()
	defer f.track.mu.Unlock()
	if !f.answered {
		f.early++
		return nil
	}
	_ = f.request.send(&wire.RequestOK{})
	return nil
}

// Why a fetch ends early.
var (
	errCancelled = errors.New("the fetch is over")
	errUnknown   = errors.New("no publisher says what the range has")
)

// run serves the fetch to its end.
func (f *fetching) run(ctx context.Context) {
	defer f.session.unrank(f)
	err := f.serve(ctx)
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	var refused refusal
	switch {
	case err == nil:
		if f.unblock() && f.stream.Close() == nil && f.request != nil {
			f.request.finish()
		}
		return
	case errors.As(err, &refused):
		f.request.refuseWith(refused.RequestError)
		return
	case errors.Is(err, errMalformed) && !f.isAnswered():
		f.request.refuse(&wire.Rejection{Code: wire.RequestMalformedTrack, Text: "the track is malformed"})
		return
	case f.stream != nil:
	case f.request != nil:
		f.request.reset(wire.ResetCode(resetOf(err)))
		return
	default: // a fill that fails has a stream (§3.4.1)
		if f.open(f.session.ctx) != nil || f.flush() != nil {
			return
		}
		f.stream.SetReliableBoundary()
	}
	f.stream.CancelWrite(resetOf(err))
	if f.request != nil {
		f.request.finish()
	}
}

// resetOf returns the code of a stream whose fetch ends early.
func resetOf(err error) quic.StreamErrorCode {
	if errors.Is(err, errUnknown) {
		return quic.StreamErrorCode(wire.ResetUnknownObjectStatus)
	}
	return quic.StreamErrorCode(resetCode(err))
}

// serve sends what was planned on a stream of its own (§11.4.1).
func (f *fetching) serve(ctx context.Context) error {
	keeps := func(p piece) bool { return p.kept() }
	if f.asks == nil && f.request != nil && (len(f.pieces) == 0 || slices.ContainsFunc(f.pieces, keeps)) {
		f.answer(nil)
	}
	for len(f.pieces) > 0 {
		p := f.pieces[0]
		f.pieces = f.pieces[1:]
		var err error
		if p.kept() {
			err = f.sendKept(ctx, &p)
		} else {
			err = f.ask(ctx, p.from, p.at)
		}
		if err != nil {
			return err
		}
	}
	if err := f.open(ctx); err != nil {
		return err
	}
	return f.flush()
}

// sendKept sends an object that is kept. If it isn't any more, what is left is planned again.
func (f *fetching) sendKept(ctx context.Context, p *piece) error {
	o, payload, ok, err := f.kept(ctx, p)
	switch {
	case errors.Is(err, errGone):
		f.again(p.at)
		return nil
	case err != nil && !errors.Is(err, errLate):
		return err
	}
	f.skip(p.at)
	f.course.step()
	if err != nil {
		f.budget = 0
		return f.mark(ctx, wire.TimedOut, p.at)
	}
	if !ok || !f.objects.passesObject(&o) {
		return nil
	}
	if err := f.begin(ctx, o); err != nil {
		return err
	}
	f.b = append(f.b, payload...)
	return f.flush()
}

// again plans what is left from a location on.
func (f *fetching) again(at wire.Location) {
	f.track.mu.Lock()
	defer f.track.mu.Unlock()
	rest := f.span
	if rest.first = at; !f.descending() {
		f.pieces = f.plan(rest)
		return
	}
	rest.last = f.course.leave(at.Group)
	f.pieces = f.plan(rest)
	if f.first.Group < at.Group {
		f.pieces = append(f.pieces, f.plan(span{f.first, before(wire.Location{Group: at.Group})})...)
	}
}

// skip goes on to a location; what it goes over does not exist.
func (f *fetching) skip(to wire.Location) {
	if !f.course.ahead(to) {
		return
	}
	if over := f.course.pass(to); len(over) > 0 {
		f.absent = wire.Some(over[len(over)-1].last)
	}
}

// begin appends the header of an object, which the payload follows.
func (f *fetching) begin(ctx context.Context, o wire.FetchObject) (err error) {
	if err := f.open(ctx); err != nil {
		return err
	}
	f.session.place(f, o.Priority, o.Group)
	f.absent = wire.Optional[wire.Location]{}
	f.b, err = f.writer.Append(f.b, o)
	return err
}

// mark says of what precedes a location that it isn't known, or was too late. What is known not to exist is set apart
// from that, unless there is a filter: then a gap says nothing (§11.4.1.2).
func (f *fetching) mark(ctx context.Context, end wire.EndOfRange, at wire.Location) (err error) {
	if err := f.open(ctx); err != nil {
		return err
	}
	if end == wire.TimedOut && f.session.draft == wire.Draft18 { // which has no such range
		end = wire.Unknown
	}
	if f.absent.Present && f.objects == nil {
		l := f.absent.Value
		f.b, err = f.writer.Append(f.b, wire.FetchObject{EndOfRange: wire.NonExistent, Group: l.Group, ID: l.Object})
		if err != nil {
			return err
		}
	}
	f.absent = wire.Optional[wire.Location]{}
	f.b, err = f.writer.Append(f.b, wire.FetchObject{EndOfRange: end, Group: at.Group, ID: at.Object})
	return err
}

// open opens the stream.
func (f *fetching) open(ctx context.Context) error {
	if f.stream != nil {
		return nil
	}
	stream, err := f.session.conn.OpenUniStreamSync(ctx)
	if err != nil {
		return err
	}
	f.stream, f.b = stream, wire.AppendFetchHeader(nil, f.id)
	f.unblock = context.AfterFunc(ctx, func() { stream.CancelWrite(resetOf(context.Cause(ctx))) })
	context.AfterFunc(stream.Context(), func() { f.cancel(errCancelled) }) // the subscriber has stopped it
	f.session.enrank(f)
	if u := f.of; u != nil {
		f.track.mu.Lock()
		u.opened++
		u.count(func(st *SubscriptionStats) { st.Streams++ })
		f.track.mu.Unlock()
	}
	return nil
}

// flush writes what there is.
func (f *fetching) flush() error {
	if len(f.b) == 0 {
		return nil
	}
	_ = f.stream.SetWriteDeadline(time.Now().Add(f.session.relay.config.Patience))
	_, err := f.stream.Write(f.b)
	f.b = f.b[:0]
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		f.lost = wire.ErrLimit // it would hold up others that are asked for by FETCH
	case err != nil:
		f.lost = errCancelled // the subscriber has stopped it, or the session is over
	}
	return f.lost
}
