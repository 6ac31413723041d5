package c

import (
	"strings"
	"testing"
)

// meetingRules let all that the tests have be unified.
var meetingRules = MeetingRules{
	SameParam: func(x, y *Local) bool { return true },
	Spare:     func(p Param) bool { return p.Type.IsScalar() },
	Integer:   func(name string) bool { return strings.HasPrefix(name, "be") },
	Constant:  func(x Ident) bool { return string(x) == strings.ToUpper(string(x)) },
}

func function(params []Param, body ...Stmt) *Func {
	return &Func{Result: "int", Name: "f", Params: params, Body: body}
}

func ret(x Expr) Stmt { return &Return{X: x} }

func when(cond Expr, then ...Stmt) Stmt { return &If{Cond: cond, Then: then} }

func call(name string, args ...Expr) Stmt { return &Eval{X: Do(name, args...)} }

func prepared(f *Func) *Prepared { return Prepare(f, meetingRules.Constant) }

// joined is the function that two become, as text.
func joined(t *testing.T, m *Meeting) string {
	t.Helper()
	f := m.Join("both")
	if f == nil {
		t.Fatal("the two can't be one")
	}
	f.NameLocals()
	p := &Printer{}
	p.Tops([]Top{f})
	return p.String()
}

// What two functions do stands once; what they differ in is under the flag, or chosen by it.
func TestMeet(t *testing.T) {
	data := NewLocal("data", "void *")
	four, six := NewLocal("ipv4", ""), NewLocal("ipv6", "")
	end4, end6 := NewLocal("end", "__u64"), NewLocal("end", "__u64")
	sum4, sum6 := NewLocal("sum", ""), NewLocal("sum", "")
	key := func(init Expr) Stmt {
		return &Declare{Type: "struct key", Vars: []Var{{Name: Ident("key"), Tail: "[1]", Init: init}}}
	}
	a := function([]Param{{Type: "void *", Name: data}, {Type: "__u64", Name: end4}},
		declare("struct hdr_ipv4 *", four, Plus(data, 14)),
		key(Init{}),
		when(Binary{">", end4, Dec(34)}, ret(Do("fr_punt", Ident("FAMILY")))),
		call("put_v4", To(four, "src")),
		declare("__u64", sum4, Do("be16", Address(To(four, "total_length")))),
		when(Binary{"<", sum4, Dec(7)}, &Note{Text: "short"}, call("count", Dec(1)), ret(Dec(2))),
		ret(Do("send_ipv4", sum4)),
	)
	more := Ident("more")
	b := function([]Param{{Type: "void *", Name: data}, {Type: "__u64", Name: end6}, {Type: "__u64", Name: more}},
		declare("struct hdr_ipv6 *", six, Plus(data, 14)),
		key(nil),
		when(Binary{">", end6, Dec(54)}, ret(Do("fr_punt", Ident("LENGTH")))),
		call("put_v6", To(six, "src")),
		declare("__u64", sum6, Do("be16", Address(To(six, "payload_length")))),
		when(Binary{"<", sum6, Dec(7)}, &Note{Text: "short"}, call("count", Dec(1)), call("more", more), ret(Dec(2))),
		ret(Do("send_ipv6", sum6)),
	)
	flag := NewLocal("v6", "const int")
	m := Meet(prepared(a), prepared(b), flag, meetingRules)
	if m == nil {
		t.Fatal("the two have nothing in common")
	}
	const want = `
static __always_inline int both(void *data, __u64 end, __u64 more, const int v6)
{
	struct hdr_ipv4 *ipv4 = data + 14;
	struct hdr_ipv6 *ipv6 = data + 14;
	struct key key[1];

	if (!v6)
		__builtin_memset(&key, 0, sizeof(key));
	if (end > (v6 ? 54 : 34))
		return fr_punt(v6 ? LENGTH : FAMILY);
	__u64 sum;
	if (v6) {
		put_v6(ipv6->src);
		sum = be16(&ipv6->payload_length);
	} else {
		put_v4(ipv4->src);
		sum = be16(&ipv4->total_length);
	}
	if (sum < 7) {
		/* short */
		count(1);
		if (v6)
			more(more);
		return 2;
	}
	if (v6)
		return send_ipv6(sum);
	return send_ipv4(sum);
}
`
	if got := joined(t, m); got != want {
		t.Errorf("%s\nwant:%s", got, want)
	}
	text := func(args []Expr) string { return Do("both", args...).String() }
	if got := text(m.Args(0, []Expr{Ident("d"), Ident("e")})); got != "both(d, e, 0, 0)" {
		t.Errorf("instead of the first one: %s", got)
	}
	if got := text(m.Args(1, []Expr{Ident("d"), Ident("e"), Ident("m")})); got != "both(d, e, m, 1)" {
		t.Errorf("instead of the second one: %s", got)
	}
}

// Functions that differ in nothing need no flag. One that both can tell is no parameter.
func TestMeetWithoutFlag(t *testing.T) {
	x, y := NewLocal("x", "__u64"), NewLocal("y", "__u64")
	a := function([]Param{{Type: "__u64", Name: x}}, call("count", x), ret(Dec(1)))
	b := function([]Param{{Type: "__u64", Name: y}}, call("count", y), ret(Dec(1)))
	const same = `
static __always_inline int both(__u64 x)
{
	count(x);
	return 1;
}
`
	if got := joined(t, Meet(prepared(a), prepared(b), NewLocal("flag", "int"), meetingRules)); got != same {
		t.Errorf("%s\nwant:%s", got, same)
	}
	b = function([]Param{{Type: "__u64", Name: y}}, call("count", y), ret(Dec(2)))
	const told = `
static __always_inline int both(__u64 x)
{
	count(x);
	return PROG == 7 ? 2 : 1;
}
`
	cond := Binary{"==", Ident("PROG"), Dec(7)}
	if got := joined(t, Meet(prepared(a), prepared(b), cond, meetingRules)); got != told {
		t.Errorf("%s\nwant:%s", got, told)
	}
}

// What a function declares where the two differ, and both use later, is declared in front.
func TestMeetDeclaresInFront(t *testing.T) {
	x, y := NewLocal("x", ""), NewLocal("y", "")
	a := function(nil, call("only_a"), declare("__u64", x, Do("one")), call("count", x))
	b := function(nil, call("only_b"), declare("__u64", y, Do("other", Dec(1))), call("count", y))
	const want = `
static __always_inline int both(int flag)
{
	__u64 x;

	if (flag) {
		only_b();
		x = other(1);
	} else {
		only_a();
		x = one();
	}
	count(x);
}
`
	if got := joined(t, Meet(prepared(a), prepared(b), NewLocal("flag", "int"), meetingRules)); got != want {
		t.Errorf("%s\nwant:%s", got, want)
	}
}

// Functions that can't be one.
func TestMeetRefuses(t *testing.T) {
	x, y, z := NewLocal("x", "__u64"), NewLocal("y", "__u64"), NewLocal("z", "struct fr_csum")
	one := func(x *Local) []Param { return []Param{{Type: x.Type, Name: x}} }
	apart := meetingRules
	apart.SameParam = func(x, y *Local) bool { return x == y }
	apart.Spare = func(Param) bool { return false }
	flag := NewLocal("flag", "int")
	for name, m := range map[string]*Meeting{
		"other heads": Meet(prepared(function(nil)),
			prepared(&Func{Result: "long", Name: "f"}), flag, meetingRules),
		"a structure that only one is given": Meet(prepared(function(nil, ret(Dec(1)))),
			prepared(function(one(z), call("use", z), ret(Dec(1)))), flag, meetingRules),
		"parameters that some function has both of": Meet(prepared(function(one(x), call("use", x))),
			prepared(function(one(y), call("use", y))), flag, apart),
	} {
		if m != nil {
			t.Errorf("%s: joined", name)
		}
	}
	// A constant can't be given a value later.
	a := function(nil, declare("const __u32", x, Do("one")), call("a"), call("use", x))
	b := function(nil, declare("const __u32", y, Do("other", Dec(1))), call("b"), call("use", y))
	if m := Meet(prepared(a), prepared(b), flag, meetingRules); m != nil && m.Join("both") != nil {
		t.Error("a constant is declared in front")
	}
}

// A value may be chosen by the flag in a condition that is always computed, not in one that another condition guards.
func TestMeetConditions(t *testing.T) {
	x, y := NewLocal("x", "__u64"), NewLocal("y", "__u64")
	less := func(x Expr, n int) Expr { return Binary{"<", x, Dec(n)} }
	function := func(x *Local, first, second int) *Func {
		return function([]Param{{Type: "__u64", Name: x}},
			when(Binary{"||", less(x, first), less(x, second)}, ret(Dec(2))), call("count", x), ret(Dec(1)))
	}
	flag := NewLocal("flag", "const int")
	for _, test := range []struct {
		first, second int
		want          string
	}{
		{5, 9, `
static __always_inline int both(__u64 x, const int flag)
{
	if (x < (flag ? 5 : 4) || x < 9)
		return 2;
	count(x);
	return 1;
}
`},
		{4, 8, `
static __always_inline int both(__u64 x, const int flag)
{
	if (flag) {
		if (x < 4 || x < 8)
			return 2;
	} else if (x < 4 || x < 9) {
		return 2;
	}
	count(x);
	return 1;
}
`},
	} {
		m := Meet(prepared(function(x, 4, 9)), prepared(function(y, test.first, test.second)), flag, meetingRules)
		if got := joined(t, m); got != test.want {
			t.Errorf("%s\nwant:%s", got, test.want)
		}
	}
}

// What one function declares and the other one doesn't has a value in both: an array as well.
func TestMeetArray(t *testing.T) {
	said, n := NewLocal("said", ""), NewLocal("n", "")
	a := function(nil, declare("__u64", n, Do("one")), call("a"), call("use", n), call("z"))
	b := function(nil, &Declare{Type: "__u64", Vars: []Var{{Name: said, Tail: "[2]"}}}, call("fill", said), call("a"),
		call("use", said), call("z"))
	m := Meet(prepared(a), prepared(b), NewLocal("flag", "const int"), meetingRules)
	if m == nil {
		t.Fatal("the two have nothing in common")
	}
	if got := joined(t, m); strings.Contains(got, "[2] = 0;") || !strings.Contains(got, "__u64 said[2]") {
		t.Errorf("clang doesn't take this:%s", got)
	}
}
