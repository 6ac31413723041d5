package c

import (
	"slices"
	"testing"
)

func print(f *Func) string {
	p := &Printer{}
	p.Tops([]Top{f})
	return p.String()
}

// Variables are called what they want to be if that isn't taken; a block's names are free after it.
func TestNameLocals(t *testing.T) {
	x, again, inner, after, called := NewLocal("x", ""), NewLocal("x", ""), NewLocal("y", ""), NewLocal("y", ""),
		NewLocal("g", "")
	f := &Func{
		Result: "int", Name: "f", Params: []Param{{Type: "int", Name: x}, {Type: "int", Name: Ident("z")}},
		Body: []Stmt{
			declare("int", again, x),
			&If{Cond: again, Then: []Stmt{declare("int", inner, Num(1)), set(x, inner)}},
			declare("int", after, Num(2)),
			declare("int", called, Do("g", after)),
			declare("int", NewLocal("z", ""), called),
			&Return{X: Binary{"+", x, Do("later")}},
		},
	}
	f.NameLocals()
	const want = `
static __always_inline int f(int x, int z)
{
	int x_2 = x;

	if (x_2) {
		int y = 1;
		x = y;
	}
	int y = 2;
	int g_2 = g(y);
	int z_2 = g_2;
	return x + later();
}
`
	if got := print(f); got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
}

// A function is given what it mentions and doesn't declare first.
func TestFree(t *testing.T) {
	x, y, z := NewLocal("x", ""), NewLocal("y", ""), NewLocal("z", "")
	body := []Stmt{
		declare("int", x, Do("f", y)),
		&Block{Body: []Stmt{set(In(z, "member"), x)}},
		&List{Body: []Stmt{set(y, x)}},
	}
	if got := Free(body); !slices.Equal(got, []*Local{y, z}) {
		t.Errorf("%v", got)
	}
}

// What statements do with variables of their own is the same, whichever these are; others are told apart.
func TestKeysOfLocals(t *testing.T) {
	x, y, free := NewLocal("x", ""), NewLocal("y", ""), NewLocal("x", "")
	body := func(own, other *Local) Key { return KeyOfBody([]Stmt{declare("int", own, other), set(own, other)}) }
	if body(x, free) != body(y, free) {
		t.Error("variables of their own make a difference")
	}
	if body(x, free) == body(x, y) {
		t.Error("variables of others make none")
	}
	if Equal(x, free) || !Equal(x, x) || !Alike(x, free) || Alike(x, y) {
		t.Error("variables are the same where they are one, and alike where they are called alike")
	}
}

func TestRewrite(t *testing.T) {
	body := Rewrite([]Stmt{set(a, b), &If{Cond: a, Then: []Stmt{set(a, b)}}}, func(s Stmt) []Stmt {
		if _, ok := s.(*Assign); ok {
			return []Stmt{&Return{X: a}, &Return{X: b}}
		}
		return []Stmt{s}
	})
	if len(body) != 3 || len(body[2].(*If).Then) != 2 {
		t.Errorf("%d statements", len(body))
	}
}
