package relay

import (
	"bytes"
	"errors"
	"slices"

	"github.com/fastrelay/fastrelay-gen/examples/moq/wire"
	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go"
)

// errMalformed says that the track is malformed (§12.1). Each object is held against what is kept of the track.
var errMalformed = errors.New("the track is malformed")

// malformed ends a malformed track: its subscriptions, its fetches, and what the publisher has of the relay's. What is
// kept and known of it is forgotten, but for groups of which more may come.
func (t *track) malformed(p *session) {
	for _, src := range slices.Clone(t.sources) {
		if src.session == p {
			src.cancel()
		}
	}
	for _, u := range t.subs {
		for o := range u.outgoing {
			o.drop(droppedMalformed)
		}
	}
	for f := range t.fetches {
		f.cancel(errMalformed)
	}
	t.endAll(wire.DoneMalformedTrack, "an object of the track is malformed")
	t.unsubscribe()
	for i := len(t.groups) - 1; i >= 0; i-- {
		if !t.groups[i].live() {
			t.drop(i)
		}
	}
	t.denied, t.missing = nil, nil
}

// A comparison compares a payload, as it comes, with the one that is kept; it reports whether they are the same. The
// track's mutex is held.
type comparison func(data []byte) bool

// compare holds an object against what is kept of its location, but for the payload, for which it returns a comparison
// if there is one.
func (g *group) compare(o *wire.FetchObject) (payload comparison, same bool) {
	if !g.top.Present || o.ID > g.top.Value {
		return nil, true
	}
	if i, is := g.find(o.ID); is {
		one := g.singles[i]
		return compareBytes(one.payload), alike(&one.FetchObject, o)
	}
	for _, sg := range g.subgroups {
		if one := sg.get(o.ID); one != nil {
			return sg.compare(one, o)
		}
	}
	return nil, true
}

func (sg *subgroup) compare(one *object, o *wire.FetchObject) (payload comparison, same bool) {
	parser := wire.Subgroup{Header: sg.header}
	own, n, err := parser.Next(sg.bytes(one.at))
	if err != nil { // a header is in one chunk
		return nil, true
	}
	at := one.at + uint64(n)
	return func(data []byte) bool {
			for len(data) > 0 && at >= sg.base && at < sg.size {
				b := sg.bytes(at)
				k := min(len(data), len(b))
				if !bytes.Equal(data[:k], b[:k]) {
					return false
				}
				data, at = data[k:], at+uint64(k)
			}
			return true
		}, alike(&wire.FetchObject{
			Subgroup: sg.header.Subgroup, Priority: sg.priority, Properties: own.Properties, Length: own.Length,
		}, o)
}

// compareBytes compares with bytes.
func compareBytes(all []byte) comparison {
	return func(data []byte) bool {
		same := bytes.HasPrefix(all, data)
		all = all[min(len(data), len(all)):]
		return same
	}
}

// alike reports whether two objects of one location have the same fields, as far as these can't change (§7.1).
func alike(a, b *wire.FetchObject) bool {
	return a.Datagram == b.Datagram && a.Subgroup == b.Subgroup && a.Priority == b.Priority && a.Length == b.Length &&
		bytes.Equal(immutable(a.Properties), immutable(b.Properties))
}

func immutable(p wire.Properties) []byte {
	for q, err := range p.All() {
		if err == nil && q.Type == wire.PropertyImmutable {
			return q.Bytes
		}
	}
	return nil
}

// check looks at what an object of a stream says of its track, by itself and beside what is known. The track's mutex
// is held.
func (in *incoming) check(g *group, p *progress, o *wire.Object, first bool) error {
	t, h := in.source.track, &in.parser.Header
	at := wire.Location{Group: g.id, Object: o.ID}
	if len(o.Properties) > 0 && o.Properties.CheckObject(at) != nil {
		return errMalformed
	}
	priority := h.Priority.Or(t.settings.priority)
	if first && p.priority.Present && p.priority.Value != priority {
		return errMalformed
	}
	p.priority = wire.Some(priority)
	if !t.note(g, at, o.Status, o.Properties) {
		return errMalformed
	}
	in.compare = nil
	if o.Status != wire.Normal {
		return nil
	}
	if p.final.Present && o.ID > p.final.Value {
		return errMalformed
	}
	in.final = wire.Some(o.ID)
	var same bool
	in.compare, same = g.compare(&wire.FetchObject{
		ID: o.ID, Subgroup: h.Subgroup, Priority: priority, Properties: o.Properties, Length: o.Length,
	})
	if !same {
		return errMalformed
	}
	g.see(o.ID)
	return nil
}

// see notes an ID that an object of the group has.
func (g *group) see(id uint64) { g.top = wire.Some(max(id, g.top.Value)) }

// checkEnd looks at the end of a stream whose subgroup, and maybe group, ends there.
func (in *incoming) checkEnd() error {
	t := in.source.track
	g, p := in.progress()
	if in.final.Present {
		final := in.final.Value
		if p.final.Present && p.final.Value != final || p.normal.Present && p.normal.Value > final {
			return errMalformed
		}
		p.final = in.final
	}
	if in.parser.Header.EndOfGroup &&
		!t.noteEnd(g, wire.Location{Group: g.id, Object: in.parser.LastID}) {
		return errMalformed
	}
	return nil
}

// note takes what an object of a subscription says of others: they don't exist (§11.1.2, §10.8, §10.9). It reports
// whether that contradicts nothing, nor the object what others have said.
func (t *track) note(g *group, at wire.Location, status wire.Status, p wire.Properties) bool {
	switch status {
	case wire.EndOfGroup:
		return t.deny(at, wire.Location{Group: at.Group, Object: wire.WholeGroup})
	case wire.EndOfTrack:
		return t.deny(at, all)
	}
	if t.denied.has(at) {
		return false
	}
	if len(p) == 0 {
		return true
	}
	if n, ok := p.Uint(wire.PropertyPriorObjectIDGap); ok && n > 0 &&
		!t.deny(wire.Location{Group: at.Group, Object: at.Object - n}, before(at)) {
		return false
	}
	n, ok := p.Uint(wire.PropertyPriorGroupIDGap)
	if !ok {
		return true
	}
	if g.gap.Present && g.gap.Value != n {
		return false
	}
	g.gap = wire.Some(n)
	return n == 0 || t.deny(wire.Location{Group: at.Group - n}, before(wire.Location{Group: at.Group}))
}

// noteEnd takes note of the last object of a group.
func (t *track) noteEnd(g *group, last wire.Location) bool {
	return last.Object == wire.WholeGroup || t.deny(wire.Location{Group: g.id, Object: last.Object + 1},
		wire.Location{Group: g.id, Object: wire.WholeGroup})
}

// deny notes that nothing exists in a range; it reports whether nothing is known to.
func (t *track) deny(first, last wire.Location) bool {
	for _, g := range t.groups {
		if !g.top.Present || g.id < first.Group || g.id > last.Group {
			continue
		}
		from, to := uint64(0), uint64(wire.WholeGroup)
		if g.id == first.Group {
			from = first.Object
		}
		if g.id == last.Group {
			to = last.Object
		}
		if g.exists(from, to) {
			return false
		}
	}
	t.denied.add(first, last)
	return true
}

// exists reports whether an object with an ID in a range is known to exist.
func (g *group) exists(from, to uint64) bool {
	if g.top.Value >= from && g.top.Value <= to {
		return true
	}
	if i, _ := g.find(from); i < len(g.singles) && g.singles[i].ID <= to {
		return true
	}
	return slices.ContainsFunc(g.subgroups, func(sg *subgroup) bool {
		return slices.ContainsFunc(sg.objects, func(o object) bool { return o.id >= from && o.id <= to && !o.ends })
	})
}

// checkDatagram is [incoming.check] for a datagram.
func (t *track) checkDatagram(d *wire.Datagram) bool {
	g, at := t.group(d.Group), wire.Location{Group: d.Group, Object: d.Object}
	if len(d.Properties) > 0 && d.Properties.CheckObject(at) != nil || !t.note(g, at, d.Status, d.Properties) {
		return false
	}
	if d.Status != wire.Normal {
		return true
	}
	payload, same := g.compare(t.objectOf(d))
	if !same || payload != nil && !payload(d.Payload) {
		return false
	}
	g.see(d.Object)
	return !d.EndOfGroup || t.noteEnd(g, at)
}

func (t *track) objectOf(d *wire.Datagram) *wire.FetchObject {
	return &wire.FetchObject{
		Group: d.Group, ID: d.Object, Datagram: true, Priority: d.Priority.Or(t.settings.priority),
		Properties: d.Properties, Length: uint64(len(d.Payload)),
	}
}

// stop stops a stream of which no more is wanted, for what is wrong with it.
func (in *incoming) stop(err error) {
	switch {
	case errors.Is(err, errMalformed):
		in.stream.CancelRead(quic.StreamErrorCode(wire.ResetMalformedTrack))
		in.source.track.malformed(in.session)
	case errors.Is(err, wire.ErrLimit):
		in.stream.CancelRead(quic.StreamErrorCode(wire.ResetExcessiveLoad))
	}
}
