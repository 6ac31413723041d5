package runtime

import (
	"container/heap"
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/fastrelay/fastrelay-gen/runtime/abi"
	"github.com/fastrelay/fastrelay-gen/runtime/internal/mapmem"
)

// idleGrace is by how much the kernel's deadline exceeds a session's idle time: user space, which alone knows
// the last use, looks in between.
const idleGrace = time.Second

// A Session is one object that user space registered: rows in one or several tables that count only together. It is
// open until Close, or until its lifetime or idle time has passed. Change gives it other values.
type Session struct {
	relay  *Relay
	desc   *abi.Session
	kind   int
	slot   uint32
	born   uint32                   // the generation that it was opened with, for its ID
	fields atomic.Pointer[[][]byte] // encoded

	// What fields refer to: indices as in rows, 4 bytes a field, and what they stand for. They are set when the session
	// is opened or adopted, and stay.
	state   []byte
	handles []any

	// Guarded by relay.mu.
	gen     uint32
	rows    []*tableRow
	over    bool
	err     error
	expires time.Time // end of its lifetime; zero: none
	idle    time.Time // end of its idle time unless it is used; zero: none
	queued  int       // index in relay.expiries; -1: not there

	done chan struct{}
}

// Open opens a session with the values of its fields, in the order of the spec. Its rows appear all at once or not at
// all. A counter is given as its first value, a credit as its limit, a bucket as a [Rate]; each may be nil, for 0.
//
// Addresses must be those that packets carry: valid, specified, no loopback, without a zone; and where packets are sent
// from or to, those of hosts. The two ends of a path that packets take must be of one IP family. An error is a
// [*ValueError], a [*CollisionError] where another session has one of the keys, a [*FullError], or [ErrClosed].
func (r *Relay) Open(kind string, values ...any) (*Session, error) {
	k := slices.IndexFunc(r.desc.Sessions, func(d abi.Session) bool { return d.Name == kind })
	if k < 0 {
		return nil, fmt.Errorf("relay %q has no sessions of kind %q", r.desc.Name, kind)
	}
	s := &Session{relay: r, desc: &r.desc.Sessions[k], kind: k, queued: -1, done: make(chan struct{})}
	if err := s.encode(values); err != nil {
		return nil, err
	}
	given, err := s.givenState(values)
	if err != nil {
		return nil, err
	}
	if err := s.makeRows(); err != nil {
		return nil, err
	}
	if r.hops != nil {
		r.hops.prepare(s.rows)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, fmt.Errorf("open %v: relay: %w", s, ErrClosed)
	}
	if r.draining.on {
		return nil, fmt.Errorf("open %v: %w", s, ErrDraining)
	}
	if err := r.register(s, given); err != nil {
		return nil, fmt.Errorf("open %v: %w", s, err)
	}
	return s, nil
}

// encode checks and stores the values of the fields.
func (s *Session) encode(values []any) error {
	d := s.desc
	var fields [][]byte
	if len(values) != len(d.Fields) {
		var names []string
		for _, f := range d.Fields {
			names = append(names, f.Name)
		}
		return fmt.Errorf("session %q: %d values given, %d needed (%s)", d.Name, len(values), len(d.Fields),
			strings.Join(names, ", "))
	}
	for i, f := range d.Fields {
		bad := func(format string, args ...any) error {
			return &ValueError{
				Where: fmt.Sprintf("session %q, %q", d.Name, f.Name), Value: values[i],
				Reason: fmt.Sprintf(format, args...),
			}
		}
		buf := make([]byte, f.Size)
		if f.Kind.IsState() {
			fields = append(fields, nil)
			continue
		}
		if err := encodeLevels(buf, f.Kind, f.Bits, f.Levels, values[i]); err != nil {
			return bad("%s", err)
		}
		for one := range slices.Chunk(buf, len(buf)/max(f.Levels, 1)) {
			switch f.Kind {
			case abi.KindAddr, abi.KindEndpoint:
				if why := notCarried(getAddr(one)); why != "" {
					return bad("%s", why)
				}
			case abi.KindUint:
				n := getUint(one)
				if len(f.Ranges) > 0 && !slices.ContainsFunc(f.Ranges, func(r [2]uint64) bool {
					return r[0] <= n && n <= r[1]
				}) {
					return bad("is out of range: %s", formatRanges(f.Ranges))
				}
			}
		}
		fields = append(fields, buf)
	}
	s.fields.Store(&fields)
	return nil
}

func formatRanges(ranges [][2]uint64) string {
	var parts []string
	for _, r := range ranges {
		if r[0] == r[1] {
			parts = append(parts, fmt.Sprintf("%#x", r[0]))
		} else {
			parts = append(parts, fmt.Sprintf("%#x to %#x", r[0], r[1]))
		}
	}
	return strings.Join(parts, ", ")
}

// Close ends the session: from now on none of its rows counts, in any direction. Closing a session that is over does
// nothing.
func (s *Session) Close() error { return s.relay.CloseSessions(s) }

// CloseSessions closes sessions of the relay as [Session.Close] does, and removes the rows of thousands with one system
// call for each table.
func (r *Relay) CloseSessions(sessions ...*Session) error {
	for _, s := range sessions {
		if s.relay != r {
			return fmt.Errorf("close %v: it is a session of another relay", s)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.end(ErrClosed, sessions...)
}

// end closes the slots first, which turns all rows into misses at once, and then removes them. Sessions that are over
// are left out. r.mu is held.
func (r *Relay) end(cause error, sessions ...*Session) error {
	var rows []*tableRow
	var ending []*Session
	for _, s := range sessions {
		if s.over {
			continue
		}
		r.slots.mem.Store32(s.slot, abi.SlotGen, 0)
		r.slots.mem.Store64(s.slot, abi.SlotDeadline, 0)
		delete(r.sessions, s.slot)
		r.open[s.kind]--
		if s.queued >= 0 {
			heap.Remove(&r.expiries, s.queued)
		}
		s.finish(cause)
		ending, rows = append(ending, s), append(rows, s.rows...)
	}
	errs := r.remove(rows...)
	r.noteStale()
	var all error
	for _, s := range ending {
		r.endState(s)
		r.slots.put(s.slot)
		if err := errors.Join(errs[:len(s.rows)]...); err != nil {
			err = fmt.Errorf("close %v: it is closed, but a row remains until its key is used again: %w", s, err)
			all = errors.Join(all, err)
		}
		errs = errs[len(s.rows):]
	}
	if r.draining.done != nil {
		r.lists.mu.Lock()
		defer r.lists.mu.Unlock()
		r.noteDrained()
	}
	return all
}

// finish marks the session as over. relay.mu is held.
func (s *Session) finish(cause error) {
	if !s.over {
		s.over, s.err = true, cause
		close(s.done)
	}
}

// Done is closed when the session is over.
func (s *Session) Done() <-chan struct{} { return s.done }

// Err says why the session is over: [ErrClosed] or [ErrExpired]. It is nil while the session is open.
func (s *Session) Err() error {
	s.relay.mu.Lock()
	defer s.relay.mu.Unlock()
	return s.err
}

// Kind returns the name of the session's kind.
func (s *Session) Kind() string { return s.desc.Name }

// Values returns the values of the fields in the order of the spec; of those that refer to a counter, a credit or a
// bucket that one, as a *[Counter], *[Credit] or *[Bucket], or a slice of one for each level of priority.
func (s *Session) Values() []any {
	var out []any
	fields := *s.fields.Load()
	for i, f := range s.desc.Fields {
		if f.Kind.IsState() {
			out = append(out, s.handles[i])
			continue
		}
		out = append(out, decodeLevels(fields[i], f.Kind, f.Levels))
	}
	return out
}

// String names the session by its kind and fields, without counters, credits and buckets.
func (s *Session) String() string {
	var b strings.Builder
	b.WriteString(s.desc.Name)
	fields := *s.fields.Load()
	for i, f := range s.desc.Fields {
		if f.Kind.IsState() {
			continue
		}
		fmt.Fprintf(&b, " %s=%v", f.Name, formatValue(decodeLevels(fields[i], f.Kind, f.Levels)))
	}
	return b.String()
}

// Counters returns the packets and bytes of each row, in the order of the spec: what was sent for it, counted as it
// came. It returns the session's Err where the session is over.
func (s *Session) Counters() ([]Count, error) {
	s.relay.mu.Lock()
	defer s.relay.mu.Unlock()
	out := make([]Count, len(s.rows))
	err := s.eachUsage(func(b []byte) {
		for i := range out {
			row := b[abi.UsageRows+abi.ReasonSize*i:]
			out[i].Packets += abi.Order.Uint64(row[abi.ReasonPackets:])
			out[i].Bytes += abi.Order.Uint64(row[abi.ReasonBytes:])
		}
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// LastUsed returns when a packet was last sent for the session, to the precision of the kernel's tick; the zero time
// where none was. It returns the session's Err where the session is over.
func (s *Session) LastUsed() (time.Time, error) {
	s.relay.mu.Lock()
	defer s.relay.mu.Unlock()
	last, err := s.lastUsed()
	if last == 0 || err != nil {
		return time.Time{}, err
	}
	return s.relay.clock.time(last), nil
}

// lastUsed returns when a packet was last sent, in jiffies; 0: never. relay.mu is held.
func (s *Session) lastUsed() (last uint64, err error) {
	err = s.eachUsage(func(b []byte) { last = max(last, abi.Order.Uint64(b[abi.UsageLast:])) })
	return last, err
}

// eachUsage visits the session's usage on each processor. relay.mu is held.
func (s *Session) eachUsage(visit func([]byte)) error {
	if s.over {
		return s.err
	}
	buf, err := s.relay.slots.usage.LookupBytes(s.slot)
	if err != nil {
		return fmt.Errorf("%v: read its counters: %w", s, err)
	}
	size := mapmem.Stride(int(s.relay.slots.usage.ValueSize()))
	for ; len(buf) >= size; buf = buf[size:] {
		visit(buf)
	}
	return nil
}

// Sessions returns the open sessions, adopted ones included, in a stable order.
func (r *Relay) Sessions() iter.Seq[*Session] {
	return func(yield func(*Session) bool) {
		r.mu.Lock()
		all := make([]*Session, 0, len(r.sessions))
		for _, s := range r.sessions {
			all = append(all, s)
		}
		r.mu.Unlock()
		slices.SortFunc(all, func(a, b *Session) int { return int(a.slot) - int(b.slot) })
		for _, s := range all {
			if !yield(s) {
				return
			}
		}
	}
}

func formatValue(v any) any {
	switch v := v.(type) {
	case netip.AddrPort, netip.Addr, netip.Prefix:
		return v
	case []byte:
		return fmt.Sprintf("%x", v)
	case uint64:
		return fmt.Sprintf("%#x", v)
	case []any:
		var all []any
		for _, one := range v {
			all = append(all, formatValue(one))
		}
		return all
	}
	return v
}

// OpenSessions returns how many sessions of a kind are open.
func (r *Relay) OpenSessions(kind string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, d := range r.desc.Sessions {
		if d.Name == kind && !r.closed {
			return r.open[i]
		}
	}
	return 0
}
