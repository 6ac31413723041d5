// Package ir is the plan: what the compiler makes of a spec, and all that a back end or the reference model reads. It
// is a small structured program for each hook, specialised for every sequence of headers that its stack allows, in
// which every check, load, lookup and write is spelled out. Back ends turn it into text and decide nothing; the model
// executes it.
//
// # Two phases
//
// A block is a list of statements that ends in exactly one terminal (Up, Drop, Forward, FanOut; inside a FanOut's Each:
// Copy, Skip) on every path. All statements before a Forward or a Copy only decide: they read the packet and may leave
// it with a reason, but don't change it. Their Rewrite is the only thing that writes to the packet. So "decide, then
// write" is a property of the shape.
//
// # Values
//
// Expressions are unsigned 64-bit integers (wrapping), booleans (0 or 1), or byte strings of a fixed size. An IP
// address is 16 bytes, IPv4 mapped into IPv6 (::ffff:0:0/96). Integers have no byte order; a Load says which one the
// wire has.
//
// # Offsets
//
// All offsets are in bytes from the first byte of the link-layer header (skb->data at TC), so a tag that is in the
// packet's metadata takes no space.
package ir

import (
	"iter"
	"slices"

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
	Slots    int // rows of the session slot array: the sum of the sessions' sizes; 0 if there are none
	Usages   int // usage counters in a slot: the largest number of rows that a session has
	Shared   int // entries of the array of counters that kernel and user space share; 0 if there are none

	Levels int // of priority, 0 being the most urgent; 0 if the spec has no priority
	Groups []*Group
	Events []*Event
	// entries of the array of receivers' usage: 1 and the Rows of all groups; 0 if there are no groups
	Receivers    int
	Credits      int // entries of the array of credits; entry 0 is never used; 0 if there are none
	Translations int // rows of the table of translations; 0 if there are none
	Ring         int // bytes of the ring buffer of events, a power of two; 0 if there are no events
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

// Member is one member of a Struct. Hidden members are the runtime's business: "slot" and "gen" (u32 each) tie a row to
// its session; "hop" members (Kind Hop) say how packets leave that are sent to the Endpoint in To.
type Member struct {
	Name   string
	Type   Type
	Off    int
	Hidden bool
	To     *Member // Kind Hop: the endpoint (in the same value) that the hop leads to
	From   *Member // Kind Hop: the endpoint that packets come from; nil: user space chooses no source
	Proto  int     // Kind Hop: the IP protocol of the packets; 0: it isn't the same for all
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
	Row     int      // index of the row in Session.Rows, and of its usage counter; of several rows, the first one's
	Rows    int      // how many rows of a session are in it; if several are, a hidden member says which one it is
	Pos     diag.Pos
}

// Bound reports whether each row ends with a session: it is one of the session's, or was learned with it.
func (t *Table) Bound() bool {
	return t.Session != nil || slices.ContainsFunc(t.Value.Members, func(m *Member) bool {
		return m.Hidden && m.Name == abi.MemberSlot
	})
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
	Is   []Range // Uint: allowed values, if a header field that the row is matched with narrows them; nil: any
}

// Range is an inclusive range of integers.
type Range struct{ Min, Max uint64 }

// SessionRow says which of the session's fields make the key and the value of a row: indices into Session.Fields, in
// the order of the table's visible members.
type SessionRow struct {
	Table *Table
	Key   []int
	Value []int
}

// RowIndex is the hidden member of a row that says which of a session's rows it is, if several are in one table.
const RowIndex = "row"

// Counter is a named counter of a spec ({count: "hits"}).
type Counter struct {
	Name  string
	Index int
	Pos   diag.Pos
}

// Program runs at one hook.
type Program struct {
	Name    string
	Hook    string   // "tc/ingress", "tc/egress", XDP (of a program that runs there alone), Congestion
	On      []string // Congestion: the events of a socket that it runs at, by their headers' names
	L2      bool     // the stack begins with a link-layer header: refuse devices without one
	Reasons []*Reason
	Pull    int // bytes to make linear before parsing, if the packet has as many
	Vars    []*Var
	Rows    []*Row
	Body    []Stmt
	Paths   []string // the sequences of headers, for people: "eth ipv4 udp channel_data"

	// XDP is what takes packets first, at XDP; it has the program's name. nil: nothing does
	XDP *Program
	// Left is what XDP doesn't do, if the spec says that the program is to run there: this program does it
	Left []Left
	// ToTC, of such a one: packets that it doesn't take come to the program at tc/ingress, which counts them. Its
	// reasons for that are IsLeft and IsOthers
	ToTC bool
	Pos  diag.Pos
}

// Title is a program's name, and where it runs if another one has the name.
func (p *Program) Title() string {
	if p.ToTC {
		return p.Name + " at xdp"
	}
	return p.Name
}

// Hooks is where a program runs, for people: "xdp, tc/ingress" if packets come to it at XDP first.
func (p *Program) Hooks() string {
	if p.XDP != nil {
		return p.XDP.Hook + ", " + p.Hook
	}
	return p.Hook
}

// Symbol is the name of the program's function in the object.
func (p *Program) Symbol() string {
	if p.Hook == XDP {
		return abi.XDPPrefix + p.Name
	}
	return abi.ProgramPrefix + p.Name
}

// Congestion is the hook without a packet. Its programs run on a record of a TCP socket, of RecordSize bytes, which has
// the place of the frame. What a program writes there are decisions; the kernel's side of it (templates/congestion.h)
// carries them out.
const (
	Congestion = "tcp/congestion"
	RecordSize = 144
)

// XDP is the hook of frames as the driver has them, before the kernel makes an skb.
const XDP = "xdp"

// Reasons of packets that a program at XDP doesn't take, of those in front of themselves at tc/ingress (Program.ToTC).
const (
	IsLeft   = iota // it may be that the program takes the packet at tc/ingress: no other one may do so before
	IsOthers        // the program doesn't take it there either: the next one at XDP may
)

// Left is something that isn't done at XDP.
type Left struct {
	What string // "a fan-out"
	Pos  diag.Pos
}

// Flow returns a plan's programs, each followed by the one that takes its packets first.
func (p *Plan) Flow() iter.Seq[*Program] {
	return func(yield func(*Program) bool) {
		for _, prog := range p.Programs {
			if !yield(prog) || prog.XDP != nil && !yield(prog.XDP) {
				return
			}
		}
	}
}

// ReasonKind says what happened to a packet.
type ReasonKind int

const (
	Sent    ReasonKind = iota // rewritten and sent
	Passed                    // the spec lets it go on (changed, if a rule says so)
	Dropped                   // the spec drops it
	Punted                    // to the stack, untouched: user space is the safety net
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
	Max  uint64 // an upper bound of its value if one is known; 0: none
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

// Plus returns the offset n bytes further on.
func (o Off) Plus(n int) Off {
	o.Const += n
	return o
}

// Member returns the member of a name that isn't hidden, or nil.
func (s *Struct) Member(name string) *Member {
	for _, m := range s.Members {
		if m.Name == name && !m.Hidden {
			return m
		}
	}
	return nil
}

// Hop returns the hidden member of a table's value that holds the hop to an endpoint, for packets from another one; or
// nil.
func (t *Table) Hop(to, from *Member) *Member {
	for _, m := range t.Value.Members {
		if m.Type.Kind == Hop && m.To == to && m.From == from {
			return m
		}
	}
	return nil
}
