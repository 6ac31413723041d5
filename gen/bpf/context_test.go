package bpf

import (
	"strings"
	"testing"

	"github.com/fastrelay/fastrelay-gen/gen/c"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
)

// newProgram is a program without anything in it.
func newProgram() *program {
	r := &renderer{of: map[*c.Local]any{}}
	return &program{renderer: r, ir: &ir.Program{}, short: "p", locals: map[any]*c.Local{}}
}

// newVariable is an integer of the program.
func (p *program) newVariable(name string) *c.Local {
	v := &ir.Var{Name: name, Type: ir.UintType(64)}
	p.ir.Vars = append(p.ir.Vars, v)
	return p.varLocal(v)
}

// param is a variable as a parameter.
func param(x *c.Local) c.Param { return c.Param{Type: x.Type, Name: x} }

// newLast is a function that returns the first of its parameters.
func newLast(params ...*c.Local) *c.Func {
	f := &c.Func{Result: "int", Name: "last", Params: []c.Param{skbParam}, Body: []c.Stmt{&c.Return{X: params[0]}}}
	for _, x := range params {
		f.Params = append(f.Params, param(x))
	}
	return f
}

// What functions are given becomes members, those that a function has at the same time different ones; what only one
// function has stays a variable of its own.
func TestInContext(t *testing.T) {
	p := newProgram()
	end, other, size := p.newVariable("end"), p.newVariable("end_2"), p.newVariable("both_ends")
	function := func(name string, params []c.Param, body ...c.Stmt) *c.Func {
		return &c.Func{Result: "int", Name: name, Params: append([]c.Param{skbParam}, params...), Body: body}
	}
	both := function("p_both", []c.Param{param(end), param(other)},
		define("__u64", size, c.Join("+", end, other)), &c.Return{X: size})
	entry := &c.Func{Linkage: c.Program, Result: "int", Name: "prog_p", Params: []c.Param{skbParam}, Body: []c.Stmt{
		define(end.Type, end, c.Dec(14)), variable(other.Type, other),
		&c.Assign{To: other, Op: "=", X: c.Dec(34)}, &c.Return{X: c.Do("p_both", skb, end, other)},
	}}
	u := &unit{renderer: p.renderer, programs: []*program{p}, entries: map[*c.Func]bool{entry: true}}
	packet := u.inContext([]*c.Func{both, entry})
	if packet == nil {
		t.Fatal("nothing is given")
	}
	both.NameLocals()
	entry.NameLocals()
	file := &c.Printer{}
	file.Tops([]c.Top{packet, both, entry})
	const want = `
/* What is known of a packet. */
struct packet {
	__u64 end;
	__u64 end_2;
};

static __always_inline int p_both(struct __sk_buff *skb, struct packet *pkt)
{
	__u64 both_ends = pkt->end + pkt->end_2;

	return both_ends;
}

SEC("tc") int prog_p(struct __sk_buff *skb)
{
	struct packet pkt;

	pkt.end = 14;
	pkt.end_2 = 34;
	return p_both(skb, &pkt);
}
`
	if got := file.String(); got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
}

// A function that serves two callers has a variable of each that share a member. That nothing uses the value which the
// one has at first (Idle) doesn't say that the member has none.
func TestSharedMember(t *testing.T) {
	p := newProgram()
	variable := func() *c.Local { return p.newVariable("length") }
	found, given, taken := variable(), variable(), variable()
	flag := c.NewLocal("v6", flagType)
	last := newLast(taken)
	both := &c.Func{Result: "int", Name: "both", Params: []c.Param{skbParam, param(given), param(flag)}, Body: []c.Stmt{
		&c.Declare{Type: "__u64", Vars: []c.Var{{Name: found, Init: c.Num(0), Idle: true}}},
		&c.If{Cond: flag, Then: []c.Stmt{
			&c.Assign{To: found, Op: "=", X: c.Do("find", skb)},
			&c.Return{X: c.Do("last", skb, found)},
		}},
		&c.Return{X: c.Do("last", skb, given)},
	}}
	u := &unit{renderer: p.renderer, programs: []*program{p}, entries: map[*c.Func]bool{}}
	packet := u.inContext([]*c.Func{last, both})
	both.NameLocals()
	file := &c.Printer{}
	file.Tops([]c.Top{packet, both})
	const want = `
/* What is known of a packet. */
struct packet {
	__u64 length;
};

static __always_inline int both(struct __sk_buff *skb, struct packet *pkt, const int v6)
{
	if (v6) {
		pkt->length = find(skb);
		return last(skb, pkt);
	}
	return last(skb, pkt);
}
`
	if got := file.String(); got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
}

// A parameter is a member of its own if what it is given holds a value at the same time as another variable of that
// member: it gets its value where the function is called. A flag says which of two values a caller's function wants.
func TestCopiedMember(t *testing.T) {
	p := newProgram()
	variable := p.newVariable
	options, end, taken := variable("options_end"), variable("end"), variable("end")
	flag := c.NewLocal("v6", flagType)
	last := newLast(taken)
	both := &c.Func{Result: "int", Name: "both", Params: []c.Param{skbParam, param(flag)}, Body: []c.Stmt{
		define("__u64", options, c.Do("first", skb)),
		&c.If{Cond: flag, Then: []c.Stmt{&c.Return{X: c.Do("last", skb, options)}}},
		define("__u64", end, c.Do("second", skb)),
		&c.If{Cond: c.Join("<", end, options), Then: []c.Stmt{&c.Return{X: c.Dec(1)}}},
		&c.Return{X: c.Do("last", skb, end)},
	}}
	u := &unit{renderer: p.renderer, programs: []*program{p}, entries: map[*c.Func]bool{}}
	packet := u.inContext([]*c.Func{last, both})
	both.NameLocals()
	file := &c.Printer{}
	file.Tops([]c.Top{packet, both})
	got := file.String()
	for _, text := range []string{
		"pkt->options_end = first(skb);", "pkt->end = second(skb);", "pkt->options_end = pkt->end;",
		"if (pkt->end < pkt->options_end)",
	} {
		if !strings.Contains(got, text) {
			t.Errorf("no %q in\n%s", text, got)
		}
	}
}

// A parameter that is given a choice of two variables gets it where the function is called. One that is given a number
// is read by nothing.
func TestChosenMember(t *testing.T) {
	p := newProgram()
	variable := p.newVariable
	own, given, taken, unread := variable("own"), variable("given"), variable("taken"), variable("unread")
	flag := c.NewLocal("second", flagType)
	last := newLast(taken, unread)
	both := &c.Func{Result: "int", Name: "both", Params: []c.Param{skbParam, param(given), param(flag)}, Body: []c.Stmt{
		define("__u64", own, c.Do("first", skb)),
		&c.Return{X: c.Do("last", skb, c.Choice{If: flag, Then: given, Else: own}, c.Num(0))},
	}}
	u := &unit{renderer: p.renderer, programs: []*program{p}, entries: map[*c.Func]bool{}}
	packet := u.inContext([]*c.Func{last, both})
	both.NameLocals()
	file := &c.Printer{}
	file.Tops([]c.Top{packet, both})
	got := file.String()
	if want := "= second ? pkt->given : "; !strings.Contains(got, want) || strings.Contains(got, "pkt->unread =") {
		t.Errorf("no %q in, or more than that\n%s", want, got)
	}
}
