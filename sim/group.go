package sim

import (
	"encoding/binary"
	"maps"
	"slices"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
)

// Group holds the groups of one kind: under each key, the rows of its receivers in the order of sending, in the layout
// of the plan. A row's hidden member "receiver" is the identity.
type Group struct {
	ir    *ir.Group
	lists map[string][][]byte
}

func newGroup(g *ir.Group) *Group { return &Group{ir: g, lists: map[string][][]byte{}} }

// Get returns the rows of a group's receivers; known is false if there is no such group. A group may be empty.
func (g *Group) Get(key []byte) (rows [][]byte, known bool) {
	rows, known = g.lists[string(key)]
	return rows, known
}

// Put makes a group, or replaces all of its receivers at once. It reports whether there is room for it.
func (g *Group) Put(key []byte, rows [][]byte) bool {
	_, known := g.lists[string(key)]
	if len(rows) > g.ir.Max || !known && len(g.lists) >= g.ir.Size {
		return false
	}
	g.lists[string(key)] = slices.Clone(rows)
	return true
}

// Delete removes a group.
func (g *Group) Delete(key []byte) { delete(g.lists, string(key)) }

// Clear removes all groups.
func (g *Group) Clear() { clear(g.lists) }

// Keys returns the keys of all groups, sorted.
func (g *Group) Keys() []string { return slices.Sorted(maps.Keys(g.lists)) }

// Identity returns the identity in a receiver's row, or 0 if it has none.
func (g *Group) Identity(row []byte) uint32 { return identity(g.ir.Receivers, row) }

func identity(receivers *ir.Table, row []byte) uint32 {
	for _, m := range receivers.Value.Members {
		if m.Hidden && m.Name == "receiver" && m.Off+4 <= len(row) {
			return binary.LittleEndian.Uint32(row[m.Off:])
		}
	}
	return 0
}

// ReceiverUsage counts what became of the turns of one receiver: see fr_receivers in docs/internals.md.
type ReceiverUsage struct {
	Packets  uint64 // copies sent
	Bytes    uint64 // of them
	Declined uint64 // turns without a copy
	Failed   uint64 // of those, clones that the kernel refused
}

// Credit is an entry of the array of credits (see ir.Admit): of a credit, Limit and Spent are in units of the spec; of
// a bucket, Limit is the rate in units a second, Spent the time in nanoseconds up to which it is spent, and Burst in
// units.
type Credit struct {
	Limit   uint64
	Spent   uint64
	Burst   uint64
	Refused []uint64 // packets refused, by level of priority
}

// TranslationKey is the key of a row of the table of translations.
type TranslationKey struct {
	Key       uint64
	Namespace uint32
}

// Translation is a row of the table of translations. One that isn't done is being made on another processor.
type Translation struct {
	Value uint64
	Done  bool
}
