package relay

import (
	"cmp"
	"context"
	"errors"
	"io"
	"slices"

	"github.com/fastrelay/fastrelay-gen/examples/moq/wire"
	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go"
)

// A wanted is a range of a track that FETCH or FILL_PARAMETERS ask for.
type wanted struct {
	track       *track
	session     *session
	id          uint64        // of the request
	first, last wire.Location // both inclusive; last is at most the largest object
	order       wire.GroupOrder
}

// fetch takes a FETCH until it is over (§9.11). It is served from what is kept, or by a publisher if the range begins
// before that; a publisher that refuses leaves what is kept.
func (s *session) fetch(r *request, m *wire.Fetch) *wire.Rejection {
	name := m.Track
	var joins *subscription
	if m.Joining != nil {
		var rejection *wire.Rejection
		if joins, rejection = s.joined(m.Joining); rejection != nil {
			return rejection
		}
		name = joins.track.name
	}
	rejection := s.admit(Fetch, name, m.Parameters.Tokens)
	if rejection == nil {
		rejection = unfiltered(&m.Parameters)
	}
	if rejection != nil {
		return rejection
	}
	t := s.relay.use(s.scope, name)
	defer s.relay.release(t)
	t.mu.Lock()
	w := wanted{track: t, session: s, id: m.RequestID, order: m.Parameters.GroupOrder.Or(wire.Ascending)}
	publishers := make([]*session, 0, len(t.sources))
	for _, src := range t.sources {
		if reaches(src.session, s) {
			publishers = append(publishers, src.session)
		}
	}
	subscribed, largest := len(publishers) > 0, t.largest
	w.limit(rangeOf(m.Parameters.LocationFilter.Value, largest))
	if joins != nil {
		w.joins(joins, m.Joining)
	}
	kept, all := w.plan()
	ok := &wire.FetchOK{End: w.last, Properties: t.settings.properties}
	t.mu.Unlock()
	switch {
	case !subscribed:
		publishers, kept, all = s.relay.publishers(t), nil, false
	case !largest.Present || largest.Value.Less(w.first):
		return &wire.Rejection{Code: wire.InvalidRange, Text: "the range begins after the largest object"}
	}
	if !all {
		refused := s.askEach(t, publishers, !subscribed, func(p *session) *wire.RequestError {
			return w.fetchFrom(p, r, m)
		})
		if refused == nil {
			return nil
		}
		if len(kept) == 0 {
			r.refuseWith(downstream(refused, s))
			_, _ = io.Copy(io.Discard, r.stream)
			return nil
		}
	}
	if !m.Parameters.IncludeProperties.Or(true) {
		ok.Properties = nil
	}
	_ = r.send(ok)
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		_ = w.send(ctx, kept, func() {})
		r.finish()
	}()
	r.updates(r.accept, nil)
	cancel() // it is over, or cancelled
	<-sent
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
	subgroup *subgroup // nil: the range that ends with at
	object   object
	at       wire.Location
}

// plan returns what is kept of the range, in order; all reports whether that begins with the range. The track's mutex
// is held.
func (w *wanted) plan() (pieces []piece, all bool) {
	t := w.track
	var groups []*group
	for _, g := range t.groups {
		if g.id >= w.first.Group && g.id <= w.last.Group {
			groups = append(groups, g)
		}
		all = all || g.id <= w.first.Group
	}
	slices.SortFunc(groups, func(a, b *group) int { return cmp.Compare(a.id, b.id) })
	before := len(groups) > 0 && groups[0].id > w.first.Group && !all // something may precede what is kept
	if w.order == wire.Descending {
		for _, g := range slices.Backward(groups) {
			pieces = append(pieces, w.planGroup(g)...)
		}
		if before {
			pieces = append(pieces, piece{at: w.first})
		}
		return pieces, all
	}
	if before {
		pieces = append(pieces, piece{at: wire.Location{Group: groups[0].id - 1, Object: wire.WholeGroup}})
	}
	for _, g := range groups {
		pieces = append(pieces, w.planGroup(g)...)
	}
	return pieces, all
}

// planGroup returns what is kept of a group. Objects that are missing don't exist if the group is whole; else that
// isn't known.
func (w *wanted) planGroup(g *group) (pieces []piece) {
	var kept []piece
	for _, sg := range g.subgroups {
		for _, o := range sg.objects {
			if at := sg.location(o.id); o.at >= sg.base && !at.Less(w.first) && !w.last.Less(at) {
				kept = append(kept, piece{sg, o, at})
			}
		}
	}
	slices.SortStableFunc(kept, func(a, b piece) int { return cmp.Compare(a.object.id, b.object.id) })
	kept = slices.CompactFunc(kept, func(a, b piece) bool { return a.object.id == b.object.id })
	whole := g.whole(w.track)
	next := uint64(0)
	if g.id == w.first.Group {
		next = w.first.Object
	}
	for _, p := range kept {
		if p.object.id > next && !whole {
			pieces = append(pieces, piece{at: wire.Location{Group: g.id, Object: p.object.id - 1}})
		}
		pieces = append(pieces, p)
		next = p.object.id + 1
	}
	last := wire.Location{Group: g.id, Object: wire.WholeGroup}
	if w.last.Less(last) {
		last = w.last
	}
	if !whole && next <= last.Object && next > 0 {
		pieces = append(pieces, piece{at: last})
	}
	return pieces
}

// whole reports whether all that there is of a group is taken to be kept: it began when the relay was subscribed
// already, and all its streams have ended by a FIN.
func (g *group) whole(t *track) bool {
	return !t.loose && g.fromStart && !slices.ContainsFunc(g.subgroups, func(sg *subgroup) bool {
		return !sg.fin || sg.base > 0
	})
}

// errGone says that an object isn't kept any more, or that the rest of it won't come.
var errGone = errors.New("the object is gone")

// read returns an object with its payload, as soon as all of it has come.
func (p *piece) read(ctx context.Context) (o wire.Object, payload []byte, err error) {
	sg := p.subgroup
	t := sg.track
	for {
		t.mu.Lock()
		more, b := sg.next(), sg.copy(&p.object)
		gone := b == nil && (p.object.at < sg.base || sg.ended())
		t.mu.Unlock()
		if b != nil {
			parser := wire.Subgroup{Header: sg.header}
			o, n, err := parser.Next(b)
			o.ID = p.object.id
			return o, b[n:], err
		}
		if gone {
			return o, nil, errGone
		}
		select {
		case <-more:
		case <-ctx.Done():
			return o, nil, ctx.Err()
		}
	}
}

// send sends what was planned on a stream of its own (§11.4.1), until ctx ends. opened is called when it is open.
func (w *wanted) send(ctx context.Context, pieces []piece, opened func()) error {
	stream, err := w.session.conn.OpenUniStreamSync(ctx)
	if err != nil {
		return err
	}
	opened()
	stop := context.AfterFunc(ctx, func() { stream.CancelWrite(quic.StreamErrorCode(wire.ResetCancelled)) })
	defer stop()
	f := wire.Fetched{Draft: w.session.draft, Descending: w.order == wire.Descending}
	b := wire.AppendFetchHeader(nil, w.id)
	for _, p := range pieces {
		marker := wire.FetchObject{EndOfRange: wire.Unknown, Group: p.at.Group, ID: p.at.Object}
		if p.subgroup == nil {
			if b, err = f.Append(b, marker); err != nil {
				break
			}
			continue
		}
		o, payload, gone := p.read(ctx)
		switch {
		case errors.Is(gone, errGone):
			b, err = f.Append(b, marker)
		case gone != nil:
			err = gone
		case o.Status == wire.Normal: // the end of a group or track is where the objects end
			b, err = f.Append(b, wire.FetchObject{
				Group: p.at.Group, ID: o.ID, Subgroup: p.subgroup.header.Subgroup, Priority: p.subgroup.priority,
				Properties: o.Properties, Length: o.Length,
			})
			b = append(b, payload...)
		}
		if err != nil {
			break
		}
		if _, err = stream.Write(b); err != nil {
			return err
		}
		b = b[:0]
	}
	if err == nil {
		_, err = stream.Write(b)
	}
	if err != nil {
		stream.CancelWrite(quic.StreamErrorCode(wire.ResetInternalError))
		return err
	}
	return stream.Close()
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
	w := &wanted{
		track: t, session: u.session, id: id,
		order: p.GroupOrder.Or(u.order.Or(t.settings.order)),
	}
	filter := u.filter
	if p.LocationFilter.Present {
		filter = p.LocationFilter.Value
	}
	w.limit(rangeOf(filter, t.largest))
	if w.last.Less(w.first) {
		return
	}
	pieces, _ := w.plan()
	ctx, cancel := context.WithCancel(u.session.ctx)
	f := &filling{cancel}
	u.fills[f] = struct{}{}
	go func() {
		defer cancel()
		_ = w.send(ctx, pieces, func() {
			t.mu.Lock()
			defer t.mu.Unlock()
			u.opened++
			u.count(func(st *SubscriptionStats) { st.Streams++ })
		})
		t.mu.Lock()
		defer t.mu.Unlock()
		delete(u.fills, f)
		u.finish()
	}()
}

// A filling is a fill fetch stream.
type filling struct{ cancel context.CancelFunc }
