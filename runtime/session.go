package runtime

import (
	"container/heap"
	"errors"
	"fmt"
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

// AnySession is one object that user space registered: rows in one or several tables that count only together. It is
// open until Close, or until its lifetime or idle time has passed. Change gives it other values.
type AnySession struct {
	relay    *Relay
	desc     *abi.Session
	kind     int
	slot     uint32
	firstGen uint32                 // the generation that it was opened with, for its ID
	fields   atomic.Pointer[[]byte] // laid out as sessionKind says

	// What fields refer to: indices as in rows, and what they stand for, by field. They are set when the session is
	// opened or adopted, and stay.
	state  []byte
	refers [][]handle

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
// [*ValueError], a [*CollisionError] if another session has one of the keys, a [*FullError], or [ErrClosed].
func (r *Relay) Open(kind string, values ...any) (*AnySession, error) {
	k := slices.IndexFunc(r.desc.Sessions, func(d abi.Session) bool { return d.Name == kind })
	if k < 0 {
		return nil, fmt.Errorf("relay %q has no sessions of kind %q", r.desc.Name, kind)
	}
	fields, err := r.sessionKinds[k].layout.encodeAny(values)
	return r.openSession(k, fields, err)
}

// openSession is Open of fields that were laid out.
func (r *Relay) openSession(kind int, fields values, err error) (*AnySession, error) {
	if err != nil {
		return nil, err
	}
	s := &AnySession{relay: r, desc: &r.desc.Sessions[kind], kind: kind, queued: -1, done: make(chan struct{})}
	given, err := s.take(fields)
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

// take checks and stores fields, and returns what those begin with, or are set to, that refer to something.
func (s *AnySession) take(fields values) (starts [][]*first, err error) {
	k := s.of()
	if err := k.specified(fields.data); err != nil {
		return nil, err
	}
	starts = make([][]*first, len(k.members))
	for i := range k.members {
		m := &k.members[i]
		if m.Kind.IsState() {
			if fields.given == nil {
				continue
			}
			var have []handle
			if s.refers != nil {
				have = s.refers[i]
			}
			if starts[i], err = firsts(m, fields.given[i], have); err != nil {
				return nil, k.wrong(m, anyState(m, func(level int) handle { return fields.given[i][level] }),
					err.Error())
			}
			continue
		}
		ranges := s.desc.Fields[i].Ranges
		for one := range slices.Chunk(k.part(fields.data, i), m.Size/m.Count()) {
			if m.Kind != abi.KindUint || len(ranges) == 0 {
				break
			}
			n := getUint(one)
			if !slices.ContainsFunc(ranges, func(r [2]uint64) bool { return r[0] <= n && n <= r[1] }) {
				return nil, k.wrong(m, n, "is out of range: "+formatRanges(ranges))
			}
		}
	}
	s.fields.Store(&fields.data)
	return starts, nil
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
func (s *AnySession) Close() error { return s.relay.CloseSessions(s) }

// CloseSessions closes sessions of the relay as [AnySession.Close] does, and removes the rows of thousands with one
// system call for each table.
func (r *Relay) CloseSessions(sessions ...*AnySession) error {
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
func (r *Relay) end(cause error, sessions ...*AnySession) error {
	var rows []*tableRow
	var ending []*AnySession
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
func (s *AnySession) finish(cause error) {
	if !s.over {
		s.over, s.err = true, cause
		close(s.done)
	}
}

// Done is closed when the session is over.
func (s *AnySession) Done() <-chan struct{} { return s.done }

// Err says why the session is over: [ErrClosed] or [ErrExpired]. It is nil while the session is open.
func (s *AnySession) Err() error {
	s.relay.mu.Lock()
	defer s.relay.mu.Unlock()
	return s.err
}

// Kind returns the name of the session's kind.
func (s *AnySession) Kind() string { return s.desc.Name }

// Values returns the values of the fields in the order of the spec; of those that refer to a counter, a credit or a
// bucket that one, as a *[Counter], *[Credit] or *[Bucket], or a slice of one for each level of priority.
func (s *AnySession) Values() []any {
	return s.of().decodeAny(*s.fields.Load(), s.refersTo)
}

// refersTo returns what a level of a field refers to.
func (s *AnySession) refersTo(field, level int) handle { return s.refers[field][level] }

// String names the session by its kind and fields, without counters, credits and buckets.
func (s *AnySession) String() string {
	var b strings.Builder
	b.WriteString(s.desc.Name)
	for i, v := range s.of().decodeAny(*s.fields.Load(), func(int, int) handle { return handle{} }) {
		if f := s.desc.Fields[i]; !f.Kind.IsState() {
			fmt.Fprintf(&b, " %s=%v", f.Name, formatValue(v))
		}
	}
	return b.String()
}

// Counters returns the packets and bytes of each row, in the order of the spec: what was sent for it, counted as it
// came. It returns the session's Err if the session is over.
func (s *AnySession) Counters() ([]Count, error) {
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
// if none was. It returns the session's Err if the session is over.
func (s *AnySession) LastUsed() (time.Time, error) {
	s.relay.mu.Lock()
	defer s.relay.mu.Unlock()
	last, err := s.lastUsed()
	if last == 0 || err != nil {
		return time.Time{}, err
	}
	return s.relay.clock.time(last), nil
}

// lastUsed returns when a packet was last sent, in jiffies; 0: never. relay.mu is held.
func (s *AnySession) lastUsed() (last uint64, err error) {
	err = s.eachUsage(func(b []byte) { last = max(last, abi.Order.Uint64(b[abi.UsageLast:])) })
	return last, err
}

// eachUsage visits the session's usage on each processor. relay.mu is held.
func (s *AnySession) eachUsage(visit func([]byte)) error {
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
