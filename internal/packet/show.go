package packet

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"github.com/fastrelay/fastrelay-gen/spec"
)

// Frames as a person sees them: which headers of a program's stack a frame has, where its fields are, and what a
// program changed.

// Where says where a field is in its frame: "byte 22", "bytes 26-29", or "byte 14, bits 4-7" if the field doesn't
// consist of whole bytes; bits count from the most significant one.
func (p *Place) Where() string {
	first, last := p.Bit/8, (p.Bit+max(p.Bits, 1)-1)/8
	switch from, to := p.Bit%8, (p.Bit+max(p.Bits, 1)-1)%8; {
	case p.Bits == 0 || from == 0 && to == 7 && first == last:
		return fmt.Sprintf("byte %d", first)
	case from == 0 && to == 7:
		return fmt.Sprintf("bytes %d-%d", first, last)
	case first == last && from == to:
		return fmt.Sprintf("byte %d, bit %d", first, from)
	case first == last:
		return fmt.Sprintf("byte %d, bits %d-%d", first, from, to)
	}
	return fmt.Sprintf("bytes %d-%d, in part", first, last)
}

// Text shows the value of a field.
func (p *Place) Text(frame []byte) string {
	if !p.There {
		return "absent"
	}
	return p.Get(frame).text(p.Field)
}

// Stack finds the headers of a program's stack in a frame, as far as it has them: each has to be announced by the one
// in front of it, and have values that it allows. If the stack ends early, the standard headers that announce
// themselves follow.
func (hs *Headers) Stack(frame []byte, p *spec.Program) []*Span {
	m := &matcher{hs: hs, frame: frame, stack: p.Stack}
	m.try(0, nil)
	spans := m.best
	for !m.whole && len(spans) < maxSpans {
		var h *spec.Header
		if len(spans) > 0 {
			h = hs.next(frame, spans[len(spans)-1])
		} else if len(p.Stack) > 0 {
			break // not even the first header
		}
		if h == nil {
			break
		}
		more := hs.add(frame, spans, h, 0)
		if more == nil {
			break
		}
		spans = more
	}
	return spans
}

const maxSpans = 24

// matcher tries the headers of a stack, and keeps the attempt that went furthest.
type matcher struct {
	hs    *Headers
	frame []byte
	stack []*spec.StackEntry
	of    []int // by entry: 1 + the index of its span; 0: it has none
	best  []*Span
	whole bool
}

func (m *matcher) try(entry int, spans []*Span) {
	if m.whole {
		return
	}
	if entry == len(m.stack) {
		m.whole, m.best = true, spans
		return
	}
	if len(spans) > len(m.best) {
		m.best = spans
	}
	e := m.stack[entry]
	after := 0
	if e.After != nil {
		for i, other := range m.stack[:entry] {
			if other.Var.Value == e.After.Value {
				after = m.of[i]
			}
		}
	}
	for _, n := range e.Headers {
		for _, h := range m.hs.Group(n.Value) {
			if more := m.hs.add(m.frame, spans, h, after); more != nil {
				m.of = append(m.of[:entry], len(more))
				more[len(more)-1].entry = e.Var.Value
				m.try(entry+1, more)
			}
		}
	}
	if e.Optional {
		m.of = append(m.of[:entry], 0)
		m.try(entry+1, spans)
	}
}

// add returns spans with one more, of a header that can be there, or nil.
func (hs *Headers) add(frame []byte, spans []*Span, h *spec.Header, after int) []*Span {
	sp := &Span{Header: h, After: after}
	more := append(slices.Clip(slices.Clone(spans)), sp)
	i := len(spans)
	switch {
	case after > 0:
		sp.Start = spans[after-1].Inner
	case i > 0:
		sp.Start = spans[i-1].End
		if !hs.announces(frame, spans[i-1], h) {
			return nil
		}
	}
	sp.Limit = limit(more, i, len(frame))
	if sp.Start > sp.Limit || hs.layOut(frame, more) != nil || len(sp.values(frame)) > 0 {
		return nil
	}
	sp.bound(frame, sp.Limit)
	return more
}

// announces reports whether a header may follow: the one in front says so, or says nothing about it.
func (hs *Headers) announces(frame []byte, front *Span, h *spec.Header) bool {
	said := false
	for _, a := range h.After {
		about := a.Parent.Value == front.Name() || slices.Contains(hs.groups[a.Parent.Value], front.Name())
		if about && len(a.Match) > 0 {
			said = true
			if matches(frame, front, a.Match) {
				return true
			}
		}
	}
	return !said
}

// Rewritten finds the headers in a frame that a program made of another one, whose headers are known: those, or with
// what one of the program's rules pushes and pops, whichever fits best.
func (hs *Headers) Rewritten(frame []byte, in []*Span, p *spec.Program) []*Span {
	var best []*Span
	worst := -1
	for _, seq := range hs.sequences(in, p) {
		headers, opt := make([]*spec.Header, len(seq)), Options{After: make([]int, len(seq))}
		for i, e := range seq {
			headers[i] = e.header
			if n := slices.Index(seq, e.after); e.after != nil && n >= 0 && n < i {
				opt.After[i] = n + 1
			}
		}
		spans, problems := hs.Parse(frame, headers, opt)
		bad := 16*(len(headers)-len(spans)) + len(problems)
		for i, sp := range spans {
			if i > 0 && sp.After == 0 && !hs.announces(frame, spans[i-1], sp.Header) {
				bad += 16
			}
		}
		if worst < 0 || bad < worst {
			best, worst = spans, bad
		}
	}
	return best
}

// part is a header in a sequence.
type part struct {
	header *spec.Header
	entry  string
	after  *part
}

// sequences are the headers that a program's packet may have afterwards.
func (hs *Headers) sequences(in []*Span, p *spec.Program) (out [][]*part) {
	var first []*part
	for _, sp := range in {
		e := &part{header: sp.Header, entry: sp.entry}
		if sp.After > 0 {
			e.after = first[sp.After-1]
		}
		first = append(first, e)
	}
	add := func(seq []*part) {
		out = append(out, seq)
		for i, e := range seq { // a datagram that is sent on may have the other IP version
			for from, to := range map[string]string{"ipv4": "ipv6", "ipv6": "ipv4"} {
				if h := hs.byName[to]; e.header.Name.Value == from && h != nil {
					other := slices.Clone(seq)
					other[i] = &part{header: h, entry: e.entry, after: e.after}
					out = append(out, other)
				}
			}
		}
	}
	add(first)
	for _, rule := range p.Rules {
		seq, changed := slices.Clone(first), false
		for _, a := range rule.Do {
			at := func(name string) int {
				return slices.IndexFunc(seq, func(e *part) bool {
					return e.entry == name || e.header.Name.Value == name
				})
			}
			switch i := at(a.Header.Value); {
			case a.Kind == spec.ActPop && i >= 0:
				seq, changed = slices.Delete(seq, i, i+1), true
			case a.Kind == spec.ActPush && hs.byName[a.Header.Value] != nil:
				to := len(seq)
				if a.Before != nil {
					if n := at(a.Before.Value); n >= 0 {
						to = n
					}
				}
				e := &part{header: hs.byName[a.Header.Value], entry: a.Header.Value}
				seq, changed = slices.Insert(seq, to, e), true
			}
		}
		if changed {
			add(seq)
		}
	}
	return out
}

// Lines shows a frame: a line for each header, with its place and its fields, and one for the payload.
func Lines(frame []byte, spans []*Span) (out []string) {
	name := func(s string) string { return fmt.Sprintf("%-14s", s) }
	end := 0
	for _, sp := range spans {
		out = append(out, fmt.Sprintf("%s %s", name(sp.Name()), sp.text(frame)))
		end = max(end, sp.End)
	}
	if rest := payload(frame, spans); len(rest) > 0 {
		out = append(out, fmt.Sprintf("%s %s", name("payload"), bytesAt(end, rest)))
	}
	return out
}

// text is a header's place and its fields.
func (s *Span) text(frame []byte) string {
	var fields []string
	for i := range s.Places {
		if p := &s.Places[i]; p.There {
			fields = append(fields, p.Field.Name.Value+" "+p.Text(frame))
		}
	}
	return fmt.Sprintf("%s: %s", rangeText(s.Start, s.End), strings.Join(fields, ", "))
}

func rangeText(from, to int) string {
	p := Place{Bit: 8 * from, Bits: 8 * (to - from)}
	return p.Where()
}

func bytesAt(at int, b []byte) string {
	return fmt.Sprintf("%s: %s", rangeText(at, at+len(b)), quote(b))
}

// payload is what follows the last header, without a trailer; without any header, all of the frame.
func payload(frame []byte, spans []*Span) []byte {
	if len(spans) == 0 {
		return frame
	}
	last := spans[len(spans)-1]
	return frame[last.End:last.Payload()]
}

// Change is a difference that a program has made.
type Change struct {
	What  string `json:"what"`  // "changed", "removed", "added"
	Name  string `json:"name"`  // a field, "ipv4.ttl"; a header; "payload"
	Place string `json:"place"` // in the frame as it came, or, of what was added, as it left
	From  string `json:"from,omitempty"`
	To    string `json:"to,omitempty"`
}

func (c Change) String() string {
	switch c.What {
	case "removed":
		return fmt.Sprintf("- %-22s %-15s %s", c.Name, c.Place, c.From)
	case "added":
		return fmt.Sprintf("+ %-22s %-15s %s", c.Name, c.Place, c.To)
	}
	return fmt.Sprintf("~ %-22s %-15s %s -> %s", c.Name, c.Place, c.From, c.To)
}

// Changes compares a frame with what a program made of it, field by field: first the headers that are in both frames,
// in order, then the payload.
func Changes(received []byte, in []*Span, left []byte, out []*Span) (all []Change) {
	if bytes.Equal(received, left) {
		return nil // also if lengths disagree, so that other headers seem to fit better
	}
	header := func(what string, frame []byte, sp *Span) {
		place, fields, _ := strings.Cut(sp.text(frame), ": ")
		c := Change{What: what, Name: sp.Name(), Place: place}
		if what == "added" {
			c.To = fields
		} else {
			c.From = fields
		}
		all = append(all, c)
	}
	j := 0
	for _, sp := range in {
		n := slices.IndexFunc(out[j:], func(o *Span) bool { return o.Header == sp.Header })
		if n < 0 {
			header("removed", received, sp)
			continue
		}
		for _, o := range out[j : j+n] {
			header("added", left, o)
		}
		j += n + 1
		all = append(all, sp.changes(received, left, out[j-1])...)
	}
	for _, o := range out[j:] {
		header("added", left, o)
	}
	from, to := payload(received, in), payload(left, out)
	if !bytes.Equal(from, to) {
		at := len(received) - len(from)
		if len(in) > 0 {
			at = in[len(in)-1].End
		}
		if n := min(len(from), len(to)); len(from) == len(to) {
			first := 0
			for first < n && from[first] == to[first] {
				first++
			}
			at, from, to = at+first, from[first:], to[first:]
		}
		all = append(all, Change{"changed", "payload", fmt.Sprintf("byte %d", at), quote(from), quote(to)})
	}
	if a, b := rest(received, in), rest(left, out); a != b {
		all = append(all, Change{
			"changed", "after the payload", fmt.Sprintf("byte %d", len(received)-a),
			fmt.Sprintf("%d bytes", a), fmt.Sprintf("%d bytes", b),
		})
	}
	return all
}

// rest is how many bytes follow what the headers count: padding of the link, or a trailer.
func rest(frame []byte, spans []*Span) int {
	if len(spans) == 0 {
		return 0
	}
	return len(frame) - spans[len(spans)-1].Payload()
}

func (s *Span) changes(received, left []byte, o *Span) (all []Change) {
	for i := range s.Places {
		from := &s.Places[i]
		to := o.Place(from.Field.Name.Value)
		if to == nil {
			continue
		}
		if a, b := from.Text(received), to.Text(left); a != b {
			all = append(all, Change{"changed", s.Name() + "." + from.Field.Name.Value, from.Where(), a, b})
		}
	}
	return all
}

// Complete completes a checksum that the sender has left to its device: the field holds the sum of the pseudo-header
// only, which is what a capture at the sender has. It reports whether there is one.
func (hs *Headers) Complete(frame []byte, spans []*Span) ([]byte, bool) {
	i, p := hs.partial(frame, spans)
	if p == nil {
		return frame, false
	}
	s := &scope{hs, bytes.Clone(frame), spans[:i+1]}
	pseudo, err := s.pseudo(p.Field.Checksum)
	if err != nil {
		return frame, false
	}
	full, err := s.checksum(p)
	got := p.Get(frame).Int % 0xffff
	if err != nil || got != uint64(fold(pseudo))%0xffff || got == uint64(full)%0xffff {
		return frame, false
	}
	p.Put(s.frame, Uint(uint64(full)))
	return s.frame, true
}
