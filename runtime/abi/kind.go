package abi

import (
	"fmt"
	"slices"
)

// Kind is the kind of a value in a setting, a key or a value. The zero Kind is none.
type Kind uint8

// The Go type of a value of each kind is in parentheses; if there is a value for each level of priority, it is a
// slice: []*runtime.Credit, []*runtime.Bucket, []any of all others. Integers are stored in host order, addresses as
// 16 bytes in network order (IPv4 mapped into IPv6).
const (
	KindUint        Kind = iota + 1 // uint64; Size 1, 2, 4 or 8 bytes
	KindBool                        // bool; 1 byte
	KindBytes                       // []byte of Size bytes
	KindMAC                         // net.HardwareAddr
	KindAddr                        // netip.Addr
	KindEndpoint                    // netip.AddrPort; see EndpointSize
	KindPrefix                      // netip.Prefix; see PrefixSize
	KindNextHop                     // netip.Addr; see NextHopSize
	KindHop                         // hidden; see HopSize
	KindCounter                     // *runtime.Counter; index into the shared counters, 0 for none
	KindCredit                      // *runtime.Credit; index into the credits, 0 for none
	KindBucket                      // *runtime.Bucket; likewise
	KindTranslation                 // *runtime.Translation; namespace, 0 for none
	KindData                        // []byte, Size at most: the end of an event's record, as long as that says
)

var kindNames = []string{
	"", "uint", "bool", "bytes", "mac", "ip", "endpoint", "prefix", "next_hop", "hop", "counter", "credit", "bucket",
	"translation", "data",
}

// IsState reports whether a row holds an index alone, of something in shared memory that user space allocates with the
// row.
func (k Kind) IsState() bool {
	return k == KindCounter || k == KindCredit || k == KindBucket || k == KindTranslation
}

// TableKind is the kind of a table. The zero TableKind is none.
type TableKind uint8

// Kinds of tables.
const (
	TableHash  TableKind = iota + 1
	TableLRU             // a hash table that forgets the rows used least recently
	TableArray           // its key is an index
	TableLPM             // its key is a prefix, the longest of which counts
)

var tableNames = []string{"", "hash", "lru", "array", "lpm"}

// ReasonKind is what happens to the packets that a reason counts. The zero ReasonKind is none.
type ReasonKind uint8

// Kinds of reasons.
const (
	ReasonSent    ReasonKind = iota + 1 // rewritten and sent
	ReasonPassed                        // the spec passes it to the stack, changed if a rule says so
	ReasonDropped                       // the spec drops it
	ReasonPunted                        // passed to the stack unmodified: user space has to handle it
	ReasonFault                         // dropped because the kernel failed after the first change

	// Of one receiver in a fan-out; the packet that came has a reason of its own.
	ReasonCopied   // the receiver got a copy
	ReasonDeclined // it got none
)

var reasonNames = []string{"", "sent", "pass", "drop", "up", "fault", "copy", "declined"}

// Hook is where a program runs. The zero Hook is none.
type Hook uint8

// Hooks.
const (
	HookIngress    Hook = iota + 1 // packets that an interface receives
	HookEgress                     // packets that an interface sends
	HookCongestion                 // events of TCP sockets; their programs run on records in the place of frames
	HookXDP                        // packets that an interface receives, at XDP alone
)

var hookNames = []string{"", "tc/ingress", "tc/egress", "tcp/congestion", "xdp"}

// HopState says whether and how packets can leave towards an address.
type HopState uint8

// States of a hop. Only HopDirect and HopNeighbour let a packet leave.
const (
	HopNone          HopState = iota // no route, or no next hop
	HopDirect                        // the link-layer addresses are known
	HopNeighbour                     // the kernel has to resolve the neighbour
	HopLocal                         // the destination is this host
	HopUnreachable                   // the route's type is unreachable
	HopBlackhole                     // the route drops packets
	HopProhibit                      // the route prohibits packets
	HopXfrm                          // an xfrm (IPsec) policy is for the packets
	HopRule                          // a routing rule asks for what isn't known of the packets: protocol or ports
	HopEncap                         // the route encapsulates the packets (ip route … encap)
	HopForwardingOff                 // forwarding is off where the packets arrive; only lookups find it, no row has it
)

// HopStates is how many states there are.
const HopStates = 11

var hopNames = []string{
	"none", "direct", "neighbour", "local", "unreachable", "blackhole", "prohibit", "xfrm", "rule", "encap",
	"forwarding_off",
}

// String names the kind as specs do.
func (k Kind) String() string { return name("Kind", kindNames, k) }

// String names the kind as specs do.
func (k TableKind) String() string { return name("TableKind", tableNames, k) }

// String names the kind as tools and metrics do.
func (k ReasonKind) String() string { return name("ReasonKind", reasonNames, k) }

// String names the hook as specs do.
func (h Hook) String() string { return name("Hook", hookNames, h) }

// String names the state.
func (s HopState) String() string { return name("HopState", hopNames, s) }

// Texts of kinds are part of the format of what is pinned.

// MarshalText returns the name.
func (k Kind) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// MarshalText returns the name.
func (k TableKind) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// MarshalText returns the name.
func (k ReasonKind) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// MarshalText returns the name.
func (h Hook) MarshalText() ([]byte, error) { return []byte(h.String()), nil }

// UnmarshalText takes a name.
func (k *Kind) UnmarshalText(text []byte) error { return parse("kind of value", kindNames, k, text) }

// UnmarshalText takes a name.
func (k *TableKind) UnmarshalText(text []byte) error {
	return parse("kind of table", tableNames, k, text)
}

// UnmarshalText takes a name.
func (k *ReasonKind) UnmarshalText(text []byte) error {
	return parse("kind of reason", reasonNames, k, text)
}

// UnmarshalText takes a name.
func (h *Hook) UnmarshalText(text []byte) error { return parse("hook", hookNames, h, text) }

func name[T ~uint8](what string, names []string, i T) string {
	if int(i) < len(names) && names[i] != "" {
		return names[i]
	}
	return fmt.Sprintf("%s(%d)", what, i)
}

func parse[T ~uint8](what string, names []string, to *T, text []byte) error {
	i := slices.Index(names, string(text))
	if i < 0 || len(text) == 0 {
		return fmt.Errorf("%q is no %s", text, what)
	}
	*to = T(i)
	return nil
}
