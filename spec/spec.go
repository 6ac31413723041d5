// Package spec is the language: the CUE schema, the loader, and the typed spec that the compiler reads. Everything that
// came from the user's text carries its position. The loader checks the shape of a spec (words, forms, literals, syntax
// of expressions, names that are declared twice); what names mean and whether types fit is the compiler's business.
package spec

import (
	"github.com/fastrelay/fastrelay-gen/internal/diag"
)

// Name is an identifier of the language, [a-z][a-z0-9_]*, with its position.
type Name struct {
	Value string
	Pos   diag.Pos
}

// Spec is one loaded spec.
type Spec struct {
	File         string // as given by the user
	Name         Name
	Kernel       *Kernel         // the floor that the spec demands, or nil
	Headers      []*Header       // the user's, then the standard ones, in the order they are declared
	Alternatives []*Alternatives // alternatives with a name ("ip"), the user's first
	Settings     []*Setting
	Tables       []*Table
	Sessions     []*Session
	Priority     *Priority // of packets, for all programs that don't have one of their own; or nil
	Groups       []*Group  // groups of receivers (`groups`)
	Events       []*Event
	Programs     []*Program
	Tests        []*Test

	Ring         int // bytes of the ring buffer of events (`ring`); 0: the default
	Translations int // rows of the table of translations (`translations`); 0: the default
}

// Priority says where the priority of a packet is. Levels count from 0, the most urgent one; a value beyond the
// last level means the last one.
type Priority struct {
	Levels int   // 1 to 64; 0 in Program.Priority
	From   *Expr // nil if only programs say
	High   bool  // the largest value is the most urgent one: value v is level Levels-1-v
	Pos    diag.Pos
}

// Group is a kind of group of receivers.
type Group struct {
	Name     Name
	Key      []*Member
	Receiver []*Member // the values of a receiver's row
	Max      int       // receivers in one group; 0: the default
	Rows     int       // receivers in all groups (`receivers`); 0: the default
	Size     int       // groups; 0: the default
}

// Event is a typed record to user space.
type Event struct {
	Name     Name
	Fields   []*Member
	Copies   []*Member // what there is of each copy of the packet; nil: the event is about one packet, or one copy
	Required bool      // what can't be reported to user space isn't sent
}

// Kernel is a kernel version that a spec demands, such as "5.15".
type Kernel struct {
	Major, Minor int
	Pos          diag.Pos
}

// FieldKind says how a field's bits are found.
type FieldKind int

const (
	FieldUint  FieldKind = iota // Bits wide, 1 to 64, at any bit offset
	FieldBytes                  // Bytes long, fixed
	// as long as Size says (an expression over earlier fields of the header), at most Max bytes
	FieldSized
	FieldVarint // a QUIC variable-length integer (RFC 9000 §16), 1 to 8 bytes
)

// Header is the layout of one protocol header: its fields in the order of the wire.
type Header struct {
	Name   Name
	Std    bool // from spec/std
	Fields []*Field
	After  []*After // what in an enclosing header says that this one follows
	Parts  []*Part  // names for groups of fields

	// Metadata is "vlan" if the outermost such header may be in the packet's metadata (skb->vlan_tci) instead of
	// in the frame.
	Metadata string
	// Segmented headers are those that the kernel repeats in front of each segment of a GSO packet (GSO).
	Segmented bool
	// Closed headers end the packet: nothing may follow the last field.
	Closed bool
	// Trailer is the number of bytes at the end of the packet that belong to this header, not to its payload (an AEAD
	// tag).
	Trailer int
}

// Field is one field of a header.
type Field struct {
	Name   Name
	Kind   FieldKind
	Bits   int   // FieldUint
	Bytes  int   // FieldBytes
	Size   *Expr // FieldSized
	Max    int   // FieldSized: the bound in bytes
	Little bool  // little endian; only for FieldUint of whole bytes at a byte boundary
	// how bytes are read: "" (bytes), "ip" (4 or 16 bytes), "mac" (6 bytes), "uint" (FieldSized, 8 bytes at most)
	Type string

	When     *Expr       // present only if this holds (over earlier fields of the header), or nil
	Is       *Constraint // what the field has to be, or nil
	Reason   *Name       // the reason counted if Is doesn't hold; nil: HEADER_FIELD
	Counts   *Counts     // what the field, a length, counts; or nil
	Checksum *Checksum   // what the field, an internet checksum (RFC 1071), covers; or nil
	// FieldSized: the forms of the elements that the field is a list of; the first whose When holds counts
	Elements []*Elements

	// Role says what the field is for in `send`: source, destination, hop_limit, link_source,
	// link_destination; "" for none.
	Role Name
	// Origin is the value that the field gets in a datagram that a relay originates; nil keeps what came.
	Origin *uint64
}

// SizedUint reports whether the field is an unsigned integer whose size in bytes an expression gives.
func (f *Field) SizedUint() bool { return f.Kind == FieldSized && f.Type == "uint" }

// MaxBits is how many bits an integer has at most; 0 of what isn't one.
func (f *Field) MaxBits() int {
	switch {
	case f.Kind == FieldVarint:
		return 62
	case f.SizedUint():
		return 8 * f.Max
	}
	return f.Bits
}

// Counts says what a length field counts: value = bytes/Unit + Bias.
type Counts struct {
	What  string // "payload" (what follows this header), "header" (this header), "all" (both)
	Unit  int    // bytes that one step of the field stands for
	Bias  int64  // added to the number of units (RTCP: -1)
	Slack int    // bytes that may follow uncounted; -1 for any number
	Data  bool   // those bytes go along with the headers around it; else they are padding, which doesn't leave
	Pos   diag.Pos
}

// Checksum says what an internet checksum covers.
type Checksum struct {
	// "header" (this header), "all" (this header and all that follows it, inside the enclosing length)
	Covers    string
	Pseudo    []*Expr // what the pseudo-header adds: addresses and integers
	Absent    []Name  // enclosing headers over which 0 means "no checksum"; over others 0 is for the stack
	Optional  bool    // 0 has a meaning of its own, so that a computed 0 is written as all ones (UDP)
	Offloaded bool    // the kernel may leave it to a device: the field may hold the pseudo-header's sum only
	Verify    bool    // a packet that comes in with a wrong one passes to the stack
	Pos       diag.Pos
}

// Elements is one form of the elements of a list: an identifier, a length, and length + Bias bytes of content (RFC 8285
// §4.2, §4.3).
type Elements struct {
	When *Expr // over earlier fields of the header; nil: always
	ID   int   // bits of the identifier, in front: 4 or 8
	Len  int   // bits of the length after it: as many
	Bias int   // added to the length
	Pad  int   // the identifier of a byte of padding; -1: none
	Stop int   // the identifier that ends the list; -1: none
	Pos  diag.Pos
}

// After ties a header to an enclosing one: all matches on the enclosing header's fields have to hold.
type After struct {
	Parent Name
	Match  []*FieldMatch
}

// Part is a name for fields of this header or an enclosing one: an endpoint (address and port), or an alias of one
// field.
type Part struct {
	Name  Name
	Addr  *Expr // a field of type ip; nil for an alias
	Port  *Expr // a 16-bit field; nil for an alias
	Alias *Expr // a field; nil for an endpoint
}

// Alternatives is a named choice of headers.
type Alternatives struct {
	Name    Name
	Headers []Name
	Std     bool
}

// ConstraintOp is an operator of a constraint.
type ConstraintOp int

const (
	IsEq ConstraintOp = iota
	IsNe
	IsLt
	IsLe
	IsGt
	IsGe
	IsAnd // all of Args
	IsOr  // one of Args
)

// Constraint is a CUE constraint on a field, walked: a literal, a range, a disjunction.
type Constraint struct {
	Op    ConstraintOp
	Value Literal       // for the comparisons
	Args  []*Constraint // for IsAnd, IsOr
	Pos   diag.Pos
}

// LiteralKind says which member of a Literal is set.
type LiteralKind int

const (
	LitInt LiteralKind = iota
	LitBool
	LitString   // a typed literal (an address, a prefix, a MAC) that only its use gives a meaning, in Text
	LitEndpoint // not produced by the loader for constraints; used in tests and rows
	LitList     // of a test: a value for each level of priority, in List
)

// Literal is a literal of the spec. Text keeps strings as written; ParseAs functions give them a type.
type Literal struct {
	Kind LiteralKind
	Int  uint64
	Bool bool
	Text string
	List []Literal
	Pos  diag.Pos
}

// All are the values of a list, or the one value that it is.
func (l Literal) All() []Literal {
	if l.Kind == LitList {
		return l.List
	}
	return []Literal{l}
}

// Setting is a value chosen when the relay is loaded.
type Setting struct {
	Name    Name
	Type    TypeRef
	Default *Literal
	Is      *Constraint // the allowed range, or nil
	Doc     string
}

// TypeRef is a type as written: u1 to u64, bool, bytesN ("bytes8"), mac, ip, endpoint, prefix, next_hop, counter, in
// events dataN ("data1500").
type TypeRef struct {
	Text string
	Pos  diag.Pos
}

// TableKind is the kind of a table.
type TableKind string

const (
	TableHash  TableKind = "hash"
	TableLRU   TableKind = "lru"
	TableArray TableKind = "array"
	TableLPM   TableKind = "lpm"
)

// Member is a typed member of a key, a value or a session.
type Member struct {
	Name Name
	Type TypeRef
}

// Table is kernel state with a key and a value.
type Table struct {
	Name   Name
	Kind   TableKind
	PerCPU bool
	Size   int
	Key    []*Member
	Value  []*Member
}

// Session is what user space registers: one object that becomes rows in several tables.
type Session struct {
	Name     Name
	Fields   []*Member
	Rows     []*SessionRow
	Size     int      // how many may be open at once
	Lifetime *Seconds // ended unless refreshed; nil: none
	Idle     *Seconds // ended when unused for so long; nil: none
}

// Seconds is a duration with its position.
type Seconds struct {
	Value int64 // nanoseconds
	Pos   diag.Pos
}

// SessionRow is the table that a session puts a row in; key and value name the session's fields.
type SessionRow struct {
	Table Name // several rows may have one
	Key   []Name
	Value []Name
	Pos   diag.Pos
}

// Program is what runs at one hook.
type Program struct {
	Name Name
	Hook string // "tc/ingress", "tc/egress", "xdp", "tcp/congestion"
	XDP  bool   // at tc/ingress: packets come to it at XDP first

	HookPos diag.Pos
	Stack   []*StackEntry
	Match   []*FieldMatch
	When    *Expr
	Lookups []*Lookup
	Rules   []*Rule // `do` at the top level is one rule without conditions

	Priority  *Priority // nil: the spec's
	Multicast bool      // packets for multicast groups and broadcasts are taken, too
	Pos       diag.Pos
}

// Receives reports whether the program gets packets that a device receives.
func (p *Program) Receives() bool { return p.Hook == ingress || p.Hook == "xdp" }

// StackEntry is one place in the stack. Headers has one element, or the alternatives in the order they are tried; each
// may name a header or a group. Var is what the program calls it.
type StackEntry struct {
	Var      Name
	Headers  []Name
	Optional bool
	After    *Name // the entry after whose payload it begins; nil: inside of the one in front of it
	ByLookup bool  // rows choose among the alternatives: the first with which the program's lookups find theirs
	Pos      diag.Pos
}

// FieldMatch is a constraint on a field of the stack (or of a parent, in After).
type FieldMatch struct {
	Field *Expr // an OpName
	Is    *Constraint
}

// Lookup finds a row by a key. If it is missing, the packet passes to the stack unless the lookup is optional.
type Lookup struct {
	Var      Name
	Optional bool
	Table    Name
	Key      []*Expr
	Pos      diag.Pos
}

// Rule is a conditional list of actions; the first rule that applies is the one that runs.
type Rule struct {
	Match   []*FieldMatch
	When    *Expr
	Lookups []*Lookup
	Do      []*Action
	Pos     diag.Pos
}

// ActionKind is the key of an action.
type ActionKind string

const (
	ActSet   ActionKind = "set"
	ActPush  ActionKind = "push"
	ActPop   ActionKind = "pop"
	ActBlank ActionKind = "blank"
	ActSend  ActionKind = "send"
	ActLearn ActionKind = "learn"
	ActCount ActionKind = "count"
	ActMark  ActionKind = "mark"
	ActDrop  ActionKind = "drop"
	ActPass  ActionKind = "pass"

	ActLet    ActionKind = "let"
	ActAdmit  ActionKind = "admit"
	ActEmit   ActionKind = "emit"
	ActFanOut ActionKind = "fan_out"
)

// Edits reports whether an action changes the packet that leaves.
func (k ActionKind) Edits() bool {
	return k == ActSet || k == ActPush || k == ActPop || k == ActMark || k.OnHeader()
}

// OnHeader reports whether all that an action says is the header that it is done to.
func (k ActionKind) OnHeader() bool { return k == ActBlank }

// Action is one action; the members that its Kind doesn't name are zero. Members that are one expression or one switch
// have a tag with their name in specs: by it they are read, searched and shown (see members.go), so that one more is a
// line here.
type Action struct {
	Kind ActionKind
	Pos  diag.Pos

	// set: fields of the stack. push: fields of the header. mark: dscp, ecn, priority, mark (Target is
	// an OpName of one element)
	Set    []*Assign
	Header Name  // push, pop, blank
	Before *Name // push: the stack entry in front of which the header goes; nil: after the last header

	ZeroChecksum bool `member:"zero_checksum,own"` // pop: 0 is accepted where a checksum has to be

	From *Expr `member:"from"` // send
	To   *Expr `member:"to"`
	Via  *Expr `member:"via"`

	Table Name    // learn
	Key   []*Expr // learn
	Value []*Expr // learn
	// learn: the header whose checksum has to be right; nil: none, which is what the spec wants if Unverified
	Verified   *Name
	Unverified bool
	With       *Name // learn: the row of the session that the learned row ends with; nil: it stays

	Counter *Expr `member:"counter,name"` // count: a counter of a row ("src.refused"), or a name of its own ("hits")

	Reason Name // drop

	// let: names and their values are in Set. emit: the event's fields are, each Target an OpName of one element.
	Event  Name  // emit
	Credit *Expr `member:"credit,own"` // admit: "r.credit", or "r.credit[priority]"
	Cost   *Expr `member:"cost"`       // admit
	Floor  *Expr `member:"floor"`      // admit: what has to remain; nil: nothing
	// admit: a counter of a row that counts refused packets ("r.skipped"); nil: none
	Count     *Expr   `member:"count,name"`
	Overdraft bool    `member:"overdraft"` // admit: it charges, and refuses nothing
	Else      *Name   // admit: `else: drop: REASON`, for what is refused; nil: it passes to the stack
	By        *Expr   `member:"by,own"` // count, and Count of admit: how much; nil: 1
	FanOut    *FanOut // fan_out
}

// FanOut sends a copy to each receiver of a group. In its rules the receiver's row is called `r`.
type FanOut struct {
	Group Name
	Key   []*Expr
	Rules []*Rule // `each` is one rule without conditions
	// `then: drop: REASON`: what happens to the packet that came; nil (`then: "pass"`, the default): it goes on
	Drop *Name
	Pos  diag.Pos
}

// Assign gives a target a value.
type Assign struct {
	Target *Expr // an OpName
	Value  *Expr
}

// Lapsed is the condition that the relay's lease has expired.
const Lapsed = "lapsed"

// Conditions are what may be so of a relay, as expressions ask for it and tests have it; nothing else is called so
// there. What expressions read is in ir.Facts.
var Conditions = []string{Lapsed}

// Test is a test in the spec.
type Test struct {
	Name       Name // any text
	Program    Name
	Settings   []*TestValue
	Sessions   []*TestSession
	Rows       []*TestRow
	Groups     []*TestGroup
	Route      *TestRoute
	Conditions []string // those of Conditions that hold
	Packet     *Packet
	Expect     *Expect
	Pos        diag.Pos
}

// TestValue is a named literal.
type TestValue struct {
	Name  Name
	Value Literal
}

// TestSession is a session that is open before the packet comes.
type TestSession struct {
	Session Name
	Fields  []*TestValue
}

// TestGroup is a group with its receivers, in order. A counter's value is what it holds, a credit's its limit (of each
// of its levels), a bucket's its burst (at a rate of 1 a second).
type TestGroup struct {
	Group     Name
	Key       []*TestValue
	Receivers [][]*TestValue
	Pos       diag.Pos
}

// TestCopy is what one receiver has to get: a packet, or nothing under a reason.
type TestCopy struct {
	Packet   *Packet // compared like Expect.Packet; nil with no Reason: any copy
	Reason   string  // declined: the reason; "" if a copy is sent
	Declined bool    // no copy; Reason "" accepts any
	Pos      diag.Pos
}

// TestEvent is a record that has to come out; only the fields given are compared.
type TestEvent struct {
	Event    Name
	Receiver int // which receiver it names, counted from 0 in the order of TestGroup.Receivers; -1: not compared
	Fields   []*TestValue
	Copies   []*TestEvent // without names; nil: not compared
	Pos      diag.Pos
}

// TestRow is a row of a table, before (in Test.Rows) or after (in Expect.Rows). Member names of key and value are
// distinct in a table, or the loader refuses the table.
type TestRow struct {
	Table  Name
	Values []*TestValue
	Absent bool // only in Expect: there must be no such row (only key members are given)
	// of a table that is learned into with a session: the number of that session among the test's; -1: it has ended. A
	// spec means the first one.
	Of int
}

// TestRoute is what user space found for every destination in the test; nil is a reachable neighbour over an MTU of
// 1500.
type TestRoute struct {
	State string // a state of a hop, as [abi.HopState] names it
	MTU   int
	Pos   diag.Pos
}

// Packet is a packet by headers or as hex.
type Packet struct {
	Hex     []byte // the whole frame, or nil
	Layers  []*Layer
	VLAN    *TestVLAN // a tag in the metadata, or nil
	Partial bool      // the transport checksum is left to a device (CHECKSUM_PARTIAL)
	Pos     diag.Pos

	OtherHost bool // the frame is not for the device that it comes to (PACKET_OTHERHOST)
}

// TestVLAN is an 802.1Q or 802.1ad tag in the packet's metadata.
type TestVLAN struct {
	Proto uint16 // EtherType of the tag, 0x8100 or 0x88A8
	TCI   uint16
}

// Layer is one header of a packet with the fields that are given, or (Header empty) raw bytes. Lengths and checksums
// that are not given are computed; constant fields and the fields that identify the next layer get their values; others
// are 0.
type Layer struct {
	Header Name
	Fields []*TestValue
	Bytes  []byte
	Pos    diag.Pos
}

// Expect is what has to come out of a test.
type Expect struct {
	Verdict   string  // "sent", "pass", "drop", "up"
	Reason    string  // for up and drop; "" accepts any
	Packet    *Packet // nil: not compared. In layers, only the fields given are compared, and all lengths and checksums
	Untouched bool
	Rows      []*TestRow
	Counters  []*TestValue // counters of the program by name
	Copies    []*TestCopy  // one for each receiver, in order; nil: not compared
	Events    []*TestEvent // all records, in order; nil: not compared
	Via       *Literal     // sent: the next hop's address, if a rule routes
	Pos       diag.Pos     // of the reason if there is one, else of the verdict
}
