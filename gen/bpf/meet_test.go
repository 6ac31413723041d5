package bpf

import (
	"slices"
	"strings"
	"testing"

	"github.com/fastrelay/fastrelay-gen/gen/c"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
)

// unitOf is a unit of programs that have such functions; the last one of each is what the kernel calls.
func unitOf(programs map[string][]*c.Func, order ...string) *unit {
	r := &renderer{
		of: map[*c.Local]any{}, apart: map[*c.Func]bool{}, names: map[string]bool{}, bases: map[*ir.Program]c.Ident{},
	}
	u := &unit{renderer: r}
	for _, name := range order {
		p := &program{renderer: r, ir: &ir.Program{}, short: name, locals: map[any]*c.Local{}}
		if len(order) > 1 {
			r.bases[p.ir] = c.Ident("PROG_" + strings.ToUpper(name))
			r.names["PROG_"+strings.ToUpper(name)] = true
		}
		var list []c.Top
		for _, f := range programs[name] {
			list = append(list, f)
		}
		u.add(p, programs[name][len(programs[name])-1], list)
	}
	return u
}

func inlined(name string, body ...c.Stmt) *c.Func {
	return &c.Func{Result: "int", Name: name, Params: []c.Param{skbParam}, Body: body}
}

func kernels(name string, body ...c.Stmt) *c.Func {
	return &c.Func{Linkage: c.Program, Result: "int", Name: name, Params: []c.Param{skbParam}, Body: body}
}

// work is so much that it is worth joining, and differs in a number.
func work(n int, more ...c.Stmt) (out []c.Stmt) {
	for _, name := range []string{"one", "two", "three", "four", "five", "six"} {
		out = append(out, &c.Eval{X: c.Do(name, skb)})
	}
	return append(append(out, &c.Eval{X: c.Do("seven", c.Dec(n))}), more...)
}

func text(tops ...c.Top) string {
	file := &c.Printer{}
	file.Tops(tops)
	return file.String()
}

// Functions of IPv4 and IPv6 become one, and callers say which it is.
func TestMeet(t *testing.T) {
	up := func(reason string) c.Stmt { return &c.Return{X: c.Do("fr_punt", skb, c.Ident(reason))} }
	four, six := inlined("p_ipv4", work(14, up("A"))...), inlined("p_ipv6", work(34, up("A"))...)
	entry := kernels("prog_p",
		&c.If{Cond: c.Ident("is_v4"), Then: []c.Stmt{&c.Return{X: c.Do("p_ipv4", skb)}}},
		&c.Return{X: c.Do("p_ipv6", skb)})
	u := unitOf(map[string][]*c.Func{"p": {six, four, entry}}, "p")
	u.passes()
	const want = `
static __always_inline int p_ip(struct __sk_buff *skb, const int v6)
{
	one(skb);
	two(skb);
	three(skb);
	four(skb);
	five(skb);
	six(skb);
	seven(v6 ? 34 : 14);
	return fr_punt(skb, A);
}

SEC("tc") int prog_p(struct __sk_buff *skb)
{
	if (is_v4)
		return p_ip(skb, 0);
	return p_ip(skb, 1);
}
`
	if got := text(u.sections[0]...); got != want {
		t.Errorf("%s\nwant:%s", got, want)
	}
}

// Functions of two programs become one that stands in front of both. Each program says where it counts.
func TestMeetPrograms(t *testing.T) {
	programs := map[string][]*c.Func{}
	for i, name := range []string{"a", "b"} {
		where := c.Ident("PROG_" + strings.ToUpper(name))
		count := &c.Return{X: c.Do("fr_punt", skb, c.Binary{Op: "+", X: where, Y: c.Num(1)})}
		programs[name] = []*c.Func{
			inlined(name+"_ip", work(14+i, count)...),
			kernels("prog_"+name, &c.Return{X: c.Do(name+"_ip", skb)}),
		}
	}
	u := unitOf(programs, "a", "b")
	u.passes()
	const want = `
/* What is known of a packet. */
struct packet {
	__u32 prog;
};

static __always_inline int shared_ip(struct __sk_buff *skb, struct packet *pkt)
{
	one(skb);
	two(skb);
	three(skb);
	four(skb);
	five(skb);
	six(skb);
	seven(pkt->prog == PROG_B ? 15 : 14);
	return fr_punt(skb, pkt->prog + 1);
}
`
	if got := text(u.shared...); got != want {
		t.Errorf("%s\nwant:%s", got, want)
	}
	const entry = `
SEC("tc") int prog_b(struct __sk_buff *skb)
{
	struct packet pkt;

	pkt.prog = PROG_B;
	return shared_ip(skb, &pkt);
}
`
	if got := text(u.sections[1]...); got != entry {
		t.Errorf("%s\nwant:%s", got, entry)
	}
}

// What isn't joined: functions of one program that want other lengths of the packet, what the kernel calls, and
// functions that differ in most.
func TestMeetRefuses(t *testing.T) {
	begin, last := c.To(skb, "data"), c.To(skb, "data_end")
	end := func(n int) c.Stmt {
		return &c.If{Cond: exceeds(c.Plus(data, n), last), Then: []c.Stmt{&c.Return{X: c.Num(2)}}}
	}
	for name, f := range map[string][2][]c.Stmt{
		"lengths":  {work(1, end(20), &c.Return{X: c.Num(1)}), work(1, end(40), &c.Return{X: c.Num(1)})},
		"too much": {work(1, work(2)...), append(work(1), &c.Eval{X: c.Do("other")}, &c.Return{X: c.Ident("skb")})[5:]},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := inlined("p_a", f[0]...), inlined("p_b", f[1]...)
			for _, f := range []*c.Func{a, b} {
				f.Params = append(f.Params, c.Param{Type: data.Type, Name: data})
			}
			entry := kernels("prog_p", define(data.Type, data, begin), &c.Eval{X: c.Do("p_a", skb, data)},
				&c.Return{X: c.Do("p_b", skb, data)})
			u := unitOf(map[string][]*c.Func{"p": {a, b, entry}}, "p")
			u.passes()
			if got := len(u.sections[0]); got != 3 {
				t.Errorf("%d functions:\n%s", got, text(u.sections[0]...))
			}
		})
	}
}

// What a function asks about the program more than once is a variable; of a set of programs and its complement the
// smaller one is asked for.
func TestAskProgram(t *testing.T) {
	is := func(names ...string) c.Expr {
		var list []c.Expr
		for _, name := range names {
			list = append(list, c.Binary{Op: "==", X: base, Y: c.Ident("PROG_" + name)})
		}
		return c.Join("||", list...)
	}
	programs := map[string][]*c.Func{}
	for _, name := range []string{"a", "b", "c", "d"} {
		programs[name] = []*c.Func{kernels("prog_" + name)}
	}
	for name, tt := range map[string]struct {
		asks []c.Expr
		want string
	}{
		"once":      {[]c.Expr{is("A", "B", "D"), c.Not(is("A"))}, "prog != PROG_C, prog != PROG_A"},
		"twice":     {[]c.Expr{is("B"), is("B")}, "is_b = prog == PROG_B: is_b, is_b"},
		"all but 1": {[]c.Expr{is("B", "C", "D"), is("A")}, "is_a = prog == PROG_A: !is_a, is_a"},
		"half": {
			[]c.Expr{is("A", "B"), is("D", "C")},
			"is_c_or_d = prog == PROG_C || prog == PROG_D: !is_c_or_d, is_c_or_d",
		},
		"with something else": {
			[]c.Expr{c.Join("||", is("A", "B"), skb), c.Not(is("C", "D"))},
			"is_c_or_d = prog == PROG_C || prog == PROG_D: !is_c_or_d || skb, !is_c_or_d",
		},
		"all":             {[]c.Expr{is("A", "B", "C", "D"), c.Not(is("A", "B", "C", "D"))}, "1, 0"},
		"another program": {[]c.Expr{is("E"), is("E")}, "prog == PROG_E, prog == PROG_E"},
	} {
		t.Run(name, func(t *testing.T) {
			u := unitOf(programs, "a", "b", "c", "d")
			f := &c.Func{Body: []c.Stmt{&c.Eval{X: c.Do("f", tt.asks...)}}}
			u.askProgram(f, slices.Clone(u.programs))
			var got []string
			c.Each(f.Body, func(s c.Stmt) {
				switch s := s.(type) {
				case *c.Declare:
					got = append(got, s.Vars[0].Name.String()+" = "+s.Vars[0].Init.String()+":")
				case *c.Eval:
					text := s.X.String()
					got = append(got, text[len("f("):len(text)-1])
				}
			})
			if got := strings.Join(got, " "); got != tt.want {
				t.Errorf("%s\nwant %s", got, tt.want)
			}
		})
	}
}
