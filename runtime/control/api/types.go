package api

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"time"
)

// Named is a value with its name.
type Named struct {
	Name  string
	Value any
}

// Object is a JSON object whose members keep their order, which is that of the spec.
type Object []Named

// MarshalJSON implements [json.Marshaler].
func (o Object) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, m := range o {
		if i > 0 {
			b.WriteByte(',')
		}
		name, err := json.Marshal(m.Name)
		if err != nil {
			return nil, err
		}
		value, err := json.Marshal(m.Value)
		if err != nil {
			return nil, err
		}
		b.Write(name)
		b.WriteByte(':')
		b.Write(value)
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// UnmarshalJSON implements [json.Unmarshaler]. Numbers become a [json.Number].
func (o *Object) UnmarshalJSON(text []byte) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	if begin, err := d.Token(); err != nil {
		return err
	} else if begin != json.Delim('{') {
		return &json.UnmarshalTypeError{Value: fmt.Sprint(begin), Type: reflect.TypeFor[Object]()}
	}
	*o = Object{}
	for d.More() {
		name, err := d.Token()
		if err != nil {
			return err
		}
		m := Named{Name: name.(string)} // an object has no other keys
		if err := d.Decode(&m.Value); err != nil {
			return err
		}
		*o = append(*o, m)
	}
	return nil
}

// Get returns the member of a name; nil if there is none.
func (o Object) Get(name string) any {
	for _, m := range o {
		if m.Name == name {
			return m.Value
		}
	}
	return nil
}

// Relay is what there is to know about a relay at a glance.
type Relay struct {
	Name     string     `json:"name"`
	PID      int        `json:"pid"`
	Started  time.Time  `json:"started"`
	Kernel   string     `json:"kernel"` // the oldest that can load it; "": it has no programs in the kernel
	Pinned   string     `json:"pinned,omitempty"`
	Lease    *Lease     `json:"lease,omitempty"` // nil: it forwards in user space, as long as its process does
	Draining bool       `json:"draining"`
	CanStop  bool       `json:"can_stop"` // POST /v1/stop ends its process
	Settings Object     `json:"settings"`
	Programs []string   `json:"programs"`
	Sessions []Kind     `json:"sessions"`
	Groups   []Kind     `json:"groups"`
	Tables   []Kind     `json:"tables"`
	Events   []LostKind `json:"events"`
	Ring     *Ring      `json:"ring,omitempty"` // of events
	Levels   int        `json:"levels"`         // of priority; 0: none
	// frames that devices have dropped after programs had sent them from XDP
	XDPDrops   []XDPDrop `json:"xdp_drops,omitempty"`
	NoXDPDrops string    `json:"no_xdp_drops,omitempty"` // why they can't be counted
}

// XDPDrop is how many frames a device has dropped after XDP, and why.
type XDPDrop struct {
	Interface string `json:"interface"` // that they were to leave by
	Reason    string `json:"reason"`
	Packets   uint64 `json:"packets"`
}

// Lease says for how long the kernel goes on forwarding when the process has died.
type Lease struct {
	Seconds float64 `json:"seconds"`
	Left    float64 `json:"left_seconds"`
}

// Ring is how full the ring of events is.
type Ring struct {
	Waiting uint64 `json:"waiting_bytes"`
	Size    uint64 `json:"size_bytes"`
}

// Kind is a kind of session or group, or a table.
type Kind struct {
	Name      string   `json:"name"`
	Session   string   `json:"session,omitempty"` // of a table: whose rows it has
	Key       []Member `json:"key,omitempty"`     // of a group or a table
	Values    []Member `json:"values"`            // fields of a session, values of a row or a receiver
	Open      *int     `json:"open,omitempty"`    // sessions, groups, or rows of a relay in user space
	Limit     int      `json:"limit"`             // sessions, groups or rows
	Receivers *int     `json:"receivers,omitempty"`
	PerGroup  int      `json:"receivers_limit,omitempty"` // of one group
}

// Member describes a member of a session, a key or a value.
type Member struct {
	Name   string `json:"name"`
	Kind   string `json:"kind"`             // as in package abi, or KindText, which relays in user space have
	Bits   int    `json:"bits,omitempty"`   // of an integer
	Levels int    `json:"levels,omitempty"` // of priority that it has values for
}

// KindText is the kind of a [Member] whose values are strings.
const KindText = "text"

// LostKind is a kind of event, and how many of its records were lost since the ring was full.
type LostKind struct {
	Name   string   `json:"name"`
	Fields []Member `json:"fields"`
	Copies []Member `json:"copies,omitempty"` // values of each copy of the packet
	Lost   uint64   `json:"lost"`
}

// Programs are all programs.
type Programs struct {
	Items []Program `json:"items"`
}

// Program is a program, where it is attached, and what it counted.
type Program struct {
	Name        string       `json:"name"`
	Hook        string       `json:"hook"`
	KernelID    uint32       `json:"kernel_id"` // as bpftool shows it
	Attachments []Attachment `json:"attachments"`
	Reasons     []Reason     `json:"reasons"`
}

// Attachment is a place where a program is attached.
type Attachment struct {
	Interface string `json:"interface"` // of a relay in user space, the address where it listens
	How       string `json:"how"`       // tcx, clsact or xdp; udp if that is an address
	Attached  bool   `json:"attached"`
	Error     string `json:"error,omitempty"` // why it isn't
	// the IP versions of packets whose routes the program looks up, and which the interface doesn't forward: the kernel
	// finds no route for them
	NoForwarding []int `json:"no_forwarding,omitempty"`
	// the programs of others that have packets first, as "NAME (program ID)"
	Front []string `json:"front,omitempty"`
	XDP   bool     `json:"xdp,omitempty"`    // packets come to the program at XDP first
	NoXDP string   `json:"no_xdp,omitempty"` // why they don't, though that was asked for
}

// At is how the program is attached: "tcx", or "xdp, tcx".
func (a *Attachment) At() string {
	if a.XDP && a.How != "xdp" {
		return "xdp, " + a.How
	}
	return a.How
}

// Reason is what became of packets, and how many of them there were.
type Reason struct {
	Name    string  `json:"name"`
	Kind    string  `json:"kind"`
	Doc     string  `json:"doc,omitempty"`
	Packets uint64  `json:"packets"`
	XDP     uint64  `json:"xdp_packets,omitempty"` // of them, seen at XDP
	Bytes   uint64  `json:"bytes"`
	PPS     float64 `json:"packets_per_second"` // over about a second
	BPS     float64 `json:"bits_per_second"`
}

// Session is an open session.
type Session struct {
	ID       string     `json:"id"`
	Kind     string     `json:"kind"`
	Fields   Object     `json:"fields"`
	Rows     []RowUse   `json:"rows"`
	LastUsed *time.Time `json:"last_used,omitempty"` // when a packet was last sent for it
	Expires  *time.Time `json:"expires,omitempty"`   // when it ends unless it is used or refreshed
	Hops     []NextHop  `json:"next_hops"`
}

// RowUse is what was sent for a row of a session.
type RowUse struct {
	Table   string `json:"table"`
	Packets uint64 `json:"packets"`
	Bytes   uint64 `json:"bytes"`
}

// NextHop is how packets leave, or why they don't.
type NextHop struct {
	From      string `json:"from,omitempty"`
	To        string `json:"to"`
	Protocol  string `json:"protocol,omitempty"`  // "udp" or "tcp", if a rule or an xfrm policy asks for it
	FromPort  uint16 `json:"from_port,omitempty"` // likewise
	ToPort    uint16 `json:"to_port,omitempty"`   // likewise
	Router    bool   `json:"router,omitempty"`    // To is a router, as in `send: via`
	State     string `json:"state"`               // as in package abi
	Missing   string `json:"missing,omitempty"`
	Interface string `json:"interface,omitempty"`
	MAC       string `json:"mac,omitempty"`
	MTU       int    `json:"mtu,omitempty"`
	Rows      int    `json:"rows"` // that need it
}

// Page is a part of a list. Next asks for the next one; it is empty in the last one.
type Page[T any] struct {
	Items []T    `json:"items"`
	Next  string `json:"next,omitempty"`
}

// CloseSessions are sessions to close in one step.
type CloseSessions struct {
	IDs []string `json:"ids"`
}

// Closed is how many sessions were closed.
type Closed struct {
	Closed int `json:"closed"`
}

// RefreshSessions are sessions to refresh.
type RefreshSessions struct {
	IDs []string `json:"ids"`
	// After so many seconds they end unless they are refreshed again; 0: only when their kind says.
	Lifetime float64 `json:"lifetime_seconds,omitempty"`
}

// Refreshed says how many sessions were refreshed, and which are over.
type Refreshed struct {
	Refreshed int      `json:"refreshed"`
	Over      []string `json:"over"`
}

// Group is an open group.
type Group struct {
	ID        string `json:"id"` // its key as text: what paths have
	Kind      string `json:"kind"`
	Key       Object `json:"key"`
	Receivers int    `json:"receivers"`
	// of the receivers with which it was opened, in the order in which they were given; only in the answer to that
	Added []uint32 `json:"added,omitempty"`
}

// OpenGroup opens a group with its receivers, all or nothing.
type OpenGroup struct {
	Key       Object   `json:"key"`
	Receivers []Object `json:"receivers,omitempty"`
}

// ChangeGroup is several changes in one step: each packet sees all or none of them.
type ChangeGroup struct {
	Add    []Object         `json:"add,omitempty"`
	Set    []ChangeReceiver `json:"set,omitempty"`
	Remove []uint32         `json:"remove,omitempty"`
}

// ChangeReceiver has new values for some members of a receiver; the others stay as they are.
type ChangeReceiver struct {
	ID     uint32 `json:"id"`
	Values Object `json:"values"`
}

// GroupChanged says which receivers were added, in the order in which they were given.
type GroupChanged struct {
	Added     []uint32 `json:"added"`
	Receivers int      `json:"receivers"` // that the group has now
}

// Receiver is a receiver of a group.
type Receiver struct {
	ID       uint32    `json:"id"`
	Values   Object    `json:"values"`
	Packets  uint64    `json:"packets"` // copies sent
	Bytes    uint64    `json:"bytes"`
	Declined uint64    `json:"declined"` // packets of which it got no copy
	Failed   uint64    `json:"failed"`   // those among them that the kernel refused
	Hops     []NextHop `json:"next_hops"`
}

// Row is a row of a table.
type Row struct {
	ID      string    `json:"id"` // its key as text: what paths have
	Key     Object    `json:"key"`
	Value   Object    `json:"value"`
	Session string    `json:"session,omitempty"` // the ID of the one whose row it is
	Hops    []NextHop `json:"next_hops"`
}

// Credit is a credit.
type Credit struct {
	Limit     uint64   `json:"limit"`
	Spent     uint64   `json:"spent"`
	Available uint64   `json:"available"`
	Debt      uint64   `json:"debt"`    // what was charged beyond the limit or the burst
	Refused   []uint64 `json:"refused"` // packets, by level of priority
}

// Bucket is a bucket.
type Bucket struct {
	PerSecond uint64   `json:"per_second"`
	Burst     uint64   `json:"burst"`
	Available uint64   `json:"available"`
	Debt      uint64   `json:"debt"`    // what was charged beyond the limit or the burst
	Refused   []uint64 `json:"refused"` // packets, by level of priority
}

// Rate is a bucket if it is given.
type Rate struct {
	PerSecond uint64 `json:"per_second"`
	Burst     uint64 `json:"burst"`
}

// Counters are the named counters of the spec.
type Counters struct {
	Counters Object `json:"counters"`
}

// Event is an event of the stream.
type Event struct {
	Event    string         `json:"event"`
	Time     time.Time      `json:"time"`
	Receiver *EventReceiver `json:"receiver,omitempty"`
	Fields   Object         `json:"fields"`
	Copies   []EventCopy    `json:"copies,omitempty"` // of the packet, if the event says something of each
}

// EventCopy is what an event says of a copy of its packet.
type EventCopy struct {
	Receiver *EventReceiver `json:"receiver,omitempty"`
	Values   Object         `json:"values"`
}

// EventReceiver is the receiver that an event names.
type EventReceiver struct {
	Group string `json:"group"` // its kind
	Key   string `json:"key"`   // the group's ID
	ID    uint32 `json:"id"`
}

// Missed says how many events a client has missed since it didn't read in time.
type Missed struct {
	Missed uint64 `json:"missed"`
}

// Drain says how to drain.
type Drain struct {
	Limit float64 `json:"limit_seconds"`   // how long to wait
	Close bool    `json:"close,omitempty"` // close what is left then
}

// Drained says how a drain has ended.
type Drained struct {
	Drained   bool `json:"drained"` // nothing was left, or it was closed
	Sessions  int  `json:"sessions_left"`
	Receivers int  `json:"receivers_left"`
	Closed    int  `json:"closed"` // sessions and groups that Close has closed
}

// Problem is an error, as RFC 9457 has it.
type Problem struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail"`          // what is wrong
	Code   string `json:"code"`            // one of Codes
	Field  string `json:"field,omitempty"` // where it is wrong
	Fix    string `json:"fix,omitempty"`   // what to do
	Other  string `json:"other,omitempty"` // the session or group that is in the way
}

// Codes of problems.
const (
	CodeBadRequest = "bad_request" // no JSON, or not what the path takes
	CodeValue      = "value"       // a value that doesn't fit
	CodeNotFound   = "not_found"   // nothing has this name
	CodeMethod     = "method"      // the path doesn't take it
	CodeExists     = "exists"      // its key is in use
	CodeFull       = "full"        // no room
	CodeDraining   = "draining"    // nothing new is taken
	CodeClosed     = "closed"      // the relay ends
	CodeForbidden  = "forbidden"   // another user
	CodeTooLarge   = "too_large"   // the request
	CodeRefused    = "refused"     // by the kernel
	CodeInternal   = "internal"
)

// Codes are all codes of problems.
var Codes = []string{
	CodeBadRequest, CodeValue, CodeNotFound, CodeMethod, CodeExists, CodeFull, CodeDraining, CodeClosed, CodeForbidden,
	CodeTooLarge, CodeRefused, CodeInternal,
}

// ProblemType is the media type of problems.
const ProblemType = "application/problem+json"

func (p *Problem) Error() string {
	if p.Fix == "" {
		return p.Detail
	}
	return p.Detail + "; " + p.Fix
}
