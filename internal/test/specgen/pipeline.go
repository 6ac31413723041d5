package specgen

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/cilium/ebpf"

	"github.com/fastrelay/fastrelay-gen/gen"
	"github.com/fastrelay/fastrelay-gen/gen/bpf"
	"github.com/fastrelay/fastrelay-gen/gen/glue"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/clang"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
	"github.com/fastrelay/fastrelay-gen/internal/test/fuzz"
	"github.com/fastrelay/fastrelay-gen/internal/testrun"
	"github.com/fastrelay/fastrelay-gen/sim"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// Stage is how far a spec came.
type Stage string

// Stages, in their order. A spec ends at the stage that failed, or at Done or Refused.
const (
	Load     Stage = "load"     // the loader doesn't take it
	Compile  Stage = "compile"  // the compiler finds a mistake in it
	Render   Stage = "render"   // no C, or no Go
	Clang    Stage = "clang"    // clang doesn't take the C
	Verifier Stage = "verifier" // the kernel doesn't load the object
	Packets  Stage = "packets"  // the kernel and the model differ
	Panic    Stage = "panic"
	Refused  Stage = "refused" // by a restriction that is documented
	Done     Stage = "done"
)

// restrictions are the codes that a well-typed spec may be refused with: each says what can't be done, and why.
var restrictions = map[diag.Code]string{
	"FR0207": "too many sequences of headers",
	"FR0211": "a field that can't be written where it is",
	"FR0212": "a header that can't be pushed or popped here",
	"FR0213": "no safe way to resize the packet",
	"FR0219": "a table that can't be learned into",
	"FR0220": "a field without a fixed place",
	"FR0904": "more stack than a program has",
}

// Result is what became of a spec.
type Result struct {
	Stage   Stage
	Code    diag.Code // the first message's, if there are messages
	Text    string
	Log     string // all there is, for a person
	Packets int
	Reached float64 // share of the packets that came to the end of a rule
	Sent    int
	Changed int    // packets that were passed on or sent
	Copies  int    // that receivers got
	Source  []byte // of the spec that was compiled: XDP alone may be refused, and is taken with TC then
}

// Failed reports whether the result is a fault of this project.
func (r Result) Failed() bool { return r.Stage != Done && r.Stage != Refused }

// Same reports whether two failures seem to have one cause.
func (r Result) Same(o Result) bool {
	return r.Stage == o.Stage && r.Code == o.Code && r.Essence() == o.Essence()
}

var varying = regexp.MustCompile(`"[^"]*"|'[^']*'|0x[0-9a-fA-F]+|\b[0-9a-f]*[0-9][0-9a-f]*\b|\([^)]*\)|\d+`)

// Essence is the result's text without what differs from spec to spec.
func (r Result) Essence() string { return varying.ReplaceAllString(r.Text, "·") }

// Pipeline takes specs through all stages.
type Pipeline struct {
	Tool    *clang.Tool // nil: no objects, and the model runs alone
	Packets int         // to compare for each spec
	Go      *GoChecker  // nil: generated Go isn't checked
}

// Run takes one spec through all stages. seed chooses the packets.
func (p *Pipeline) Run(ctx context.Context, src []byte, seed uint64) (res Result) {
	defer func() {
		if v := recover(); v != nil {
			res = Result{Stage: Panic, Text: fmt.Sprint(v), Log: fmt.Sprintf("%v\n%s", v, debug.Stack())}
		}
	}()
	s, plan, res := Plan(src)
	if plan == nil {
		return res
	}
	c, err := bpf.Render(plan, bpf.Options{})
	if err != nil {
		return Result{Stage: Render, Text: err.Error()}
	}
	if p.Go != nil {
		text, err := glue.Render(plan, glue.RenderOptions{
			Package: glue.DefaultPackage(plan.Name), Object: "relay_bpfel.o",
		})
		if err == nil {
			err = p.Go.Check(text)
		}
		if err != nil {
			return Result{Stage: Render, Text: err.Error(), Log: err.Error() + "\n" + string(text)}
		}
	}
	var object []byte
	if p.Tool != nil {
		var failed *clang.Error
		var stack *clang.StackError
		object, _, err = clang.Compile(ctx, c.C, c.Header, clang.Options{Tool: p.Tool})
		if errors.As(err, &failed) {
			return Result{Stage: Clang, Text: firstError(failed.Log), Log: failed.Log + "\n" + c.C}
		} else if errors.As(err, &stack) {
			return Result{Stage: Refused, Code: stack.Diagnostic().Code, Text: err.Error(), Log: c.C}
		} else if err != nil {
			return Result{Stage: Clang, Text: err.Error()}
		}
	}
	return p.compare(ctx, s, plan, object, seed, c.C)
}

// Plan loads and compiles a spec. If the plan is nil, the result says why. A program at XDP alone that does more than a
// driver can, or for which the spec demands too old a kernel, runs at both hooks.
func Plan(src []byte) (*spec.Spec, *ir.Plan, Result) {
	s, diags := spec.Load("spec.cue", src)
	if diags.Len() > 0 {
		d := diags.All()[0]
		return nil, nil, Result{Stage: Load, Code: d.Code, Text: d.Message, Log: diags.Err().Error()}
	}
	plan, diags := gen.Compile(s)
	if diags.Len() == 0 {
		return s, plan, Result{Source: src}
	}
	alone := []byte(`hook: "xdp"`)
	if bytes.Contains(src, alone) && slices.ContainsFunc(diags.All(), func(d *diag.Diagnostic) bool {
		return slices.Contains([]diag.Code{"FR0215", "FR0222", "FR0246"}, d.Code)
	}) {
		return Plan(bytes.ReplaceAll(src, alone, []byte("hook: "+bothHooks)))
	}
	wrong := slices.DeleteFunc(diags.All(), func(d *diag.Diagnostic) bool { return d.Warning })
	res := Result{Stage: Refused, Code: wrong[0].Code, Text: wrong[0].Message, Log: diags.Err().Error()}
	for _, d := range wrong {
		if restrictions[d.Code] == "" {
			return nil, nil, Result{Stage: Compile, Code: d.Code, Text: d.Message, Log: res.Log}
		}
	}
	return nil, nil, res
}

// compare runs random packets.
func (p *Pipeline) compare(ctx context.Context, s *spec.Spec, plan *ir.Plan, object []byte, seed uint64,
	c string) Result {
	if object != nil { // loaded once here, so that what the verifier says isn't mistaken for something else
		settings := map[string][]byte{}
		for _, x := range plan.Settings {
			if x.Default == nil {
				settings[x.Name] = make([]byte, x.Type.Size)
			}
		}
		k, err := testrun.Load(plan, object, settings)
		var refused *ebpf.VerifierError
		if errors.As(err, &refused) {
			log := strings.Join(refused.Log, "\n")
			return Result{Stage: Verifier, Text: verdict(refused.Log), Log: fmt.Sprintf("%v\n%s\n%s", err, log, c)}
		} else if err != nil {
			return Result{Stage: Verifier, Text: err.Error(), Log: err.Error() + "\n" + c}
		}
		k.Close()
	}
	decode := 1
	if !ordinary(s) {
		decode = math.MaxInt
	}
	judge := newJudge(s)
	config := fuzz.Config{
		Spec: s, Plan: plan, Object: object, Seed: seed, Packets: p.Packets, Quick: true, Decode: decode,
		Judge: judge.complete, Became: judge.became,
	}
	report, err := fuzz.Run(ctx, config)
	if err != nil {
		return Result{Stage: Packets, Text: err.Error(), Log: err.Error() + "\n" + c}
	}
	if d := report.Difference; d != nil {
		return Result{Stage: Packets, Text: d.Text, Log: d.Text + "\n" + c}
	}
	if ps := report.Impossible(); len(ps) > 0 {
		text := fmt.Sprintf("a packet came by %s: %s (%s), where none should get", ps[0].Program, ps[0].What, ps[0].Pos)
		return Result{Stage: Packets, Text: text, Log: text + "\n" + c}
	}
	if fuzz.Verifies(s) {
		if g, err := fuzz.Garble(config, 1); err != nil || g.Wrong != "" {
			text := fmt.Sprint(g.Wrong, err)
			return Result{Stage: Packets, Text: text, Log: text + "\n" + c}
		}
	}
	v := report.Verdicts
	return Result{
		Stage: Done, Packets: report.Packets, Reached: report.Reached(), Sent: v[sim.VerdictSent],
		Changed: v[sim.VerdictSent] + v[sim.VerdictPass], Copies: report.Copies,
	}
}

// namesOfIP are the names of headers and alternatives that are IP.
var namesOfIP = []string{"ip", "ipv4", "ipv6", "ip_any", "ipv4_any"}

// ordinary reports whether every IP header has a transport header after it. If a header of one's own follows, that
// no protocol number announces, or one that is UDP's, gopacket takes it for something else.
func ordinary(s *spec.Spec) bool {
	is := func(e *spec.StackEntry, names ...string) bool {
		return !slices.ContainsFunc(e.Headers, func(n spec.Name) bool { return !slices.Contains(names, n.Value) })
	}
	for _, p := range s.Programs {
		for _, e := range p.Stack {
			if is(e, namesOfIP...) {
				break
			}
			if slices.ContainsFunc(e.Headers, func(n spec.Name) bool { return unannounced(s, n.Value) }) {
				return false // an EtherType of chance may say that it is IP
			}
		}
		for i, e := range p.Stack {
			if is(e, namesOfIP...) && (i+1 >= len(p.Stack) || !is(p.Stack[i+1], "udp", "tcp", "icmp",
				"icmpv6")) {
				return false
			}
		}
		for a := range spec.Actions(p.Rules) {
			if a.Kind == spec.ActPush && slices.ContainsFunc(s.Headers, func(h *spec.Header) bool {
				afterIP := func(p *spec.After) bool { return slices.Contains(namesOfIP, p.Parent.Value) }
				return h.Name.Value == a.Header.Value && !h.Std && slices.ContainsFunc(h.After, afterIP)
			}) {
				return false
			}
		}
	}
	return true
}

// unannounced reports whether a header is one of the spec's own that nothing announces.
func unannounced(s *spec.Spec, name string) bool {
	return slices.ContainsFunc(s.Headers, func(h *spec.Header) bool {
		return h.Name.Value == name && !h.Std && len(h.After) == 0
	})
}

func firstError(log string) string {
	for _, line := range strings.Split(log, "\n") {
		if _, text, ok := strings.Cut(line, "error: "); ok {
			return text
		}
	}
	return log
}

// verdict is the line of a verifier's log that says why: the last one that isn't statistics.
func verdict(log []string) string {
	for i := len(log) - 1; i >= 0; i-- {
		l := log[i]
		if l != "" && !strings.HasPrefix(l, "processed ") && !strings.HasPrefix(l, "verification time") &&
			!strings.HasPrefix(l, "stack depth") {
			return l
		}
	}
	return "no log"
}
