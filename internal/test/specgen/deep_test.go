package specgen_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/fastrelay/fastrelay-gen/gen"
	"github.com/fastrelay/fastrelay-gen/gen/bpf"
	"github.com/fastrelay/fastrelay-gen/gen/glue"
	"github.com/fastrelay/fastrelay-gen/internal/clang"
	"github.com/fastrelay/fastrelay-gen/internal/test/specgen"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/bpftest"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// What an expression may have at most, in the language.
const (
	exprLength = 1024
	exprDepth  = 60 // levels, besides some for what it is put into
)

// deep writes expressions: integers of n steps, each with all of the one before it.
type deep struct{ *rand.Rand }

func (d deep) atom() string {
	return []string{"m.a", "m.b", "m.c", "m.d", "r.v", "setting.s", "3", "0xfedcba9876543210"}[d.IntN(8)]
}

func (d deep) arithmetic() string { return []string{"+", "-", "*", "&", "|", "^", "&^"}[d.IntN(7)] }

func (d deep) comparison() string { return []string{"==", "!=", "<", "<=", ">", ">="}[d.IntN(6)] }

func (d deep) cond() string { return d.atom() + d.comparison() + d.atom() }

// shapes are ways to make an expression one step deeper. Those that begin with a condition stay one.
var shapes = map[string]func(d deep, x string) string{
	"sum":         func(d deep, x string) string { return x + "+" + d.atom() },
	"product":     func(d deep, x string) string { return x + "*" + d.atom() },
	"difference":  func(d deep, x string) string { return x + "-" + d.atom() },
	"bits":        func(d deep, x string) string { return x + []string{"|", "^"}[d.IntN(2)] + d.atom() },
	"parentheses": func(d deep, x string) string { return "(" + x + ")" + d.arithmetic() + d.atom() },
	"to the right": func(d deep, x string) string {
		return d.atom() + d.arithmetic() + "(" + x + ")"
	},
	"shifts": func(d deep, x string) string {
		return fmt.Sprintf("(%s)%s%d", x, []string{"<<", ">>"}[d.IntN(2)], d.IntN(64))
	},
	"quotients": func(d deep, x string) string {
		return fmt.Sprintf("(%s)%s%d", x, []string{"/", "%"}[d.IntN(2)], 1+d.Uint64N(1<<63))
	},
	"inversions": func(d deep, x string) string { return []string{"-", "^"}[d.IntN(2)] + "(" + x + ")" },
	"pick then":  func(d deep, x string) string { return "pick(" + d.cond() + "," + x + "," + d.atom() + ")" },
	"pick else":  func(d deep, x string) string { return "pick(" + d.cond() + "," + d.atom() + "," + x + ")" },
	"pick if": func(d deep, x string) string {
		return "pick((" + x + ")" + d.comparison() + d.atom() + "," + d.atom() + "," + d.atom() + ")"
	},
	"low":       func(d deep, x string) string { return fmt.Sprintf("low(%s+%s,%d)", x, d.atom(), 1+d.IntN(64)) },
	"cond not":  func(_ deep, x string) string { return "!(" + x + ")" },
	"cond and":  func(d deep, x string) string { return x + "&&" + d.cond() },
	"cond or":   func(d deep, x string) string { return x + "||" + d.cond() },
	"cond both": func(d deep, x string) string { return "(" + x + ")" + []string{"&&", "||"}[d.IntN(2)] + d.cond() },
	"cond same": func(d deep, x string) string {
		return "(" + x + ")" + []string{"==", "!="}[d.IntN(2)] + "(" + d.cond() + ")"
	},
	"cond as a side": func(d deep, x string) string { return "(" + d.cond() + ")==(" + x + ")" },
}

// chain takes so many steps of a shape, or as many as an expression has room for.
func (d deep) chain(shape string, n int) string {
	x := d.atom()
	if strings.HasPrefix(shape, "cond") {
		x = d.cond()
	}
	for range n {
		longer := shapes[shape](d, x)
		if len(longer) > exprLength-40 {
			break
		}
		x = longer
	}
	return x
}

// tree is an integer that is deep and wide, of at most so many bytes.
func (d deep) tree(size, depth int) string {
	if size < 60 || depth > exprDepth/2 {
		return d.atom()
	}
	half := func() string { return d.tree((size-40)/2, depth+3) }
	third := func() string { return d.tree((size-40)/3, depth+3) }
	switch d.IntN(6) {
	case 0:
		return "pick(" + third() + d.comparison() + third() + "," + third() + "," + d.atom() + ")"
	case 1:
		return "low(" + d.tree(size-40, depth+3) + ",50)"
	case 2:
		return "-(" + d.tree(size-40, depth+3) + ")"
	}
	return "(" + half() + ")" + d.arithmetic() + "(" + half() + ")"
}

// specOf is a spec with an expression, as what it can be: a condition, or a value and part of a key.
func specOf(x string, cond bool, lets ...string) []byte {
	when := "true"
	if cond {
		when, x = x, "pick("+x+",1,2)"
		if len(x) > exprLength {
			x = "1"
		}
	}
	var actions []string
	for _, l := range lets {
		actions = append(actions, "{let: "+l+"}")
	}
	actions = append(actions, fmt.Sprintf("{set: {\"m.d\": %q}}", x), `"pass"`)
	key := x
	if len(x) > exprLength-20 || len(lets) > 0 {
		key = "m.d"
	}
	return fmt.Appendf(nil, `name: "deep"
headers: m: {
	after: udp: dst_port: 7000
	fields: [{name: "a", bits: 8}, {name: "b", bits: 24}, {name: "c", bits: 32}, {name: "d", bits: 64}]
}
settings: s: {type: "u64", default: 77}
tables: {
	first: {kind: "array", key: at: "u8", value: v: "u64", size: 256}
	second: {key: at: "u32", value: v: "u32"}
}
programs: p: {
	hook: "tc/ingress"
	stack: ["eth", "ip", "udp", "m"]
	lookup: {r: first: ["m.a"], "found?": second: [%q]}
	rules: [{when: %q, do: [%s]}, {do: ["pass"]}]
}
`, "low("+key+",32)", when, strings.Join(actions, ", "))
}

// doubled are values that are each twice the one before.
func doubled(n int) (lets []string, last string) {
	last = "m.c"
	for i := range n {
		name := fmt.Sprint("n", i)
		lets = append(lets, fmt.Sprintf("%s: %q", name, last+"+"+last))
		last = name
	}
	return lets, last
}

// allDeep are specs whose expressions are as deep as the language allows, by what makes them so.
func allDeep(seed uint64) map[string][]byte {
	d := deep{rand.New(rand.NewPCG(seed, 11))}
	out := map[string][]byte{}
	for _, name := range slices.Sorted(maps.Keys(shapes)) {
		n := exprDepth
		if strings.Contains(name, "same") || strings.Contains(name, "side") {
			n = 10 // the verifier follows each comparison both ways, and takes a million instructions
		}
		for ; ; n-- { // a step is one level, or two or three
			out[name] = specOf(d.chain(name, n), strings.HasPrefix(name, "cond"))
			if _, diags := spec.Load("spec.cue", out[name]); diags.Len() == 0 || n == 1 {
				break
			}
		}
	}
	out["tree"] = specOf(d.tree(exprLength, 0), false)
	lets, last := doubled(exprDepth)
	out["lets"] = specOf(last, false, lets...)
	return out
}

// Expressions as long and as deep as the language allows compile, and model and kernel agree on them: what takes twice
// as long for each level would never end.
func TestDeepExpressions(t *testing.T) {
	bpftest.Rights(t)
	tool, err := clang.Find(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	p := &specgen.Pipeline{Tool: tool, Packets: 100}
	first := needs.Seed(t)
	for seed := first; seed < first+uint64(needs.Of(1, 20)); seed++ {
		for name, src := range allDeep(seed) {
			if r := p.Run(context.Background(), src, seed); r.Stage != specgen.Done {
				t.Errorf("%s, seed %d: %s %s: %s\n%s", name, seed, r.Stage, r.Code, r.Text, src)
			}
		}
	}
}

// What compiling takes grows as an expression does: for 16 steps of it twice as much is added as for 8.
func TestDeepExpressionsAreLinear(t *testing.T) {
	cost := func(src []byte) float64 {
		s, diags := spec.Load("spec.cue", src)
		if err := diags.Err(); err != nil {
			t.Fatalf("%v\n%s", err, src)
		}
		return testing.AllocsPerRun(1, func() {
			plan, diags := gen.Compile(s)
			if err := diags.Err(); err != nil {
				t.Fatalf("%v\n%s", err, src)
			}
			if _, err := bpf.Render(plan, bpf.Options{}); err != nil {
				t.Fatal(err)
			}
			if _, err := glue.Render(plan, glue.RenderOptions{Package: "relay", Object: "relay_bpfel.o"}); err != nil {
				t.Fatal(err)
			}
		})
	}
	linear := func(name string, of func(n int) []byte) {
		a, b, c := cost(of(4)), cost(of(8)), cost(of(16))
		t.Logf("%-15s %6.0f %6.0f %6.0f allocations: %.1f times as many more", name, a, b, c, (c-b)/(b-a))
		if c-b > 3*(b-a)+1000 {
			t.Errorf("%s: %.0f allocations for 4 steps, %.0f for 8, %.0f for 16", name, a, b, c)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(shapes)) {
		linear(name, func(n int) []byte {
			d := deep{rand.New(rand.NewPCG(1, 11))}
			return specOf(d.chain(name, n), strings.HasPrefix(name, "cond"))
		})
	}
	linear("lets", func(n int) []byte {
		lets, last := doubled(n)
		return specOf(last, false, lets...)
	})
}
