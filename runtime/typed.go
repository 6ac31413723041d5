package runtime

import (
	"context"
	"fmt"
	"iter"
	"time"

	"github.com/fastrelay/fastrelay-gen/runtime/abi"
)

// What generated packages are made of: programs, tables, sessions and groups whose values have types. Each of them
// stands on the one without types that tools use, such as a [Table] on an [AnyTable].

// Program is a program whose reasons are of type R, numbered as in its description.
type Program[R ~int] struct{ *AnyProgram }

// TypedProgram returns the program of that name. Generated packages call it.
func TypedProgram[R ~int](r *Relay, name string) *Program[R] { return &Program[R]{r.Program(name)} }

// Count returns how many packets ended with a reason; an error that wraps [ErrNotFound] if the program has none
// such.
func (p *Program[R]) Count(reason R) (Count, error) {
	if reason < 0 || int(reason) >= len(p.desc.Reasons) {
		return Count{}, fmt.Errorf("%v: reason %d: %w", p.AnyProgram, reason, ErrNotFound)
	}
	return p.count(int(reason))
}

// Row is a row of a table.
type Row[K, V any] struct {
	Key   K
	Value V
}

// ReadTable is a table with keys of type K and values of type V that user space reads alone, since packets make its
// rows, which end with sessions. See [AnyTable] for what members there are.
type ReadTable[K, V any] struct {
	t     *AnyTable
	key   func(*Codec, *K)
	value func(*Codec, *V)
}

// TypedReadTable returns the table of that name. Generated packages call it, with how keys and values are laid out.
func TypedReadTable[K, V any](r *Relay, name string, key func(*Codec, *K), value func(*Codec, *V)) *ReadTable[K, V] {
	return &ReadTable[K, V]{r.Table(name), key, value}
}

// Get returns the value of a row; an error that wraps [ErrNotFound] if there is none.
func (t *ReadTable[K, V]) Get(key K) (value V, err error) {
	k, err := t.encodeKey(key)
	if err != nil {
		return value, err
	}
	b, err := t.t.find(k)
	if err != nil {
		return value, err
	}
	return t.decodeValue(b), nil
}

// All iterates over the rows as [AnyTable.All] does. An error ends the iteration.
func (t *ReadTable[K, V]) All() iter.Seq2[Row[K, V], error] {
	return eachRow(t.t, func(row rowBytes) (out Row[K, V]) {
		t.t.keyLayout().decode(row.key, nil, func(c *Codec) { t.key(c, &out.Key) })
		out.Value = t.decodeValue(row.value)
		return out
	})
}

func (t *ReadTable[K, V]) encodeKey(key K) ([]byte, error) {
	k, err := t.t.keyLayout().encode(func(c *Codec) { t.key(c, &key) })
	if err != nil {
		return nil, err
	}
	return k.data, t.t.checkKey(k.data)
}

func (t *ReadTable[K, V]) decodeValue(b []byte) (value V) {
	b = t.t.sum(b)
	t.t.valueLayout().decode(b, t.t.refersTo(b), func(c *Codec) { t.value(c, &value) })
	return value
}

// Table is a table with keys of type K and values of type V.
type Table[K, V any] struct{ ReadTable[K, V] }

// TypedTable returns the table of that name. Generated packages call it, with how keys and values are laid out.
func TypedTable[K, V any](r *Relay, name string, key func(*Codec, *K), value func(*Codec, *V)) *Table[K, V] {
	return &Table[K, V]{*TypedReadTable(r, name, key, value)}
}

// Put inserts a row, or replaces the one with that key, as [AnyTable.Put] does. Counters of the row stay what they are;
// a new row has new ones. Errors: [*ValueError], [*FullError].
func (t *Table[K, V]) Put(key K, value V) error {
	k, err := t.encodeKey(key)
	if err != nil {
		return err
	}
	v, err := t.t.valueLayout().encode(func(c *Codec) { t.value(c, &value) })
	if err != nil {
		return err
	}
	return t.t.put(k, v)
}

// Delete removes a row as [AnyTable.Delete] does; an error that wraps [ErrNotFound] if there is none. In an array,
// the row becomes zero.
func (t *Table[K, V]) Delete(key K) error {
	k, err := t.encodeKey(key)
	if err != nil {
		return err
	}
	return t.t.deleteOne(k)
}

// DeleteMany removes rows, thousands with one system call, and returns how many there were. If a key is wrong, it
// removes none.
func (t *Table[K, V]) DeleteMany(keys ...K) (deleted int, err error) {
	all := make([][]byte, len(keys))
	for i, key := range keys {
		if all[i], err = t.encodeKey(key); err != nil {
			return 0, err
		}
	}
	return t.t.deleteAll(all)
}

// Sessions is a kind of session, whose fields are an F and whose counters, by row, are a C.
type Sessions[F, C any] struct {
	relay    *Relay
	kind     int
	fields   func(*Codec, *F)
	counters func([]Count) C
}

// TypedSessions returns the kind of session of that name. Generated packages call it, with how fields are laid out, and
// what the counters of the rows are called.
func TypedSessions[F, C any](r *Relay, name string, fields func(*Codec, *F), counters func([]Count) C) *Sessions[F, C] {
	s := &Sessions[F, C]{relay: r, fields: fields, counters: counters}
	for i, d := range r.desc.Sessions {
		if d.Name == name {
			s.kind = i
		}
	}
	return s
}

// Open opens a session: packets are forwarded for it when the call returns. Errors: [*ValueError], [*CollisionError]
// if another session has one of its keys, [*FullError], [ErrClosed].
func (k *Sessions[F, C]) Open(fields F) (*Session[F, C], error) {
	v, err := k.encode(fields)
	s, err := k.relay.openSession(k.kind, v, err)
	if err != nil {
		return nil, err
	}
	return &Session[F, C]{s, k}, nil
}

func (k *Sessions[F, C]) encode(fields F) (values, error) {
	return k.relay.sessionKinds[k.kind].encode(func(c *Codec) { k.fields(c, &fields) })
}

// All iterates over the open sessions, those adopted from another process included.
func (k *Sessions[F, C]) All() iter.Seq[*Session[F, C]] {
	return func(yield func(*Session[F, C]) bool) {
		for s := range k.relay.Sessions() {
			if s.kind == k.kind && !yield(&Session[F, C]{s, k}) {
				return
			}
		}
	}
}

// Close closes sessions, and removes the rows of thousands with one system call for each table. Those that are over are
// left out.
func (k *Sessions[F, C]) Close(sessions ...*Session[F, C]) error {
	all := make([]*AnySession, len(sessions))
	for i, s := range sessions {
		all[i] = s.s
	}
	return k.relay.CloseSessions(all...)
}

// A Session is open until Close, or until its lifetime or idle time, which the spec gives, has passed.
type Session[F, C any] struct {
	s    *AnySession
	kind *Sessions[F, C]
}

// Change gives the session other values, as a whole or not at all; see [AnySession.Change]. Errors are those of
// [Sessions.Open]; the session's Err if it is over.
func (s *Session[F, C]) Change(fields F) error {
	v, err := s.kind.encode(fields)
	return s.s.changeTo(v, err)
}

// Fields returns what the session was opened with, or changed to.
func (s *Session[F, C]) Fields() (fields F) {
	s.s.of().decode(*s.s.fields.Load(), s.s.refersTo, func(c *Codec) { s.kind.fields(c, &fields) })
	return fields
}

// Counters returns what was sent for the session, by the row that it was sent by; the session's Err if it is over.
func (s *Session[F, C]) Counters() (counters C, err error) {
	all, err := s.s.Counters()
	if err != nil {
		return counters, err
	}
	return s.kind.counters(all), nil
}

// LastUsed returns when a packet was last sent for the session; the zero time if none was. It returns the session's
// Err if the session is over.
func (s *Session[F, C]) LastUsed() (time.Time, error) { return s.s.LastUsed() }

// Refresh gives the session its whole time again; an error if it is over.
func (s *Session[F, C]) Refresh() error { return s.s.Refresh() }

// Expires returns when the session ends unless it is refreshed or used; the zero time if it doesn't end by itself.
func (s *Session[F, C]) Expires() time.Time { return s.s.Expires() }

// Done is closed when the session is over.
func (s *Session[F, C]) Done() <-chan struct{} { return s.s.Done() }

// Err says why the session is over: [ErrClosed] or [ErrExpired]; nil while it is open.
func (s *Session[F, C]) Err() error { return s.s.Err() }

// Close ends the session, in all directions. Closing it again does nothing.
func (s *Session[F, C]) Close() error { return s.s.Close() }

// String names the session by its fields.
func (s *Session[F, C]) String() string { return s.s.String() }

// Groups is a kind of group, with keys of type K and receivers whose values are a V and whose counters, credits,
// buckets and translations are an S.
type Groups[K, V, S any] struct {
	k     *AnyGroups
	key   func(*Codec, *K)
	value func(*Codec, *V)
	state func(*Codec, *S)
}

// TypedGroups returns the kind of group of that name. Generated packages call it, with how keys, values and what
// receivers refer to are laid out.
func TypedGroups[K, V, S any](r *Relay, name string, key func(*Codec, *K), value func(*Codec, *V),
	state func(*Codec, *S)) *Groups[K, V, S] {
	return &Groups[K, V, S]{r.GroupKind(name), key, value, state}
}

// Open opens a group without receivers, and waits as [Group.Change] does. Errors: [*ExistsError], [*FullError],
// [*ValueError], [ErrClosed].
func (k *Groups[K, V, S]) Open(ctx context.Context, key K) (*Group[K, V, S], error) {
	b, err := k.encodeKey(key)
	if err != nil {
		return nil, err
	}
	g, err := k.k.openKey(ctx, b)
	if err != nil {
		return nil, err
	}
	return k.group(g), nil
}

// Get returns the open group with a key; an error that wraps [ErrNotFound] if there is none.
func (k *Groups[K, V, S]) Get(key K) (*Group[K, V, S], error) {
	b, err := k.encodeKey(key)
	if err != nil {
		return nil, err
	}
	g, err := k.k.find(b)
	if err != nil {
		return nil, err
	}
	return k.group(g), nil
}

// All iterates over the open groups, those adopted from another process included.
func (k *Groups[K, V, S]) All() iter.Seq[*Group[K, V, S]] {
	return func(yield func(*Group[K, V, S]) bool) {
		for g := range k.k.All() {
			if !yield(k.group(g)) {
				return
			}
		}
	}
}

// Count returns how many groups are open, and how many receivers they have.
func (k *Groups[K, V, S]) Count() (groups, receivers int) { return k.k.Count() }

// Of returns the receiver that an event names; nil if it names none, or one of another kind.
func (k *Groups[K, V, S]) Of(e *Event) *Receiver[K, V, S] {
	if e.Receiver == nil || e.Receiver.group.kind != k.k {
		return nil
	}
	return k.receiver(e.Receiver)
}

func (k *Groups[K, V, S]) encodeKey(key K) ([]byte, error) {
	return k.k.checkKey(k.k.keyLayout().encode(func(c *Codec) { k.key(c, &key) }))
}

func (k *Groups[K, V, S]) encode(row V) (values, error) {
	return k.k.rowLayout().encode(func(c *Codec) { k.value(c, &row) })
}

func (k *Groups[K, V, S]) decode(row []byte) (v V) {
	if row != nil {
		k.k.rowLayout().decode(row, nil, func(c *Codec) { k.value(c, &v) })
	}
	return v
}

func (k *Groups[K, V, S]) group(g *AnyGroup) *Group[K, V, S] {
	return g.typed.get(func() any { return &Group[K, V, S]{g, k} }).(*Group[K, V, S])
}

func (k *Groups[K, V, S]) receiver(v *AnyReceiver) *Receiver[K, V, S] {
	return v.typed.get(func() any {
		out := &Receiver[K, V, S]{v: v, kind: k}
		l := k.k.stateLayout()
		l.decode(make([]byte, l.size), func(member, level int) handle { return v.refers[member][level] },
			func(c *Codec) { k.state(c, &out.State) })
		return out
	}).(*Receiver[K, V, S])
}

// stateLayout is that of what receivers refer to; what they don't is hidden.
func (k *AnyGroups) stateLayout() layout {
	members := make([]abi.Member, len(k.desc.Receiver))
	for i, m := range k.desc.Receiver {
		m.Hidden = !m.Kind.IsState()
		members[i] = m
	}
	return layout{k.where() + ", receiver", members, k.desc.ReceiverSize}
}

// A Group sends packets that have its key to its receivers. It is the same pointer as long as the group is open.
type Group[K, V, S any] struct {
	g    *AnyGroup
	kind *Groups[K, V, S]
}

// Key returns the key that the group was opened with.
func (g *Group[K, V, S]) Key() (key K) {
	g.kind.k.keyLayout().decode(g.g.key, nil, func(c *Codec) { g.kind.key(c, &key) })
	return key
}

// Receivers returns the receivers, in the order in which packets are sent to them.
func (g *Group[K, V, S]) Receivers() []*Receiver[K, V, S] {
	var out []*Receiver[K, V, S]
	for _, v := range g.g.Receivers() {
		out = append(out, g.kind.receiver(v))
	}
	return out
}

// Len returns how many receivers the group has.
func (g *Group[K, V, S]) Len() int { return g.g.Len() }

// Add adds a receiver after the others. It gets packets when Add returns; Add waits as Change does. Errors:
// [*ValueError], [*FullError], [ErrClosed].
func (g *Group[K, V, S]) Add(ctx context.Context, row V) (v *Receiver[K, V, S], err error) {
	err = g.Change(ctx, func(c *Change[K, V, S]) error {
		v, err = c.Add(row)
		return err
	})
	if err != nil {
		return nil, err
	}
	return v, nil
}

// Change makes several changes in one step: each packet sees all of them or none. f says which; if it returns an
// error, nothing is changed. Receivers that it adds get no packet before it returns, so that it may set their counters
// and credits.
//
// Change waits until no program sees the receivers from before it: some milliseconds. If ctx ends first, Change returns
// its error, and the change goes on. See [AnyGroup.Change].
func (g *Group[K, V, S]) Change(ctx context.Context, f func(c *Change[K, V, S]) error) error {
	return g.g.Change(ctx, func(c *AnyChange) error { return f(&Change[K, V, S]{c, g.kind}) })
}

// Close closes the group: no packet reaches its receivers when it returns, and all that they had is free. Closing it
// again does nothing. It waits as Change does.
func (g *Group[K, V, S]) Close(ctx context.Context) error { return g.g.Close(ctx) }

// String names the group by its key.
func (g *Group[K, V, S]) String() string { return g.g.String() }

// A Change is several changes of a group in one step.
type Change[K, V, S any] struct {
	c    *AnyChange
	kind *Groups[K, V, S]
}

// Add adds a receiver after the others.
func (c *Change[K, V, S]) Add(row V) (*Receiver[K, V, S], error) {
	v, err := c.c.add(c.kind.encode(row))
	if err != nil {
		return nil, err
	}
	return c.kind.receiver(v), nil
}

// Set gives a receiver new values.
func (c *Change[K, V, S]) Set(v *Receiver[K, V, S], row V) error {
	b, err := c.kind.encode(row)
	return c.c.set(v.v, b, err)
}

// Update changes a receiver's values. f is called after the function that has the Change has returned, perhaps more
// than once.
func (c *Change[K, V, S]) Update(v *Receiver[K, V, S], f func(row *V)) {
	c.c.update(v.v, func(old []byte) (values, error) {
		row := c.kind.decode(old)
		f(&row)
		return c.kind.encode(row)
	})
}

// Remove removes a receiver; one that is removed already is left alone.
func (c *Change[K, V, S]) Remove(v *Receiver[K, V, S]) { c.c.Remove(v.v) }

// A Receiver is one receiver of a group. It is the same pointer until it is removed, and so is what it refers to,
// whatever becomes of its values.
type Receiver[K, V, S any] struct {
	v    *AnyReceiver
	kind *Groups[K, V, S]

	State S   // its counters, credits, buckets and translations
	Tag   any // the caller's. Set in Change, it is there when the first event names the receiver
}

// ID returns the identity of the receiver, which is used again some time after it is removed.
func (v *Receiver[K, V, S]) ID() uint32 { return v.v.ID() }

// Group returns the group of the receiver.
func (v *Receiver[K, V, S]) Group() *Group[K, V, S] { return v.kind.group(v.v.group) }

// Row returns the values in force; zero ones if the receiver was removed.
func (v *Receiver[K, V, S]) Row() V { return v.kind.decode(v.v.inForce()) }

// Set gives the receiver new values. They are in force when it returns; each packet sees the old or the new ones. It
// waits as [Group.Change] does.
func (v *Receiver[K, V, S]) Set(ctx context.Context, row V) error {
	return v.Group().Change(ctx, func(c *Change[K, V, S]) error { return c.Set(v, row) })
}

// Update changes the receiver's values, as Set does. No change of another goroutine is lost: f is called again if
// one came between.
func (v *Receiver[K, V, S]) Update(ctx context.Context, f func(row *V)) error {
	return v.Group().Change(ctx, func(c *Change[K, V, S]) error { c.Update(v, f); return nil })
}

// Remove removes the receiver: no packet reaches it when Remove returns. Removing it again does nothing. It waits as
// [Group.Change] does.
func (v *Receiver[K, V, S]) Remove(ctx context.Context) error { return v.v.Remove(ctx) }

// Usage returns the packets that were sent and not sent to the receiver; of one that is removed, until then.
func (v *Receiver[K, V, S]) Usage() (Usage, error) { return v.v.Usage() }

// Hops returns how packets leave towards the receiver; copies are sent only if the state is [HopDirect].
func (v *Receiver[K, V, S]) Hops() []Hop { return v.v.Hops() }

// String names the receiver by its group and identity.
func (v *Receiver[K, V, S]) String() string { return v.v.String() }
