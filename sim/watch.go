package sim

import "github.com/fastrelay/fastrelay-gen/gen/ir"

// Moment is a run between two statements, as Relay.Watch sees it: what expressions mean there. An expression that has
// no meaning there, such as a member of a row that wasn't found, isn't ok.
type Moment struct{ run *run }

// Uint evaluates an integer or a condition.
func (m Moment) Uint(e ir.Expr) (v uint64, ok bool) {
	ok = m.try(func(r *run) { v = r.uint(e) })
	return v, ok
}

// Bytes evaluates a byte string.
func (m Moment) Bytes(e ir.Expr) (b []byte, ok bool) {
	ok = m.try(func(r *run) { b = r.bytes(e) })
	return b, ok
}

// Member returns the bytes of the row that an expression reads: the relay's own, which a watcher may change before the
// state is copied (CopyState).
func (m Moment) Member(e *ir.RowMember) (b []byte, ok bool) {
	ok = m.try(func(r *run) { b = r.memberOf(e) })
	return b, ok
}

// Counter returns the shared counter that an expression reads; if its row names none, it isn't ok.
func (m Moment) Counter(e *ir.CounterValue) (c *uint64, ok bool) {
	ok = m.try(func(r *run) { c = r.shared(e.Row, e.Member) })
	return c, ok && c != nil
}

// Key puts values into the layout of a key.
func (m Moment) Key(s *ir.Struct, values []ir.MemberValue) (key []byte, ok bool) {
	ok = m.try(func(r *run) { key = r.layout(s, values) })
	return key, ok
}

// Has reports whether a table has a row for a key.
func (m Moment) Has(t *ir.Table, key []byte) bool { return m.run.relay.tables[t].lookup(key) != nil }

// Receiver is the identity of the receiver whose turn it is in a fan-out; 0 outside of one.
func (m Moment) Receiver() uint32 {
	if m.run.turn == nil {
		return 0
	}
	return m.run.turn.Receiver
}

// try reports whether the plan doesn't contradict itself in f; if it does, the run goes on as if f had not been called.
func (m Moment) try(f func(*run)) bool {
	if m.run.err != nil {
		return false
	}
	f(m.run)
	ok := m.run.err == nil
	m.run.err = nil
	return ok
}
