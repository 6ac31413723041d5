package sample

import (
	"fmt"
	"testing"

	"github.com/fastrelay/fastrelay-gen/gen"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/packet"
	"github.com/fastrelay/fastrelay-gen/sim"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// A state is made for frames that no random row would ever meet: by keys of several parts, of constants and of
// conditions, in rows that have to agree with the packet, a setting and one another.
func TestFit(t *testing.T) {
	s, diags := spec.Load("spec.cue", []byte(`
		name: "fit"
		settings: owner: {type: "ip", default: "203.0.113.9"}
		headers: id: fields: [{name: "kind", bits: 8}, {name: "cid", bytes: 8}, {name: "number", bits: 32}]
		tables: {
			peers: {key: {from: "endpoint", to: "endpoint", cid: "bytes8"}, value: {home: "ip", at: "ip", group: "u32"}}
			classes: {kind: "array", key: class: "u8", value: {low: "u32", high: "u32", mark: "u8"}, size: 256}
		}
		sessions: call: {fields: {tag: "u32", odd: "bool", number: "u32", peer: "endpoint", local: "endpoint"}
			rows: calls: {key: ["tag", "odd", "number"], value: ["peer", "local"]}}
		groups: watchers: {
			key: group: "u32", receiver: {local: "endpoint", remote: "endpoint", from: "counter"}, max: 8
		}
		programs: {
			send: {hook: "tc/ingress", stack: ["eth", "ip", "udp", "id"]
				lookup: c: calls: ["0x107C5", "id.kind & 1 == 1", "id.number"]
				rules: [
					{
						lookup: k: classes: ["id.kind"]
						when: "k.low + 5 < id.number && k.high > 1000000 && k.mark & 0x30 == 0x20"
						do: [{drop: "class"}]
					},
					{do: [{send: {from: "c.local", to: "c.peer"}}]},
				]}
			copies: {hook: "tc/ingress", stack: ["eth", "ip", "udp", "id"]
				lookup: p: peers: ["udp.src", "udp.dst", "id.cid"]
				when: "p.home == setting.owner && p.at == ip.src"
				do: [{fan_out: {group: watchers: ["p.group"], rules: [
					{when: "id.number < r.from", do: [{drop: "early"}]},
					{do: [{send: {from: "r.local", to: "r.remote"}}]},
				]}}]}
		}`))
	if err := diags.Err(); err != nil {
		t.Fatal(err)
	}
	plan, diags := gen.Compile(s)
	if err := diags.Err(); err != nil {
		t.Fatal(err)
	}
	src := NewSource(1)
	few := Few(plan)
	r, err := sim.New(few, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.World.Clock = Clock
	all := src.Generators(s, plan, packet.NewHeaders(s), nil)
	frames, ends := 0, map[string]int{}
	for range 50 {
		for _, f := range src.State(few, r, all...) {
			frames++
			res, err := r.Run(f.Program.Name.Value, sim.Packet{
				Data: f.Frame.Data, Link: sim.LinkType(f.Frame.Data, packet.DefaultDestination),
			})
			if err != nil {
				t.Fatal(err)
			}
			ends[fmt.Sprintf("%s: %s", f.Program.Name.Value, res.Reason)]++
			for _, c := range res.Copies {
				ends["a receiver: "+c.Reason]++
			}
		}
	}
	t.Logf("%d frames: %v", frames, ends)
	if frames < 50*fittedFrames*3/4 {
		t.Errorf("only %d frames for 50 states", frames)
	}
	for _, end := range []string{"send: class", "send: sent", "copies: pass", "a receiver: early", "a receiver: copy"} {
		if ends[end] < frames/20 {
			t.Errorf("%s: %d of %d frames", end, ends[end], frames)
		}
	}
}

// What one side of an operator has to be gives the result.
func TestSides(t *testing.T) {
	s := NewSource(1)
	found := map[string]int{}
	for range 20_000 {
		op, x, y, result := ir.BinOp(s.IntN(int(ir.Eq))), s.Uint64N(64), s.Uint64N(64), s.Uint64N(64)
		if n, ok := left(op, x, y, result); ok {
			found[fmt.Sprint("left of ", op)]++
			if got := apply(op, n, y); got != result {
				t.Fatalf("operator %d: %d and %d are %d, not %d", op, n, y, got, result)
			}
		}
		if n, ok := right(op, x, y, result); ok {
			found[fmt.Sprint("right of ", op)]++
			if got := apply(op, x, n); got != result {
				t.Fatalf("operator %d: %d and %d are %d, not %d", op, x, n, got, result)
			}
		}
	}
	if len(found) != 16 { // all 10 on the left, 6 on the right
		t.Errorf("sides were found for %v", found)
	}
}

func apply(op ir.BinOp, x, y uint64) uint64 {
	switch op {
	case ir.Add:
		return x + y
	case ir.Sub:
		return x - y
	case ir.Mul:
		return x * y
	case ir.Div:
		return x / max(y, 1)
	case ir.Rem:
		return x % max(y, 1)
	case ir.And:
		return x & y
	case ir.Or:
		return x | y
	case ir.Xor:
		return x ^ y
	case ir.Shl:
		return x << y
	}
	return x >> y
}
