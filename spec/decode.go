package spec

import (
	"regexp"
	"strconv"
	"strings"
	"time"

	"cuelang.org/go/cue"

	"github.com/fastrelay/fastrelay-gen/internal/diag"
)

// This pass makes the typed spec. The shape of the value has been checked: what isn't as it should be is reported
// already, and simply left out here. What is reported here is what the schema can't say.

const (
	maxHeader = 1024 // bytes of a header, at most
	maxFields = 128
)

// reserved words have a meaning of their own where names of headers and lookups are.
var reserved = []string{"setting", "skb", "payload", "priority", "true", "false"}

// functions of expressions; package gen has what they mean.
var functions = []string{"len", "low", "pick", "alloc", "translate", "has", "element"}

// settled returns the default of a choice that has one, and v otherwise (Value.Default follows references, and
// loses the place).
func settled(v cue.Value) cue.Value {
	if d, ok := v.Default(); ok {
		return d
	}
	return v
}

// get returns a member; it may not exist.
func get(v cue.Value, name string) cue.Value {
	return settled(v.LookupPath(cue.MakePath(cue.Str(name))))
}

func has(v cue.Value, name string) bool { return get(v, name).Exists() }

func (l *loader) list(v cue.Value) (all []cue.Value) {
	if v.IncompleteKind() != cue.ListKind {
		return nil
	}
	it, err := v.List()
	if err != nil {
		return nil
	}
	for it.Next() {
		all = append(all, settled(it.Value()))
	}
	return all
}

func (l *loader) empty(v cue.Value) bool {
	return v.IncompleteKind() == cue.ListKind && len(l.list(v)) == 0
}

// each calls f for the members of a struct, in their order.
func (l *loader) each(v cue.Value, f func(name Name, v cue.Value)) {
	l.constraints(v, func(n Name, v cue.Value) { f(n, settled(v)) })
}

// constraints is each if members are constraints: a default is no more than one of the choices.
func (l *loader) constraints(v cue.Value, f func(name Name, v cue.Value)) {
	if v.IncompleteKind() != cue.StructKind {
		return
	}
	it, err := v.Fields()
	if err != nil {
		return
	}
	for it.Next() {
		f(Name{it.Selector().Unquoted(), l.labelPos(it.Value())}, it.Value())
	}
}

// text reads a string, and where it is.
func (l *loader) text(v cue.Value) (s string, at textPos, ok bool) {
	s, err := v.String()
	if err != nil {
		return "", textPos{}, false
	}
	p := l.stringPlace(v)
	if p.exact && p.pos.Len != len(s) {
		p.exact = false
	}
	return s, p, true
}

func (l *loader) string(v cue.Value) string { s, _ := v.String(); return s }

func (l *loader) int(v cue.Value) int { n, _ := v.Int64(); return int(n) }

func (l *loader) bool(v cue.Value) bool { b, _ := v.Bool(); return b }

var hump = regexp.MustCompile("([a-z0-9])([A-Z])")

// named checks that n is a name.
func (l *loader) named(n Name, what string) Name {
	if !isName(n.Value) {
		d := l.add(codeName, n.Pos, "%s %q is not a name", what, n.Value).WithHint(nameRule)
		if snake := strings.ToLower(hump.ReplaceAllString(strings.ReplaceAll(n.Value, "-", "_"), "${1}_$2")); isName(
			snake) {
			d.WithLabel("did you mean %q?", snake)
		}
	}
	return n
}

// name reads a string that is a name.
func (l *loader) name(v cue.Value, what string) Name {
	s, p, ok := l.text(v)
	if !ok {
		return Name{}
	}
	return l.named(Name{s, p.pos}, what)
}

func (l *loader) nameList(v cue.Value, what string) (all []Name) {
	for _, e := range l.list(v) {
		if n := l.name(e, what); n.Value != "" {
			all = append(all, n)
		}
	}
	return all
}

// expr reads an expression; nil if there is none.
func (l *loader) expr(v cue.Value) *Expr {
	if !v.Exists() {
		return nil
	}
	pos := l.pos(v)
	switch v.IncompleteKind() {
	case cue.IntKind:
		if lit, ok := l.literal(v, pos); ok {
			return &Expr{Op: OpInt, Int: lit.Int, Pos: pos}
		}
	case cue.BoolKind:
		lit, _ := l.literal(v, pos)
		return &Expr{Op: OpBool, Int: lit.Int, Pos: pos}
	case cue.StringKind:
		if s, p, ok := l.text(v); ok {
			return l.parse(s, p)
		}
	}
	return nil
}

func (l *loader) exprs(v cue.Value) (all []*Expr) {
	for _, e := range l.list(v) {
		if x := l.expr(e); x != nil {
			all = append(all, x)
		}
	}
	return all
}

func (l *loader) parse(s string, p textPos) *Expr {
	e, d := parseExpr(s, p)
	if d != nil {
		l.add(d.Code, d.Pos, "%s", d.Message).Hint = d.Hint
		return nil
	}
	return e
}

// path parses a text that has to be a dotted name.
func (l *loader) path(s string, p textPos, what string) *Expr {
	e := l.parse(s, p)
	if e != nil && e.Op != OpName {
		l.add(codeExpr, e.Pos, "%s has to be a name such as \"ip.src\"", what)
		return nil
	}
	return e
}

// once reports a name that is declared a second time.
func (l *loader) once(seen map[string]Name, n Name, what string) bool {
	if first, dup := seen[n.Value]; dup {
		l.add(codeTwice, n.Pos, "%s %q is declared twice", what, n.Value).
			WithRelated(first.Pos, "the first one is here")
		return false
	}
	seen[n.Value] = n
	return true
}

var kernelForm = regexp.MustCompile(`^([1-9][0-9]?)\.([0-9]{1,3})$`)

func (l *loader) spec(v cue.Value) *Spec {
	s := &Spec{File: l.file, Name: l.name(get(v, "name"), "the spec's name")}
	if text, p, ok := l.text(get(v, "kernel")); ok {
		if m := kernelForm.FindStringSubmatch(text); m == nil {
			l.add(codeLiteral, p.pos, "%q is not a kernel version", text).WithHint("write it as \"5.15\"")
		} else {
			s.Kernel = &Kernel{Pos: p.pos}
			s.Kernel.Major, _ = strconv.Atoi(m[1])
			s.Kernel.Minor, _ = strconv.Atoi(m[2])
		}
	}
	headers := map[string]Name{}
	l.each(get(v, "headers"), func(n Name, v cue.Value) {
		l.notReserved(l.named(n, "header"))
		l.once(headers, n, "header")
		s.Headers = append(s.Headers, l.header(n, v))
	})
	l.each(get(v, "alternatives"), func(n Name, v cue.Value) {
		l.notReserved(l.named(n, "group"))
		l.once(headers, n, "header or group")
		g := &Alternatives{Name: n, Headers: l.nameList(v, "header"), Std: l.std}
		if l.empty(v) {
			l.add(codeMissing, l.pos(v), "group %q has no headers", n.Value)
		}
		s.Alternatives = append(s.Alternatives, g)
	})
	l.each(get(v, "settings"), func(n Name, v cue.Value) {
		s.Settings = append(s.Settings, l.setting(l.named(n, "setting"), v))
	})
	tables := map[string]Name{}
	l.each(get(v, "tables"), func(n Name, v cue.Value) {
		l.once(tables, n, "table")
		s.Tables = append(s.Tables, l.table(l.named(n, "table"), v))
	})
	l.each(get(v, "sessions"), func(n Name, v cue.Value) {
		s.Sessions = append(s.Sessions, l.session(l.named(n, "session"), v, tables))
	})
	l.oneToMany(s, v, tables)
	l.each(get(v, "programs"), func(n Name, v cue.Value) {
		s.Programs = append(s.Programs, l.program(l.named(n, "program"), v))
	})
	l.each(get(v, "tests"), func(n Name, v cue.Value) {
		s.Tests = append(s.Tests, l.test(n, v))
	})
	return s
}

func (l *loader) notReserved(n Name) {
	for _, r := range reserved {
		if n.Value == r {
			l.add(codeName, n.Pos, "%q has a meaning of its own in expressions, and can't be a name here", n.Value)
		}
	}
}

func (l *loader) header(n Name, v cue.Value) *Header {
	h := &Header{
		Name: n, Std: l.std, Metadata: l.string(get(v, "metadata")), Segmented: l.bool(get(v, "segmented")),
		Closed: l.bool(get(v, "closed")), Trailer: l.int(get(v, "trailer")),
	}
	seen := map[string]Name{}
	size := 0
	fields := l.list(get(v, "fields"))
	for _, e := range fields {
		f := l.field(e)
		if f.Name.Value != "" {
			l.once(seen, f.Name, "field")
		}
		switch f.Kind {
		case FieldUint:
			size += f.Bits
		case FieldVarint:
			size += 64
		default:
			size += 8 * (f.Bytes + f.Max)
		}
		h.Fields = append(h.Fields, f)
	}
	if list := get(v, "fields"); l.empty(list) {
		l.add(codeMissing, l.pos(list), "header %q has no fields", n.Value)
	}
	if size > 8*maxHeader || len(fields) > maxFields {
		l.add(codeLimit, n.Pos, "header %q is too large: %d fields, up to %d bytes", n.Value, len(fields), size/8).
			WithHint("the most are %d fields and %d bytes", maxFields, maxHeader)
	}
	l.each(get(v, "after"), func(parent Name, v cue.Value) {
		a := &After{Parent: l.named(parent, "header")}
		a.Match = l.matches(v)
		h.After = append(h.After, a)
	})
	l.each(get(v, "parts"), func(part Name, v cue.Value) {
		l.once(seen, l.named(part, "part"), "field or part")
		p := &Part{Name: part}
		if text, where, ok := l.text(v); ok {
			p.Alias = l.path(text, where, "a part")
		} else {
			p.Addr, p.Port = l.partOf(get(v, "addr")), l.partOf(get(v, "port"))
		}
		h.Parts = append(h.Parts, p)
	})
	return h
}

func (l *loader) partOf(v cue.Value) *Expr {
	text, where, ok := l.text(v)
	if !ok {
		return nil
	}
	return l.path(text, where, "a part")
}

// matches reads constraints on fields.
func (l *loader) matches(v cue.Value) (all []*FieldMatch) {
	l.constraints(v, func(n Name, v cue.Value) {
		e := l.path(n.Value, textPos{n.Pos, n.Pos.Len == len(n.Value)}, "what is matched")
		c := l.constraint(v)
		if e != nil && c != nil {
			all = append(all, &FieldMatch{Field: e, Is: c})
		}
	})
	return all
}

func (l *loader) field(v cue.Value) *Field {
	f := &Field{Name: l.name(get(v, "name"), "field"), When: l.expr(get(v, "when"))}
	what := f.Name.Value
	if what == "" {
		what = "this field"
	}
	pos := f.Name.Pos
	if !pos.IsValid() {
		pos = l.pos(v)
	}
	kinds := 0
	for _, k := range []string{"bits", "bytes", "varint"} {
		if has(v, k) {
			kinds++
		}
	}
	if kinds != 1 && l.whole(v) {
		l.add(codeOneOf, pos, "%s needs exactly one of bits, bytes and varint", what)
	}
	size := get(v, "bytes")
	sized := size.IncompleteKind() == cue.StringKind
	switch {
	case has(v, "varint"):
		f.Kind = FieldVarint
	case sized:
		f.Kind, f.Size, f.Max = FieldSized, l.expr(size), l.int(get(v, "max"))
		if !has(v, "max") {
			l.add(codeMissing, l.pos(size), "%s needs \"max\": how many bytes it may take at most", what)
		}
	case size.Exists():
		f.Kind, f.Bytes = FieldBytes, l.int(size)
	default:
		f.Bits = l.int(get(v, "bits"))
	}
	l.together(v, what, sized)
	f.Little = l.string(get(v, "endian")) == "little"
	if t := get(v, "type"); t.Exists() {
		f.Type = l.string(t)
		if l.whole(v) && !(sized && f.Max == 0) { // else that is reported
			l.fieldType(f, t, what, has(v, "elements"))
		}
	}
	if is := get(v, "is"); is.Exists() {
		f.Is = l.constraint(v.LookupPath(cue.MakePath(cue.Str("is"))))
	}
	if r := get(v, "reason"); r.Exists() {
		n := l.name(r, "reason")
		f.Reason = &n
	}
	f.Counts, f.Checksum = l.counts(v), l.checksum(get(v, "checksum"))
	if e := get(v, "elements"); sized {
		f.Elements = l.elements(e)
	}
	if r := get(v, "role"); r.Exists() {
		f.Role = l.name(r, "role")
	}
	if o := get(v, "origin"); o.IncompleteKind() == cue.IntKind {
		if lit, ok := l.literal(o, l.pos(o)); ok {
			if has(v, "bits") && f.Bits < 64 && lit.Int >= 1<<f.Bits {
				l.add(codeRange, lit.Pos, "%d doesn't fit the %d bits of %s", lit.Int, f.Bits, what)
			}
			f.Origin = &lit.Int
		}
	}
	return f
}

// together reports members of a field that mean nothing without others. Sized says that the field has an expression for
// its bytes.
func (l *loader) together(v cue.Value, what string, sized bool) {
	needs := func(ok bool, member, others string) {
		if m := get(v, member); m.Exists() && !ok && l.whole(v) {
			l.add(codeTogether, l.labelPos(m), "%s: %q is only for a field with %s", what, member, others)
		}
	}
	needs(sized, "max", "an expression for its bytes")
	needs(sized || has(v, "max"), "elements", "an expression for its bytes")
	bits := has(v, "bits")
	needs(bits, "endian", "bits")
	needs(bits || has(v, "varint") || sized && l.string(get(v, "type")) == "uint", "counts",
		"bits, varint or type \"uint\"")
	needs(bits, "checksum", "bits")
	needs(bits, "origin", "bits")
	for _, m := range []string{"unit", "bias", "slack"} {
		needs(has(v, "counts"), m, "\"counts\"")
	}
	needs(has(v, "slack"), "slack_is", "\"slack\"")
	needs(has(v, "is") || has(v, "counts") || has(v, "checksum"), "reason", "\"is\", \"counts\" or \"checksum\"")
}

// fieldType reports a type (t) that doesn't fit the bytes of a field.
func (l *loader) fieldType(f *Field, t cue.Value, what string, elements bool) {
	fixed := f.Kind == FieldBytes
	switch {
	case f.Type == "ip" && !(fixed && (f.Bytes == 4 || f.Bytes == 16)):
		l.add(codeTogether, l.pos(t), "%s: an IP address has 4 or 16 bytes", what)
	case f.Type == "mac" && !(fixed && f.Bytes == 6):
		l.add(codeTogether, l.pos(t), "%s: a link-layer address has 6 bytes", what)
	case f.Type == "uint" && (f.Kind != FieldSized || f.Max > 8 || elements):
		d := l.add(codeTogether, l.pos(t), "%s: an integer whose size varies has an expression for its bytes, of "+
			"which there are at most 8, and no elements", what)
		if fixed && f.Bytes <= 8 {
			d.WithHint("one of a fixed size has bits: {name: %q, bits: %d}", what, 8*f.Bytes)
		}
	}
}

// counts reads what a field counts; nil if it counts nothing.
func (l *loader) counts(v cue.Value) *Counts {
	c := get(v, "counts")
	if !c.Exists() {
		return nil
	}
	out := &Counts{What: l.string(c), Unit: 1, Bias: int64(l.int(get(v, "bias"))), Pos: l.pos(c)}
	if u := get(v, "unit"); u.Exists() {
		out.Unit = l.int(u)
	}
	if s := get(v, "slack"); s.IncompleteKind() == cue.StringKind {
		out.Slack = -1
	} else {
		out.Slack = l.int(s)
	}
	out.Data = l.string(get(v, "slack_is")) == "data"
	return out
}

// checksum reads what a checksum covers; nil if the field is none.
func (l *loader) checksum(c cue.Value) *Checksum {
	if c.IncompleteKind() != cue.StructKind {
		return nil
	}
	return &Checksum{
		Covers: l.string(get(c, "covers")), Pseudo: l.exprs(get(c, "pseudo")),
		Absent:   l.nameList(get(c, "absent"), "header"),
		Optional: l.bool(get(c, "optional")), Offloaded: l.bool(get(c, "offloaded")),
		Verify: l.bool(get(c, "verify")), Pos: l.labelPos(c),
	}
}

func (l *loader) setting(n Name, v cue.Value) *Setting {
	s := &Setting{Name: n, Type: l.typeRef(get(v, "type")), Doc: doc(v)}
	if d := get(v, "default"); d.Exists() && d.IsConcrete() {
		if lit, ok := l.literal(d, l.literalPos(d)); ok {
			s.Default = &lit
		}
	}
	if is := v.LookupPath(cue.MakePath(cue.Str("is"))); is.Exists() {
		s.Is = l.constraint(is)
	}
	return s
}

// literalPos is the position of a literal: of its text, for a string.
func (l *loader) literalPos(v cue.Value) diag.Pos {
	if _, p, ok := l.text(v); ok {
		return p.pos
	}
	return l.pos(v)
}

// doc is the comment in front of a member.
func doc(v cue.Value) string {
	var parts []string
	for _, g := range v.Doc() {
		parts = append(parts, strings.TrimSpace(g.Text()))
	}
	return strings.Join(parts, "\n")
}

func (l *loader) typeRef(v cue.Value) TypeRef {
	s, p, _ := l.text(v)
	return TypeRef{s, p.pos}
}

func (l *loader) members(v cue.Value, what string, seen map[string]Name) (all []*Member) {
	l.each(v, func(n Name, v cue.Value) {
		l.once(seen, l.named(n, what), what)
		if t := l.typeRef(v); t.Text != "" {
			all = append(all, &Member{Name: n, Type: t})
		} else if v.IncompleteKind() == cue.StringKind && v.IsConcrete() {
			l.add(codeLiteral, l.pos(v), "%s %q needs a type", what, n.Value)
		}
	})
	return all
}

func (l *loader) table(n Name, v cue.Value) *Table {
	t := &Table{Name: n, Kind: TableHash, PerCPU: l.bool(get(v, "per_cpu")), Size: l.int(get(v, "size"))}
	if k := l.string(get(v, "kind")); k != "" {
		t.Kind = TableKind(k)
	}
	seen := map[string]Name{}
	t.Key = l.members(get(v, "key"), "member", seen)
	t.Value = l.members(get(v, "value"), "member", seen)
	return t
}

func (l *loader) session(n Name, v cue.Value, tables map[string]Name) *Session {
	s := &Session{
		Name: n, Fields: l.members(get(v, "fields"), "field", map[string]Name{}), Size: l.int(get(v, "size")),
		Lifetime: l.duration(get(v, "lifetime")), Idle: l.duration(get(v, "idle")),
	}
	named := false
	l.each(get(v, "rows"), func(table Name, v cue.Value) {
		named = true
		l.once(tables, l.named(table, "table"), "table")
		if v.IncompleteKind() != cue.ListKind {
			s.Rows = append(s.Rows, l.sessionRow(table, v, table.Pos))
			return
		}
		for _, row := range l.list(v) {
			s.Rows = append(s.Rows, l.sessionRow(table, row, l.pos(row)))
		}
		if l.empty(v) {
			l.add(codeMissing, l.pos(v), "session %q has no row in table %q", n.Value, table.Value)
		}
	})
	if rows := get(v, "rows"); !named && l.whole(rows) {
		l.add(codeMissing, l.pos(rows), "session %q has no rows", n.Value)
	}
	return s
}

func (l *loader) sessionRow(table Name, v cue.Value, pos diag.Pos) *SessionRow {
	r := &SessionRow{
		Table: table, Key: l.nameList(get(v, "key"), "field"), Value: l.nameList(get(v, "value"), "field"), Pos: pos,
	}
	if k := get(v, "key"); l.empty(k) {
		l.add(codeMissing, l.pos(k), "the row of table %q has no key", table.Value)
	}
	seen := map[string]Name{}
	for _, f := range append(r.Key[:len(r.Key):len(r.Key)], r.Value...) {
		l.once(seen, f, "member")
	}
	return r
}

const maxDuration = 365 * 24 * time.Hour

func (l *loader) duration(v cue.Value) *Seconds {
	text, p, ok := l.text(v)
	if !ok {
		return nil
	}
	d, err := time.ParseDuration(text)
	switch {
	case err != nil:
		l.add(codeLiteral, p.pos, "%q is not a duration", text).WithHint("write it as \"30s\", \"10m\" or \"1h30m\"")
	case d < time.Second || d > maxDuration:
		l.add(codeRange, p.pos, "a duration has to be from 1s to a year, not %s", text)
	}
	return &Seconds{Value: int64(d), Pos: p.pos}
}

// only returns the member of a struct that has exactly one.
func (l *loader) only(v cue.Value, what string) (n Name, member cue.Value, ok bool) {
	var all []Name
	var values []cue.Value
	l.each(v, func(n Name, v cue.Value) { all, values = append(all, n), append(values, v) })
	switch {
	case len(all) == 1:
		return all[0], values[0], true
	case l.whole(v) && v.Err() == nil:
		if len(all) == 0 {
			l.add(codeOneOf, l.pos(v), "%s has exactly one member; this one is empty", what)
		} else {
			l.add(codeOneOf, all[1].Pos, "%s has exactly one member; %q is another one", what, all[1].Value).
				WithRelated(all[0].Pos, "the first one is here")
		}
	}
	return Name{}, cue.Value{}, false
}
