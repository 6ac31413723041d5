package runtime

import (
	"bytes"
	"cmp"
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/fastrelay/fastrelay-gen/runtime/abi"
	"github.com/fastrelay/fastrelay-gen/runtime/internal/nldump"
	"github.com/fastrelay/fastrelay-gen/runtime/internal/seek"
)

// What an operator's tools look at. Nothing here holds a lock for longer than it takes to look at some thousand
// entries, so that packets, and servers that open sessions, don't wait while 64,000 are listed.

// lookAtOnce is how many entries are looked at before others get their turn.
const lookAtOnce = 1024

func init() {
	seek.Sessions, seek.Groups, seek.Rows = (*Relay).sessionsFrom, (*AnyGroups).afterKey, (*AnyTable).rowsAfter
}

// inBatches visits the values of a map that mu guards. One that is there all the time is visited once.
func inBatches[K comparable, V any](mu sync.Locker, all map[K]V, visit func(V)) {
	mu.Lock()
	defer mu.Unlock()
	n := 0
	for _, v := range all {
		visit(v)
		if n++; n%lookAtOnce == 0 { // the map may change between two steps of the loop
			mu.Unlock()
			mu.Lock()
		}
	}
}

// Lease returns for how long the kernel goes on forwarding after the process has died, and how much of that is left
// now. The relay renews it four times in that time.
func (r *Relay) Lease() (length, left time.Duration) {
	if err := r.using(func() error {
		left = time.Until(r.clock.time(r.lease.Load64(0, abi.LeaseDeadline)))
		return nil
	}); err != nil {
		return r.opt.Lease, 0
	}
	return r.opt.Lease, max(left, 0)
}

// Settings returns the values of the settings, in the order of the spec.
func (r *Relay) Settings() []any {
	var out []any
	for _, s := range r.desc.Settings {
		v, ok := r.opt.Settings[s.Name]
		if !ok {
			v = s.Default
		}
		buf := make([]byte, s.Size)
		_ = encode(buf, s.Kind, s.Bits, v) // the relay was loaded with it
		out = append(out, decode(buf, s.Kind))
	}
	return out
}

// ID identifies the session among all that the relay ever opened, those before an adoption included (but for 2³² in
// one slot). It is never 0. A session that was changed has another ID after an adoption.
func (s *AnySession) ID() uint64 { return uint64(s.firstGen)<<32 | uint64(s.slot) }

// Session returns the open session with an ID; an error that wraps [ErrNotFound] if there is none.
func (r *Relay) Session(id uint64) (*AnySession, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s := r.sessions[uint32(id)]; s != nil && s.ID() == id {
		return s, nil
	}
	return nil, fmt.Errorf("relay %q: session %#x: %w", r.desc.Name, id, ErrNotFound)
}

// Sessions iterates over the open sessions, adopted ones included, in the order of their slots. A session that is open
// all the time comes once; one that is opened or closed meanwhile may come.
func (r *Relay) Sessions() iter.Seq[*AnySession] { return r.sessionsFrom(0) }

// sessionsFrom is Sessions from a slot on.
func (r *Relay) sessionsFrom(slot uint64) iter.Seq[*AnySession] {
	return func(yield func(*AnySession) bool) {
		for from := slot; from < uint64(r.desc.Slots); from += lookAtOnce {
			var some []*AnySession
			r.mu.Lock()
			for slot := range uint64(lookAtOnce) {
				if s := r.sessions[uint32(from+slot)]; s != nil {
					some = append(some, s)
				}
			}
			r.mu.Unlock()
			for _, s := range some {
				if !yield(s) {
					return
				}
			}
		}
	}
}

// NextHop says how packets leave from one address to another, or why they don't.
type NextHop struct {
	From netip.Addr // invalid: packets keep the source that they have
	To   netip.Addr
	// Proto, FromPort and ToPort are the IP protocol and the ports of the packets, if a routing rule or an xfrm
	// policy for the addresses asks for them; 0 if none does, or if they aren't known.
	Proto            uint8
	FromPort, ToPort uint16
	Router           bool // To is a router, as in `send: via`
	Hop
	Rows int // how many rows of sessions, tables and receivers need it
	// Copies says that a receiver needs it: unlike a single packet, a copy isn't sent if the neighbour's link-layer
	// address isn't known.
	Copies bool
}

// Missing reports whether packets can't leave so at present.
func (h NextHop) Missing() bool {
	return h.State != HopDirect && (h.State != HopNeighbour || h.Copies)
}

func (e *hop) public() NextHop {
	out := NextHop{
		From: e.key.From, To: e.key.To, Router: e.key.Router,
		Proto: e.key.Flow.Proto, FromPort: e.key.Flow.FromPort, ToPort: e.key.Flow.ToPort,
		Hop: e.now, Rows: len(e.rows),
	}
	for row := range e.rows {
		if out.Copies = row.receiver != nil; out.Copies || len(row.table.relay.groups) == 0 {
			break
		}
	}
	return out
}

// nextHops returns the next hops of a row as the kernel's programs have them.
func (row *tableRow) nextHops() (out []NextHop) {
	for _, h := range row.hops {
		out = append(out, NextHop{
			From: h.traffic.From, To: h.traffic.To, Router: h.traffic.Router, Hop: getHop(row.value[h.off:]), Rows: 1,
			Copies: row.receiver != nil,
		})
	}
	return out
}

// NextHops returns the next hops of the session's rows, in the order of the spec; none if the session is over.
func (s *AnySession) NextHops() []NextHop {
	s.relay.mu.Lock()
	defer s.relay.mu.Unlock()
	var out []NextHop
	for _, row := range s.rows {
		if !s.over {
			out = append(out, row.nextHops()...)
		}
	}
	return out
}

// NextHops returns how packets leave towards the receiver, as [AnyReceiver.Hops] does, with the addresses.
func (v *AnyReceiver) NextHops() []NextHop {
	f := v.group.kind.relay.lists
	f.mu.Lock()
	defer f.mu.Unlock()
	if v.row == nil {
		return nil
	}
	return v.row.nextHops()
}

// NextHops returns all next hops that rows need, ordered by where they lead.
func (r *Relay) NextHops() []NextHop {
	if r.hops == nil {
		return nil
	}
	var out []NextHop
	inBatches(&r.mu, r.hops.byKey, func(h *hop) { out = append(out, h.public()) })
	slices.SortFunc(out, NextHop.Compare)
	return out
}

// NextHopChanges returns how often next hops of rows have changed. While it stays the same, so does what NextHops of a
// session or a receiver returns: it takes no lock, so it can be asked for each packet. It begins anew with each
// process.
func (r *Relay) NextHopChanges() uint64 {
	if r.hops == nil {
		return 0
	}
	return r.hops.changes.Load()
}

// destination is To, with the port if it matters.
func (h NextHop) destination() any {
	if h.ToPort != 0 {
		return netip.AddrPortFrom(h.To, h.ToPort)
	}
	return h.To
}

// Compare orders next hops by what they are for: first by where they lead.
func (h NextHop) Compare(other NextHop) int {
	router := func(h NextHop) int {
		if h.Router {
			return 1
		}
		return 0
	}
	return cmp.Or(h.To.Compare(other.To), h.From.Compare(other.From), cmp.Compare(h.Proto, other.Proto),
		cmp.Compare(h.FromPort, other.FromPort), cmp.Compare(h.ToPort, other.ToPort),
		cmp.Compare(router(h), router(other)))
}

// RowInfo is a row with all that belongs to it.
type RowInfo struct {
	AnyRow
	Session *AnySession // whose row it is; nil: of none
	Hops    []NextHop   // as the kernel's programs have them
}

// rowsAfter iterates over the rows after a key, in the order of the bytes of their keys; nil is before all of them. A
// row that is there all the time comes once. It reads the whole table first, without a lock. Of an array, rows that are
// all zero are left out.
func (t *AnyTable) rowsAfter(key []any) (iter.Seq[RowInfo], error) {
	var after values
	var err error
	if key != nil {
		if after, err = t.keyLayout().encodeAny(key); err != nil {
			return nil, err
		}
	}
	rows, err := t.scan()
	if err != nil {
		return nil, err
	}
	rows = slices.DeleteFunc(rows, func(row rowBytes) bool { return bytes.Compare(row.key, after.data) <= 0 })
	slices.SortFunc(rows, func(a, b rowBytes) int { return bytes.Compare(a.key, b.key) })
	return func(yield func(RowInfo) bool) {
		for _, row := range rows {
			if !yield(t.info(row.key, row.value)) {
				return
			}
		}
	}, nil
}

// Row returns a row with all that belongs to it; an error that wraps [ErrNotFound] if there is none.
func (t *AnyTable) Row(key ...any) (RowInfo, error) {
	k, err := t.anyKey(key)
	if err != nil {
		return RowInfo{}, err
	}
	v, err := t.find(k)
	if err != nil {
		return RowInfo{}, err
	}
	return t.info(k, v), nil
}

func (t *AnyTable) info(key, value []byte) RowInfo {
	out := RowInfo{AnyRow: AnyRow{t.keyValues(key), t.anyValue(value)}}
	if t.desc.Bound() {
		t.relay.mu.Lock()
		out.Session = t.relay.holder(t.slotOf(value))
		t.relay.mu.Unlock()
	}
	row := &tableRow{table: t, key: key, value: value}
	if row.findHops() == nil { // else it is a row of a process that had other rules
		out.Hops = row.nextHops()
	}
	return out
}

// PinPath returns where the relay is pinned; "": nowhere.
func (r *Relay) PinPath() string { return r.opt.PinPath }

// Interfaces returns the names of the interfaces in the relay's network namespace, by their index.
func (r *Relay) Interfaces() (names map[int]string, err error) {
	err = r.using(func() error {
		return r.inNamespace(func() error {
			all, err := nldump.List(netlink.LinkList)
			if err != nil {
				return err
			}
			names = make(map[int]string, len(all))
			for _, l := range all {
				names[l.Attrs().Index] = l.Attrs().Name
			}
			return nil
		})
	})
	return names, err
}
