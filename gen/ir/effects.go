package ir

import "github.com/fastrelay/fastrelay-gen/internal/diag"

// This file has the changes of state that go with a packet or a copy.

// Effects are the changes of state that go with a packet, or with one copy of it, that is about to leave. Their order
// is: every record of Emits that is required is reserved (or the packet doesn't leave), all of Admits are spent (or
// none, and the packet doesn't leave), Learns, Allocs, Lets, the rewrite, transmission, records, Counts; what a
// record holds is known before Counts. What doesn't leave after all (a clone that the kernel refuses) gets its credits
// back and has no records; its numbers are lost.
type Effects struct {
	Emits   []*Emit
	Entries []*Entry // of a Copy
	Admits  []*Admit
	Learns  []*Learn // of what is admitted; if a table is full, credits are given back
	Allocs  []*Alloc
	Lets    []*Let // may read what was allocated
	Counts  []*Count
}

func (e *Effects) parts(v *visitor) {
	for _, s := range e.Emits {
		v.values(s.Values)
		if s.Data != nil {
			v.bounds(s.Data.At)
			v.exprs(s.Data.Size)
		}
	}
	for _, s := range e.Entries {
		v.values(s.Values)
	}
	for _, s := range e.Admits {
		v.exprs(s.Level, s.Cost, s.Floor)
		if s.Count != nil {
			s.Count.parts(v)
		}
	}
	for _, s := range e.Learns {
		s.parts(v)
	}
	for _, s := range e.Allocs {
		v.sets(s.Var)
	}
	for _, s := range e.Lets {
		s.parts(v)
	}
	for _, s := range e.Counts {
		s.parts(v)
	}
}

func (e *Effects) effects() *Effects { return e }

// After adds changes of state (Learn, Count) that a packet makes only if it is admitted.
func (e *Effects) After(state []Stmt) {
	for _, s := range state {
		switch s := s.(type) {
		case *Learn:
			e.Learns = append(e.Learns, s)
		case *Count:
			e.Counts = append(e.Counts, s)
		}
	}
}

// Emit is a record of an event. If the ring has no room, a required one stops the packet or the copy under Full (of
// kind Punted, in a FanOut's Each of kind Declined); any other is counted as lost.
type Emit struct {
	Event  *Event
	Row    *Row          // the receiver that the record names; nil: none
	Values []MemberValue // without Event.Data
	Data   *Excerpt      // nil: the event has none
	Full   int           // -1 if the event is not required
	Pos    diag.Pos
}

// Entry is what the record of a FanOut's event has of a copy, when the copy has been sent. The record is handed over
// after the last copy, unless it has no entry.
type Entry struct {
	Event  *Event // that the FanOut emits
	Row    *Row   // the receiver
	Values []MemberValue
	Pos    diag.Pos
}

// Excerpt is what a record has of the packet as it came: Size bytes from At on, and no more than there is room for.
type Excerpt struct {
	At   Off
	Size Expr
}

// Admit spends Cost of a credit of a row, or stops the packet or the copy under Refused.
//
// A credit (Kind Credit) has a limit, which user space moves, and what is spent: the packet is admitted if spent +
// Cost + Floor <= limit (none of which wraps), and spent grows by Cost, by compare and swap.
//
// One that refills (Kind Bucket) has a rate in units a second, a burst in units, and the time (in nanoseconds) up to
// which it is spent. With t = Cost * 1e9 / rate and room = (burst - Floor) * 1e9 / rate (0 if burst < Floor), the
// packet is admitted if max(spent, now) + t - now <= room, and spent becomes max(spent, now) + t. Nothing is
// admitted at a rate of 0. Cost counts as at most 2^32-1, burst as at most 2^33-1.
//
// A refused packet is counted in the credit's refused, by Level. A row without a credit (index 0) refuses. With
// Overdraft nothing is refused: if Cost isn't admitted, spent grows by as much as if it were (not at a rate of 0,
// and not if that would wrap).
type Admit struct {
	Row    *Row
	Member *Member // Kind Credit or Bucket
	// below Plan.Levels: which credit, if the member has several, and which counter of refused packets; nil: 0
	Level     Expr
	Cost      Expr
	Floor     Expr   `text:"above"` // nil: 0
	Count     *Count // what else counts a refused packet; nil: nothing
	Overdraft bool   `text:"overdraft"` // what would be refused is counted by Count, spent all the same, and goes on
	Again     bool   `text:"again"`     // at XDP: who is refused is asked again at tc/ingress, and counted there alone
	Asked     bool   `text:"asked"`     // of an Ask: nothing is spent, and nothing is contended
	Refused   int    // reason, of kind Dropped too (the packet is dropped then); -1: Overdraft
	Contended int    // reason, likewise: compare and swap failed AdmitTries times
	Pos       diag.Pos
}

// Ask drops a packet that Admits, which Effects has alone, would refuse now. At XDP: what isn't refused is left, and
// admitted at tc/ingress. So is what asks a credit again, which rows may share: it has less left then than it says now.
type Ask struct {
	Effects
	Pos diag.Pos
}

func (s *Ask) at() diag.Pos { return s.Pos }

func (s *Ask) parts(v *visitor) { s.Effects.parts(v) }

// AdmitTries bounds the attempts of a compare and swap.
const AdmitTries = 16

// Alloc takes a number from the shared counter in a member of a row: Var is the counter's value, to which Step is added
// in the same atomic operation. If the index is 0, Var is 0.
type Alloc struct {
	Var    *Var
	Row    *Row
	Member *Member // Kind Ctr
	Step   uint64
	Pos    diag.Pos
}

// Translate finds the value of Key in the namespace of a row's member, or makes it: whoever comes first inserts an
// unfinished row, does Allocs, computes Value and completes the row. Another processor that finds an unfinished row
// stops under Unfinished; if the table is full, under Full. Of its path's checks only those that read what it finds
// follow it.
type Translate struct {
	Var        *Var
	Row        *Row
	Member     *Member // Kind Translation
	Key        Expr
	Allocs     []*Alloc
	Value      Expr
	Unfinished int
	Full       int
	Pos        diag.Pos
}

func (s *Translate) at() diag.Pos { return s.Pos }

func (s *Translate) parts(v *visitor) {
	v.exprs(s.Key, s.Value)
	for _, d := range s.Allocs {
		v.sets(d.Var)
	}
	v.sets(s.Var)
}
