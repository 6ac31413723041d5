package ir

import (
	"slices"

	"github.com/fastrelay/fastrelay-gen/internal/diag"
)

// This file has what one-to-many relays need: groups of receivers, events, lists of elements, fan-outs and copies.

// This file has what one-to-many relays need: groups of receivers, copies, and the state that goes with a packet or a
// copy.

// Group is a kind of fan-out group. A group has a key and a list of at most Max receivers; a receiver is a row of
// Receivers. User space writes a receiver's row before it puts it into a list, and never changes it while a list has
// it: a change is a new row, and a new list that takes the old one's place at once. So a packet sees one list, and rows
// that don't change.
type Group struct {
	Name      string
	Key       Struct
	Receivers *Table // Kind "receivers"; not in Plan.Tables
	Max       int    // receivers in one group, at most MaxReceivers
	Rows      int    // receivers in all groups of the kind. Receivers.Size is Rows + Max: a change needs room for both
	Size      int    // groups of the kind
	Base      int    // identities of the receivers are Base to Base+Rows-1; the smallest of all is 1
	Pos       diag.Pos
}

// MaxReceivers is the largest number of receivers of a group.
const MaxReceivers = 4096

// Event is a typed record to user space. In the ring it is a header (struct fr_event: u64 time in nanoseconds of the
// monotonic clock, u32 identity of the receiver or 0, u16 ID, u16 size of the record), then its fields: Member.Off
// counts from the record's first byte. What it has of the packet (Kind Data) comes last, and the record's size says how
// many bytes those are; in the ring it takes Fields.Size bytes all the same.
type Event struct {
	Name     string
	ID       int // from 1 on, in the order of Plan.Events
	Fields   Struct
	Copies   *Copies // nil: it is about one packet, or one copy
	Required bool    // what can't be reported to user space isn't sent
	Pos      diag.Pos
}

// Copies are what a record has of each copy of the packet that was sent: from Off on up to Max entries, each a u32
// identity of the receiver (a hidden member) and its values. The record's size says how many there are.
type Copies struct {
	Entry Struct
	Off   int
	Max   int
}

// Data is the member that holds bytes of the packet; nil: there is none.
func (e *Event) Data() *Member {
	for _, m := range e.Fields.Members {
		if m.Type.Kind == Data {
			return m
		}
	}
	return nil
}

// Field returns a field of a record.
func (e *Event) Field(record []byte, m *Member) []byte {
	if m.Type.Kind == Data {
		return record[m.Off:]
	}
	return record[m.Off : m.Off+m.Type.Size]
}

// Entries are what a record says of each copy.
func (e *Event) Entries(record []byte) (all [][]byte) {
	if e.Copies != nil {
		for entry := range slices.Chunk(record[e.Copies.Off:], e.Copies.Entry.Size) {
			all = append(all, entry)
		}
	}
	return all
}

// FindElement searches a list of elements, each with an identifier and a length in front (such as RFC 8285), for the
// first one with an identifier. The list is [At, At+Size); an element that doesn't fit into it ends the search, as do
// MaxElements of them, padding included. Found is a Bool, Len the bytes of the element's content, Value the first 8 of
// them as a big endian integer, followed by zeros if there are fewer; both are 0 if it isn't found. The packet
// has the list's bytes.
type FindElement struct {
	Found, Len, Value *Var
	At                Off
	Size              Expr
	SizeMax           int
	Forms             []ElementForm // the first whose When holds counts; if none does, nothing is found
	ID                Expr
	Pos               diag.Pos
}

func (s *FindElement) at() diag.Pos { return s.Pos }

func (s *FindElement) parts(v *visitor) {
	v.bytes(s.At, s.SizeMax)
	v.exprs(s.Size, s.ID)
	for _, f := range s.Forms {
		v.exprs(f.When)
	}
	v.sets(s.Found, s.Len, s.Value)
}

// MaxElements is how many elements of a list are looked at.
const MaxElements = 32

// ElementForm is the form of the elements: an identifier of IDBits and a length of LenBits, the identifier in the upper
// bits, which fill one byte (4 + 4) or two (8 + 8); then length + Bias bytes of content.
type ElementForm struct {
	When    Expr // nil: always
	IDBits  int
	LenBits int
	Bias    int
	// the identifier of a single byte of padding (its length, if any in that byte, is not looked at); -1: none
	Pad  int
	Stop int // the identifier that ends the list; -1: none
}

// FanOut sends a copy of the packet to each receiver of a group, in the list's order, and ends the packet's
// processing: it goes on as it came, but for the bytes after End (Reason of kind Passed), or is dropped. Each is a
// block that runs once a receiver, with Row (one of Program.Rows), and ends in Copy or Skip on every path. In it,
// values are those of the packet that came, whatever earlier copies wrote; a statement that stops ends that
// receiver's turn, and its reason is of kind Declined.
type FanOut struct {
	Effects // before the first copy; Admits and required Emits may pass the packet to the stack
	Group   *Group
	Key     []MemberValue
	Miss    int // reason of kind Punted: no such group
	Row     *Row
	Each    []Stmt
	Front   Off // [0, Front) has all bytes that Each reads or writes
	// the bytes from here on are cut off in front of the first turn (which knows of them by FrameLen only); nil: none
	End    Expr
	Drop   bool
	Reason int // Passed or Dropped
	NoRoom int // reason of kind Punted: the kernel can't make the packet's headers its own, in front of the first copy
	Fault  int // the packet can't be restored
	Usage  []*Row
	Pos    diag.Pos
}

func (s *FanOut) at() diag.Pos { return s.Pos }

func (s *FanOut) parts(v *visitor) {
	v.values(s.Key)
	s.Effects.parts(v)
	v.exprs(s.End)
	v.bounds(s.Front)
	v.blocks(&s.Each)
}

// Copy sends the packet to a receiver: it is rewritten in place, cloned, and the clone redirected. The kernel doesn't
// resolve neighbours for clones, so that the hop's state is HopDirect (CheckHop in Each takes no other).
type Copy struct {
	Effects
	Rewrite *Rewrite // InPlace, no tag popped; nil: only the link-layer addresses change
	Hop     *HopRef
	Reason  int // kind Copied
	Failed  int // kind Declined: bpf_clone_redirect returned anything but 0
	Pos     diag.Pos
}

func (s *Copy) at() diag.Pos { return s.Pos }

func (s *Copy) parts(v *visitor) {
	s.Effects.parts(v)
	v.hop(s.Hop)
	v.rewrite(s.Rewrite)
}

// Skip ends a receiver's turn without a copy.
type Skip struct {
	Reason int // kind Declined
	Pos    diag.Pos
}

func (s *Skip) at() diag.Pos   { return s.Pos }
func (s *Skip) parts(*visitor) {}
