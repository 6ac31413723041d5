package packet

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"github.com/fastrelay/fastrelay-gen/spec"
)

// Check compares a frame with the headers that are expected: the fields that are given, and all lengths, constraints
// and checksums. Raw bytes are compared with all that follows the header in front of them in the datagram.
func (hs *Headers) Check(frame []byte, layers []Layer, opt Options) []Problem {
	var headers []*spec.Header
	for _, l := range layers {
		if l.Header != nil {
			headers = append(headers, l.Header)
		}
	}
	opt.After = after(layers)
	spans, problems := hs.Parse(frame, headers, opt)
	problems = slices.DeleteFunc(problems, func(p Problem) bool { return leftOut(spans, layers, p) })
	if n := slices.IndexFunc(spans, (*Span).IsNet); opt.Exact && n >= 0 {
		end := spans[n].Inner + Trailers(spans[:n])
		if end < len(frame) {
			problems = append(problems, Problem{
				"frame", fmt.Sprintf("%d bytes follow the IP datagram", len(frame)-end), fmt.Sprintf("byte %d", end),
			})
		}
	}
	i := 0
	for n, l := range layers {
		switch {
		case l.Header != nil && i >= len(spans):
			return problems
		case l.Header != nil:
			problems = append(problems, compare(frame, spans[i], l)...)
			i++
		case n == 0 || layers[n-1].Header != nil: // the first of some raw bytes
			var raw []byte
			for _, l := range layers[n:] {
				if l.Header != nil {
					break
				}
				raw = append(raw, l.Raw...)
			}
			at, end := 0, len(frame)
			if i > 0 {
				at, end = spans[i-1].End, spans[i-1].Payload()
			}
			if i > 0 && i == len(headers) {
				end = payloadEnd(spans)
			}
			if got := frame[at:end]; !bytes.Equal(got, raw) {
				problems = append(problems, Problem{
					"payload", fmt.Sprintf("got %s, want %s", quote(got), quote(raw)), fmt.Sprintf("byte %d", at),
				})
			}
		}
	}
	return problems
}

// payloadEnd is where what follows the last one of some headers ends: a length may leave some of it out.
func payloadEnd(spans []*Span) int {
	end := spans[len(spans)-1].Payload()
	for _, sp := range slices.Backward(spans) {
		if sp.Header.Trailer > 0 || sp.IsNet() {
			break
		}
		end = max(end, sp.Limit)
	}
	return end
}

// Trailers is how many bytes of trailers headers have.
func Trailers(spans []*Span) (bytes int) {
	for _, sp := range spans {
		bytes += sp.Header.Trailer
	}
	return bytes
}

// leftOut reports whether a problem is that a packet has no checksum if a test wants none: 0, which a tunnel may do
// without (RFC 6935).
func leftOut(spans []*Span, layers []Layer, p Problem) bool {
	i := 0
	for _, l := range layers {
		if l.Header == nil || i >= len(spans) {
			continue
		}
		for _, f := range l.Header.Fields {
			v, given := l.Values[f.Name.Value]
			if f.Checksum != nil && f.Checksum.Optional && given && v.Int == 0 && v.Bytes == nil &&
				p.Field == spans[i].Name()+"."+f.Name.Value && strings.HasPrefix(p.Text, "got 0x0000") {
				return true
			}
		}
		i++
	}
	return false
}

// compare compares the fields of a layer that are given.
func compare(frame []byte, sp *Span, l Layer) []Problem {
	var problems []Problem
	for _, p := range sp.Places {
		want, given := l.Values[p.Field.Name.Value]
		if !given {
			continue
		}
		name := sp.Name() + "." + p.Field.Name.Value
		if !p.There {
			problems = append(problems, Problem{name, "got nothing, want " + want.text(p.Field), p.Where()})
			continue
		}
		got := p.Get(frame)
		if want.Bytes != nil && got.Bytes == nil {
			got = Bytes(frame[p.Bit/8 : (p.Bit+p.Bits)/8]) // a varint given as it is written
		}
		if !got.equal(want) {
			// A length or a checksum that is given and wrong is reported once, as what the test wants.
			problems = append(problems, Problem{
				name, "got " + got.text(p.Field) + ", want " + want.text(p.Field), p.Where(),
			})
		}
	}
	return problems
}

// quote shows bytes as text if they are, else in hexadecimal digits, cut if they are long.
func quote(b []byte) string {
	const most = 48
	printable := len(b) > 0 && !slices.ContainsFunc(b, func(x byte) bool { return x < 0x20 || x > 0x7e })
	more := ""
	if len(b) > most {
		more = fmt.Sprintf("… (%d bytes)", len(b))
		b = b[:most]
	}
	switch {
	case printable:
		return fmt.Sprintf("%q%s", b, more)
	case len(b) == 0:
		return "nothing"
	}
	return fmt.Sprintf("%x%s", b, more)
}

// Diff compares two frames and names the fields that differ, by the headers expected in the second one; bytes outside
// of headers are named by their offset. It returns at most 16 differences.
func (hs *Headers) Diff(got, want []byte, headers []*spec.Header) []Problem {
	var problems []Problem
	if len(got) != len(want) {
		problems = append(problems, Problem{
			Field: "frame", Text: fmt.Sprintf("got %d bytes, want %d", len(got), len(want)),
		})
	}
	n := min(len(got), len(want))
	named := make([]bool, n)
	spans, _ := hs.Parse(want, headers, Options{})
	for _, sp := range spans {
		for _, p := range sp.Places {
			if p.Bits == 0 || p.Bit+p.Bits > 8*n {
				continue
			}
			for i := p.Bit / 8; i < (p.Bit+p.Bits+7)/8; i++ {
				named[i] = true
			}
			if g, w := p.Get(got), p.Get(want); !g.equal(w) {
				problems = append(problems, Problem{
					sp.Name() + "." + p.Field.Name.Value, "got " + g.text(p.Field) + ", want " + w.text(p.Field),
					p.Where(),
				})
			}
		}
	}
	differs := func(i int) bool { return i < n && !named[i] && got[i] != want[i] }
	for i := 0; i < n; i++ {
		end := i
		for differs(end) {
			end++
		}
		if end > i {
			problems = append(problems, Problem{
				Field: fmt.Sprintf("byte %d", i), Text: "got " + quote(got[i:end]) + ", want " + quote(want[i:end]),
			})
			i = end
		}
	}
	return problems[:min(len(problems), 16)]
}

// Guess finds headers that a frame seems to begin with: from the first one on, the header that announces itself.
func (hs *Headers) Guess(frame []byte, first *spec.Header) []*spec.Header {
	headers := []*spec.Header{first}
	for {
		spans, _ := hs.Parse(frame, headers, Options{})
		if len(spans) < len(headers) {
			return headers[:len(spans)]
		}
		next := hs.next(frame, spans[len(spans)-1])
		if next == nil || len(headers) > 16 {
			return headers
		}
		headers = append(headers, next)
	}
}

// next returns the header that the fields of a span announce, or nil.
func (hs *Headers) next(frame []byte, sp *Span) *spec.Header {
	for _, name := range hs.names {
		h := hs.byName[name]
		for _, a := range h.After {
			if a.Parent.Value == sp.Name() && len(a.Match) > 0 && matches(frame, sp, a.Match) {
				return h
			}
		}
	}
	return nil
}

func matches(frame []byte, sp *Span, match []*spec.FieldMatch) bool {
	for _, m := range match {
		p := sp.Place(m.Field.Path[len(m.Field.Path)-1].Value)
		if p == nil || !p.There || !allows(m.Is, p.Field, p.Get(frame)) {
			return false
		}
	}
	return true
}
