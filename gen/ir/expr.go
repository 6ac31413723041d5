package ir

import (
	"net/netip"
	"slices"
)

// This file has the expressions.

// Const is an integer or a boolean.
type Const struct {
	V uint64
	T Type
}

func (e *Const) Type() Type     { return e.T }
func (e *Const) parts(*visitor) {}

// BytesConst is a constant byte string (an Addr, a Mac, Bytes).
type BytesConst struct {
	B []byte
	T Type
}

func (e *BytesConst) Type() Type     { return e.T }
func (e *BytesConst) parts(*visitor) {}

// Load reads an unsigned integer of Bits bits that starts Bit bits (0 to 7) after the byte at Off. Bits run from the
// most significant one of each byte. Little only with whole bytes.
type Load struct {
	Off    Off
	Bit    int
	Bits   int
	Little bool
	Field  string // "udp.length", for comments
}

func (e *Load) Type() Type       { return UintType(e.Bits) }
func (e *Load) parts(v *visitor) { v.bytes(e.Off, (e.Bit+e.Bits+7)/8) }

// LoadBytes reads N bytes. With T.Kind Addr, N is 4 (the result is the mapped address) or 16.
type LoadBytes struct {
	Off   Off
	N     int
	T     Type
	Field string
}

func (e *LoadBytes) Type() Type       { return e.T }
func (e *LoadBytes) parts(v *visitor) { v.bytes(e.Off, e.N) }

// VarRef reads a variable.
type VarRef struct{ Var *Var }

func (e *VarRef) Type() Type       { return e.Var.Type }
func (e *VarRef) parts(v *visitor) { v.reads(e.Var) }

// MetaKind is a fact about the packet that is not in its bytes, or about the relay.
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
	// Partial says where a checksum is left to a device (CHECKSUM_PARTIAL): the offset of the first byte that it
	// covers, times 65536, plus that of its field; 0 if none is, or the kernel doesn't say.
	Partial
	// Encapsulated holds if the segments of a GSO packet begin with a tunnel's headers, which the kernel repeats in
	// front of each (SKB_GSO_ENCAP_ALL). If the kernel doesn't say, it doesn't hold.
	Encapsulated
	// SegmentFront is, of a GSO packet that the kernel can cut up with a tunnel's headers in front (Encap): where the
	// payload of its first segment begins. 0 of all others, and if the kernel doesn't say.
	SegmentFront
)

// Whom a frame is addressed to, as Linux numbers it (include/uapi/linux/if_packet.h).
const (
	ToHost      = 0 // this host: the device's own address
	ToBroadcast = 1
	ToMulticast = 2
	ToOther     = 3 // another host
)

// Fact is what there is to know about a kind of fact, but for where the model and C have one about the packet.
type Fact struct {
	Text string // in plans; of one about the relay also in C, where fr_TEXT reads it
	Type Type
	Word string // in expressions; for a fact about the relay it is also a condition of tests (spec.Conditions)
	Not  bool   // the word says that the fact doesn't hold
}

// Facts are all of them.
var Facts = [...]Fact{
	FrameLen: {Text: "frame_len", Type: UintType(32), Word: "skb.len"},
	VLANTag:  {Text: "vlan_tag", Type: BoolType}, VLANTCI: {Text: "vlan_tci", Type: UintType(16)},
	VLANProto: {Text: "vlan_proto", Type: UintType(16)}, GSOSize: {Text: "gso_size", Type: UintType(32)},
	SKBMark:   {Text: "skb_mark", Type: UintType(32), Word: "skb.mark"},
	SKBPrio:   {Text: "skb_priority", Type: UintType(32), Word: "skb.priority"},
	LinkProto: {Text: "link_proto", Type: UintType(16)}, LinkType: {Text: "link_type", Type: UintType(32)},
	LeaseValid: {Text: "lease_valid", Type: BoolType, Word: "lapsed", Not: true},
	Partial:    {Text: "partial", Type: UintType(32)}, Encapsulated: {Text: "encapsulated", Type: BoolType},
	SegmentFront: {Text: "segment_front", Type: UintType(32)},
}

// Asked reads the fact that an expression's word asks for; nil if there is none.
func Asked(word string) Expr {
	k := slices.IndexFunc(Facts[:], func(f Fact) bool { return f.Word == word })
	switch {
	case k < 0:
		return nil
	case Facts[k].Not:
		return &Not{X: &Meta{MetaKind(k)}}
	}
	return &Meta{MetaKind(k)}
}

// Meta reads a fact about the packet or the relay.
type Meta struct{ Kind MetaKind }

func (e *Meta) Type() Type     { return Facts[e.Kind].Type }
func (e *Meta) parts(*visitor) {}

// SettingRef reads a setting.
type SettingRef struct{ Setting *Setting }

func (e *SettingRef) Type() Type     { return e.Setting.Type }
func (e *SettingRef) parts(*visitor) {}

// RowHas holds if a lookup found a row.
type RowHas struct{ Row *Row }

func (e *RowHas) Type() Type     { return BoolType }
func (e *RowHas) parts(*visitor) {}

// RowMember reads a member of a row's value; the row is known to be there. Atomic members are read once. Of one that
// has a value for each level of priority it reads that of Level, which is below their number.
type RowMember struct {
	Row       *Row
	Member    *Member
	Component Component
	Level     Expr // nil if the member has a single value
}

func (e *RowMember) Type() Type {
	switch e.Component {
	case AddrOf:
		return AddrType
	case PortOf:
		return UintType(16)
	}
	return e.Member.Type.One()
}

func (e *RowMember) parts(v *visitor) { v.exprs(e.Level) }

// CounterValue reads the shared counter whose index is in a member of a row (0 if there is none).
type CounterValue struct {
	Row    *Row
	Member *Member
}

func (e *CounterValue) Type() Type     { return UintType(64) }
func (e *CounterValue) parts(*visitor) {}

// BinOp is an operator on integers (and on booleans, for Land and Lor, which evaluate their right side only when
// needed).
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

func (e *Bin) Type() Type {
	if e.Op >= Eq {
		return BoolType
	}
	return UintType(64)
}

func (e *Bin) parts(v *visitor) { v.exprs(e.X, e.Y) }

// Not is !X for a boolean.
type Not struct{ X Expr }

func (e *Not) Type() Type       { return BoolType }
func (e *Not) parts(v *visitor) { v.exprs(e.X) }

// BytesEq compares two byte strings of one size.
type BytesEq struct{ X, Y Expr }

func (e *BytesEq) Type() Type       { return BoolType }
func (e *BytesEq) parts(v *visitor) { v.exprs(e.X, e.Y) }

// InPrefix holds if an Addr lies in a prefix (given for mapped addresses: an IPv4 /8 is a /104).
type InPrefix struct {
	X      Expr
	Prefix netip.Prefix // of the 16-byte form
}

func (e *InPrefix) Type() Type       { return BoolType }
func (e *InPrefix) parts(v *visitor) { v.exprs(e.X) }

// IsV4 holds if an Addr is a mapped IPv4 address.
type IsV4 struct{ X Expr }

func (e *IsV4) Type() Type       { return BoolType }
func (e *IsV4) parts(v *visitor) { v.exprs(e.X) }

// Unicast holds if an Addr may be a single host's, another one's than this: it is not unspecified (of IPv4 the whole
// of 0.0.0.0/8), not loopback, and no Multicast. A mapped address is an IPv4 one.
type Unicast struct{ X Expr }

func (e *Unicast) Type() Type       { return BoolType }
func (e *Unicast) parts(v *visitor) { v.exprs(e.X) }

// Multicast holds if an Addr is a multicast group's, or 255.255.255.255.
type Multicast struct{ X Expr }

func (e *Multicast) Type() Type       { return BoolType }
func (e *Multicast) parts(v *visitor) { v.exprs(e.X) }

// ByteAt is one byte of a byte string, Index constant and in range.
type ByteAt struct {
	X     Expr
	Index int
}

func (e *ByteAt) Type() Type       { return UintType(8) }
func (e *ByteAt) parts(v *visitor) { v.exprs(e.X) }

// SumOK holds if the internet checksum over Len bytes of the packet that came, from Off on, is right (the sum is
// FFFF). With Size it is over so many, at most Len.
//
// With Whole it is over a datagram: Pseudo counts as well, and what a device has yet to complete inside of it counts as
// completed. It doesn't hold for more than MaxWhole bytes.
type SumOK struct {
	Off    Off
	Len    int
	Size   Expr // nil: Len
	Whole  bool
	Pseudo []Term
}

// MaxWhole is how many bytes of a packet are summed up at most.
const MaxWhole = 16384

// Type implements Expr.
func (e *SumOK) Type() Type { return BoolType }

func (e *SumOK) parts(v *visitor) {
	if e.Size == nil {
		v.bytes(e.Off, e.Len)
		return
	}
	v.bounds(e.Off)
	v.exprs(e.Size)
	for _, t := range e.Pseudo {
		v.term(t)
	}
}

// PseudoSum is the sum of a pseudo-header's terms, folded to 16 bits: what the field of a checksum holds that is left
// to a device (CHECKSUM_PARTIAL).
type PseudoSum struct{ Terms []Term }

// Type implements Expr.
func (e *PseudoSum) Type() Type { return UintType(16) }

func (e *PseudoSum) parts(v *visitor) {
	for _, t := range e.Terms {
		v.term(t)
	}
}

// Pick is Then when If holds, else Else: integers, conditions, or byte strings of one type. Only the one that is
// chosen is evaluated.
type Pick struct{ If, Then, Else Expr }

// Type is the wider one of the two types.
func (e *Pick) Type() Type {
	t, f := e.Then.Type(), e.Else.Type()
	if f.Bits > t.Bits {
		return f
	}
	return t
}

func (e *Pick) parts(v *visitor) { v.exprs(e.If, e.Then, e.Else) }

// Word is X as a QUIC variable-length integer of Width bytes, or (Plain) as an unsigned integer of so many, 0 to 8: as
// the upper bytes of a 64-bit integer whose other bits are 0. This is what it adds to a checksum.
type Word struct {
	X     Expr
	Width *Var
	Plain bool
}

func (e *Word) Type() Type       { return UintType(64) }
func (e *Word) parts(v *visitor) { v.reads(e.Width); v.exprs(e.X) }

// Room is the largest integer that a QUIC variable-length integer of Width bytes, or (Plain) an unsigned integer of so
// many, 0 to 8, has room for.
type Room struct {
	Width *Var
	Plain bool
}

func (e *Room) Type() Type       { return UintType(64) }
func (e *Room) parts(v *visitor) { v.reads(e.Width) }
