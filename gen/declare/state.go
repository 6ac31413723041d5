package declare

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/fastrelay/fastrelay-gen/gen/code"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/gen/ranges"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
	"github.com/fastrelay/fastrelay-gen/runtime/abi"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// This pass gives settings, tables and sessions their types and layouts. A layout is decided here once; C, Go and the
// model all take it from the plan. Rows of sessions, and those that are learned with one, get hidden members: the slot
// and generation that tie a row to its session.

const (
	defaultSize = 1024
	MaxIndex    = 32 // bits of an array's key
)

// typ turns a type's word into a type.
func (c *declarer) typ(ref spec.TypeRef) (ir.Type, bool) {
	word, perLevel := strings.CutSuffix(ref.Text, ir.LevelsWord)
	t, ok := ir.WordType(word)
	switch {
	case ok && !perLevel:
		return t, true
	case ok && c.names.Plan.Levels == 0:
		c.diags.Add(code.Priority, ref.Pos, "%s is a value for each level of priority, and the spec has no priority",
			ref.Text).
			WithHint("declare it: priority: {levels: 8, from: \"…\"}")
		return ir.Type{}, false
	case ok:
		if t, ok = t.PerLevel(c.names.Plan.Levels); !ok {
			c.diags.Add(code.BadType, ref.Pos, "there can't be a %s for each level of priority", word)
		}
		return t, ok
	}
	d := c.diags.Add(code.BadType, ref.Pos, "no type %q", ref.Text)
	if m := otherInteger.FindStringSubmatch(ref.Text); m != nil {
		d.WithLabel("did you mean \"u%s\"?", m[1])
	} else if word := otherWords[ref.Text]; word != "" {
		d.WithLabel("did you mean \"%s\"?", word)
	} else {
		d.WithNames(ref.Text, ir.Words())
	}
	d.WithHint("types are u1 to u64, bytes1 to bytes64, %s, in events data1 to data%d, and with a value for each "+
		"level of priority such as u8%s",
		strings.Join(ir.Words(), ", "), ir.MaxData, ir.LevelsWord)
	return ir.Type{}, false
}

// Types as other languages call them.
var (
	otherInteger = regexp.MustCompile(`^(?:uint|int|i|be|le|__u|__be|bits?)([1-9]|[1-5][0-9]|6[0-4])(?:_t)?$`)
	otherWords   = map[string]string{
		"ipv4": "ip", "ipv6": "ip", "addr": "ip", "address": "ip", "port": "u16", "byte": "u8", "int": "u32",
		"boolean": "bool", "credits": "credit" + ir.LevelsWord, "buckets": "bucket" + ir.LevelsWord,
	}
)

func (c *declarer) state() {
	if p := c.names.Spec.Priority; p != nil {
		c.names.Plan.Levels = p.Levels
	}
	for _, s := range c.names.Spec.Settings {
		c.setting(s)
	}
	for _, t := range c.names.Spec.Tables {
		c.table(t)
	}
	for _, s := range c.names.Spec.Sessions {
		c.session(s)
	}
	for _, g := range c.names.Spec.Groups {
		c.group(g)
	}
	for _, e := range c.names.Spec.Events {
		c.event(e)
	}
	for _, p := range c.names.Spec.Programs {
		c.hops(p)
	}
	with := c.learnedWith()
	for _, t := range c.names.Plan.Tables {
		if t.Session != nil || with[t.Name] {
			u32 := ir.UintType(32)
			t.Value.Members = append(t.Value.Members,
				&ir.Member{Name: abi.MemberSlot, Type: u32, Hidden: true, Pos: t.Pos},
				&ir.Member{Name: abi.MemberGen, Type: u32, Hidden: true, Pos: t.Pos})
			if t.Rows > 1 {
				t.Value.Members = append(t.Value.Members,
					&ir.Member{Name: ir.RowIndex, Type: u32, Hidden: true, Pos: t.Pos})
			}
		}
		layOut(&t.Key, 4)
		layOut(&t.Value, 8)
	}
	for _, g := range c.names.Plan.Groups {
		g.Receivers.Value.Members = append(g.Receivers.Value.Members, &ir.Member{
			Name: "receiver", Type: ir.UintType(32), Hidden: true, Pos: g.Pos,
		})
		layOut(&g.Key, 4)
		layOut(&g.Receivers.Value, 8)
	}
	c.sizes()
}

// learnedWith are the names of the tables whose rows are learned with sessions.
func (c *declarer) learnedWith() map[string]bool {
	with := map[string]bool{}
	for _, p := range c.names.Spec.Programs {
		for a := range spec.Actions(p.Rules) {
			if a.With != nil {
				with[a.Table.Value] = true
			}
		}
	}
	return with
}

// sizes adds up the arrays that values of rows index.
func (c *declarer) sizes() {
	plan := c.names.Plan
	translations := false
	count := func(members []*ir.Member, rows int) {
		for _, m := range members {
			switch m.Type.Kind {
			case ir.Ctr:
				plan.Shared += rows
			case ir.Credit, ir.Bucket:
				plan.Credits += rows * m.Type.Count()
			case ir.Translation:
				translations = true
			}
		}
	}
	for _, t := range plan.Tables {
		if t.Session == nil {
			count(t.Value.Members, t.Size)
		}
	}
	for _, s := range plan.Sessions { // all rows of a session refer to the same
		var members []*ir.Member
		for _, f := range s.Fields {
			members = append(members, &ir.Member{Type: f.Type})
		}
		count(members, s.Size)
	}
	for _, g := range plan.Groups {
		count(g.Receivers.Value.Members, g.Rows)
	}
	for _, n := range []*int{&plan.Shared, &plan.Credits} {
		if *n > 0 {
			*n++ // entry 0 means none
		}
	}
	if translations {
		if plan.Translations = c.names.Spec.Translations; plan.Translations == 0 {
			plan.Translations = defaultTranslations
		}
	}
	if len(plan.Events) > 0 {
		if plan.Ring = c.names.Spec.Ring; plan.Ring == 0 {
			plan.Ring = defaultRing
		}
	}
}

func (c *declarer) setting(s *spec.Setting) {
	t, ok := c.typ(s.Type)
	if !ok {
		return
	}
	out := &ir.Setting{Name: s.Name.Value, Type: t, Doc: s.Doc, Pos: s.Name.Pos}
	if t.Kind == ir.Uint {
		out.Max = ranges.Max(t.Bits)
		if s.Is != nil {
			rs := ranges.Of(s.Is, out.Max)
			if len(rs) == 0 {
				c.diags.Add(code.Constraint, s.Is.Pos, "the range of setting %q holds no value of type %s",
					s.Name.Value,
					s.Type.Text)
				return
			}
			out.Min, out.Max = rs.Min().Lo, rs.Max().Lo
		}
	}
	if !t.In(ir.InSetting) {
		c.diags.Add(code.BadType, s.Type.Pos, "a setting can't be of type %s", s.Type.Text).
			WithHint("settings are integers, bool, ip or mac")
		return
	}
	if s.Default != nil {
		v, err := encode(t, *s.Default)
		if err != "" {
			c.diags.Add(code.Type, s.Default.Pos, "the default of setting %q %s", s.Name.Value, err)
			return
		}
		if t.Kind == ir.Uint && (s.Default.Int < out.Min || s.Default.Int > out.Max) {
			c.diags.Add(code.Constraint, s.Default.Pos, "the default of setting %q is outside its range %d to %d",
				s.Name.Value, out.Min, out.Max)
			return
		}
		out.Default = v
	}
	c.names.Settings[out.Name] = out
	c.names.Plan.Settings = append(c.names.Plan.Settings, out)
}

// encode gives a literal the bytes of a type: integers little endian, addresses in network order.
func encode(t ir.Type, l spec.Literal) (b []byte, problem string) {
	var err error
	switch {
	case t.Kind == ir.Uint:
		if l.Kind != spec.LitInt {
			return nil, "has to be an integer"
		}
		if b, err = t.Uint(l.Int); err != nil {
			return nil, "doesn't fit " + strconv.Itoa(t.Bits) + " bits"
		}
	case t.Kind == ir.Bool:
		if l.Kind != spec.LitBool {
			return nil, "has to be true or false"
		}
		b = []byte{0}
		if l.Bool {
			b[0] = 1
		}
	default:
		if b, err = t.Parse(l.Text); l.Kind != spec.LitString || err != nil {
			return nil, fmt.Sprintf("has to be %s such as %q", t.What(), t.Example())
		}
	}
	return b, ""
}

func (c *declarer) members(ms []*spec.Member, place ir.Place, where string) []*ir.Member {
	var out []*ir.Member
	for _, m := range ms {
		t, ok := c.typ(m.Type)
		if !ok {
			continue
		}
		if !t.In(place) {
			c.diags.Add(code.BadType, m.Type.Pos, "type %s has no place in %s", m.Type.Text, where)
			continue
		}
		out = append(out, &ir.Member{Name: m.Name.Value, Type: t, Pos: m.Name.Pos})
	}
	return out
}

func (c *declarer) table(t *spec.Table) {
	out := &ir.Table{Name: t.Name.Value, Kind: string(t.Kind), PerCPU: t.PerCPU, Size: t.Size, Pos: t.Name.Pos}
	if out.Kind == "" {
		out.Kind = "hash"
	}
	if out.Size == 0 {
		out.Size = defaultSize
	}
	place := ir.InKey
	if out.Kind == "lpm" {
		place = ir.InPrefixes
	}
	errors := c.diags.Len()
	out.Key.Members = c.members(t.Key, place, "the key of a table of kind "+out.Kind)
	out.Value.Members = c.members(t.Value, ir.InValue, "the value of a table")
	if c.diags.Len() > errors {
		return
	}
	switch out.Kind {
	case "lpm":
		if len(out.Key.Members) != 1 {
			c.diags.Add(code.Table, out.Pos, "an lpm table has exactly one key, of type prefix")
			return
		}
		if out.PerCPU {
			c.diags.Add(code.Table, out.Pos, "an lpm table can't be per CPU")
			return
		}
	case "array":
		if k := out.Key.Members; len(k) != 1 || k[0].Type.Kind != ir.Uint || k[0].Type.Bits > MaxIndex {
			c.diags.Add(code.Table, out.Pos, "an array has exactly one key, an integer of at most %d bits", MaxIndex).
				WithHint("a hash takes any key: kind: \"hash\"")
			return
		}
		out.Key.Members[0].Type = ir.Type{Kind: ir.Uint, Bits: out.Key.Members[0].Type.Bits, Size: 4}
	}
	if len(out.Key.Members) == 0 || len(out.Value.Members) == 0 {
		c.diags.Add(code.Table, out.Pos, "table %q needs a key and a value", out.Name)
		return
	}
	for _, m := range out.Value.Members {
		if out.PerCPU && (m.Type.Kind.IsIndex() || m.Type.Kind == ir.NextHop) {
			c.diags.Add(code.Table, m.Pos, "a per-CPU table can't hold counters, credits, translations or next hops")
			return
		}
		if m.Type.Kind == ir.NextHop && out.Kind == "array" {
			c.diags.Add(code.Table, m.Pos, "an array can't hold next hops: the kernel changes its values in place, "+
				"under packets that read them")
			return
		}
		if m.Type.Kind.IsIndex() && (out.Kind == "lru" || out.Kind == "array") {
			c.diags.Add(code.Table, m.Pos, "a table of kind %s can't hold counters, credits or translations: its rows "+
				"come and go without user space", out.Kind)
			return
		}
	}
	c.names.Tables[out.Name] = out
	c.names.Plan.Tables = append(c.names.Plan.Tables, out)
}

func (c *declarer) session(s *spec.Session) {
	out := &ir.Session{Name: s.Name.Value, Size: s.Size, Pos: s.Name.Pos}
	if out.Size == 0 {
		out.Size = defaultSize
	}
	if s.Lifetime != nil {
		out.Lifetime = s.Lifetime.Value
	}
	if s.Idle != nil {
		out.Idle = s.Idle.Value
	}
	errors := c.diags.Len()
	fields := c.members(s.Fields, ir.InSession, "a session")
	if c.diags.Len() > errors {
		return
	}
	index := map[string]int{}
	var names []string
	for i, f := range fields {
		index[f.Name] = i
		names = append(names, f.Name)
		out.Fields = append(out.Fields, &ir.Field{Name: f.Name, Type: f.Type})
	}
	for i, r := range s.Rows {
		t := &ir.Table{
			Name: r.Table.Value, Kind: "hash", Size: out.Size, Session: out, Row: i, Rows: 1, Pos: r.Table.Pos,
		}
		first := c.names.Tables[t.Name]
		if other := first; other != nil && other.Session != out {
			c.diags.Add(code.Table, t.Pos, "table %q is declared twice", t.Name).
				WithRelated(other.Pos, "also declared here").
				WithHint("rows of a session go to a table of their own, which the session declares")
			continue
		}
		row := &ir.SessionRow{Table: t}
		pick := func(names_ []spec.Name, into *ir.Struct, place ir.Place, where string) (indices []int) {
			for _, n := range names_ {
				j, ok := index[n.Value]
				if !ok {
					c.diags.Add(code.UnknownName, n.Pos, "session %q has no field %q", out.Name,
						n.Value).WithNames(n.Value, names)
					continue
				}
				if t := fields[j].Type; !t.In(place) {
					c.diags.Add(code.BadType, n.Pos, "type %s has no place in %s", t.Word(), where)
					continue
				}
				indices = append(indices, j)
				into.Members = append(into.Members, &ir.Member{Name: n.Value, Type: fields[j].Type, Pos: n.Pos})
			}
			return indices
		}
		row.Key = pick(r.Key, &t.Key, ir.InKey, "the key of a table")
		row.Value = pick(r.Value, &t.Value, ir.InValue, "the value of a table")
		if len(r.Key) == 0 {
			c.diags.Add(code.Table, t.Pos, "row %q of session %q has no key", t.Name, out.Name)
			continue
		}
		if first != nil {
			if len(row.Key)+len(row.Value) == len(r.Key)+len(r.Value) { // else it is reported
				c.anotherRow(first, t, r.Pos)
			}
			row.Table = first
			out.Rows = append(out.Rows, row)
			continue
		}
		out.Rows = append(out.Rows, row)
		c.names.Tables[t.Name] = t
		c.names.Plan.Tables = append(c.names.Plan.Tables, t)
	}
	for i, f := range fields {
		named := slices.ContainsFunc(out.Rows, func(r *ir.SessionRow) bool { return slices.Contains(r.Value, i) })
		if f.Type.Kind.IsIndex() && !named && c.diags.Len() == errors {
			c.diags.Add(code.Table, f.Pos, "no row of session %q has its %s %q", out.Name, f.Type.Word(), f.Name).
				WithHint("name it in the value of a row, or of several: they share it")
		}
	}
	c.names.Plan.Sessions = append(c.names.Plan.Sessions, out)
	c.names.Plan.Slots += out.Size
	c.names.Plan.Usages = max(c.names.Plan.Usages, len(out.Rows))
}

// anotherRow makes room for another row of each session in a table, which has to have the types of the first one.
func (c *declarer) anotherRow(t, another *ir.Table, pos diag.Pos) {
	t.Rows++
	t.Size += another.Size
	for _, part := range []struct {
		what       string
		has, wants []*ir.Member
	}{{"key", another.Key.Members, t.Key.Members}, {"value", another.Value.Members, t.Value.Members}} {
		types := func(ms []*ir.Member) (words []string) {
			for _, m := range ms {
				words = append(words, m.Type.Word())
			}
			return words
		}
		has, wants := types(part.has), types(part.wants)
		if !slices.Equal(has, wants) {
			c.diags.Add(code.Table, pos, "rows in one table have one %s: this one is (%s), the first one's (%s)",
				part.what, strings.Join(has, ", "), strings.Join(wants, ", ")).
				WithRelated(t.Pos, "the table is declared here").
				WithHint("use fields of the same types, or a table of another name")
			return
		}
	}
}

// layOut gives members their offsets: natural alignment for integers and hops, 2 for what is made of bytes. Sizes are
// rounded up so that keys hash in whole words.
func layOut(s *ir.Struct, round int) { layOutFrom(s, 0, round) }

// layOutFrom is layOut after off bytes of something else.
func layOutFrom(s *ir.Struct, off, round int) {
	for _, m := range s.Members {
		a := m.Type.Align()
		off = (off + a - 1) / a * a
		m.Off = off
		off += m.Type.Size
	}
	s.Size = (off + round - 1) / round * round
	if len(s.Members) == 1 && s.Members[0].Type.Kind == ir.Prefix {
		s.Size = s.Members[0].Type.Size
	}
}
