package ir

import (
	"iter"

	"github.com/fastrelay/fastrelay-gen/internal/diag"
)

// This file has what happens to a packet: the rewrite, and the checksums that follow it.

// Resize says how room is made or closed between the front and the payload.
type Resize int

const (
	// InPlace: the front keeps its size.
	InPlace Resize = iota
	// MoveHeaders: room is made or closed after the link-layer header (bpf_skb_adjust_room); the whole front is written
	// again.
	MoveHeaders
	// MovePayload: the front stays, the payload moves, the tail is cut or grown.
	MovePayload
	// MoveEither: MovePayload if a checksum of a header in front of Rewrite.Unmoved is partial, else MoveHeaders.
	// See docs/internals.md: the kernel's csum_start doesn't follow a moved header.
	MoveEither
)

// Rewrite turns the packet that came into the packet that leaves:
//
//	came:   [ front ............ OldFront ) [ payload: Payload bytes ) [ tail: the rest of the frame )
//	leaves: [ new front ........ NewFront ) [ payload )
//
// All values are computed from the packet that came, before the first write. Cells cover the whole new front from byte
// 0, except checksums, if Resize is MoveHeaders or MoveEither. With InPlace and MovePayload the bytes of the front
// stay where they are, and Cells name only what changes or is new. Where Family changes the network header (Resize is
// then MoveHeaders or MoveEither), bpf_skb_change_proto has made or closed 20 bytes already, and PopInner 4; what room
// remains to be made may be none. Without Trim, the tail stays (InPlace only).
//
// If the packet is sent (Forward.Hop) and the program begins with a link-layer header, the bytes 0 to 11 are the
// hop's link-layer addresses, destination first, and no cell covers them; HopNeighbour leaves them to the kernel.
type Rewrite struct {
	Resize Resize
	Family int  // 0, or the family that the network header changes to (4, 6): bpf_skb_change_proto first
	PopTag bool // the VLAN tag in the metadata goes away (bpf_skb_vlan_pop)
	// the outermost VLAN tag is in the frame, after the link-layer addresses, and goes away (bpf_skb_vlan_pop)
	PopInner bool
	L2       int // bytes of the link-layer headers in the frame that leaves: where the network header begins
	OldFront Off
	NewFront Off // Base is OldFront.Base or nil
	Encap    *Encap
	Unmoved  Off // unless InPlace: after the last header that came in front of all that is taken out or put in
	Payload  Expr
	Trim     bool // cut the tail off
	// so many headers are taken out that have a checksum: if a device has verified some, from the outermost one on
	// (CHECKSUM_UNNECESSARY), it has verified so many fewer of those that are left
	Summed   int
	Runs     []*FieldRun // where each part is in the new front
	Filled   []Filled    // before the stores
	Stores   []Store
	Sums     []*Sum
	Priority Expr // skb->priority, or nil
	Mark     Expr // skb->mark, or nil
	Pos      diag.Pos
}

func (w *Rewrite) parts(v *visitor) {
	v.bounds(w.OldFront, w.NewFront, w.Unmoved)
	v.exprs(w.Payload, w.Priority, w.Mark)
	if w.Encap != nil {
		v.exprs(w.Encap.Front)
	}
	for _, b := range w.Filled {
		v.bounds(b.At)
		v.exprs(b.Len)
	}
	for _, s := range w.Stores {
		v.bytes(s.Off, s.Size)
		v.reads(s.Width)
		v.exprs(s.Value, s.If)
	}
	for _, s := range w.Sums {
		v.bytes(s.Old, 2)
		v.bytes(s.New, 2)
		v.bounds(s.TailEnd)
		v.exprs(s.TailOdd, s.Swap)
		if s.Whole != nil {
			v.bounds(*s.Whole)
		}
		for t := range s.Terms() {
			v.term(t)
		}
	}
}

func (v *visitor) term(t Term) {
	v.exprs(t.Value, t.Len, t.OddIf)
	if t.Region {
		v.bytes(t.At, t.Max)
	}
}

// Encap says which tunnel's headers a rewrite puts in front of all that came. A GSO packet that has them leaves in one
// piece: the kernel repeats them in front of each segment when it cuts it, with lengths that fit, and an outer IPv4
// identification that counts up. Resize is MoveHeaders; room and Family are the kernel's business in one step then.
type Encap struct {
	Family   int  // of the IP header outside: 4 or 6
	UDP      bool // a UDP header without a checksum is after it; else the packet that came is
	Ethernet bool // an Ethernet header is in front of the packet that came
	Front    Expr // bytes in front of each segment's payload, from the outer IP header on
}

// Store writes one value at an offset of the packet that leaves. Uint values take Size 1, 2, 4 or 8 bytes (a cell holds
// whole bytes; bit fields that share bytes are already put together), bytes-like values take their own size; an Addr
// with Size 4 writes the last 4 bytes. Little: the integer is little endian.
type Store struct {
	Off    Off
	Size   int
	Little bool
	// the value is written as a QUIC variable-length integer of so many bytes (1, 2, 4, 8), which it fits; Size is 8.
	// Plain: as an unsigned integer of so many bytes, at most Size (1, 2, 4 or 8); the front has Size bytes before Off
	Width *Var
	Plain bool
	If    Expr // nothing is written if this doesn't hold; nil: it always is
	Value Expr
	Note  string // the fields in it, for a comment: "version ihl dscp ecn"
	Pos   diag.Pos
}

// Fill is what all bytes of a header become.
type Fill struct {
	Text string // in plans
	Done string // what was done to the header, in messages
}

// The fills.
var (
	Zeros = &Fill{Text: "zeros", Done: "blanked"}
)

// Filled gives Len bytes of the front that leaves, at most Max, from At on other values: a header of variable size,
// which stays where it is.
type Filled struct {
	With   *Fill
	At     Off
	Len    Expr
	Max    int
	Empty  bool // Len may be 0
	Header string
	Pos    diag.Pos
}

// Sum is an internet checksum (RFC 1071) that has to follow a rewrite.
//
// The payload's sum follows from the old checksum: payload = ~old - Old - OldPseudo - tail, its bytes swapped if
// Swap holds (its first byte moved from an even to an odd position of the covered bytes, or back). Then new = ~(payload
// + New + NewPseudo), all in ones' complement arithmetic. The canonical forms are: a result of FFFF is written as 0,
// except that an Optional checksum writes 0 as FFFF.
//
// A checksum that is partial (the fact Partial names its field, or, of a GSO packet, one that begins after it) holds
// only the pseudo-header's sum, not complemented: new = old + NewPseudo - OldPseudo. If the kernel doesn't say which
// one is, one may be that holds this sum.
type Sum struct {
	Name  string // "udp.checksum"
	Old   Off    // the field in the packet that came; Fresh: not used
	New   Off    // the field in the packet that leaves
	Fresh bool   // the header is new: new = ~(New + NewPseudo)
	// Fresh: it covers all of the packet that leaves from here on, at most MaxWhole bytes; what a device has yet to
	// complete counts as completed. If the kernel doesn't say what that is, the packet passes to the stack
	// (Forward.NoRoom). NewTerms are empty
	Whole    *Off
	Absent   bool // an old value of 0 means "no checksum" and stays
	Optional bool
	// may be partial. If the kernel doesn't say, and one at an odd offset seems to be, the packet passes to
	// the stack (Forward.NoRoom)
	Offloaded bool
	OldTerms  []Term
	NewTerms  []Term
	OldPseudo []Term
	NewPseudo []Term
	Tail      bool // the covered bytes went on after the payload up to TailEnd; those are cut off
	TailEnd   Off
	// Tail: holds if the payload's end is at an odd position of the covered bytes that came; nil: it is even
	TailOdd Expr
	TailMax int  // at most so many bytes of tail
	Swap    Expr // nil: never
	Pos     diag.Pos
}

// Terms are all terms of a checksum.
func (s *Sum) Terms() iter.Seq[Term] {
	return func(yield func(Term) bool) {
		for _, list := range [][]Term{s.OldTerms, s.NewTerms, s.OldPseudo, s.NewPseudo} {
			for _, t := range list {
				if !yield(t) {
					return
				}
			}
		}
	}
}

// Term is a summand of a checksum: a value of Size bytes at an even or odd position of the covered bytes, or (Region)
// the bytes of the packet that came from At, Len of them, at most Max, or (New) another checksum of the rewrite, one
// that is in front of this one in Rewrite.Sums, as it leaves: the field of a header whose checksum this one covers,
// too. If the position depends on the packet, OddIf holds if it is odd.
type Term struct {
	Value  Expr
	Size   int
	Odd    bool
	OddIf  Expr
	New    *Sum // its value when nothing is partial; Size is 2
	Region bool
	At     Off
	Len    Expr
	Max    int
}
