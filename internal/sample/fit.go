package sample

import (
	"bytes"
	"encoding/binary"
	"slices"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/packet"
	"github.com/fastrelay/fastrelay-gen/runtime/abi"
	"github.com/fastrelay/fastrelay-gen/sim"
)

// This file makes a state fit packets. Random rows and random packets seldom meet if a key has several parts, or a
// condition compares a row with something. So some frames run in the model before the round, and while they run, what
// the plan asks the state for is put there: the row that a lookup would miss, and values in rows and counters with
// which a condition holds, or doesn't; and rows that a condition asks for, or wants to be missing, come or go. Which
// branch is taken is a matter of luck; but each should be taken as often as it has ends.

// Fitted is a frame that the state was made for.
type Fitted struct {
	*Generator
	Frame *packet.Frame
}

// So many frames find what they look for in one state, if as many attempts are enough.
const (
	fittedFrames = RoundPackets / FittedPackets / 2
	fitAttempts  = 3 * fittedFrames
	fitRuns      = 6 // of a frame: what is changed for one condition may be wrong for one in front of it
)

// branches are what a condition, or a lookup, chooses between: how much each weighs, and how often it was taken.
type branches struct {
	yes, no     float64
	held, didnt float64
}

// chance is the probability that yes is to be taken: the more it lags behind its weight, the greater.
func (b *branches) chance() float64 {
	yes, no := b.yes*(1+b.didnt), b.no*(1+b.held)
	return yes / (yes + no)
}

func (b *branches) took(yes bool) {
	if yes {
		b.held++
	} else {
		b.didnt++
	}
}

// weigh finds the branches of a block: every end of a rule weighs the same, and what passes to the stack for another
// reason less. It returns what the block weighs, if what comes after it weighs rest.
func weigh(block []ir.Stmt, rest float64, into map[ir.Stmt]*branches) float64 {
	for _, s := range slices.Backward(block) {
		switch s := s.(type) {
		case *ir.Punt:
			rest = 0.2
		case *ir.Drop, *ir.Forward, *ir.Copy, *ir.Skip:
			rest = 1
		case *ir.FanOut:
			rest = weigh(s.Each, 0, into)
		case *ir.Lookup:
			into[s] = &branches{yes: 9, no: 1}
		case *ir.If:
			b := &branches{yes: weigh(s.Then, rest, into), no: weigh(s.Else, rest, into)}
			into[s] = b
			rest = b.yes + b.no
		}
	}
	return rest
}

// fit makes a relay's state fit frames, and returns those that come to the end of a rule, and some others.
func (s Source) fit(r *sim.Relay, slot int, all []*Generator) (out []Fitted) {
	if len(all) == 0 || len(r.Plan().Tables)+len(r.Plan().Groups) == 0 {
		return nil
	}
	f := &fitting{Source: s, relay: r, slot: slot, rows: map[rowKey]bool{}}
	r.Watch = f.watch
	defer func() { r.Watch = nil }()
	for n := 0; n < fitAttempts && len(out) < fittedFrames; n++ {
		g := Pick(s, all)
		frame := g.Frame(r)
		f.wants = map[place]bool{}
		runs := 0
		for f.changed = true; f.changed && runs < fitRuns; runs++ {
			f.changed, f.arrived, f.chosen = false, false, false
			f.lets, f.found = map[*ir.Var]ir.Expr{}, map[*ir.Row]search{}
			// An error may be due to a change. If it isn't, it is found and shown when the frame is sent.
			_, _ = r.Run(g.Program.Name.Value, sim.Packet{
				Data: frame.Data, Link: sim.LinkType(frame.Data, packet.DefaultDestination),
			})
		}
		if f.arrived || s.One(8) {
			out = append(out, Fitted{g, frame})
		}
	}
	return out
}

// fitting is a state that is made to fit one packet after the other.
type fitting struct {
	Source
	relay   *sim.Relay
	slot    int                 // the next one that no session has
	lets    map[*ir.Var]ir.Expr // what the run's variables were computed from
	found   map[*ir.Row]search  // what the run's rows were looked up by
	wants   map[place]bool      // of the frame's runs: which branch to take
	rows    map[rowKey]bool     // of the state: whether a row that conditions ask for is there
	changed bool                // the state, by this run
	arrived bool                // the run, at the end of a rule, or if no rule applies
	chosen  bool                // the branch that the run is in, by the state
}

// place is a condition or a lookup; in a fan-out for one of the receivers.
type place struct {
	stmt     ir.Stmt
	receiver uint32
}

// search is a lookup of the run, and its key.
type search struct {
	at  place
	key []byte
}

// rowKey is what several lookups find the same row by.
type rowKey struct {
	table *ir.Table
	key   string
}

func (f *fitting) watch(s ir.Stmt, m sim.Moment) {
	switch s := s.(type) {
	case *ir.Let:
		f.lets[s.Var] = s.Value
	case *ir.Lookup:
		f.lookup(s, m)
	case *ir.FanOut:
		f.group(s, m)
	case *ir.Drop, *ir.Forward, *ir.Copy, *ir.Skip:
		f.arrived = true
	case *ir.Punt:
		f.arrived = f.chosen
	case *ir.CheckHop:
		f.hop(s, m)
	case *ir.Guard:
		if !f.One(8) {
			f.hold(m, s.Cond, true)
		}
	case *ir.If:
		f.hold(m, s.Cond, f.want(s, m))
		if v, ok := m.Uint(s.Cond); ok {
			f.branches[s].took(v != 0)
		}
		f.chosen = f.depends(s.Cond)
	}
}

// want chooses a branch, for all runs of the frame.
func (f *fitting) want(s ir.Stmt, m sim.Moment) bool {
	at := place{s, m.Receiver()}
	want, chosen := f.wants[at]
	if !chosen {
		want = f.Float64() < f.branches[s].chance()
		f.wants[at] = want
	}
	return want
}

// depends reports whether a condition depends on the state.
func (f *fitting) depends(cond ir.Expr) bool {
	for e := range ir.Exprs(cond) {
		switch e := e.(type) {
		case *ir.RowHas, *ir.RowMember, *ir.CounterValue:
			return true
		case *ir.VarRef:
			if let := f.lets[e.Var]; let != nil && f.depends(let) {
				return true
			}
		}
	}
	return false
}

// lookup puts a row into a table that a lookup would miss.
func (f *fitting) lookup(s *ir.Lookup, m sim.Moment) {
	t := s.Row.Table
	key, ok := m.Key(&t.Key, s.Key)
	if !ok {
		return
	}
	table := f.relay.Table(t.Name)
	there := m.Has(t, key)
	if t.Kind == "array" { // which has all rows, zeros at first
		there = there && !bytes.Equal(table.Get(key), make([]byte, t.Value.Size))
	}
	f.branches[s].took(there)
	key = slices.Clone(key)
	f.found[s.Row] = search{place{s, m.Receiver()}, key}
	if there || !f.want(s, m) {
		return
	}
	f.put(t, key)
}

// put puts a row with random values into a table; if its keys are prefixes, for one that covers the key.
func (f *fitting) put(t *ir.Table, key []byte) {
	f.changed = true
	key = slices.Clone(key)
	if t.Kind == "lpm" && !f.One(3) {
		shortest := 0
		if isMapped(key[4:]) {
			shortest = 96
		}
		binary.LittleEndian.PutUint32(key, uint32(shortest+f.IntN(129-shortest)))
	}
	if t.Session == nil {
		f.relay.Table(t.Name).Put(key, f.value(t, f.relay))
	} else if f.slot < len(f.relay.Slots) {
		f.session(t.Session, f.relay, f.slot, f.fieldsOf(t, key))
		f.slot++
	}
}

// row has a row that was looked up come or go. The next run keeps it so, and the first condition decides for all that
// ask for this row: rules in turn often do.
func (f *fitting) row(r *ir.Row, is, there bool) bool {
	by, known := f.found[r]
	if !known || r.Table.Kind == "array" {
		return is == there
	}
	id := rowKey{r.Table, string(by.key)}
	if decided, ok := f.rows[id]; ok && decided != there {
		return false
	}
	f.rows[id], f.wants[by.at] = there, there
	if is == there {
		return true
	}
	if there {
		f.put(r.Table, by.key)
		return true
	}
	table := f.relay.Table(r.Table.Name)
	if r.Table.Kind == "lpm" { // any prefix may cover the address
		prefix := slices.Clone(by.key)
		for length := range binary.LittleEndian.Uint32(by.key) {
			binary.LittleEndian.PutUint32(prefix, length)
			table.Delete(prefix)
		}
	}
	table.Delete(by.key)
	f.changed = true
	return true
}

// fieldsOf are the values of a session's fields that a key of one of its tables has, by their number; if several
// rows are in the table, of any of them.
func (f *fitting) fieldsOf(t *ir.Table, key []byte) map[int][]byte {
	rows := slices.DeleteFunc(slices.Clone(t.Session.Rows), func(r *ir.SessionRow) bool { return r.Table != t })
	row := rows[0]
	if len(rows) > 1 {
		row = rows[f.IntN(len(rows))]
	}
	fields := map[int][]byte{}
	i := 0
	for _, m := range t.Key.Members {
		if from := row.Key; !m.Hidden && i < len(from) {
			fields[from[i]] = key[m.Off : m.Off+m.Type.Size]
			i++
		}
	}
	return fields
}

// hop makes packets leave.
func (f *fitting) hop(s *ir.CheckHop, m sim.Moment) {
	if s.Hop.Row == nil || f.One(8) {
		return
	}
	b, ok := m.Member(&ir.RowMember{Row: s.Hop.Row, Member: s.Hop.Member})
	if ok && abi.HopState(b[abi.HopAt]) != ir.HopDirect {
		b[abi.HopAt], f.changed = byte(ir.HopDirect), true
	}
}

// group makes the row that a fan-out's key comes from name a group that there is: the kernel takes its time over new
// ones.
func (f *fitting) group(s *ir.FanOut, m sim.Moment) {
	key, ok := m.Key(&s.Group.Key, s.Key)
	all := f.relay.Group(s.Group.Name)
	keys := all.Keys()
	if _, known := all.Get(key); !ok || known || len(keys) == 0 || f.One(16) {
		return
	}
	to := []byte(Pick(f.Source, keys))
	for _, v := range s.Key {
		value := to[v.Member.Off : v.Member.Off+v.Member.Type.Size]
		switch v.Component {
		case ir.AddrOf:
			value = value[:16]
		case ir.PortOf:
			value = value[16:]
		}
		if v.Value.Type().IsBytes() {
			f.setBytes(m, v.Value, value)
		} else {
			f.set(m, v.Value, littleEndian(value))
		}
	}
}

func littleEndian(b []byte) uint64 {
	var word [8]byte
	copy(word[:], b)
	return binary.LittleEndian.Uint64(word[:])
}

// hold changes the state so that a condition holds, or doesn't, if it depends on the state.
func (f *fitting) hold(m sim.Moment, e ir.Expr, want bool) bool {
	v, ok := m.Uint(e)
	if has, is := e.(*ir.RowHas); ok && is {
		return f.row(has.Row, v != 0, want)
	}
	if !ok || (v != 0) == want {
		return ok
	}
	switch e := e.(type) {
	case *ir.VarRef:
		let := f.lets[e.Var]
		return let != nil && f.hold(m, let, want)
	case *ir.Not:
		return f.hold(m, e.X, !want)
	case *ir.Bin:
		x, y := e.X, e.Y
		switch {
		case e.Op < ir.Eq:
			return false
		case e.Op < ir.Land:
			return f.compare(m, e, want)
		case (e.Op == ir.Land) == want:
			return f.hold(m, x, want) && f.hold(m, y, want)
		case f.One(2):
			x, y = y, x
		}
		return f.hold(m, x, want) || f.hold(m, y, want)
	case *ir.BytesEq:
		return f.equal(m, e, want)
	case *ir.InPrefix:
		return f.address(m, e, e.X, want)
	case *ir.IsV4:
		return f.address(m, e, e.X, want)
	case *ir.Unicast:
		return f.address(m, e, e.X, want)
	case *ir.Multicast:
		return f.address(m, e, e.X, want)
	}
	return f.set(m, e, 1-v)
}

// The operators that hold if another one doesn't, and if its sides are exchanged.
var (
	negated = map[ir.BinOp]ir.BinOp{
		ir.Eq: ir.Ne, ir.Ne: ir.Eq, ir.Lt: ir.Ge, ir.Ge: ir.Lt, ir.Le: ir.Gt, ir.Gt: ir.Le,
	}
	mirrored = map[ir.BinOp]ir.BinOp{
		ir.Eq: ir.Eq, ir.Ne: ir.Ne, ir.Lt: ir.Gt, ir.Gt: ir.Lt, ir.Le: ir.Ge, ir.Ge: ir.Le,
	}
)

// compare changes one side of a comparison.
func (f *fitting) compare(m sim.Moment, e *ir.Bin, want bool) bool {
	op, x, y := e.Op, e.X, e.Y
	if !want {
		op = negated[op]
	}
	if f.One(2) {
		op, x, y = mirrored[op], y, x
	}
	for range 2 {
		if v, ok := m.Uint(y); ok && f.set(m, x, f.beside(op, v)) {
			return true
		}
		op, x, y = mirrored[op], y, x
	}
	return false
}

// beside is a number that an operator holds for, with v on its right side, if there is one: often the nearest.
func (f *fitting) beside(op ir.BinOp, v uint64) uint64 {
	near := uint64(1) << f.IntN(20)
	if f.One(2) {
		near = 1
	}
	switch op {
	case ir.Ne:
		return v ^ near
	case ir.Lt:
		return v - min(near, v)
	case ir.Gt:
		return v + near
	case ir.Le:
		return v - min(near-1, v)
	case ir.Ge:
		return v + near - 1
	}
	return v
}

// equal changes one side of a comparison of byte strings.
func (f *fitting) equal(m sim.Moment, e *ir.BytesEq, want bool) bool {
	x, y := e.X, e.Y
	if f.One(2) {
		x, y = y, x
	}
	for range 2 {
		if b, ok := m.Bytes(y); ok {
			b = slices.Clone(b)
			if !want {
				b[f.IntN(len(b))] ^= 1 << f.IntN(8)
			}
			if f.setBytes(m, x, b) {
				return true
			}
		}
		x, y = y, x
	}
	return false
}

// address changes an address until a condition on it holds, or doesn't.
func (f *fitting) address(m sim.Moment, cond, e ir.Expr, want bool) bool {
	for range 16 {
		a := f.Source.address().As16()
		if !f.setBytes(m, e, a[:]) {
			return false
		}
		if v, ok := m.Uint(cond); ok && (v != 0) == want {
			return true
		}
	}
	return false
}

// set changes the state so that an integer has a value; the packet and the settings stay as they are.
func (f *fitting) set(m sim.Moment, e ir.Expr, v uint64) bool {
	switch e := e.(type) {
	case *ir.Not, *ir.BytesEq, *ir.InPrefix, *ir.IsV4, *ir.Unicast, *ir.Multicast:
		return f.hold(m, e, v != 0)
	case *ir.VarRef:
		let := f.lets[e.Var]
		return let != nil && f.set(m, let, v)
	case *ir.Pick:
		branch, ok := chosen(m, e)
		return ok && f.set(m, branch, v)
	case *ir.CounterValue:
		return f.setCounter(m, e, v)
	case *ir.ByteAt:
		b, ok := m.Bytes(e.X)
		if !ok || v > 255 {
			return false
		}
		b = slices.Clone(b)
		b[e.Index] = byte(v)
		return f.setBytes(m, e.X, b)
	case *ir.RowMember:
		b, ok := m.Member(e)
		if bits := e.Type().Bits; !ok || bits < 64 && v>>bits != 0 {
			return false
		}
		var word [8]byte
		binary.LittleEndian.PutUint64(word[:], v)
		copy(b, word[:])
		f.changed = true
		return true
	case *ir.Bin:
		if e.Op >= ir.Eq {
			return f.hold(m, e, v != 0)
		}
		x, ok1 := m.Uint(e.X)
		y, ok2 := m.Uint(e.Y)
		if !ok1 || !ok2 {
			return false
		}
		if n, ok := left(e.Op, x, y, v); ok && f.set(m, e.X, n) {
			return true
		}
		n, ok := right(e.Op, x, y, v)
		return ok && f.set(m, e.Y, n)
	}
	return false
}

// setCounter sets a shared counter, often another one than the row has named so far, which other rows name as well.
func (f *fitting) setCounter(m sim.Moment, e *ir.CounterValue, v uint64) bool {
	index, ok := m.Member(&ir.RowMember{Row: e.Row, Member: e.Member})
	if !ok {
		return false
	}
	c, ok := m.Counter(e)
	if !ok || f.One(2) {
		binary.LittleEndian.PutUint32(index, 1+f.Uint32N(Watched-1))
		if c, ok = m.Counter(e); !ok {
			return false // the plan has fewer
		}
	}
	*c, f.changed = v, true
	return true
}

func chosen(m sim.Moment, e *ir.Pick) (ir.Expr, bool) {
	v, ok := m.Uint(e.If)
	if v != 0 {
		return e.Then, ok
	}
	return e.Else, ok
}

// left is what the left side of an operator has to be for a result, if its sides are x and y.
func left(op ir.BinOp, x, y, result uint64) (n uint64, ok bool) {
	switch op {
	case ir.Add, ir.Xor, ir.And, ir.Or, ir.Mul:
		return right(op, y, x, result)
	case ir.Sub:
		return result + y, true
	case ir.Div:
		return result * y, y != 0 && result*y/y == result
	case ir.Rem:
		return x - x%max(y, 1) + result, result < y
	case ir.Shl:
		return result >> y, y < 64 && result>>y<<y == result
	case ir.Shr:
		return result << y, y < 64 && result<<y>>y == result
	}
	return 0, false
}

// right is likewise what the right side has to be.
func right(op ir.BinOp, x, y, result uint64) (n uint64, ok bool) {
	switch op {
	case ir.Add:
		return result - x, true
	case ir.Sub:
		return x - result, true
	case ir.Xor:
		return result ^ x, true
	case ir.And:
		return y&^x | result, result&^x == 0
	case ir.Or:
		return result &^ x, x&^result == 0
	case ir.Mul:
		return result / max(x, 1), x != 0 && result%x == 0
	}
	return 0, false
}

// setBytes changes the state so that a byte string has a value.
func (f *fitting) setBytes(m sim.Moment, e ir.Expr, v []byte) bool {
	switch e := e.(type) {
	case *ir.VarRef:
		let := f.lets[e.Var]
		return let != nil && f.setBytes(m, let, v)
	case *ir.Pick:
		branch, ok := chosen(m, e)
		return ok && f.setBytes(m, branch, v)
	case *ir.RowMember:
		b, ok := m.Member(e)
		if !ok || len(b) != len(v) || bytes.Equal(b, v) {
			return ok && len(b) == len(v)
		}
		copy(b, v)
		f.changed = true
		return true
	}
	return false
}
