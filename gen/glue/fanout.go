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
	for s := range ir.AllStmts(p) {
		fx := ir.EffectsOf(s)
		if fx == nil {
			continue
		}
		for _, e := range fx.Emits {
			for i, g := range p.Groups {
				if e.Row != nil && e.Row.Table == g.Receivers {
					if named[e.Event] == nil {
						named[e.Event] = map[int]bool{}
					}
					named[e.Event][i] = true
				}
			}
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
				out.Receiver, out.Of = "*"+g.Receiver, "r."+g.Field+".Of(e)"
			}
		}
		if len(named[e]) > 1 {
			if f.Receiver == "" {
				f.Receiver = types.pick("Receiver")
			}
			out.Receiver, out.Of = f.Receiver, "r.receiver(e)"
		}
		taken := newScope("Receiver", "Time", "Mono")
		for i, m := range e.Fields.Members {
			out.Fields = append(out.Fields, field{
				Field: taken.pick(exported(m.Name)), Name: m.Name, Type: m.Type.Go(), From: fromEvent(i, m.Type),
			})
		}
		f.Events = append(f.Events, out)
	}
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
	case ir.Mac:
		return fmt.Sprintf("e.MAC(%d)", i)
	case ir.Addr:
		return fmt.Sprintf("e.Addr(%d)", i)
	case ir.Endpoint:
		return fmt.Sprintf("e.AddrPort(%d)", i)
	}
	panic(fmt.Sprintf("glue: an event has a field of kind %d", t.Kind))
}
