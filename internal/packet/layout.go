package packet

import (
	"fmt"
	"math/bits"
	"slices"

	"github.com/fastrelay/fastrelay-gen/spec"
)

// Headers finds the headers and groups of a spec by name.
type Headers struct {
	byName map[string]*spec.Header
	groups map[string][]string
	names  []string

	shadows map[string]bool // groups of the spec with the name of a standard header
}

// NewHeaders returns the headers of a spec. A header or group that is declared first wins over a later one of its name.
func NewHeaders(s *spec.Spec) *Headers {
	hs := &Headers{byName: map[string]*spec.Header{}, groups: map[string][]string{}, shadows: map[string]bool{}}
	for _, h := range s.Headers {
		if hs.byName[h.Name.Value] == nil {
			hs.byName[h.Name.Value] = h
			hs.names = append(hs.names, h.Name.Value)
		}
	}
	for _, g := range s.Alternatives {
		if hs.groups[g.Name.Value] == nil {
			for _, n := range g.Headers {
				hs.groups[g.Name.Value] = append(hs.groups[g.Name.Value], n.Value)
			}
		}
		if h := hs.byName[g.Name.Value]; h != nil && h.Std && !g.Std {
			hs.shadows[g.Name.Value] = true
		}
	}
	return hs
}

// Header returns the header of a name, or nil.
func (hs *Headers) Header(name string) *spec.Header { return hs.byName[name] }

// Group returns the headers that a name stands for: those of a group, or the header itself.
func (hs *Headers) Group(name string) []*spec.Header {
	if h := hs.byName[name]; h != nil && !hs.shadows[name] {
		return []*spec.Header{h}
	}
	var out []*spec.Header
	for _, n := range hs.groups[name] {
		if h := hs.byName[n]; h != nil {
			out = append(out, h)
		}
	}
	return out
}

// Place is where a field is in a frame.
type Place struct {
	Field *spec.Field
	Bit   int // from the first bit of the frame
	Bits  int // 0 if the field is absent or empty
	There bool
}

// Span is where a header is in a frame, and how far its content reaches.
type Span struct {
	Header *spec.Header
	Start  int
	End    int // after the last field
	Limit  int // where the enclosing header's content ends
	Inner  int // where the header's own content ends, a trailer included
	Places []Place
	After  int // 1 + the index of the header after whose content it begins; 0: inside of the one in front of it

	entry    string // what a program's stack calls it (see Stack)
	followed bool   // a header begins after its content
}

// Name returns the header's name.
func (s *Span) Name() string { return s.Header.Name.Value }

// limit is where the content ends of what encloses the i-th span of a frame of n bytes; those in front of it are
// bounded.
func limit(spans []*Span, i, n int) int {
	switch {
	case spans[i].After > 0:
		return spans[spans[i].After-1].Limit
	case i > 0:
		return spans[i-1].Payload()
	}
	return n
}

// Payload is where the payload ends: in front of a trailer.
func (s *Span) Payload() int { return max(s.End, s.Inner-s.Header.Trailer) }

// IsNet reports whether a header is that of a datagram, which has a destination.
func (s *Span) IsNet() bool {
	return slices.ContainsFunc(s.Header.Fields, func(f *spec.Field) bool { return f.Role.Value == "destination" })
}

// Place returns the place of a field, or nil.
func (s *Span) Place(field string) *Place {
	i := slices.IndexFunc(s.Places, func(p Place) bool { return p.Field.Name.Value == field })
	if i < 0 {
		return nil
	}
	return &s.Places[i]
}

// Get reads the value of a field.
func (p *Place) Get(frame []byte) Value {
	f := p.Field
	raw := func() []byte { return frame[p.Bit/8 : (p.Bit+p.Bits)/8] }
	switch {
	case f.Kind == spec.FieldBytes || f.Kind == spec.FieldSized && !f.SizedUint():
		return Bytes(raw())
	case f.Kind == spec.FieldVarint && p.Bits > 0:
		return Uint(getBits(frame, p.Bit+2, p.Bits-2))
	case f.Little && p.Bits%8 == 0:
		var v uint64
		for i, b := range raw() {
			v |= uint64(b) << (8 * i)
		}
		return Uint(v)
	}
	return Uint(getBits(frame, p.Bit, p.Bits))
}

// Put writes a value; one that is too long for its place is cut.
func (p *Place) Put(frame []byte, v Value) {
	f := p.Field
	raw := func() []byte { return frame[p.Bit/8 : (p.Bit+p.Bits)/8] }
	switch {
	case p.Bits == 0:
	case v.Bytes != nil:
		copy(raw(), v.Bytes)
	case f.Kind == spec.FieldVarint:
		putBits(frame, p.Bit, 2, uint64(bits.TrailingZeros(uint(p.Bits/8))))
		putBits(frame, p.Bit+2, p.Bits-2, v.Int)
	case f.Little && p.Bits%8 == 0:
		for i := range raw() {
			raw()[i] = byte(v.Int >> (8 * i))
		}
	default:
		putBits(frame, p.Bit, p.Bits, v.Int)
	}
}

// scope gives names in a header's expressions their values: the header's own fields, and those of the headers around
// it.
type scope struct {
	hs    *Headers
	frame []byte
	spans []*Span // the last one is the header itself
}

// find returns the nearest span that a name stands for, by header or by group, the innermost first.
func (s *scope) find(name string) *Span {
	for _, by := range []func(*Span) bool{
		func(sp *Span) bool { return sp.Name() == name },
		func(sp *Span) bool { return slices.Contains(s.hs.groups[name], sp.Name()) },
	} {
		for _, sp := range slices.Backward(s.spans) {
			if by(sp) {
				return sp
			}
		}
	}
	return nil
}

// place returns the place of a field that a dotted name stands for, through aliases.
func (s *scope) place(path []spec.Name) (*Place, *Span) {
	span, names := s.spans[len(s.spans)-1], path
	if len(path) > 1 {
		if span = s.find(path[0].Value); span == nil {
			return nil, nil
		}
		names = path[1:]
	}
	if p := span.Place(names[0].Value); p != nil {
		return p, span
	}
	for _, part := range span.Header.Parts {
		if part.Name.Value != names[0].Value {
			continue
		}
		inner := &scope{s.hs, s.frame, s.spans[:slices.Index(s.spans, span)+1]}
		switch {
		case part.Alias != nil:
			return inner.place(part.Alias.Path)
		case len(names) == 2 && names[1].Value == "addr":
			return inner.place(part.Addr.Path)
		case len(names) == 2 && names[1].Value == "port":
			return inner.place(part.Port.Path)
		}
	}
	return nil, nil
}

// eval computes an integer (or 0 and 1) expression.
func (s *scope) eval(e *spec.Expr) (uint64, error) {
	return eval(e, func(e *spec.Expr) (uint64, error) {
		if e.Op == spec.OpName {
			p, _ := s.place(e.Path)
			if p == nil {
				return 0, fmt.Errorf("no field %q here", dotted(e.Path))
			}
			if p.Bits == 0 {
				return 0, nil
			}
			v := p.Get(s.frame)
			if v.Bytes != nil && len(v.Bytes) <= 8 {
				return getBits(v.Bytes, 0, 8*len(v.Bytes)), nil
			}
			return v.Int, nil
		}
		return s.leaf(e)
	})
}

// leaf evaluates len(...), low(x, FIELD) and indexing.
func (s *scope) leaf(e *spec.Expr) (uint64, error) {
	if e.Op == spec.OpIndex && e.Args[0].Op == spec.OpName {
		p, _ := s.place(e.Args[0].Path)
		if p == nil || p.Bits == 0 {
			return 0, nil
		}
		if b := p.Get(s.frame).Bytes; e.Args[1].Int < uint64(len(b)) {
			return uint64(b[e.Args[1].Int]), nil
		}
		return 0, fmt.Errorf("index %d is outside %q", e.Args[1].Int, dotted(e.Args[0].Path))
	}
	if e.Op == spec.OpCall && e.Fn.Value == "low" && len(e.Args) == 2 && e.Args[1].Op == spec.OpName {
		if p, _ := s.place(e.Args[1].Path); p != nil {
			bits := p.Bits
			if p.Field.Kind == spec.FieldVarint {
				bits = max(0, bits-2)
			}
			x, err := s.eval(e.Args[0])
			if bits < 64 {
				x &= 1<<bits - 1
			}
			return x, err
		}
	}
	if e.Op == spec.OpCall && e.Fn.Value == "len" && len(e.Args) == 1 && e.Args[0].Op == spec.OpName {
		path := e.Args[0].Path
		span := s.find(path[0].Value)
		switch {
		case span != nil && len(path) == 1:
			return uint64(span.Inner - span.Start), nil
		case span != nil && len(path) == 2 && path[1].Value == "payload":
			return uint64(span.Payload() - span.End), nil
		}
		if p, _ := s.place(path); p != nil {
			return uint64(p.Bits / 8), nil
		}
	}
	return 0, fmt.Errorf("an expression that a header can't use")
}

func dotted(path []spec.Name) string {
	var s string
	for i, n := range path {
		if i > 0 {
			s += "."
		}
		s += n.Value
	}
	return s
}

func truth(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}

// eval computes an expression; names, calls and indices are the caller's.
func eval(e *spec.Expr, leaf func(*spec.Expr) (uint64, error)) (uint64, error) {
	var args [2]uint64
	switch e.Op {
	case spec.OpInt, spec.OpBool:
		return e.Int, nil
	case spec.OpName, spec.OpIndex:
		return leaf(e)
	case spec.OpCall:
		if e.Fn.Value != "low" || len(e.Args) != 2 || e.Args[1].Op != spec.OpInt {
			return leaf(e)
		}
	}
	for i, a := range e.Args[:min(2, len(e.Args))] {
		v, err := eval(a, leaf)
		if err != nil {
			return 0, err
		}
		args[i] = v
		if i == 0 && (e.Op == spec.OpLand && v == 0 || e.Op == spec.OpLor && v != 0) {
			return truth(v != 0), nil
		}
	}
	x, y := args[0], args[1]
	switch e.Op {
	case spec.OpCall: // low(x, n)
		if y >= 64 {
			return x, nil
		}
		return x & (1<<y - 1), nil
	case spec.OpNot:
		return truth(x == 0), nil
	case spec.OpInv:
		return ^x, nil
	case spec.OpNeg:
		return -x, nil
	case spec.OpMul:
		return x * y, nil
	case spec.OpDiv, spec.OpRem:
		if y == 0 {
			return 0, fmt.Errorf("division by zero")
		}
		if e.Op == spec.OpDiv {
			return x / y, nil
		}
		return x % y, nil
	case spec.OpShl:
		return x << y, nil
	case spec.OpShr:
		return x >> y, nil
	case spec.OpAnd:
		return x & y, nil
	case spec.OpAndNot:
		return x &^ y, nil
	case spec.OpAdd:
		return x + y, nil
	case spec.OpSub:
		return x - y, nil
	case spec.OpOr:
		return x | y, nil
	case spec.OpXor:
		return x ^ y, nil
	case spec.OpEq:
		return truth(x == y), nil
	case spec.OpNe:
		return truth(x != y), nil
	case spec.OpLt:
		return truth(x < y), nil
	case spec.OpLe:
		return truth(x <= y), nil
	case spec.OpGt:
		return truth(x > y), nil
	case spec.OpGe:
		return truth(x >= y), nil
	case spec.OpLand, spec.OpLor:
		return truth(y != 0), nil
	}
	return 0, fmt.Errorf("an expression that a header can't use")
}
