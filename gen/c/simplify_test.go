package c

import (
	"testing"

	"github.com/fastrelay/fastrelay-gen/internal/diag"
)

// Branches on flags become fewer; what isn't one, or means something else, stays.
func TestSimplify(t *testing.T) {
	flag, other := NewLocal("flag", "const int"), NewLocal("other", "int")
	f := func(n Expr) Stmt { return &Return{X: Do("g", a, n)} }
	for name, tt := range map[string]struct {
		body []Stmt
		want string
	}{
		"merged": {[]Stmt{&If{Cond: flag, Then: []Stmt{Gap{}, &If{Cond: b, Then: []Stmt{set(a, b)}}}}}, `
	if (flag && b)
		a = b;
`},
		"three are merged": {[]Stmt{&If{Cond: flag, Then: []Stmt{
			&If{Cond: Binary{"||", a, b}, Then: []Stmt{&If{Cond: b, Then: []Stmt{set(a, b)}}}},
		}}}, `
	if (flag && (a || b) && b)
		a = b;
`},
		"another line of the spec": {[]Stmt{
			&If{Pos: diag.Pos{Line: 1}, Cond: flag, Then: []Stmt{
				&If{Pos: diag.Pos{Line: 2}, Cond: b, Then: []Stmt{set(a, b)}},
			}},
		}, `
	if (flag) {
		if (b)
			a = b;
	}
`},
		"with another statement, or another side": {[]Stmt{
			&If{Cond: flag, Then: []Stmt{&If{Cond: b, Then: []Stmt{set(a, b)}}, set(b, a)}},
			&If{Cond: flag, Then: []Stmt{&If{Cond: b, Then: []Stmt{set(a, b)}, Else: []Stmt{set(b, a)}}}},
		}, `
	if (flag) {
		if (b)
			a = b;
		b = a;
	}
	if (flag) {
		if (b)
			a = b;
		else
			b = a;
	}
`},
		"turned": {[]Stmt{
			&If{Cond: Not(flag), Then: []Stmt{set(a, b)}, Else: []Stmt{&If{Cond: a, Then: []Stmt{set(b, a)}}}},
			&If{Cond: Not(flag), Then: []Stmt{set(a, Choice{Not(flag), a, Choice{Not(flag), b, a}})}},
		}, `
	if (flag) {
		if (a)
			b = a;
	} else {
		a = b;
	}
	if (!flag)
		a = flag ? (flag ? a : b) : a;
`},
		"else if": {[]Stmt{
			&If{Cond: flag, Then: []Stmt{set(a, b)}, Else: []Stmt{
				&If{Cond: a, Then: []Stmt{set(b, a)}, Else: []Stmt{set(a, a)}},
			}},
			&If{Cond: b, Then: []Stmt{set(a, b)}, Else: []Stmt{&If{Cond: a, Then: []Stmt{set(a, a), set(b, b)}}}},
		}, `
	if (flag)
		a = b;
	else if (a)
		b = a;
	else
		a = a;
	if (b) {
		a = b;
	} else if (a) {
		a = a;
		b = b;
	}
`},
		"returned": {[]Stmt{&If{Cond: b, Then: []Stmt{f(a)}}, &If{Cond: flag, Then: []Stmt{f(Num(1))}}, f(Num(0))}, `
	if (b)
		return g(a, a);
	return g(a, flag);
`},
		"returned otherwise": {[]Stmt{&If{Cond: Not(flag), Then: []Stmt{f(Num(0))}, Else: []Stmt{f(Num(1))}}}, `
	return g(a, flag);
`},
		"the opposite is returned": {[]Stmt{&If{Cond: flag, Then: []Stmt{f(Num(0))}}, f(Num(1))}, `
	return g(a, !flag);
`},
		"not returned": {[]Stmt{
			&If{Cond: a, Then: []Stmt{&If{Cond: other, Then: []Stmt{f(Num(1))}}, f(Num(0))}},
			&If{Cond: b, Then: []Stmt{&If{Cond: flag, Then: []Stmt{f(Num(2))}}, f(Num(0))}},
			&If{Cond: flag, Then: []Stmt{&Return{X: Do("h", a, Num(1))}}}, f(Num(0)),
		}, `
	if (a) {
		if (other)
			return g(a, 1);
		return g(a, 0);
	}
	if (b) {
		if (flag)
			return g(a, 2);
		return g(a, 0);
	}
	if (flag)
		return h(a, 1);
	return g(a, 0);
`},
	} {
		t.Run(name, func(t *testing.T) {
			f := &Func{Result: "int", Name: "f", Body: tt.body}
			f.Simplify(func(x *Local) bool { return x == flag })
			if got, want := print(f), "\nstatic __always_inline int f()\n{"+tt.want+"}\n"; got != want {
				t.Errorf("%s\nwant:%s", got, want)
			}
		})
	}
}
