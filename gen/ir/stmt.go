package ir

import (
	"github.com/fastrelay/fastrelay-gen/internal/diag"
	"github.com/fastrelay/fastrelay-gen/runtime/abi"
)

// This file has the statements, but for those of one-to-many relays (fanout.go) and translations (effects.go).

// NeedBytes continues only if the frame has all bytes up to End.
type NeedBytes struct {
	End    Off
	Run    *FieldRun // what the bytes in front of End are; nil: nothing that has a name
	Reason int
	Pos    diag.Pos
}

func (s *NeedBytes) at() diag.Pos     { return s.Pos }
func (s *NeedBytes) parts(v *visitor) { v.bounds(s.End) }

// FieldRun is a header in a packet, or of one with fields of variable length a run of fields at fixed distances. It
// decides nothing: back ends show its names in place of offsets.
type FieldRun struct {
	Header string // "ipv4"
	At     Off
	Fields []HeaderField // from At on, without gaps
}

// HeaderField is a field of a FieldRun.
type HeaderField struct {
	Name  string
	Bits  int
	Bytes bool // a byte string, not an integer
}

// Let computes a value. A variable may be set in both branches of an If; it is always set before it is read.
type Let struct {
	Var   *Var
	Value Expr
	Pos   diag.Pos
}

func (s *Let) at() diag.Pos { return s.Pos }

func (s *Let) parts(v *visitor) {
	v.exprs(s.Value)
	v.sets(s.Var)
}

// Guard continues only if Cond holds; else the packet passes to the stack under Reason.
type Guard struct {
	Cond   Expr
	Reason int  // an index into Program.Reasons of kind Punted
	Rule   bool // it is what the spec asks of packets, not what a header has to be
	Pos    diag.Pos
}

func (s *Guard) at() diag.Pos     { return s.Pos }
func (s *Guard) parts(v *visitor) { v.exprs(s.Cond) }

// If runs Then or Else; its own block goes on after it, unless the branch ended in a terminal.
type If struct {
	Cond Expr
	Then []Stmt
	Else []Stmt
	Pos  diag.Pos
	Note string // "rule 1", "ipv4", for a comment
}

func (s *If) at() diag.Pos { return s.Pos }

func (s *If) parts(v *visitor) {
	v.exprs(s.Cond)
	v.blocks(&s.Then, &s.Else)
}

// ReadVarint reads a QUIC variable-length integer (RFC 9000 §16): its value and its size in bytes (1, 2, 4, 8).
type ReadVarint struct {
	Value  *Var
	Size   *Var
	At     Off
	Reason int // the frame ends before it does
	Pos    diag.Pos
}

func (s *ReadVarint) at() diag.Pos { return s.Pos }

func (s *ReadVarint) parts(v *visitor) {
	v.bytes(s.At, 8)
	v.sets(s.Value, s.Size)
}

// ReadUint reads an unsigned integer, big endian, of Size bytes (0 to Max, at most 8): 0 if there are none. The
// frame has them, and as many as Max rounded up to a power of two before their end.
type ReadUint struct {
	Value *Var
	Size  *Var
	At    Off
	End   Off // At plus Size
	Max   int
	Field string // "short.pn", for comments
	Pos   diag.Pos
}

func (s *ReadUint) at() diag.Pos { return s.Pos }

func (s *ReadUint) parts(v *visitor) {
	v.bytes(s.At, s.Max)
	v.bounds(s.End)
	v.reads(s.Size)
	v.sets(s.Value)
}

// Lookup finds a row. In a session's table a row counts as missing unless its generation is the slot's, and the slot's
// deadline has not passed. What the row holds is what it held at one moment, whatever user space does to the table
// meanwhile.
type Lookup struct {
	Row      *Row
	Key      []MemberValue // all of Table.Key's members
	Miss     int           // reason; -1 if Row.Optional
	Changing int           // reason if user space changed rows at each attempt to read one: never in the model
	Pos      diag.Pos
}

func (s *Lookup) at() diag.Pos     { return s.Pos }
func (s *Lookup) parts(v *visitor) { v.values(s.Key) }

// MemberValue gives a member its value. An Endpoint member takes two, AddrOf and PortOf; another one a Whole.
// A Prefix member of a lookup takes an Addr (the whole address is looked up).
type MemberValue struct {
	Member    *Member
	Component Component
	Value     Expr
}

// Component says what of a member is meant: all of it, or of an endpoint the address or the port.
type Component int

const (
	Whole Component = iota
	AddrOf
	PortOf
)

// Count adds By to a counter: the named one, or the shared counter whose index is in Member of Row (nothing happens
// if the index is 0).
type Count struct {
	Counter *Counter
	Row     *Row
	Member  *Member
	By      Expr
	Pos     diag.Pos
}

func (s *Count) at() diag.Pos     { return s.Pos }
func (s *Count) parts(v *visitor) { v.exprs(s.By) }

// Learn inserts or replaces a row of a table that is not a session's. It comes after every Guard of its path.
type Learn struct {
	Table *Table
	Key   []MemberValue
	Value []MemberValue
	Full  int // reason if the kernel refuses (the table is full)
	Pos   diag.Pos
}

func (s *Learn) at() diag.Pos { return s.Pos }

func (s *Learn) parts(v *visitor) {
	v.values(s.Key)
	v.values(s.Value)
}

// CheckHop continues only if a packet can leave through Hop: its state and its MTU allow it.
type CheckHop struct {
	Hop *HopRef
	// of the outgoing network-layer packet, in bytes (for a GSO packet: of one segment is the kernel's matter)
	Length Expr
	// Reasons by state, indexed by the HopXxx constants; TooBig for a packet over the MTU.
	Reasons [HopStates]int
	TooBig  int
	Direct  bool // the neighbour has to be known: a driver gets whole frames
	Pos     diag.Pos
}

func (s *CheckHop) at() diag.Pos { return s.Pos }

func (s *CheckHop) parts(v *visitor) {
	v.exprs(s.Length)
	v.hop(s.Hop)
}

// States of a hop (struct fr_hop's state). Only HopDirect and HopNeighbour let a packet leave.
const (
	HopNone          = abi.HopNone        // no route, or no next hop
	HopDirect        = abi.HopDirect      // the link-layer addresses are known: bpf_redirect
	HopNeighbour     = abi.HopNeighbour   // the kernel has to resolve the neighbour: bpf_redirect_neigh
	HopLocal         = abi.HopLocal       // the destination is this host
	HopUnreachable   = abi.HopUnreachable // the route's type is unreachable
	HopBlackhole     = abi.HopBlackhole
	HopProhibit      = abi.HopProhibit
	HopXfrm          = abi.HopXfrm // an xfrm policy is for the packets
	HopRule          = abi.HopRule // a routing rule asks for what isn't known of them
	HopEncap         = abi.HopEncap
	HopForwardingOff = abi.HopForwardingOff // forwarding is off where packets arrive; of a lookup only
	HopStates        = abi.HopStates
)

// HopRef says where the hop of a packet comes from: a member of a row (Kind Hop, or NextHop), or (Row nil) a route
// lookup in the kernel for the addresses given.
type HopRef struct {
	Row      *Row
	Member   *Member
	From, To Expr // Addr; Row nil
	Family   int  // of the outgoing packet: 4 or 6
	// of the outgoing packet, for the lookup; 0 and nil if no header with ports is known to follow
	Proto            int
	FromPort, ToPort Expr
}

// Punt lets the packet pass to the stack untouched.
type Punt struct {
	Reason int
	Pos    diag.Pos
}

func (s *Punt) at() diag.Pos   { return s.Pos }
func (s *Punt) parts(*visitor) {}

// Drop drops the packet.
type Drop struct {
	Effects // Emits, of which a required one that finds no room in the ring passes the packet to the stack, and Lets
	Reason  int
	Pos     diag.Pos
}

func (s *Drop) at() diag.Pos     { return s.Pos }
func (s *Drop) parts(v *visitor) { s.Effects.parts(v) }

// Forward is the write phase. With Hop, the packet is sent; without, it goes on (reason of kind Passed).
type Forward struct {
	Effects
	Rewrite *Rewrite // nil: nothing changes
	Hop     *HopRef
	// the bytes of the packet that came from here on are cut off; nil: none (a Rewrite with Trim cuts off more)
	End    Expr
	Usage  []*Row // rows of sessions whose usage counters count the packet
	Reason int    // Sent or Passed
	Fault  int    // reason if the kernel fails after the first change; -1 if nothing can fail
	NoRoom int    // reason (Punted) if the kernel fails before the first change; -1 likewise
	Pos    diag.Pos
}

func (s *Forward) at() diag.Pos { return s.Pos }

func (s *Forward) parts(v *visitor) {
	s.Effects.parts(v)
	v.hop(s.Hop)
	v.exprs(s.End)
	v.rewrite(s.Rewrite)
}
