package c

import (
	"strings"
	"testing"

	"github.com/fastrelay/fastrelay-gen/internal/diag"
)

func set(to, x Expr) Stmt { return &Assign{To: to, Op: "=", X: x} }

func declare(typ Type, name Name, x Expr) Stmt {
	return &Declare{Type: typ, Vars: []Var{{Name: name, Init: x}}}
}

// Declarations stand in front of an empty line, simple branches have no braces, and lines know where they come from.
func TestStatements(t *testing.T) {
	at := diag.Pos{File: "x.cue", Line: 7, Column: 1}
	f := &Func{
		Result: "long *", Name: "f", Params: []Param{{Type: "void *", Name: p}, {Type: "int", Name: a}},
		Body: []Stmt{
			Gap{},
			declare("__u64", b, Num(1)),
			&Declare{Type: "const __u32", Vars: []Var{
				{Name: Ident("x"), Init: Dec(1)}, {Name: Ident("y"), Init: Dec(2)},
			}},
			&List{Body: []Stmt{declare("void *", Ident("q"), nil)}},
			&If{Pos: at, Cond: a, Then: []Stmt{set(a, b)}},
			&If{Cond: a, Note: "why", Then: []Stmt{set(a, b)}, Else: []Stmt{set(b, a)}},
			&If{Cond: a, Note: "why", Then: []Stmt{&If{Cond: b, Then: []Stmt{set(a, b)}}}},
			&If{Cond: a, Then: []Stmt{set(a, b)}, Else: []Stmt{set(b, a), set(a, b)}},
			Gap{}, Gap{},
			&Block{Body: []Stmt{declare("struct s", Ident("s"), Init{}), Gap{}, &Note{Text: "said"}, Gap{}}},
			&Note{Pos: at, Text: strings.Repeat("long ", 40), Short: true},
			&Declare{Type: "struct s", Vars: []Var{{Name: Ident("t"), Init: Init{{"a", a}, {"b", b}, {"c", Num(3)}}}}},
			&Declare{Type: "struct s", Vars: []Var{{Name: Ident("u"), Tail: "[1]", Init: Init{{"a", a}}}}},
			&Assign{To: a, Op: "+=", X: Num(1)},
			&Eval{X: Do("g", a)},
			&List{},
			Gap{},
			&Return{Pos: at, X: b},
			Gap{},
		},
	}
	const want = `
static __always_inline long *f(void *p, int a)
{
	__u64 b = 1;
	const __u32 x = 1, y = 2;
	void *q;

7	if (a)
		a = b;
	if (a) /* why */
		a = b;
	else
		b = a;
	if (a) { /* why */
		if (b)
			a = b;
	}
	if (a) {
		a = b;
	} else {
		b = a;
		a = b;
	}

	{
		struct s s = {};

		/* said */
	}
7	/* long long long long long long long long long long long long long long long long lon... */
	struct s t = {
		.a = a,
		.b = b,
		.c = 3,
	};
	struct s u[1] = { .a = a };
	a++;
	g(a);

7	return b;
}
`
	p := &Printer{}
	p.Tops([]Top{f})
	var got strings.Builder
	for i, line := range p.Lines {
		if p.Pos[i].IsValid() {
			got.WriteString("7")
		}
		got.WriteString(line + "\n")
	}
	if got.String() != want {
		t.Errorf("%s\nwant\n%s", got.String(), want)
	}
}

func TestTops(t *testing.T) {
	p := &Printer{}
	p.Tops([]Top{
		&Enum{Doc: "Reasons.", Constants: []Constant{{a, Dec(3)}, {Name: b}}},
		&Struct{Doc: "Numbers.", Name: "s", Members: []Param{
			{Type: "__u64", Name: a, Tail: "[2]"}, {Type: "void *", Name: b},
		}},
	})
	const want = `
/* Reasons. */
enum { a = 3, b };

/* Numbers. */
struct s {
	__u64 a[2];
	void *b;
};
`
	if got := p.String(); got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
}

// Where statements come from, comments and empty lines make no difference; all else does.
func TestKeyOfBody(t *testing.T) {
	base := []Stmt{declare("int", a, b), &If{Cond: a, Then: []Stmt{set(a, b)}}}
	same := []Stmt{
		Gap{}, &Note{Text: "said"}, &List{Body: base[:1]},
		&If{Pos: diag.Pos{Line: 3}, Note: "why", Cond: a, Then: []Stmt{set(a, b), Gap{}}},
	}
	if KeyOfBody(base) != KeyOfBody(same) {
		t.Error("the same statements differ")
	}
	for i, other := range [][]Stmt{
		base[:1], {declare("long", a, b), base[1]}, {declare("int", b, b), base[1]}, {declare("int", a, a), base[1]},
		{base[0], &If{Cond: b, Then: []Stmt{set(a, b)}}}, {base[0], &If{Cond: a, Else: []Stmt{set(a, b)}}},
		{base[0], &If{Cond: a, Then: []Stmt{&Assign{To: a, Op: "+=", X: b}}}},
		{base[0], &Block{Body: []Stmt{set(a, b)}}},
		{base[0], &Return{X: a}}, {base[0], &Eval{X: a}}, {base[1], base[0]},
	} {
		if KeyOfBody(base) == KeyOfBody(other) {
			t.Errorf("%d is the same", i)
		}
	}
}

func TestReplaceIn(t *testing.T) {
	body := []Stmt{declare("int", a, Num(1)), &If{Cond: a, Then: []Stmt{set(b, a)}}}
	if n := Count(body, a); n != 3 {
		t.Errorf("%d times", n)
	}
	ReplaceIn(body, func(x Expr) Expr {
		if x == Expr(a) {
			return To(p, "x")
		}
		return nil
	})
	if Count(body, a) != 1 || Count(body, p) != 2 {
		t.Error("not all were replaced")
	}
}

// A note that has little room left is left out.
func TestDeepNotes(t *testing.T) {
	var body []Stmt
	for depth := range 20 {
		body = []Stmt{&Note{Text: strings.Repeat("long ", 40), Short: true}, &Eval{X: Do("g", Dec(depth))},
			&If{Cond: a, Then: body}}
	}
	p := &Printer{}
	p.Tops([]Top{&Func{Result: "void", Name: "f", Body: body}})
	if text := p.String(); strings.Count(text, "g(") != 20 || strings.Count(text, "long") == 0 ||
		strings.Count(text, "/*") > 12 {
		t.Error(text)
	}
}
