package wire

import "errors"

// EndOfRange says what a marker on a fetch stream means for the objects between the last one, if any, and the marker's
// location, both inclusive but for that object. The numbers are those on the wire.
type EndOfRange uint64

// The markers of fetch streams (§11.4.1).
const (
	NoEndOfRange EndOfRange = 0     // an object, not a marker
	NonExistent  EndOfRange = 0x8C  // they don't exist
	Unknown      EndOfRange = 0x10C // their publisher can't say
	TimedOut     EndOfRange = 0x20C // the fill timeout ended first; not in draft 18, which has Unknown for it
)

// FetchObject is the header of an object on a fetch stream, or a marker, which has but EndOfRange, Group and ID
// (§11.4.1).
type FetchObject struct {
	EndOfRange EndOfRange
	Group      uint64
	ID         uint64
	Subgroup   uint64
	Datagram   bool // it was sent in a datagram and has no subgroup
	Priority   uint8
	Properties Properties // as on the wire, not looked at; nil if there are none
	Length     uint64     // of the payload that follows, in bytes
}

// ParseFetchHeader parses the header of a fetch stream or fill fetch stream that b begins with, n bytes. requestID is
// that of FETCH, or of the SUBSCRIBE or REQUEST_UPDATE that asked for a fill (§3.4, §11.4.1).
func ParseFetchHeader(b []byte) (requestID uint64, n int, err error) {
	c := cursor{b: b}
	if t := c.varint(); !c.short && t != streamFetch {
		return 0, 0, violation("a fetch stream of type %#x", t)
	}
	if requestID = c.varint(); c.short {
		return 0, 0, ErrIncomplete
	}
	return requestID, c.at, nil
}

// AppendFetchHeader appends the header of a fetch stream.
func AppendFetchHeader(b []byte, requestID uint64) []byte {
	return AppendVarint(append(b, streamFetch), requestID)
}

// Fetched parses or writes the objects of one fetch stream. The zero value and a draft begin a stream in ascending
// order.
type Fetched struct {
	Draft      Draft
	Descending bool // the order of groups that was asked for

	located     bool // there was an object or a marker, at
	last        Location
	prioritized bool // there was an object, of
	priority    uint8
	grouped     bool // there was an object with a subgroup,
	subgroup    uint64
	datagram    bool // and the last object had none
}

// Flags of an object on a fetch stream, of which two are the encoding of its subgroup (§11.4.1.1).
const (
	fetchSubgroupSame  = 0x01
	fetchSubgroupNext  = 0x02
	fetchSubgroupField = 0x03
	fetchObjectField   = 0x04
	fetchGroupField    = 0x08
	fetchPriorityField = 0x10
	fetchProperties    = 0x20
	fetchDatagram      = 0x40
)

// Next parses the header of the next object, n bytes; o.Length bytes of payload follow it. If b ends within the header,
// it returns ErrIncomplete and changes nothing: call it again with more.
//
// A marker has absolute IDs and no payload length. The draft says "the Group ID and Object ID fields are present", and
// its implementers agree on this reading: as a delta, the group couldn't be the last object's (moq-wg/moq-transport
// issue 1861).
func (f *Fetched) Next(b []byte) (o FetchObject, n int, err error) {
	c := cursor{b: b}
	flags := c.varint()
	if c.short {
		return o, 0, ErrIncomplete
	}
	if flags >= 0x80 {
		return f.marker(&c, EndOfRange(flags))
	}
	o, err = f.object(&c, flags)
	if err != nil {
		return FetchObject{}, 0, err
	}
	f.advance(o)
	return o, c.at, nil
}

func (f *Fetched) marker(c *cursor, kind EndOfRange) (o FetchObject, n int, err error) {
	if !f.has(kind) {
		return o, 0, violation("serialization flags %#x on a fetch stream", uint64(kind))
	}
	o = FetchObject{EndOfRange: kind, Group: c.varint(), ID: c.varint()}
	if c.short {
		return FetchObject{}, 0, ErrIncomplete
	}
	f.advance(o)
	return o, c.at, nil
}

func (f *Fetched) has(kind EndOfRange) bool {
	return kind == NonExistent || kind == Unknown || kind == TimedOut && f.Draft != Draft18
}

func (f *Fetched) object(c *cursor, flags uint64) (o FetchObject, err error) {
	if !f.located && flags&(fetchGroupField|fetchObjectField) != fetchGroupField|fetchObjectField {
		return o, violation("the first object of a fetch stream refers to one before it")
	}
	if flags&fetchPriorityField == 0 && !f.prioritized {
		return o, violation("an object of a fetch stream has the priority of one before it, and there is none")
	}
	var fits bool
	o.Group, fits = f.last.Group, true
	if flags&fetchGroupField != 0 {
		o.Group, fits = f.group(c.varint())
	}
	if !fits {
		return o, violation("the group after %d is out of range", f.last.Group)
	}
	if err := f.subgroupOf(c, flags, &o); err != nil {
		return o, err
	}
	switch base := f.last.Object; {
	case flags&fetchObjectField == 0:
		o.ID, fits = base+1, base+1 > base
	case flags&fetchGroupField != 0:
		o.ID = c.varint()
	default:
		o.ID = base + c.varint()
		fits = o.ID >= base
	}
	if !fits {
		return o, violation("the ID of the object after %d exceeds 2^64-1", f.last.Object)
	}
	o.Priority = f.priority
	if flags&fetchPriorityField != 0 {
		o.Priority = c.uint8()
	}
	if flags&fetchProperties != 0 {
		if o.Properties, err = c.properties(); err != nil {
			return o, err
		}
	}
	if o.Length = c.varint(); c.short {
		return o, ErrIncomplete
	}
	return o, nil
}

func (f *Fetched) subgroupOf(c *cursor, flags uint64, o *FetchObject) error {
	mode := flags & fetchSubgroupField
	switch {
	case flags&fetchDatagram != 0:
		o.Datagram = true
	case mode == fetchSubgroupField:
		o.Subgroup = c.varint()
	case mode == 0:
	case !f.grouped:
		return violation("an object of a fetch stream has the subgroup of one before it, and there is none")
	case mode == fetchSubgroupSame:
		o.Subgroup = f.subgroup
	default:
		if o.Subgroup = f.subgroup + 1; o.Subgroup == 0 {
			return violation("the subgroup after %d exceeds 2^64-1", f.subgroup)
		}
	}
	return nil
}

// group returns the group that a delta leads to, and whether there is one.
func (f *Fetched) group(delta uint64) (uint64, bool) {
	switch g := f.last.Group; {
	case !f.located:
		return delta, true
	case f.Descending:
		return g - delta - 1, delta < g
	default:
		return g + delta + 1, delta < ^g
	}
}

// delta returns what leads to a group from the last one, and whether it is in order.
func (f *Fetched) delta(group uint64) (uint64, bool) {
	switch g := f.last.Group; {
	case !f.located:
		return group, true
	case f.Descending:
		return g - group - 1, group < g
	default:
		return group - g - 1, group > g
	}
}

func (f *Fetched) advance(o FetchObject) {
	f.located, f.last = true, Location{o.Group, o.ID}
	if o.EndOfRange != NoEndOfRange {
		return
	}
	f.prioritized, f.priority = true, o.Priority
	if f.datagram = o.Datagram; !f.datagram {
		f.grouped, f.subgroup = true, o.Subgroup
	}
}

// Append appends the header of the next object, or a marker; the payload is the caller's to append. The encoding is the
// shortest, but that it doesn't take a subgroup from before a datagram, which not all receivers do.
func (f *Fetched) Append(b []byte, o FetchObject) ([]byte, error) {
	if o.EndOfRange != NoEndOfRange {
		if !f.has(o.EndOfRange) {
			return b, errors.New("the draft has no such end of range")
		}
		f.advance(o)
		return AppendVarint(AppendVarint(AppendVarint(b, uint64(o.EndOfRange)), o.Group), o.ID), nil
	}
	var flags, group uint64
	sameGroup := f.located && o.Group == f.last.Group
	if !sameGroup {
		var ok bool
		if group, ok = f.delta(o.Group); !ok {
			return b, errors.New("the groups of a fetch stream have to be in the order that was asked for")
		}
		flags |= fetchGroupField
	} else if o.ID <= f.last.Object {
		return b, errors.New("the objects of a group have to ascend")
	}
	object := o.ID
	if !f.located || o.ID != f.last.Object+1 || o.ID == 0 {
		flags |= fetchObjectField
		if sameGroup {
			object = o.ID - f.last.Object
		}
	}
	switch {
	case o.Datagram:
		flags |= fetchDatagram
	case o.Subgroup == 0:
	case f.datagram || !f.grouped:
		flags |= fetchSubgroupField
	case o.Subgroup == f.subgroup:
		flags |= fetchSubgroupSame
	case o.Subgroup == f.subgroup+1:
		flags |= fetchSubgroupNext
	default:
		flags |= fetchSubgroupField
	}
	if !f.prioritized || o.Priority != f.priority {
		flags |= fetchPriorityField
	}
	if len(o.Properties) > 0 {
		flags |= fetchProperties
	}
	f.advance(o)
	return appendFetched(b, o, flags, group, object), nil
}

func appendFetched(b []byte, o FetchObject, flags, group, object uint64) []byte {
	b = AppendVarint(b, flags)
	if flags&fetchGroupField != 0 {
		b = AppendVarint(b, group)
	}
	if flags&(fetchDatagram|fetchSubgroupField) == fetchSubgroupField {
		b = AppendVarint(b, o.Subgroup)
	}
	if flags&fetchObjectField != 0 {
		b = AppendVarint(b, object)
	}
	if flags&fetchPriorityField != 0 {
		b = append(b, o.Priority)
	}
	if flags&fetchProperties != 0 {
		b = append(AppendVarint(b, uint64(len(o.Properties))), o.Properties...)
	}
	return AppendVarint(b, o.Length)
}
