package wire

import (
	"cmp"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
)

// random draws valid messages of a draft, each member of which is absent now and then.
type random struct {
	*rand.Rand
	draft Draft
}

func newRandom(d Draft, seed uint64) random { return random{rand.New(rand.NewPCG(seed, uint64(d))), d} }

// number draws numbers of all lengths on the wire, and the ends of their ranges.
func (r random) number() uint64 {
	v := r.Uint64() >> r.IntN(64)
	switch r.IntN(8) {
	case 0:
		return 0
	case 1:
		return math.MaxUint64
	case 2:
		return 1<<(7*(1+r.IntN(8))) - uint64(r.IntN(2))
	}
	return v
}

func (r random) bytes(limit int) []byte {
	b := make([]byte, r.IntN(1+r.IntN(limit+1)))
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

func (r random) text(limit int) string { return string(r.bytes(limit)) }

func (r random) namespace(limit int) (n Namespace) {
	for range r.IntN(5) {
		if f := r.text(limit / 5); f != "" {
			n = append(n, f)
		}
	}
	return n
}

func (r random) track() Track { return Track{r.namespace(300), r.text(300)} }

func (r random) location() Location { return Location{r.number(), r.number()} }

func (r random) token() Token {
	t := Token{AliasType: AliasType(r.IntN(4))}
	if t.AliasType != UseValue {
		t.Alias = r.number()
	}
	if t.AliasType == Register || t.AliasType == UseValue {
		t.Type, t.Value = r.number(), r.text(50)
	}
	return t
}

// properties draws properties of a track, or of an object if it has one.
func (r random) properties(track bool) Properties {
	var all []Property
	for range r.IntN(5) {
		p := Property{Type: r.number() >> r.IntN(64)}
		if p.Type%2 == 0 {
			p.Value = r.number()
		} else {
			p.Bytes = r.bytes(30)
		}
		switch {
		case track && p.Type == PropertyGroupOrder:
			p.Value = 1 + p.Value%2
		case track && p.Type == PropertyDynamicGroups:
			p.Value %= 2
		case track && p.Type == PropertyImmutable:
			p.Bytes = nil
		}
		all = append(all, p)
	}
	b, err := NewProperties(all...)
	if err != nil {
		panic(err)
	}
	return b
}

func (r random) locationFilter() (f LocationFilter) {
	kinds := []FilterKind{FilterNone, FilterRelative, FilterStart, FilterGroups, FilterRange, FilterNextObject}
	if r.draft == Draft18 {
		kinds = []FilterKind{FilterRelative, FilterStart, FilterGroups, FilterNextObject}
	}
	f.Kind = kinds[r.IntN(len(kinds))]
	switch f.Kind {
	case FilterRelative:
		if r.draft != Draft18 {
			f.Start.Group = r.number()
		}
	case FilterStart:
		f.Start = r.location()
	case FilterGroups, FilterRange:
		f.Start, f.End.Group = r.location(), r.number()
		if f.End.Group < f.Start.Group {
			f.Start.Group, f.End.Group = f.End.Group, f.Start.Group
		}
		if f.Kind == FilterRange {
			f.End.Object = r.number()
		}
	}
	return f
}

func (r random) rangeFilter(kind RangeKind) RangeFilter {
	f := RangeFilter{Kind: kind}
	if f.Removed = r.IntN(8) == 0; f.Removed {
		return f
	}
	f.Set = uint8(r.Uint32())
	if kind == FilterObjectProperty || kind == FilterTrackProperty {
		f.Property = r.number() &^ 1
	}
	var ends []uint64
	for range 2 * r.IntN(4) {
		v := r.number()
		if kind == FilterPriority {
			v %= 256
		}
		ends = append(ends, v)
	}
	slices.Sort(ends)
	for i := 0; i < len(ends); i += 2 {
		f.Ranges = append(f.Ranges, Range{Start: ends[i], End: ends[i+1]})
	}
	if n := len(f.Ranges); n > 0 && r.IntN(3) == 0 {
		f.Ranges[n-1] = Range{f.Ranges[n-1].Start, math.MaxUint64, true}
	}
	return f
}

// parameters draws those that the draft allows in a message.
func (r random) parameters(in Type) (p Parameters) {
	for i := range parameterTable {
		row := &parameterTable[i]
		if !row.allowed(r.draft, in) || r.IntN(2) == 0 {
			continue
		}
		times := 1
		if row.slot(&p).repeats {
			times = 1 + r.IntN(3)
		}
		for range times {
			r.fill(row.slot(&p).next())
		}
	}
	slices.SortFunc(p.RangeFilters, func(a, b RangeFilter) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Set, b.Set), cmp.Compare(a.Property, b.Property))
	})
	p.RangeFilters = slices.CompactFunc(p.RangeFilters, func(a, b RangeFilter) bool {
		return a.Kind == b.Kind && a.Set == b.Set && a.Property == b.Property
	})
	return p
}

func (r random) fill(f field) {
	switch f := f.(type) {
	case *varint:
		*f = varint(r.number())
	case *flag:
		*f = r.IntN(2) == 0
	case *octet:
		*f = octet(r.Uint32())
	case *Location:
		*f = r.location()
	case *LocationFilter:
		*f = r.locationFilter()
	case *GroupOrder:
		*f = GroupOrder(1 + r.IntN(2))
	case *Namespace:
		*f = r.namespace(300)
	case *Token:
		*f = r.token()
	case *RangeFilter:
		*f = r.rangeFilter(f.Kind)
	case *fillParameters:
		*f = fillParameters(r.parameters(inFill))
	default:
		panic(reflect.TypeOf(f))
	}
}

func (r random) setup() *Setup {
	m := &Setup{Implementation: r.text(40), MaxAuthTokenCacheSize: r.number()}
	if r.IntN(2) == 0 {
		m.Path, m.Authority = Some(r.text(30)), Some(r.text(30))
	}
	for range r.IntN(3) {
		m.Tokens = append(m.Tokens, r.token())
	}
	if r.draft != Draft18 {
		m.MaxFilterRanges, m.MaxRequestUpdates = r.number(), r.number()
	}
	var unknown []Property
	for p := range r.properties(false).All() {
		if !r.draft.hasOption(p.Type) {
			unknown = append(unknown, p)
		}
	}
	m.Unknown, _ = NewProperties(unknown...)
	return m
}

func (r random) fetch() *Fetch {
	m := &Fetch{RequestID: r.number(), Track: r.track(), Parameters: r.parameters(TypeFetch)}
	if r.draft != Draft18 {
		return m
	}
	if r.IntN(2) == 0 {
		m.Joining, m.Track = &Joining{r.IntN(2) == 0, r.number(), r.number()}, Track{}
		return m
	}
	f := LocationFilter{Kind: FilterRange, Start: r.location(), End: r.location()}
	if f.End.Less(f.Start) {
		f.Start, f.End = f.End, f.Start
	}
	m.Parameters.LocationFilter = Some(f)
	return m
}

// message draws a message of a type.
func (r random) message(t Type) Message {
	p := r.parameters(t)
	switch t {
	case TypeSetup:
		return r.setup()
	case TypeGoAway:
		m := &GoAway{URI: r.text(100), Timeout: r.number()}
		if r.draft == Draft18 && r.IntN(2) == 0 {
			m.RequestID = Some(r.number())
		}
		return m
	case TypeRequestOK:
		return &RequestOK{p, r.properties(true)}
	case TypeRequestError:
		m := &RequestError{Code: RequestCode(r.number()), Retry: r.number(), Reason: r.text(MaxReason)}
		if r.IntN(2) == 0 {
			m.Code, m.Redirect = RedirectRequest, &Redirect{r.text(100), r.track()}
		} else if m.Code == RedirectRequest {
			m.Code++
		}
		return m
	case TypeRequestUpdate:
		return &RequestUpdate{r.number(), p}
	case TypeSubscribe:
		return &Subscribe{r.number(), r.track(), p}
	case TypeSubscribeOK:
		return &SubscribeOK{r.number(), p, r.properties(true)}
	case TypePublish:
		return &Publish{r.number(), r.track(), r.number(), p, r.properties(true)}
	case TypePublishDone:
		m := &PublishDone{DoneCode(r.number()), r.number(), r.text(MaxReason)}
		if m.Streams == 1<<62-1 { // in draft 18, that is StreamCountUnknown
			m.Streams++
		}
		return m
	case TypePublishStateNotify:
		return &PublishStateNotify{p}
	case TypeFetch:
		return r.fetch()
	case TypeFetchOK:
		return &FetchOK{r.IntN(2) == 0, r.location(), p, r.properties(true)}
	case TypeTrackStatus:
		return &TrackStatus{r.number(), r.track(), p}
	case TypePublishNamespace:
		return &PublishNamespace{r.number(), r.namespace(300), p}
	case TypeSubscribeNamespace:
		return &SubscribeNamespace{r.number(), r.namespace(300), p}
	case TypeNamespace:
		return &NamespaceAvailable{r.namespace(300)}
	case TypeNamespaceDone:
		return &NamespaceDone{r.namespace(300)}
	case TypeSubscribeTracks:
		return &SubscribeTracks{r.number(), r.namespace(300), p}
	case TypePublishSkipped:
		return &PublishSkipped{r.track()}
	}
	panic(t)
}

// subgroup draws a stream's header and objects.
func (r random) subgroup() (h SubgroupHeader, objects []Object) {
	h = SubgroupHeader{
		TrackAlias: r.number(), Group: r.number(),
		Properties: r.IntN(2) == 0, EndOfGroup: r.IntN(2) == 0,
		FirstObject: r.IntN(2) == 0, SubgroupIsFirst: r.IntN(3) == 0,
	}
	if !h.SubgroupIsFirst {
		h.Subgroup = r.number()
	}
	if r.IntN(2) == 0 {
		h.Priority = Some(uint8(r.Uint32()))
	}
	var next uint64
	for range r.IntN(5) {
		o := Object{ID: next + r.number()>>2, Length: r.number()}
		if h.Properties {
			o.Properties = r.properties(false)
		}
		if r.IntN(4) == 0 {
			o.Length, o.Properties, o.Status = 0, nil, []Status{Normal, EndOfGroup, EndOfTrack}[r.IntN(3)]
		}
		if o.ID < next || len(objects) > 0 && o.ID == next-1 {
			break
		}
		objects = append(objects, o)
		next = o.ID + 1
	}
	return h, objects
}

func (r random) datagram() Datagram {
	d := Datagram{TrackAlias: r.number(), Group: r.number(), Object: r.number()}
	if r.IntN(2) == 0 {
		d.Priority = Some(uint8(r.Uint32()))
	}
	if r.IntN(3) == 0 {
		d.Status = []Status{EndOfGroup, EndOfTrack}[r.IntN(2)]
		return d
	}
	d.EndOfGroup, d.Properties = r.IntN(2) == 0, r.properties(false)
	if p := r.bytes(50); len(p) > 0 {
		d.Payload = p
	}
	return d
}

// fetched draws the objects and markers of a fetch stream.
func (r random) fetched(descending bool) (objects []FetchObject) {
	group := r.number()
	var object uint64
	for i := range r.IntN(8) {
		if i > 0 && r.IntN(2) == 0 {
			step := 1 + r.number()>>2
			if descending {
				step = -step
			}
			if (group+step < group) != descending {
				break
			}
			group, object = group+step, 0
		}
		o := FetchObject{Group: group, ID: object + r.number()>>uint(1+r.IntN(63))}
		if o.ID < object {
			break
		}
		object = o.ID + 1
		if r.IntN(5) == 0 {
			kinds := []EndOfRange{NonExistent, Unknown, TimedOut}
			if r.draft == Draft18 {
				kinds = kinds[:2]
			}
			o.EndOfRange = kinds[r.IntN(len(kinds))]
			objects = append(objects, o)
			continue
		}
		o.Priority, o.Properties, o.Length = uint8(r.IntN(3)), r.properties(false), r.number()
		if o.Datagram = r.IntN(4) == 0; !o.Datagram {
			o.Subgroup = uint64(r.IntN(4))
			if r.IntN(8) == 0 {
				o.Subgroup = r.number()
			}
		}
		objects = append(objects, o)
	}
	return objects
}
