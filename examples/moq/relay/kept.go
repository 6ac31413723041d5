package relay

import (
	"slices"
	"sort"
	"time"

	"github.com/fastrelay/fastrelay-gen/examples/moq/wire"
)

// A single is an object that is kept by itself: it was in a datagram, or in the answer to a FETCH.
type single struct {
	wire.FetchObject
	payload []byte
	time    time.Time
}

// singleCharged is what a single counts beside its payload and its properties.
const singleCharged = 128

func (o *single) size() int { return singleCharged + len(o.payload) + len(o.Properties) }

// find returns where in the group's singles an ID is, or would be.
func (g *group) find(id uint64) (int, bool) {
	i := sort.Search(len(g.singles), func(i int) bool { return g.singles[i].ID >= id })
	return i, i < len(g.singles) && g.singles[i].ID == id
}

// hold keeps an object by itself, unless it is kept already.
func (t *track) hold(g *group, o *single) {
	i, is := g.find(o.ID)
	if is || t.closed {
		return
	}
	g.singles = slices.Insert(g.singles, i, o)
	g.latest = o.time
	t.keep(o.size())
}

// holdFetched keeps an object that was fetched, if that fits: what comes live isn't dropped for it, and drops it first.
// It reports whether that doesn't contradict what is kept.
func (t *track) holdFetched(o *single) bool {
	c := t.relay.config
	g := t.byID[o.Group]
	if g != nil {
		if payload, same := g.compare(&o.FetchObject); !same || payload != nil && !payload(o.payload) {
			return false
		}
	}
	if t.closed || len(t.sources) == 0 || t.cached+o.size() > c.TrackCache ||
		t.relay.cached.Load()+int64(o.size()) > int64(c.Cache) {
		return true
	}
	if g == nil {
		g = newGroup(o.Group)
		t.groups = slices.Insert(t.groups, 0, g)
		t.byID[g.id] = g
	}
	if !g.has(o.ID) {
		t.hold(g, o)
		g.see(o.ID)
	}
	return true
}

// has reports whether an object is kept on a stream.
func (g *group) has(id uint64) bool {
	return slices.ContainsFunc(g.subgroups, func(sg *subgroup) bool { return sg.get(id) != nil })
}

// get returns an object that is kept, or nil.
func (sg *subgroup) get(id uint64) *object {
	i := sort.Search(len(sg.objects), func(i int) bool { return sg.objects[i].id >= id })
	if i == len(sg.objects) || sg.objects[i].id != id {
		return nil
	}
	return &sg.objects[i]
}

// dropSingle drops the single with the lowest ID; it reports whether there was one.
func (t *track) dropSingle(g *group) bool {
	if len(g.singles) == 0 {
		return false
	}
	t.keep(-g.singles[0].size())
	g.singles = g.singles[1:]
	return true
}

// expireSingles drops those that are too old.
func (t *track) expireSingles(g *group, now time.Time) {
	g.singles = slices.DeleteFunc(g.singles, func(o *single) bool {
		old := now.Sub(o.time) > t.settings.cacheDuration
		if old {
			t.keep(-o.size())
		}
		return old
	})
}

// unknown returns what of a range isn't known not to exist.
func (t *track) unknown(first, last wire.Location) (left []span) {
	for _, s := range t.denied.minus(first, last) {
		left = append(left, t.missing.minus(s.first, s.last)...)
	}
	return left
}

// holdDatagram keeps a datagram's object.
func (t *track) holdDatagram(d *earlyDatagram) {
	if d.Status == wire.Normal {
		t.hold(t.group(d.Group), &single{FetchObject: *t.objectOf(&d.Datagram), payload: d.Payload, time: d.at})
		t.trim()
	}
}
