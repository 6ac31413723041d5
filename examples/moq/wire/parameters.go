package wire

import (
	"math"
	"slices"
)

// inFill stands for FILL_PARAMETERS among messages: it has parameters as they have.
const inFill Type = math.MaxUint64

// parameter is a row in the table of parameters (§9.20, §16.7): its type, and the messages that may have it by each
// draft.
type parameter struct {
	typ  uint64
	name string
	slot func(*Parameters) slot
	in18 []Type
	in22 []Type
}

// slot is a parameter's place in Parameters.
type slot struct {
	present func() []field
	next    func() field // makes it present, once more if it may repeat
	repeats bool
}

func once[T any](o *Optional[T], encoding func(*T) field) slot {
	return slot{
		present: func() []field {
			if o.Present {
				return []field{encoding(&o.Value)}
			}
			return nil
		},
		next: func() field { o.Present = true; return encoding(&o.Value) },
	}
}

func number(v *uint64) field { return (*varint)(v) }
func truth(v *bool) field    { return (*flag)(v) }

// The lists of messages that several parameters share. REQUEST_OK stands for PUBLISH_OK, REQUEST_UPDATE_OK and the
// like, and REQUEST_UPDATE for updates of all requests. In draft 22, SUBSCRIBE_TRACKS may have all that SUBSCRIBE may:
// the text that says so (21 §9.18.1) is still there, and contradicts a list in which most of them are missing.
var (
	subscription18 = []Type{TypeSubscribe, TypeRequestOK, TypeRequestUpdate}
	subscription22 = []Type{TypeSubscribe, TypePublish, TypeRequestUpdate, TypeSubscribeTracks}
	requests       = []Type{
		TypePublish, TypeSubscribe, TypeRequestUpdate, TypeSubscribeNamespace, TypeSubscribeTracks,
		TypePublishNamespace, TypeTrackStatus, TypeFetch,
	}
	filtered = []Type{TypeFetch, TypeSubscribe, TypeSubscribeTracks, TypeRequestUpdate, inFill}
)

// parameterTable is in the order of types, in which they are sent.
var parameterTable = []parameter{
	{0x02, "OBJECT_DELIVERY_TIMEOUT", func(p *Parameters) slot { return once(&p.ObjectDeliveryTimeout, number) },
		subscription18, subscription22},
	{0x03, "AUTHORIZATION_TOKEN", tokens, requests, requests},
	{0x04, "RENDEZVOUS_TIMEOUT", func(p *Parameters) slot { return once(&p.RendezvousTimeout, number) },
		[]Type{TypeSubscribe}, []Type{TypeSubscribe, TypeSubscribeTracks}},
	{0x06, "SUBGROUP_DELIVERY_TIMEOUT", func(p *Parameters) slot { return once(&p.SubgroupDeliveryTimeout, number) },
		subscription18, subscription22},
	{0x08, "EXPIRES", func(p *Parameters) slot { return once(&p.Expires, number) },
		[]Type{TypeSubscribeOK, TypePublish, TypeRequestOK}, []Type{TypeSubscribeOK, TypePublish, TypeRequestOK}},
	{0x09, "LARGEST_OBJECT", func(p *Parameters) slot {
		return once(&p.LargestObject, func(l *Location) field { return l })
	}, []Type{TypeSubscribeOK, TypePublish, TypeRequestOK},
		[]Type{TypeSubscribeOK, TypePublish, TypeRequestOK, TypePublishStateNotify}},
	{0x0A, "FILL_TIMEOUT", func(p *Parameters) slot { return once(&p.FillTimeout, number) },
		[]Type{TypeFetch}, []Type{TypeFetch, inFill}},
	{0x10, "FORWARD", func(p *Parameters) slot { return once(&p.Forward, truth) },
		[]Type{TypeSubscribe, TypeRequestUpdate, TypePublish, TypeRequestOK, TypeSubscribeTracks},
		append([]Type{TypePublishStateNotify}, subscription22...)},
	{0x20, "SUBSCRIBER_PRIORITY", func(p *Parameters) slot {
		return once(&p.SubscriberPriority, func(v *uint8) field { return (*octet)(v) })
	}, append([]Type{TypeFetch}, subscription18...), append([]Type{TypeFetch, inFill}, subscription22...)},
	{0x21, "LOCATION_FILTER", func(p *Parameters) slot {
		return once(&p.LocationFilter, func(f *LocationFilter) field { return f })
	}, subscription18, append([]Type{TypeFetch, TypePublishStateNotify, inFill}, subscription22...)},
	{0x22, "GROUP_ORDER", func(p *Parameters) slot {
		return once(&p.GroupOrder, func(o *GroupOrder) field { return o })
	}, []Type{TypeSubscribe, TypeRequestOK, TypeFetch},
		[]Type{TypeSubscribe, TypePublish, TypeSubscribeTracks, TypeFetch, inFill}},
	{0x23, "FILL_PARAMETERS", fill, nil, []Type{TypeSubscribe, TypeRequestUpdate, TypeSubscribeTracks}},
	{0x25, "SUBGROUP_FILTER", ranges(FilterSubgroup), nil, filtered},
	{0x26, "OBJECTID_FILTER", ranges(FilterObjectID), nil, filtered},
	{0x27, "PRIORITY_FILTER", ranges(FilterPriority), nil, filtered},
	{0x28, "OBJECT_PROPERTY_FILTER", ranges(FilterObjectProperty), nil, filtered},
	{0x29, "TRACK_PROPERTY_FILTER", ranges(FilterTrackProperty), nil, []Type{TypeSubscribeTracks, TypeRequestUpdate}},
	{0x32, "NEW_GROUP_REQUEST", func(p *Parameters) slot { return once(&p.NewGroupRequest, number) },
		subscription18, []Type{TypeSubscribe, TypeRequestUpdate, TypeSubscribeTracks}},
	{0x34, "TRACK_NAMESPACE_PREFIX", func(p *Parameters) slot {
		return once(&p.NamespacePrefix, func(n *Namespace) field { return n })
	}, []Type{TypeRequestUpdate}, []Type{TypeRequestUpdate}},
	{0x35, "INCLUDE_PROPERTIES", func(p *Parameters) slot { return once(&p.IncludeProperties, truth) },
		nil, []Type{TypeSubscribe, TypeTrackStatus, TypeFetch, TypeSubscribeTracks}},
}

func (q *parameter) allowed(d Draft, in Type) bool {
	if d == Draft18 {
		return slices.Contains(q.in18, in)
	}
	return slices.Contains(q.in22, in)
}

// known returns the parameter of a draft that has the type, if there is one.
func known(d Draft, typ uint64) *parameter {
	for i := range parameterTable {
		if r := &parameterTable[i]; r.typ == typ && (d != Draft18 || r.in18 != nil) {
			return r
		}
	}
	return nil
}

func tokens(p *Parameters) slot {
	return slot{
		present: func() (all []field) {
			for i := range p.Tokens {
				all = append(all, &p.Tokens[i])
			}
			return all
		},
		next: func() field {
			p.Tokens = append(p.Tokens, Token{})
			return &p.Tokens[len(p.Tokens)-1]
		},
		repeats: true,
	}
}

func ranges(kind RangeKind) func(*Parameters) slot {
	return func(p *Parameters) slot {
		return slot{
			present: func() (all []field) {
				for i := range p.RangeFilters {
					if p.RangeFilters[i].Kind == kind {
						all = append(all, &p.RangeFilters[i])
					}
				}
				return all
			},
			next: func() field {
				p.RangeFilters = append(p.RangeFilters, RangeFilter{Kind: kind})
				return &p.RangeFilters[len(p.RangeFilters)-1]
			},
			repeats: true,
		}
	}
}

func fill(p *Parameters) slot {
	return slot{
		present: func() []field {
			if p.Fill != nil {
				return []field{(*fillParameters)(p.Fill)}
			}
			return nil
		},
		next: func() field {
			p.Fill = new(Parameters)
			return (*fillParameters)(p.Fill)
		},
	}
}

func (q *Parameters) parse(p *parser) { q.parseIn(p, p.message) }

func (q *Parameters) parseIn(p *parser, in Type) {
	var last uint64
	var s slot
	for i := range p.varint() {
		typ := last + p.varint()
		if p.short || p.err != nil {
			return
		}
		if i == 0 || typ != last {
			row := known(p.draft, typ)
			switch {
			case typ < last:
				p.fail("has a parameter type that exceeds 2^64-1")
				return
			case row == nil:
				p.fail("has the unknown parameter %#x", typ)
				return
			case !row.allowed(p.draft, in):
				p.fail("has the parameter %s, which isn't allowed there", row.name)
				return
			}
			s = row.slot(q)
		} else if !s.repeats {
			p.fail("has the parameter %#x twice", typ)
			return
		}
		s.next().parse(p)
		last = typ
	}
	q.rejectRepeats(p)
}

// rejectRepeats looks for range filters that are the same but for their ranges (§3.3.2).
func (q *Parameters) rejectRepeats(p *parser) {
	type key struct {
		kind     RangeKind
		set      uint8
		property uint64
	}
	seen := map[key]bool{}
	for _, f := range q.RangeFilters {
		if f.Removed {
			continue
		}
		k := key{f.Kind, f.Set, f.Property}
		if seen[k] {
			p.reject(InvalidFilter, "has two range filters of one kind, set and property")
			return
		}
		seen[k] = true
	}
}

func (q *Parameters) append(w *writer) { q.appendIn(w, w.message) }

func (q *Parameters) appendIn(w *writer, in Type) {
	var count, last uint64
	var all writer
	all.draft, all.message = w.draft, w.message
	for i := range parameterTable {
		r := &parameterTable[i]
		for _, f := range r.slot(q).present() {
			if !r.allowed(w.draft, in) {
				w.fail("can't have the parameter %s", r.name)
			}
			all.varint(r.typ - last)
			f.append(&all)
			last = r.typ
			count++
		}
	}
	if w.err == nil {
		w.err = all.err
	}
	w.varint(count)
	w.b = append(w.b, all.b...)
}

func (o *GroupOrder) parse(p *parser) {
	if *o = GroupOrder(p.uint8()); *o != Ascending && *o != Descending {
		p.fail("has the unknown group order %d", *o)
	}
}

func (o *GroupOrder) append(w *writer) {
	if *o != Ascending && *o != Descending {
		w.fail("has the unknown group order %d", *o)
	}
	w.b = append(w.b, byte(*o))
}

// fillParameters are Parameters with their length before them. Their count is there too: they are "encoded as if they
// were Parameters for a separate message" (§9.20.16).
type fillParameters Parameters

func (f *fillParameters) parse(p *parser) {
	p.within(p.varint(), func(p *parser) { (*Parameters)(f).parseIn(p, inFill) })
}

func (f *fillParameters) append(w *writer) {
	w.within(func(w *writer) { (*Parameters)(f).appendIn(w, inFill) })
}

// Tokens have their length before them in a message, and in SETUP, where they are options.
func (t *Token) parse(p *parser) {
	if value := p.bytes(p.varint()); !p.short && !t.decode(value) {
		p.failWith(KeyValueFormattingError, "has an authorization token that can't be decoded")
	}
}

func (t *Token) append(w *writer) {
	w.within(func(w *writer) { w.b = t.encode(w.b, w.fail) })
}

func (t *Token) decode(value []byte) bool {
	c := cursor{b: value}
	*t = Token{AliasType: AliasType(c.varint())}
	if t.AliasType != UseValue {
		t.Alias = c.varint()
	}
	if t.AliasType == Register || t.AliasType == UseValue {
		t.Type, t.Value = c.varint(), string(c.rest())
	}
	return !c.short && c.at == len(value) && t.AliasType <= UseValue
}

func (t *Token) encode(b []byte, fail func(string, ...any)) []byte {
	if t.AliasType > UseValue {
		fail("has a token of the unknown alias type %d", t.AliasType)
	}
	b = AppendVarint(b, uint64(t.AliasType))
	if t.AliasType != UseValue {
		b = AppendVarint(b, t.Alias)
	}
	if t.AliasType == Register || t.AliasType == UseValue {
		b = append(AppendVarint(b, t.Type), t.Value...)
	}
	return b
}

// filters18 are draft 18's filter types (§5.1.2 there), which have a length before them.
var filters18 = [...]FilterKind{
	1: FilterRelative, // to the next group, so without a number
	2: FilterNextObject,
	3: FilterStart,
	4: FilterGroups,
}

func (f *LocationFilter) parse(p *parser) {
	if p.draft != Draft18 {
		f.Kind = FilterKind(p.varint())
		f.parseFields(p)
		return
	}
	p.within(p.varint(), func(p *parser) {
		t := p.varint()
		if t == 0 || t >= uint64(len(filters18)) {
			p.fail("has the unknown filter type %#x", t)
			return
		}
		f.Kind = filters18[t]
		f.parseFields(p)
	})
}

func (f *LocationFilter) parseFields(p *parser) {
	switch f.Kind {
	case FilterNone, FilterNextObject:
	case FilterRelative:
		if p.draft != Draft18 {
			f.Start.Group = p.varint()
		}
	case FilterStart:
		f.Start.parse(p)
	case FilterGroups, FilterRange:
		f.Start.parse(p)
		if f.End.Group = f.Start.Group + p.varint(); f.End.Group < f.Start.Group {
			p.fail("has a filter whose last group exceeds 2^64-1")
		}
		if f.Kind == FilterRange {
			f.End.Object = p.varint()
		}
	default:
		p.fail("has the unknown filter type %#x", uint64(f.Kind))
	}
}

func (f *LocationFilter) append(w *writer) {
	if w.draft != Draft18 {
		w.varint(uint64(f.Kind))
		f.appendFields(w)
		return
	}
	t := slices.Index(filters18[1:], f.Kind) + 1
	if t == 0 || f.Kind == FilterRelative && f.Start.Group != 0 {
		w.fail("can't have a filter of kind %d from group %d", f.Kind, f.Start.Group)
	}
	w.within(func(w *writer) {
		w.varint(uint64(t))
		f.appendFields(w)
	})
}

func (f *LocationFilter) appendFields(w *writer) {
	switch f.Kind {
	case FilterNone, FilterNextObject:
	case FilterRelative:
		if w.draft != Draft18 {
			w.varint(f.Start.Group)
		}
	case FilterStart:
		f.Start.append(w)
	case FilterGroups, FilterRange:
		if f.End.Group < f.Start.Group {
			w.fail("has a filter that ends before it starts")
		}
		f.Start.append(w)
		w.varint(f.End.Group - f.Start.Group)
		if f.Kind == FilterRange {
			w.varint(f.End.Object)
		}
	default:
		w.fail("has the unknown filter type %#x", uint64(f.Kind))
	}
}

// Range filters have their length before them, which is 0 for one that removes (§8.6).
func (f *RangeFilter) parse(p *parser) {
	n := p.varint()
	if f.Removed = n == 0; !f.Removed {
		p.within(n, f.parseRanges)
	}
}

func (f *RangeFilter) parseRanges(p *parser) {
	f.Set = p.uint8()
	if f.Kind == FilterObjectProperty || f.Kind == FilterTrackProperty {
		f.Property = p.varint()
	}
	var last uint64
	for !p.short && p.at < len(p.b) {
		r := Range{Start: last + p.varint(), End: math.MaxUint64}
		fits := r.Start >= last
		if r.Open = p.at == len(p.b); !r.Open {
			r.End = r.Start + p.varint()
			fits = fits && r.End >= r.Start
		}
		if !fits {
			p.reject(InvalidFilter, "has a range filter with a value that exceeds 2^64-1")
		}
		f.Ranges = append(f.Ranges, r)
		last = r.End
	}
	if fault := f.fault(); fault != "" {
		p.reject(InvalidFilter, "%s", fault)
	}
}

// fault says what is wrong with a filter whose ranges are in order (§9.20.13 to §9.20.15).
func (f *RangeFilter) fault() string {
	if f.Property%2 != 0 {
		return "has a filter of a property that isn't a number"
	}
	for _, r := range f.Ranges {
		if f.Kind == FilterPriority && (r.Start > math.MaxUint8 || r.End > math.MaxUint8 && !r.Open) {
			return "has a filter of priorities above 255"
		}
	}
	return ""
}

func (f *RangeFilter) append(w *writer) {
	if f.Removed {
		w.varint(0)
		return
	}
	if fault := f.fault(); fault != "" {
		w.fail("%s", fault)
	}
	w.within(func(w *writer) {
		w.b = append(w.b, f.Set)
		if f.Kind == FilterObjectProperty || f.Kind == FilterTrackProperty {
			w.varint(f.Property)
		}
		var last uint64
		for i, r := range f.Ranges {
			if r.Start < last || r.End < r.Start || r.Open && i < len(f.Ranges)-1 {
				w.fail("has a range filter that isn't in order")
			}
			w.varint(r.Start - last)
			if !r.Open {
				w.varint(r.End - r.Start)
			}
			last = r.End
		}
	})
}
