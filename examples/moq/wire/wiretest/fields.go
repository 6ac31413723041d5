package wiretest

import (
	"cmp"
	"encoding/hex"
	"encoding/json"
	"slices"

	"github.com/fastrelay/fastrelay-gen/examples/moq/wire"
)

// A Vector is something on the wire, and its fields as the draft names them: numbers are those on the wire, bytes are
// in hexadecimal. It is a line of JSON, which the program of examples/moq/endpoints/vectors reads and writes.
type Vector struct {
	Draft  wire.Draft `json:"draft"`
	Kind   string     `json:"kind"` // message, subgroup, datagram, ascending or descending (fetch streams)
	Hex    string     `json:"hex"`
	Fields any        `json:"fields"`
	Error  string     `json:"error,omitempty"` // why it was refused
}

type fields = map[string]any

func text[B ~string | ~[]byte](b B) string { return hex.EncodeToString([]byte(b)) }

// Canonical returns the JSON of fields, which is the same for equal ones.
func Canonical(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(b)
}

func namespace(n wire.Namespace) []string {
	names := []string{}
	for _, f := range n {
		names = append(names, text(f))
	}
	return names
}

func location(l wire.Location) []uint64 { return []uint64{l.Group, l.Object} }

func track(f fields, t wire.Track) fields {
	f["track_namespace"], f["track_name"] = namespace(t.Namespace), text(t.Name)
	return f
}

func keyValues(p wire.Properties) []any {
	all := []any{}
	for q, err := range p.All() {
		switch {
		case err != nil:
			panic(err) // a message's were looked at
		case q.Type%2 == 0:
			all = append(all, []any{q.Type, q.Value})
		default:
			all = append(all, []any{q.Type, text(q.Bytes)})
		}
	}
	return all
}

func token(t wire.Token) fields {
	f := fields{"alias_type": uint64(t.AliasType)}
	if t.AliasType != wire.UseValue {
		f["alias"] = t.Alias
	}
	if t.AliasType == wire.Register || t.AliasType == wire.UseValue {
		f["token_type"], f["value"] = t.Type, text(t.Value)
	}
	return f
}

// filter shows the filter's type and numbers on the wire, of which each draft has others for the same filter.
func filter(d wire.Draft, l wire.LocationFilter) fields {
	numbers := []uint64{}
	switch l.Kind {
	case wire.FilterRelative:
		if d != wire.Draft18 {
			numbers = append(numbers, l.Start.Group)
		}
	case wire.FilterStart:
		numbers = location(l.Start)
	case wire.FilterGroups:
		numbers = append(location(l.Start), l.End.Group-l.Start.Group)
	case wire.FilterRange:
		numbers = append(location(l.Start), l.End.Group-l.Start.Group, l.End.Object)
	}
	kind := uint64(l.Kind)
	if d == wire.Draft18 {
		kind = map[wire.FilterKind]uint64{
			wire.FilterRelative: 1, wire.FilterNextObject: 2, wire.FilterStart: 3, wire.FilterGroups: 4,
		}[l.Kind]
	}
	return fields{"type": kind, "numbers": numbers}
}

func rangeFilter(r wire.RangeFilter) fields {
	if r.Removed {
		return fields{"removed": true}
	}
	all := []any{}
	for _, s := range r.Ranges {
		if s.Open {
			all = append(all, []any{s.Start})
		} else {
			all = append(all, []any{s.Start, s.End})
		}
	}
	f := fields{"set": r.Set, "ranges": all}
	if r.Kind == wire.FilterObjectProperty || r.Kind == wire.FilterTrackProperty {
		f["property"] = r.Property
	}
	return f
}

func parameters(d wire.Draft, p wire.Parameters) []any {
	all := []any{}
	add := func(t uint64, present bool, value any) {
		if present {
			all = append(all, []any{t, value})
		}
	}
	number := func(b bool) uint64 {
		if b {
			return 1
		}
		return 0
	}
	add(0x02, p.ObjectDeliveryTimeout.Present, p.ObjectDeliveryTimeout.Value)
	for _, t := range p.Tokens {
		add(0x03, true, token(t))
	}
	add(0x04, p.RendezvousTimeout.Present, p.RendezvousTimeout.Value)
	add(0x06, p.SubgroupDeliveryTimeout.Present, p.SubgroupDeliveryTimeout.Value)
	add(0x08, p.Expires.Present, p.Expires.Value)
	add(0x09, p.LargestObject.Present, location(p.LargestObject.Value))
	add(0x0A, p.FillTimeout.Present, p.FillTimeout.Value)
	add(0x10, p.Forward.Present, number(p.Forward.Value))
	add(0x20, p.SubscriberPriority.Present, p.SubscriberPriority.Value)
	add(0x21, p.LocationFilter.Present, filter(d, p.LocationFilter.Value))
	add(0x22, p.GroupOrder.Present, uint64(p.GroupOrder.Value))
	if p.Fill != nil {
		add(0x23, true, parameters(d, *p.Fill))
	}
	for _, r := range p.RangeFilters {
		add(uint64(r.Kind), true, rangeFilter(r))
	}
	add(0x32, p.NewGroupRequest.Present, p.NewGroupRequest.Value)
	add(0x34, p.NamespacePrefix.Present, namespace(p.NamespacePrefix.Value))
	add(0x35, p.IncludeProperties.Present, number(p.IncludeProperties.Value))
	return all
}

// options are in the order of their types.
func options(m *wire.Setup) []any {
	all := keyValues(m.Unknown)
	add := func(t uint64, present bool, value any) {
		if present {
			all = append(all, []any{t, value})
		}
	}
	add(1, m.Path.Present, text(m.Path.Value))
	for _, t := range m.Tokens {
		add(3, true, token(t))
	}
	add(4, m.MaxAuthTokenCacheSize > 0, m.MaxAuthTokenCacheSize)
	add(5, m.Authority.Present, text(m.Authority.Value))
	add(6, m.MaxFilterRanges > 0, m.MaxFilterRanges)
	add(7, m.Implementation != "", text(m.Implementation))
	add(8, m.MaxRequestUpdates > 0, m.MaxRequestUpdates)
	slices.SortStableFunc(all, func(a, b any) int { return cmp.Compare(a.([]any)[0].(uint64), b.([]any)[0].(uint64)) })
	return all
}

func fetch(d wire.Draft, m *wire.Fetch) fields {
	f := fields{"request_id": m.RequestID}
	p := m.Parameters
	switch {
	case d != wire.Draft18:
		track(f, m.Track)
	case m.Joining != nil:
		f["fetch_type"], f["joining_request_id"], f["joining_start"] = 3, m.Joining.RequestID, m.Joining.Start
		if m.Joining.Relative {
			f["fetch_type"] = 2
		}
	default:
		r := p.LocationFilter.Value
		track(f, m.Track)
		f["fetch_type"], f["start"], f["end"] = 1, location(r.Start), []uint64{r.End.Group, r.End.Object + 1}
		p.LocationFilter.Present = false
	}
	f["parameters"] = parameters(d, p)
	return f
}

// Fields returns a message's fields.
func Fields(d wire.Draft, m wire.Message) any {
	f := fields{"type": uint64(m.Type())}
	with := func(p wire.Parameters) { f["parameters"] = parameters(d, p) }
	switch m := m.(type) {
	case *wire.Setup:
		f["options"] = options(m)
	case *wire.GoAway:
		f["uri"], f["timeout"] = text(m.URI), m.Timeout
		if m.RequestID.Present {
			f["request_id"] = m.RequestID.Value
		}
	case *wire.RequestOK:
		f["properties"] = keyValues(m.Properties)
		with(m.Parameters)
	case *wire.RequestError:
		f["code"], f["retry"], f["reason"] = uint64(m.Code), m.Retry, text(m.Reason)
		if r := m.Redirect; r != nil {
			f["redirect"] = track(fields{"uri": text(r.URI)}, r.Track)
		}
	case *wire.RequestUpdate:
		f["request_id"] = m.RequestID
		with(m.Parameters)
	case *wire.Subscribe:
		track(f, m.Track)["request_id"] = m.RequestID
		with(m.Parameters)
	case *wire.SubscribeOK:
		f["track_alias"], f["properties"] = m.TrackAlias, keyValues(m.Properties)
		with(m.Parameters)
	case *wire.Publish:
		track(f, m.Track)["request_id"] = m.RequestID
		f["track_alias"], f["properties"] = m.TrackAlias, keyValues(m.Properties)
		with(m.Parameters)
	case *wire.PublishDone:
		f["code"], f["streams"], f["reason"] = uint64(m.Code), m.Streams, text(m.Reason)
		if d == wire.Draft18 && m.Streams == wire.StreamCountUnknown {
			f["streams"] = uint64(1<<62 - 1)
		}
	case *wire.PublishStateNotify:
		with(m.Parameters)
	case *wire.Fetch:
		f = fetch(d, m)
		f["type"] = uint64(m.Type())
	case *wire.FetchOK:
		f["end_of_track"], f["end"], f["properties"] = 0, location(m.End), keyValues(m.Properties)
		if m.EndOfTrack {
			f["end_of_track"] = 1
		}
		if d == wire.Draft18 {
			f["end"] = []uint64{m.End.Group, m.End.Object + 1}
		}
		with(m.Parameters)
	case *wire.TrackStatus:
		track(f, m.Track)["request_id"] = m.RequestID
		with(m.Parameters)
	case *wire.PublishNamespace:
		f["request_id"], f["track_namespace"] = m.RequestID, namespace(m.Namespace)
		with(m.Parameters)
	case *wire.SubscribeNamespace:
		f["request_id"], f["track_namespace"] = m.RequestID, namespace(m.Prefix)
		with(m.Parameters)
	case *wire.SubscribeTracks:
		f["request_id"], f["track_namespace"] = m.RequestID, namespace(m.Prefix)
		with(m.Parameters)
	case *wire.NamespaceAvailable:
		f["track_namespace"] = namespace(m.Suffix)
	case *wire.NamespaceDone:
		f["track_namespace"] = namespace(m.Suffix)
	case *wire.PublishSkipped:
		track(f, m.Suffix)
	}
	return f
}
