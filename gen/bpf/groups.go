package bpf

import (
	"fmt"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/runtime/abi"
)

// Groups of receivers and events, as structures and maps. A group is a list of rows, in a map of its own, which user
// space replaces as a whole: so a packet sees the old or the new one.

func (r *renderer) group(g *ir.Group, d *fileData) {
	name := ident(g.Name)
	r.vals[g.Receivers] = "receiver_" + name
	d.Structs = append(d.Structs,
		r.structure("group_"+name, "the key of a group, and a receiver's row: "+g.Name, &g.Key, ""),
		r.structure("receiver_"+name, "", &g.Receivers.Value, ""),
		structData{
			Name: "list_" + name, Doc: "receivers of a group, in the order of sending", Align: 4,
			Size:    abi.ListSize(g.Max),
			Members: []string{"__u32 count;", fmt.Sprintf("__u32 rows[%d];", g.Max)},
		})
	d.Maps = append(d.Maps, mapData{
		Name: abi.GroupPrefix + name,
		Attrs: []string{
			"__uint(type, BPF_MAP_TYPE_HASH_OF_MAPS)", fmt.Sprintf("__uint(max_entries, %d)", g.Size),
			"__type(key, struct group_" + name + ")",
			"__uint(value_size, sizeof(__u32))", "__array(values, FR_LIST(struct list_" + name + "))",
		},
		Find: []string{"",
			fmt.Sprintf("static __always_inline struct list_%s *list_of_%s(const struct group_%s *key)", name, name,
				name), "{",
			fmt.Sprintf("\tvoid *list = bpf_map_lookup_elem(&grp_%s, key);", name),
			"\t__u32 zero = 0;",
			"",
			"\treturn list ? bpf_map_lookup_elem(list, &zero) : NULL;", "}"},
	}, mapData{
		Name: abi.RowsPrefix + name,
		Attrs: []string{
			"__uint(type, BPF_MAP_TYPE_ARRAY)", fmt.Sprintf("__uint(max_entries, %d)", g.Receivers.Size),
			"__type(key, __u32)",
			"__type(value, struct receiver_" + name + ")",
		},
		Find: []string{"",
			fmt.Sprintf("static __always_inline struct receiver_%s *receiver_of_%s(const struct list_%s *list, __u32 "+
				"i)", name, name, name), "{",
			"\t__u32 row;",
			"",
			fmt.Sprintf("\tif (i >= %d)", g.Max),
			"\t\treturn NULL;",
			"\trow = list->rows[i];",
			fmt.Sprintf("\treturn bpf_map_lookup_elem(&rcv_%s, &row);", name), "}"},
	})
}

func (r *renderer) event(e *ir.Event, d *fileData) {
	doc := "event " + e.Name
	if e.Required {
		doc += ", required"
	}
	if e.Copies == nil {
		d.Structs = append(d.Structs, r.structure("event_"+ident(e.Name), doc, &e.Fields, "struct fr_event head;"))
		return
	}
	d.Structs = append(d.Structs, r.structure("copy_"+ident(e.Name), "a copy in event "+e.Name, &e.Copies.Entry, ""))
	front := e.Fields
	front.Size = e.Copies.Off
	record := r.structure("event_"+ident(e.Name), doc, &front, "struct fr_event head;")
	record.Members = append(record.Members, fmt.Sprintf("%s copies[%d];", copyType(e), e.Copies.Max))
	end := e.Copies.Off + e.Copies.Max*e.Copies.Entry.Size
	if record.Size = e.Fields.Size; record.Size > end {
		record.Members = append(record.Members, fmt.Sprintf("__u8 end[%d];", record.Size-end))
	}
	d.Structs = append(d.Structs, record)
}

// oneToMany defines what templates/fanout.h needs to know.
func (r *renderer) oneToMany(d *fileData) {
	p := r.plan
	for _, n := range []struct {
		name string
		n    int
	}{
		{"RECEIVERS", p.Receivers}, {"CREDITS", p.Credits}, {"TRANSLATIONS", p.Translations}, {"RING", p.Ring},
		{"FRONT", r.frontSize},
	} {
		if n.n > 0 {
			r.more = true
			r.define(d, "FR_NEEDS_%s %d", n.name, n.n)
		}
	}
	if r.frontSize > 0 {
		r.define(d, "FR_NEEDS_SAME %d", max(r.sameSize, 1))
	}
	if p.Credits > 0 {
		r.define(d, "FR_LEVELS %d", max(p.Levels, 1))
	}
	if p.Ring > 0 {
		r.define(d, "FR_EVENTS %d", len(p.Events)+1)
	}
	if all := losable(p); len(all) > 0 {
		size := 0
		for _, e := range all {
			size = max(size, e.Fields.Size)
		}
		r.define(d, "FR_COPIES %d", len(all))
		r.define(d, "FR_COPIES_SIZE %d", size)
	}
}

func (r *renderer) define(d *fileData, format string, args ...any) {
	d.Defines = append(d.Defines, fmt.Sprintf(format, args...))
}
