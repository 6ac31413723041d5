package ir

import (
	"encoding/hex"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/fastrelay/fastrelay-gen/runtime/abi"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/literal"
)

// This file has the types of the language: a row for each kind, with its word in specs, its place in tables, what Go
// and C call it, and how its values are written. Whoever needs a fact about a type takes it from here.

// Kind is the kind of a type.
type Kind int

const (
	Uint        Kind = iota // Bits wide
	Bool                    // 0 or 1
	Bytes                   // Size bytes
	Mac                     // 6 bytes
	Addr                    // 16 bytes, IPv4 mapped
	Endpoint                // an Addr and a port: struct fr_endpoint
	Prefix                  // key of an LPM table: struct fr_prefix
	NextHop                 // struct fr_next_hop: a struct fr_hop and the Addr of a next hop
	Hop                     // struct fr_hop: how a packet leaves; filled in by user space, hidden
	Ctr                     // u32 index of a shared counter; 0 is none
	Credit                  // u32 index of a credit, or of the first of one for each level of priority; 0 is none
	Bucket                  // likewise, of credits that refill by time
	Translation             // u32 namespace in the table of translations; 0 is none
	Data                    // up to Size bytes of the packet, at the end of a record
	Kinds                   // how many there are
)

// Type is the type of a value. Size is in bytes, as stored in tables: of all values if there is one for each level
// of priority, except that credits and buckets have one index for all.
type Type struct {
	Kind   Kind
	Bits   int // Uint: width; Bool: 1
	Size   int
	Levels int // how many values there are, one for each level of priority; 0: a single one, without levels
}

// Place is where a value may be declared.
type Place int

const (
	InSetting  Place = 1 << iota
	InKey            // of a table that isn't an lpm table, of a group
	InPrefixes       // the key of an lpm table
	InValue          // of a table's row, of a receiver
	InSession
	InEvent
)

const anywhere = InKey | InValue | InSession | InEvent

// kind is what there is to know about a kind of type.
type kind struct {
	word   string // in specs; after "u", "bytes" and "data" follows a number; "" if a spec can't say it
	levels bool   // there may be one for each level of priority
	what   string // in messages
	such   string // a value, in messages
	size   int    // in tables; 0: it is in the type
	align  int    // in tables; 0: its size
	in     Place
	bytes  bool     // values are byte strings, not integers
	abi    abi.Kind // what the runtime calls it; from this it follows whether it is an index
	c      string   // in C; "" if it is an integer or an array of its size
	golang string   // in the generated package; "" if its size is part of the name
	parse  func(text string, size int) ([]byte, error)
	show   func(b []byte) string
}

// addrSize is that of an Addr.
const addrSize = 16

var kinds = [Kinds]kind{
	Uint: {
		word: "u", levels: true, what: "an integer", in: anywhere | InSetting, abi: abi.KindUint, show: showUint,
	},
	Bool: {
		word: "bool", levels: true, what: "a condition", size: 1, in: anywhere | InSetting, abi: abi.KindBool,
		golang: "bool", show: func(b []byte) string { return strconv.FormatBool(b[0] != 0) },
	},
	Bytes: {
		word: "bytes", levels: true, align: 2, in: anywhere, abi: abi.KindBytes, bytes: true, parse: literal.Bytes,
		show: hex.EncodeToString,
	},
	Mac: {
		word: "mac", levels: true, what: "a link-layer address", such: "02:00:00:00:00:01", size: 6, align: 2,
		in:  anywhere | InSetting,
		abi: abi.KindMAC, bytes: true, golang: "net.HardwareAddr",
		parse: func(s string, _ int) ([]byte, error) { m, err := literal.Mac(s); return m, err },
		show:  func(b []byte) string { return net.HardwareAddr(b).String() },
	},
	Addr: {
		word: "ip", levels: true, what: "an IP address", such: "192.0.2.1", size: addrSize, align: 2,
		in:  anywhere | InSetting,
		abi: abi.KindAddr, bytes: true, golang: "netip.Addr",
		parse: parseAddr, show: func(b []byte) string { return addr(b).String() },
	},
	Endpoint: {
		word: "endpoint", levels: true, what: "an endpoint (address and port)", such: "192.0.2.1:3478",
		size: abi.EndpointSize, align: 2,
		in: anywhere, abi: abi.KindEndpoint, bytes: true, c: "struct fr_endpoint", golang: "netip.AddrPort",
		parse: parseEndpoint, show: showEndpoint,
	},
	Prefix: {
		word: "prefix", what: "a prefix", such: "192.0.2.0/24", size: abi.PrefixSize, align: 4, in: InPrefixes,
		abi: abi.KindPrefix, bytes: true, c: "struct fr_prefix", golang: "netip.Prefix", parse: parsePrefix,
		show: showPrefix,
	},
	NextHop: {
		word: "next_hop", what: "a next hop", such: "192.0.2.1", size: abi.NextHopSize, align: 4, in: InValue,
		abi: abi.KindNextHop, bytes: true, c: "struct fr_next_hop", golang: "netip.Addr",
		parse: func(s string, _ int) ([]byte, error) { // user space finds the hop to it
			b, err := parseAddr(s, addrSize)
			return append(make([]byte, abi.HopSize), b...), err
		},
		show: func(b []byte) string { return addr(b[abi.NextHopAddr:]).String() },
	},
	Hop: {
		what: "a hop", size: abi.HopSize, align: 4, abi: abi.KindHop, bytes: true, c: "struct fr_hop",
		show: hex.EncodeToString,
	},
	Ctr: {
		word: "counter", what: "a counter", size: 4, in: InValue | InSession,
		abi: abi.KindCounter, c: "__u32", golang: "*runtime.Counter", show: showUint,
	},
	Credit: {
		word: "credit", levels: true, what: "a credit", size: 4, in: InValue | InSession,
		abi: abi.KindCredit, c: "__u32", golang: "*runtime.Credit", show: showUint,
	},
	Bucket: {
		word: "bucket", levels: true, what: "a credit", size: 4, in: InValue | InSession,
		abi: abi.KindBucket, c: "__u32", golang: "*runtime.Bucket", show: showUint,
	},
	Translation: {
		word: "translation", what: "a translation", size: 4, in: InValue,
		abi: abi.KindTranslation, c: "__u32", golang: "*runtime.Translation", show: showUint,
	},
	Data: {
		word: "data", what: "bytes of the packet", align: 1, in: InEvent, abi: abi.KindData, bytes: true,
		golang: "[]byte", parse: literal.UpTo, show: hex.EncodeToString,
	},
}

// The types of which there is one each.
var (
	BoolType     = KindType(Bool)
	MacType      = KindType(Mac)
	AddrType     = KindType(Addr)
	EndpointType = KindType(Endpoint)
	HopType      = KindType(Hop)
)

// KindType is the type of a kind that has one.
func KindType(k Kind) Type {
	t := Type{Kind: k, Size: kinds[k].size}
	if k == Bool {
		t.Bits = 1
	}
	return t
}

// PerLevel is the type of a value of type t for each of so many levels of priority. ok is false if there can't be.
func (t Type) PerLevel(levels int) (all Type, ok bool) {
	if !kinds[t.Kind].levels || t.Levels > 0 {
		return Type{}, false
	}
	if t.Levels = levels; !t.Kind.IsIndex() {
		t.Size *= levels
	}
	return t, true
}

// One is the type of the value for one level.
func (t Type) One() Type {
	if t.Levels > 0 && !t.Kind.IsIndex() {
		t.Size /= t.Levels
	}
	t.Levels = 0
	return t
}

// Count is how many values there are.
func (t Type) Count() int { return max(t.Levels, 1) }

// UintType returns the type of an unsigned integer of so many bits. In tables it takes the next of 1, 2, 4, 8 bytes.
func UintType(bits int) Type {
	size := 8
	switch {
	case bits <= 8:
		size = 1
	case bits <= 16:
		size = 2
	case bits <= 32:
		size = 4
	}
	return Type{Kind: Uint, Bits: bits, Size: size}
}

// MaxData is the largest Size of Data: a jumbo frame.
const MaxData = 9216

// most is the largest number after the word for a type; 0: none follows.
func (k Kind) most() int {
	switch k {
	case Uint, Bytes:
		return 64
	case Data:
		return MaxData
	}
	return 0
}

// Words are the words for types, without those that a number follows (u1 to u64, bytes1 to bytes64, data1 to data9216),
// and without those of which there is one for each level of priority.
func Words() (words []string) {
	for k, row := range kinds {
		if row.word != "" && Kind(k).most() == 0 {
			words = append(words, row.word)
		}
	}
	return words
}

// LevelsWord follows the word for a type if there is a value for each level of priority.
const LevelsWord = "[priority]"

// WordType is the type that a word stands for, without LevelsWord.
func WordType(word string) (t Type, ok bool) {
	for k, row := range kinds {
		switch {
		case word == "":
		case Kind(k).most() > 0:
			n, err := strconv.Atoi(strings.TrimPrefix(word, row.word))
			if err != nil || word != row.word+strconv.Itoa(n) || n < 1 || n > Kind(k).most() {
				continue
			}
			if Kind(k) == Uint {
				return UintType(n), true
			}
			return Type{Kind: Kind(k), Size: n}, true
		case word == row.word:
			return KindType(Kind(k)), true
		}
	}
	return Type{}, false
}

// Word is the word for a type in specs; "hop" for that of hidden members.
func (t Type) Word() string {
	switch row := kinds[t.Kind]; {
	case t.Levels > 0:
		return t.One().Word() + LevelsWord
	case t.Kind == Uint:
		return row.word + strconv.Itoa(t.Bits)
	case t.Kind == Bytes || t.Kind == Data:
		return row.word + strconv.Itoa(t.Size)
	case t.Kind == Hop:
		return "hop"
	default:
		return row.word
	}
}

// What says in messages what a value is.
func (t Type) What() string {
	switch what := kinds[t.Kind].what; {
	case t.Levels > 0:
		return t.One().What() + " for each level of priority"
	case what != "":
		return what
	case t.Size == 0:
		return "bytes of variable length"
	}
	return fmt.Sprintf("%d bytes", t.Size)
}

// Example is a value as a spec has it, "" if there is none that all could read.
func (t Type) Example() string { return kinds[t.Kind].such }

// Align is the alignment in tables.
func (t Type) Align() int {
	if a := kinds[t.Kind].align; a > 0 {
		return a
	}
	return t.One().Size
}

// In reports whether values of a type may be declared in a place. Values for each level of priority are in rows alone.
func (t Type) In(p Place) bool {
	return kinds[t.Kind].in&p != 0 && (t.Levels == 0 || p == InValue || p == InSession)
}

// IsBytes reports whether values are byte strings, not integers.
func (t Type) IsBytes() bool { return kinds[t.Kind].bytes }

// IsIndex reports whether values are indices of what kernel and user space share: counters, credits, translations.
func (k Kind) IsIndex() bool { return kinds[k].abi.IsState() }

// Plain reports whether a value is a byte string of one piece: bytes, an address.
func (t Type) Plain() bool { return t.IsBytes() && kinds[t.Kind].c == "" }

// ABI is what the runtime calls the kind.
func (k Kind) ABI() abi.Kind { return kinds[k].abi }

// C is the type's name in C, or "" if it is an integer or an array of its size.
func (t Type) C() string { return kinds[t.Kind].c }

// Go is the type's name in the generated package, the narrowest one for integers.
func (t Type) Go() string {
	switch {
	case t.Levels > 0:
		return fmt.Sprintf("[%d]%s", t.Levels, t.One().Go())
	case t.Kind == Uint:
		return "uint" + strconv.Itoa(8*t.Size)
	case t.Kind == Bytes:
		return fmt.Sprintf("[%d]byte", t.Size)
	}
	return kinds[t.Kind].golang
}

// Uint is an integer (or an index) in the layout of a table: little endian.
func (t Type) Uint(v uint64) ([]byte, error) {
	bits := t.Bits
	if t.Kind.IsIndex() {
		bits = 8 * t.Size
	}
	if bits < 64 && v>>bits != 0 {
		return nil, fmt.Errorf("%d doesn't fit into %d bits", v, bits)
	}
	return abi.Order.AppendUint64(nil, v)[:t.Size], nil
}

// HasText reports whether values are written as strings; Parse knows them.
func (t Type) HasText() bool { return kinds[t.Kind].parse != nil }

// Parse lays a value that is written as a string out as tables have it.
func (t Type) Parse(text string) ([]byte, error) {
	if !t.HasText() {
		return nil, fmt.Errorf("%q is not %s", text, t.What())
	}
	return kinds[t.Kind].parse(text, t.Size)
}

// Show is the inverse of Parse, and of Uint: a value as a person would write it, or a list of one for each level.
func (t Type) Show(b []byte) string {
	if t.Levels == 0 || t.Kind.IsIndex() {
		return kinds[t.Kind].show(b)
	}
	one, values := t.One(), []string{}
	for value := range slices.Chunk(b, one.Size) {
		values = append(values, one.Show(value))
	}
	return "[" + strings.Join(values, ", ") + "]"
}

func addr(b []byte) netip.Addr { return netip.AddrFrom16([16]byte(b)).Unmap() }

func parseAddr(text string, _ int) ([]byte, error) {
	a, err := literal.Addr(text)
	if err != nil {
		return nil, err
	}
	b := a.As16()
	return b[:], nil
}

func parseEndpoint(text string, _ int) ([]byte, error) {
	ap, err := literal.Endpoint(text)
	if err != nil {
		return nil, err
	}
	b := ap.Addr().As16()
	return abi.Order.AppendUint16(b[:], ap.Port()), nil
}

func showEndpoint(b []byte) string {
	return netip.AddrPortFrom(addr(b), abi.Order.Uint16(b[abi.EndpointPort:])).String()
}

func parsePrefix(text string, _ int) ([]byte, error) {
	p, err := literal.Prefix(text)
	if err != nil {
		return nil, err
	}
	p = literal.Mapped(p)
	b := p.Addr().As16()
	return append(abi.Order.AppendUint32(nil, uint32(p.Bits())), b[:]...), nil
}

func showPrefix(b []byte) string {
	length, a := int(abi.Order.Uint32(b)), netip.AddrFrom16([16]byte(b[abi.PrefixAddr:]))
	if a.Is4In6() && length >= 96 {
		return netip.PrefixFrom(a.Unmap(), length-96).String()
	}
	return netip.PrefixFrom(a, length).String()
}

func showUint(b []byte) string {
	var v uint64
	for i, x := range b {
		v |= uint64(x) << (8 * i)
	}
	return strconv.FormatUint(v, 10)
}
