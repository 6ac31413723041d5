package wire

// Message is a control message: a pointer to one of the structs of this file.
type Message interface {
	// Type returns the message's type, which is the same in both drafts.
	Type() Type
}

// Type is the type of a control message (§9).
type Type uint64

// The control messages.
const (
	TypeRequestUpdate      Type = 0x2
	TypeSubscribe          Type = 0x3
	TypeSubscribeOK        Type = 0x4
	TypeRequestError       Type = 0x5
	TypePublishNamespace   Type = 0x6
	TypeRequestOK          Type = 0x7
	TypeNamespace          Type = 0x8
	TypePublishDone        Type = 0xB
	TypeTrackStatus        Type = 0xD
	TypeNamespaceDone      Type = 0xE
	TypePublishSkipped     Type = 0xF
	TypeGoAway             Type = 0x10
	TypeFetch              Type = 0x16
	TypeFetchOK            Type = 0x18
	TypePublish            Type = 0x1D
	TypePublishStateNotify Type = 0x22
	TypeSubscribeNamespace Type = 0x50
	TypeSubscribeTracks    Type = 0x51
	TypeSetup              Type = 0x2F00
)

// StreamCountUnknown is the stream count of a publisher that can't say how many there were: 2⁶⁴-1. Draft 18
// writes it as 2⁶²-1.
const StreamCountUnknown = 1<<64 - 1

// Location is the place of an object in a track (§8.2).
type Location struct {
	Group  uint64
	Object uint64
}

// Less reports whether l is before m (§8.2).
func (l Location) Less(m Location) bool {
	return l.Group < m.Group || l.Group == m.Group && l.Object < m.Object
}

// WholeGroup is the object of an end that covers the entire group, the largest there can be.
const WholeGroup = 1<<64 - 1

// Setup is SETUP (§9.1), the first message on each control stream. An option with the value 0 or "" isn't sent.
type Setup struct {
	Path                  Optional[string] // of a client on raw QUIC: the path and query of the URI (§9.1.2)
	Authority             Optional[string] // of a client on raw QUIC: the authority of the URI (§9.1.1)
	Tokens                []Token          // §9.1.4
	MaxAuthTokenCacheSize uint64           // bytes (§9.1.3)
	Implementation        string           // name and version of the sender (§9.1.5)
	MaxFilterRanges       uint64           // not in draft 18; 0 forbids range filters (§9.1.6)
	MaxRequestUpdates     uint64           // not in draft 18; 0 is no limit (§9.1.7)
	Unknown               Properties       // options that the draft doesn't name, to be ignored; may repeat
}

// GoAway is GOAWAY (§9.2).
type GoAway struct {
	URI     string // where to continue; empty for the same one, and always in a client's
	Timeout uint64 // ms until the sender closes; 0 for no certain time
	// RequestID is only in draft 18, and only on the control stream: the smallest ID of the peer that may not have been
	// processed.
	RequestID Optional[uint64]
}

// RequestOK is REQUEST_OK (§9.3), the answer to all requests but SUBSCRIBE and FETCH.
type RequestOK struct {
	Parameters Parameters
	Properties Properties // of the track; empty unless TRACK_STATUS was asked
}

// RequestError is REQUEST_ERROR (§9.4), the answer to any request that fails.
type RequestError struct {
	Code     RequestCode
	Retry    uint64 // ms until the request may be sent again, plus one; 0 for never
	Reason   string
	Redirect *Redirect // if and only if Code is RedirectRequest
}

// Redirect says where else to ask, and for what (§9.4.1).
type Redirect struct {
	URI   string // empty for the current session's
	Track Track
}

// RequestUpdate is REQUEST_UPDATE (§9.5): parameters that aren't present remain as they are.
type RequestUpdate struct {
	RequestID  uint64
	Parameters Parameters
}

// Subscribe is SUBSCRIBE (§9.6).
type Subscribe struct {
	RequestID  uint64
	Track      Track
	Parameters Parameters
}

// SubscribeOK is SUBSCRIBE_OK (§9.7).
type SubscribeOK struct {
	TrackAlias uint64
	Parameters Parameters
	Properties Properties // of the track
}

// Publish is PUBLISH (§9.8).
type Publish struct {
	RequestID  uint64
	Track      Track
	TrackAlias uint64
	Parameters Parameters
	Properties Properties // of the track
}

// PublishDone is PUBLISH_DONE (§9.9).
type PublishDone struct {
	Code    DoneCode
	Streams uint64 // opened for this subscription, also those without objects, or StreamCountUnknown
	Reason  string
}

// PublishStateNotify is PUBLISH_STATE_NOTIFY (§9.10). It is not in draft 18.
type PublishStateNotify struct {
	Parameters Parameters
}

// Fetch is FETCH (§9.11). Which objects are asked for is Parameters.LocationFilter, in draft 18 too: its start and end
// are decoded into a FilterRange, whose End.Object is WholeGroup for a whole group. Draft 18 needs one with an end.
type Fetch struct {
	RequestID uint64
	Track     Track
	// Joining is only in draft 18, and instead of Track and the filter: what precedes the start of a subscription
	// (draft 18 §10.12.2).
	Joining    *Joining
	Parameters Parameters
}

// Joining is the range of a joining fetch of draft 18.
type Joining struct {
	Relative  bool   // Start counts groups back from the subscription's first one; otherwise it is a group's number
	RequestID uint64 // of the subscription
	Start     uint64
}

// FetchOK is FETCH_OK (§9.12).
type FetchOK struct {
	EndOfTrack bool // End is the last object of a track that is complete
	// End is the last object that the response covers. In draft 18, which counts one more, Object may be WholeGroup.
	End        Location
	Parameters Parameters
	Properties Properties // of the track
}

// TrackStatus is TRACK_STATUS (§9.13).
type TrackStatus struct {
	RequestID  uint64
	Track      Track
	Parameters Parameters
}

// PublishNamespace is PUBLISH_NAMESPACE (§9.14).
type PublishNamespace struct {
	RequestID  uint64
	Namespace  Namespace
	Parameters Parameters
}

// SubscribeNamespace is SUBSCRIBE_NAMESPACE (§9.15).
type SubscribeNamespace struct {
	RequestID  uint64
	Prefix     Namespace
	Parameters Parameters
}

// NamespaceAvailable is NAMESPACE (§9.16): one that SUBSCRIBE_NAMESPACE asked for is published.
type NamespaceAvailable struct {
	Suffix Namespace // what follows the prefix that was asked for
}

// NamespaceDone is NAMESPACE_DONE (§9.17).
type NamespaceDone struct {
	Suffix Namespace // what follows the prefix that was asked for
}

// SubscribeTracks is SUBSCRIBE_TRACKS (§9.18).
type SubscribeTracks struct {
	RequestID  uint64
	Prefix     Namespace
	Parameters Parameters
}

// PublishSkipped is PUBLISH_SKIPPED (§9.19), which draft 18 calls PUBLISH_BLOCKED.
type PublishSkipped struct {
	Suffix Track // the namespace's fields after the prefix that was asked for, and the name
}

func (*Setup) Type() Type              { return TypeSetup }
func (*GoAway) Type() Type             { return TypeGoAway }
func (*RequestOK) Type() Type          { return TypeRequestOK }
func (*RequestError) Type() Type       { return TypeRequestError }
func (*RequestUpdate) Type() Type      { return TypeRequestUpdate }
func (*Subscribe) Type() Type          { return TypeSubscribe }
func (*SubscribeOK) Type() Type        { return TypeSubscribeOK }
func (*Publish) Type() Type            { return TypePublish }
func (*PublishDone) Type() Type        { return TypePublishDone }
func (*PublishStateNotify) Type() Type { return TypePublishStateNotify }
func (*Fetch) Type() Type              { return TypeFetch }
func (*FetchOK) Type() Type            { return TypeFetchOK }
func (*TrackStatus) Type() Type        { return TypeTrackStatus }
func (*PublishNamespace) Type() Type   { return TypePublishNamespace }
func (*SubscribeNamespace) Type() Type { return TypeSubscribeNamespace }
func (*NamespaceAvailable) Type() Type { return TypeNamespace }
func (*NamespaceDone) Type() Type      { return TypeNamespaceDone }
func (*SubscribeTracks) Type() Type    { return TypeSubscribeTracks }
func (*PublishSkipped) Type() Type     { return TypePublishSkipped }
