package c

import "testing"

const (
	a = Ident("a")
	b = Ident("b")
	p = Ident("p")
)

func op(x Expr, op string, y Expr) Expr { return Binary{op, x, y} }

// Parentheses stand where C wants them, and where clang's warnings and the kernel's style do.
func TestPrint(t *testing.T) {
	for _, test := range []struct {
		x    Expr
		want string
	}{
		{Num(255), "255"},
		{Num(256), "0x100"},
		{Num(1 << 32), "0x100000000ULL"},
		{Number{7, Wide}, "7ULL"},
		{Number{300, Amount}, "300"},
		{Number{7, Hex}, "0x7"},
		{Dec(-3), "-3"},
		{Plus(p, 0), "p"},
		{Plus(p, 4), "p + 4"},
		{Plus(p, -4), "p - 4"},
		{op(a, "-", Dec(-4)), "a - -4"},
		{Bytes("ld", 4, Plus(p, 12)), "ld32(p + 12)"},
		{Address(In(To(p, "hop"), "state")), "&p->hop.state"},
		{To(Address(In(p, "hop")), "state"), "p.hop.state"},
		{Cast{"void *", Plus(p, 1)}, "(void *)(p + 1)"},
		{Plus(Cast{"void *", Address(To(p, "x"))}, 1), "(void *)&p->x + 1"},
		{Index{To(p, "x"), Dec(2)}, "p->x[2]"},
		{Not(a), "!a"},
		{Not(op(a, "==", b)), "!(a == b)"},
		{Unary{"-", Unary{"-", a}}, "-(-a)"},

		{Join("+", a, b, a), "a + b + a"},
		{op(a, "-", op(b, "+", a)), "a - (b + a)"},
		{op(op(a, "-", b), "+", a), "a - b + a"},
		{op(op(a, "*", b), "+", a), "a * b + a"},
		{op(op(a, "+", b), "*", a), "(a + b) * a"},
		{op(op(a, "/", b), "/", a), "(a / b) / a"},
		{op(op(a, "+", Num(1)), ">", b), "a + 1 > b"},
		{op(op(a, "&", Num(1)), "==", Num(0)), "(a & 1) == 0"},
		{op(op(a, ">>", Dec(4)), "&", Num(3)), "(a >> 4) & 3"},
		{op(op(a, "<<", Dec(8)), "|", b), "(a << 8) | b"},
		{op(op(a, "+", b), "<<", Dec(8)), "(a + b) << 8"},
		{op(op(a, "&", b), "|", a), "(a & b) | a"},
		{op(op(a, "==", b), "==", a), "(a == b) == a"},

		{Join("||", a, op(a, "==", b)), "a || a == b"},
		{Join("||", a, Join("&&", a, b)), "a || (a && b)"},
		{Join("&&", Join("||", a, b), a), "(a || b) && a"},
		{Join("&&", a, Join("&&", a, b)), "a && a && b"},
		{Join("&&", op(a, "&", b), a), "(a & b) && a"},

		{Choice{op(a, "==", b), a, op(a, "+", b)}, "a == b ? a : a + b"},
		{Choice{Join("&&", a, b), a, b}, "(a && b) ? a : b"},
		{Choice{a, b, Choice{b, a, a}}, "a ? b : b ? a : a"},
		{Choice{Choice{a, b, a}, Choice{a, b, a}, b}, "(a ? b : a) ? (a ? b : a) : b"},
		{op(Choice{a, b, a}, "+", b), "(a ? b : a) + b"},
		{Do("f", Choice{a, b, a}, op(a, "+", b)), "f(a ? b : a, a + b)"},
	} {
		if got := test.x.String(); got != test.want {
			t.Errorf("%q, want %q", got, test.want)
		}
	}
}

// Trees are the same if their parts are, in the same order; how a number is written makes no difference.
func TestEqual(t *testing.T) {
	different := []Expr{
		a, b, Num(1), Num(2), Do("a"), Do("a", a), Do("a", a, b), Do("a", b, a), To(p, "a"), In(p, "a"), Index{p, a},
		Not(a), Address(a), Cast{"__u64", a}, Cast{"__u32", a}, op(a, "+", b), op(a, "-", b), op(b, "+", a),
		Choice{a, b, p}, Choice{a, p, b}, Join("+", a, b, p), op(a, "+", op(b, "+", p)), nil,
	}
	for i, x := range different {
		for j, y := range different {
			if Equal(x, y) != (i == j) {
				t.Errorf("%v and %v: %v", x, y, Equal(x, y))
			}
		}
	}
	if !Equal(Num(300), Number{300, Amount}) {
		t.Error("the same number in two forms")
	}
}

func TestReplace(t *testing.T) {
	x := Do("f", op(a, "+", b), To(a, "b"))
	y := Replace(x, func(x Expr) Expr {
		if x == Expr(a) {
			return p
		}
		return nil
	})
	if y.String() != "f(p + b, p->b)" || x.String() != "f(a + b, a->b)" {
		t.Errorf("%v became %v", x, y)
	}
	if terms := Terms("+", Join("+", a, b, p)); len(terms) != 3 || terms[2] != Expr(p) {
		t.Errorf("the terms are %v", terms)
	}
}
