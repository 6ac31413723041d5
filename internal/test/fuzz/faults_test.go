package fuzz_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/fastrelay/fastrelay-gen/gen"
	"github.com/fastrelay/fastrelay-gen/gen/bpf"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/clang"
	"github.com/fastrelay/fastrelay-gen/internal/test/fuzz"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/bpftest"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/skbfacts"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// A fault is planted where the kernel's side or the model's is made: the first match of old becomes new.
type fault struct {
	// "helper": fastrelay.h; "back end": what it takes a plan for; "code": the C; "model": a file of package sim
	where string
	spec  string // the spec whose packets show it
	what  string
	old   string // a regular expression
	new   string
	file  string              // "model": the file
	frame bool                // the programs run at XDP, too
	infer bool                // the program infers where checksums are partial, as on a kernel that doesn't say
	plan  func(*ir.Plan) bool // "back end": the plan that it renders instead; false: there is no place for the fault
}

// faultPackets is within how many packets a fault has to be found, with faultSeed.
const faultPackets, faultSeed = 120_000, 1

// Random packets find every fault that is planted: a comparison that finds nothing has to mean that there is nothing.
// Most are found by those packets that make test sends.
func TestPlantedFaults(t *testing.T) {
	needs.All(t)
	bpftest.Rights(t)
	caught, quick := 0, 0
	faults := allFaults()
	for i, f := range faults {
		name := fmt.Sprintf("%02d %s: %s", i+1, f.where, f.what)
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			find := func(packets int) string {
				if f.where == "model" {
					return inModel(t, f, packets)
				}
				return inKernel(t, f, packets)
			}
			text := find(quickPackets)
			if text != "" {
				quick++
			} else if text = find(faultPackets); text == "" {
				t.Errorf("%s (%s): not caught", name, f.spec)
				return
			} else {
				t.Logf("make test doesn't find it alone")
			}
			caught++
			t.Logf("%s (%s): caught: %s", name, f.spec, text)
		})
	}
	t.Logf("%d of %d faults caught, %d of them by the packets of make test", caught, len(faults), quick)
	if 10*quick < 9*len(faults) {
		t.Errorf("the packets of make test find only %d of %d faults", quick, len(faults))
	}
	if len(faults) < 100 {
		t.Errorf("only %d faults are planted", len(faults))
	}
}

func allFaults() []fault {
	return slices.Concat(helperFaults, backEndFaults, fanOutFaults, fanOutCodeFaults, ingressFaults, tunnelFaults,
		frameFaults, congestionFaults, modelFaults)
}

// The text that a fault is planted into is there, so that who changes it learns of the fault at once, and not from the
// long run that looks for all of them.
func TestFaultsHavePlaces(t *testing.T) {
	sources := map[string]*bpf.Source{}
	for _, f := range slices.Concat(allFaults(), liveFaults) {
		if f.where != "helper" && f.where != "code" {
			continue
		}
		t.Run(f.what, func(t *testing.T) {
			key := fmt.Sprint(f.spec, f.frame)
			src := sources[key]
			if src == nil {
				var err error
				if src, err = bpf.Render(f.planned(t).plan, bpf.Options{}); err != nil {
					t.Fatal(err)
				}
				sources[key] = src
			}
			if f.where == "helper" {
				plant(t, f, src.Header)
			} else {
				plant(t, f, src.C)
			}
		})
	}
}

func specFile(t *testing.T, name string) string {
	t.Helper()
	for _, file := range liveCorpus() {
		if filepath.Base(filepath.Dir(file)) == name {
			return file
		}
	}
	t.Fatalf("there is no spec %q", name)
	return ""
}

// plant replaces the first match; a fault that has no place any more is a mistake in the list.
func plant(t *testing.T, f fault, text string) string {
	t.Helper()
	re := regexp.MustCompile(f.old)
	at := re.FindStringSubmatchIndex(text)
	if at == nil {
		t.Fatalf("nothing matches %q any more", f.old)
	}
	new := re.ExpandString(nil, f.new, text, at)
	return text[:at[0]] + string(new) + text[at[1]:]
}

// planned is the spec whose packets show the fault.
func (f fault) planned(t *testing.T) compiled {
	t.Helper()
	file := specFile(t, f.spec)
	if !f.frame {
		return planned(t, file)
	}
	c, _ := atXDP(t, file)
	return c
}

// inKernel compiles a spec with a fault in its C, and returns how it shows.
func inKernel(t *testing.T, f fault, packets int) string {
	t.Helper()
	c, plan := f.planned(t), f.planned(t).plan
	if f.plan != nil && !f.plan(plan) {
		t.Fatal("the plan has no place for the fault any more")
	}
	src, err := bpf.Render(plan, bpf.Options{})
	if err != nil {
		t.Fatal(err)
	}
	switch f.where {
	case "helper":
		src.Header = plant(t, f, src.Header)
	case "code":
		src.C = plant(t, f, src.C)
	}
	object, _, err := clang.Compile(context.Background(), src.C, src.Header, clang.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if f.infer {
		skbfacts.Allowed = skbfacts.None
		defer func() { skbfacts.Allowed = skbfacts.All }()
	}
	r, err := fuzz.Run(context.Background(), fuzz.Config{
		Spec: c.spec, Plan: c.plan, Object: object, Seed: faultSeed, Packets: packets, Quick: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	if r.Difference == nil {
		return ""
	}
	return r.Difference.Text
}

// planOf compiles a spec to a plan of its own.
func planOf(t *testing.T, file string) *ir.Plan {
	t.Helper()
	s, diags := spec.LoadFile(file)
	if err := diags.Err(); err != nil {
		t.Fatal(err)
	}
	plan, diags := gen.Compile(s)
	if err := diags.Err(); err != nil {
		t.Fatal(err)
	}
	return plan
}

// inModel runs a comparison with a fault in the model's source, and returns how it shows.
func inModel(t *testing.T, f fault, packets int) string {
	t.Helper()
	file, err := filepath.Abs(filepath.Join("../../../sim", f.file))
	if err != nil {
		t.Fatal(err)
	}
	src, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	faulty, overlay := filepath.Join(dir, "faulty.go"), filepath.Join(dir, "overlay.json")
	replace, err := json.Marshal(map[string]map[string]string{"Replace": {file: faulty}})
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string][]byte{faulty: []byte(plant(t, f, string(src))), overlay: replace} {
		if err := os.WriteFile(name, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("go", "test", "-vet=off", "-count=1", "-overlay", overlay, "-run",
		"^TestKernelAgrees$/^"+f.spec+"$", ".",
		"-args", "-packets", fmt.Sprint(packets), "-found", dir, "-quick")
	cmd.Env = append(os.Environ(), fmt.Sprintf("FASTRELAY_TEST_SEED=%d", faultSeed))
	out, err := cmd.CombinedOutput()
	if err == nil {
		return ""
	}
	_, text, found := strings.Cut(string(out), "differ: ")
	if !found {
		t.Fatalf("%v\n%s", err, out)
	}
	text, _, _ = strings.Cut(text, "\n")
	return text
}

var helperFaults = []fault{
	{where: "helper", spec: "turn", what: "sums lose their upper half",
		old: `__u32 n = \(s \+ \(s << 32 \| s >> 32\)\) >> 32;`, new: `__u32 n = s;`},
	{where: "helper", spec: "turn", what: "sums lose a carry", old: `return \(n \+ \(n << 16 \| n >> 16\)\) >> 16;`,
		new: `return n + (n >> 16);`},
	{where: "helper", spec: "turn", what: "16-bit integers are not swapped", old: `return bpf_htons\(ld16\(p\)\);`,
		new: `return ld16(p);`},
	{where: "helper", spec: "learn", what: "32-bit integers are not swapped", old: `return bpf_htonl\(ld32\(p\)\);`,
		new: `return ld32(p);`},
	{where: "helper", spec: "varint", what: "64-bit integers are not swapped",
		old: `return bpf_cpu_to_be64\(ld64\(p\)\);`, new: `return ld64(p);`},
	{where: "helper", spec: "turn", what: "mapped addresses are marked in the wrong place",
		old: `st16\(dst \+ 10, 0xFFFF\);`, new: `st16(dst + 8, 0xFFFF);`},
	{where: "helper", spec: "gate", what: "IPv4 addresses begin 2 bytes too early", old: `memcpy\(dst \+ 12, &addr`,
		new: `memcpy(dst + 10, &addr`},
	{where: "helper", spec: "turn", what: "reasons count no bytes", old: `r->bytes \+= len;`, new: ``},
	{where: "helper", spec: "turn", what: "reasons count packets twice", old: `r->packets\+\+;`,
		new: `r->packets += 2;`},
	{where: "helper", spec: "turn", what: "what passes to the stack is dropped", old: `return TC_ACT_UNSPEC;`,
		new: `return TC_ACT_SHOT;`},
	{where: "helper", spec: "gate", what: "what is dropped passes to the stack", old: `return TC_ACT_SHOT;`,
		new: `return TC_ACT_UNSPEC;`},
	{where: "helper", spec: "turn", what: "a lapsed lease forwards", old: `return l && now < [^;]*;`,
		new: `return l != NULL;`},
	{where: "helper", spec: "turn", what: "a session's generation is ignored",
		old: ` && \*\(volatile __u32 \*\)&s->gen == gen`, new: ``},
	{where: "helper", spec: "turn", what: "generation 0 counts as open", old: ` && gen && `, new: ` && `},
	{where: "helper", spec: "turn", what: "a session's deadline is ignored",
		old: ` &&\s+now < \*\(volatile __u64 \*\)&s->deadline;`, new: `;`},
	{where: "helper", spec: "turn", what: "uses count for the first row", old: `u->rows\[row\]\.packets\+\+;`,
		new: `u->rows[0].packets++;`},
	{where: "helper", spec: "turn", what: "the reasons of two ends of routes are exchanged",
		old: `unreachable \+ state : other;`, new: `unreachable + 5 - state : other;`},
	{where: "helper", spec: "turn", what: "the last use is not noted", old: `u->last = now;`, new: ``},
	{where: "helper", spec: "gate", what: "shared counters count twice", old: `__sync_fetch_and_add\(v, by\);`,
		new: `__sync_fetch_and_add(v, 2 * by);`},
	{where: "helper", spec: "gate", what: "counter 0 counts", old: `if \(by && index && v\)`, new: `if (v)`},
	{where: "helper", spec: "quota", what: "shared counters read one more",
		old: `return index && v \? \*\(volatile __u64 \*\)v`, new: `return index && v ? 1 + *(volatile __u64 *)v`},
	{where: "helper", spec: "learn", what: "named counters are set, not added to", old: `\*v \+= by;`, new: `*v = by;`},
	{where: "helper", spec: "varint", what: "varints of 2 bytes keep a bit of their size", old: `be16\(p\) & 0x3FFF`,
		new: `be16(p) & 0x7FFF`},
	{where: "helper", spec: "varint", what: "varints of 8 bytes are taken for 4", old: `return 8;`, new: `return 4;`},
	{where: "helper", spec: "turn", what: "8 bytes count as 4 in sums",
		old: `return \(v & 0xFFFFFFFF\) \+ \(v >> 32\);`, new: `return v & 0xFFFFFFFF;`},
	{where: "helper", spec: "turn", infer: true, what: "a partial sum forgets the pseudo-header", old: `- sum - diff`,
		new: `- sum`},
	{where: "helper", spec: "credits", what: "a credit's floor is ignored", old: `limit -= cost \+ floor;`,
		new: `limit -= cost;`},
	{where: "helper", spec: "credits", what: "a credit's last unit is kept", old: `if \(spent > fr_copy\(limit\)\)`,
		new: `if (spent >= fr_copy(limit))`},
	{where: "helper", spec: "credits", what: "refused packets count for the most urgent level",
		old: `&c->refused\[level\]`, new: `&c->refused[0]`},
	{where: "helper", spec: "credits", what: "what is given back is taken once more", old: `&c->spent, -cost`,
		new: `&c->spent, cost`},
	{
		where: "helper", spec: "effects", what: "credit 0 is a credit",
		old: `if \(!c \|\| !credit\)(\s*return FR_REFUSED;\s*limit)`, new: `if (!c)$1`,
	},
	{where: "helper", spec: "bucket", what: "a bucket never fills up", old: `if \(from < spent\)(\s*from = spent;)`,
		new: `$1`},
	{where: "helper", spec: "bucket", what: "a burst counts in nanoseconds", old: `\(burst - floor\) \* 1000000000`,
		new: `(burst - floor)`},
	{where: "helper", spec: "overdraft", what: "what is overdrawn isn't spent",
		old: `__sync_fetch_and_add\(&c->spent, cost\);(\s*return cost;)`, new: `$1`},
	{where: "helper", spec: "overdraft", what: "an overdrawn bucket takes no time",
		old: `(fr_overdraw_timed\([\s\S]*?spent, from) \+ takes\)`, new: `$1)`},
	{
		where: "helper", spec: "numbers", what: "counter 0 counts",
		old: `return index && v \? __sync_fetch_and_add\(v, step\) : 0;`,
		new: `return v ? __sync_fetch_and_add(v, step) : 0;`,
	},
	{where: "helper", spec: "numbers", what: "a counter is read after the step was added",
		old: `__sync_fetch_and_add\(v, step\) : 0`, new: `__sync_fetch_and_add(v, step) + step : 0`},
	{where: "helper", spec: "numbers", what: "translations of no namespace are made", old: `if \(!key->space\)`,
		new: `if (0)`},
	{where: "helper", spec: "numbers", what: "a translation that is being made is one",
		old: `return done \? FR_TRANSLATED : FR_TRANSLATING;`, new: `return FR_TRANSLATED;`},
	{where: "helper", spec: "fan-out", what: "receivers' copies count no bytes",
		old: `r->bytes \+= len;\n\t\}\n\}\n\n/\* The copies`, new: "}\n}\n\n/* The copies"},
	{where: "helper", spec: "fan-out", what: "clones that are refused aren't noted", old: `r->failed\+\+;`, new: ``},
	{where: "helper", spec: "set-varint", what: "an integer of 2 bytes says that it has 4", old: `1ULL << 14`,
		new: `2ULL << 14`},
	{where: "helper", spec: "sized-uint", what: "integers of variable size are read with what is in front of them",
		old: `\*value &= fr_room\(width\);`, new: ``},
	{where: "helper", spec: "sized-uint", what: "integers of variable size are written over what is in front of them",
		old: `v = stays \| \(v & all\);`, new: `v = v & all;`},
	{where: "helper", spec: "sized-uint", what: "an integer of 8 bytes has none",
		old: `1ULL << 4 \* width << 4 \* width`, new: `1ULL << (8 * width & 63)`},
	{where: "helper", spec: "turn", infer: true, what: "a moved payload is taken 1 byte too far",
		old: `bpf_skb_load_bytes\(skb, from, s->bytes`, new: `bpf_skb_load_bytes(skb, from - 1, s->bytes`},
	{where: "helper", spec: "turn", infer: true, what: "a moved payload lands 1 byte too far",
		old: `bpf_skb_store_bytes\(skb, to, s->bytes`, new: `bpf_skb_store_bytes(skb, to - 1, s->bytes`},
}

var modelFaults = []fault{
	{where: "model", spec: "odd", what: "bytes are not swapped where the payload moves",
		old: `return a \* 256 % modulus`, new: `return a`, file: "sum.go"},
	{where: "model", spec: "turn", what: "0 is written for a checksum that is optional", old: `sum == 0 && s\.Optional`,
		new: `sum == 0 && !s.Optional`, file: "sum.go"},
	{where: "model", spec: "turn", what: "padding at an odd place counts as at an even one",
		old: `odd := s\.TailOdd != nil && r\.bool\(s\.TailOdd\)`, new: `odd := false`, file: "sum.go"},
	{where: "model", spec: "bits", what: "bit fields are read one bit off", old: `b\[i/8\]>>\(7-i%8\)`,
		new: `b[i/8]>>(6-i%8&7)`, file: "eval.go"},
	{where: "model", spec: "shim", what: "the shortest prefix wins", old: `if bits > best && `,
		new: `if (bits < best || best < 0) && `, file: "table.go"},
	{where: "model", spec: "turn", what: "closed sessions forward", old: `return s\.Gen == gen && `, new: `return `,
		file: "run.go"},
	{where: "model", spec: "varint", what: "varints keep the bits of their size", old: `1<<\(8\*size-2\) - 1`,
		new: `1<<(8*size-1) - 1`, file: "run.go"},
	{where: "model", spec: "sized-uint", what: "integers of variable size lose their upper byte",
		old: `bigEndian\(r\.bytesAt\(s\.At, int\(size\), s\.Field\)\)`,
		new: `bigEndian(r.bytesAt(s.At, int(size), s.Field)[min(1, size):])`, file: "run.go"},
	{where: "model", spec: "credits", what: "a clone that is refused costs",
		old: `r\.giveBack\(taken\)\n(\s*)r\.decline\(s\.Failed\)`, new: `_ = taken; r.decline(s.Failed)`,
		file: "fanout.go"},
	{where: "model", spec: "overdraft", what: "what is overdrawn isn't spent",
		old: `credit\.Spent, amount = credit\.Spent\+cost, cost`, new: `amount = cost`, file: "effects.go"},
	{where: "model", spec: "admit-else", what: "what is refused passes",
		old: `case r\.prog\.ir\.Reasons\[reason\]\.Kind == ir\.Dropped:`, new: `case false:`, file: "run.go"},
	{where: "model", spec: "fan-out", what: "the next receiver sees what the last one got",
		old: `r\.turn\.Sent, r\.turn\.Packet, r\.turn\.Hop = true, out, &hop`,
		new: `r.turn.Sent, r.turn.Packet, r.turn.Hop, r.in = true, out, &hop, out.Data`, file: "fanout.go"},
	{where: "model", spec: "turn", what: "an unknown neighbour's addresses are written",
		old: `h\.State != ir\.HopDirect \|\| `, new: ``, file: "run.go"},
}
