package runtime

import (
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

// GroupKind is a kind of group. A group has a key, which packets are looked up by, and a list of receivers, each of
// which gets a copy of a packet. A receiver is a row of values, and what belongs to it as long as it is there: its
// identity, counters, credits and translations.
//
// Everything that changes a list or a receiver is in force when the call returns, and takes effect at once: a packet
// reaches the receivers from before the change or those from after it, with their values, never a mixture, and none of
// them twice. See [Group.Change] for several changes in one step, and docs/operate.md for what a change costs.
type GroupKind struct {
	relay *Relay
	desc  *abi.Group
	plain []abi.Member // desc.Receiver; what is no plain value is hidden

	outer   *ebpf.Map     // key -> list
	list    *ebpf.MapSpec // of a list
	rows    *ebpf.Map     // of receivers
	credits *creditBlocks // by identity

	// Guarded by relay.lists.mu.
	open  map[string]*Group // by key; those that are being opened or closed as well
	ids   []uint32          // free identities; those freed last are reused last
	live  map[uint32]*Receiver
	free  []uint32    // rows that no list has
	spare []*ebpf.Map // lists that no program reads any more
}

func newGroupKind(r *Relay, d *abi.Group, spec *ebpf.CollectionSpec, blocks *creditBlocks) *GroupKind {
	k := &GroupKind{
		relay: r, desc: d, plain: slices.Clone(d.Receiver), credits: blocks,
		outer: r.coll.Maps[abi.GroupPrefix+d.Name], rows: r.coll.Maps[abi.RowsPrefix+d.Name],
		open: map[string]*Group{}, live: map[uint32]*Receiver{},
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
func (k *GroupKind) Desc() *abi.Group { return k.desc }

func (k *GroupKind) where() string { return fmt.Sprintf("group %q", k.desc.Name) }

// Open opens a group without receivers, by the values of its key. It waits as [Group.Change] does. Errors: an
// [*ExistsError], a [*FullError], a [*ValueError], [ErrClosed].
func (k *GroupKind) Open(ctx context.Context, key ...any) (*Group, error) {
	b, err := k.encodeKey(key)
	if err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	f := k.relay.lists
	g := &Group{kind: k, key: b}
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

// Get returns the open group with a key; an error that wraps [ErrNotFound] where there is none.
func (k *GroupKind) Get(key ...any) (*Group, error) {
	b, err := k.encodeKey(key)
	if err != nil {
		return nil, err
	}
	f := k.relay.lists
	f.mu.Lock()
	defer f.mu.Unlock()
	if g := k.open[string(b)]; g != nil && g.isOpen() {
		return g, nil
	}
	return nil, fmt.Errorf("%v: %w", &Group{kind: k, key: b}, ErrNotFound)
}

// All iterates over the open groups, adopted ones included, in the order of their keys' bytes.
func (k *GroupKind) All() iter.Seq[*Group] {
	return func(yield func(*Group) bool) {
		f := k.relay.lists
		f.mu.Lock()
		var all []*Group
		for _, g := range k.open {
			if g.isOpen() {
				all = append(all, g)
			}
		}
		f.mu.Unlock()
		slices.SortFunc(all, func(a, b *Group) int { return strings.Compare(string(a.key), string(b.key)) })
		for _, g := range all {
			if !yield(g) {
				return
			}
		}
	}
}

// Count returns how many groups are open, and how many receivers they have.
func (k *GroupKind) Count() (groups, receivers int) {
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

func (k *GroupKind) encodeKey(key []any) ([]byte, error) {
	b, err := encodeMembers(k.where()+", key", k.desc.Key, k.desc.KeySize, key)
	if err != nil {
		return nil, err
	}
	return b, specified(k.where()+", key", k.desc.Key, b)
}

// specified refuses addresses that no packet carries.
func specified(where string, members []abi.Member, b []byte) error {
	for _, m := range members {
		if m.Kind != abi.KindAddr && m.Kind != abi.KindEndpoint || m.Hidden {
			continue
		}
		for one := range slices.Chunk(b[m.Off:m.Off+m.Size], m.Size/m.Count()) {
			if why := notCarried(getAddr(one)); why != "" {
				return &ValueError{Where: fmt.Sprintf("%s, %q", where, m.Name), Value: decode(one, m.Kind), Reason: why}
			}
		}
	}
	return nil
}

// eachLive visits the receivers, those that are being added or removed included.
func (k *GroupKind) eachLive(visit func(*Receiver)) {
	k.relay.lists.mu.Lock()
	defer k.relay.lists.mu.Unlock()
	for _, v := range k.live {
		visit(v)
	}
}

// A Group sends each packet that has its key to its receivers. It is open until Close. Its methods may be called from
// any goroutine.
type Group struct {
	kind   *GroupKind
	key    []byte
	handle handle

	// All below is guarded by relay.lists.mu. What is planned is what the callers of changes want; the kernel follows.
	plan    []*Receiver
	leaving []*Receiver // no longer planned, and not yet freed
	closing bool
	stale   bool   // the next hop of a receiver has changed
	version uint64 // of what is planned
	waiters []waiter
	queued  bool // in the committer's queue

	// What the kernel has; written by the committer alone.
	list       []*Receiver
	inner      *ebpf.Map
	installed  bool
	committing bool // the committer is at it
	over       bool // closed
}

func (g *Group) isOpen() bool { return g.installed && !g.over && !g.closing }

// Kind returns the kind of the group.
func (g *Group) Kind() *GroupKind { return g.kind }

// Key returns the values of the key, in the order of the spec.
func (g *Group) Key() []any { return decodeMembers(g.kind.desc.Key, g.key, nil) }

// Receivers returns the receivers, in the order in which packets are sent to them.
func (g *Group) Receivers() []*Receiver {
	f := g.kind.relay.lists
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(g.list)
}

// Len returns how many receivers the group has.
func (g *Group) Len() int {
	f := g.kind.relay.lists
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(g.list)
}

// Add adds a receiver after the others, with the values of its members in the order of the spec; counters, credits and
// translations have none. Its credits' limits are 0: see [Group.Change] for setting them before the first packet comes.
// Errors: a [*ValueError], a [*FullError], [ErrClosed].
func (g *Group) Add(ctx context.Context, values ...any) (v *Receiver, err error) {
	err = g.Change(ctx, func(c *Change) error {
		v, err = c.Add(values...)
		return err
	})
	if err != nil {
		return nil, err
	}
	return v, nil
}

// Close closes the group: no packet reaches its receivers any more when it returns, and all that they had is free.
// Closing a group that is closed does nothing. Where the kernel refuses, the group stays as it was, and may be closed
// again. Close waits as [Group.Change] does.
func (g *Group) Close(ctx context.Context) error {
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
func (g *Group) String() string {
	var b strings.Builder
	b.WriteString(g.kind.desc.Name)
	i := 0
	for _, v := range g.Key() {
		fmt.Fprintf(&b, " %s=%v", g.kind.desc.Key[i].Name, formatValue(v))
		i++
	}
	return b.String()
}

// Typed returns what generated code calls the group; make makes it, once.
func (g *Group) Typed(make func() any) any { return g.handle.get(make) }

// handle is the value that generated code wraps a group or a receiver in: one for its whole life.
type handle struct {
	once  sync.Once
	typed any
}

func (h *handle) get(make func() any) any {
	h.once.Do(func() { h.typed = make() })
	return h.typed
}

// A Receiver is one receiver of a group. It is the same one, with the same identity, counters, credits and
// translations, until it is removed, whatever becomes of its values. Its methods may be called from any goroutine.
type Receiver struct {
	group  *Group
	id     uint32
	state  []byte // a row that has its identity and what it refers to, and no values
	refers []any  // what it refers to, in the order of the members that do
	handle handle

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
	Failed   uint64 // those among them where the kernel refused the copy: no memory, or a full queue of the device
}

// ID returns the identity of the receiver, from 1 on: events name it. It is used again some time after the receiver is
// removed.
func (v *Receiver) ID() uint32 { return v.id }

// Group returns the group of the receiver.
func (v *Receiver) Group() *Group { return v.group }

// Values returns the values in force, in the order of the spec: those that [Group.Add] takes.
func (v *Receiver) Values() []any {
	f := v.group.kind.relay.lists
	f.mu.Lock()
	row := v.planned
	if v.row != nil {
		row = v.row.value
	}
	f.mu.Unlock()
	if row == nil {
		return nil
	}
	return decodeMembers(v.group.kind.plain, row, nil)
}

// State returns the counter, credit, bucket or translation of the i-th member of the row, counted among those members;
// credits and buckets for each level of priority are a slice.
func (v *Receiver) State(i int) any {
	if i < 0 || i >= len(v.refers) {
		return nil
	}
	return v.refers[i]
}

// Set gives the receiver new values, in the order of the spec.
func (v *Receiver) Set(ctx context.Context, values ...any) error {
	return v.group.Change(ctx, func(c *Change) error { return c.Set(v, values...) })
}

// Update gives the receiver the values that f makes of those that it has. No change of another goroutine is lost: f is
// called again where one came between.
func (v *Receiver) Update(ctx context.Context, f func(values []any) []any) error {
	return v.group.Change(ctx, func(c *Change) error { c.Update(v, f); return nil })
}

// Remove removes the receiver: no packet reaches it when Remove returns, and all that it had is free. Removing it again
// does nothing.
func (v *Receiver) Remove(ctx context.Context) error {
	return v.group.Change(ctx, func(c *Change) error { c.Remove(v); return nil })
}

// Hops returns how packets leave towards the receiver, in the order of the endpoints that they are sent to. Copies are
// sent only where the state is [HopDirect]; the runtime makes the kernel look for a neighbour that isn't known.
func (v *Receiver) Hops() []Hop {
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
func (v *Receiver) Usage() (Usage, error) { return v.usage(v.group.kind.relay.receiverUsage) }

func (v *Receiver) usage(read func(id uint32) (Usage, error)) (Usage, error) {
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
func (v *Receiver) Refused() iter.Seq2[string, []uint64] {
	return func(yield func(string, []uint64) bool) {
		next := 0
		for _, m := range v.group.kind.desc.Receiver {
			if !m.Kind.IsState() {
				continue
			}
			refers := v.refers[next]
			next++
			if m.Kind != abi.KindCredit && m.Kind != abi.KindBucket {
				continue
			}
			levels := make([]uint64, max(v.group.kind.relay.desc.Levels, 1))
			for i := range levels {
				switch s := refers.(type) {
				case *Credit:
					levels[i] = s.Refused(i)
				case *Bucket:
					levels[i] = s.Refused(i)
				case []*Credit:
					for _, c := range s {
						levels[i] += c.Refused(i)
					}
				case []*Bucket:
					for _, b := range s {
						levels[i] += b.Refused(i)
					}
				}
			}
			if !yield(m.Name, levels) {
				return
			}
		}
	}
}

// Typed returns what generated code calls the receiver; make makes it, once.
func (v *Receiver) Typed(make func() any) any { return v.handle.get(make) }

// String names the receiver by its group and identity.
func (v *Receiver) String() string { return fmt.Sprintf("receiver %d of %v", v.id, v.group) }

// GroupKind returns the kind of group of that name; nil where the relay has none.
func (r *Relay) GroupKind(name string) *GroupKind {
	for _, k := range r.groups {
		if k.desc.Name == name {
			return k
		}
	}
	return nil
}

// GroupKinds returns all kinds of groups in the order of the spec.
func (r *Relay) GroupKinds() []*GroupKind { return slices.Clone(r.groups) }
