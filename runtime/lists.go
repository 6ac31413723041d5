package runtime

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/cilium/ebpf"

	"github.com/fastrelay/fastrelay-gen/runtime/abi"
)

// receiverLists makes the kernel's lists of receivers what is planned. A list is never written to while the kernel has
// it, and neither are the rows that are in it: what has changed gets new rows, a new list is filled, and takes the old
// one's place by one update of the hash of maps. When that system call returns, the kernel has waited for all programs
// that may still read the old list (maybe_wait_bpf_programs, kernel/bpf/syscall.c), so that rows and lists which no
// program has any more are used again, and what belonged to receivers that were removed is freed.
//
// Waiting for programs takes the system call a grace period of RCU, some milliseconds. Whatever is planned for a group
// meanwhile goes into the next list together. One goroutine, the committer, brings one group after the other up to
// date; it is there only while there is something to do. Groups don't enter the hash in one batch: the kernel gives the
// element that one update has replaced to the next one of the same batch, and a program that has just found the first
// group in it would read the other one's list.
//
// Lock order: relay.mu, then receiverLists.mu. What the committer alone writes it writes with
// receiverLists.mu held, and reads without.
type receiverLists struct {
	relay *Relay

	mu      sync.Mutex
	over    bool
	queue   []*AnyGroup // whose plan the kernel doesn't have
	leading bool        // the committer is there
	swaps   uint64      // updates of the hashes of maps

	// fault, if a test sets it, makes a step fail.
	fault func(step string) error
}

// waiter waits for a version of a group's plan.
type waiter struct {
	version uint64
	done    chan error
}

// commit is what one list is made of.
type commit struct {
	group   *AnyGroup
	version uint64
	closing bool
	stale   bool // a hop changed
	list    []*AnyReceiver
	planned [][]byte // their rows
	leaving []*AnyReceiver
	fresh   []fresh
	inner   *ebpf.Map
}

// fresh is a row that the kernel doesn't have yet.
type fresh struct {
	receiver *AnyReceiver
	row      *tableRow
	at       uint32
}

func newReceiverLists(r *Relay) *receiverLists { return &receiverLists{relay: r} }

// waitFunc waits for what is planned. It returns when the kernel has it, with the error that undid it, or with ctx's
// error if ctx ends first: then it goes on.
type waitFunc func(ctx context.Context) error

// plan says that a group's plan has changed. mu is held.
func (f *receiverLists) plan(g *AnyGroup) waitFunc {
	g.version++
	f.enqueue(g)
	return f.wait(g)
}

// wait waits for what is planned now. mu is held when wait is called, and not when what it returns is called.
func (f *receiverLists) wait(g *AnyGroup) waitFunc {
	if !g.queued && !g.committing {
		return func(context.Context) error { return nil }
	}
	w := waiter{g.version, make(chan error, 1)}
	g.waiters = append(g.waiters, w)
	return func(ctx context.Context) error {
		select {
		case err := <-w.done:
			return err
		default:
		}
		select {
		case err := <-w.done:
			return err
		case <-ctx.Done():
			return &unfinished{ctx.Err(), w.done}
		}
	}
}

// unfinished says that ctx has ended before a change was in force; done says how the change ends.
type unfinished struct {
	err  error
	done <-chan error
}

func (e *unfinished) Error() string { return "not waited for, and goes on: " + e.err.Error() }

func (e *unfinished) Unwrap() error { return e.err }

func (f *receiverLists) enqueue(g *AnyGroup) {
	if g.queued {
		return
	}
	g.queued = true
	f.queue = append(f.queue, g)
	if !f.leading {
		f.leading = true
		f.relay.wg.Add(1)
		go f.lead()
	}
}

// catchUp commits the groups whose receivers have other next hops: those that were adopted so, and those where the
// kernel refused before.
func (f *receiverLists) catchUp() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, k := range f.relay.groups {
		for _, g := range k.open {
			if g.stale && !f.over {
				f.enqueue(g)
			}
		}
	}
}

// rehop says that the next hop of a receiver has changed. relay.mu is held.
func (f *receiverLists) rehop(v *AnyReceiver) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.over && !v.group.over {
		v.group.stale = true
		f.enqueue(v.group)
	}
}

// close ends the committer after the commit that it is at, and all that waits for others. The kernel's maps go next.
func (f *receiverLists) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.over = true
}

// lead commits what is planned until there is nothing left.
func (f *receiverLists) lead() {
	defer f.relay.wg.Done()
	f.mu.Lock()
	defer f.mu.Unlock()
	for !f.over && len(f.queue) > 0 {
		g := f.queue[0]
		f.queue = f.queue[1:]
		c := g.snapshot()
		g.queued, g.committing = false, true
		f.mu.Unlock()
		err := f.relay.using(func() error { return f.commit(c) })
		f.mu.Lock()
		g.committing = false
		if err == nil {
			g.answer(c.version, nil)
			continue
		}
		if len(g.waiters) == 0 {
			f.relay.log.Error("a group can't follow a change of route", "relay", f.relay.desc.Name, "group", g.String(),
				"error", err)
		}
		g.stale = g.stale || c.stale
		g.rollBack()
		g.answer(g.version, err)
	}
	for _, g := range f.queue {
		g.queued = false
		g.answer(g.version, fmt.Errorf("relay: %w", ErrClosed))
	}
	f.queue, f.leading = nil, false
}

// answer sends the result to those who wait for a version. lists.mu is held.
func (g *AnyGroup) answer(version uint64, err error) {
	g.waiters = slices.DeleteFunc(g.waiters, func(w waiter) bool {
		if w.version <= version {
			w.done <- err
			return true
		}
		return false
	})
}

// snapshot takes what is planned. lists.mu is held.
func (g *AnyGroup) snapshot() *commit {
	c := &commit{
		group: g, version: g.version, closing: g.closing, stale: g.stale, list: slices.Clone(g.plan),
		leaving: g.leaving,
	}
	for _, v := range c.list {
		c.planned = append(c.planned, v.planned)
	}
	g.leaving, g.stale = nil, false
	return c
}

// rollBack plans what the kernel has. Receivers that it doesn't have are freed by those who
// added them. lists.mu is held.
func (g *AnyGroup) rollBack() {
	for _, v := range g.plan {
		v.planned = nil
	}
	for _, v := range g.list {
		v.planned = v.applied
	}
	g.plan, g.leaving, g.closing = slices.Clone(g.list), nil, false
	if !g.installed && !g.over { // it couldn't be opened
		g.over = true
		delete(g.kind.open, string(g.key))
	}
}

// commit gives the kernel a list, or takes the group's away.
func (f *receiverLists) commit(c *commit) error {
	switch g := c.group; {
	case g.over: // a next hop has changed while it was being closed
		return nil
	case c.closing:
		if err := f.remove(g); err != nil {
			return err
		}
		c.leaving = append(c.leaving, c.list...) // what the kernel had is among both
		c.list, c.planned = nil, nil
	default:
		if err := f.replace(c); err != nil {
			return err
		}
	}
	f.publish(c)
	for _, v := range c.leaving {
		f.free(v)
	}
	f.relay.sweepTranslations() // no program has the list any more that had the receivers
	return nil
}

// remove takes a group out of the kernel.
func (f *receiverLists) remove(g *AnyGroup) error {
	err := f.inject("remove")
	if err == nil {
		f.swaps++
		err = g.kind.outer.Delete(g.key)
	}
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("%s: %w", g.kind.where(), err)
	}
	return nil
}

// replace writes the rows and the list that the kernel doesn't have, and puts the list in place. After an error,
// nothing of it remains.
func (f *receiverLists) replace(c *commit) (err error) {
	r, g, k := f.relay, c.group, c.group.kind
	f.makeRows(c)
	if g.installed && len(c.fresh) == 0 && slices.Equal(c.list, g.list) {
		return nil
	}
	f.mu.Lock()
	// There is always room: a list has at most Max receivers, all lists together Rows, and Rows + Max are there.
	for i := range c.fresh {
		c.fresh[i].at = k.free[i]
	}
	k.free = k.free[len(c.fresh):]
	if n := len(k.spare); n > 0 {
		c.inner, k.spare = k.spare[n-1], k.spare[:n-1]
	}
	f.mu.Unlock()
	defer func() {
		if err == nil {
			return
		}
		r.mu.Lock()
		f.mu.Lock()
		defer r.mu.Unlock()
		defer f.mu.Unlock()
		for _, n := range c.fresh {
			if r.hops != nil {
				r.hops.drop(n.row)
			}
			k.free = append(k.free, n.at)
		}
		k.keepSpare(c.inner)
		err = fmt.Errorf("%s: %w", k.where(), err)
	}()
	if err := f.writeRows(c); err != nil {
		return err
	}
	if err := f.writeList(c); err != nil {
		return err
	}
	if err := f.inject("swap"); err != nil {
		return err
	}
	// Only now, so that whoever reads an event sees all that was done to its receiver before it was listed.
	for _, n := range c.fresh {
		if n.receiver.row == nil {
			r.events.name(n.receiver)
		}
	}
	f.swaps++
	if err := k.outer.Put(g.key, uint32(c.inner.FD())); err != nil {
		return fmt.Errorf("put a list in place: %w", err)
	}
	return nil
}

// makeRows makes the rows that the kernel doesn't have: of receivers that are new, have other values, or another
// next hop.
func (f *receiverLists) makeRows(c *commit) {
	r := f.relay
	moved := map[*AnyReceiver]bool{}
	if c.stale {
		r.mu.Lock()
		for _, v := range c.list {
			moved[v] = v.row != nil && v.row.moved()
		}
		r.mu.Unlock()
	}
	var rows []*tableRow
	for i, v := range c.list {
		if v.row != nil && bytes.Equal(v.applied, c.planned[i]) && !moved[v] {
			continue
		}
		row := &tableRow{receiver: v, value: bytes.Clone(c.planned[i])}
		_ = row.findHops() // checked when the values were given
		rows = append(rows, row)
		c.fresh = append(c.fresh, fresh{receiver: v, row: row})
	}
	if r.hops == nil {
		return
	}
	r.hops.prepare(rows)
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, row := range rows {
		r.hops.use(row)
	}
}

// moved reports whether a next hop in the row is stale. relay.mu is held.
func (row *tableRow) moved() bool {
	return slices.ContainsFunc(row.hops, func(h rowHop) bool {
		return h.hop != nil && h.hop.now.stored() != getHop(row.value[h.off:])
	})
}

func (f *receiverLists) writeRows(c *commit) error {
	if err := f.inject("rows"); err != nil {
		return err
	}
	k := c.group.kind
	var at []uint32
	var rows [][]byte
	for _, n := range c.fresh {
		at, rows = append(at, n.at), append(rows, n.row.value)
	}
	if err := putEntries(k.rows, at, rows); err != nil {
		return fmt.Errorf("write receivers' rows: %w", err)
	}
	return nil
}

func (f *receiverLists) writeList(c *commit) (err error) {
	if err := f.inject("list"); err != nil {
		return err
	}
	k := c.group.kind
	if c.inner == nil {
		if c.inner, err = ebpf.NewMap(k.list); err != nil {
			return fmt.Errorf("make a list: %w", err)
		}
	}
	at := map[*AnyReceiver]uint32{}
	for _, n := range c.fresh {
		at[n.receiver] = n.at
	}
	list := make([]byte, k.list.ValueSize)
	abi.Order.PutUint32(list, uint32(len(c.list)))
	for i, v := range c.list {
		row, ok := at[v]
		if !ok {
			row = v.at
		}
		abi.Order.PutUint32(list[4+4*i:], row)
	}
	return c.inner.Put(uint32(0), list)
}

// publish notes what the kernel has now, and frees the rows and the list that it had. No program reads them any more.
func (f *receiverLists) publish(c *commit) {
	r, g, k := f.relay, c.group, c.group.kind
	r.mu.Lock()
	defer r.mu.Unlock()
	f.mu.Lock()
	defer f.mu.Unlock()
	release := func(v *AnyReceiver) {
		if v.row != nil {
			if r.hops != nil {
				r.hops.drop(v.row)
			}
			k.free = append(k.free, v.at)
			v.row = nil
		}
	}
	for _, n := range c.fresh {
		release(n.receiver)
		n.receiver.row, n.receiver.at = n.row, n.at
	}
	for i, v := range c.list {
		v.applied = c.planned[i]
	}
	for _, v := range c.leaving {
		release(v)
		v.applied, v.planned = nil, nil
	}
	g.list = c.list
	if c.inner != nil {
		k.keepSpare(g.inner)
		g.inner, g.installed = c.inner, true
	}
	if c.closing {
		k.keepSpare(g.inner)
		g.inner, g.installed, g.over, g.plan = nil, false, true, nil
		delete(k.open, string(g.key))
	}
}

// spareLists is how many lists a kind of group keeps for the next changes.
const spareLists = 8

// keepSpare keeps a list that no program reads. lists.mu is held.
func (k *AnyGroups) keepSpare(list *ebpf.Map) {
	switch {
	case list == nil:
	case len(k.spare) < spareLists:
		k.spare = append(k.spare, list)
	default:
		list.Close()
	}
}

// newReceiver allocates what belongs to a receiver. No list has it yet.
func (k *AnyGroups) newReceiver(g *AnyGroup) (*AnyReceiver, error) {
	r, f := k.relay, k.relay.lists
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, fmt.Errorf("%v: relay: %w", g, ErrClosed)
	}
	if r.draining.on {
		return nil, fmt.Errorf("%v: add a receiver: %w", g, ErrDraining)
	}
	f.mu.Lock()
	if len(k.ids) == 0 {
		f.mu.Unlock()
		return nil, &FullError{What: "receivers of " + k.where(), Size: k.desc.Rows}
	}
	v := &AnyReceiver{group: g, id: k.ids[0], state: make([]byte, k.desc.ReceiverSize)}
	k.ids = k.ids[1:]
	f.mu.Unlock()
	err := r.resetUsage(v.id)
	if err == nil {
		err = r.allocState(k.desc.Receiver, v.state, k.credits, v.id-uint32(k.desc.Base), nil)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if err != nil {
		k.ids = append(k.ids, v.id)
		return nil, err
	}
	v.identify()
	v.takeState()
	k.live[v.id] = v
	return v, nil
}

// identify writes the identity into the hidden member of the row.
func (v *AnyReceiver) identify() {
	for _, m := range v.group.kind.desc.Receiver {
		if m.Hidden && m.Name == abi.MemberReceiver {
			abi.Order.PutUint32(v.state[m.Off:], v.id)
		}
	}
}

// takeState notes what the receiver refers to, for as long as it is asked, even when others have the indices.
func (v *AnyReceiver) takeState() {
	k := v.group.kind
	v.refers = make([][]handle, len(k.desc.Receiver))
	for i := range k.desc.Receiver {
		if m := &k.desc.Receiver[i]; m.Kind.IsState() {
			v.refers[i] = k.relay.handles(m, v.state)
		}
	}
}

func (r *Relay) resetUsage(id uint32) error {
	m := r.coll.Maps[abi.MapReceivers]
	zero := make([][]byte, ebpf.MustPossibleCPU())
	for i := range zero {
		zero[i] = make([]byte, m.ValueSize())
	}
	if err := m.Put(id, zero); err != nil {
		return fmt.Errorf("reset the receiver's counters: %w", err)
	}
	return nil
}

// free frees what belongs to a receiver that no list has.
func (f *receiverLists) free(v *AnyReceiver) {
	r, k := f.relay, v.group.kind
	final, err := r.receiverUsage(v.id)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.releaseState(k.desc.Receiver, v.state, k.credits)
	f.mu.Lock()
	defer f.mu.Unlock()
	v.gone, v.final, v.finalErr = true, final, err
	delete(k.live, v.id)
	k.ids = append(k.ids, v.id)
	r.noteDrained()
}

func (f *receiverLists) inject(step string) error {
	if f.fault == nil {
		return nil
	}
	return f.fault(step)
}

// closeLists closes what user space has of the kernel's lists.
func (f *receiverLists) closeLists() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.over = true
	for _, k := range f.relay.groups {
		for _, g := range k.open {
			g.over = true
			if g.inner != nil {
				g.inner.Close()
			}
		}
		for _, m := range k.spare {
			m.Close()
		}
		clear(k.open)
		k.spare = nil
	}
}
