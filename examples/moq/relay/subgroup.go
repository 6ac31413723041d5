package relay

import (
	"slices"
	"sort"
	"time"

	"github.com/fastrelay/fastrelay-gen/examples/moq/wire"
	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go"
)

// A group is what is kept of a group of a track, and what is known of it.
type group struct {
	id        uint64
	subgroups []*subgroup           // streams, in the order in which they came
	known     map[uint64]*progress  // by the subgroup's ID
	singles   []*single             // objects that are kept by themselves, by ID
	latest    time.Time             // when something of it came
	top       wire.Optional[uint64] // the largest ID of an object
	gap       wire.Optional[uint64] // groups before it that don't exist
}

// progress is how far a subgroup was forwarded. Several publishers may send it, and one may send it on several streams:
// each object is forwarded once, as long as the IDs ascend (§7.3).
type progress struct {
	live  *incoming // the stream that is forwarded
	began bool      // there was an object,
	last  uint64    // the ID of which the last one had
	whole bool      // a stream has ended it
	// What its objects have to agree on (§12.1).
	priority      wire.Optional[uint8]
	normal, final wire.Optional[uint64] // IDs of the last object that isn't a mark, as it was forwarded, and at an end
}

// A subgroup is a stream of a subgroup as subscribers get it: the header, with the track's alias, and bytes of
// objects as they came. The track's mutex guards it.
type subgroup struct {
	track    *track
	group    *group
	header   wire.SubgroupHeader
	head     []byte // the header as it is sent
	priority uint8
	timeouts settings // of the subgroup (§5.2)

	// Bytes are counted from 0 after the header. Those before base aren't kept any more.
	base, size uint64
	chunks     []chunk
	objects    []object // of which something is kept
	newest     object   // the last one that has come

	above    *above // the stream that the kernel may copy; nil: it may not
	fin      bool
	broken   bool // it was reset, with
	code     wire.ResetCode
	outgoing map[*outgoing]struct{}
	changed  chan struct{} // is closed when there is more; nil: it isn't waited for
}

// An above is a stream of an upstream relay's. What follows its header is the same for subscribers, at the same offset
// if their header has the same size.
type above struct {
	session *session
	id      quic.StreamID
	head    int // the size of its header
}

// A chunk is bytes as they came.
type chunk struct {
	at   uint64
	data []byte
	time time.Time
}

func (c *chunk) end() uint64 { return c.at + uint64(len(c.data)) }

// An object is one whose header has come.
type object struct {
	id   uint64
	at   uint64 // its header is there,
	body uint64 // and what follows its ID there
	end  uint64 // its payload ends there, as soon as that has come
	time time.Time
	ends bool // it is a mark: no object, but the end of a group or track
}

func (sg *subgroup) ended() bool { return sg.fin || sg.broken }

func (sg *subgroup) location(id uint64) wire.Location {
	return wire.Location{Group: sg.group.id, Object: id}
}

func newGroup(id uint64) *group {
	return &group{id: id, known: map[uint64]*progress{}, latest: time.Now()}
}

// group returns a group, which is there then.
func (t *track) group(id uint64) *group {
	if g := t.byID[id]; g != nil {
		return g
	}
	g := newGroup(id)
	if !t.closed {
		t.groups = append(t.groups, g)
		t.byID[id] = g
	}
	return g
}

// newSubgroup adds a stream of a subgroup, whose first object has certain properties. Subscribers get it from its
// beginning on.
func (g *group) newSubgroup(t *track, h wire.SubgroupHeader, first wire.Properties) *subgroup {
	h.TrackAlias = t.alias
	sg := &subgroup{
		track: t, group: g, header: h, head: h.Append(nil), priority: h.Priority.Or(t.settings.priority),
		timeouts: t.settings, outgoing: map[*outgoing]struct{}{},
	}
	if v, ok := first.Uint(wire.PropertyObjectDeliveryTimeout); ok {
		sg.timeouts.objectTimeout = milliseconds(v)
	}
	if v, ok := first.Uint(wire.PropertySubgroupDeliveryTimeout); ok {
		sg.timeouts.subgroupTimeout = milliseconds(v)
	}
	g.subgroups = append(g.subgroups, sg)
	for _, u := range t.subs {
		u.take(sg, false)
	}
	return sg
}

// append adds bytes: objects are those whose headers are among them.
func (sg *subgroup) append(data []byte, objects []object, now time.Time) {
	t := sg.track
	for i := range objects {
		t.see(sg.location(objects[i].id))
	}
	t.received.Bytes += uint64(len(data))
	t.received.Objects += uint64(len(objects))
	sg.group.latest = now
	if t.closed {
		return
	}
	sg.chunks = append(sg.chunks, chunk{sg.size, data, now})
	sg.objects = append(sg.objects, objects...)
	if n := len(objects); n > 0 {
		sg.newest = objects[n-1]
	}
	sg.size += uint64(len(data))
	t.keep(len(data))
	sg.notify()
	for o := range sg.outgoing {
		o.offer(data, objects)
	}
	t.trim()
}

// finish ends the stream as the publisher did.
func (sg *subgroup) finish(fin bool, code wire.ResetCode) {
	sg.fin, sg.broken, sg.code = fin, !fin, code
	sg.notify()
	for o := range sg.outgoing {
		switch {
		case o.joined:
			if o.idle {
				o.finish()
			}
			o.signal()
			if fin {
				o.startTimer()
			}
		case fin && sg.size == 0 && o.sieve == nil && o.inRange(): // the subgroup is empty
			o.join(sg.head, 0)
			o.start()
		default:
			o.forget() // none of its objects were asked for
		}
	}
}

// object returns the index of the first object whose header is at an offset or after it.
func (sg *subgroup) object(at uint64) int {
	return sort.Search(len(sg.objects), func(i int) bool { return sg.objects[i].at >= at })
}

// bytes returns what is kept from an offset on, of one chunk.
func (sg *subgroup) bytes(at uint64) []byte {
	i := sort.Search(len(sg.chunks), func(i int) bool { return sg.chunks[i].end() > at })
	if i == len(sg.chunks) {
		return nil
	}
	return sg.chunks[i].data[at-sg.chunks[i].at:]
}

// keep counts bytes that are kept.
func (t *track) keep(n int) {
	t.cached += n
	t.relay.cached.Add(int64(n))
}

// dropFront drops the oldest chunk. Who hasn't got it loses the stream.
func (sg *subgroup) dropFront() {
	c := sg.chunks[0]
	sg.chunks = sg.chunks[1:]
	sg.base = c.end()
	sg.objects = sg.objects[sg.object(sg.base):]
	sg.track.keep(-len(c.data))
	for o := range sg.outgoing {
		if o.joined && o.position() < sg.base {
			o.drop(droppedExpired)
		}
	}
}

// trim drops the oldest of what is too much: groups as a whole, or the oldest bytes of one that is still coming.
func (t *track) trim() {
	over := func() bool {
		return t.cached > t.relay.config.TrackCache || t.relay.cached.Load() > int64(t.relay.config.Cache)
	}
	for i := 0; i < len(t.groups) && over(); {
		g := t.groups[i]
		if !g.live() && len(t.groups) > 1 {
			t.drop(i)
			continue
		}
		for more := true; more && over(); {
			more = false
			for _, sg := range g.subgroups {
				if len(sg.chunks) > 0 {
					sg.dropFront()
					more = true
				}
			}
		}
		for over() && t.dropSingle(g) {
		}
		i++
	}
}

// expire drops what is too old: groups that have ended, but for the largest, and what the publisher's
// MAX_CACHE_DURATION is over of (§10.3).
func (t *track) expire(now time.Time) {
	for i := len(t.groups) - 1; i >= 0; i-- {
		g := t.groups[i]
		largest := t.largest.Present && g.id == t.largest.Value.Group
		if !largest && !g.live() && now.Sub(g.latest) > t.relay.config.Keep {
			t.drop(i)
			continue
		}
		if d := t.settings.cacheDuration; d > 0 {
			t.expireSingles(g, now)
			for _, sg := range g.subgroups {
				for len(sg.chunks) > 0 && now.Sub(sg.chunks[0].time) > d {
					sg.dropFront()
				}
			}
		}
	}
}

// live reports whether more of the group may come.
func (g *group) live() bool {
	return slices.ContainsFunc(g.subgroups, func(sg *subgroup) bool { return !sg.ended() })
}

// drop drops a group.
func (t *track) drop(i int) {
	g := t.groups[i]
	for _, sg := range g.subgroups {
		for len(sg.chunks) > 0 {
			sg.dropFront()
		}
	}
	for t.dropSingle(g) {
	}
	t.groups = slices.Delete(t.groups, i, i+1)
	delete(t.byID, g.id)
}

// forget drops everything: the track isn't in use any more.
func (t *track) forget() {
	t.closed = true
	for len(t.groups) > 0 {
		t.drop(len(t.groups) - 1)
	}
}
