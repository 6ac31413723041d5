// INTERIM: the owner of this package deletes this file (and the interim std files) when the real loader lands.
package spec

import (
	"embed"
	"encoding/hex"
	"os"
	"strconv"
	"strings"
	"time"

	"cuelang.org/go/cue"
	"cuelang.org/go/cue/ast"
	"cuelang.org/go/cue/cuecontext"
	"cuelang.org/go/cue/errors"
	"cuelang.org/go/cue/token"

	"github.com/fastrelay/fastrelay-gen/internal/diag"
)

//go:embed std/*.cue
var stdFS embed.FS

// LoadFile loads a spec from a file.
func LoadFile(path string) (*Spec, *diag.List) {
	src, err := os.ReadFile(path)
	if err != nil {
		l := &diag.List{}
		l.Add("FR0101", diag.Pos{File: path}, "%v", err)
		return nil, l
	}
	return Load(path, src)
}

// Load loads a spec; file is its name in messages.
func Load(file string, src []byte) (*Spec, *diag.List) {
	ld := &loader{diags: &diag.List{}, spec: &Spec{File: file}}
	ctx := cuecontext.New()
	ld.load(ctx, file, src, false)
	names, _ := stdFS.ReadDir("std")
	for _, n := range names {
		b, _ := stdFS.ReadFile("std/" + n.Name())
		ld.load(ctx, "fastrelay/std/"+n.Name(), b, true)
	}
	if ld.diags.Len() > 0 {
		return nil, ld.diags
	}
	return ld.spec, ld.diags
}

type loader struct {
	diags *diag.List
	spec  *Spec
	std   bool
}

func (l *loader) load(ctx *cue.Context, file string, src []byte, std bool) {
	l.std = std
	v := ctx.CompileBytes(src, cue.Filename(file))
	if err := v.Err(); err != nil {
		for _, e := range errors.Errors(err) {
			l.diags.Add("FR0102", pos(e.Position()), "%v", e)
		}
		return
	}
	l.each(v, func(name string, v cue.Value) {
		switch name {
		case "name":
			l.spec.Name = Name{l.str(v), l.pos(v)}
		case "headers":
			l.each(v, func(n string, v cue.Value) { l.spec.Headers = append(l.spec.Headers, l.header(n, v)) })
		case "alternatives":
			l.each(v, func(n string, v cue.Value) {
				l.spec.Groups = append(l.spec.Groups, &Group{Name: l.label(n, v), Headers: l.names(v), Std: std})
			})
		case "settings":
			l.each(v, func(n string, v cue.Value) {
				s := &Setting{Name: l.label(n, v), Type: l.typ(v.LookupPath(cue.ParsePath("type")))}
				if d := get(v, "default"); d.Exists() {
					x := l.lit(d)
					s.Default = &x
				}
				l.spec.Settings = append(l.spec.Settings, s)
			})
		case "tables":
			l.each(v, func(n string, v cue.Value) {
				t := &Table{Name: l.label(n, v), Kind: TableHash}
				l.each(v, func(k string, v cue.Value) {
					switch k {
					case "kind":
						t.Kind = TableKind(l.str(v))
					case "size":
						t.Size = l.int(v)
					case "per_cpu":
						t.PerCPU, _ = v.Bool()
					case "key":
						t.Key = l.members(v)
					case "value":
						t.Value = l.members(v)
					}
				})
				l.spec.Tables = append(l.spec.Tables, t)
			})
		case "sessions":
			l.each(v, func(n string, v cue.Value) {
				s := &Session{Name: l.label(n, v), Fields: l.members(get(v, "fields"))}
				if z := get(v, "size"); z.Exists() {
					s.Size = l.int(z)
				}
				dur := func(k string) *Seconds {
					if z := get(v, k); z.Exists() {
						d, _ := time.ParseDuration(l.str(z))
						return &Seconds{int64(d), l.pos(z)}
					}
					return nil
				}
				s.Lifetime, s.Idle = dur("lifetime"), dur("idle")
				l.each(get(v, "rows"), func(n string, v cue.Value) {
					s.Rows = append(s.Rows, &SessionRow{Table: l.label(n, v), Key: l.names(get(v, "key")), Value: l.names(get(v, "value"))})
				})
				l.spec.Sessions = append(l.spec.Sessions, s)
			})
		case "programs":
			l.each(v, func(n string, v cue.Value) { l.spec.Programs = append(l.spec.Programs, l.program(n, v)) })
		case "kernel":
			a, b, _ := strings.Cut(l.str(v), ".")
			k := &Kernel{Pos: l.pos(v)}
			k.Major, _ = strconv.Atoi(a)
			k.Minor, _ = strconv.Atoi(b)
			l.spec.Kernel = k
		case "tests":
			l.each(v, func(n string, v cue.Value) { l.spec.Tests = append(l.spec.Tests, l.test(n, v)) })
		default:
			l.diags.Add("FR0103", l.label(name, v).Pos, "unknown word %q", name)
		}
	})
}

func get(v cue.Value, k string) cue.Value { return v.LookupPath(cue.MakePath(cue.Str(k))) }

func pos(p token.Pos) diag.Pos {
	if !p.IsValid() {
		return diag.Pos{}
	}
	q := p.Position()
	return diag.Pos{File: q.Filename, Line: q.Line, Column: q.Column}
}

func (l *loader) pos(v cue.Value) diag.Pos {
	p := pos(v.Pos())
	if s, err := v.String(); err == nil {
		p.Column++
		p.Len = len(s)
	}
	return p
}

func (l *loader) label(n string, v cue.Value) Name {
	p := pos(v.Pos())
	if f, ok := v.Source().(*ast.Field); ok {
		p = pos(f.Label.Pos())
	}
	p.Len = len(n)
	return Name{n, p}
}

func (l *loader) each(v cue.Value, f func(string, cue.Value)) {
	if !v.Exists() {
		return
	}
	it, err := v.Fields()
	if err != nil {
		l.diags.Add("FR0104", l.pos(v), "%v", err)
		return
	}
	for it.Next() {
		f(it.Selector().Unquoted(), it.Value())
	}
}

func (l *loader) list(v cue.Value) (out []cue.Value) {
	if !v.Exists() {
		return nil
	}
	it, err := v.List()
	if err != nil {
		l.diags.Add("FR0104", l.pos(v), "%v", err)
		return nil
	}
	for it.Next() {
		out = append(out, it.Value())
	}
	return out
}

func (l *loader) str(v cue.Value) string {
	s, err := v.String()
	if err != nil {
		l.diags.Add("FR0105", l.pos(v), "%v", err)
	}
	return s
}

func (l *loader) int(v cue.Value) int {
	n, err := v.Int64()
	if err != nil {
		l.diags.Add("FR0105", l.pos(v), "%v", err)
	}
	return int(n)
}

func (l *loader) names(v cue.Value) (out []Name) {
	for _, e := range l.list(v) {
		out = append(out, Name{l.str(e), l.pos(e)})
	}
	return out
}

func (l *loader) typ(v cue.Value) TypeRef { return TypeRef{l.str(v), l.pos(v)} }

func (l *loader) members(v cue.Value) (out []*Member) {
	l.each(v, func(n string, v cue.Value) { out = append(out, &Member{l.label(n, v), l.typ(v)}) })
	return out
}

func (l *loader) lit(v cue.Value) Literal {
	p := l.pos(v)
	switch v.Kind() {
	case cue.IntKind:
		n, _ := v.Uint64()
		return Literal{Kind: LitInt, Int: n, Pos: p}
	case cue.BoolKind:
		b, _ := v.Bool()
		return Literal{Kind: LitBool, Bool: b, Pos: p}
	}
	return Literal{Kind: LitString, Text: l.str(v), Pos: p}
}

func (l *loader) constraint(v cue.Value) *Constraint {
	op, args := v.Expr()
	p := l.pos(v)
	ops := map[cue.Op]ConstraintOp{cue.NotEqualOp: IsNe, cue.LessThanOp: IsLt, cue.LessThanEqualOp: IsLe, cue.GreaterThanOp: IsGt, cue.GreaterThanEqualOp: IsGe}
	switch op {
	case cue.AndOp, cue.OrOp:
		k := &Constraint{Op: IsAnd, Pos: p}
		if op == cue.OrOp {
			k.Op = IsOr
		}
		for _, a := range args {
			k.Args = append(k.Args, l.constraint(a))
		}
		return k
	case cue.NoOp:
		return &Constraint{Op: IsEq, Value: l.lit(v), Pos: p}
	}
	if o, ok := ops[op]; ok {
		return &Constraint{Op: o, Value: l.lit(args[0]), Pos: p}
	}
	return &Constraint{Op: IsEq, Value: l.lit(v), Pos: p}
}

func (l *loader) expr(v cue.Value) *Expr {
	p := l.pos(v)
	switch v.Kind() {
	case cue.IntKind:
		n, _ := v.Uint64()
		return &Expr{Op: OpInt, Int: n, Pos: p}
	case cue.BoolKind:
		b, _ := v.Bool()
		e := &Expr{Op: OpBool, Pos: p}
		if b {
			e.Int = 1
		}
		return e
	}
	return l.parse(l.str(v), p)
}

func (l *loader) parse(text string, p diag.Pos) *Expr {
	e, d := ParseExpr(text, p)
	if d != nil {
		l.diags.Add(d.Code, d.Pos, "%s", d.Message)
		return &Expr{Op: OpInt, Pos: p}
	}
	return e
}

func (l *loader) exprs(v cue.Value) (out []*Expr) {
	for _, e := range l.list(v) {
		out = append(out, l.expr(e))
	}
	return out
}

func (l *loader) header(n string, v cue.Value) *Header {
	h := &Header{Name: l.label(n, v), Std: l.std}
	l.each(v, func(k string, v cue.Value) {
		switch k {
		case "fields":
			for _, f := range l.list(v) {
				h.Fields = append(h.Fields, l.field(f))
			}
		case "after":
			l.each(v, func(n string, v cue.Value) {
				h.After = append(h.After, &After{Parent: l.label(n, v), Match: l.match(v)})
			})
		case "parts":
			l.each(v, func(n string, v cue.Value) {
				p := &Part{Name: l.label(n, v)}
				if v.Kind() == cue.StringKind {
					p.Alias = l.expr(v)
				} else {
					p.Addr, p.Port = l.expr(get(v, "addr")), l.expr(get(v, "port"))
				}
				h.Parts = append(h.Parts, p)
			})
		case "metadata":
			h.Metadata = l.str(v)
		case "segmented":
			h.Segmented, _ = v.Bool()
		case "closed":
			h.Closed, _ = v.Bool()
		case "trailer":
			h.Trailer = l.int(v)
		}
	})
	return h
}

func (l *loader) match(v cue.Value) (out []*FieldMatch) {
	l.each(v, func(n string, v cue.Value) {
		out = append(out, &FieldMatch{Field: l.parse(n, l.label(n, v).Pos), Is: l.constraint(v)})
	})
	return out
}

func (l *loader) field(v cue.Value) *Field {
	f := &Field{}
	var counts *Counts
	l.each(v, func(k string, v cue.Value) {
		switch k {
		case "name":
			f.Name = Name{l.str(v), l.pos(v)}
		case "bits":
			f.Bits = l.int(v)
		case "bytes":
			if v.Kind() == cue.IntKind {
				f.Kind, f.Bytes = FieldBytes, l.int(v)
			} else {
				f.Kind, f.Size = FieldSized, l.expr(v)
			}
		case "max":
			f.Max = l.int(v)
		case "varint":
			f.Kind = FieldVarint
		case "endian":
			f.Little = l.str(v) == "little"
		case "type":
			f.Type = l.str(v)
		case "when":
			f.When = l.expr(v)
		case "is":
			f.Is = l.constraint(v)
		case "reason":
			f.Reason = &Name{l.str(v), l.pos(v)}
		case "role":
			f.Role = Name{l.str(v), l.pos(v)}
		case "origin":
			n, _ := v.Uint64()
			f.Origin = &n
		case "checksum":
			c := &Checksum{Covers: "all", Pos: l.pos(v)}
			l.each(v, func(k string, v cue.Value) {
				switch k {
				case "covers":
					c.Covers = l.str(v)
				case "pseudo":
					c.Pseudo = l.exprs(v)
				case "absent":
					c.Absent = l.names(v)
				case "optional":
					c.Optional, _ = v.Bool()
				case "offloaded":
					c.Offloaded, _ = v.Bool()
				}
			})
			f.Checksum = c
		}
	})
	if c := get(v, "counts"); c.Exists() {
		counts = &Counts{What: l.str(c), Unit: 1, Pos: l.pos(c)}
		if u := get(v, "unit"); u.Exists() {
			counts.Unit = l.int(u)
		}
		if u := get(v, "bias"); u.Exists() {
			counts.Bias = int64(l.int(u))
		}
		if u := get(v, "slack"); u.Exists() {
			if u.Kind() == cue.StringKind {
				counts.Slack = -1
			} else {
				counts.Slack = l.int(u)
			}
		}
		f.Counts = counts
	}
	return f
}

func (l *loader) program(n string, v cue.Value) *Program {
	p := &Program{Name: l.label(n, v)}
	p.Pos = p.Name.Pos
	l.each(v, func(k string, v cue.Value) {
		switch k {
		case "hook":
			p.Hook, p.HookPos = l.str(v), l.pos(v)
		case "stack":
			for _, e := range l.list(v) {
				p.Stack = append(p.Stack, l.entry(e))
			}
		case "match":
			p.Match = l.match(v)
		case "when":
			p.When = l.expr(v)
		case "lookup":
			p.Lookups = l.lookups(v)
		case "rules":
			for _, r := range l.list(v) {
				p.Rules = append(p.Rules, l.rule(r))
			}
		case "do":
			p.Rules = append(p.Rules, &Rule{Pos: l.pos(v), Do: l.actions(v)})
		}
	})
	return p
}

func (l *loader) entry(v cue.Value) *StackEntry {
	e := &StackEntry{Pos: l.pos(v)}
	if v.Kind() == cue.StringKind {
		n := l.str(v)
		e.Optional = strings.HasSuffix(n, "?")
		e.Var = Name{strings.TrimSuffix(n, "?"), l.pos(v)}
		e.Headers = []Name{e.Var}
		return e
	}
	l.each(v, func(n string, v cue.Value) {
		e.Var = l.label(strings.TrimSuffix(n, "?"), v)
		e.Optional = strings.HasSuffix(n, "?")
		e.Headers = l.names(v)
	})
	return e
}

func (l *loader) lookups(v cue.Value) (out []*Lookup) {
	l.each(v, func(n string, v cue.Value) {
		k := &Lookup{Var: l.label(strings.TrimSuffix(n, "?"), v), Optional: strings.HasSuffix(n, "?")}
		l.each(v, func(t string, v cue.Value) {
			k.Table, k.Key, k.Pos = l.label(t, v), l.exprs(v), l.label(t, v).Pos
		})
		out = append(out, k)
	})
	return out
}

func (l *loader) rule(v cue.Value) *Rule {
	r := &Rule{Pos: l.pos(v)}
	l.each(v, func(k string, v cue.Value) {
		switch k {
		case "match":
			r.Match = l.match(v)
		case "when":
			r.When = l.expr(v)
		case "lookup":
			r.Lookups = l.lookups(v)
		case "do":
			r.Do = l.actions(v)
		}
	})
	return r
}

func (l *loader) assigns(v cue.Value) (out []*Assign) {
	l.each(v, func(n string, v cue.Value) {
		out = append(out, &Assign{Target: l.parse(n, l.label(n, v).Pos), Value: l.expr(v)})
	})
	return out
}

func (l *loader) actions(v cue.Value) (out []*Action) {
	for _, e := range l.list(v) {
		a := &Action{Pos: l.pos(e)}
		out = append(out, a)
		if e.Kind() == cue.StringKind {
			a.Kind = ActionKind(l.str(e))
			continue
		}
		l.each(e, func(k string, v cue.Value) {
			a.Pos = l.label(k, v).Pos
			if k == "before" {
				return
			}
			a.Kind = ActionKind(k)
			switch a.Kind {
			case ActSet, ActMark:
				a.Set = l.assigns(v)
			case ActPush:
				l.each(v, func(n string, v cue.Value) {
					if n == "before" {
						a.Before = &Name{l.str(v), l.pos(v)}
						return
					}
					a.Header, a.Set = l.label(n, v), l.assigns(v)
				})
			case ActPop:
				a.Header = Name{l.str(v), l.pos(v)}
			case ActDrop:
				a.Reason = Name{l.str(v), l.pos(v)}
			case ActSend:
				l.each(v, func(n string, v cue.Value) {
					switch n {
					case "from":
						a.From = l.expr(v)
					case "to":
						a.To = l.expr(v)
					case "via":
						a.Via = l.expr(v)
					}
				})
			case ActLearn:
				l.each(v, func(n string, v cue.Value) {
					a.Table, a.Key, a.Value = l.label(n, v), l.exprs(get(v, "key")), l.exprs(get(v, "value"))
				})
			case ActCount:
				if v.Kind() == cue.StringKind {
					a.Counter = l.expr(v)
				} else {
					a.Counter, a.By = l.expr(get(v, "counter")), l.expr(get(v, "by"))
				}
			}
		})
	}
	return out
}

func (l *loader) values(v cue.Value) (out []*TestValue) {
	l.each(v, func(n string, v cue.Value) { out = append(out, &TestValue{l.label(n, v), l.lit(v)}) })
	return out
}

func (l *loader) packet(v cue.Value) *Packet {
	p := &Packet{Pos: l.pos(v)}
	if h := get(v, "hex"); v.Kind() == cue.StructKind && h.Exists() {
		p.Hex, _ = hex.DecodeString(strings.ReplaceAll(l.str(h), " ", ""))
		return p
	}
	for _, e := range l.list(v) {
		l.each(e, func(n string, v cue.Value) {
			y := &Layer{Pos: l.label(n, v).Pos}
			if n == "payload" {
				y.Bytes = []byte(l.str(v))
			} else {
				y.Header, y.Fields = l.label(n, v), l.values(v)
			}
			p.Layers = append(p.Layers, y)
		})
	}
	return p
}

func (l *loader) rows(v cue.Value) (out []*TestRow) {
	for _, e := range l.list(v) {
		l.each(e, func(n string, v cue.Value) { out = append(out, &TestRow{Table: l.label(n, v), Values: l.values(v)}) })
	}
	return out
}

func (l *loader) test(n string, v cue.Value) *Test {
	t := &Test{Name: l.label(n, v)}
	t.Pos = t.Name.Pos
	l.each(v, func(k string, v cue.Value) {
		switch k {
		case "program":
			t.Program = Name{l.str(v), l.pos(v)}
		case "settings":
			t.Settings = l.values(v)
		case "sessions":
			for _, e := range l.list(v) {
				l.each(e, func(n string, v cue.Value) {
					t.Sessions = append(t.Sessions, &TestSession{l.label(n, v), l.values(v)})
				})
			}
		case "rows":
			t.Rows = l.rows(v)
		case "packet":
			t.Packet = l.packet(v)
		case "expect":
			x := &Expect{Pos: l.pos(v)}
			l.each(v, func(k string, v cue.Value) {
				switch k {
				case "sent", "pass":
					x.Verdict = k
					if v.Kind() == cue.ListKind {
						x.Packet = l.packet(v)
					}
				case "up", "drop":
					x.Verdict, x.Reason, x.Untouched = k, l.str(v), k == "up"
				case "rows":
					x.Rows = l.rows(v)
				case "via":
					lt := l.lit(v)
					x.Via = &lt
				}
			})
			t.Expect = x
		}
	})
	return t
}
