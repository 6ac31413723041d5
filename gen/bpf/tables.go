package bpf

import (
	"fmt"
	"strings"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
)

// Layouts come from the plan, byte by byte: structures are packed, padding is a member, and an assertion compares sizes.

// setting declares a setting with its default.
func (r *renderer) setting(s *ir.Setting) settingData {
	name := "set_" + ident(s.Name)
	d := settingData{Doc: comment(s.Doc)}
	switch s.Type.Kind {
	case ir.Uint, ir.Bool:
		d.Decl = cType(s.Type.Size) + " " + name
		if s.Default != nil {
			d.Decl += " = " + number(littleEndian(s.Default))
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

var mapTypes = map[string][2]string{
	"hash":  {"BPF_MAP_TYPE_HASH", "BPF_MAP_TYPE_PERCPU_HASH"},
	"lru":   {"BPF_MAP_TYPE_LRU_HASH", "BPF_MAP_TYPE_LRU_PERCPU_HASH"},
	"array": {"BPF_MAP_TYPE_ARRAY", "BPF_MAP_TYPE_PERCPU_ARRAY"},
	"lpm":   {"BPF_MAP_TYPE_LPM_TRIE", ""},
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
	kinds, ok := mapTypes[t.Kind]
	if !ok {
		r.fail("table %q: no kind %q", t.Name, t.Kind)
	}
	kind := kinds[0]
	if t.PerCPU {
		kind = kinds[1]
	}
	if kind == "" {
		r.fail("table %q: kind %s can't be per CPU", t.Name, t.Kind)
	}
	m := mapData{Name: "tbl_" + name, Attrs: []string{"__uint(type, " + kind + ")"}}
	if t.Kind == "lpm" {
		m.Attrs = append(m.Attrs, "__uint(map_flags, BPF_F_NO_PREALLOC)")
	}
	m.Attrs = append(m.Attrs, fmt.Sprintf("__uint(max_entries, %d)", t.Size), "__type(key, "+keyType+")", "__type(value, struct val_"+name+")")
	params := "const " + keyType + " *key"
	if t.Session != nil {
		params += ", __u64 now"
	}
	find := []string{"", fmt.Sprintf("static __always_inline struct val_%s *find_%s(%s)", name, name, params), "{"}
	lookup := fmt.Sprintf("bpf_map_lookup_elem(&tbl_%s, key)", name)
	if t.Session != nil {
		find = append(find,
			fmt.Sprintf("\tstruct val_%s *row = %s;", name, lookup),
			"",
			"\treturn row && fr_alive(row->h_slot, row->h_gen, now) ? row : NULL;")
	} else {
		find = append(find, "\treturn "+lookup+";")
	}
	m.Find = append(find, "}")
	d.Maps = append(d.Maps, m)
}

// structure lays a key, a value or a record out; head is what stands in front of a record's fields.
func (r *renderer) structure(name, doc string, s *ir.Struct, head string) structData {
	d := structData{Name: name, Doc: comment(doc), Size: s.Size, Align: 8}
	for s.Size%d.Align != 0 {
		d.Align /= 2
	}
	off, pads := 0, 0
	if head != "" {
		d.Members, off = append(d.Members, head), ir.EventHeader
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
		decl := fmt.Sprintf("%s %s;", memberType(m.Type), member(m))
		if arrayType(m.Type) {
			decl = fmt.Sprintf("__u8 %s[%d];", member(m), m.Type.Size)
		}
		d.Members = append(d.Members, decl)
		off += m.Type.Size
	}
	pad(s.Size)
	if s.Size == 0 {
		r.fail("%s: no members", name)
	}
	return d
}

// member names a member in C.
func member(m *ir.Member) string {
	if m.Hidden {
		return "h_" + ident(m.Name) // a user's member may have the same name
	}
	return "m_" + ident(m.Name)
}

// arrayType reports whether a type is an array of bytes in C.
func arrayType(t ir.Type) bool {
	return t.Kind == ir.Bytes || t.Kind == ir.Mac || t.Kind == ir.Addr
}

func memberType(t ir.Type) string {
	switch t.Kind {
	case ir.Endpoint:
		return "struct fr_endpoint"
	case ir.Prefix:
		return "struct fr_prefix"
	case ir.NextHop:
		return "struct fr_next_hop"
	case ir.Hop:
		return "struct fr_hop"
	case ir.Ctr, ir.Credit, ir.Bucket, ir.Translation:
		return "__u32"
	}
	return cType(t.Size)
}

// cType is the unsigned integer type of a size in bytes.
func cType(size int) string {
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
