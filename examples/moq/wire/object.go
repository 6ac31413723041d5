package wire

import (
	"errors"
)

// StreamKind is what a unidirectional stream carries (§6.4.1).
type StreamKind int

// The kinds of unidirectional streams.
const (
	StreamControl  StreamKind = iota + 1 // messages, the first of which is SETUP: read it with a Reader, type included
	StreamSubgroup                       // ParseSubgroupHeader, then a Subgroup
	StreamFetch                          // ParseFetchHeader, then a Fetched
	StreamPadding                        // discard it
)

const (
	streamFetch     = 0x05
	streamPadding   = 0x132B3E28
	datagramPadding = 0x132B3E29
)

// ParseStreamType says what the unidirectional stream carries that begins with b. It consumes nothing. Unknown types
// are a violation.
func ParseStreamType(b []byte) (StreamKind, error) {
	t, n := ParseVarint(b)
	switch {
	case n == 0:
		return 0, ErrIncomplete
	case t == uint64(TypeSetup):
		return StreamControl, nil
	case t == streamFetch:
		return StreamFetch, nil
	case t == streamPadding:
		return StreamPadding, nil
	case validSubgroup(t):
		return StreamSubgroup, nil
	}
	return 0, violation("a unidirectional stream of the unknown type %#x", t)
}

// AppendPaddingType appends the type of a padding stream, or of a padding datagram; any number of zero bytes may follow
// (§11.5).
func AppendPaddingType(b []byte, datagram bool) []byte {
	if datagram {
		return AppendVarint(b, datagramPadding)
	}
	return AppendVarint(b, streamPadding)
}

// Status says what an object without a payload means (§11.1.2).
type Status uint64

// The statuses.
const (
	Normal     Status = 0
	EndOfGroup Status = 3 // no object with this ID or a larger one exists in the group
	EndOfTrack Status = 4 // no object at this location or after it exists
)

// SubgroupHeader begins a stream of objects of one subgroup (§11.3.1).
type SubgroupHeader struct {
	TrackAlias uint64
	Group      uint64
	Subgroup   uint64
	// SubgroupIsFirst means that the subgroup's ID is the first object's, so Subgroup isn't in the header, and 0 here.
	SubgroupIsFirst bool
	Priority        Optional[uint8] // the publisher's, 0 is the most urgent; the track's if absent
	Properties      bool            // objects may have properties
	EndOfGroup      bool            // a FIN of this stream ends the group
	FirstObject     bool            // the stream begins with the first object that was ever published in the subgroup
}

// Bits of the types of subgroup streams (§11.3.1) and datagrams (§11.2.1).
const (
	flagProperties      = 0x01
	subgroupFirst       = 0x02
	subgroupExplicit    = 0x04
	subgroupReserved    = subgroupFirst | subgroupExplicit
	subgroupEndOfGroup  = 0x08
	subgroupStream      = 0x10
	subgroupPriority    = 0x20
	subgroupFirstObject = 0x40
	datagramEndOfGroup  = 0x02
	datagramZeroObject  = 0x04
	datagramPriority    = 0x08
	datagramStatus      = 0x20
)

func bit(on bool, mask byte) byte {
	if on {
		return mask
	}
	return 0
}

func validSubgroup(t uint64) bool {
	return t < 0x80 && t&subgroupStream != 0 && t&subgroupReserved != subgroupReserved
}

// ParseSubgroupHeader parses the header that b begins with, n bytes.
func ParseSubgroupHeader(b []byte) (h SubgroupHeader, n int, err error) {
	c := cursor{b: b}
	t := c.varint()
	if !c.short && !validSubgroup(t) {
		return h, 0, violation("a subgroup stream of the invalid type %#x", t)
	}
	h.TrackAlias, h.Group = c.varint(), c.varint()
	h.SubgroupIsFirst = t&subgroupFirst != 0
	if t&subgroupExplicit != 0 {
		h.Subgroup = c.varint()
	}
	if t&subgroupPriority == 0 {
		h.Priority = Some(c.uint8())
	}
	h.Properties = t&flagProperties != 0
	h.EndOfGroup = t&subgroupEndOfGroup != 0
	h.FirstObject = t&subgroupFirstObject != 0
	if c.short {
		return SubgroupHeader{}, 0, ErrIncomplete
	}
	return h, c.at, nil
}

// Append appends the header in its shortest encoding.
func (h SubgroupHeader) Append(b []byte) []byte {
	explicit := !h.SubgroupIsFirst && h.Subgroup != 0
	t := subgroupStream | bit(h.Properties, flagProperties) | bit(h.SubgroupIsFirst, subgroupFirst) |
		bit(explicit, subgroupExplicit) | bit(h.EndOfGroup, subgroupEndOfGroup) |
		bit(!h.Priority.Present, subgroupPriority) | bit(h.FirstObject, subgroupFirstObject)
	b = AppendVarint(AppendVarint(append(b, t), h.TrackAlias), h.Group)
	if explicit {
		b = AppendVarint(b, h.Subgroup)
	}
	if h.Priority.Present {
		b = append(b, h.Priority.Value)
	}
	return b
}

// Object is the header of an object on a subgroup stream (§11.3.1).
type Object struct {
	ID         uint64
	Properties Properties // as on the wire, not looked at; nil if there are none
	Length     uint64     // of the payload that follows, in bytes
	Status     Status     // Normal unless Length is 0
}

// Subgroup parses or writes the objects of one subgroup stream. It begins with the stream's header, or at any object of
// it whose predecessor is known; the zero value and a Header begin a stream.
type Subgroup struct {
	Header  SubgroupHeader
	Started bool   // there was an object on the stream
	LastID  uint64 // its ID
}

// Next parses the header of the next object, n bytes; o.Length bytes of payload follow it. If b ends within the header,
// it returns ErrIncomplete and changes nothing: call it again with more. If the stream's header left the subgroup's ID
// to the first object, then this sets s.Header.Subgroup.
func (s *Subgroup) Next(b []byte) (o Object, n int, err error) {
	c := cursor{b: b}
	delta := c.varint()
	if s.Header.Properties {
		o.Properties, err = c.properties()
	}
	o.Length = c.varint()
	if o.Length == 0 {
		o.Status = Status(c.varint())
	}
	switch {
	case err != nil:
		return Object{}, 0, err
	case c.short:
		return Object{}, 0, ErrIncomplete
	case o.Status != Normal:
		if err := checkStatus(o.Status, o.Properties); err != nil {
			return Object{}, 0, err
		}
	}
	o.ID = delta
	if s.Started {
		if o.ID = s.LastID + delta + 1; o.ID <= s.LastID {
			return Object{}, 0, violation("the ID of the object after %d exceeds 2^64-1", s.LastID)
		}
	} else if s.Header.SubgroupIsFirst {
		s.Header.Subgroup = o.ID
	}
	s.Started, s.LastID = true, o.ID
	return o, c.at, nil
}

// Append appends the header of the next object, which has a larger ID than the last; the payload is the caller's to
// append.
func (s *Subgroup) Append(b []byte, o Object) ([]byte, error) {
	delta := o.ID
	if s.Started {
		if o.ID <= s.LastID {
			return b, errors.New("the objects of a subgroup have to ascend")
		}
		delta = o.ID - s.LastID - 1
	}
	if err := checkStatus(o.Status, o.Properties); err != nil {
		return b, err
	}
	if o.Status != Normal && o.Length > 0 {
		return b, errors.New("an object with a status has no payload")
	}
	if len(o.Properties) > 0 && !s.Header.Properties {
		return b, errors.New("the header of this subgroup says that objects have no properties")
	}
	if !s.Started && s.Header.SubgroupIsFirst {
		s.Header.Subgroup = o.ID
	}
	s.Started, s.LastID = true, o.ID
	b = AppendVarint(b, delta)
	if s.Header.Properties {
		b = append(AppendVarint(b, uint64(len(o.Properties))), o.Properties...)
	}
	b = AppendVarint(b, o.Length)
	if o.Length == 0 {
		b = AppendVarint(b, uint64(o.Status))
	}
	return b, nil
}

func checkStatus(s Status, p Properties) error {
	switch {
	case s == Normal:
		return nil
	case s != EndOfGroup && s != EndOfTrack:
		return violation("an object of the unknown status %#x", uint64(s))
	case len(p) > 0:
		return violation("an object of status %#x has properties", uint64(s))
	}
	return nil
}

// Datagram is an object in a datagram (§11.2.1).
type Datagram struct {
	TrackAlias uint64
	Group      uint64
	Object     uint64
	Priority   Optional[uint8] // the publisher's, 0 is the most urgent; the track's if absent
	EndOfGroup bool            // no object with a larger ID exists in the group
	Properties Properties      // as on the wire, not looked at; nil if there are none
	Status     Status          // Normal if there is a payload
	Payload    []byte
}

// ParseDatagram parses a datagram; Properties and Payload are of b. It reports padding, which is to be discarded,
// without anything else.
func ParseDatagram(b []byte) (d Datagram, padding bool, err error) {
	c := cursor{b: b}
	t := c.varint()
	switch {
	case t == datagramPadding:
		return d, true, nil
	case t&^(flagProperties|datagramEndOfGroup|datagramZeroObject|datagramPriority|datagramStatus) != 0,
		t&datagramStatus != 0 && t&datagramEndOfGroup != 0:
		return d, false, violation("a datagram of the invalid type %#x", t)
	}
	d.TrackAlias, d.Group = c.varint(), c.varint()
	if t&datagramZeroObject == 0 {
		d.Object = c.varint()
	}
	if t&datagramPriority == 0 {
		d.Priority = Some(c.uint8())
	}
	d.EndOfGroup = t&datagramEndOfGroup != 0
	if t&flagProperties != 0 {
		if d.Properties, err = c.properties(); err != nil {
			return Datagram{}, false, err
		}
		if !c.short && len(d.Properties) == 0 {
			return Datagram{}, false, violation("a datagram with properties of length 0")
		}
	}
	if t&datagramStatus != 0 {
		d.Status = Status(c.varint())
	} else if !c.short {
		d.Payload = c.rest()
	}
	switch {
	case c.short:
		return Datagram{}, false, violation("a datagram that ends within its header")
	case c.at < len(b):
		return Datagram{}, false, violation("a datagram with a status has %d bytes after it", len(b)-c.at)
	}
	if err := checkStatus(d.Status, d.Properties); err != nil {
		return Datagram{}, false, err
	}
	return d, false, nil
}

// Append appends the datagram in its shortest encoding, with its payload.
func (d Datagram) Append(b []byte) ([]byte, error) {
	if err := checkStatus(d.Status, d.Properties); err != nil {
		return b, err
	}
	if d.Status != Normal && (len(d.Payload) > 0 || d.EndOfGroup) {
		return b, errors.New("a datagram with a status has no payload and doesn't end its group")
	}
	t := bit(len(d.Properties) > 0, flagProperties) | bit(d.EndOfGroup, datagramEndOfGroup) |
		bit(d.Object == 0, datagramZeroObject) | bit(!d.Priority.Present, datagramPriority) |
		bit(d.Status != Normal, datagramStatus)
	b = AppendVarint(AppendVarint(append(b, t), d.TrackAlias), d.Group)
	if d.Object != 0 {
		b = AppendVarint(b, d.Object)
	}
	if d.Priority.Present {
		b = append(b, d.Priority.Value)
	}
	if len(d.Properties) > 0 {
		b = append(AppendVarint(b, uint64(len(d.Properties))), d.Properties...)
	}
	if d.Status != Normal {
		return AppendVarint(b, uint64(d.Status)), nil
	}
	return append(b, d.Payload...), nil
}
