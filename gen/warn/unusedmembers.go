package warn

import (
	"iter"

	"github.com/fastrelay/fastrelay-gen/gen/code"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// This pass warns of members of rows, fields of sessions and members of receivers that no program reads or writes: user
// space fills them in, and packets never see them. A key is always used, and so is all that a program learns.

// memberUse is which members of tables and groups programs name.
type memberUse struct {
	rows   map[string]map[string]bool // by table: there is none if no program looks anything up in it
	groups map[string]map[string]bool // by group, likewise
}

func (x *warner) unusedMembers() {
	u := x.memberUses()
	const neither = "no program reads or writes it"
	const hint = "take it out, or use it: it is written %s.%s, after the name that a lookup gives the row"
	for _, t := range x.names.Spec.Tables {
		used := u.rows[t.Name.Value]
		if len(t.Value) == 1 {
			continue // a row needs a value; that it is there may be all that is asked
		}
		for _, m := range t.Value {
			if used != nil && !used[m.Name.Value] {
				x.diags.Warn(code.NotUsed, m.Name.Pos, "rows of table %q have a member %q, but %s", t.Name.Value,
					m.Name.Value, neither).WithHint(hint, "ROW", m.Name.Value)
			}
		}
	}
	for _, s := range x.names.Spec.Sessions {
		x.unusedFields(s, u.rows)
	}
	for _, g := range x.names.Spec.Groups {
		used := u.groups[g.Name.Value]
		for _, m := range g.Receiver {
			if used != nil && !used[m.Name.Value] {
				x.diags.Warn(code.NotUsed, m.Name.Pos, "receivers of group %q have a member %q, but %s", g.Name.Value,
					m.Name.Value, neither).WithHint("take it out, or use it: in rules of a fan_out it is r.%s",
					m.Name.Value)
			}
		}
	}
}

// unusedFields warns of fields that no row has as a key and no program reads, and of rows that have one which is read
// only in other rows.
func (x *warner) unusedFields(s *spec.Session, rows map[string]map[string]bool) {
	first := map[string]*spec.SessionRow{} // by table: its members have the names that this row gives them
	used, looked := map[string]bool{}, false
	type idle struct {
		table string
		field spec.Name
	}
	var idles []idle
	for _, r := range s.Rows {
		members := rows[r.Table.Value]
		looked = looked || members != nil
		if first[r.Table.Value] == nil {
			first[r.Table.Value] = r
		}
		for _, n := range r.Key {
			used[n.Value] = true
		}
		for i, n := range r.Value {
			switch named := first[r.Table.Value].Value; {
			case members == nil || i >= len(named):
			case len(r.Value) == 1: // that there is a row may be all that is asked
				used[n.Value] = true
			case members[named[i].Value]:
				used[n.Value] = true
			default:
				idles = append(idles, idle{r.Table.Value, n})
			}
		}
	}
	if !looked {
		return // of the tables it is said
	}
	for _, f := range s.Fields {
		if !used[f.Name.Value] {
			x.diags.Warn(code.NotUsed, f.Name.Pos, "sessions %q have a field %q, but no row has it as a key, and no "+
				"program reads or writes it", s.Name.Value, f.Name.Value).
				WithHint("take it out, or use it: it is written ROW.%s, after the name that a lookup gives a row "+
					"whose value has it", f.Name.Value)
		}
	}
	for _, i := range idles {
		if used[i.field.Value] {
			x.diags.Warn(code.NotUsed, i.field.Pos, "rows of table %q have a member %q, but no program reads or "+
				"writes it there", i.table, i.field.Value).WithHint("take it out of the row's value")
		}
	}
}

// memberUses finds what programs name.
func (x *warner) memberUses() memberUse {
	u := memberUse{map[string]map[string]bool{}, map[string]map[string]bool{}}
	for _, src := range x.names.Spec.Programs {
		tables := map[string][]string{} // by the name that a lookup gives the row
		lookups := func(ls []*spec.Lookup) {
			for _, l := range ls {
				tables[l.Var.Value] = append(tables[l.Var.Value], l.Table.Value)
				if u.rows[l.Table.Value] == nil {
					u.rows[l.Table.Value] = map[string]bool{}
				}
			}
		}
		rules := func(rs []*spec.Rule) {
			for _, r := range rs {
				lookups(r.Lookups)
			}
		}
		lookups(src.Lookups)
		rules(src.Rules)
		for a := range spec.Actions(src.Rules) {
			if a.FanOut != nil {
				rules(a.FanOut.Rules)
			}
		}
		eachMember(x.names.Spec, src, func(row, member string) {
			for _, t := range tables[row] {
				u.rows[t][member] = true
			}
		})
		for a := range spec.Actions(src.Rules) {
			if a.FanOut != nil {
				u.fanOut(x.names.Spec, a.FanOut)
			}
		}
	}
	for _, src := range x.names.Spec.Programs {
		for a := range spec.Actions(src.Rules) {
			for _, t := range x.names.Spec.Tables {
				if a.Kind == spec.ActLearn && t.Name.Value == a.Table.Value {
					delete(u.rows, t.Name.Value) // it writes them all
				}
			}
		}
	}
	return u
}

// fanOut finds what the rules of a fan-out name of a receiver.
func (u memberUse) fanOut(s *spec.Spec, f *spec.FanOut) {
	used := u.groups[f.Group.Value]
	if used == nil {
		used = map[string]bool{}
		u.groups[f.Group.Value] = used
	}
	eachMember(s, &spec.Program{Rules: f.Rules}, func(row, member string) {
		if row == "r" {
			used[member] = true
		}
	})
}

// eachMember calls f for all that a program names as a member of something.
func eachMember(s *spec.Spec, p *spec.Program, f func(row, member string)) {
	names := func(es iter.Seq[*spec.Expr]) {
		for e := range es {
			if len(e.Path) > 1 {
				f(e.Path[0].Value, e.Path[1].Value)
			}
		}
	}
	names(s.Exprs(p))
	for a := range spec.Actions(p.Rules) {
		names(spec.Within(a.Counter, a.Count, a.Credit))
	}
}
