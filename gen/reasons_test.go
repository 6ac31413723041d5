package gen_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/fastrelay/fastrelay-gen/gen"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/sim"
	"github.com/fastrelay/fastrelay-gen/spec"
)

func plan(t *testing.T, text string) *ir.Plan {
	t.Helper()
	s, diags := spec.Load("spec.cue", []byte(text))
	var p *ir.Plan
	if diags.Len() == 0 {
		p, diags = gen.Compile(s)
	}
	if err := diags.Err(); err != nil {
		t.Fatal(err)
	}
	return p
}

// Reasons have the same names in whatever order the rules are: none takes a name away from another one.
func TestReasonNames(t *testing.T) {
	const head = `
		name: "spread"
		tables: {
			senders: {key: from: "ip", value: {budget: "credit", to: "endpoint"}}
			layer: {key: from: "ip", value: hop: "next_hop"}
		}
		groups: listeners: {
			key: server: "endpoint"
			receiver: {local: "endpoint", remote: "endpoint", budget: "credit"}
		}
		programs: spread: {hook: "tc/ingress", stack: ["eth", "ip", "udp"], rules: [RULES]}`
	rules := []string{
		`{match: "udp.dst_port": 1, do: [{fan_out: {group: listeners: ["udp.dst"], rules: [
			{match: "udp.src_port": 1, do: [{drop: "layer"}]},
			{match: "udp.src_port": 2, lookup: s: senders: ["ip.src"]
				do: [{admit: {credit: "r.budget", cost: 1}}, {send: {from: "r.local", to: "r.remote"}}]},
		]}}]}`,
		`{match: "udp.dst_port": 2, lookup: s: senders: ["ip.src"]
			do: [{admit: {credit: "s.budget", cost: 1}}, {send: {from: "udp.dst", to: "s.to"}}]}`,
		`{match: "udp.dst_port": 3, do: [{drop: "layer"}]}`,
		`{match: "udp.dst_port": 4, do: [{drop: "no_route"}]}`,
		`{match: "udp.dst_port": 5, lookup: l: layer: ["ip.src"], do: [{send: via: "l.hop"}]}`,
	}
	var want []string
	for i := range 2 * len(rules) {
		order := slices.Concat(rules[i/2:], rules[:i/2])
		if i%2 == 1 {
			slices.Reverse(order)
		}
		var got []string
		for _, r := range plan(t, strings.Replace(head, "RULES", strings.Join(order, ",\n"), 1)).Programs[0].Reasons {
			if strings.HasPrefix(r.Name, "no_senders") || strings.HasPrefix(r.Name, "no_layer") {
				continue // the last rule on a path says why
			}
			got = append(got, string(rune('0'+r.Kind))+" "+r.Name)
		}
		slices.Sort(got)
		if want == nil {
			want = got
		} else if !slices.Equal(got, want) {
			t.Errorf("in another order the reasons are\n%v, not\n%v", got, want)
		}
		for _, r := range []struct {
			kind ir.ReasonKind
			name string
		}{
			{ir.Punted, "refused_budget"}, {ir.Declined, "refused_budget"}, {ir.Dropped, "layer"},
			{ir.Declined, "layer"}, {ir.Dropped, "no_route"}, {ir.Punted, "no_route"}, {ir.Declined, "no_route"},
		} {
			if !slices.Contains(got, string(rune('0'+r.kind))+" "+r.name) {
				t.Errorf("no reason %q of kind %d: %v", r.name, r.kind, got)
			}
		}
	}
}

// A GSO packet whose length is that of a segment isn't one with a wrong length.
func TestSuperPacketLength(t *testing.T) {
	p := plan(t, `
		name: "tagged"
		headers: tag: fields: [{name: "length", bits: 16, counts: "payload", slack: 1}]
		programs: t: {hook: "tc/ingress", stack: ["eth", "ipv4", "udp", "tag"], do: ["pass"]}`)
	relay, err := sim.New(p, nil)
	if err != nil {
		t.Fatal(err)
	}
	frame := func(udp, tag, payload byte) []byte {
		b := append(make([]byte, 12), 0x08, 0)
		b = append(b, 0x45, 0, 0, 28+2+payload, 0, 0, 0x40, 0, 64, 17, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2)
		sum := uint32(0)
		for i := 14; i < 34; i += 2 {
			sum += uint32(b[i])<<8 | uint32(b[i+1])
		}
		sum = ^(sum + sum>>16)
		b[24], b[25] = byte(sum>>8), byte(sum)
		b = append(b, 0, 1, 0, 2, 0, udp, 0, 0, 0, tag)
		return append(b, make([]byte, payload)...)
	}
	for _, c := range []struct {
		what  string
		frame []byte
		gso   uint32
		want  string
	}{
		{"one datagram", frame(14, 4, 4), 0, "pass"},
		{"a length that is wrong", frame(14, 2, 4), 0, "tag_length"},
		{"a UDP length that is wrong", frame(12, 4, 4), 0, "udp_length"},
		{"two datagrams", frame(14, 4, 4), 2, "gso_packet"},
		{"two datagrams, with the length of one", frame(14, 2, 4), 2, "gso_packet"},
		{"likewise in UDP", frame(12, 4, 4), 2, "gso_packet"},
	} {
		res, err := relay.Run("t", sim.Packet{Data: c.frame, GSO: c.gso})
		if err != nil || res.Reason != c.want {
			t.Errorf("%s: %v (%v), want %s", c.what, res.Reason, err, c.want)
		}
	}
}
