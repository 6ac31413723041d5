package expr

import (
	"fmt"
	"math/bits"
	"slices"

	"github.com/fastrelay/fastrelay-gen/gen/code"
	"github.com/fastrelay/fastrelay-gen/gen/declare"
	"github.com/fastrelay/fastrelay-gen/gen/fold"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/gen/ranges"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
)

// This pass proves that integers fit what they are stored in.

// Fits checks that an integer fits so many bits. widen says how there would be room for a value of more; "" if there
// can't be, as in a header, whose protocol says how wide its fields are. What identifies something must not be cut, so
// only a number that arithmetic made, and that is no part of a key, is said to be cut with low.
func (s *Scope) Fits(v Value, width int, what, widen string, key bool) *diag.Diagnostic {
	if v.Max <= ranges.Max(width) {
		return nil
	}
	need := bits.Len64(v.Max)
	if c, fixed := fold.Constant(v.X); fixed {
		return s.Fail(code.Range, v.Pos, "%d doesn't fit the %d bits of %s", c, width, what).
			WithHint("it holds 0 to %d", ranges.Max(width))
	}
	hint := widen
	if widen == "" {
		hint = fmt.Sprintf("it can't be made wider: give it a value that always fits, such as a part of this one: … "+
			">> %d", need-width)
	}
	if v.Wraps && !key {
		hint += fmt.Sprintf("\na number that may wrap around: low(…, %d)", width)
	}
	return s.Fail(code.Range, v.Pos, "the value may be up to %d, but %s has %d bits", v.Max, what, width).
		WithHint("%s", hint)
}

// fitsMember is fits for a member of a table, a group or an event, which a message calls name. Members of a session's
// table are widened where the session declares them.
func (s *Scope) fitsMember(v Value, m *ir.Member, name string) bool {
	of, declared, key, index := "", m.Pos, false, false
	for _, t := range s.Program.Names.Plan.Tables {
		in := slices.Contains(t.Key.Members, m)
		key, index = key || in, index || in && t.Kind == "array"
		if t.Session == nil || !in && !slices.Contains(t.Value.Members, m) {
			continue
		}
		of = fmt.Sprintf(" of session %q", t.Session.Name)
		for _, src := range s.Program.Names.Spec.Sessions {
			for _, f := range src.Fields {
				if src.Name.Value == t.Session.Name && f.Name.Value == m.Name {
					declared = f.Name.Pos
				}
			}
		}
	}
	for _, g := range s.Program.Names.Plan.Groups {
		key = key || slices.Contains(g.Key.Members, m)
	}
	wide := max(8, 1<<bits.Len(uint(bits.Len64(v.Max)-1))) // 8, 16, 32 or 64
	widen := fmt.Sprintf("make %q%s wider: \"u%d\"", m.Name, of, wide)
	if index && wide > declare.MaxIndex {
		widen += fmt.Sprintf("; an array's key has at most %d bits: kind: \"hash\"", declare.MaxIndex)
	}
	d := s.Fits(v, m.Type.Bits, name, widen, key)
	if d != nil {
		d.WithRelated(declared, "it is declared here")
	}
	return d == nil
}
