//go:build linux

package lua_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/fastrelay/fastrelay-gen/gen/lua"
	"github.com/fastrelay/fastrelay-gen/internal/packet"
	"github.com/fastrelay/fastrelay-gen/internal/test/specgen"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// As TestFieldsAgree, of random specs.
func TestRandomSpecs(t *testing.T) {
	seed := needs.Seed(t)
	for left := needs.Of(5, 200); left > 0; seed++ {
		src := specgen.Generate(seed)
		s, plan, _ := specgen.Plan(src)
		if plan == nil || !own(s) {
			continue
		}
		if _, err := lua.Render(s); errors.Is(err, lua.ErrNothing) {
			continue // headers where Wireshark looks for none
		}
		left--
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			d := newDissected(t, s, plan, seed, 200)
			if d.run(func(text string) string { return text }); d.wrong != "" {
				t.Fatalf("%s\n%s", d.wrong, src)
			}
		})
	}
}

// luaError is the first error of a dissector that tshark shows.
func luaError(es []element) string {
	for _, e := range es {
		if strings.HasPrefix(e.Show, "Lua Error") {
			return e.Show
		}
		if text := luaError(e.Fields); text != "" {
			return text
		}
	}
	return ""
}

// shownAs is what Wireshark calls headers.
var shownAs = map[string]string{"ipv4": "ip", "ipv4_any": "ip"}

// within looks for the headers after those of the spec where they begin; instead of the first one, there may be one of
// an earlier program's stack. What follows fragments, tshark may have put together, and if another header of the spec
// may follow, the dissector may be called again.
func (d *dissected) within(p *sent, inside []*packet.Span, earlier []*spec.Header, shown *pdml,
	fail func(string, ...any)) {
	frame := p.data
	for i, sp := range inside {
		if !sp.Header.Std || i > 0 && (d.given["ip"] || !announced(frame, inside[i-1], sp.Header) ||
			slices.ContainsFunc(d.spec.Headers, func(h *spec.Header) bool {
				return !h.Std && len(h.After) > 0 && announced(frame, inside[i-1], h)
			})) {
			return
		}
		shows := func(h *spec.Header) bool {
			name := h.Name.Value
			if as, ok := shownAs[name]; ok {
				name = as
			}
			return slices.ContainsFunc(shown.Protos, func(e element) bool {
				return e.Name == name && e.Pos == sp.Start
			})
		}
		if !shows(sp.Header) {
			version := frame[sp.Start] >> 4
			if i > 0 || !slices.ContainsFunc(earlier, func(h *spec.Header) bool {
				f := h.Fields[0]
				return shows(h) && (f.Name.Value != "version" || packet.Allows(f.Is, f, packet.Uint(uint64(version))))
			}) {
				fail("there is no %s at %d", sp.Name(), sp.Start)
			}
			return
		}
		if d.inside++; sp.Name() == "ipv4_any" {
			return
		}
	}
}

// reads reports whether the packet's program finds the headers that the packet was made of. An alternative that the
// stack lists first, or an optional header that it was made without, may be taken instead; if rows choose, the test
// doesn't know.
func (d *dissected) reads(p *sent, spans []*packet.Span) bool {
	i := 0
	for _, e := range p.program.Stack {
		for _, h := range d.entry(e) {
			if i == len(spans) {
				return true
			}
			if spans[i].Header == h {
				i++
				break
			}
			if i > 0 && (e.ByLookup || takes(p.data, spans, i, h)) {
				return false
			}
		}
	}
	return true
}

// takes reports whether a header is taken for the one that is in the ith span: what is in front announces it, or, if
// that says nothing, its first fields have values that it allows.
func takes(frame []byte, spans []*packet.Span, i int, h *spec.Header) bool {
	sp, front := spans[i], spans[i-1]
	if sp.After > 1 {
		front = spans[sp.After-2]
	}
	if slices.ContainsFunc(h.After, func(a *spec.After) bool {
		return a.Parent.Value == front.Name() && len(a.Match) > 0
	}) {
		return announced(frame, front, h)
	}
	for _, at := range h.Layout() {
		f := at.Field
		if f.Varies() {
			break
		}
		pl := packet.Place{Field: f, Bit: 8*sp.Start + at.Bit, Bits: f.Width(), There: true}
		if f.Is != nil && (pl.Bit+pl.Bits > 8*sp.Limit || !packet.Allows(f.Is, f, pl.Get(frame))) {
			return false
		}
	}
	return true
}

// room finds the headers after whose payload another one may begin that the packet was made without: 1 + their
// indices. A length of theirs that was spoilt and leaves room says that the other one is there, and isn't wrong; shows
// reports whether a dissector then has to show a field of the other one, or that it is cut off.
func (d *dissected) room(p *sent, headers []*spec.Header) (after []int, shows bool) {
	at, i := map[string]int{}, 0
	shows = true
	for _, e := range p.program.Stack {
		group := d.entry(e)
		if i < len(headers) && slices.Contains(group, headers[i]) {
			i++
			at[e.Var.Value] = i
		} else if e.After != nil && at[e.After.Value] > 0 {
			after = append(after, at[e.After.Value])
			h := group[0]
			shows = shows && len(group) == 1 && !h.Std && len(h.After) == 0 && h.MinBytes() > 0
		}
	}
	return after, shows
}

// earlier are the headers that stacks of programs in front of the packet's have after the same headers of the spec.
// Such a stack fits as well, and the first one is shown: Wireshark can't know for which program a packet is if they
// differ in the hook, or in what encloses the header in front of the spec's, such as a VLAN tag.
func (d *dissected) earlier(p *sent, front *spec.Header, ours []*spec.Header) (out []*spec.Header) {
	for _, program := range d.spec.Programs {
		if program == p.program {
			break
		}
		for i, e := range program.Stack {
			if slices.Contains(d.entry(e), front) {
				out = append(out, d.following(program.Stack[i+1:], ours)...)
			}
		}
	}
	return out
}

// following are the headers that entries of a stack have after some others.
func (d *dissected) following(entries []*spec.StackEntry, front []*spec.Header) (out []*spec.Header) {
	for _, e := range entries {
		headers := d.entry(e)
		if len(front) > 0 && slices.Contains(headers, front[0]) {
			front = front[1:]
			continue
		}
		if len(front) == 0 {
			out = append(out, headers...)
		}
		if !e.Optional {
			break
		}
	}
	return out
}

// entry are the headers of an entry, those of groups as well.
func (d *dissected) entry(e *spec.StackEntry) (out []*spec.Header) {
	for _, n := range e.Headers {
		out = append(out, d.headers.Group(n.Value)...)
	}
	return out
}

// announced reports whether a header says that another one follows it, if that one has to be announced. (That there is
// IP in UDP only the spec's stack says, and Wireshark can't know.)
func announced(frame []byte, front *packet.Span, h *spec.Header) bool {
	return len(h.After) == 0 || slices.ContainsFunc(h.After, func(a *spec.After) bool {
		says := func(m *spec.FieldMatch) bool {
			pl := front.Place(m.Field.Path[len(m.Field.Path)-1].Value)
			return packet.Allows(m.Is, pl.Field, pl.Get(frame))
		}
		return a.Parent.Value == front.Name() && len(a.Match) > 0 &&
			!slices.ContainsFunc(a.Match, func(m *spec.FieldMatch) bool { return !says(m) })
	})
}
