package bpf

import (
	"fmt"
	"maps"
	"slices"

	"github.com/fastrelay/fastrelay-gen/gen/c"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
	"github.com/fastrelay/fastrelay-gen/runtime/abi"
)

// The changes of state that go with what leaves bracket transmission: before reserves, spends and allocates, undo
// gives back if it doesn't leave after all, after counts and reports.

// effects is what one function does with a plan's Effects.
type effects struct {
	*function
	fx    *ir.Effects
	early bool // what records and counters say of the packet is read before it changes: nothing keeps what it was
	undo  []c.Expr
	said  map[*ir.Emit][]ir.MemberValue // what was read for a record that is reserved late
	by    map[*ir.Count]ir.Expr         // what was read for a counter
}

func (f *function) effects(fx *ir.Effects) *effects {
	return &effects{
		function: f, fx: fx, said: map[*ir.Emit][]ir.MemberValue{}, by: map[*ir.Count]ir.Expr{},
	}
}

func event(i int) c.Ident { return c.Ident(fmt.Sprintf("event%d", i)) }

// recordOf is a pointer to the record of an event that says something of each copy; 0: the ring had no room.
type recordOf struct{ event *ir.Event }

// record is a pointer to the record of the i-th Emit.
func (f *function) record(i int, s *ir.Emit) c.Expr {
	if s.Event.Copies == nil {
		return event(i)
	}
	return f.copiesOf(s.Event)
}

func (f *function) copiesOf(e *ir.Event) *c.Local {
	return f.prog.localOf(recordOf{e}, func() *c.Local { return own("copies_of_"+e.Name, c.Pointer(eventType(e))) })
}

func eventType(e *ir.Event) c.Type { return c.StructType("event_" + ident(e.Name)) }

// copyType is the type of what a record has of each copy.
func copyType(e *ir.Event) c.Type { return c.StructType("copy_" + ident(e.Name)) }

// before renders what comes before transmission.
func (e *effects) before() {
	for i, s := range e.fx.Emits {
		if !s.Event.Required {
			continue
		}
		e.quote(s.Pos)
		if s.Event.Copies != nil && !e.saysAllocated(s) {
			e.begin(i, s)
		} else {
			e.reserve(i, s)
		}
		e.stopIf(s.Pos, c.Not(e.record(i, s)), e.undo, e.punt(s.Full))
		e.undo = append(e.undo, c.Do("bpf_ringbuf_discard", e.record(i, s), c.Num(0)))
	}
	for i, s := range e.fx.Admits {
		e.admit(i, s, e.credit(i, s))
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
		switch {
		case s.Event.Required && s.Event.Copies != nil && !e.saysAllocated(s): // it is
		case s.Event.Required:
			e.fill(i, s)
		default:
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

// saysAllocated reports whether a record has numbers that are allocated when the ring has room for it.
func (e *effects) saysAllocated(s *ir.Emit) bool {
	sets := map[*ir.Var]bool{}
	for _, a := range e.fx.Allocs {
		sets[a.Var] = true
	}
	for _, l := range e.fx.Lets {
		sets[l.Var] = true
	}
	says := func(e ir.Expr) bool {
		for v := range ir.Reads(e) {
			if sets[v] {
				return true
			}
		}
		return false
	}
	return s.Data != nil && says(s.Data.Size) ||
		slices.ContainsFunc(s.Values, func(mv ir.MemberValue) bool { return says(mv.Value) })
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

// ask asks credits from the i-th on. One that was asked before has less left than it says now: rows may share it.
func (e *effects) ask(i int) {
	if i == len(e.fx.Admits) {
		return
	}
	s := e.fx.Admits[i]
	credit := e.credit(i, s)
	rest := func() {
		e.admit(i, s, credit)
		e.ask(i + 1)
	}
	var others []c.Expr
	for j, before := range e.fx.Admits[:i] {
		if before.Member.Type.Kind == s.Member.Type.Kind {
			others = append(others, c.Binary{Op: "!=", X: credit, Y: creditName(j)})
		}
	}
	if len(others) == 0 {
		rest()
		return
	}
	e.when(s.Pos, c.Join("&&", others...), rest)
}

func creditName(i int) c.Ident { return c.Ident(fmt.Sprint("credit", i)) }

// credit defines a variable for the index of a credit.
func (e *effects) credit(i int, s *ir.Admit) c.Ident {
	e.quote(s.Pos)
	at := c.Expr(c.Num(0))
	if s.Level != nil {
		level := c.Ident(fmt.Sprint("level", i))
		e.define(s.Pos, "__u32", level, e.expr(s.Level))
		if s.Member.Type.Levels > 0 {
			at = level
		}
	}
	e.define(s.Pos, "__u32", creditName(i), c.Do("fr_credit", c.To(e.row(s.Row), member(s.Member)), at))
	return creditName(i)
}

// admit spends a credit.
func (e *effects) admit(i int, s *ir.Admit, credit c.Ident) {
	name := func(what string) c.Ident { return c.Ident(fmt.Sprint(what, i)) }
	level := c.Expr(c.Num(0))
	if s.Level != nil {
		level = name("level")
	}
	cost := name("spent")
	e.define(s.Pos, "__u64", cost, e.expr(s.Cost))
	floor, spent := c.Expr(c.Num(0)), c.Expr(cost)
	if s.Floor != nil {
		floor = e.expr(s.Floor)
	}
	admitted, call := name("admitted"), "fr_admit"
	if s.Asked {
		e.needs["asked"], call = "yes", "fr_ask"
	}
	if s.Member.Type.Kind == ir.Bucket {
		e.define(s.Pos, "__u64", admitted, c.Do(call+"_timed", credit, cost, floor, e.clock()))
		spent = c.Binary{Op: "-", X: admitted, Y: c.Ident("FR_ADMITTED")}
	} else {
		e.define(s.Pos, "int", admitted, c.Do(call, credit, cost, floor))
	}
	if s.Overdraft {
		e.overdraw(s, credit, cost, admitted)
	} else {
		e.when(s.Pos, equals(admitted, refused), func() {
			if !s.Again {
				e.do(s.Pos, "fr_refused", credit, level)
			}
			if s.Count != nil {
				e.counter(s.Count)
			}
			e.giveBack(e.undo)
			e.end(s.Pos, e.punt(s.Refused))
		})
		if s.Asked {
			return
		}
		e.stopIf(s.Pos, c.Unlikely(equals(admitted, c.Ident("FR_CONTENDED"))), e.undo, e.punt(s.Contended))
	}
	e.undo = append(e.undo, c.Do("fr_refund", credit, spent))
}

// refused is what a credit answers of which too little is left.
const refused = c.Ident("FR_REFUSED")

// overdraw spends what isn't admitted all the same.
func (e *effects) overdraw(s *ir.Admit, credit, cost, admitted c.Ident) {
	e.needs["overdraft"] = "yes"
	if s.Count != nil {
		e.when(s.Pos, equals(admitted, refused), func() { e.counter(s.Count) })
	}
	e.when(s.Pos, c.Binary{Op: "<", X: admitted, Y: c.Ident("FR_ADMITTED")}, func() {
		if s.Member.Type.Kind == ir.Bucket {
			e.assign(s.Pos, admitted, c.Do("fr_overdraw_timed", credit, cost, e.clock()))
		} else {
			e.assign(s.Pos, cost, c.Do("fr_overdraw", credit, cost))
		}
	})
}

// alloc takes a number from a shared counter.
func (f *function) alloc(s *ir.Alloc) {
	f.quote(s.Pos)
	f.more = true
	f.variable(s.Var) // is named first
	f.set(s.Pos, s.Var, c.Do("fr_alloc", c.To(f.row(s.Row), member(s.Member)), c.Num(s.Step)))
}

// after renders what comes when the packet has left, or is about to and can't be held up any more.
func (e *effects) after() {
	for _, required := range []bool{true, false} {
		for i, s := range e.fx.Emits {
			if s.Event.Required != required {
				continue
			}
			e.quote(s.Pos)
			submit := func() {
				if !required || !e.early {
					e.fill(i, s)
				}
				if s.Event.Copies == nil { // else after the last copy
					e.submit(i, s)
				}
			}
			if required {
				submit()
				continue
			}
			e.reserve(i, s)
			there := e.when(noPos, e.record(i, s), submit)
			e.inside(&there.Else, func() { e.do(noPos, "fr_lose", c.Dec(s.Event.ID)) })
		}
	}
	for _, s := range e.fx.Entries {
		e.quote(s.Pos)
		e.entry(s)
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
	typ := eventType(s.Event)
	reserve := c.Do("bpf_ringbuf_reserve", c.Address(c.Ident("fr_events")), c.Do("sizeof", c.Ident(typ)), c.Num(0))
	if s.Event.Copies != nil {
		if !s.Event.Required {
			reserve = c.Do("fr_copies_at", c.Dec(slices.Index(losable(e.prog.plan), s.Event)))
		}
		e.define(s.Pos, c.Pointer(typ), e.copiesOf(s.Event), reserve)
		return
	}
	e.define(s.Pos, c.Pointer(typ), event(i), reserve)
}

// losable are the events with copies that may be lost: their records are put together outside of the ring. (A record in
// the ring that may be missing can't be given to turns: before Linux 6.5 the verifier takes it for one that isn't
// released.)
func losable(p *ir.Plan) (all []*ir.Event) {
	for _, e := range p.Events {
		if e.Copies != nil && !e.Required {
			all = append(all, e)
		}
	}
	return all
}

// entries is how many copies a record has, for all receivers.
func (n *fan) entries(e *ir.Event) c.Expr {
	return n.keep("__u64", fmt.Sprint("entries", e.ID), c.Num(0))
}

// entry renders what the record of a packet has of a copy that was sent.
func (e *effects) entry(s *ir.Entry) {
	record, copies := e.copiesOf(s.Event), s.Event.Copies
	name := func(what string) c.Ident { return c.Ident(fmt.Sprint(what, s.Event.ID)) }
	n, at, entry := e.turn.entries(s.Event), name("entry_at"), name("entry")
	e.define(s.Pos, "__u64", at, c.Do("fr_copy", n))
	there := c.Expr(c.Binary{Op: "<", X: at, Y: c.Dec(copies.Max)})
	if !s.Event.Required {
		there = c.Join("&&", record, there)
	}
	e.when(s.Pos, there, func() {
		e.define(s.Pos, c.Pointer(copyType(s.Event)), entry, c.Address(c.Index{X: c.To(record, "copies"), At: at}))
		p := inMemory{func(member string) c.Expr { return c.To(entry, member) }, untyped(entry), true}
		e.assign(s.Pos, c.To(entry, abi.MemberReceiver), e.identity(s.Row))
		end := 0
		for _, m := range copies.Entry.Members {
			e.zero(p, end, m.Off-end, s.Pos)
			end = m.Off + m.Type.Size
		}
		e.zero(p, end, copies.Entry.Size-end, s.Pos)
		e.members(p, s.Values, s.Pos)
		e.assign(s.Pos, n, c.Binary{Op: "+", X: at, Y: c.Dec(1)})
	})
}

// handOver renders that the records of the packet's copies are complete.
func (n *fan) handOver() {
	w := n.pre
	for _, s := range n.Emits {
		if s.Event.Copies == nil {
			continue
		}
		record, entries, copies := w.copiesOf(s.Event), n.entries(s.Event), s.Event.Copies
		head, each := c.Address(c.To(record, "head")), c.Dec(copies.Entry.Size)
		w.quote(s.Pos)
		if s.Event.Required {
			w.needs["reported"] = "yes"
			size := c.Binary{Op: "+", X: c.Dec(copies.Off), Y: c.Binary{Op: "*", X: entries, Y: each}}
			w.do(s.Pos, "fr_submit_copies", head, w.clock(), size, entries)
			continue
		}
		w.when(s.Pos, record, func() {
			w.do(s.Pos, "fr_output_copies", head, w.clock(), c.Dec(copies.Off), each, entries, c.Dec(copies.Max))
		})
	}
}

// begin renders the call of a function that reserves the record of all copies and fills in what is the same for all of
// them, and the function.
func (e *effects) begin(i int, s *ir.Emit) {
	w := e.prog.writer(nil, &ir.Effects{})
	w.known, w.reason, w.scope, w.inPlace = e.known, e.reason, e.scope, true
	w.first = true
	w.declared = maps.Clone(e.declared)
	own, record := &effects{function: w.function, fx: e.fx}, e.copiesOf(s.Event)
	own.reserve(i, s)
	w.when(s.Pos, record, func() { own.fill(i, s) })
	w.end(s.Pos, record)
	name := e.prog.unique(e.prog.short + "_record")
	made, args := w.assemble(c.Pointer(eventType(s.Event)), name, nil)
	e.prog.functions = append(e.prog.functions, made)
	e.define(s.Pos, c.Pointer(eventType(s.Event)), record, c.Do(name, args...))
}

// submit renders that a record is complete.
func (e *effects) submit(i int, s *ir.Emit) {
	head := c.Address(c.To(event(i), "head"))
	if e.turn == nil {
		e.do(s.Pos, "fr_submit", head, e.clock())
		return
	}
	quiet := e.turn.keep("__u64", "quiet", c.Num(0))
	e.add(&c.Assign{Pos: s.Pos, To: quiet, Op: "|=", X: c.Do("fr_submit_more", head, e.clock())})
}

// fill renders the contents of a record, but for its time. The ring's memory has whatever was there before.
func (e *effects) fill(i int, s *ir.Emit) {
	receiver := c.Expr(c.Num(0))
	if s.Row != nil {
		receiver = e.identity(s.Row)
	}
	record := e.record(i, s)
	size := c.Expr(c.Do("sizeof", c.Unary{Op: "*", X: record}))
	data := s.Event.Data()
	if data != nil {
		at, room := c.To(record, member(data)), c.Dec(data.Type.Size)
		e.needs["data"] = "yes"
		size = c.Binary{Op: "+", X: c.Dec(data.Off), Y: c.Do("fr_data", skb, e.offset(s.Data.At), at,
			e.expr(s.Data.Size), room)}
	}
	e.do(s.Pos, "fr_head", c.Address(c.To(record, "head")), receiver, c.Dec(s.Event.ID), size)
	p := inMemory{func(member string) c.Expr { return c.To(record, member) }, untyped(record), true}
	end := abi.EventHeader
	for _, m := range s.Event.Fields.Members {
		e.zero(p, end, m.Off-end, s.Pos)
		end = m.Off + m.Type.Size
	}
	switch {
	case s.Event.Copies != nil:
		e.zero(p, end, s.Event.Copies.Off-end, s.Pos)
	case data == nil:
		e.zero(p, end, s.Event.Fields.Size-end, s.Pos)
	}
	values := s.Values
	if said, ok := e.said[s]; ok {
		values = said
	}
	e.members(p, values, s.Pos)
}

// identity is the identity of the receiver whose row it is.
func (f *function) identity(r *ir.Row) c.Expr {
	for _, m := range r.Table.Value.Members {
		if m.Hidden && m.Name == "receiver" {
			return c.To(f.row(r), member(m))
		}
	}
	f.fail("row %q is no receiver's", r.Name)
	return c.Num(0)
}

// clockEvery is how many turns go by one reading of the clock, which takes a tenth of the time of a copy.
const clockEvery = 8

// clock is the monotonic clock in nanoseconds.
func (f *function) clock() c.Expr {
	if !f.writes && f.turn == nil { // it sees many packets that don't need it
		return c.Do("bpf_ktime_get_ns")
	}
	f.timed = true
	if f.turn != nil {
		return f.turn.keep("__u64", "clock", c.Num(0))
	}
	return c.Ident("clock")
}
