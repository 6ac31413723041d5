package runtime

import (
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"

	"github.com/fastrelay/fastrelay-gen/runtime/abi"
)

// adoptGroups rebuilds the groups and receivers from the lists that the kernel has. A list takes its place at once, and
// what is in it is written before, so each is whole, whenever the process before died; what it had written for the next
// one is in no list, and is free. A list that can't be understood nevertheless is taken out of the kernel.
func (r *Relay) adoptGroups() error {
	for _, k := range r.groups {
		keys, err := k.keys()
		if err != nil {
			return err
		}
		used := map[uint32]bool{} // rows
		for _, key := range keys {
			g, err := k.adopt(key, used)
			if err == nil {
				k.open[string(key)] = g
				continue
			}
			r.log.Warn("a group can't be adopted, and is closed", "relay", r.desc.Name, "group",
				(&AnyGroup{kind: k, key: key}).String(), "error", err)
			if err := k.outer.Delete(key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
				return fmt.Errorf("%s: %w", k.where(), err)
			}
		}
		k.free = slices.DeleteFunc(k.free, func(row uint32) bool { return used[row] })
		k.ids = slices.DeleteFunc(k.ids, func(id uint32) bool { return k.live[id] != nil })
	}
	// The next hops may be others by now: start commits those groups.
	for _, k := range r.groups {
		for _, v := range k.live {
			if len(v.row.hops) > 0 {
				r.hops.prepare([]*tableRow{v.row})
				r.hops.enter(v.row)
				v.group.stale = v.group.stale || v.row.moved()
			}
		}
	}
	return nil
}

// keys returns the keys of all lists.
func (k *AnyGroups) keys() (keys [][]byte, err error) {
	var cursor any
	for {
		next, err := k.outer.NextKeyBytes(cursor)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", k.where(), err)
		}
		if next == nil {
			return keys, nil
		}
		keys = append(keys, next)
		cursor = next
	}
}

// adopt reads a list.
func (k *AnyGroups) adopt(key []byte, used map[uint32]bool) (_ *AnyGroup, err error) {
	var id ebpf.MapID
	if err := k.outer.Lookup(key, &id); err != nil {
		return nil, err
	}
	inner, err := ebpf.NewMapFromID(id)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			inner.Close()
		}
	}()
	list, err := inner.LookupBytes(uint32(0))
	if err != nil {
		return nil, err
	}
	n := abi.Order.Uint32(list)
	if int(n) > k.desc.Max {
		return nil, fmt.Errorf("it has %d receivers", n)
	}
	g := &AnyGroup{kind: k, key: key, installed: true, inner: inner}
	rows := map[uint32]bool{}
	for i := range n {
		at := abi.Order.Uint32(list[4+4*i:])
		if int(at) >= k.desc.Rows+k.desc.Max || used[at] || rows[at] {
			return nil, fmt.Errorf("row %d isn't its own", at)
		}
		rows[at] = true
		value, err := k.rows.LookupBytes(at)
		if err != nil {
			return nil, err
		}
		v, err := k.adoptReceiver(g, value)
		if err != nil {
			return nil, fmt.Errorf("row %d: %w", at, err)
		}
		if slices.ContainsFunc(g.list, func(o *AnyReceiver) bool { return o.id == v.id }) {
			return nil, fmt.Errorf("two receivers are number %d", v.id)
		}
		v.at = at
		g.list = append(g.list, v)
	}
	g.plan = slices.Clone(g.list)
	for _, v := range g.list {
		used[v.at] = true
		k.live[v.id] = v
		k.relay.events.adopt(v)
		for _, m := range k.desc.Receiver {
			switch index := abi.Order.Uint32(v.state[m.Off:]); m.Kind {
			case abi.KindTranslation:
				k.relay.spaces.adopt(index)
			case abi.KindCredit, abi.KindBucket:
				k.relay.credits.make(m, index)
			}
		}
	}
	return g, nil
}

// adoptReceiver reads a receiver's row.
func (k *AnyGroups) adoptReceiver(g *AnyGroup, value []byte) (*AnyReceiver, error) {
	v := &AnyReceiver{group: g, state: make([]byte, len(value)), applied: slices.Clone(value)}
	for _, m := range k.desc.Receiver {
		switch {
		case m.Kind == abi.KindHop:
			clear(v.applied[m.Off : m.Off+m.Size]) // what is planned has no hops
			continue
		case m.Hidden && m.Name == "receiver":
			v.id = abi.Order.Uint32(value[m.Off:])
		case !m.Kind.IsState():
			continue
		case m.Kind == abi.KindCounter && int(abi.Order.Uint32(value[m.Off:])) >= k.relay.desc.Shared:
			return nil, fmt.Errorf("%q is no counter", m.Name)
		}
		copy(v.state[m.Off:m.Off+m.Size], value[m.Off:])
	}
	if int(v.id) < k.desc.Base || int(v.id) >= k.desc.Base+k.desc.Rows || k.live[v.id] != nil {
		return nil, fmt.Errorf("%d is no receiver's number", v.id)
	}
	for i, m := range k.desc.Receiver {
		if (m.Kind == abi.KindCredit || m.Kind == abi.KindBucket) &&
			abi.Order.Uint32(value[m.Off:]) != k.credits.index(v.id-uint32(k.desc.Base), i) {
			return nil, fmt.Errorf("%q is not its credit", m.Name)
		}
	}
	v.planned = v.applied
	v.row = &tableRow{receiver: v, value: value}
	return v, v.row.findHops()
}

// adoptState enters the credits and translations of a table's rows; counters are found by countersInUse.
func (r *Relay) adoptState(t *AnyTable) error {
	if !t.state {
		return nil
	}
	rows, err := t.scan()
	if err != nil {
		return err
	}
	used := map[uint32]bool{}
	for _, row := range rows {
		for i, m := range t.desc.Value {
			index := abi.Order.Uint32(row.value[m.Off:])
			switch m.Kind {
			case abi.KindTranslation:
				r.spaces.adopt(index)
			case abi.KindCredit, abi.KindBucket:
				if block, ok := t.credits.block(index, i); ok {
					used[block] = true
					r.credits.make(m, index)
				}
			}
		}
	}
	t.credits.free = slices.DeleteFunc(t.credits.free, func(block uint32) bool { return used[block] })
	return nil
}
