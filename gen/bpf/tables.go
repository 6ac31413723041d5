package bpf

import (
	"fmt"
	"slices"
	"strings"

	"github.com/fastrelay/fastrelay-gen/gen/c"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/runtime/abi"
)

// Layouts come from the plan, byte by byte: structures are packed, padding is a member, and an
// assertion compares sizes.

// setting declares a setting with its default.
func (r *renderer) setting(s *ir.Setting) settingData {
	name := abi.SettingPrefix + ident(s.Name)
	d := settingData{Doc: comment(s.Doc)}
	switch s.Type.Kind {
	case ir.Uint, ir.Bool:
		d.Decl = string(cType(s.Type.Size)) + " " + name
		if s.Default != nil {
			d.Decl += " = " + c.Num(littleEndian(s.Default)).String()
		}
	default:
		var b []string
		for i := range s.Type.Size {
			v := byte(0)
			if i < len(s.Default) {
				v = s.Default[i]
			}
			b = append(b, fmt.Sprintf("%#02x", v))
		}
		d.Decl = fmt.Sprintf("__u8 %s[%d] = { %s }", name, s.Type.Size, strings.Join(b, ", "))
	}
	return d
}

// table declares a table's key, value and map, and the function that looks a row of a session up.
func (r *renderer) table(t *ir.Table, d *fileData) {
	name := ident(t.Name)
	r.vals[t] = "val_" + name
	keyType := "__u32"
	if t.Kind != "array" {
		r.keys[t] = "key_" + name
		keyType = "struct key_" + name
		d.Structs = append(d.Structs, r.structure("key_"+name, "table "+t.Name, &t.Key, ""))
	}
	d.Structs = append(d.Structs, r.structure("val_"+name, "", &t.Value, ""))
	var kind abi.TableKind
	if err := kind.UnmarshalText([]byte(t.Kind)); err != nil {
		r.fail("table %q: %v", t.Name, err)
	}
	typ := kind.MapType(t.PerCPU)
	if typ == 0 {
		r.fail("table %q: kind %s can't be per CPU", t.Name, t.Kind)
	}
	m := mapData{Name: abi.TablePrefix + name, Attrs: []string{"__uint(type, " + typ.C() + ")"}}
	if t.Kind == "lpm" {
		m.Attrs = append(m.Attrs, "__uint(map_flags, BPF_F_NO_PREALLOC)")
	}
	m.Attrs = append(m.Attrs, fmt.Sprintf("__uint(max_entries, %d)", t.Size), "__type(key, "+keyType+")",
		"__type(value, struct val_"+name+")")
	if isLookedUp(r.plan, t) {
		m.Find = r.find(t, "const "+keyType+" *key")
	}
	d.Maps = append(d.Maps, m)
}

func isLookedUp(p *ir.Plan, t *ir.Table) bool {
	return slices.ContainsFunc(p.Programs, func(prog *ir.Program) bool {
		return slices.ContainsFunc(prog.Rows, func(row *ir.Row) bool { return row.Table == t })
	})
}

// copied reports whether a row is read as a copy. The kernel frees the rows of a trie only when no
// program can be reading them.
func copied(t *ir.Table) bool { return t.Kind != "lpm" }

// find is the function that looks a row up.
func (r *renderer) find(t *ir.Table, key string) []string {
	name := ident(t.Name)
	head := func(result, what, params string) []string {
		return []string{"", fmt.Sprintf("static __always_inline %s%s_%s(%s)", result, what, name, params), "{"}
	}
	if !copied(t) {
		return append(head("struct val_"+name+" *", "find", key),
			fmt.Sprintf("\treturn bpf_map_lookup_elem(&tbl_%s, key);", name), "}")
	}
	word := "FR_CHANGES"
	if t.Kind == "array" {
		word = "FR_STORING"
	}
	learned := "NULL"
	if i, ok := r.learned[t]; ok {
		learned = fmt.Sprintf("fr_learned_in(%d)", i)
	}
	out := append(head("__u64 ", "copy", "void *to, const void *from"), "\t__u64 all = 0;", "")
	for _, m := range t.Value.Members {
		one, levels := m.Type, 1
		if one.Levels > 0 && !one.Plain() && !one.Kind.IsIndex() {
			one, levels = one.One(), one.Levels
		}
		for level := range levels {
			out = append(out, copyMember(one, m.Off+level*one.Size)...)
		}
	}
	out = append(out, "\treturn all;", "}")
	lookup := fmt.Sprintf("fr_find(&tbl_%s, key, lease, row_at, (void **)row, copy_%s, %s, %s)", name, name, word,
		learned)
	params := fmt.Sprintf("%s, const struct fr_lease *lease, __u32 row_at, struct val_%s **row", key, name)
	if !t.Bound() {
		return append(append(out, head("enum fr_found ", "find", params)...), "\treturn "+lookup+";", "}")
	}
	return append(append(out, head("enum fr_found ", "find", params+", __u64 now")...),
		"\tenum fr_found found = "+lookup+";",
		"",
		"\treturn found == FR_FOUND && !fr_alive((*row)->slot, (*row)->gen, now) ? FR_MISSING : found;", "}")
}

// copyMember copies a member at an offset of a row, in the pieces that programs read it in.
func copyMember(t ir.Type, off int) (out []string) {
	size := t.Size
	switch t.Kind {
	case ir.Endpoint:
		return []string{fmt.Sprintf("\tall |= fr_copy_endpoint(to + %d, from + %d);", off, off)}
	case ir.Hop, ir.NextHop:
		out = append(out, fmt.Sprintf("\tall |= fr_copy_hop(to + %d, from + %d);", off, off))
		off, size = off+abi.HopSize, size-abi.HopSize
	}
	for _, n := range pieces(0, size) {
		out = append(out, fmt.Sprintf("\tall |= fr_copy%d(to + %d, from + %d);", 8*n, off, off))
		off += n
	}
	return out
}

// learnedTables numbers the tables that programs both write to and read copies of rows from.
func learnedTables(p *ir.Plan) map[*ir.Table]int {
	out := map[*ir.Table]int{}
	learn := func(s *ir.Learn) {
		if _, known := out[s.Table]; !known && copied(s.Table) && isLookedUp(p, s.Table) {
			out[s.Table] = len(out)
		}
	}
	for s := range ir.AllStmts(p) {
		if s, ok := s.(*ir.Learn); ok {
			learn(s)
		}
		if fx := ir.EffectsOf(s); fx != nil {
			for _, s := range fx.Learns {
				learn(s)
			}
		}
	}
	return out
}

// copies gives the rows that programs read as copies their offsets in fr_rows, and returns its size. What is looked up
// on one of two ways takes the room of what is looked up on the other. A program at egress may run while one at ingress
// sends copies, and has room of its own.
func copies(p *ir.Plan) (rowsAt map[*ir.Row]int, size int) {
	rowsAt = map[*ir.Row]int{}
	var block func(stmts []ir.Stmt, at int) int
	block = func(stmts []ir.Stmt, at int) int {
		for _, s := range stmts {
			switch s := s.(type) {
			case *ir.Lookup:
				if copied(s.Row.Table) {
					rowsAt[s.Row] = at
					at += s.Row.Table.Value.Size
				}
			case *ir.If:
				at = max(block(s.Then, at), block(s.Else, at))
			case *ir.FanOut:
				at = block(s.Each, at)
			}
		}
		return at
	}
	for _, hook := range []string{"tc/ingress", "tc/egress", ir.XDP} {
		end := size
		for prog := range p.Flow() {
			if prog.Hook == hook {
				end = max(end, block(prog.Body, size))
			}
		}
		size = end
	}
	if size == 0 && slices.ContainsFunc(p.Programs, func(prog *ir.Program) bool { return prog.Hook == ir.Congestion }) {
		size = 8 // its programs have copies on their stacks, by the same functions
	}
	return rowsAt, size
}

// structure lays a key, a value or a record out; head is what stands in front of a record's fields.
func (r *renderer) structure(name, doc string, s *ir.Struct, head string) structData {
	d := structData{Name: name, Doc: comment(doc), Size: s.Size, Align: 8}
	for s.Size%d.Align != 0 {
		d.Align /= 2
	}
	off, pads := 0, 0
	if head != "" {
		d.Members, off = append(d.Members, head), abi.EventHeader
	}
	pad := func(to int) {
		if to > off {
			d.Members = append(d.Members, fmt.Sprintf("__u8 pad%d[%d];", pads, to-off))
			pads++
			off = to
		}
	}
	for _, m := range s.Members {
		if m.Off < off {
			r.fail("%s: member %q overlaps", name, m.Name)
		}
		pad(m.Off)
		d.Members = append(d.Members, declaration(m)+";")
		off += m.Type.Size
	}
	pad(s.Size)
	if s.Size == 0 {
		r.fail("%s: no members", name)
	}
	return d
}

// declaration declares a member in C.
func declaration(m *ir.Member) string {
	one, name := m.Type.One(), member(m)
	if m.Type.Levels > 0 && !one.Kind.IsIndex() {
		name += fmt.Sprintf("[%d]", m.Type.Levels)
	}
	switch {
	case one.Plain():
		return fmt.Sprintf("__u8 %s[%d]", name, one.Size)
	case one.C() != "":
		return one.C() + " " + name
	}
	return string(cType(one.Size)) + " " + name
}

// cType is the unsigned integer type of a size in bytes.
func cType(size int) c.Type {
	switch size {
	case 1:
		return "__u8"
	case 2:
		return "__u16"
	case 4:
		return "__u32"
	}
	return "__u64"
}

func littleEndian(b []byte) uint64 {
	var v uint64
	for i, x := range b {
		if i < 8 {
			v |= uint64(x) << (8 * i)
		}
	}
	return v
}
