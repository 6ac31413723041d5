package declare

import (
	"slices"

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

// maxEvent bounds a record, without what it has of the packet: it is made while a packet is processed.
const maxEvent = 1024

func (c *declarer) event(e *spec.Event) {
	out := &ir.Event{Name: e.Name.Value, ID: len(c.names.Plan.Events) + 1, Required: e.Required, Pos: e.Name.Pos}
	errors := c.diags.Len()
	out.Fields.Members = c.members(e.Fields, ir.InEvent, "an event")
	if e.Copies != nil {
		out.Copies = &ir.Copies{Entry: ir.Struct{Members: c.members(e.Copies, ir.InEvent, "an event")}}
	}
	if c.diags.Len() > errors {
		return
	}
	c.layOutEvent(out)
	if c.diags.Len() > errors {
		return
	}
	c.names.Events[out.Name] = out
	c.names.Plan.Events = append(c.names.Plan.Events, out)
}

// layOutEvent lays a record out. What it has of the packet comes last, wherever the spec has it.
func (c *declarer) layOutEvent(e *ir.Event) {
	data := e.Data()
	var others []*ir.Member
	for _, m := range e.Fields.Members {
		switch {
		case m.Type.Kind != ir.Data:
			others = append(others, m)
		case m != data:
			c.diags.Add(code.Event, m.Pos, "event %q has two fields for bytes of the packet", e.Name).
				WithRelated(data.Pos, "the first one").
				WithHint("one of them can have the bytes of both: its value may be any header, with all that follows")
		}
	}
	fields := ir.Struct{Members: others}
	layOutFrom(&fields, abi.EventHeader, 8)
	if fields.Size > maxEvent {
		c.diags.Add(code.Event, e.Pos, "event %q takes %d bytes; %d is the most", e.Name, fields.Size, maxEvent)
	}
	if data != nil {
		others = append(others, data)
	}
	e.Fields.Members = others
	layOutFrom(&e.Fields, abi.EventHeader, 8)
	if e.Copies != nil {
		c.layOutCopies(e, data)
	}
}

// layOutCopies lays out what a record has of each copy, after its fields.
func (c *declarer) layOutCopies(e *ir.Event, data *ir.Member) {
	id := &ir.Member{Name: abi.MemberReceiver, Type: ir.UintType(32), Hidden: true, Pos: e.Pos}
	entry := &e.Copies.Entry
	entry.Members = slices.Insert(entry.Members, 0, id)
	layOut(entry, 4)
	for _, m := range entry.Members {
		if m.Type.Align() == 8 {
			layOut(entry, 8)
		}
	}
	e.Copies.Off = e.Fields.Size
	for _, g := range c.names.Plan.Groups {
		e.Copies.Max = max(e.Copies.Max, g.Max)
	}
	size := e.Copies.Off + e.Copies.Max*entry.Size
	e.Fields.Size = (size + 7) &^ 7
	most := maxRecord
	if !e.Required {
		most = maxOutside
	}
	switch {
	case data != nil:
		c.diags.Add(code.Event, data.Pos, "event %q has an end of variable size already: what it says of each copy",
			e.Name).
			WithHint("bytes of the packet need an event of their own")
	case slices.ContainsFunc(entry.Members, func(m *ir.Member) bool { return m.Type.Kind == ir.Data }):
		c.diags.Add(code.BadType, e.Pos, "a copy of event %q can't have bytes of the packet: they are the same for all",
			e.Name).
			WithHint("bytes of the packet need an event of their own")
	case e.Copies.Max == 0:
		c.diags.Add(code.Event, e.Pos, "event %q says something of each copy, and the spec has no group", e.Name)
	case e.Fields.Size > most:
		c.diags.Add(code.Event, e.Pos, "event %q takes %d bytes with %d receivers; %d is the most", e.Name,
			e.Fields.Size, e.Copies.Max, most).
			WithHint("let it have fewer values for each copy, or the groups fewer receivers (max)")
	}
}

// maxRecord bounds a record: its size has to fit into its header. One that isn't required is put together in memory of
// a processor's own, of which the kernel gives no more at once (PCPU_MIN_UNIT_SIZE).
const maxRecord, maxOutside = 0xFFF8, 32 << 10
