package wire

import (
	"fmt"
	"maps"
)

// Streams says on which streams a message is sent (§9).
type Streams uint8

// The streams of a message.
const (
	OnControl Streams = 1 << iota // on control streams
	OnRequest                     // on request streams
	Opens                         // on request streams, as their first message and nowhere else
)

// layout is a message's row in a draft's table.
type layout struct {
	name    string
	streams Streams
	make    func() (Message, []field)
	fields  func(Message) []field
}

// table has a draft's messages.
type table map[Type]layout

// row makes a layout from the members of a message, in the order on the wire.
func row[M any, P interface {
	*M
	Message
}](name string, streams Streams, fields func(P) []field) layout {
	return layout{
		name, streams,
		func() (Message, []field) { m := P(new(M)); return m, fields(m) },
		func(m Message) []field { return fields(m.(P)) },
	}
}

// What both drafts have, field by field.
var common = table{
	TypeSetup: row("SETUP", OnControl, func(m *Setup) []field { return []field{m} }),
	TypeRequestOK: row("REQUEST_OK", OnRequest, func(m *RequestOK) []field {
		return []field{&m.Parameters, &m.Properties}
	}),
	TypeRequestError: row("REQUEST_ERROR", OnRequest, func(m *RequestError) []field {
		return []field{(*varint)(&m.Code), (*varint)(&m.Retry), (*reason)(&m.Reason), (*redirect)(m)}
	}),
	TypeRequestUpdate: row("REQUEST_UPDATE", OnRequest, func(m *RequestUpdate) []field {
		return []field{(*varint)(&m.RequestID), &m.Parameters}
	}),
	TypeSubscribe: row("SUBSCRIBE", Opens, func(m *Subscribe) []field {
		return []field{(*varint)(&m.RequestID), &m.Track, &m.Parameters}
	}),
	TypeSubscribeOK: row("SUBSCRIBE_OK", OnRequest, func(m *SubscribeOK) []field {
		return []field{(*varint)(&m.TrackAlias), &m.Parameters, &m.Properties}
	}),
	TypePublish: row("PUBLISH", Opens, func(m *Publish) []field {
		return []field{(*varint)(&m.RequestID), &m.Track, (*varint)(&m.TrackAlias), &m.Parameters, &m.Properties}
	}),
	TypeTrackStatus: row("TRACK_STATUS", Opens, func(m *TrackStatus) []field {
		return []field{(*varint)(&m.RequestID), &m.Track, &m.Parameters}
	}),
	TypePublishNamespace: row("PUBLISH_NAMESPACE", Opens, func(m *PublishNamespace) []field {
		return []field{(*varint)(&m.RequestID), &m.Namespace, &m.Parameters}
	}),
	TypeSubscribeNamespace: row("SUBSCRIBE_NAMESPACE", Opens, func(m *SubscribeNamespace) []field {
		return []field{(*varint)(&m.RequestID), &m.Prefix, &m.Parameters}
	}),
	TypeSubscribeTracks: row("SUBSCRIBE_TRACKS", Opens, func(m *SubscribeTracks) []field {
		return []field{(*varint)(&m.RequestID), &m.Prefix, &m.Parameters}
	}),
	TypeNamespace:     row("NAMESPACE", OnRequest, func(m *NamespaceAvailable) []field { return []field{&m.Suffix} }),
	TypeNamespaceDone: row("NAMESPACE_DONE", OnRequest, func(m *NamespaceDone) []field { return []field{&m.Suffix} }),
}

// What each draft has beside it. Draft 18 lists a type 0x1E, PUBLISH_OK, which its change log removes; it has no
// format, and REQUEST_OK is what answers PUBLISH.
var (
	draft18 = common.with(table{
		TypeGoAway: row("GOAWAY", OnControl|OnRequest, func(m *GoAway) []field {
			return []field{(*uri)(&m.URI), (*varint)(&m.Timeout), (*lastID)(&m.RequestID)}
		}),
		TypePublishDone: row("PUBLISH_DONE", OnRequest, func(m *PublishDone) []field {
			return []field{(*varint)(&m.Code), (*count62)(&m.Streams), (*reason)(&m.Reason)}
		}),
		TypeFetch: row("FETCH", Opens, func(m *Fetch) []field {
			return []field{(*varint)(&m.RequestID), (*fetch18)(m)}
		}),
		TypeFetchOK: row("FETCH_OK", OnRequest, func(m *FetchOK) []field {
			return []field{(*flag)(&m.EndOfTrack), (*exclusive)(&m.End), &m.Parameters, &m.Properties}
		}),
		TypePublishSkipped: row("PUBLISH_BLOCKED", OnRequest, func(m *PublishSkipped) []field {
			return []field{&m.Suffix}
		}),
	})
	draft22 = common.with(table{
		TypeGoAway: row("GOAWAY", OnControl|OnRequest, func(m *GoAway) []field {
			return []field{(*uri)(&m.URI), (*varint)(&m.Timeout), absent{m.RequestID.Present, "a request ID"}}
		}),
		TypePublishDone: row("PUBLISH_DONE", OnRequest, func(m *PublishDone) []field {
			return []field{(*varint)(&m.Code), (*varint)(&m.Streams), (*reason)(&m.Reason)}
		}),
		TypePublishStateNotify: row("PUBLISH_STATE_NOTIFY", OnRequest, func(m *PublishStateNotify) []field {
			return []field{&m.Parameters}
		}),
		TypeFetch: row("FETCH", Opens, func(m *Fetch) []field {
			joins := absent{m.Joining != nil, "a subscription to join"}
			return []field{(*varint)(&m.RequestID), &m.Track, joins, &m.Parameters}
		}),
		TypeFetchOK: row("FETCH_OK", OnRequest, func(m *FetchOK) []field {
			return []field{(*flag)(&m.EndOfTrack), &m.End, &m.Parameters, &m.Properties}
		}),
		TypePublishSkipped: row("PUBLISH_SKIPPED", OnRequest, func(m *PublishSkipped) []field {
			return []field{&m.Suffix}
		}),
	})
)

func (t table) with(more table) table {
	all := maps.Clone(t)
	maps.Copy(all, more)
	return all
}

func (d Draft) table() table {
	if d == Draft18 {
		return draft18
	}
	return draft22
}

// String returns the name that draft 22 gives the type.
func (t Type) String() string {
	if l, ok := draft22[t]; ok {
		return l.name
	}
	return fmt.Sprintf("message type %#x", uint64(t))
}

// Streams says on which streams messages of the type are sent. A request stream that begins with another type than one
// that Opens, or a message on a stream that isn't among these, is a PROTOCOL_VIOLATION (§6.3, §9).
func (t Type) Streams() Streams { return draft22[t].streams }

// lastID is a request ID at the end of a message, or nothing.
type lastID Optional[uint64]

func (o *lastID) parse(p *parser) {
	if !p.short && p.at < len(p.b) {
		*o = lastID(Some(p.varint()))
	}
}

func (o *lastID) append(w *writer) {
	if o.Present {
		w.varint(o.Value)
	}
}

// absent is no field: it refuses what the draft lacks.
type absent struct {
	present bool
	what    string
}

func (absent) parse(*parser) {}

func (a absent) append(w *writer) {
	if a.present {
		w.fail("can't have %s", a.what)
	}
}

// count62 is a number of streams, of which the unknown one is 2^62-1 (draft 18 §10.11).
type count62 uint64

func (n *count62) parse(p *parser) {
	if *n = count62(p.varint()); *n == 1<<62-1 {
		*n = StreamCountUnknown
	}
}

func (n *count62) append(w *writer) {
	if *n == StreamCountUnknown {
		w.varint(1<<62 - 1)
	} else {
		w.varint(uint64(*n))
	}
}

// exclusive is a location that is written with one object more, or with 0 for the whole group (draft 18 §10.12.1,
// §10.13).
type exclusive Location

func (l *exclusive) parse(p *parser)  { *l = exclusive{p.varint(), p.varint() - 1} }
func (l *exclusive) append(w *writer) { w.varint(l.Group); w.varint(l.Object + 1) }

// redirect is the end of REQUEST_ERROR, which depends on its code.
type redirect RequestError

func (r *redirect) parse(p *parser) {
	if r.Code != RedirectRequest {
		return
	}
	r.Redirect = new(Redirect)
	r.Redirect.URI = p.text(MaxMessage, "URI")
	r.Redirect.Track.parse(p)
}

func (r *redirect) append(w *writer) {
	if (r.Redirect != nil) != (r.Code == RedirectRequest) {
		w.fail("has a redirect without the code REDIRECT, or the code without it")
	}
	if r.Redirect != nil {
		w.text(r.Redirect.URI, MaxMessage, "URI")
		r.Redirect.Track.append(w)
	}
}

// fetch18 is what follows the request ID in FETCH (draft 18 §10.12).
type fetch18 Fetch

const (
	fetchStandalone = 1
	fetchRelative   = 2
	fetchAbsolute   = 3
)

func (f *fetch18) parse(p *parser) {
	var filter Optional[LocationFilter]
	switch t := p.varint(); t {
	case fetchStandalone:
		f.Track.parse(p)
		filter = Some(LocationFilter{Kind: FilterRange})
		filter.Value.Start.parse(p)
		(*exclusive)(&filter.Value.End).parse(p)
		if filter.Value.End.Less(filter.Value.Start) && !p.short {
			p.fail("ends before it starts")
		}
	case fetchRelative, fetchAbsolute:
		f.Joining = &Joining{t == fetchRelative, p.varint(), p.varint()}
	default:
		if !p.short {
			p.fail("has the unknown fetch type %d", t)
		}
	}
	f.Parameters.parse(p)
	f.Parameters.LocationFilter = filter
}

func (f *fetch18) append(w *writer) {
	filter := f.Parameters.LocationFilter
	if j := f.Joining; j != nil {
		if f.Track.Namespace != nil || f.Track.Name != "" || filter.Present {
			w.fail("joins a subscription and so has no track and no location filter")
		}
		t := uint64(fetchAbsolute)
		if j.Relative {
			t = fetchRelative
		}
		w.varint(t)
		w.varint(j.RequestID)
		w.varint(j.Start)
	} else {
		r := filter.Value
		if r.Kind == FilterGroups {
			r.End.Object = WholeGroup
		} else if r.Kind != FilterRange {
			w.fail("needs a location filter with a start and an end")
		}
		if r.End.Less(r.Start) {
			w.fail("ends before it starts")
		}
		w.varint(fetchStandalone)
		f.Track.append(w)
		r.Start.append(w)
		(*exclusive)(&r.End).append(w)
	}
	rest := f.Parameters
	rest.LocationFilter = Optional[LocationFilter]{}
	rest.append(w)
}
