package operate

import (
	"github.com/fastrelay/fastrelay-gen/examples/moq/relay"
	"github.com/fastrelay/fastrelay-gen/runtime/control/api"
)

// Names of kinds.
const (
	sessionKind        = "session"
	tracksTable        = "tracks"
	subscriptionsTable = "subscriptions"
	upstreamsTable     = "upstreams"
)

func text(name string) api.Member { return api.Member{Name: name, Kind: api.KindText} }

func number(name string) api.Member { return api.Member{Name: name, Kind: "uint", Bits: 64} }

// droppedMembers are how many streams were given up, by reason, and how many datagrams.
func droppedMembers() (all []api.Member) {
	for reason := range relay.DropReasons() {
		all = append(all, number(reason))
	}
	return append(all, number("datagrams_dropped"))
}

// dropped are the values of droppedMembers.
func dropped(s *relay.SubscriptionStats) (o api.Object) {
	reasons := s.DroppedStreams()
	for reason := range relay.DropReasons() {
		o = append(o, api.Named{Name: reason, Value: reasons[reason]})
	}
	return append(o, api.Named{Name: "datagrams_dropped", Value: s.DroppedDatagrams})
}

// sessionFields are the fields of a session.
var sessionFields = []api.Member{
	{Name: "remote", Kind: "endpoint"}, text("scope"), number("draft"), text("transport"),
	{Name: "leaving", Kind: "bool"}, {Name: "null_protection", Kind: "bool"},
	number("requests"), number("subscriptions"), number("tracks"), number("backlog"),
}

// Sessions implements [control.UserSpace]. What was sent is that of the subscriptions that are open.
func (o *Relay) Sessions(string) []api.Session {
	all := []api.Session{}
	for _, s := range o.relay.Stats().Open {
		transport := "quic"
		if s.WebTransport {
			transport = "webtransport"
		}
		all = append(all, api.Session{
			ID: id(s.ID), Kind: sessionKind, Hops: []api.NextHop{},
			Fields: object("remote", s.Remote, "scope", s.Scope, "draft", int(s.Draft), "transport", transport,
				"leaving", s.Leaving, "null_protection", s.Null, "requests", s.Requests,
				"subscriptions", s.Subscriptions, "tracks", s.Tracks, "backlog", s.Backlog),
			Rows: []api.RowUse{{
				Table: subscriptionsTable, Packets: s.Sent.Whole + s.Sent.Datagrams,
				Bytes: s.Sent.Bytes + s.Sent.DatagramBytes,
			}},
		})
	}
	return all
}

// trackMembers are the key of a track. Its ID has the scope first, in which a comma may be.
var trackMembers = []api.Member{text("scope"), text("name")}

func trackValues() []api.Member {
	return append([]api.Member{
		number("publishers"), number("subscribers"), number("waiting"), number("bits_per_second_in"),
		number("bits_per_second_out"), number("objects_in"), number("bytes_in"), number("streams_out"),
		number("bytes_out"), number("kernel_bytes_out"), number("cached"),
	}, droppedMembers()...)
}

func (o *Relay) trackRow(t *relay.TrackStats) api.Row {
	in, out := o.rates(t)
	return api.Row{
		ID: t.Scope + "," + t.Name, Hops: []api.NextHop{}, Key: object("scope", t.Scope, "name", t.Name),
		Value: append(object("publishers", t.Publishers, "subscribers", len(t.Subscriptions), "waiting", t.Waiting,
			"bits_per_second_in", in, "bits_per_second_out", out,
			"objects_in", t.Received.Objects+t.Received.Datagrams, "bytes_in", t.Received.Bytes,
			"streams_out", t.Sent.Streams, "bytes_out", t.Sent.Bytes+t.Sent.DatagramBytes,
			"kernel_bytes_out", t.Sent.KernelBytes, "cached", t.Cached),
			dropped(&t.Sent)...),
	}
}

// subscriptionMembers are the key of a subscription.
var subscriptionMembers = []api.Member{text("session"), text("scope"), text("name")}

func subscriptionValues() []api.Member {
	return append([]api.Member{
		number("streams"), number("bytes"), number("kernel_bytes"), number("datagrams"),
	}, droppedMembers()...)
}

func subscriptionRow(t *relay.TrackStats, s *relay.SubscriptionStats) api.Row {
	session := id(s.Session)
	return api.Row{
		ID: session + "," + t.Scope + "," + t.Name, Hops: []api.NextHop{}, Session: session,
		Key: object("session", session, "scope", t.Scope, "name", t.Name),
		Value: append(object("streams", s.Streams, "bytes", s.Bytes+s.DatagramBytes, "kernel_bytes", s.KernelBytes,
			"datagrams", s.Datagrams),
			dropped(s)...),
	}
}

// upstreamMembers are the key of an upstream relay, its URI without a query.
var upstreamMembers = []api.Member{text("uri")}

func upstreamValues() []api.Member {
	return []api.Member{
		{Name: "connected", Kind: "bool"}, {Name: "null_protection", Kind: "bool"}, number("sessions"),
		number("failures"), text("error"),
	}
}

func upstreamRow(u *relay.UpstreamStats) api.Row {
	return api.Row{
		ID: u.URI, Hops: []api.NextHop{}, Key: object("uri", u.URI),
		Value: object("connected", u.Connected, "null_protection", u.Null, "sessions", u.Sessions,
			"failures", u.Failures, "error", u.Error),
	}
}

// Rows implements [control.UserSpace].
func (o *Relay) Rows(table string) []api.Row {
	all := []api.Row{}
	stats := o.relay.Stats()
	if table == upstreamsTable {
		for i := range stats.Upstreams {
			all = append(all, upstreamRow(&stats.Upstreams[i]))
		}
		return all
	}
	for i := range stats.Tracks {
		t := &stats.Tracks[i]
		if table == tracksTable {
			all = append(all, o.trackRow(t))
			continue
		}
		for n := range t.Subscriptions {
			all = append(all, subscriptionRow(t, &t.Subscriptions[n]))
		}
	}
	return all
}
