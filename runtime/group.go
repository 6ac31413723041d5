package runtime

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"

	"github.com/cilium/ebpf"

	"github.com/fastrelay/fastrelay-gen/runtime/abi"
)

// AnyGroups is a kind of group. A group has a key, which packets are looked up by, and a list of receivers, each of
// which gets a copy of a packet. A receiver is a row of values, and what belongs to it as long as it is there: its
// identity, counters, credits and translations.
//
// Everything that changes a list or a receiver is in force when the call returns, and takes effect at once: a packet
// reaches the receivers from before the change or those from after it, with their values, never a mixture, and none of
// them twice. See [AnyGroup.Change] for several changes in one step, and docs/operate.md for what a change costs.
type AnyGroups struct {
	relay *Relay
	desc  *abi.Group
	plain []abi.Member // desc.Receiver; what is no plain value is hidden

	outer   *ebpf.Map     // key -> list
	list    *ebpf.MapSpec // of a list
	rows    *ebpf.Map     // of receivers
	credits *creditBlocks // by identity

	// Guarded by relay.lists.mu.
	open  map[string]*AnyGroup // by key; those that are being opened or closed as well
	ids   []uint32             // free identities; those freed last are reused last
	live  map[uint32]*AnyReceiver
	free  []uint32    // rows that no list has
	spare []*ebpf.Map // lists that no program reads any more
}

func newGroupKind(r *Relay, d *abi.Group, spec *ebpf.CollectionSpec, blocks *creditBlocks) *AnyGroups {
	k := &AnyGroups{
		relay: r, desc: d, plain: slices.Clone(d.Receiver), credits: blocks,
		outer: r.coll.Maps[abi.GroupPrefix+d.Name], rows: r.coll.Maps[abi.RowsPrefix+d.Name],
		open: map[string]*AnyGroup{}, live: map[uint32]*AnyReceiver{},
	}
	k.list = spec.Maps[abi.GroupPrefix+d.Name].InnerMap.Copy()
	for i := range k.plain {
		k.plain[i].Hidden = k.plain[i].Hidden || k.plain[i].Kind.IsState()
	}
	for i := range d.Rows {
		k.ids = append(k.ids, uint32(d.Base+i))
	}
	for i := range d.Rows + d.Max {
		k.free = append(k.free, uint32(i))
	}
	return k
}

// Desc returns the description of the kind.
func (k *AnyGroups) Desc() *abi.Group { return k.desc }

func (k *AnyGroups) where() string { return fmt.Sprintf("group %q", k.desc.Name) }

// Open opens a group without receivers, by the values of its key. It waits as [AnyGroup.Change] does. Errors: an
// [*ExistsError], a [*FullError], a [*ValueError], [ErrClosed].
func (k *AnyGroups) Open(ctx context.Context, key ...any) (*AnyGroup, error) {
	b, err := k.anyKey(key)
	if err != nil {
		return nil, err
	}
	return k.openKey(ctx, b)
}

// openKey is Open of a key as bytes.
func (k *AnyGroups) openKey(ctx context.Context, b []byte) (*AnyGroup, error) {
	err := ctx.Err()
	if err != nil {
		return nil, err
	}
	f := k.relay.lists
	g := &AnyGroup{kind: k, key: b}
	f.mu.Lock()
	switch other := k.open[string(b)]; {
	case f.over:
		err = fmt.Errorf("open %v: relay: %w", g, ErrClosed)
	case k.relay.draining.on:
		err = fmt.Errorf("open %v: %w", g, ErrDraining)
	case other != nil:
		err = &ExistsError{Group: other}
	case len(k.open) >= k.desc.Size:
		err = &FullError{What: k.where(), Size: k.desc.Size}
	}
	if err != nil {
		f.mu.Unlock()
		return nil, err
	}
	k.open[string(b)] = g
	wait := f.plan(g)
	f.mu.Unlock()
	if err := wait(ctx); err != nil {
		return nil, fmt.Errorf("open %v: %w", g, err)
	}
	return g, nil
}

// Get returns the open group with a key; an error that wraps [ErrNotFound] if there is none.
func (k *AnyGroups) Get(key ...any) (*AnyGroup, error) {
	b, err := k.anyKey(key)
	if err != nil {
		return nil, err
	}
	return k.find(b)
}

// find is Get of a key as bytes.
func (k *AnyGroups) find(b []byte) (*AnyGroup, error) {
	f := k.relay.lists
	f.mu.Lock()
	defer f.mu.Unlock()
	if g := k.open[string(b)]; g != nil && g.isOpen() {
		return g, nil
	}
	return nil, fmt.Errorf("%v: %w", &AnyGroup{kind: k, key: b}, ErrNotFound)
}

// All iterates over the open groups, adopted ones included, in the order of their keys' bytes. A group that is open all
// the time comes once; one that is opened or closed meanwhile may come.
func (k *AnyGroups) All() iter.Seq[*AnyGroup] { return k.after(nil) }

// afterKey is All after a key.
func (k *AnyGroups) afterKey(key []any) (iter.Seq[*AnyGroup], error) {
	b, err := k.anyKey(key)
	return k.after(b), err
}

func (k *AnyGroups) after(key []byte) iter.Seq[*AnyGroup] {
	return func(yield func(*AnyGroup) bool) {
		var all []*AnyGroup
		inBatches(&k.relay.lists.mu, k.open, func(g *AnyGroup) {
			if g.isOpen() && bytes.Compare(g.key, key) > 0 {
				all = append(all, g)
			}
		})
		slices.SortFunc(all, func(a, b *AnyGroup) int { return bytes.Compare(a.key, b.key) })
		for _, g := range all {
			if !yield(g) {
				return
			}
		}
	}
}

// Count returns how many groups are open, and how many receivers they have.
func (k *AnyGroups) Count() (groups, receivers int) {
	f := k.relay.lists
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, g := range k.open {
		if g.isOpen() {
			groups++
			receivers += len(g.list)
		}
	}
	return groups, receivers
}

func (k *AnyGroups) anyKey(key []any) ([]byte, error) {
	return k.checkKey(k.keyLayout().encodeAny(key))
}

// checkKey refuses addresses that no packet carries, in a key that was laid out.
func (k *AnyGroups) checkKey(key values, err error) ([]byte, error) {
	if err != nil {
		return nil, err
	}
	return key.data, k.keyLayout().specified(key.data)
}

func (k *AnyGroups) keyLayout() layout {
	return layout{k.where() + ", key", k.desc.Key, k.desc.KeySize}
}

// rowLayout is that of the plain values of a receiver.
func (k *AnyGroups) rowLayout() layout {
	return layout{k.where() + ", receiver", k.plain, k.desc.ReceiverSize}
}

// specified refuses addresses that no packet carries.
func (l layout) specified(b []byte) error {
	for _, m := range l.members {
		if m.Kind != abi.KindAddr && m.Kind != abi.KindEndpoint || m.Hidden {
			continue
		}
		for one := range slices.Chunk(b[m.Off:m.Off+m.Size], m.Size/m.Count()) {
			if why := notCarried(getAddr(one)); why != "" {
				return l.wrong(&m, decode(one, m.Kind), why)
			}
		}
	}
	return nil
}

// eachLive visits the receivers, those that are being added or removed included.
func (k *AnyGroups) eachLive(visit func(*AnyReceiver)) {
	k.relay.lists.mu.Lock()
	defer k.relay.lists.mu.Unlock()
	for _, v := range k.live {
		visit(v)
	}
}

// AnyGroup sends each packet that has its key to its receivers. It is open until Close. Its methods may be called from
// any goroutine.
type AnyGroup struct {
	kind  *AnyGroups
	key   []byte
	typed typed

	// All below is guarded by relay.lists.mu. What is planned is what the callers of changes want; the kernel follows.
	plan    []*AnyReceiver
	leaving []*AnyReceiver // no longer planned, and not yet freed
	closing bool
	stale   bool   // the next hop of a receiver has changed
	version uint64 // of what is planned
	waiters []waiter
	queued  bool // in the committer's queue

	// What the kernel has; written by the committer alone.
	list       []*AnyReceiver
	inner      *ebpf.Map
	installed  bool
	committing bool // the committer is at it
	over       bool // closed
}

func (g *AnyGroup) isOpen() bool { return g.installed && !g.over && !g.closing }

// Kind returns the kind of the group.
func (g *AnyGroup) Kind() *AnyGroups { return g.kind }

// Key returns the values of the key, in the order of the spec.
func (g *AnyGroup) Key() []any { return g.kind.keyLayout().decodeAny(g.key, nil) }

// Receivers returns the receivers, in the order in which packets are sent to them.
func (g *AnyGroup) Receivers() []*AnyReceiver {
	f := g.kind.relay.lists
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(g.list)
}

// Len returns how many receivers the group has.
func (g *AnyGroup) Len() int {
	f := g.kind.relay.lists
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(g.list)
}

// Add adds a receiver after the others, with the values of its members in the order of the spec; counters, credits and
// translations have none. Its credits' limits are 0: see [AnyGroup.Change] for setting them before the first packet
// comes. Errors: a [*ValueError], a [*FullError], [ErrClosed].
func (g *AnyGroup) Add(ctx context.Context, values ...any) (v *AnyReceiver, err error) {
	err = g.Change(ctx, func(c *AnyChange) error {
		v, err = c.Add(values...)
		return err
	})
	if err != nil {
		return nil, err
	}
	return v, nil
}

// Close closes the group: no packet reaches its receivers any more when it returns, and all that they had is free.
// Closing a group that is closed does nothing. If the kernel refuses, the group stays as it was, and may be closed
// again. Close waits as [AnyGroup.Change] does.
func (g *AnyGroup) Close(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	f := g.kind.relay.lists
	f.mu.Lock()
	if g.over || f.over {
		f.mu.Unlock()
		return nil
	}
	var wait waitFunc
	if g.closing { // another goroutine closes it
		wait = f.wait(g)
	} else {
		g.closing = true
		wait = f.plan(g)
	}
	f.mu.Unlock()
	if err := wait(ctx); err != nil && !errors.Is(err, ErrClosed) {
		return fmt.Errorf("close %v: %w", g, err)
	}
	return nil
}

// String names the group by its kind and key.
func (g *AnyGroup) String() string {
	var b strings.Builder
	b.WriteString(g.kind.desc.Name)
	i := 0
	for _, v := range g.Key() {
		fmt.Fprintf(&b, " %s=%v", g.kind.desc.Key[i].Name, formatValue(v))
		i++
	}
	return b.String()
}

// typed is the group or the receiver with types: one for its whole life.
type typed struct {
	once sync.Once
	is   any // a *Group or a *Receiver
}

func (t *typed) get(make func() any) any {
	t.once.Do(func() { t.is = make() })
	return t.is
}

// AnyReceiver is one receiver of a group. It is the same one, with the same identity, counters, credits and
// translations, until it is removed, whatever becomes of its values. Its methods may be called from any goroutine.
type AnyReceiver struct {
	group  *AnyGroup
	id     uint32
	state  []byte     // a row that has its identity and what it refers to, and no values
	refers [][]handle // what it refers to, by member
	typed  typed

	// Guarded by relay.lists.mu.
	// its row as the caller of the last change wants it, without hops; never written to. nil: removed
	planned  []byte
	applied  []byte    // what was planned when the kernel got it; nil: it is in no list
	row      *tableRow // as the kernel has it; nil: in no list. Written by the committer alone
	at       uint32    // where the kernel has it
	gone     bool
	final    Usage // after it is gone
	finalErr error // reading it
}

// Usage is what became of the packets of a group at one receiver.
type Usage struct {
	Packets  uint64 // copies sent
	Bytes    uint64 // of their frames
	Declined uint64 // packets of which it got no copy, for whatever reason
	Failed   uint64 // those among them if the kernel refused the copy: no memory, or a full queue of the device
}

// ID returns the identity of the receiver, from 1 on: events name it. It is used again some time after the receiver is
// removed.
func (v *AnyReceiver) ID() uint32 { return v.id }

// Group returns the group of the receiver.
func (v *AnyReceiver) Group() *AnyGroup { return v.group }

// Values returns the values in force, in the order of the spec: those that [AnyGroup.Add] takes.
func (v *AnyReceiver) Values() []any {
	row := v.inForce()
	if row == nil {
		return nil
	}
	return v.group.kind.rowLayout().decodeAny(row, nil)
}

// inForce returns the row in force; nil: it was removed.
func (v *AnyReceiver) inForce() []byte {
	f := v.group.kind.relay.lists
	f.mu.Lock()
	defer f.mu.Unlock()
	if v.row != nil {
		return v.row.value
	}
	return v.planned
}

// State returns the counter, credit, bucket or translation of the i-th member of the row, counted among those members;
// credits and buckets for each level of priority are a slice.
func (v *AnyReceiver) State(i int) any {
	for n := range v.group.kind.desc.Receiver {
		m := &v.group.kind.desc.Receiver[n]
		switch {
		case !m.Kind.IsState():
		case i == 0:
			return anyState(m, func(level int) handle { return v.refers[n][level] })
		default:
			i--
		}
	}
	return nil
}

// Set gives the receiver new values, in the order of the spec.
func (v *AnyReceiver) Set(ctx context.Context, values ...any) error {
	return v.group.Change(ctx, func(c *AnyChange) error { return c.Set(v, values...) })
}

// Update gives the receiver the values that f makes of those that it has. No change of another goroutine is lost: f is
// called again if one came between.
func (v *AnyReceiver) Update(ctx context.Context, f func(values []any) []any) error {
	return v.group.Change(ctx, func(c *AnyChange) error { c.Update(v, f); return nil })
}

// Remove removes the receiver: no packet reaches it when Remove returns, and all that it had is free. Removing it again
// does nothing.
func (v *AnyReceiver) Remove(ctx context.Context) error {
	return v.group.Change(ctx, func(c *AnyChange) error { c.Remove(v); return nil })
}

// Hops returns how packets leave towards the receiver, in the order of the endpoints that they are sent to. Copies are
// sent only if the state is [HopDirect]; the runtime makes the kernel look for a neighbour that isn't known.
func (v *AnyReceiver) Hops() []Hop {
	f := v.group.kind.relay.lists
	f.mu.Lock()
	defer f.mu.Unlock()
	if v.row == nil {
		return nil
	}
	var out []Hop
	for _, h := range v.row.hops {
		out = append(out, getHop(v.row.value[h.off:]))
	}
	return out
}

// Usage returns what became of packets at the receiver; of one that is removed, until then.
func (v *AnyReceiver) Usage() (Usage, error) { return v.usage(v.group.kind.relay.receiverUsage) }

func (v *AnyReceiver) usage(read func(id uint32) (Usage, error)) (Usage, error) {
	use, err := read(v.id)
	// Only then: what was read is another receiver's if this one has gone meanwhile, and its identity was used again.
	f := v.group.kind.relay.lists
	f.mu.Lock()
	defer f.mu.Unlock()
	if v.gone {
		return v.final, v.finalErr
	}
	return use, err
}

func (r *Relay) receiverUsage(id uint32) (u Usage, err error) {
	err = r.eachCPU(abi.MapReceivers, int(id), func(b []byte) {
		u.Packets += abi.Order.Uint64(b[abi.ReceiverPackets:])
		u.Bytes += abi.Order.Uint64(b[abi.ReceiverBytes:])
		u.Declined += abi.Order.Uint64(b[abi.ReceiverDeclined:])
		u.Failed += abi.Order.Uint64(b[abi.ReceiverFailed:])
	})
	if err != nil {
		return Usage{}, err
	}
	return u, nil
}

// Refused iterates over the receiver's credits and buckets, by name, and how many packets of each level of priority the
// kernel has refused for want of them.
func (v *AnyReceiver) Refused() iter.Seq2[string, []uint64] {
	return func(yield func(string, []uint64) bool) {
		for n, m := range v.group.kind.desc.Receiver {
			if m.Kind != abi.KindCredit && m.Kind != abi.KindBucket {
				continue
			}
			levels := make([]uint64, max(v.group.kind.relay.desc.Levels, 1))
			for i := range levels {
				for _, h := range v.refers[n] {
					if h.credit != nil {
						levels[i] += h.credit.Refused(i)
					}
					if h.bucket != nil {
						levels[i] += h.bucket.Refused(i)
					}
				}
			}
			if !yield(m.Name, levels) {
				return
			}
		}
	}
}

// String names the receiver by its group and identity.
func (v *AnyReceiver) String() string { return fmt.Sprintf("receiver %d of %v", v.id, v.group) }

// GroupKind returns the kind of group of that name; nil if the relay has none.
func (r *Relay) GroupKind(name string) *AnyGroups {
	for _, k := range r.groups {
		if k.desc.Name == name {
			return k
		}
	}
	return nil
}

// GroupKinds returns all kinds of groups in the order of the spec.
func (r *Relay) GroupKinds() []*AnyGroups { return slices.Clone(r.groups) }
