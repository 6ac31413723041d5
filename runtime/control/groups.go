package control

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"net/http"
	"slices"
	"strconv"

	"github.com/fastrelay/fastrelay-gen/runtime"
	"github.com/fastrelay/fastrelay-gen/runtime/abi"
	"github.com/fastrelay/fastrelay-gen/runtime/control/api"
	"github.com/fastrelay/fastrelay-gen/runtime/internal/seek"
)

func (s *Server) groupKind(r *http.Request) (*runtime.AnyGroups, error) {
	var names []string
	for _, k := range s.relay.GroupKinds() {
		if k.Desc().Name == r.PathValue("kind") {
			return k, nil
		}
		names = append(names, k.Desc().Name)
	}
	return nil, notFound("kind of group", r.PathValue("kind"), names)
}

func (s *Server) pathGroup(r *http.Request) (*runtime.AnyGroup, error) {
	k, err := s.groupKind(r)
	if err != nil {
		return nil, err
	}
	key, err := api.ParseKey(k.Desc().Key, r.PathValue("key"))
	if err != nil {
		return nil, keyError(err)
	}
	return k.Get(key...)
}

// keyError makes an error of a key in a path one of the request.
func keyError(err error) error {
	p := problem(err)
	p.Status, p.Code = http.StatusUnprocessableEntity, api.CodeValue
	if p.Field == "" {
		p.Field = "key"
	}
	return p
}

func groupID(g *runtime.AnyGroup) string { return api.KeyText(g.Key()) }

func group(g *runtime.AnyGroup) api.Group {
	return api.Group{
		ID: groupID(g), Kind: g.Kind().Desc().Name, Key: object(api.Members(g.Kind().Desc().Key), g.Key()),
		Receivers: g.Len(),
	}
}

// object puts names to values that are no state.
func object(members []abi.Member, values []any) api.Object {
	out := api.Object{}
	for i, v := range values {
		out = append(out, api.Named{Name: members[i].Name, Value: api.Encode(v)})
	}
	return out
}

var groupsAfter = seek.Groups.(func(*runtime.AnyGroups, []any) (iter.Seq[*runtime.AnyGroup], error))

func (s *Server) listGroups(r *http.Request) (any, error) {
	k, err := s.groupKind(r)
	if err != nil {
		return nil, err
	}
	after, n, err := page(r)
	if err != nil {
		return nil, err
	}
	groups := k.All() // by the bytes of their keys
	if after != "" {
		key, err := api.ParseKey(k.Desc().Key, after)
		if err == nil {
			groups, err = groupsAfter(k, key)
		}
		if err != nil {
			return nil, badAfter(after)
		}
	}
	return part(groups, n, groupID, func(g *runtime.AnyGroup) (api.Group, bool) { return group(g), true }), nil
}

func (s *Server) getGroup(r *http.Request) (any, error) {
	g, err := s.pathGroup(r)
	if err != nil {
		return nil, err
	}
	return group(g), nil
}

func (s *Server) closeGroup(r *http.Request) (any, error) {
	g, err := s.pathGroup(r)
	if err != nil {
		return nil, err
	}
	return nil, g.Close(context.WithoutCancel(r.Context()))
}

func (s *Server) openGroup(r *http.Request) (any, error) {
	k, err := s.groupKind(r)
	if err != nil {
		return nil, err
	}
	var want api.OpenGroup
	if err := read(r, &want); err != nil {
		return nil, err
	}
	members := api.Members(k.Desc().Key)
	key, err := api.DecodeMembers(members, want.Key)
	if err == nil {
		err = whole(members, key, func(abi.Member) bool { return true })
	}
	if err != nil {
		return nil, err
	}
	add, err := newReceivers(k.Desc(), want.Receivers)
	if err != nil {
		return nil, err
	}
	ctx := context.WithoutCancel(r.Context())
	g, err := k.Open(ctx, key...)
	if err != nil {
		return nil, err
	}
	var added []uint32
	if len(add) > 0 {
		err = g.Change(ctx, func(c *runtime.AnyChange) (err error) {
			added, err = addAll(c, add)
			return err
		})
		if err != nil {
			_ = g.Close(ctx) // it has no receivers; if the kernel refuses, it can be closed again
			return nil, err
		}
	}
	out := group(g)
	out.Added = added
	return created{out}, nil
}

// receiverValues are values of a receiver as they were given.
type receiverValues struct {
	plain  []any // in the order of the members that are no state; nil: not given
	states []any // in the order of the others
}

func decodeReceiver(d *abi.Group, o api.Object) (out receiverValues, members []abi.Member, values []any, err error) {
	members = api.Members(d.Receiver)
	if values, err = api.DecodeMembers(members, o); err != nil {
		return out, nil, nil, err
	}
	i := 0
	for _, m := range d.Receiver {
		var v any
		switch {
		case m.Hidden:
			continue
		case m.Kind != abi.KindTranslation:
			v = values[i]
			i++
		}
		if m.Kind.IsState() {
			out.states = append(out.states, v)
		} else {
			out.plain = append(out.plain, v)
		}
	}
	return out, members, values, nil
}

// newReceivers reads receivers to add.
func newReceivers(d *abi.Group, given []api.Object) ([]receiverValues, error) {
	var out []receiverValues
	for i, o := range given {
		v, members, values, err := decodeReceiver(d, o)
		if err == nil {
			err = whole(members, values, func(m abi.Member) bool { return m.Kind != abi.KindCounter })
		}
		if err != nil {
			return nil, fmt.Errorf("receiver %d: %w", i, err)
		}
		out = append(out, v)
	}
	return out, nil
}

func addAll(c *runtime.AnyChange, add []receiverValues) (added []uint32, err error) {
	added = []uint32{}
	for i, one := range add {
		v, err := c.Add(one.plain...)
		if err != nil {
			return nil, fmt.Errorf("receiver %d: %w", i, err)
		}
		for n, state := range one.states {
			setState(v.State(n), state)
		}
		added = append(added, v.ID())
	}
	return added, nil
}

func (s *Server) changeGroup(r *http.Request) (any, error) {
	g, err := s.pathGroup(r)
	if err != nil {
		return nil, err
	}
	var want api.ChangeGroup
	if err := read(r, &want); err != nil {
		return nil, err
	}
	d := g.Kind().Desc()
	add, err := newReceivers(d, want.Add)
	if err != nil {
		return nil, err
	}
	byID := map[uint32]*runtime.AnyReceiver{}
	for _, v := range g.Receivers() {
		byID[v.ID()] = v
	}
	find := func(id uint32, field string) (*runtime.AnyReceiver, error) {
		if v := byID[id]; v != nil {
			return v, nil
		}
		p := notFound("receiver", fmt.Sprint(id), nil)
		p.Field = field
		return nil, p
	}
	type change struct {
		receiver *runtime.AnyReceiver
		to       receiverValues
	}
	var set []change
	for _, one := range want.Set {
		v, err := find(one.ID, "set")
		if err != nil {
			return nil, err
		}
		to, _, _, err := decodeReceiver(d, one.Values)
		if err != nil {
			return nil, fmt.Errorf("receiver %d: %w", one.ID, err)
		}
		set = append(set, change{v, to})
	}
	var remove []*runtime.AnyReceiver
	for _, id := range want.Remove {
		v, err := find(id, "remove")
		if err != nil {
			return nil, err
		}
		remove = append(remove, v)
	}
	out := api.GroupChanged{}
	err = g.Change(context.WithoutCancel(r.Context()), func(c *runtime.AnyChange) (err error) {
		if out.Added, err = addAll(c, add); err != nil {
			return err
		}
		for _, one := range set {
			if slices.ContainsFunc(one.to.plain, func(v any) bool { return v != nil }) {
				c.Update(one.receiver, func(values []any) []any { return merge(values, one.to.plain) })
			}
		}
		for _, v := range remove {
			c.Remove(v)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	for _, one := range set { // credits can't refuse a limit
		for n, state := range one.to.states {
			setState(one.receiver.State(n), state)
		}
	}
	out.Receivers = g.Len()
	return out, nil
}

// merge returns the values with those that are given in their place.
func merge(values, given []any) []any {
	out := slices.Clone(values)
	for i, v := range given {
		if v != nil {
			out[i] = v
		}
	}
	return out
}

func (s *Server) listReceivers(r *http.Request) (any, error) {
	g, err := s.pathGroup(r)
	if err != nil {
		return nil, err
	}
	after, n, err := page(r)
	if err != nil {
		return nil, err
	}
	id := uint64(0)
	if after != "" {
		if id, err = strconv.ParseUint(after, 10, 32); err != nil {
			return nil, badAfter(after)
		}
	}
	all := slices.DeleteFunc(g.Receivers(), func(v *runtime.AnyReceiver) bool { return uint64(v.ID()) <= id })
	slices.SortFunc(all, func(a, b *runtime.AnyReceiver) int { return cmp.Compare(a.ID(), b.ID()) })
	place := func(v *runtime.AnyReceiver) string { return fmt.Sprint(v.ID()) }
	hops := s.hopView()
	return part(slices.Values(all), n, place, func(v *runtime.AnyReceiver) (api.Receiver, bool) {
		one, err := s.receiver(v, hops)
		return one, err == nil // it was removed meanwhile
	}), nil
}

func (s *Server) getReceiver(r *http.Request) (any, error) {
	g, err := s.pathGroup(r)
	if err != nil {
		return nil, err
	}
	for _, v := range g.Receivers() {
		if fmt.Sprint(v.ID()) == r.PathValue("id") {
			return s.receiver(v, s.hopView())
		}
	}
	return nil, notFound("receiver", r.PathValue("id"), nil)
}

func (s *Server) receiver(v *runtime.AnyReceiver, hops func(runtime.NextHop) api.NextHop) (api.Receiver, error) {
	use, err := v.Usage()
	if err != nil {
		return api.Receiver{}, err
	}
	values := v.Values()
	if values == nil {
		return api.Receiver{}, fmt.Errorf("%v: %w", v, runtime.ErrNotFound)
	}
	out := api.Receiver{
		ID: v.ID(), Values: api.Object{}, Packets: use.Packets, Bytes: use.Bytes, Declined: use.Declined,
		Failed: use.Failed, Hops: views(v.NextHops(), hops),
	}
	state := 0
	for _, m := range v.Group().Kind().Desc().Receiver {
		switch {
		case m.Hidden:
		case m.Kind.IsState():
			if m.Kind != abi.KindTranslation {
				out.Values = append(out.Values, api.Named{Name: m.Name, Value: s.state(v.State(state))})
			}
			state++
		default:
			out.Values = append(out.Values, api.Named{Name: m.Name, Value: api.Encode(values[0])})
			values = values[1:]
		}
	}
	return out, nil
}
