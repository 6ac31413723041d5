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

// within looks for the headers after those of the spec where they begin. What follows fragments, tshark may have put
// together, and if another header of the spec may follow, the dissector may be called again.
func (d *dissected) within(frame []byte, inside []*packet.Span, shown *pdml, fail func(string, ...any)) {
	for i, sp := range inside {
		if !sp.Header.Std || i > 0 && (d.given["ip"] || !announced(frame, inside[i-1], sp.Header) ||
			slices.ContainsFunc(d.spec.Headers, func(h *spec.Header) bool {
				return !h.Std && len(h.After) > 0 && announced(frame, inside[i-1], h)
			})) {
			return
		}
		name := sp.Name()
		if as, ok := shownAs[name]; ok {
			name = as
		}
		if !slices.ContainsFunc(shown.Protos, func(e element) bool { return e.Name == name && e.Pos == sp.Start }) {
			fail("there is no %s at %d", name, sp.Start)
			return
		}
		if d.inside++; sp.Name() == "ipv4_any" {
			return
		}
	}
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
