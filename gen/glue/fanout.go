package glue

import (
	"fmt"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
)

// This file names what relays have that send to many: groups, receivers and events.

func newGroup(g *ir.Group, types, scope, funcs scope) group {
	name := exported(g.Name)
	out := group{
		Field: scope.pick(name), Name: g.Name, Type: types.pick(name + "Groups"),
		About:  fmt.Sprintf("up to %d groups of up to %d receivers each, %d in all", g.Size, g.Max, g.Rows),
		Handle: types.pick(name + "Group"), Receiver: types.pick(name + "Receiver"),
		Change: types.pick(name + "Change"),
	}
	var plain, state []*ir.Member
	for _, m := range g.Receivers.Value.Members {
		if m.Type.Kind.IsIndex() {
			state = append(state, m)
		} else {
			plain = append(plain, m)
		}
	}
	out.Row = newShape(types.pick(name+"Row"), "are the values of a receiver.", funcs, plain)
	out.Key = newKey(name+"Key", "is the key of a group of "+g.Name+".", types, funcs, g.Key.Members)
	out.State = newShape(types.pick(name+"State"), "is what a receiver has as long as it is there.", funcs, state)
	return out
}

// addEvents names the events, and which receivers they name: those of the groups to whose receivers they are emitted.
func (f *file) addEvents(p *ir.Plan, types scope) {
	named := map[*ir.Event]map[int]bool{}
	name := func(e *ir.Event, row *ir.Row) {
		for i, g := range p.Groups {
			if row != nil && row.Table == g.Receivers {
				if named[e] == nil {
					named[e] = map[int]bool{}
				}
				named[e][i] = true
			}
		}
	}
	for s := range ir.AllStmts(p) {
		fx := ir.EffectsOf(s)
		if fx == nil {
			continue
		}
		for _, e := range fx.Emits {
			name(e.Event, e.Row)
		}
		for _, e := range fx.Entries {
			name(e.Event, e.Row)
		}
	}
	lost := newScope()
	for _, e := range p.Events {
		out := event{
			Type: types.pick(exported(e.Name) + "Event"), Name: e.Name, ID: e.ID, Lost: lost.pick(exported(e.Name)),
			Required: e.Required,
		}
		for i, g := range f.Groups {
			if named[e][i] {
				out.Receiver, out.Of = "*"+g.Receiver, "r."+g.Field+".Of"
			}
		}
		if len(named[e]) > 1 {
			if f.Receiver == "" {
				f.Receiver = types.pick("Receiver")
			}
			out.Receiver, out.Of = f.Receiver, "r.receiver"
		}
		out.Fields = eventFields(newScope("Receiver", "Time", "Mono", "Copies"), e.Fields.Members)
		if e.Copies != nil {
			out.Copy = types.pick(exported(e.Name) + "Copy")
			out.Values = eventFields(newScope("Receiver"), e.Copies.Entry.Members)
		}
		f.Events = append(f.Events, out)
	}
}

// eventFields are the fields of an event, or of what it says of a copy.
func eventFields(taken scope, members []*ir.Member) (all []field) {
	for _, m := range members {
		if m.Hidden {
			continue
		}
		f := field{
			Field: taken.pick(exported(m.Name)), Name: m.Name, Type: m.Type.Go(), From: fromEvent(len(all), m.Type),
		}
		if m.Type.Kind == ir.Data {
			f.Doc = fmt.Sprintf("up to %d bytes of the packet, valid until the next step", m.Type.Size)
		}
		all = append(all, f)
	}
	return all
}

// fromEvent returns the expression for the i-th field of an event.
func fromEvent(i int, t ir.Type) string {
	switch t.Kind {
	case ir.Uint:
		return fmt.Sprintf("%s(e.Uint(%d))", t.Go(), i)
	case ir.Bool:
		return fmt.Sprintf("e.Bool(%d)", i)
	case ir.Bytes:
		return fmt.Sprintf("%s(e.Bytes(%d))", t.Go(), i)
	case ir.Data:
		return fmt.Sprintf("e.Bytes(%d)", i)
	case ir.Mac:
		return fmt.Sprintf("e.MAC(%d)", i)
	case ir.Addr:
		return fmt.Sprintf("e.Addr(%d)", i)
	case ir.Endpoint:
		return fmt.Sprintf("e.AddrPort(%d)", i)
	}
	panic(fmt.Sprintf("glue: an event has a field of kind %d", t.Kind))
}
