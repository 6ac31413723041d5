package sim

import (
	"fmt"
	"maps"
	"net/netip"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/runtime/abi"
)

// World is what a run takes from its surroundings.
type World struct {
	Now        uint64   // jiffies
	Clock      uint64   // nanoseconds, the monotonic clock: what refills buckets
	Conditions []string // those of the relay that hold, such as "lapsed" (spec.Conditions)
	// Infers says that the kernel doesn't say where checksums are partial: programs infer it (ir.Sum).
	Infers bool
	// Route is the kernel's route lookup, for hops that no row holds; addresses are in their 16-byte form; an
	// invalid source is none. Nil: no routes.
	Route func(from, to netip.Addr) Hop
	// TakesFrames reports whether a device takes frames that a program at XDP sends. Nil: all do.
	TakesFrames func(index uint32) bool
	// Refuses reports whether the kernel refuses the clone for the receiver that is the nth of its group, counted from
	// 0. Nil: it takes all.
	Refuses func(n int, h Hop) bool
}

// Relay is the state of a loaded relay.
type Relay struct {
	World   World
	Slots   []Slot   // session slots
	Usage   []Usage  // by slot
	Shared  []uint64 // counters that user space shares; entry 0 is none
	Named   []uint64 // named counters
	Reasons []Tally  // of all programs (ir.Tallies, Relay.Tally)

	Receivers    []ReceiverUsage // by identity; entry 0 is none
	Credits      []Credit        // entry 0 is none
	Translations map[TranslationKey]Translation
	Lost         []uint64 // by event, from 1 on: records for which the ring had no room
	RingUsed     int      // bytes of the ring that records take which user space has not read yet (see RecordRoom)

	// Watch is called before each statement of a run; it may change the state: that's how a state is made that fits a
	// packet. Nil: no one watches.
	Watch func(ir.Stmt, Moment)

	plan     *ir.Plan
	tables   map[*ir.Table]*Table
	groups   map[string]*Group
	byName   map[string]*Table
	settings map[*ir.Setting][]byte
	programs map[*ir.Program]*program
	run      run // reused, so that a run allocates little
}

// Tally is where Reasons has the i-th reason of a program.
func (r *Relay) Tally(p *ir.Program, i int) int { return r.programs[p].tallies[i] }

// Slot ties the rows of one session together: see fr_slots in docs/internals.md.
type Slot struct {
	Deadline uint64 // jiffies
	Gen      uint32 // 0: closed
}

// Usage counts the packets of one session.
type Usage struct {
	Last uint64 // jiffies of the last packet
	Rows []Tally
}

// Tally counts packets and their bytes (of the frame as it came).
type Tally struct{ Packets, Bytes uint64 }

func (t *Tally) add(bytes int) {
	t.Packets++
	t.Bytes += uint64(bytes)
}

// New returns a relay with empty tables and a valid lease. Settings are by name, in the layout of ir.Setting.Default;
// those that are not given take their default. It is an error if one has no default, has the wrong size or does not
// exist, or if the plan refers to things that it doesn't have.
func New(plan *ir.Plan, settings map[string][]byte) (*Relay, error) {
	r := &Relay{
		plan:     plan,
		tables:   map[*ir.Table]*Table{},
		groups:   map[string]*Group{},
		byName:   map[string]*Table{},
		settings: map[*ir.Setting][]byte{},
		programs: map[*ir.Program]*program{},

		Receivers:    make([]ReceiverUsage, plan.Receivers),
		Credits:      make([]Credit, plan.Credits),
		Translations: map[TranslationKey]Translation{},
		Lost:         make([]uint64, len(plan.Events)+1),
	}
	given := 0
	for _, s := range plan.Settings {
		value := s.Default
		if v, ok := settings[s.Name]; ok {
			value = v
			given++
		}
		if len(value) != s.Type.Size {
			return nil, fmt.Errorf("setting %q: %d bytes are given, it has %d", s.Name, len(value), s.Type.Size)
		}
		r.settings[s] = value
	}
	if given != len(settings) {
		return nil, fmt.Errorf("%d settings are given, the plan has %d of them", len(settings), given)
	}
	for _, t := range plan.Tables {
		r.tables[t] = newTable(t)
		r.byName[t.Name] = r.tables[t]
	}
	for _, g := range plan.Groups {
		r.groups[g.Name] = newGroup(g)
	}
	levels := max(plan.Levels, 1)
	refused := make([]uint64, plan.Credits*levels)
	for i := range r.Credits {
		r.Credits[i].Refused = refused[i*levels : (i+1)*levels : (i+1)*levels]
	}
	tallies := plan.Tallies()
	for p := range plan.Flow() {
		prog, err := prepare(plan, p)
		if err != nil {
			return nil, fmt.Errorf("program %q: %w", p.Title(), err)
		}
		r.programs[p] = prog
		for i := range p.Reasons {
			prog.tallies = append(prog.tallies, tallies.Of(p, i))
		}
	}
	r.Reasons = make([]Tally, tallies.Len())
	r.Slots = make([]Slot, plan.Slots)
	r.Usage = make([]Usage, plan.Slots)
	for i := range r.Usage {
		r.Usage[i].Rows = make([]Tally, plan.Usages)
	}
	r.Shared = make([]uint64, plan.Shared)
	r.Named = make([]uint64, len(plan.Counters))
	r.World = World{Now: 1}
	return r, nil
}

// Reset empties tables, groups, counters and credits, and closes all slots.
func (r *Relay) Reset() {
	for _, t := range r.tables {
		t.Clear()
	}
	for _, g := range r.groups {
		g.Clear()
	}
	for i := range r.Credits {
		refused := r.Credits[i].Refused
		clear(refused)
		r.Credits[i] = Credit{Refused: refused}
	}
	clear(r.Slots)
	clear(r.Shared)
	r.ClearCounts()
}

// ClearCounts forgets what runs have counted, reported and translated.
func (r *Relay) ClearCounts() {
	clear(r.Receivers)
	clear(r.Translations)
	clear(r.Lost)
	r.RingUsed = 0
	for i := range r.Usage {
		r.Usage[i].Last = 0
		clear(r.Usage[i].Rows)
	}
	clear(r.Named)
	clear(r.Reasons)
}

// CopyState makes the state of r (tables, groups, slots, counters, credits and the world) that of another relay with
// the same plan.
func (r *Relay) CopyState(from *Relay) {
	r.World = from.World
	for t, table := range r.tables {
		table.rows = maps.Clone(from.tables[t].rows) // values are replaced, never changed
	}
	for name, g := range r.groups {
		g.lists = maps.Clone(from.groups[name].lists) // likewise
	}
	copy(r.Receivers, from.Receivers)
	for i, c := range from.Credits {
		refused := r.Credits[i].Refused
		copy(refused, c.Refused)
		r.Credits[i] = Credit{c.Limit, c.Spent, c.Burst, refused}
	}
	r.Translations = maps.Clone(from.Translations)
	copy(r.Lost, from.Lost)
	r.RingUsed = from.RingUsed
	copy(r.Slots, from.Slots)
	for i := range r.Usage {
		r.Usage[i].Last = from.Usage[i].Last
		copy(r.Usage[i].Rows, from.Usage[i].Rows)
	}
	copy(r.Shared, from.Shared)
	copy(r.Named, from.Named)
	copy(r.Reasons, from.Reasons)
}

// Table returns the table of that name, or nil.
func (r *Relay) Table(name string) *Table { return r.byName[name] }

// Group returns the groups of the kind of that name, or nil.
func (r *Relay) Group(name string) *Group { return r.groups[name] }

// Plan returns the plan that the relay runs.
func (r *Relay) Plan() *ir.Plan { return r.plan }

// Hop is how a packet leaves: struct fr_hop, and the address of the next hop.
type Hop struct {
	Ifindex  uint32
	MTU      uint16
	State    abi.HopState // ir.HopDirect, …
	Dst, Src [6]byte
	NextHop  netip.Addr // 16-byte form; invalid if the plan names none
}

// Bytes returns the layout of struct fr_hop: integers in host order (little endian).
func (h Hop) Bytes() []byte {
	b := make([]byte, abi.HopSize)
	abi.Order.PutUint32(b[abi.HopIfindex:], h.Ifindex)
	abi.Order.PutUint16(b[abi.HopMTU:], h.MTU)
	b[abi.HopAt] = byte(h.State)
	copy(b[abi.HopDst:], h.Dst[:])
	copy(b[abi.HopSrc:], h.Src[:])
	return b
}

func parseHop(b []byte) Hop {
	h := Hop{
		Ifindex: abi.Order.Uint32(b[abi.HopIfindex:]), MTU: abi.Order.Uint16(b[abi.HopMTU:]),
		State: abi.HopState(b[abi.HopAt]),
	}
	copy(h.Dst[:], b[abi.HopDst:])
	copy(h.Src[:], b[abi.HopSrc:])
	return h
}
