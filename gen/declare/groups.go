package declare

import (
	"github.com/fastrelay/fastrelay-gen/gen/code"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/runtime/abi"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// This pass gives groups of receivers and events their types and layouts.

// If the spec doesn't say how many.
const (
	defaultGroupMax     = 64
	defaultReceivers    = 1024
	defaultGroups       = 64
	defaultTranslations = 65536
	defaultRing         = 1 << 20
)

// receiver is what the receiver's row is called in the rules of a fan-out.
const Receiver = "r"

func (c *declarer) group(g *spec.Group) {
	out := &ir.Group{
		Name: g.Name.Value, Max: g.Max, Rows: g.Rows, Size: g.Size, Base: max(1, c.names.Plan.Receivers),
		Pos: g.Name.Pos,
	}
	for _, d := range []struct {
		n    *int
		word int
	}{{&out.Max, defaultGroupMax}, {&out.Rows, defaultReceivers}, {&out.Size, defaultGroups}} {
		if *d.n == 0 {
			*d.n = d.word
		}
	}
	if g.Rows == 0 && out.Rows < out.Max {
		out.Rows = out.Max
	}
	if out.Rows < out.Max {
		c.diags.Add(code.Table, out.Pos, "group %q has room for %d receivers in all, but one group may have %d",
			out.Name, out.Rows, out.Max)
		return
	}
	errors := c.diags.Len()
	out.Key.Members = c.members(g.Key, ir.InKey, "the key of a group")
	value := ir.Struct{Members: c.members(g.Receiver, ir.InValue, "the row of a receiver")}
	if c.diags.Len() > errors {
		return
	}
	if len(out.Key.Members) == 0 || len(value.Members) == 0 {
		c.diags.Add(code.Table, out.Pos, "group %q needs a key, and receivers with values", out.Name)
		return
	}
	index := ir.Struct{Members: []*ir.Member{{Name: "row", Type: ir.UintType(32), Pos: out.Pos}}, Size: 4}
	out.Receivers = &ir.Table{
		Name: out.Name, Kind: "receivers", Size: out.Rows + out.Max, Key: index, Value: value, Pos: out.Pos,
	}
	c.names.Plan.Receivers = out.Base + out.Rows
	c.names.Groups[out.Name] = out
	c.names.Plan.Groups = append(c.names.Plan.Groups, out)
}

// maxEvent bounds a record: it is made while a packet is processed.
const maxEvent = 1024

func (c *declarer) event(e *spec.Event) {
	out := &ir.Event{Name: e.Name.Value, ID: len(c.names.Plan.Events) + 1, Required: e.Required, Pos: e.Name.Pos}
	errors := c.diags.Len()
	out.Fields.Members = c.members(e.Fields, ir.InEvent, "an event")
	if c.diags.Len() > errors {
		return
	}
	layOutFrom(&out.Fields, abi.EventHeader, 8)
	if out.Fields.Size > maxEvent {
		c.diags.Add(code.Event, out.Pos, "event %q takes %d bytes; %d is the most", out.Name, out.Fields.Size, maxEvent)
		return
	}
	c.names.Events[out.Name] = out
	c.names.Plan.Events = append(c.names.Plan.Events, out)
}
