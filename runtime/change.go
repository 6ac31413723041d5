package runtime

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
)

// AnyChange is several changes of one group in one step, collected by [AnyGroup.Change].
type AnyChange struct {
	group *AnyGroup
	ops   []op
	added []*AnyReceiver
	done  bool
}

// op is one change. values makes the new row of the old one; nil: the receiver is removed.
type op struct {
	receiver *AnyReceiver
	add      bool
	values   func(old []byte) ([]byte, error)
}

// errDone is returned to a function that keeps a Change for later.
var errDone = errors.New("the function that was given this Change has returned")

// Change makes several changes in one step: each packet sees all of them or none. f says which; if it returns an
// error, nothing is changed, and Change returns that error. Receivers that f adds get no packet before f returns, so f
// may set their credits and counters. f is called once and may use the relay as it likes.
//
// Change waits until the kernel has the change and no program sees the receivers from before it: a grace period of RCU,
// some milliseconds, and longer after other changes. If ctx ends first, Change returns an error that wraps ctx's, and
// the change goes on: it comes into force soon, or is undone if the kernel refuses it; [AnyGroup.Receivers] shows
// which. If ctx has ended before, nothing is changed.
//
// Other errors are those of [AnyGroup.Add], and [ErrClosed] for a receiver that was removed meanwhile; nothing was
// changed then.
func (g *AnyGroup) Change(ctx context.Context, f func(c *AnyChange) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	c := &AnyChange{group: g}
	undo := func() {
		for _, v := range c.added {
			g.kind.relay.lists.free(v)
		}
	}
	returned := false
	defer func() {
		c.done = true
		if !returned { // f has panicked
			undo()
		}
	}()
	err := f(c)
	if err == nil {
		err = c.apply(ctx)
	}
	returned = true
	var later *unfinished
	switch {
	case errors.As(err, &later):
		go func() {
			if <-later.done != nil { // the committer answers all who wait, also when the relay is closed
				undo()
			}
		}()
	case err != nil:
		undo()
	}
	return err
}

// Add adds a receiver after the others; see [AnyGroup.Add].
func (c *AnyChange) Add(values ...any) (*AnyReceiver, error) {
	return c.add(c.group.kind.rowLayout().encodeAny(values))
}

// add is Add of values that were laid out.
func (c *AnyChange) add(values values, err error) (*AnyReceiver, error) {
	if c.done {
		return nil, errDone
	}
	k := c.group.kind
	row, err := k.check(values, err)
	if err != nil {
		return nil, err
	}
	v, err := k.newReceiver(c.group)
	if err != nil {
		return nil, err
	}
	c.added = append(c.added, v)
	c.ops = append(c.ops, op{
		receiver: v, add: true, values: func([]byte) ([]byte, error) { return k.fill(row, v), nil },
	})
	return v, nil
}

// Set gives a receiver new values; see [AnyReceiver.Set].
func (c *AnyChange) Set(v *AnyReceiver, values ...any) error {
	row, err := c.group.kind.rowLayout().encodeAny(values)
	return c.set(v, row, err)
}

// set is Set of values that were laid out.
func (c *AnyChange) set(v *AnyReceiver, values values, err error) error {
	if err := c.mine(v); err != nil {
		return err
	}
	row, err := c.group.kind.check(values, err)
	if err != nil {
		return err
	}
	row = c.group.kind.fill(row, v)
	c.ops = append(c.ops, op{receiver: v, values: func([]byte) ([]byte, error) { return row, nil }})
	return nil
}

// Update changes a receiver's values; see [AnyReceiver.Update]. f is called after the function that was given to Change
// has returned, perhaps more than once.
func (c *AnyChange) Update(v *AnyReceiver, f func(values []any) []any) {
	l := c.group.kind.rowLayout()
	c.update(v, func(old []byte) (values, error) { return l.encodeAny(f(l.decodeAny(old, nil))) })
}

// update is Update of rows as bytes.
func (c *AnyChange) update(v *AnyReceiver, f func(old []byte) (values, error)) {
	k := c.group.kind
	c.ops = append(c.ops, op{receiver: v, values: func(old []byte) ([]byte, error) {
		row, err := k.check(f(old))
		if err != nil {
			return nil, err
		}
		return k.fill(row, v), nil
	}})
}

// Remove removes a receiver; one that is removed already is left alone.
func (c *AnyChange) Remove(v *AnyReceiver) { c.ops = append(c.ops, op{receiver: v}) }

func (c *AnyChange) mine(v *AnyReceiver) error {
	switch {
	case c.done:
		return errDone
	case v.group != c.group:
		return fmt.Errorf("%v is no receiver of %v", v, c.group)
	}
	return nil
}

// apply plans the changes, and waits until they are in force.
func (c *AnyChange) apply(ctx context.Context) error {
	f, g := c.group.kind.relay.lists, c.group
	for _, o := range c.ops {
		if o.receiver.group != g {
			return fmt.Errorf("%v is no receiver of %v", o.receiver, g)
		}
	}
	for {
		// What changes are made of is read and encoded without the lock. If another change came
		// between, it is done again.
		f.mu.Lock()
		before := map[*AnyReceiver][]byte{}
		for _, o := range c.ops {
			before[o.receiver] = o.receiver.planned
		}
		f.mu.Unlock()
		after := map[*AnyReceiver][]byte{}
		for v, row := range before {
			after[v] = row
		}
		for _, o := range c.ops {
			old := after[o.receiver]
			switch {
			case o.values == nil:
				after[o.receiver] = nil
				continue
			case old == nil && !o.add:
				return fmt.Errorf("%v is %w", o.receiver, ErrClosed)
			}
			row, err := o.values(old)
			if err != nil {
				return err
			}
			after[o.receiver] = row
		}
		f.mu.Lock()
		if slices.ContainsFunc(c.ops, func(o op) bool { return !same(o.receiver.planned, before[o.receiver]) }) {
			f.mu.Unlock()
			continue
		}
		wait, err := c.plan(after)
		f.mu.Unlock()
		if err != nil {
			return err
		}
		if err := wait(ctx); err != nil {
			return fmt.Errorf("change %v: %w", g, err)
		}
		return nil
	}
}

// plan makes the changes what is planned. lists.mu is held.
func (c *AnyChange) plan(after map[*AnyReceiver][]byte) (wait waitFunc, err error) {
	f, g := c.group.kind.relay.lists, c.group
	if f.over || g.over || g.closing {
		if !slices.ContainsFunc(c.ops, func(o op) bool { return o.values != nil }) {
			return f.wait(g), nil // what is to be removed goes with the group
		}
		return nil, fmt.Errorf("%v is %w", g, ErrClosed)
	}
	n := len(g.plan)
	for v, row := range after {
		switch {
		case v.planned == nil && row != nil:
			n++
		case v.planned != nil && row == nil:
			n--
		}
	}
	if n > g.kind.desc.Max && n > len(g.plan) {
		return nil, &FullError{What: g.String(), Size: g.kind.desc.Max}
	}
	changed, gone := false, false
	for _, o := range c.ops {
		v, row := o.receiver, after[o.receiver]
		switch {
		case v.planned == nil && row != nil:
			g.plan = append(g.plan, v)
			changed = true
		// one that is added and removed in one step has to be freed, too
		case row == nil && (v.planned != nil || o.add):
			g.leaving = append(g.leaving, v)
			gone, changed = true, true
		case !bytes.Equal(v.planned, row):
			changed = true
		}
		v.planned = row
	}
	if gone {
		g.plan = slices.DeleteFunc(g.plan, func(v *AnyReceiver) bool { return v.planned == nil })
	}
	if !changed {
		return f.wait(g), nil // for another goroutine's change, if need be
	}
	return f.plan(g), nil
}

// same says whether two rows are one, not whether they are equal.
func same(a, b []byte) bool {
	return (a == nil) == (b == nil) && (a == nil || &a[0] == &b[0])
}

// check returns the row of a receiver whose plain values were laid out, or what is wrong with them.
func (k *AnyGroups) check(values values, err error) ([]byte, error) {
	if err != nil {
		return nil, err
	}
	l, row := k.rowLayout(), values.data
	if err := l.specified(row); err != nil {
		return nil, err
	}
	// Only to check that both ends of a hop are of one family.
	if err := (&tableRow{receiver: &AnyReceiver{group: &AnyGroup{kind: k}}, value: row}).findHops(); err != nil {
		return nil, fmt.Errorf("%s: %w", l.where, err)
	}
	return row, nil
}

// fill writes what is no value into a row.
func (k *AnyGroups) fill(row []byte, v *AnyReceiver) []byte {
	for _, m := range k.plain {
		if m.Hidden {
			copy(row[m.Off:m.Off+m.Size], v.state[m.Off:])
		}
	}
	return row
}
