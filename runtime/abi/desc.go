package abi

import (
	"slices"
	"strconv"
	"time"
)

// Desc describes a compiled relay: what its object contains and how keys and values are laid out. It is generated from
// the plan, and never changed.
//
// The json tags are the format of what is pinned (docs/internals.md): what has none isn't in it.
type Desc struct {
	Name     string    `json:"name,omitempty"` // "": it was pinned before names were
	Kernel   [2]int    `json:"-"`              // major, minor: the oldest kernel that can load it
	Settings []Setting `json:"-"`
	Tables   []Table   `json:"tables,omitempty"`
	Sessions []Session `json:"sessions,omitempty"`
	Programs []Program `json:"programs,omitempty"`
	Counters []string  `json:"counters,omitempty"` // named counters, by index
	Slots    int       `json:"slots,omitempty"`    // sessions of all kinds
	Usages   int       `json:"usages,omitempty"`   // rows of the kind of session that has most
	Shared   int       `json:"shared,omitempty"`   // counters in tables; the first is never used

	Levels       int     `json:"levels,omitempty"` // of priority; 0: none
	Groups       []Group `json:"groups,omitempty"`
	Events       []Event `json:"events,omitempty"`       // by ID, from 1 on
	Receivers    int     `json:"receivers,omitempty"`    // of all groups; the first is never used
	Credits      int     `json:"credits,omitempty"`      // the first is never used
	Translations int     `json:"translations,omitempty"` // rows
	Ring         int     `json:"ring,omitempty"`         // bytes of the ring of events
	Lookups      bool    `json:"lookups,omitempty"`      // a program looks up routes in the kernel
}

// Setting describes a setting.
type Setting struct {
	Name     string
	Kind     Kind
	Size     int
	Bits     int
	Required bool // it has no default
	Default  any
	Min, Max uint64 // KindUint
}

// Member describes a member of a key or value.
type Member struct {
	Name string `json:"name"`
	Kind Kind   `json:"kind"`
	Bits int    `json:"bits,omitempty"` // KindUint: width
	// how many values there are, one for each level of priority; 0: a single one, without levels
	Levels int `json:"levels,omitempty"`
	Size   int `json:"size"` // of all values; of credits and buckets, which have one index for all, that of the index
	Off    int `json:"off"`
	// the runtime fills it in: "slot", "gen", "row", "receiver" (KindUint of 4 bytes), hops
	Hidden bool `json:"hidden,omitempty"`
	// KindHop: the member (of the same value) that has the address the hop leads to
	To string `json:"to,omitempty"`
	// KindHop: the member that has the address packets come from; "": they have none of their own
	From string `json:"from,omitempty"`
	// KindHop: the IP protocol of the packets; 0: it isn't the same for all
	Proto int `json:"proto,omitempty"`
}

// Count is how many values the member has.
func (m *Member) Count() int { return max(m.Levels, 1) }

// In returns the member's bytes in a key, a value or a record.
func (m *Member) In(data []byte) []byte {
	if m.Kind == KindData {
		return data[m.Off:]
	}
	return data[m.Off : m.Off+m.Size]
}

// Find returns the member of a name that isn't hidden; nil: there is none.
func Find(members []Member, name string) *Member {
	for i := range members {
		if m := &members[i]; m.Name == name && !m.Hidden {
			return m
		}
	}
	return nil
}

// Names of members that the runtime fills in.
const (
	MemberSlot     = "slot"     // with MemberGen, ties a row to its session
	MemberGen      = "gen"      // see Slot
	MemberRow      = "row"      // which of its session's rows it is, if several are in one table
	MemberReceiver = "receiver" // the identity of a receiver
)

// Table describes a table.
type Table struct {
	Name      string    `json:"name"`
	Kind      TableKind `json:"kind"`
	PerCPU    bool      `json:"per_cpu,omitempty"`
	Size      int       `json:"size"`
	Key       []Member  `json:"key"`
	KeySize   int       `json:"key_size"`
	Value     []Member  `json:"value,omitempty"`
	ValueSize int       `json:"value_size"`
	Session   string    `json:"session,omitempty"` // the kind of session whose rows these are; "": a table of its own
}

// Bound reports whether each row ends with a session: it is one of the session's, or a program has learned it with it.
// So user space can't put rows into the table, nor remove them.
func (t *Table) Bound() bool {
	return t.Session != "" || slices.ContainsFunc(t.Value, func(m Member) bool {
		return m.Hidden && m.Name == MemberSlot
	})
}

// Group describes a kind of group.
type Group struct {
	Name         string   `json:"name"`
	Key          []Member `json:"key"`
	KeySize      int      `json:"key_size"`
	Receiver     []Member `json:"receiver"` // of a receiver's row
	ReceiverSize int      `json:"receiver_size"`
	Max          int      `json:"max"`  // receivers in one group
	Rows         int      `json:"rows"` // receivers in all groups; the array of rows has Rows + Max
	Size         int      `json:"size"` // groups
	Base         int      `json:"base"` // the first identity of a receiver
}

// Event describes an event.
type Event struct {
	Name     string   `json:"name"`
	Fields   []Member `json:"fields,omitempty"` // offsets count from the first byte of the record
	Size     int      `json:"size"`             // bytes of the record in the ring
	Required bool     `json:"required,omitempty"`
	Copies   *Copies  `json:"copies,omitempty"` // nil: it is about one packet, or one copy
}

// Copies describes what a record has of each copy of the packet: entries that follow its fields.
type Copies struct {
	Off    int      `json:"off"`              // of the first one, in the record
	Size   int      `json:"size"`             // of each, which begins with the identity of the receiver
	Values []Member `json:"values,omitempty"` // offsets count from the entry's first byte
}

// Entries returns a record's entries, without a rest that is none.
func (c *Copies) Entries(record []byte) int {
	return max(len(record)-c.Off, 0) / c.Size
}

// Entry returns an entry.
func (c *Copies) Entry(record []byte, i int) []byte {
	return record[c.Off+i*c.Size : c.Off+(i+1)*c.Size]
}

// Record returns the record that data in the ring begins with, as long as its header says; ok is false if it is none of
// this event. With bytes of the packet at its end, or with copies, it may be shorter than Size.
func (e *Event) Record(data []byte) (record []byte, ok bool) {
	if len(data) < EventHeader {
		return nil, false
	}
	least, size := e.Size, int(Order.Uint16(data[EventSize:]))
	if e.Copies != nil {
		least = e.Copies.Off
	}
	for i := range e.Fields {
		if m := &e.Fields[i]; m.Kind == KindData {
			least = m.Off
		}
	}
	if size < max(least, EventHeader) || size > min(e.Size, len(data)) {
		return nil, false
	}
	return data[:size], true
}

// Session describes a kind of session.
type Session struct {
	Name     string        `json:"name"`
	Fields   []Field       `json:"fields,omitempty"`
	Rows     []Row         `json:"rows,omitempty"`
	Size     int           `json:"size"`
	Lifetime time.Duration `json:"lifetime_ns,omitempty"` // 0: none
	Idle     time.Duration `json:"idle_ns,omitempty"`     // 0: none
}

// Field describes a field of a session.
type Field struct {
	Name   string      `json:"name"`
	Kind   Kind        `json:"kind"`
	Bits   int         `json:"bits,omitempty"`
	Levels int         `json:"levels,omitempty"`
	Size   int         `json:"size"`
	Ranges [][2]uint64 `json:"ranges,omitempty"` // KindUint: the values allowed, inclusive; empty: any that fit
}

// Row says which fields of a session make the key and the value of one of its rows, in the order of the table's members
// that are not hidden.
type Row struct {
	Table int   `json:"table"` // index into Desc.Tables
	Key   []int `json:"key"`
	Value []int `json:"value,omitempty"`
}

// Program describes a program.
type Program struct {
	Name    string   `json:"name"`
	Hook    Hook     `json:"hook"`
	L2      bool     `json:"l2,omitempty"`   // refuse devices without a link-layer header
	Base    int      `json:"base,omitempty"` // where its counters begin in the relay's array (MapReasons)
	XDPBase int      `json:"xdp,omitempty"`  // likewise, of what it takes at XDP in front of its hook; 0: nothing
	Reasons []Reason `json:"reasons,omitempty"`
	Lookups []int    `json:"-"` // the IP versions (4, 6) of packets whose routes it looks up in the kernel
}

// Hooks is where the program runs, for people: "xdp, tc/ingress" if packets come to it at XDP first.
func (p *Program) Hooks() string {
	if p.XDPBase > 0 {
		return "xdp, " + p.Hook.String()
	}
	return p.Hook.String()
}

// AtXDP reports whether the program runs at XDP, alone or in front of itself at tc/ingress.
func (p *Program) AtXDP() bool { return p.XDPBase > 0 || p.Hook == HookXDP }

// Symbol is the name of the program's function, of one that runs at both hooks that at tc/ingress.
func (p *Program) Symbol() string {
	if p.Hook == HookXDP {
		return XDPPrefix + p.Name
	}
	return ProgramPrefix + p.Name
}

// Reason returns the i-th reason, and one without a meaning for an i that is none.
func (p *Program) Reason(i int) Reason {
	if i < 0 || i >= len(p.Reasons) {
		return Reason{Name: "reason(" + strconv.Itoa(i) + ")"}
	}
	return p.Reasons[i]
}

// Reason describes a reason: what happens to the packets that it counts.
type Reason struct {
	Name   string     `json:"name"`
	Kind   ReasonKind `json:"kind"`
	Number int        `json:"number"` // its counter is Number entries after Base; the same in all programs
	Doc    string     `json:"-"`
}

// Reasons is how many entries the array of reasons (MapReasons) has.
func (d *Desc) Reasons() int {
	n := 0
	for _, p := range d.Programs {
		for _, r := range p.Reasons {
			n = max(n, max(p.Base, p.XDPBase)+r.Number+1)
		}
	}
	return n
}

// AtXDP reports whether packets come to a program at XDP first.
func (d *Desc) AtXDP() bool {
	return slices.ContainsFunc(d.Programs, func(p Program) bool { return p.AtXDP() })
}

// SessionOf returns the description of the kind of session whose rows a table holds; nil: it is a table of its own.
func (d *Desc) SessionOf(t *Table) *Session {
	for i := range d.Sessions {
		if t.Session == d.Sessions[i].Name && t.Session != "" {
			return &d.Sessions[i]
		}
	}
	return nil
}

// HasHops reports whether a row of the relay holds a hop, which user space keeps up to date.
func (d *Desc) HasHops() bool {
	var lists [][]Member
	for _, t := range d.Tables {
		lists = append(lists, t.Value)
	}
	for _, g := range d.Groups {
		lists = append(lists, g.Receiver)
	}
	for _, members := range lists {
		for _, m := range members {
			if m.Kind == KindHop || m.Kind == KindNextHop {
				return true
			}
		}
	}
	return false
}
