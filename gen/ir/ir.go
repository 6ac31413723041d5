// Package ir is the plan: what the compiler makes of a spec, and all that a back end or the reference model reads. It is a
// small structured program for each hook, specialised for every sequence of headers that its stack allows, in which every
// check, load, lookup and write is spelled out. Back ends turn it into text and decide nothing; the model executes it.
//
// # Two phases
//
// A block is a list of statements that ends in exactly one terminal (Up, Drop, Forward, FanOut; inside a FanOut's Each: Copy,
// Skip) on every path. All statements before a Forward or a Copy only decide: they read the packet and may leave it with a reason,
// but don't change it. Their Rewrite is the only thing that writes to the packet. So "decide, then write" is a property of the
// shape.
//
// # Values
//
// Expressions are unsigned 64-bit integers (wrapping), booleans (0 or 1), or byte strings of a fixed size. An IP address is
// 16 bytes, IPv4 mapped into IPv6 (::ffff:0:0/96). Integers have no byte order; a Load says which one the wire has.
//
// # Offsets
//
// All offsets are in bytes from the first byte of the link-layer header (skb->data at TC), so a tag that stands in the
// packet's metadata takes no space.
package ir

import (
	"net/netip"

	"github.com/fastrelay/fastrelay-gen/internal/diag"
	"github.com/fastrelay/fastrelay-gen/runtime/abi"
)

// Plan is a compiled spec.
type Plan struct {
	Name     string
	Pos      diag.Pos
	Kernel   Version // the oldest kernel that can load the plan
	Needs    []Need  // why
	Settings []*Setting
	Tables   []*Table
	Sessions []*Session
	Counters []*Counter // named counters of `count`, over all programs
	Programs []*Program
	Slots    int // rows of the session slot array: the sum of the sessions' sizes; 0 where there are none
	Usages   int // usage counters in a slot: the largest number of rows that a session has
	Shared   int // entries of the array of counters that kernel and user space share; 0 where there are none

	Levels       int // of priority, 0 being the most urgent; 0 where the spec has no priority
	Groups       []*Group
	Events       []*Event
	Receivers    int // entries of the array of receivers' usage: 1 and the Rows of all groups; 0 where there are no groups
	Credits      int // entries of the array of credits; entry 0 is never used; 0 where there are none
	Translations int // rows of the table of translations; 0 where there are none
	Ring         int // bytes of the ring buffer of events, a power of two; 0 where there are no events
}

// Version is a kernel version.
type Version struct{ Major, Minor int }

// Need is one reason for the kernel that a plan needs.
type Need struct {
	Version Version
	What    string
	Pos     diag.Pos
}

// Setting is a value in read-only data, chosen at load. Only scalar types (Uint, Bool), Addr and Mac.
type Setting struct {
	Name    string
	Type    Type
	Default []byte // Size bytes: integers in host order (little endian), addresses in network order; nil: must be given
	Min     uint64 // Uint: the allowed range
	Max     uint64
	Doc     string
	Pos     diag.Pos
}

// Struct is the layout of a table's key or value, padding spelled out, so that no byte is left to a compiler.
type Struct struct {
	Members []*Member
	Size    int
}

// Member is one member of a Struct. Hidden members are the runtime's business: "slot" and "gen" (u32 each) tie a row to its
// session; "hop" members (Kind Hop) say how packets leave that are sent to the Endpoint in To.
type Member struct {
	Name   string
	Type   Type
	Off    int
	Hidden bool
	To     *Member // Kind Hop: the endpoint (in the same value) that the hop leads to
	From   *Member // Kind Hop: the endpoint that packets come from; nil: user space chooses no source
	Pos    diag.Pos
}

// Table is kernel state.
type Table struct {
	Name    string
	Kind    string // "hash", "lru", "array", "lpm"
	PerCPU  bool
	Size    int
	Key     Struct // array: one u32 "index"; lpm: one Prefix
	Value   Struct
	Session *Session // whose rows these are; nil for a table of its own
	Row     int      // index of the row in Session.Rows, and of its usage counter
	Pos     diag.Pos
}

// Session is a kind of session.
type Session struct {
	Name     string
	Fields   []*Field
	Rows     []*SessionRow
	Size     int
	Lifetime int64 // nanoseconds; 0: none
	Idle     int64 // nanoseconds; 0: none
	Pos      diag.Pos
}

// Field is one field of a session.
type Field struct {
	Name string
	Type Type
	Is   []Range // Uint: allowed values, where a header field that the row is matched with narrows them; nil: any
}

// Range is an inclusive range of integers.
type Range struct{ Min, Max uint64 }

// SessionRow says which of the session's fields make the key and the value of a row: indices into Session.Fields, in the
// order of the table's visible members.
type SessionRow struct {
	Table *Table
	Key   []int
	Value []int
}

// Counter is a named counter of a spec ({count: "hits"}).
type Counter struct {
	Name  string
	Index int
	Pos   diag.Pos
}

// Program runs at one hook.
type Program struct {
	Name    string
	Hook    string // "tc/ingress", "tc/egress"
	L2      bool   // the stack begins with a link-layer header: refuse devices without one
	Reasons []*Reason
	Base    int // index of Reasons[0] in the relay's array of reasons
	Pull    int // bytes to make linear before parsing, where the packet has as many
	Vars    []*Var
	Rows    []*Row
	Body    []Stmt
	Paths   []string // the sequences of headers, for people: "eth ipv4 udp channel_data"
	Pos     diag.Pos
}

// ReasonKind says what happened to a packet.
type ReasonKind int

const (
	Sent    ReasonKind = iota // rewritten and sent
	Passed                    // the spec lets it go on (changed, where a rule says so)
	Dropped                   // the spec drops it
	Punted                    // up, untouched: user space is the safety net
	Fault                     // dropped because the kernel failed after the first change

	// Of a receiver's turn in a fan-out; the packet that came has a reason of its own.
	Copied   // the receiver got a copy
	Declined // it got none
)

// Reason is a named counter of packets and bytes.
type Reason struct {
	Name string
	Kind ReasonKind
	Doc  string // a few words for people: "no row in by_channel"
	Pos  diag.Pos
}

// Var is a local variable.
type Var struct {
	Name string // unique in the program
	Type Type   // Uint, Bool or Bytes-like
	Max  uint64 // an upper bound of its value where one is known; 0: none
}

// Row is the result of a lookup: a pointer to a value in the kernel, or nothing.
type Row struct {
	Name     string // unique in the program
	Table    *Table
	Optional bool
}

// Off is an offset into the packet: Base (or 0) plus Const. Base.Max bounds the variable part.
type Off struct {
	Base  *Var
	Const int
}

// NeedBytes continues only if the frame has all bytes up to End.
type NeedBytes struct {
	End    Off
	Reason int
	Pos    diag.Pos
}

// Let computes a value. A variable may be set in both branches of an If; it is always set before it is read.
type Let struct {
	Var   *Var
	Value Expr
	Pos   diag.Pos
}

// Guard continues only if Cond holds; else the packet goes up under Reason.
type Guard struct {
	Cond   Expr
	Reason int // an index into Program.Reasons of kind Punted
	Pos    diag.Pos
}

// If runs Then or Else; the block in which it stands goes on behind it, unless the branch ended in a terminal.
type If struct {
	Cond Expr
	Then []Stmt
	Else []Stmt
	Pos  diag.Pos
	Note string // "rule 1", "ipv4", for a comment
}

// ReadVarint reads a QUIC variable-length integer (RFC 9000 §16): its value and its size in bytes (1, 2, 4, 8).
type ReadVarint struct {
	Value  *Var
	Size   *Var
	At     Off
	Reason int // the frame ends before it does
	Pos    diag.Pos
}

// Lookup finds a row. In a session's table a row counts as missing unless its generation is the slot's, and the slot's
// deadline has not passed. What the row holds is what it held at one moment, whatever user space does to the table meanwhile.
type Lookup struct {
	Row      *Row
	Key      []MemberValue // all of Table.Key's members
	Miss     int           // reason; -1 where Row.Optional
	Changing int           // reason where user space changed rows at each attempt to read one: never in the model
	Pos      diag.Pos
}

// MemberValue gives a member its value. An Endpoint member takes two: Part 1 (address) and Part 2 (port). Otherwise Part is
// 0. A Prefix member of a lookup takes an Addr (the whole address is looked up).
type MemberValue struct {
	Member *Member
	Part   Part
	Value  Expr
}

// Part is a part of a composite member.
type Part int

const (
	Whole Part = iota
	PartAddr
	PartPort
)

// Count adds By to a counter: the named one, or the shared counter whose index is in Member of Row (nothing happens where
// the index is 0).
type Count struct {
	Counter *Counter
	Row     *Row
	Member  *Member
	By      Expr
	Pos     diag.Pos
}

// Learn inserts or replaces a row of a table that is not a session's. It comes after every Guard of its path.
type Learn struct {
	Table *Table
	Key   []MemberValue
	Value []MemberValue
	Full  int // reason where the kernel refuses (the table is full)
	Pos   diag.Pos
}

// CheckHop continues only if a packet can leave through Hop: its state and its MTU allow it.
type CheckHop struct {
	Hop    *HopRef
	Length Expr // of the outgoing network-layer packet, in bytes (for a super-packet: of one segment is the kernel's matter)
	// Reasons by state, indexed by the HopXxx constants; TooBig for a packet over the MTU.
	Reasons [HopStates]int
	TooBig  int
	Pos     diag.Pos
}

// States of a hop (struct fr_hop's state). Only HopDirect and HopNeighbour let a packet leave.
const (
	HopNone        = abi.HopNone        // not resolved
	HopDirect      = abi.HopDirect      // the link-layer addresses are known: bpf_redirect
	HopNeighbour   = abi.HopNeighbour   // the kernel has to resolve the neighbour: bpf_redirect_neigh
	HopLocal       = abi.HopLocal       // the destination is this host
	HopUnreachable = abi.HopUnreachable // the route says unreachable, or there is no route
	HopBlackhole   = abi.HopBlackhole
	HopProhibit    = abi.HopProhibit
	HopStates      = abi.HopStates
)

// HopRef says where the hop of a packet comes from: a member of a row (Kind Hop, or NextHop), or (Row nil) a route lookup
// in the kernel for the addresses given.
type HopRef struct {
	Row      *Row
	Member   *Member
	From, To Expr // Addr; Row nil
	Family   int  // of the outgoing packet: 4 or 6
}

// Up lets the packet go up untouched.
type Up struct {
	Reason int
	Pos    diag.Pos
}

// Drop drops the packet.
type Drop struct {
	Effects // Emits that are not required, and Lets
	Reason  int
	Pos     diag.Pos
}

// Forward is the write phase. With Hop, the packet is sent; without, it goes on (reason of kind Passed).
type Forward struct {
	Effects
	Rewrite *Rewrite // nil: nothing changes
	Hop     *HopRef
	End     Expr   // the bytes of the packet that came from here on are cut off; nil: none (a Rewrite with Trim cuts off more)
	Usage   []*Row // rows of sessions whose usage counters count the packet
	Reason  int    // Sent or Passed
	Fault   int    // reason where the kernel fails after the first change; -1 where nothing can fail
	NoRoom  int    // reason (Punted) where the kernel fails before the first change; -1 likewise
	Pos     diag.Pos
}

// Resize says how room is made or closed between the front and the payload.
type Resize int

const (
	// InPlace: the front keeps its size.
	InPlace Resize = iota
	// MoveHeaders: room is made or closed behind the link-layer header (bpf_skb_adjust_room); the whole front is written again.
	MoveHeaders
	// MovePayload: the front stays, the payload moves, the tail is cut or grown.
	MovePayload
	// MoveEither: MovePayload where a checksum of a header in front of Rewrite.Unmoved is pending, else MoveHeaders. See
	// docs/architecture.md: the kernel's csum_start doesn't follow a moved header.
	MoveEither
)

// Rewrite turns the packet that came into the packet that leaves:
//
//	came:   [ front ............ OldFront ) [ payload: Payload bytes ) [ tail: the rest of the frame )
//	leaves: [ new front ........ NewFront ) [ payload )
//
// All values are computed from the packet that came, before the first write. Cells cover the whole new front from byte 0,
// except checksums, where Resize is MoveHeaders or MoveEither. With InPlace and MovePayload the bytes of the front stay where
// they are, and Cells name only what changes or is new. Where Family changes the network header (Resize is then MoveHeaders or
// MoveEither), bpf_skb_change_proto has made or closed 20 bytes already, and PopInner 4; what room remains to be made may be none.
// Without Trim, the tail stays (InPlace only).
//
// Where the packet is sent (Forward.Hop) and the program begins with a link-layer header, the bytes 0 to 11 are the hop's
// link-layer addresses, destination first, and no cell covers them; HopNeighbour leaves them to the kernel.
type Rewrite struct {
	Resize   Resize
	Family   int  // 0, or the family that the network header changes to (4, 6): bpf_skb_change_proto first
	PopTag   bool // the VLAN tag in the metadata goes away (bpf_skb_vlan_pop)
	PopInner bool // the outermost VLAN tag stands in the frame, behind the link-layer addresses, and goes away (bpf_skb_vlan_pop)
	L2       int  // bytes of the link-layer headers in the frame that leaves: where the network header begins
	OldFront Off
	NewFront Off // Base is OldFront.Base or nil
	Unmoved  Off // unless InPlace: behind the last header that came in front of all that is taken out or put in
	Payload  Expr
	Trim     bool // cut the tail off
	Stores   []Store
	Sums     []*Sum
	Priority Expr // skb->priority, or nil
	Mark     Expr // skb->mark, or nil
	Pos      diag.Pos
}

// Store writes one value at an offset of the packet that leaves. Uint values take Size 1, 2, 4 or 8 bytes (a cell holds whole
// bytes; bit fields that share bytes are already put together), bytes-like values take their own size; an Addr with Size 4
// writes the last 4 bytes. Little: the integer is little endian.
type Store struct {
	Off    Off
	Size   int
	Little bool
	Width  *Var // the value is written as a QUIC variable-length integer of so many bytes (1, 2, 4, 8), which it fits; Size is 8
	Value  Expr
	Note   string // the fields in it, for a comment: "version ihl dscp ecn"
	Pos    diag.Pos
}

// Sum is an internet checksum (RFC 1071) that has to follow a rewrite.
//
// The payload's sum follows from the old checksum: payload = ~old - Old - OldPseudo - tail, its bytes swapped where Swap
// holds (its first byte moved from an even to an odd position of the covered bytes, or back). Then
// new = ~(payload + New + NewPseudo), all in ones' complement arithmetic. The canonical forms are: a result of FFFF is
// written as 0, except that an Optional checksum writes 0 as FFFF.
//
// A checksum that is pending (the fact Partial names its field, or, of a super-packet, one that begins behind it) holds only the
// pseudo-header's sum, not complemented: new = old + NewPseudo - OldPseudo. Where the kernel doesn't say which one is, one may be
// that holds this sum.
type Sum struct {
	Name      string // "udp.checksum"
	Old       Off    // the field in the packet that came; Fresh: not used
	New       Off    // the field in the packet that leaves
	Fresh     bool   // the header is new: new = ~(New + NewPseudo)
	Absent    bool   // an old value of 0 means "no checksum" and stays
	Optional  bool
	Offloaded bool // may be pending. Where the kernel doesn't say, and one at an odd offset seems to be, the packet goes up (Forward.NoRoom)
	OldTerms  []Term
	NewTerms  []Term
	OldPseudo []Term
	NewPseudo []Term
	Tail      bool // the covered bytes went on behind the payload up to TailEnd; those are cut off
	TailEnd   Off
	TailOdd   Expr // Tail: holds where the payload's end is at an odd position of the covered bytes that came; nil: it is even
	TailMax   int  // at most so many bytes of tail
	Swap      Expr // nil: never
	Pos       diag.Pos
}

// Term is a summand of a checksum: a value of Size bytes at an even or odd position of the covered bytes, or (Region) the
// bytes of the packet that came from At, Len of them, at most Max, or (New) another checksum of the rewrite, one that stands
// in front of this one in Rewrite.Sums, as it leaves: the field of a header whose checksum this one covers, too. Where only
// the packet tells the position, OddIf holds where it is odd.
type Term struct {
	Value  Expr
	Size   int
	Odd    bool
	OddIf  Expr
	New    *Sum // its value when nothing is pending; Size is 2
	Region bool
	At     Off
	Len    Expr
	Max    int
}

// Const is an integer or a boolean.
type Const struct {
	V uint64
	T Type
}

// BytesConst is a constant byte string (an Addr, a Mac, Bytes).
type BytesConst struct {
	B []byte
	T Type
}

// Load reads an unsigned integer of Bits bits that starts Bit bits (0 to 7) behind the byte at Off. Bits run from the most
// significant one of each byte. Little only with whole bytes.
type Load struct {
	Off    Off
	Bit    int
	Bits   int
	Little bool
	Field  string // "udp.length", for comments
}

// LoadBytes reads N bytes. With T.Kind Addr, N is 4 (the result is the mapped address) or 16.
type LoadBytes struct {
	Off   Off
	N     int
	T     Type
	Field string
}

// VarRef reads a variable.
type VarRef struct{ Var *Var }

// MetaKind is a fact about the packet that is not in its bytes.
type MetaKind int

const (
	FrameLen   MetaKind = iota // skb->len: bytes from the link-layer header to the end
	VLANTag                    // a tag is in the metadata: skb->vlan_present
	VLANTCI                    // skb->vlan_tci
	VLANProto                  // skb->vlan_proto, as a host-order EtherType
	GSOSize                    // skb->gso_size, 0 for an ordinary packet
	SKBMark                    // skb->mark
	SKBPrio                    // skb->priority
	LinkProto                  // skb->protocol, as a host-order EtherType
	LinkType                   // skb->pkt_type: whom the frame is addressed to, one of the To… constants
	LeaseValid                 // the relay's lease has not lapsed
	// Partial says where a checksum is left to a device (CHECKSUM_PARTIAL): the offset of the first byte that it covers, times
	// 65536, plus that of its field; 0 where none is, or the kernel doesn't say.
	Partial
	// Encapsulated holds where the segments of a super-packet begin with a tunnel's headers, which the kernel repeats in front of
	// each (SKB_GSO_ENCAP_ALL). Where the kernel doesn't say, it doesn't hold.
	Encapsulated
)

// Whom a frame is addressed to, as Linux numbers it (include/uapi/linux/if_packet.h).
const (
	ToHost      = 0 // this host: the device's own address
	ToBroadcast = 1
	ToMulticast = 2
	ToOther     = 3 // another host
)

// Meta reads a fact about the packet.
type Meta struct{ Kind MetaKind }

// SettingRef reads a setting.
type SettingRef struct{ Setting *Setting }

// RowHas holds where a lookup found a row.
type RowHas struct{ Row *Row }

// RowMember reads a member of a row's value; the row is known to be there. Atomic members are read once.
type RowMember struct {
	Row    *Row
	Member *Member
	Part   Part
}

// CounterValue reads the shared counter whose index is in a member of a row (0 where there is none).
type CounterValue struct {
	Row    *Row
	Member *Member
}

// BinOp is an operator on integers (and on booleans, for Land and Lor, which evaluate their right side only when needed).
type BinOp int

const (
	Add BinOp = iota
	Sub
	Mul
	Div // by a non-zero constant
	Rem // by a non-zero constant
	And
	Or
	Xor
	Shl // by less than 64
	Shr
	Eq
	Ne
	Lt
	Le
	Gt
	Ge
	Land
	Lor
)

// Bin applies an operator.
type Bin struct {
	Op   BinOp
	X, Y Expr
}

// Not is !X for a boolean.
type Not struct{ X Expr }

// BytesEq compares two byte strings of one size.
type BytesEq struct{ X, Y Expr }

// InPrefix holds where an Addr lies in a prefix (given for mapped addresses: an IPv4 /8 is a /104).
type InPrefix struct {
	X      Expr
	Prefix netip.Prefix // of the 16-byte form
}

// IsV4 holds where an Addr is a mapped IPv4 address.
type IsV4 struct{ X Expr }

// Unicast holds where an Addr may be a single host's, another one's than this: it is not unspecified (of IPv4 the whole of
// 0.0.0.0/8), not loopback, and no Multicast. A mapped address is an IPv4 one.
type Unicast struct{ X Expr }

// Multicast holds where an Addr is a multicast group's, or 255.255.255.255.
type Multicast struct{ X Expr }

// ByteAt is one byte of a byte string, Index constant and in range.
type ByteAt struct {
	X     Expr
	Index int
}

// SumOK holds where the internet checksum over the bytes [Off, Off+Len) of the packet that came is right (the sum is FFFF).
type SumOK struct {
	Off Off
	Len int
}

// Pick is Then where If holds, else Else: integers, or conditions. Only the one that is chosen is evaluated.
type Pick struct{ If, Then, Else Expr }

// VarintWord is the QUIC variable-length integer of X in Width bytes, as the upper bytes of a 64-bit integer whose other bits are
// 0: what it adds to a checksum.
type VarintWord struct {
	X     Expr
	Width *Var
}

func (e *Const) Type() Type      { return e.T }
func (e *BytesConst) Type() Type { return e.T }
func (e *Load) Type() Type       { return UintType(e.Bits) }
func (e *LoadBytes) Type() Type  { return e.T }
func (e *VarRef) Type() Type     { return e.Var.Type }
func (e *Meta) Type() Type {
	if e.Kind == VLANTag || e.Kind == LeaseValid || e.Kind == Encapsulated {
		return BoolType
	}
	if e.Kind == VLANTCI || e.Kind == VLANProto || e.Kind == LinkProto {
		return UintType(16)
	}
	return UintType(32)
}
func (e *SettingRef) Type() Type { return e.Setting.Type }
func (e *RowHas) Type() Type     { return BoolType }
func (e *RowMember) Type() Type {
	switch e.Part {
	case PartAddr:
		return AddrType
	case PartPort:
		return UintType(16)
	}
	return e.Member.Type
}
func (e *CounterValue) Type() Type { return UintType(64) }
func (e *Bin) Type() Type {
	if e.Op >= Eq {
		return BoolType
	}
	return UintType(64)
}
func (e *Not) Type() Type        { return BoolType }
func (e *BytesEq) Type() Type    { return BoolType }
func (e *InPrefix) Type() Type   { return BoolType }
func (e *IsV4) Type() Type       { return BoolType }
func (e *Unicast) Type() Type    { return BoolType }
func (e *Multicast) Type() Type  { return BoolType }
func (e *ByteAt) Type() Type     { return UintType(8) }
func (e *SumOK) Type() Type      { return BoolType }
func (e *VarintWord) Type() Type { return UintType(64) }

// Type is the wider one of the two types.
func (e *Pick) Type() Type {
	t, f := e.Then.Type(), e.Else.Type()
	if f.Bits > t.Bits {
		return f
	}
	return t
}
