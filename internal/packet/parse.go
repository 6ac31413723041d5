package packet

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/fastrelay/fastrelay-gen/spec"
)

// Problem is something about a frame that its headers don't allow.
type Problem struct {
	Field string // "udp.length", or a header
	Text  string
	Place string // where it is in the frame, "byte 38"; empty if nothing says so
}

func (p Problem) String() string { return p.Field + ": " + p.Text }

// Parse takes a frame apart: the headers are expected one after the other from the first byte on. The spans go as far
// as the frame does; problems are lengths that disagree, values that are not allowed, and checksums that are wrong.
func (hs *Headers) Parse(frame []byte, headers []*spec.Header, opt Options) ([]*Span, []Problem) {
	var spans []*Span
	var problems []Problem
	for i, h := range headers {
		sp := &Span{Header: h, followed: slices.Contains(opt.After, i+1)}
		spans = append(spans, sp)
		if i < len(opt.After) && opt.After[i] > 0 {
			sp.After = opt.After[i]
			sp.Start = spans[sp.After-1].Inner
		} else if i > 0 {
			sp.Start = spans[i-1].End
		}
		sp.Limit = limit(spans, i, len(frame))
		if p := hs.layOut(frame, spans); p != nil {
			return spans[:len(spans)-1], append(problems, *p)
		}
		problems = append(problems, sp.values(frame)...)
		problems = append(problems, sp.bound(frame, sp.Limit)...)
	}
	if i, p := hs.partial(frame, spans); opt.Partial && p != nil {
		// It has to be the pseudo-header's sum; outer ones are looked at as they will be when it is complete.
		s := &scope{hs, frame, spans[:i+1]}
		name := spans[i].Name() + "." + p.Field.Name.Value
		if pseudo, err := s.pseudo(p.Field.Checksum); err != nil {
			problems = append(problems, Problem{name, err.Error(), p.Where()})
		} else if got := p.Get(frame).Int; got%0xffff != uint64(fold(pseudo))%0xffff {
			text := fmt.Sprintf("got 0x%04x, want 0x%04x", got, fold(pseudo))
			problems = append(problems, Problem{name, text, p.Where()})
		}
		s.frame = bytes.Clone(frame)
		if full, err := s.checksum(p); err == nil {
			p.Put(s.frame, Uint(uint64(full)))
		}
		frame = s.frame
	}
	for i, sp := range spans {
		problems = append(problems, (&scope{hs, frame, spans[:i+1]}).sums(sp)...)
	}
	return spans, problems
}

// layOut finds the fields of the last span; it returns a problem if the frame ends first.
func (hs *Headers) layOut(frame []byte, spans []*Span) *Problem {
	sp := spans[len(spans)-1]
	s := &scope{hs, frame, spans}
	bit := 8 * sp.Start
	for _, f := range sp.Header.Fields {
		p := Place{Field: f, Bit: bit, There: true}
		problem := func(text string) *Problem { return &Problem{sp.Name() + "." + f.Name.Value, text, p.Where()} }
		if f.When != nil {
			v, err := s.eval(f.When)
			if err != nil {
				return problem(err.Error())
			}
			p.There = v != 0
		}
		switch {
		case !p.There:
		case f.Kind == spec.FieldVarint:
			if bit/8 >= sp.Limit {
				return problem("the packet ends in front of it")
			}
			p.Bits = 8 << (frame[bit/8] >> 6)
		case f.Kind == spec.FieldSized:
			n, err := s.eval(f.Size)
			if err != nil {
				return problem(err.Error())
			}
			if n > uint64(f.Max) {
				return problem(fmt.Sprintf("a length of %d, its bound is %d", n, f.Max))
			}
			p.Bits = int(n) * 8
		default:
			p.Bits = f.Width()
		}
		bit += p.Bits
		if bit > 8*sp.Limit {
			return problem("the packet ends inside of it")
		}
		sp.Places = append(sp.Places, p)
	}
	sp.End = (bit + 7) / 8
	return nil
}

// values checks constraints.
func (s *Span) values(frame []byte) []Problem {
	var problems []Problem
	for _, p := range s.Places {
		if p.Field.Is == nil || !p.There || p.Bits == 0 {
			continue
		}
		if v := p.Get(frame); !allows(p.Field.Is, p.Field, v) {
			problems = append(problems, Problem{
				s.Name() + "." + p.Field.Name.Value, "got " + v.text(p.Field) + ", which the header doesn't allow",
				p.Where(),
			})
		}
	}
	return problems
}

// bound finds where a header's content ends, inside the limit, and checks its lengths.
func (s *Span) bound(frame []byte, limit int) []Problem {
	s.Limit, s.Inner = limit, max(limit, s.End)
	var problems []Problem
	for _, p := range s.Places {
		k := p.Field.Counts
		if k == nil || !p.There {
			continue
		}
		v := p.Get(frame)
		bad := func(want int64) {
			problems = append(problems, Problem{
				s.Name() + "." + p.Field.Name.Value, fmt.Sprintf("got %d, want %d", v.Int, want), p.Where(),
			})
		}
		unit := int64(max(k.Unit, 1))
		n := (int64(v.Int) - k.Bias) * unit
		switch k.What {
		case "header":
			if n != int64(s.End-s.Start) {
				bad(int64(s.End-s.Start)/unit + k.Bias)
			}
			continue
		case "all":
			n += int64(s.Start)
		default:
			n += int64(s.End)
		}
		slack := int64(limit) - n
		if n < int64(s.End) || slack < 0 || k.Slack >= 0 && slack > int64(k.Slack) && !s.followed {
			bad(int64(v.Int) + slack/unit)
		}
		if n >= int64(s.End) && slack >= 0 {
			s.Inner = int(n)
		}
	}
	return problems
}

// sums checks the checksums of a span, the last one of the scope.
func (s *scope) sums(sp *Span) []Problem {
	var problems []Problem
	for _, p := range sp.Places {
		c := p.Field.Checksum
		if c == nil || !p.There {
			continue
		}
		got := p.Get(s.frame)
		if got.Int == 0 && s.mayBeAbsent(c) {
			continue
		}
		want, err := s.checksum(&p)
		name := sp.Name() + "." + p.Field.Name.Value
		switch {
		case err != nil:
			problems = append(problems, Problem{name, err.Error(), p.Where()})
		case got.Int%0xffff != uint64(want)%0xffff || c.Optional && got.Int == 0:
			problems = append(problems, Problem{name, fmt.Sprintf("got 0x%04x, want 0x%04x", got.Int, want), p.Where()})
		}
	}
	return problems
}

// mayBeAbsent reports whether 0 says that there is no checksum, which depends on the enclosing headers.
func (s *scope) mayBeAbsent(c *spec.Checksum) bool {
	for _, a := range c.Absent {
		if s.find(a.Value) != nil {
			return true
		}
	}
	return false
}
