package sim

import (
	"encoding/binary"
	"maps"
	"slices"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
)

// Table is a table's content: keys and values in the layouts of the plan.
type Table struct {
	ir   *ir.Table
	rows map[string][]byte
}

func newTable(t *ir.Table) *Table { return &Table{ir: t, rows: map[string][]byte{}} }

// Get returns the value of a key, or nil. Every index of an array below its size has a value, zero at first. In a
// longest prefix table the key is a prefix, not an address.
func (t *Table) Get(key []byte) []byte {
	if v, ok := t.rows[string(t.canonical(key))]; ok {
		return v
	}
	if t.ir.Kind == "array" && int64(binary.LittleEndian.Uint32(key)) < int64(t.ir.Size) {
		return make([]byte, t.ir.Value.Size)
	}
	return nil
}

// Put inserts or replaces a row. It reports whether the kernel would have: a table that is full takes no new row (an
// LRU table throws one out instead; which one is not modelled, so it is never full here).
func (t *Table) Put(key, value []byte) bool {
	key = t.canonical(key)
	_, known := t.rows[string(key)]
	switch t.ir.Kind {
	case "array":
		if int64(binary.LittleEndian.Uint32(key)) >= int64(t.ir.Size) {
			return false
		}
	case "hash", "lpm":
		if !known && len(t.rows) >= t.ir.Size {
			return false
		}
	}
	t.rows[string(key)] = slices.Clone(value)
	return true
}

// Delete removes a row.
func (t *Table) Delete(key []byte) { delete(t.rows, string(t.canonical(key))) }

// Clear removes all rows.
func (t *Table) Clear() { clear(t.rows) }

// Keys returns the keys of all rows that were put in, sorted.
func (t *Table) Keys() []string { return slices.Sorted(maps.Keys(t.rows)) }

// lookup finds the row for a program's key: for longest prefix tables, whose key then holds a whole address, the row
// with the longest prefix that contains it.
func (t *Table) lookup(key []byte) []byte {
	if t.ir.Kind != "lpm" {
		return t.Get(key)
	}
	var found []byte
	best := -1
	for k, v := range t.rows {
		bits := int(binary.LittleEndian.Uint32([]byte(k[:4])))
		if bits > best && samePrefix([]byte(k[4:]), key[4:], bits) {
			found, best = v, bits
		}
	}
	return found
}

func samePrefix(a, b []byte, bits int) bool {
	for i := range bits {
		if (a[i/8]^b[i/8])&(0x80>>(i%8)) != 0 {
			return false
		}
	}
	return true
}

// canonical clears the bits of a prefix after its length: two prefixes that differ there are one to the kernel.
func (t *Table) canonical(key []byte) []byte {
	if t.ir.Kind != "lpm" {
		return key
	}
	key = slices.Clone(key)
	addr := key[4:]
	for i := int(binary.LittleEndian.Uint32(key)); i < 8*len(addr); i++ {
		addr[i/8] &^= 0x80 >> (i % 8)
	}
	return key
}
