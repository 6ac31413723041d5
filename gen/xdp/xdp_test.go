package xdp_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/fastrelay/fastrelay-gen/gen"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/planfmt"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// at compiles a program, and returns it as it runs at XDP.
func at(t *testing.T, program string) (*ir.Plan, *ir.Program) {
	t.Helper()
	plan := compile(t, program)
	return plan, plan.Programs[0].XDP
}

func compile(t *testing.T, program string) *ir.Plan {
	t.Helper()
	s, list := spec.Load("x.cue", []byte(text(program)))
	if err := list.Err(); err != nil {
		t.Fatal(err)
	}
	s.Programs[0].XDP = true
	plan, list := gen.Compile(s)
	if err := list.Err(); err != nil {
		t.Fatal(err)
	}
	return plan
}

// text is the spec of a program.
func text(program string) string {
	return `name: "x"
headers: {
	msg: fields: [{name: "kind", bits: 8}, {name: "id", bits: 24}]
	more: fields: [{name: "kind", bits: 8}, {name: "number", varint: "quic", when: "kind == 1"}]
}
tables: {
	routes: {kind: "hash", key: addr: "ip", value: {gateway: "next_hop", seen: "counter"}, size: 16}
	learned: {kind: "hash", key: id: "u24", value: from: "endpoint", size: 16}
	sources: {key: addr: "ip", value: {new: "bucket", all: "credit", seen: "counter", next: "next_hop"}, size: 16}
}
events: {came: fields: n: "u64", must: {fields: n: "u64", required: true}}
programs: p: {hook: "tc/ingress", ` + program + "}"
}

const udp = `stack: ["eth", "ip", "udp", "msg"], lookup: r: routes: ["ip.dst"], `

// What a driver can't do is left to the program at tc/ingress, and said; of a program that it leaves whole, too.
func TestLeft(t *testing.T) {
	for _, c := range []struct{ program, left string }{
		{udp + `do: [{send: via: "r.gateway"}]`, ""},
		{udp + `rules: [{when: "msg.kind == 1", do: [{mark: mark: 7}, {send: via: "r.gateway"}]},
			{do: [{send: via: "r.gateway"}]}]`, "skb.mark"},
		{udp + `rules: [{when: "skb.priority == 1", do: [{drop: "urgent"}]}, {do: [{send: via: "r.gateway"}]}]`,
			"all: skb.priority"},
		{udp + `rules: [{when: "msg.kind == 1", do: ["pass"]}, {do: [{send: via: "r.gateway"}]}]`,
			"a packet that goes on"},
		{udp + `rules: [{when: "msg.kind == 1", do: [{set: "msg.id": 1}, "pass"]}, {do: [{drop: "other"}]}]`,
			"a packet that goes on"},
		{udp + `do: [{emit: came: {n: "alloc(r.seen)"}}, {count: "r.seen"}, {send: via: "r.gateway"}]`,
			"all: a number of a counter, after a counter has counted"},
		{udp + `do: [{emit: came: {n: "alloc(r.seen)"}}, {count: "all"}, {send: via: "r.gateway"}]`, ""},
		{udp + `do: [{mark: priority: 7}, {send: via: "r.gateway"}]`, "all: skb.priority"},
		{`stack: ["eth", "vlan?", "ip", "udp", "more"], do: ["pass"]`, "all: a packet that goes on"},
		{`stack: ["ip"], lookup: r: routes: ["ip.dst"], do: [{send: via: "r.gateway"}]`,
			"all: a packet without its link-layer header"},
	} {
		p := compile(t, c.program).Programs[0]
		var left []string
		for _, l := range p.Left {
			if !slices.Contains(left, l.What) {
				left = append(left, l.What)
			}
		}
		got := strings.Join(left, ", ")
		if p.XDP == nil {
			got = "all: " + got
		}
		if got != c.left {
			t.Errorf("%s\nleaves %q, not %q", c.program, got, c.left)
		}
	}
}

// A program at XDP alone counts what it doesn't take, under the reasons that it has; and packets go on.
func TestAlone(t *testing.T) {
	s, list := spec.Load("x.cue", []byte(strings.Replace(text(udp+`rules: [
		{when: "msg.kind == 1", do: [{count: {counter: "r.seen"}}, {set: "msg.id": 1}, "pass"]},
		{do: [{send: via: "r.gateway"}]},
	]`), "tc/ingress", "xdp", 1)))
	if err := list.Err(); err != nil {
		t.Fatal(err)
	}
	plan, list := gen.Compile(s)
	if err := list.Err(); err != nil {
		t.Fatal(err)
	}
	p := plan.Programs[0]
	if p.Hook != ir.XDP || p.ToTC || p.XDP != nil {
		t.Errorf("it runs at %s", p.Hooks())
	}
	var names []string
	for _, r := range p.Reasons {
		names = append(names, r.Name)
	}
	for _, want := range []string{
		"pass", "sent", "vlan_tag", "partial_checksum", "no_neighbour", "no_frames", "no_routes",
	} {
		if !slices.Contains(names, want) {
			t.Errorf("no reason %s; there are %v", want, names)
		}
	}
	if slices.Contains(names, "super_packet") {
		t.Errorf("a reason that no frame has: %v", names)
	}
	passes := 0
	for s := range ir.Stmts(p.Body) {
		if f, ok := s.(*ir.Forward); ok && f.Hop == nil && f.Rewrite != nil {
			passes++
		}
	}
	if passes == 0 {
		t.Error("no packet goes on")
	}
}

// A packet that is left has changed nothing, and nothing is asked of it that doesn't matter: it is asked again.
func TestNothingTwice(t *testing.T) {
	plan, p := at(t, udp+`rules: [
		{when: "msg.kind == 1", do: [{count: {counter: "r.seen"}},
			{learn: learned: {key: ["msg.id"], value: ["udp.src"], verified: false}}, "pass"]},
		{when: "msg.kind == 2", do: [{count: {counter: "r.seen"}}, {send: via: "r.gateway"}]},
		{do: [{count: {counter: "r.seen"}}, {drop: "other"}]},
	]`)
	for s := range ir.Stmts(p.Body) {
		switch s := s.(type) {
		case *ir.Count, *ir.Learn:
			t.Errorf("%T stands in front of where the packet's way ends", s)
		case *ir.Forward:
			if len(s.Counts) != 1 || s.Hop == nil {
				t.Errorf("it counts %d times", len(s.Counts))
			}
		case *ir.Drop:
			if len(s.Counts) != 1 {
				t.Errorf("what is dropped counts %d times", len(s.Counts))
			}
		}
		for e := range ir.Exprs(s) {
			m, ok := e.(*ir.Meta)
			if ok && !slices.Contains([]ir.MetaKind{ir.FrameLen, ir.LinkType, ir.LeaseValid, ir.VLANTag}, m.Kind) {
				t.Errorf("fact %s of an skb in %T", ir.Facts[m.Kind].Text, s)
			}
		}
	}
	if text := planfmt.Program(plan, p); strings.Contains(text, "learned") {
		t.Errorf("what passes on is learned here:\n%s", text)
	}
	kinds := map[ir.ReasonKind]int{}
	for _, r := range p.Reasons {
		kinds[r.Kind]++
	}
	if kinds[ir.Punted] != 2 || kinds[ir.Passed] != 0 || kinds[ir.Sent] != 1 || kinds[ir.Dropped] != 1 {
		t.Errorf("reasons by kind: %v", fmt.Sprint(kinds))
	}
}

// What is dropped for want of a credit at tc/ingress is dropped here, and what isn't has spent nothing: all of a rule's
// credits are asked, or none.
func TestAsks(t *testing.T) {
	const source = `stack: ["eth", "ip", "udp"], lookup: s: sources: ["ip.src"], `
	for _, c := range []struct {
		program string
		asks    int
	}{
		{source + `do: [{admit: {credit: "s.new", cost: 1, else: drop: "over"}}, "pass"]`, 1},
		{source + `do: [{admit: {credit: "s.all", cost: "len(udp.payload)"}},
			{admit: {credit: "s.new", cost: 1, else: drop: "over"}},
			{count: "s.seen"}, {emit: came: n: "len(udp.payload)"}, "pass"]`, 2},
		{source + `do: [{admit: {credit: "s.new", cost: 1, else: drop: "over"}}, {mark: mark: 7},
			{send: via: "s.next"}]`, 1},
		{source + `do: [{admit: {credit: "s.new", cost: 1}}, "pass"]`, 0},
		{source + `do: [{admit: {credit: "s.new", cost: "skb.priority", else: drop: "over"}}, "pass"]`, 0},
		{source + `do: [{admit: {credit: "s.all", cost: 1, overdraft: true}},
			{admit: {credit: "s.new", cost: 1, else: drop: "over"}}, "pass"]`, 0},
		{source + `do: [{admit: {credit: "s.new", cost: 1, else: drop: "over"}}, {emit: must: n: 1}, "pass"]`, 0},
	} {
		p, asked := compile(t, c.program).Programs[0].XDP, 0
		if p == nil {
			p = &ir.Program{}
		}
		for s := range ir.Stmts(p.Body) {
			switch s := s.(type) {
			case *ir.Ask:
				asked = len(s.Admits)
				if slices.ContainsFunc(s.Admits, func(a *ir.Admit) bool { return !a.Asked }) {
					t.Errorf("%s\nspends", c.program)
				}
			case *ir.Count, *ir.Forward:
				t.Errorf("%s\nhas %T", c.program, s)
			}
		}
		if asked != c.asks {
			t.Errorf("%s\nasks %d credits, not %d", c.program, asked, c.asks)
		}
	}
}

// Headers move where the frame begins, whatever the kernel's helpers would do to an skb; and a checksum is complete, or
// the packet is left.
func TestRewrites(t *testing.T) {
	_, p := at(t, `stack: ["eth", "ip", "udp", "msg"], lookup: r: routes: ["ip.dst"],
		do: [{pop: "msg"}, {send: via: "r.gateway"}]`)
	sends, complete := 0, 0
	for s := range ir.Stmts(p.Body) {
		if g, ok := s.(*ir.Guard); ok {
			for e := range ir.Exprs(g.Cond) {
				if _, ok := e.(*ir.PseudoSum); ok {
					complete++
				}
			}
		}
		w := ir.RewriteOf(s)
		if w == nil {
			continue
		}
		sends++
		if w.Resize != ir.MoveHeaders || w.Family != 0 || w.Encap != nil {
			t.Errorf("%+v", w)
		}
		for _, sum := range w.Sums {
			if sum.Offloaded {
				t.Errorf("%s may be left to a device", sum.Name)
			}
		}
	}
	if sends == 0 || complete < 2 {
		t.Errorf("%d packets leave, %d checks that a checksum is complete", sends, complete)
	}
}
