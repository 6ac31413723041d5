package wire

import (
	"errors"
	"iter"
	"slices"
)

// Property is one of a track's or an object's properties (§10), or an option of SETUP.
type Property struct {
	Type  uint64
	Value uint64 // of an even type
	Bytes []byte // of an odd type, at most MaxValue
}

// The types of properties that the drafts define (§10).
const (
	PropertyObjectDeliveryTimeout   = 0x02 // ms
	PropertyMaxCacheDuration        = 0x04 // ms
	PropertySubgroupDeliveryTimeout = 0x06 // ms
	PropertyImmutable               = 0x0B // other properties, which relays don't change
	PropertyPublisherPriority       = 0x0E // 0 to 255, 128 if absent
	PropertyGroupOrder              = 0x22 // a GroupOrder, Ascending if absent
	PropertyDynamicGroups           = 0x30 // 0 or 1
	PropertyPriorGroupIDGap         = 0x3C // groups before this one that don't exist
	PropertyPriorObjectIDGap        = 0x3E // objects before this one that don't exist
)

// Properties are properties as they are on the wire, so that a relay forwards them unchanged (§8.3, §8.4).
type Properties []byte

// NewProperties puts properties into the order of their types and encodes them.
func NewProperties(properties ...Property) (Properties, error) {
	sorted := slices.Clone(properties)
	slices.SortStableFunc(sorted, func(a, b Property) int {
		if a.Type < b.Type {
			return -1
		}
		return int(min(a.Type-b.Type, 1))
	})
	var b Properties
	var last uint64
	for _, p := range sorted {
		if len(p.Bytes) > MaxValue {
			return nil, errors.New("a property has more than 65535 bytes")
		}
		b = b.with(last, p)
		last = p.Type
	}
	return b, nil
}

// with appends a property whose type isn't before the last one's.
func (p Properties) with(last uint64, next Property) Properties {
	p = AppendVarint(p, next.Type-last)
	if next.Type%2 == 0 {
		return AppendVarint(p, next.Value)
	}
	return append(AppendVarint(p, uint64(len(next.Bytes))), next.Bytes...)
}

// All yields the properties in their order. Those of a control message are always valid. With an object's, which
// nothing has looked at, the first fault ends the sequence.
func (p Properties) All() iter.Seq2[Property, error] {
	return func(yield func(Property, error) bool) {
		c := cursor{b: p}
		var last uint64
		for c.at < len(p) {
			next, err := c.property(last)
			if !yield(next, err) || err != nil {
				return
			}
			last = next.Type
		}
	}
}

func (c *cursor) property(last uint64) (p Property, err error) {
	if p.Type = last + c.varint(); p.Type < last {
		return p, violation("the type of the property after %#x exceeds 2^64-1", last)
	}
	if p.Type%2 == 0 {
		p.Value = c.varint()
	} else {
		n := c.varint()
		if n > MaxValue {
			return p, violation("property %#x has %d bytes; at most %d are allowed", p.Type, n, MaxValue)
		}
		p.Bytes = c.bytes(n)
	}
	if c.short {
		return p, errCut
	}
	return p, nil
}

// errCut says that properties end within one. In a message that is a violation, in an object it makes the track
// malformed (§10.7).
var errCut = errors.New("properties end within one of them")

// Uint returns the value of an even type, among the immutable properties too (§10.7), and whether it is there.
func (p Properties) Uint(t uint64) (v uint64, ok bool) {
	for q, err := range p.All() {
		switch {
		case err != nil:
			return 0, false
		case q.Type == t:
			return q.Value, true
		case q.Type == PropertyImmutable:
			if v, ok := Properties(q.Bytes).flat(t); ok {
				return v, true
			}
		}
	}
	return 0, false
}

// flat is Uint without the immutable properties.
func (p Properties) flat(t uint64) (uint64, bool) {
	for q, err := range p.All() {
		if err == nil && q.Type == t {
			return q.Value, true
		}
	}
	return 0, false
}

// Mandatory returns a type among a track's properties that an endpoint has to understand before it takes or forwards
// the track, if there is one: 0x4000 to 0x7FFF, of which the drafts define none (§3.6). Answer UnsupportedExtension.
func (p Properties) Mandatory() (t uint64, ok bool) {
	for q, err := range p.All() {
		if err == nil && q.Type >= 0x4000 && q.Type <= 0x7FFF {
			return q.Type, true
		}
	}
	return 0, false
}

// CheckObject looks at the properties of an object at a location. An *Error closes the session (§8.3). Any other error
// means that the track is malformed: end its subscriptions with DoneMalformedTrack (§3.6, §10.7 to §10.9).
func (p Properties) CheckObject(at Location) error {
	return p.checkObject(at, false)
}

func (p Properties) checkObject(at Location, immutable bool) error {
	seen := map[uint64]bool{}
	for q, err := range p.All() {
		switch {
		case err != nil && immutable:
			return errCut
		case err != nil:
			return err
		case q.Type >= 0x4000 && q.Type <= 0x7FFF:
			return errors.New("an object has a property that only tracks have")
		case q.Type == PropertyPriorGroupIDGap && q.Value > at.Group,
			q.Type == PropertyPriorObjectIDGap && q.Value > at.Object:
			return errors.New("a gap of an object reaches below 0")
		case q.Type == PropertyImmutable && immutable:
			return errors.New("immutable properties contain immutable properties")
		case q.Type == PropertyImmutable:
			if err := Properties(q.Bytes).checkObject(at, true); err != nil {
				return err
			}
		case q.Type != PropertyPriorGroupIDGap && q.Type != PropertyPriorObjectIDGap:
			continue
		}
		if seen[q.Type] {
			return errors.New("a property that an object has once is repeated")
		}
		seen[q.Type] = true
	}
	return nil
}

// checkTrack returns the violation among a track's properties, if there is one (§8.3, §10.5, §10.6). In immutable
// ones, what can't be parsed is the track's fault, not the session's.
func (p Properties) checkTrack(immutable bool) error {
	for q, err := range p.All() {
		switch {
		case err != nil && immutable:
			return nil
		case err == errCut:
			return violation("%v", err)
		case err != nil:
			return err
		case q.Type == PropertyGroupOrder && q.Value != uint64(Ascending) && q.Value != uint64(Descending):
			return violation("a track of group order %d", q.Value)
		case q.Type == PropertyDynamicGroups && q.Value > 1:
			return violation("a track with dynamic groups %d", q.Value)
		case q.Type == PropertyImmutable && !immutable:
			if err := Properties(q.Bytes).checkTrack(true); err != nil {
				return err
			}
		}
	}
	return nil
}
