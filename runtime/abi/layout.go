package abi

// Sizes of values and offsets of members, in bytes. Each block is a structure of templates/*.h, and a row of [Structs].

// fr_endpoint: an address and a port.
const (
	AddrSize     = 16
	MACSize      = 6
	EndpointPort = 16 // u16
	EndpointSize = 18
)

// fr_prefix: the key of an LPM table.
const (
	PrefixLen  = 0 // u32, bits of the mapped address: an IPv4 /24 is 120
	PrefixAddr = 4
	PrefixSize = 20
)

// fr_hop: how packets leave towards an address.
const (
	HopIfindex = 0 // u32
	HopMTU     = 4 // u16; more than 65535 is 65535
	HopAt      = 6 // u8, a HopState
	HopDst     = 8 // link-layer addresses, as they go into the frame
	HopSrc     = 14
	HopSize    = 20
)

// fr_next_hop: a hop, and the address of the router that it leads to.
const (
	NextHopAddr = HopSize
	NextHopSize = HopSize + AddrSize
)

// IndexSize is the size of a member that refers to a counter, a credit, a bucket or a translation.
const IndexSize = 4

// fr_lease.
const (
	LeaseDeadline = 0  // u64, jiffies, which user space writes
	LeaseNow      = 8  // u64, jiffies, which fr_clock writes
	LeaseChanges  = 16 // u64, which goes up before user space replaces or deletes a row
	LeaseStoring  = 24 // u64, which goes up before and after user space writes an entry of an array: odd in between
	LeasePolicy   = 32 // u64, what route lookups in the kernel don't see: PolicyXfrm and PolicyRules
	LeaseSize     = 40
)

// Bits of LeasePolicy, for IPv4; those of IPv6 are one further to the left.
const (
	PolicyXfrm  = 1 << 0 // an xfrm policy may be for packets that leave
	PolicyRules = 1 << 2 // a routing rule asks for a protocol or for ports
)

// fr_reason.
const (
	ReasonPackets = 0 // u64
	ReasonBytes   = 8 // u64
	ReasonSize    = 16
)

// fr_slot.
const (
	SlotDeadline = 0  // u64, jiffies
	SlotGen      = 8  // u32; 0: the slot is free
	SlotLast     = 12 // u32, the last generation that the slot had: user space's alone
	SlotSize     = 16
)

// fr_usage: of a session.
const (
	UsageLast = 0 // u64, jiffies
	UsageRows = 8 // a struct fr_reason for each row
)

// fr_receiver: usage of a receiver.
const (
	ReceiverPackets  = 0  // u64, copies sent
	ReceiverBytes    = 8  // u64, their bytes
	ReceiverDeclined = 16 // u64, packets without a copy
	ReceiverFailed   = 24 // u64, those among them whose clone the kernel refused
	ReceiverSize     = 32
)

// fr_credit.
const (
	CreditLimit   = 0  // u64; of a bucket: units a second
	CreditSpent   = 8  // u64; of a bucket: nanoseconds of the monotonic clock
	CreditBurst   = 16 // u64; of a bucket alone
	CreditRefused = 24 // u64 for each level of priority

	CreditTries = 16 // attempts of a compare and swap, on both sides
)

// fr_translation_key and fr_translation.
const (
	TranslationKeyNumber = 0 // u64
	TranslationKeySpace  = 8 // u32
	TranslationKeySize   = 16

	TranslationValue = 0 // u64
	TranslationDone  = 8 // u64; 0: the value is being made
	TranslationSize  = 16
)

// fr_event: the header of a record.
const (
	EventTime     = 0  // u64, nanoseconds of the monotonic clock when the packet was sent
	EventReceiver = 8  // u32, the identity of the receiver; 0: none
	EventID       = 12 // u16, from 1 on
	EventSize     = 14 // u16, of the record: with less of the packet than fits, less than it takes in the ring
	EventHeader   = 16 // bytes
)

// ListSize is the size of the list of a group of at most n receivers: u32 count, then n times u32 index of a row.
func ListSize(n int) int { return ListRows + 4*n }

// ListRows is the offset of the first index in a list.
const ListRows = 4

// CreditSize is the size of a credit with a number of levels of priority.
func CreditSize(levels int) int { return CreditRefused + 8*max(levels, 1) }

// UsageSize is the size of the usage of a session with a number of rows.
func UsageSize(rows int) int { return UsageRows + ReasonSize*rows }

// Struct is a structure in C that user space reads or writes.
type Struct struct {
	Name    string
	Size    int // with one element, if the last member is an array
	Members []StructMember
	About   string
}

// StructMember is a member of a structure. Padding has the name "pad".
type StructMember struct {
	Name string
	Type string // of C, without its underscores: "u64", "u8[6]"
	Off  int
	Doc  string
}

// Structs are all structures that both sides know. Those of keys, values and records are a relay's own; see [Desc].
func Structs() []Struct { return append(memberStructs(), entryStructs()...) }

// memberStructs are the structures that keys and values of rows have members of.
func memberStructs() []Struct {
	return []Struct{
		{Name: "fr_endpoint", Size: EndpointSize, About: "an address and a port, at multiples of 2",
			Members: []StructMember{
				{"addr", "u8[16]", 0, "network order; IPv4 is mapped into IPv6"},
				{"port", "u16", EndpointPort, "host order"},
			}},
		{Name: "fr_prefix", Size: PrefixSize, About: "the key of an LPM table", Members: []StructMember{
			{"len", "u32", PrefixLen, "bits of the mapped address: an IPv4 /24 is 120"},
			{"addr", "u8[16]", PrefixAddr, ""},
		}},
		{Name: "fr_hop", Size: HopSize, About: "how packets leave towards an address", Members: []StructMember{
			{"ifindex", "u32", HopIfindex, ""},
			{"mtu", "u16", HopMTU, "of the device, route or path; more than 65535 is 65535"},
			{
				"state", "u8", HopAt,
				"0 none, 1 direct, 2 neighbour, 3 local, 4 unreachable, 5 blackhole, 6 prohibit, 7 xfrm, 8 rule",
			},
			{"pad", "u8", 7, ""},
			{"dst", "u8[6]", HopDst, "link-layer addresses, as they go into the frame"}, {"src", "u8[6]", HopSrc, ""},
		}},
		{Name: "fr_next_hop", Size: NextHopSize, About: "a hop, and the address of the router that it leads to",
			Members: []StructMember{
				{"hop", "struct fr_hop", 0, ""}, {"addr", "u8[16]", NextHopAddr, ""},
			}},
	}
}

// entryStructs are the entries of maps, and the header of the records in the ring.
func entryStructs() []Struct {
	return []Struct{
		{Name: "fr_lease", Size: LeaseSize, About: "`" + MapLease + "`", Members: []StructMember{
			{
				"deadline", "u64", LeaseDeadline,
				"jiffies; user space writes it. A packet that comes at `bpf_jiffies64() >= deadline` is punted under " +
					"`inactive`",
			},
			{"now", "u64", LeaseNow, "jiffies; running `" + ClockProgram + "` (`BPF_PROG_TEST_RUN`) writes it"},
			{"changes", "u64", LeaseChanges, "user space adds 1 before it replaces or deletes a row of a table"},
			{
				"storing", "u64", LeaseStoring, "user space adds 1 before and after it writes an entry of an array; " +
					"one such operation at a time",
			},
			{
				"policy", "u64", LeasePolicy,
				"what route lookups in the kernel don't see: bit 0 (IPv4) and 1 (IPv6): an xfrm policy may be for " +
					"packets that leave; bit 2 and 3: a routing rule asks for a protocol or for ports",
			},
		}},
		{Name: "fr_reason", Size: ReasonSize, About: "an entry of `" + MapReasons + "`", Members: []StructMember{
			{"packets", "u64", ReasonPackets, ""},
			{
				"bytes", "u64", ReasonBytes,
				"of the frame as it came, `skb->len`; for a receiver in a fan-out without those after the IP datagram",
			},
		}},
		{Name: "fr_slot", Size: SlotSize, About: "an entry of `" + MapSlots + "`. A row of a session counts only " +
			"where its `gen` is the slot's and `bpf_jiffies64() < deadline`",
			Members: []StructMember{
				{"deadline", "u64", SlotDeadline, "jiffies"}, {"gen", "u32", SlotGen, "0: the slot is free"},
				{"pad", "u32", SlotLast, "the last generation that the slot had; user space's alone"},
			}},
		{Name: "fr_usage", Size: UsageSize(1), About: "an entry of `" + MapUsage + "`", Members: []StructMember{
			{"last", "u64", UsageLast, "jiffies of the last packet"},
			{"rows", "struct fr_reason[]", UsageRows, "one for each row of the session, in order"},
		}},
		{Name: "fr_receiver", Size: ReceiverSize, About: "an entry of `" + MapReceivers + "`", Members: []StructMember{
			{"packets", "u64", ReceiverPackets, "copies sent"},
			{"bytes", "u64", ReceiverBytes, "their bytes (`skb->len`)"},
			{"declined", "u64", ReceiverDeclined, "packets without a copy"},
			{"failed", "u64", ReceiverFailed, "those among them whose clone the kernel refused"},
		}},
		{Name: "fr_credit", Size: CreditSize(1), About: "an entry of `" + MapCredits + "`", Members: []StructMember{
			{"limit", "u64", CreditLimit, "of a credit that refills: the rate in units a second"},
			{
				"spent", "u64", CreditSpent, "of a credit that refills: the time in nanoseconds (`CLOCK_MONOTONIC`) " +
					"up to which it is spent",
			},
			{"burst", "u64", CreditBurst, "of a credit that refills alone"},
			{"refused", "u64[]", CreditRefused, "packets, for each level of priority; at least 1 level"},
		}},
		{Name: "fr_translation_key", Size: TranslationKeySize, About: "a key of `" + MapTranslate + "`",
			Members: []StructMember{
				{"key", "u64", TranslationKeyNumber, ""}, {"space", "u32", TranslationKeySpace, "the namespace"},
				{"pad", "u32", 12, ""},
			}},
		{Name: "fr_translation", Size: TranslationSize, About: "a value of `" + MapTranslate + "`",
			Members: []StructMember{
				{"value", "u64", TranslationValue, ""}, {"done", "u64", TranslationDone, "0: the value is being made"},
			}},
		{Name: "fr_event", Size: EventHeader, About: "the header of a record; its fields follow, laid out like a row",
			Members: []StructMember{
				{"time", "u64", EventTime, "the monotonic clock in nanoseconds when the packet was sent"},
				{"receiver", "u32", EventReceiver, "the identity of the receiver; 0: none"},
				{"id", "u16", EventID, "of the event, from 1 on"},
				{"size", "u16", EventSize, "of the record, which may take more room in the ring"},
			}},
	}
}

// Devices is how many devices programs at XDP know: those that frames come in by, and those that they leave by.
const Devices = 256
