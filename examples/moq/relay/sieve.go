package relay

import "github.com/fastrelay/fastrelay-gen/examples/moq/wire"

// A sieve is what a stream has to send whose subscriber has range filters that not all objects of the subgroup pass.
// The bytes are those that all subscribers get, but for the IDs of objects that follow one which is left out: they are
// counted from the last one that passed. The track's mutex guards it.
type sieve struct {
	filter objectFilter // within the subgroup
	runs   []run        // that aren't sent yet
	last   uint64       // the ID of the last object that passed
	direct bool         // it is the subgroup's last object as well, so the next one's ID is counted from it
	ends   bool         // the stream's header says that its last object is the group's
	over   bool         // the location filter lets nothing pass any more
}

// A run is objects that follow one another in the subgroup.
type run struct {
	prefix   []byte // the first one's ID, unless that is as it is in the subgroup
	from, to uint64 // what follows, in the subgroup
}

// passing is what the subscription's range filters leave to be decided within a subgroup.
func (u *subscription) passing(sg *subgroup) objectFilter {
	return u.objects.in(wire.Some(sg.header.Subgroup), sg.priority)
}

// properties returns those of an object that is kept.
func (sg *subgroup) properties(o *object) wire.Properties {
	if !sg.header.Properties {
		return nil
	}
	b := sg.bytes(o.body) // a header is in one chunk
	size, n := wire.ParseVarint(b)
	if size > uint64(len(b)-n) {
		return nil
	}
	return b[n : n+int(size)]
}

// position is where the stream goes on in the subgroup.
func (o *outgoing) position() uint64 {
	switch {
	case o.sieve == nil:
		return o.pos
	case len(o.sieve.runs) > 0:
		return o.sieve.runs[0].from
	}
	return o.subgroup.size
}

// sift takes objects whose headers have come, and n bytes of the subgroup with them. It returns how many bytes there
// are to be sent for that.
func (o *outgoing) sift(objects []object, n int) (bytes int) {
	s, size := o.sieve, o.subgroup.size
	if len(s.runs) > 0 { // the rest of an object that has begun
		r := &s.runs[len(s.runs)-1]
		bytes += max(0, int(min(r.to, size))-int(max(r.from, size-uint64(n))))
	}
	for i := range objects {
		bytes += o.siftOne(&objects[i])
	}
	return bytes
}

func (o *outgoing) siftOne(one *object) (bytes int) {
	u, sg, s := o.subscription, o.subgroup, o.sieve
	at := sg.location(one.id)
	s.over = s.over || u.last.Less(at)
	if s.over || !u.passes(at) || !s.filter.passes(one.id, func() wire.Properties { return sg.properties(one) }) {
		s.direct = false
		return 0
	}
	next := run{from: one.at, to: one.end}
	switch {
	case !o.joined:
		o.joined, o.head, next.from = true, sg.headFrom(one, false), one.at
		if one.at > 0 {
			next.from = one.body
		}
	case !s.direct:
		next.prefix, next.from = wire.AppendVarint(nil, one.id-s.last-1), one.body
	}
	s.last = one.id
	bytes = len(next.prefix) + int(min(next.to, sg.size)-next.from)
	if i := len(s.runs) - 1; s.direct && i >= 0 {
		s.runs[i].to = next.to
		return bytes
	}
	s.direct = true
	s.runs = append(s.runs, next)
	return bytes
}

// next returns what is to be sent next.
func (s *sieve) next(o *outgoing) ([]byte, step) {
	sg := o.subgroup
	for len(s.runs) > 0 && s.runs[0].from == s.runs[0].to {
		s.runs = s.runs[1:]
	}
	if len(s.runs) == 0 {
		switch {
		case s.over, sg.fin && s.ends && !s.direct:
			return nil, unasked
		case sg.fin:
			return nil, ending
		case sg.broken:
			return nil, broken
		}
		return nil, waiting
	}
	r := &s.runs[0]
	end := min(r.to, sg.size)
	switch {
	case r.from < sg.base:
		return nil, unasked // it was dropped for that
	case r.from == end && sg.broken:
		return nil, broken
	case r.from == end:
		return nil, waiting
	}
	data := sg.bytes(r.from)
	data, timely := o.timely(r.from, data[:min(uint64(len(data)), end-r.from)])
	if !timely {
		return nil, late
	}
	if r.prefix != nil {
		data, r.prefix = r.prefix, nil
		return data, sending
	}
	r.from += uint64(len(data))
	return data, sending
}

// refilter has the stream go by the subscription's range filters as they are now, from the next object on that comes.
func (o *outgoing) refilter() {
	u, sg := o.subscription, o.subgroup
	filter := u.passing(sg)
	switch {
	case filter.none():
		o.drop(droppedCancelled)
	case o.sieve != nil:
		o.sieve.filter = filter
	case filter != nil:
		o.sieve = &sieve{filter: filter}
		if !o.joined {
			return
		}
		end := min(sg.newest.end, o.limit)
		o.sieve.last, o.sieve.direct = sg.newest.id, true
		o.sieve.ends, o.sieve.over = sg.header.EndOfGroup, o.limit < 1<<64-1
		if o.pos < end {
			o.sieve.runs = []run{{from: o.pos, to: end}}
		}
	}
}
