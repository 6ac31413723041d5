package runtime

import "strconv"

// Version is the version of the contract between generated packages and this one. Generated Go refuses to compile against
// another version.
const Version = 2

// Version2 exists as long as this package serves packages that were generated for version 2.
const Version2 = Version

// Desc describes a compiled relay to the runtime: what its object contains and how keys and values are laid out. It is
// generated from the plan, and never changed.
type Desc struct {
	Name     string
	Kernel   [2]int // major, minor: the oldest kernel that can load it
	Settings []SettingDesc
	Tables   []TableDesc
	Sessions []SessionDesc
	Programs []ProgramDesc
	Counters []string // named counters, by index
	Slots    int
	Usages   int
	Shared   int

	Levels       int // of priority; 0: none
	Groups       []GroupDesc
	Events       []EventDesc // by ID, from 1 on
	Receivers    int         // entries of fr_receivers
	Credits      int         // entries of fr_credits
	Translations int         // rows of fr_translate
	Ring         int         // bytes of fr_events
}

// Kind is the kind of a value in a setting, a key or a value.
type Kind uint8

// The Go type of a value of each kind is in parentheses. Integers are stored in host order, addresses as 16 bytes in
// network order (IPv4 mapped into IPv6).
const (
	KindUint        Kind = iota // uint64; Size 1, 2, 4 or 8 bytes
	KindBool                    // bool; 1 byte
	KindBytes                   // []byte of Size bytes
	KindMac                     // net.HardwareAddr; 6 bytes
	KindAddr                    // netip.Addr; 16 bytes
	KindEndpoint                // netip.AddrPort; 18 bytes: address, port in host order
	KindPrefix                  // netip.Prefix; 20 bytes: u32 length of the mapped prefix in host order, address
	KindNextHop                 // netip.Addr; 36 bytes: a hop, then the address
	KindHop                     // hidden; 20 bytes, see hop.go
	KindCounter                 // *Counter; u32 index into the shared counters, 0 for none
	KindCredit                  // *Credit or []*Credit (by priority); u32 index into the credits, 0 for none; Bits is how many
	KindBucket                  // *Bucket or []*Bucket; likewise
	KindTranslation             // *Translation; u32 namespace, 0 for none
)

// SettingDesc describes a setting. The object's variable is "set_" + Name.
type SettingDesc struct {
	Name     string
	Kind     Kind
	Size     int
	Bits     int
	Required bool // it has no default
	Default  any
	Min, Max uint64 // KindUint
}

// MemberDesc describes a member of a key or value.
type MemberDesc struct {
	Name   string
	Kind   Kind
	Bits   int // KindUint
	Size   int
	Off    int
	Hidden bool // filled in by the runtime: "slot", "gen" (KindUint of 4 bytes), hops
	To     int  // KindHop: index (in the same value) of the endpoint that the hop leads to
	From   int  // KindHop: index of the endpoint that packets come from; -1: none
}

// TableDesc describes a table. The object's map is "tbl_" + Name.
type TableDesc struct {
	Name      string
	Kind      string // "hash", "lru", "array", "lpm"
	PerCPU    bool
	Size      int
	Key       []MemberDesc
	KeySize   int
	Value     []MemberDesc
	ValueSize int
	Session   int // index into Desc.Sessions of the session whose rows these are; -1: a table of its own
}

// GroupDesc describes a kind of group. The object's maps are "grp_" + Name and "rcv_" + Name (docs/abi.md).
type GroupDesc struct {
	Name         string
	Key          []MemberDesc
	KeySize      int
	Receiver     []MemberDesc // of a receiver's row; hidden: "receiver" (its identity, KindUint of 4 bytes) and hops
	ReceiverSize int
	Max          int // receivers in one group
	Rows         int // receivers in all groups; the array of rows has Rows + Max
	Size         int // groups
	Base         int // the first identity of a receiver
}

// EventDesc describes an event.
type EventDesc struct {
	Name     string
	Fields   []MemberDesc // offsets count from the first byte of the record
	Size     int          // bytes of the record
	Required bool
}

// SessionDesc describes a kind of session.
type SessionDesc struct {
	Name     string
	Fields   []FieldDesc
	Rows     []RowDesc
	Size     int
	Lifetime int64 // nanoseconds; 0: none
	Idle     int64 // nanoseconds; 0: none
}

// FieldDesc describes a field of a session.
type FieldDesc struct {
	Name   string
	Kind   Kind
	Bits   int
	Size   int
	Ranges [][2]uint64 // KindUint: the values allowed, inclusive; empty: any that fit
}

// RowDesc says which fields of a session make the key and the value of one of its rows, in the order of the table's members
// that are not hidden.
type RowDesc struct {
	Table int
	Key   []int
	Value []int
}

// ProgramDesc describes a program. The object's program is "prog_" + Name.
type ProgramDesc struct {
	Name    string
	Hook    string // "tc/ingress", "tc/egress"
	L2      bool   // refuse devices without a link-layer header
	Base    int    // index of the first reason in the relay's array
	Reasons []ReasonDesc
}

// Reason returns the i-th reason, and one without a meaning for an i that is none.
func (d *ProgramDesc) Reason(i int) ReasonDesc {
	if i < 0 || i >= len(d.Reasons) {
		return ReasonDesc{Name: "reason(" + strconv.Itoa(i) + ")"}
	}
	return d.Reasons[i]
}

// ReasonDesc describes a reason: what becomes of the packets that it counts.
type ReasonDesc struct {
	Name string
	Kind string // "sent", "pass", "drop", "up", "fault", "copy", "declined"
	Doc  string
}
