// Package wiretest draws random messages and objects for tests of package wire, and shows them as another codec sees
// them.
package wiretest

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/fastrelay/fastrelay-gen/examples/moq/wire"
)

// Random draws what is valid in a draft. Each optional member is absent now and then.
type Random struct {
	*rand.Rand
	Draft wire.Draft
}

// New returns a Random whose draws depend on the draft and the seed alone.
func New(d wire.Draft, seed uint64) Random { return Random{rand.New(rand.NewPCG(seed, uint64(d))), d} }

// Types returns the types of a draft's messages.
func Types(d wire.Draft) []wire.Type {
	types := []wire.Type{
		wire.TypeSetup, wire.TypeGoAway, wire.TypeRequestOK, wire.TypeRequestError, wire.TypeRequestUpdate,
		wire.TypeSubscribe, wire.TypeSubscribeOK, wire.TypePublish, wire.TypePublishDone, wire.TypeFetch,
		wire.TypeFetchOK, wire.TypeTrackStatus, wire.TypePublishNamespace, wire.TypeSubscribeNamespace,
		wire.TypeNamespace,
		wire.TypeNamespaceDone, wire.TypeSubscribeTracks, wire.TypePublishSkipped,
	}
	if d != wire.Draft18 {
		types = append(types, wire.TypePublishStateNotify)
	}
	return types
}

func (r Random) coin() bool { return r.IntN(2) == 0 }

// number returns numbers of all lengths on the wire, and the ends of their ranges.
func (r Random) number() uint64 {
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

// Bytes draws up to limit bytes.
func (r Random) Bytes(limit int) []byte {
	b := make([]byte, r.IntN(1+r.IntN(limit+1)))
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

func (r Random) text(limit int) string { return string(r.Bytes(limit)) }

func (r Random) namespace() (n wire.Namespace) {
	for range r.IntN(5) {
		if f := r.text(60); f != "" {
			n = append(n, f)
		}
	}
	return n
}

func (r Random) track() wire.Track { return wire.Track{Namespace: r.namespace(), Name: r.text(100)} }

func (r Random) location() wire.Location { return wire.Location{Group: r.number(), Object: r.number()} }

func (r Random) token() wire.Token {
	t := wire.Token{AliasType: wire.AliasType(r.IntN(4))}
	if t.AliasType != wire.UseValue {
		t.Alias = r.number()
	}
	if t.AliasType == wire.Register || t.AliasType == wire.UseValue {
		t.Type, t.Value = r.number(), r.text(50)
	}
	return t
}

// properties draws those of a track, or else of an object.
func (r Random) properties(track bool) wire.Properties {
	var all []wire.Property
	for range r.IntN(5) {
		p := wire.Property{Type: r.number() >> r.IntN(64)}
		if p.Type%2 == 0 {
			p.Value = r.number()
		} else {
			p.Bytes = r.Bytes(30)
		}
		switch {
		case track && p.Type == wire.PropertyGroupOrder:
			p.Value = 1 + p.Value%2
		case track && p.Type == wire.PropertyDynamicGroups:
			p.Value %= 2
		case p.Type == wire.PropertyImmutable:
			p.Bytes = nil
		}
		all = append(all, p)
	}
	return encoded(all)
}

func encoded(all []wire.Property) wire.Properties {
	p, err := wire.NewProperties(all...)
	if err != nil {
		panic(err)
	}
	return p
}

func (r Random) locationFilter() (f wire.LocationFilter) {
	f.Kind = wire.FilterKind(r.IntN(6))
	switch f.Kind {
	case wire.FilterRelative:
		if r.Draft != wire.Draft18 {
			f.Start.Group = r.number()
		}
	case wire.FilterStart:
		f.Start = r.location()
	case wire.FilterGroups, wire.FilterRange:
		f.Start, f.End.Group = r.location(), r.number()
		if f.End.Group < f.Start.Group {
			f.Start.Group, f.End.Group = f.End.Group, f.Start.Group
		}
		if f.Kind == wire.FilterRange {
			f.End.Object = r.number()
		}
	}
	return f
}

func (r Random) rangeFilter(kind wire.RangeKind) wire.RangeFilter {
	f := wire.RangeFilter{Kind: kind}
	if f.Removed = r.IntN(8) == 0; f.Removed {
		return f
	}
	f.Set = uint8(r.Uint32())
	if kind == wire.FilterObjectProperty || kind == wire.FilterTrackProperty {
		f.Property = r.number() &^ 1
	}
	var ends []uint64
	for range 2 * r.IntN(4) {
		v := r.number()
		if kind == wire.FilterPriority {
			v %= 256
		}
		ends = append(ends, v)
	}
	slices.Sort(ends)
	for pair := range slices.Chunk(ends, 2) {
		f.Ranges = append(f.Ranges, wire.Range{Start: pair[0], End: pair[1]})
	}
	if n := len(f.Ranges); n > 0 && r.IntN(3) == 0 {
		f.Ranges[n-1] = wire.Range{Start: f.Ranges[n-1].Start, End: math.MaxUint64, Open: true}
	}
	return f
}

func (r Random) rangeFilters(p *wire.Parameters, kind wire.RangeKind) {
	for range 1 + r.IntN(3) {
		p.RangeFilters = append(p.RangeFilters, r.rangeFilter(kind))
	}
	slices.SortFunc(p.RangeFilters, func(a, b wire.RangeFilter) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Set, b.Set), cmp.Compare(a.Property, b.Property))
	})
	p.RangeFilters = slices.CompactFunc(p.RangeFilters, func(a, b wire.RangeFilter) bool {
		return a.Kind == b.Kind && a.Set == b.Set && a.Property == b.Property
	})
}

// setters are the functions that make one parameter present each.
func (r Random) setters() []func(*wire.Parameters) {
	number := func(member func(*wire.Parameters) *wire.Optional[uint64]) func(*wire.Parameters) {
		return func(p *wire.Parameters) { *member(p) = wire.Some(r.number()) }
	}
	all := []func(*wire.Parameters){
		number(func(p *wire.Parameters) *wire.Optional[uint64] { return &p.ObjectDeliveryTimeout }),
		number(func(p *wire.Parameters) *wire.Optional[uint64] { return &p.RendezvousTimeout }),
		number(func(p *wire.Parameters) *wire.Optional[uint64] { return &p.SubgroupDeliveryTimeout }),
		number(func(p *wire.Parameters) *wire.Optional[uint64] { return &p.Expires }),
		number(func(p *wire.Parameters) *wire.Optional[uint64] { return &p.FillTimeout }),
		number(func(p *wire.Parameters) *wire.Optional[uint64] { return &p.NewGroupRequest }),
		func(p *wire.Parameters) {
			p.Tokens = nil
			for range 1 + r.IntN(3) {
				p.Tokens = append(p.Tokens, r.token())
			}
		},
		func(p *wire.Parameters) { p.LargestObject = wire.Some(r.location()) },
		func(p *wire.Parameters) { p.Forward = wire.Some(r.coin()) },
		func(p *wire.Parameters) { p.SubscriberPriority = wire.Some(uint8(r.Uint32())) },
		func(p *wire.Parameters) { p.LocationFilter = wire.Some(r.locationFilter()) },
		func(p *wire.Parameters) { p.GroupOrder = wire.Some(wire.GroupOrder(1 + r.IntN(2))) },
		func(p *wire.Parameters) { p.NamespacePrefix = wire.Some(r.namespace()) },
		func(p *wire.Parameters) { p.IncludeProperties = wire.Some(r.coin()) },
		func(p *wire.Parameters) {
			p.Fill = r.draw(func(q wire.Parameters) bool {
				return r.accepts(wire.TypeSubscribe, wire.Parameters{Fill: &q})
			})
		},
	}
	for kind := wire.FilterSubgroup; kind <= wire.FilterTrackProperty; kind++ {
		all = append(all, func(p *wire.Parameters) { r.rangeFilters(p, kind) })
	}
	return all
}

// draw makes parameters present, of those that are accepted.
func (r Random) draw(accepts func(wire.Parameters) bool) *wire.Parameters {
	p := new(wire.Parameters)
	for _, set := range r.setters() {
		if r.coin() {
			continue
		}
		trial := *p
		if set(&trial); accepts(trial) {
			*p = trial
		}
	}
	return p
}

// accepts reports whether the draft lets a message have the parameters.
func (r Random) accepts(t wire.Type, p wire.Parameters) bool {
	m := with(t, p)
	if f, ok := m.(*wire.Fetch); ok && r.Draft == wire.Draft18 {
		f.Joining = &wire.Joining{} // so that a filter is a parameter, which it isn't there
	}
	_, err := wire.Append(nil, r.Draft, m)
	return err == nil
}

// with returns a message that has nothing but parameters, if it can have them.
func with(t wire.Type, p wire.Parameters) wire.Message {
	switch t {
	case wire.TypeRequestOK:
		return &wire.RequestOK{Parameters: p}
	case wire.TypeRequestUpdate:
		return &wire.RequestUpdate{Parameters: p}
	case wire.TypeSubscribe:
		return &wire.Subscribe{Parameters: p}
	case wire.TypeSubscribeOK:
		return &wire.SubscribeOK{Parameters: p}
	case wire.TypePublish:
		return &wire.Publish{Parameters: p}
	case wire.TypePublishStateNotify:
		return &wire.PublishStateNotify{Parameters: p}
	case wire.TypeFetch:
		return &wire.Fetch{Parameters: p}
	case wire.TypeFetchOK:
		return &wire.FetchOK{Parameters: p}
	case wire.TypeTrackStatus:
		return &wire.TrackStatus{Parameters: p}
	case wire.TypePublishNamespace:
		return &wire.PublishNamespace{Parameters: p}
	case wire.TypeSubscribeNamespace:
		return &wire.SubscribeNamespace{Parameters: p}
	case wire.TypeSubscribeTracks:
		return &wire.SubscribeTracks{Parameters: p}
	}
	return map[wire.Type]wire.Message{
		wire.TypeSetup: &wire.Setup{}, wire.TypeGoAway: &wire.GoAway{}, wire.TypeRequestError: &wire.RequestError{},
		wire.TypePublishDone: &wire.PublishDone{}, wire.TypeNamespace: &wire.NamespaceAvailable{},
		wire.TypeNamespaceDone: &wire.NamespaceDone{}, wire.TypePublishSkipped: &wire.PublishSkipped{},
	}[t]
}

// Message draws a message of a type.
func (r Random) Message(t wire.Type) wire.Message {
	m := with(t, *r.draw(func(p wire.Parameters) bool { return r.accepts(t, p) }))
	switch m := m.(type) {
	case *wire.Setup:
		r.setup(m)
	case *wire.GoAway:
		m.URI, m.Timeout = r.text(100), r.number()
		if r.Draft == wire.Draft18 && r.coin() {
			m.RequestID = wire.Some(r.number())
		}
	case *wire.RequestOK:
		m.Properties = r.properties(true)
	case *wire.RequestError:
		m.Code, m.Retry, m.Reason = wire.RequestCode(r.number()), r.number(), r.text(wire.MaxReason)
		if r.coin() {
			m.Code, m.Redirect = wire.RedirectRequest, &wire.Redirect{URI: r.text(100), Track: r.track()}
		} else if m.Code == wire.RedirectRequest {
			m.Code++
		}
	case *wire.RequestUpdate:
		m.RequestID = r.number()
	case *wire.Subscribe:
		m.RequestID, m.Track = r.number(), r.track()
	case *wire.SubscribeOK:
		m.TrackAlias, m.Properties = r.number(), r.properties(true)
	case *wire.Publish:
		m.RequestID, m.Track, m.TrackAlias, m.Properties = r.number(), r.track(), r.number(), r.properties(true)
	case *wire.PublishDone:
		m.Code, m.Streams, m.Reason = wire.DoneCode(r.number()), r.number(), r.text(wire.MaxReason)
		if m.Streams == 1<<62-1 { // in draft 18, that is StreamCountUnknown
			m.Streams++
		}
	case *wire.Fetch:
		r.fetch(m)
	case *wire.FetchOK:
		m.EndOfTrack, m.End, m.Properties = r.coin(), r.location(), r.properties(true)
	case *wire.TrackStatus:
		m.RequestID, m.Track = r.number(), r.track()
	case *wire.PublishNamespace:
		m.RequestID, m.Namespace = r.number(), r.namespace()
	case *wire.SubscribeNamespace:
		m.RequestID, m.Prefix = r.number(), r.namespace()
	case *wire.SubscribeTracks:
		m.RequestID, m.Prefix = r.number(), r.namespace()
	case *wire.NamespaceAvailable:
		m.Suffix = r.namespace()
	case *wire.NamespaceDone:
		m.Suffix = r.namespace()
	case *wire.PublishSkipped:
		m.Suffix = r.track()
	}
	return m
}

func (r Random) setup(m *wire.Setup) {
	m.Implementation, m.MaxAuthTokenCacheSize = r.text(40), r.number()
	if r.coin() {
		m.Path, m.Authority = wire.Some(r.text(30)), wire.Some(r.text(30))
	}
	for range r.IntN(3) {
		m.Tokens = append(m.Tokens, r.token())
	}
	if r.Draft != wire.Draft18 {
		m.MaxFilterRanges, m.MaxRequestUpdates = r.number(), r.number()
	}
	var unknown []wire.Property
	for p, err := range r.properties(false).All() {
		if err == nil && (p.Type > 8 || p.Type == 2) {
			unknown = append(unknown, p)
		}
	}
	m.Unknown = encoded(unknown)
}

func (r Random) fetch(m *wire.Fetch) {
	m.RequestID, m.Track = r.number(), r.track()
	switch {
	case r.Draft != wire.Draft18:
	case r.coin():
		m.Joining, m.Track = &wire.Joining{Relative: r.coin(), RequestID: r.number(), Start: r.number()}, wire.Track{}
	default:
		f := wire.LocationFilter{Kind: wire.FilterRange, Start: r.location(), End: r.location()}
		if f.End.Less(f.Start) {
			f.Start, f.End = f.End, f.Start
		}
		m.Parameters.LocationFilter = wire.Some(f)
	}
}

// Subgroup draws a stream's header and its objects.
func (r Random) Subgroup() (h wire.SubgroupHeader, objects []wire.Object) {
	h = wire.SubgroupHeader{
		TrackAlias: r.number(), Group: r.number(),
		Properties: r.coin(), EndOfGroup: r.coin(), FirstObject: r.coin(), SubgroupIsFirst: r.IntN(3) == 0,
	}
	if !h.SubgroupIsFirst {
		h.Subgroup = r.number()
	}
	if r.coin() {
		h.Priority = wire.Some(uint8(r.Uint32()))
	}
	var next uint64
	for range r.IntN(5) {
		o := wire.Object{ID: next + r.number()>>5, Length: uint64(r.IntN(40))}
		if o.Length > 0 && h.Properties {
			o.Properties = r.properties(false)
		}
		if o.Length == 0 {
			o.Status = []wire.Status{wire.Normal, wire.EndOfGroup, wire.EndOfTrack}[r.IntN(3)]
		}
		objects = append(objects, o)
		next = o.ID + 1
	}
	return h, objects
}

// Datagram draws an object in a datagram.
func (r Random) Datagram() wire.Datagram {
	d := wire.Datagram{TrackAlias: r.number(), Group: r.number(), Object: r.number()}
	if r.coin() {
		d.Priority = wire.Some(uint8(r.Uint32()))
	}
	if r.IntN(3) == 0 {
		d.Status = []wire.Status{wire.EndOfGroup, wire.EndOfTrack}[r.IntN(2)]
		return d
	}
	d.EndOfGroup, d.Properties = r.coin(), r.properties(false)
	if p := r.Bytes(50); len(p) > 0 {
		d.Payload = p
	}
	return d
}

// Fetched draws the objects of a fetch stream, and markers among them if asked for.
func (r Random) Fetched(descending, markers bool) (objects []wire.FetchObject) {
	group := r.number()>>1 + 1<<62
	var object uint64
	for i := range r.IntN(8) {
		if i > 0 && r.coin() {
			step := 1 + r.number()>>6
			if descending {
				step = -step
			}
			group, object = group+step, 0
		}
		o := wire.FetchObject{Group: group, ID: object + r.number()>>4}
		object = o.ID + 1
		if markers && r.IntN(5) == 0 {
			kinds := []wire.EndOfRange{wire.NonExistent, wire.Unknown, wire.TimedOut}
			if r.Draft == wire.Draft18 {
				kinds = kinds[:2]
			}
			o.EndOfRange = kinds[r.IntN(len(kinds))]
			objects = append(objects, o)
			continue
		}
		o.Priority, o.Properties, o.Length = uint8(r.IntN(3)), r.properties(false), uint64(r.IntN(40))
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
