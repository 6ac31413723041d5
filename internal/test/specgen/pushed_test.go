package specgen_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/fastrelay/fastrelay-gen/internal/clang"
	"github.com/fastrelay/fastrelay-gen/internal/test/specgen"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/bpftest"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
)

// pushedSums are rules that put in UDP with a checksum where headers were taken out: before the inner packet and after
// it, so that it is over any bytes of those that were there, in packets that keep their size and in others.
func pushedSums() (specs []string) {
	const text = `name: "pushed"
headers: odd: fields: [{name: "a", bits: 24}]
headers: even: fields: [{name: "a", bits: 16}, {name: "length", bits: 16, counts: "payload", slack: 3}]
programs: p: {
	hook: "tc/egress"
	stack: [%s%q, {from: "udp"}, %s{inner: %q}]
	do: [%s, "pass"]
}
`
	for _, link := range []string{"", `"eth", `} {
		for _, outer := range []string{"ipv4", "ipv6", "ip"} {
			for _, between := range []string{"", "odd", "even"} {
				for _, inner := range []string{"ipv4", "ipv6"} {
					for _, front := range []string{"", "odd", "even"} {
						for _, last := range []bool{false, true} {
							do := []string{`{pop: "from"}`}
							stack := ""
							if between != "" {
								stack = fmt.Sprintf("%q, ", between)
								do = append(do, fmt.Sprintf("{pop: %q}", between))
							}
							before := `, before: "inner"`
							if last {
								before = ""
							}
							do = append(do, `{push: {udp: {src_port: "from.dst_port", dst_port: "from.length", `+
								`checksum: "computed"}`+before+`}}`)
							if front != "" {
								do = append(do, fmt.Sprintf("{push: {%s: a: 7%s}}", front, before))
							}
							specs = append(specs, fmt.Sprintf(text, link, outer, stack, inner, strings.Join(do, ", ")))
						}
					}
				}
			}
		}
	}
	return specs
}

// A checksum of a header that is put in is right, whatever bytes were at its place. In `make test-all` the kernel says
// the same.
func TestPushedSums(t *testing.T) {
	p := &specgen.Pipeline{Packets: needs.Of(64, 512)}
	if !testing.Short() {
		bpftest.Rights(t)
		tool, err := clang.Find(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		p.Tool = tool
	}
	first := needs.Seed(t)
	tried, changed := 0, 0
	for i, text := range pushedSums() {
		if needs.Left(i, 5) {
			continue
		}
		tried++
		r := p.Run(context.Background(), []byte(text), first+uint64(i))
		if r.Failed() || r.Stage == specgen.Refused {
			t.Fatalf("%s %s: %s\n%s", r.Stage, r.Code, r.Text, text)
		}
		changed += r.Changed
	}
	t.Logf("%d specs, %d packets changed", tried, changed)
	if least := tried * p.Packets / 8; changed < least {
		t.Errorf("%d packets changed, want %d at least", changed, least)
	}
}
