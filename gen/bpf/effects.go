package bpf

import (
	"fmt"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
	"github.com/fastrelay/fastrelay-gen/runtime/abi"
)

// The changes of state that go with what leaves bracket transmission: before reserves, spends and allocates, undo
// gives back where it doesn't leave after all, after counts and reports.

// effects is what one function does with a plan's Effects.
type effects struct {
	*function
	fx    *ir.Effects
	early bool // what records and counters say of the packet is read before it changes: nothing keeps what it was
	undo  []string
	said  map[*ir.Emit][]ir.MemberValue // what was read for a record that is reserved late
	by    map[*ir.Count]ir.Expr         // what was read for a counter
}

func (f *function) effects(fx *ir.Effects) *effects {
	return &effects{
		function: f, fx: fx, said: map[*ir.Emit][]ir.MemberValue{}, by: map[*ir.Count]ir.Expr{},
	}
}

func event(i int) string { return fmt.Sprintf("event%d", i) }

// before renders what comes before transmission.
func (e *effects) before() {
	for i, s := range e.fx.Emits {
		if !s.Event.Required {
			continue
		}
		e.quote(s.Pos)
		e.reserve(i, s)
		e.stopIf(s.Pos, "!"+event(i), e.undo, e.up(s.Full))
		e.undo = append(e.undo, fmt.Sprintf("bpf_ringbuf_discard(%s, 0);", event(i)))
	}
	for i, s := range e.fx.Admits {
		e.admit(i, s)
	}
	for _, s := range e.fx.Learns {
		e.learn(s, e.undo)
	}
	for _, s := range e.fx.Allocs {
		e.alloc(s)
	}
	for _, s := range e.fx.Lets {
		if e.prog.read.vars[s.Var] {
			e.quote(s.Pos)
			e.let(s)
		}
	}
	if !e.early {
		return
	}
	for i, s := range e.fx.Emits {
		e.quote(s.Pos)
		if s.Event.Required {
			e.fill(i, s)
		} else {
			e.read(i, s)
		}
	}
	for i, s := range e.fx.Counts {
		if ofPacket(s.By) {
			e.quote(s.Pos)
			e.by[s] = e.keep(fmt.Sprintf("by%d", i), s.By, s.Pos)
		}
	}
}

// read keeps in variables what a record will say of the packet. (It can't be reserved and filled in here: it may be
// missing, and before Linux 6.5 the verifier wants to know that once only.)
func (e *effects) read(i int, s *ir.Emit) {
	for k, mv := range s.Values {
		if ofPacket(mv.Value) {
			mv.Value = e.keep(fmt.Sprintf("said%d_%d", i, k), mv.Value, s.Pos)
		}
		e.said[s] = append(e.said[s], mv)
	}
}

// keep stores a value in a variable.
func (e *effects) keep(name string, value ir.Expr, pos diag.Pos) ir.Expr {
	v := &ir.Var{Name: name, Type: value.Type()}
	e.prog.vars[v] = true
	e.let(&ir.Let{Var: v, Value: value, Pos: pos})
	return &ir.VarRef{Var: v}
}

// ofPacket reports whether an expression reads the packet.
func ofPacket(e ir.Expr) bool {
	for e := range ir.Exprs(e) {
		switch e.(type) {
		case *ir.Load, *ir.LoadBytes, *ir.SumOK, *ir.Meta:
			return true
		}
	}
	return false
}

// admit spends a credit.
func (e *effects) admit(i int, s *ir.Admit) {
	e.quote(s.Pos)
	credit, level, spent := fmt.Sprintf("credit%d", i), "0", fmt.Sprintf("spent%d", i)
	if s.Level != nil {
		level = fmt.Sprintf("level%d", i)
		e.stmt(s.Pos, "__u32 %s = %s;", level, e.expr(s.Level))
	}
	first := fmt.Sprintf("%s->%s", e.row(s.Row), member(s.Member))
	at := "0"
	if s.Member.Type.Levels > 0 {
		at = level
	}
	e.stmt(s.Pos, "__u32 %s = fr_credit(%s, %s);", credit, first, at)
	e.stmt(s.Pos, "__u64 %s = %s;", spent, e.expr(s.Cost))
	floor := "0"
	if s.Floor != nil {
		floor = e.expr(s.Floor)
	}
	admitted := fmt.Sprintf("admitted%d", i)
	if s.Member.Type.Kind == ir.Bucket {
		e.stmt(s.Pos, "__u64 %s = fr_admit_timed(%s, %s, %s, %s);", admitted, credit, spent, floor, e.clock())
		spent = admitted + " - FR_ADMITTED"
	} else {
		e.stmt(s.Pos, "int %s = fr_admit(%s, %s, %s);", admitted, credit, spent, floor)
	}
	if s.Overdraft {
		e.overdraw(i, s, credit, spent)
	} else {
		e.stmt(s.Pos, "if (%s == FR_REFUSED) {", admitted)
		e.indent++
		e.stmt(s.Pos, "fr_refused(%s, %s);", credit, level)
		if s.Count != nil {
			e.counter(s.Count)
		}
		for _, u := range e.undo {
			e.line("%s", u)
		}
		e.stmt(s.Pos, "%s", e.up(s.Refused))
		e.indent--
		e.line("}")
		e.stopIf(s.Pos, "unlikely("+admitted+" == FR_CONTENDED)", e.undo, e.up(s.Contended))
	}
	e.undo = append(e.undo, fmt.Sprintf("fr_refund(%s, %s);", credit, spent))
}

// overdraw spends what isn't admitted all the same.
func (e *effects) overdraw(i int, s *ir.Admit, credit, spent string) {
	e.needs["overdraft"] = "yes"
	if s.Count != nil {
		e.stmt(s.Pos, "if (admitted%d == FR_REFUSED) {", i)
		e.indent++
		e.counter(s.Count)
		e.indent--
		e.line("}")
	}
	e.stmt(s.Pos, "if (admitted%d < FR_ADMITTED)", i)
	if s.Member.Type.Kind == ir.Bucket {
		e.stmt(s.Pos, "\tadmitted%d = fr_overdraw_timed(%s, spent%d, %s);", i, credit, i, e.clock())
	} else {
		e.stmt(s.Pos, "\t%s = fr_overdraw(%s, %s);", spent, credit, spent)
	}
}

// alloc takes a number from a shared counter.
func (f *function) alloc(s *ir.Alloc) {
	f.quote(s.Pos)
	f.more = true
	f.stmt(s.Pos, "%s = fr_alloc(%s->%s, %s);", f.set(s.Var), f.row(s.Row), member(s.Member), number(s.Step))
}

// after renders what comes when the packet has left, or is about to and can't be held up any more.
func (e *effects) after() {
	for _, required := range []bool{true, false} {
		for i, s := range e.fx.Emits {
			if s.Event.Required != required {
				continue
			}
			e.quote(s.Pos)
			if !required {
				e.reserve(i, s)
				e.line("if (%s) {", event(i))
				e.indent++
			}
			if !required || !e.early {
				e.fill(i, s)
			}
			if e.turn != nil {
				e.stmt(s.Pos, "%s |= fr_submit_more(&%s->head, %s);", e.turn.keep("__u64", "quiet", "0"), event(i),
					e.clock())
			} else {
				e.stmt(s.Pos, "fr_submit(&%s->head, %s);", event(i), e.clock())
			}
			if !required {
				e.indent--
				e.line("} else {")
				e.line("\tfr_lose(%d);", s.Event.ID)
				e.line("}")
			}
		}
	}
	for _, s := range e.fx.Counts {
		e.quote(s.Pos)
		if by, ok := e.by[s]; ok {
			s = &ir.Count{Counter: s.Counter, Row: s.Row, Member: s.Member, By: by, Pos: s.Pos}
		}
		e.counter(s)
	}
}

func (e *effects) reserve(i int, s *ir.Emit) {
	name := ident(s.Event.Name)
	e.stmt(s.Pos, "struct event_%s *%s = bpf_ringbuf_reserve(&fr_events, sizeof(struct event_%s), 0);", name,
		event(i), name)
}

// fill renders the contents of a record, but for its time. The ring's memory has whatever was there before.
func (e *effects) fill(i int, s *ir.Emit) {
	receiver := "0"
	if s.Row != nil {
		receiver = e.identity(s.Row)
	}
	e.stmt(s.Pos, "fr_head(&%s->head, %s, %d, sizeof(*%s));", event(i), receiver, s.Event.ID, event(i))
	p := inMemory{access: event(i) + "->", address: "(void *)" + event(i), dirty: true}
	end := abi.EventHeader
	for _, m := range s.Event.Fields.Members {
		e.zero(p, end, m.Off-end, s.Pos)
		end = m.Off + m.Type.Size
	}
	e.zero(p, end, s.Event.Fields.Size-end, s.Pos)
	values := s.Values
	if said, ok := e.said[s]; ok {
		values = said
	}
	e.members(p, values, s.Pos)
}

// identity is the identity of the receiver whose row it is.
func (f *function) identity(r *ir.Row) string {
	for _, m := range r.Table.Value.Members {
		if m.Hidden && m.Name == "receiver" {
			return f.row(r) + "->" + member(m)
		}
	}
	f.fail("row %q is no receiver's", r.Name)
	return "0"
}

// clockEvery is how many turns go by one reading of the clock, which takes a tenth of the time of a copy.
const clockEvery = 8

// clock is the monotonic clock in nanoseconds.
func (f *function) clock() string {
	if !f.writes && f.turn == nil { // it sees many packets that don't need it
		return "bpf_ktime_get_ns()"
	}
	f.timed = true
	if f.turn != nil {
		return f.turn.keep("__u64", "clock", "0")
	}
	return "clock"
}
