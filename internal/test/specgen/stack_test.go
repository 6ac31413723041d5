package specgen_test

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/features"

	"github.com/fastrelay/fastrelay-gen/gen/bpf"
	"github.com/fastrelay/fastrelay-gen/internal/clang"
	"github.com/fastrelay/fastrelay-gen/internal/test/specgen"
	"github.com/fastrelay/fastrelay-gen/internal/testrun"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/bpftest"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
)

// leastFields is how many fields a crowded spec's header has at least.
const leastFields = 8

// crowded is a spec of a kind that the seed chooses, which needs the more stack the more fields its header has.
func crowded(seed uint64, fields int) []byte {
	rnd := rand.New(rand.NewPCG(seed, 23))
	one := func(n int) bool { return rnd.IntN(n) == 0 }
	of := func(texts ...string) string { return texts[rnd.IntN(len(texts))] }
	ip, in := of(`"ip"`, `"ipv4"`), of(`{inner: "ipv4"}`, `{inner: "ip"}`, `{inner: "eth"}`, `"tail"`)
	fan := ""
	if !one(4) {
		var sets []string
		n := rnd.IntN(leastFields)
		for i := range n {
			sets = append(sets, fmt.Sprintf(`{set: "w.f%d": "w.f%d %s r.v"}`, i, (i+1)%n, of("+", "^", "-")))
		}
		sets = append(sets, `{send: {from: "r.from", to: "r.to"}}`)
		fan = `{when: "udp.dst_port == 7000", do: [{fan_out: {group: all: ["udp.src_port"], each: [` +
			strings.Join(sets, ", ") + `]}}]},`
	}
	lookup := of("", `lookup: f: first: ["udp.src"], `,
		`lookup: {f: first: ["udp.src"], g: second: ["ip.src", "w.f0"]}, `)
	do := []string{of(`{push: shim: {id: 7}}`, `{push: {shim: {id: "udp.src_port"}, before: "w"}}`,
		`{push: tail: {a: "udp.src_port"}}, {push: {shim: {id: 7}, before: "w"}}`, `{pop: "w"}`)}
	for i := range rnd.IntN(4) {
		if lookup != "" && do[0] != `{pop: "w"}` {
			do = append(do, fmt.Sprintf(`{set: "w.f%d": "f.v + w.f%d"}`, i, i))
		}
	}
	if end := of(`"pass"`, `{send: {from: "f.from", to: "f.to"}}`, `{send: via: "route"}`); lookup == "" {
		do = append(do, `"pass"`)
	} else {
		do = append(do, end)
	}
	var wide []string
	for i := range fields {
		bits := "64"
		if i >= leastFields && one(6) {
			bits = "32"
		}
		wide = append(wide, fmt.Sprintf(`{name: "f%d", bits: %s}`, i, bits))
	}
	return fmt.Appendf(nil, `name: "crowded"
headers: shim: fields: [{name: "id", bits: 24}]
headers: tail: fields: [{name: "a", bits: 32}]
headers: w: fields: [%s]
tables: {
	first: {key: at: "endpoint", value: {from: "endpoint", to: "endpoint", v: "u32"}}
	second: {key: {a: "ip", b: "u64"}, value: v: "u32"}
}
groups: all: {key: {port: "u16"}, receiver: {from: "endpoint", to: "endpoint", v: "u64"}}
programs: p: {
	hook: "tc/ingress"
	stack: ["eth", %s, "udp", "w", %s]
	rules: [
		%s
		{%sdo: [%s]},
	]
}
`, strings.Join(wide, ", "), ip, in, fan, lookup, strings.Join(do, ", "))
}

// The border between what is refused for its stack and what is built is that of the kernel's verifier: what is built
// loads, and what is refused is refused by the verifier as well, if it is compiled anyway. In between is only what
// older kernels count as more than newer ones do; the refusal says so.
func TestStackLimit(t *testing.T) {
	bpftest.Rights(t)
	code, err := features.LinuxVersionCode()
	if err != nil {
		t.Fatal(err)
	}
	finer := code >= 6<<16+9<<8
	first := needs.Seed(t)
	built, refused, between := 0, 0, 0
	for seed := first; seed < first+uint64(needs.Of(2, 40)); seed++ {
		fields := 12
		for range 4 { // towards the border
			src := crowded(seed, fields)
			_, plan, res := specgen.Plan(src)
			if plan == nil {
				t.Fatalf("seed %d, %d fields, refused before its stack is known: %s\n%s", seed, fields, res.Log, src)
			}
			c, err := bpf.Render(plan, bpf.Options{})
			if err != nil {
				t.Fatalf("%v\n%s", err, src)
			}
			object, _, err := clang.Compile(t.Context(), c.C, c.Header, clang.Options{})
			takes, bytes := true, 0
			var stack *clang.StackError
			if errors.As(err, &stack) {
				object, bytes, takes = stack.Object, stack.Bytes(), stack.Newer > 0 && finer
			} else if err != nil {
				t.Fatalf("%v\n%s", err, src)
			} else if stacks, err := clang.Stacks(object, [2]int{}); err != nil {
				t.Fatal(err)
			} else {
				bytes = stacks["prog_p"]
			}
			switch {
			case stack == nil:
				built++
			case stack.Newer > 0:
				between++
			default:
				refused++
			}
			k, err := testrun.Load(plan, object, nil)
			var verifier *ebpf.VerifierError
			if err == nil {
				k.Close()
			} else if !errors.As(err, &verifier) || !strings.Contains(strings.Join(verifier.Log, "\n"), "stack") {
				t.Fatalf("seed %d, %d fields: %+v\n%s", seed, fields, err, src)
			}
			if (err == nil) != takes {
				t.Errorf("seed %d, %d fields: %d bytes (%v), and the verifier says %v\n%s",
					seed, fields, bytes, stack, err, src)
			}
			if fields = max(leastFields, fields+cmp.Or((512-bytes)/8, 1)); bytes > 512 && fields > leastFields {
				fields--
			}
		}
	}
	t.Logf("%d were built, %d refused, %d would be refused by older kernels only", built, refused, between)
	if built == 0 || refused+between == 0 {
		t.Error("they aren't near the border")
	}
}
