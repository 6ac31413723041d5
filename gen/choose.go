package gen

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/fastrelay/fastrelay-gen/gen/code"
	"github.com/fastrelay/fastrelay-gen/gen/fold"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// Where nothing in a packet says which of several headers it has (a QUIC connection ID, whose length only the endpoint
// that chose it knows), rows can say it: {id: ["id20", "id8"], by: "lookup"}. The alternatives are tried in order, and
// the first is taken with which the packet comes as far as the program's rules: it has the header, match and when are
// true, and the lookups find their rows. In the plan, what would pass the packet to the stack while an alternative is
// tried is a condition, and the next alternative follows it. The last one passes packets to the stack, as a header
// without a choice.

// next is the reason, while an alternative is tried, of what leads to the next one. No plan has it.
const next = -1

// choose compiles the alternatives of the last entry of a stack, which rows choose from.
func (p *program) choose(i int, e *spec.StackEntry, path []*layer, parent *layer, off ir.Off, end ir.Expr,
	blk *[]ir.Stmt) {
	hs := p.names.Choices(e)
	for n, h := range hs {
		a := arm{h: h}
		if parent != nil {
			cond, ok := p.follows(h, parent)
			if !ok {
				p.cantFollow(e, h, parent.h)
				return
			}
			a.cond = cond
		}
		p.trying = n < len(hs)-1
		if p.trying {
			var try []ir.Stmt
			p.alone(i, e, a, path, off, end, &try)
			emit(blk, p.orNext(try, h.Name.Value)...)
			continue
		}
		p.alone(i, e, a, path, off, end, blk)
	}
}

// alone compiles an alternative as if it was the only one.
func (p *program) alone(i int, e *spec.StackEntry, a arm, path []*layer, off ir.Off, end ir.Expr, blk *[]ir.Stmt) {
	if a.cond != nil {
		emit(blk, &ir.Guard{Cond: a.cond, Reason: p.notThis(e), Pos: e.Pos})
	}
	p.enter(i, a, path, off, end, blk)
}

// orNext turns what leads from a header to the next alternative into conditions of what follows.
func (p *program) orNext(blk []ir.Stmt, header string) []ir.Stmt {
	nest := func(i int, cond ir.Expr, first ...ir.Stmt) []ir.Stmt {
		return append(blk[:i:i], &ir.If{
			Cond: cond, Then: append(first, p.orNext(blk[i+1:], header)...), Pos: ir.Pos(blk[i]), Note: header,
		})
	}
	for i, s := range blk {
		switch s := s.(type) {
		case *ir.Guard:
			if s.Reason == next {
				return nest(i, s.Cond)
			}
		case *ir.NeedBytes:
			if s.Reason == next {
				s.Reason = p.reason("truncated", ir.Punted, tooShort, s.Pos)
				return nest(i, fold.Bin(ir.Le, fold.Off(s.End), &ir.Meta{Kind: ir.FrameLen}), s)
			}
		case *ir.Up:
			if s.Reason == next {
				return blk[:i]
			}
		case *ir.If:
			if i == len(blk)-1 {
				s.Then, s.Else = p.orNext(s.Then, header), p.orNext(s.Else, header)
			}
		}
	}
	return blk
}

// checkChoice reports a choice that rows can't make.
func (p *program) checkChoice() {
	for i, e := range p.src.Stack {
		if !e.ByLookup {
			continue
		}
		fail := func(format string, args ...any) *diag.Diagnostic {
			return p.diags.Add(code.Stack, e.Pos, format, args...)
		}
		switch {
		case p.congestion():
			fail("rows can't choose here: the event says which header follows")
		case i < len(p.src.Stack)-1:
			fail("rows choose among the last headers of a stack, and %q follows", p.src.Stack[i+1].Var.Value)
		case e.Optional:
			fail("rows choose one of these headers: none is no choice").
				WithHint("a header with the fields that all of them begin with stands for none")
		case !slices.ContainsFunc(p.src.Lookups, func(l *spec.Lookup) bool { return !l.Optional }):
			fail("nothing chooses among these headers: the program has no lookup that has to find a row").
				WithHint("look up a row by the fields of %s: lookup: NAME: TABLE: […]", e.Var.Value)
		default:
			if h, f, what := unfitToChoose(p.names.Choices(e)); h != nil {
				fail("rows can't choose header %q: its field %q %s", h.Name.Value, f.Name.Value, what).
					WithRelated(f.Name.Pos, "the field is declared here").
					WithHint("a header up to the fields that the lookup reads is enough; the rest is payload")
			}
		}
	}
}

// unfitToChoose returns a header that can't be tried, with the field because of which: what stops a packet inside of a
// condition can't lead on to what comes after it, and who a packet is for is decided once.
func unfitToChoose(hs []*spec.Header) (*spec.Header, *spec.Field, string) {
	for _, h := range hs {
		for _, f := range h.Fields {
			switch {
			case h.Metadata != "":
				return h, f, "may be in the packet's metadata"
			case f.When != nil:
				return h, f, "may be absent"
			case f.Kind == spec.FieldVarint:
				return h, f, "is a varint"
			case f.Role.Value != "":
				return h, f, "has a role in the network"
			}
		}
	}
	return nil, nil, ""
}

// sameLength says what to do about byte strings of different lengths, of at most size bytes.
func (p *program) sameLength(size int) string {
	const rule = "byte strings are neither padded nor cut"
	i := slices.IndexFunc(p.src.Stack, func(e *spec.StackEntry) bool { return e.ByLookup })
	switch {
	case i < 0:
		return rule + ": both need the same number of bytes"
	case size <= 8:
		return rule + ", integers are padded: give the fields bits in place of bytes, the member the type \"u64\", " +
			"and the table a member for the length"
	}
	var bits, types []string
	for ; size > 0; size -= 8 {
		n := strconv.Itoa(8 * min(size, 8))
		bits, types = append(bits, n), append(types, `"u`+n+`"`)
	}
	e := p.src.Stack[i]
	return fmt.Sprintf("%s, integers are padded: split the fields into a, b, … of %s bits, as far as they go, with "+
		"members of types %s, and one for the length; where a header has no b, look up 0: pick(%s, %s.b, 0)",
		rule, strings.Join(bits, ", "), strings.Join(types, ", "), e.Headers[0].Value, e.Var.Value)
}
