package packet

import (
	"fmt"
	"math/bits"
	"net/netip"
	"slices"

	"github.com/fastrelay/fastrelay-gen/spec"
)

// Layer is one header of a packet with the fields that are given, or (Header nil) raw bytes.
type Layer struct {
	Header *spec.Header
	Values map[string]Value // by field
	Raw    []byte
}

// Frame is a frame that was built, and where its headers are.
type Frame struct {
	Data  []byte
	Spans []*Span
}

// Options choose how a frame is built.
type Options struct {
	Partial bool // the innermost checksum that may be left to a device is: it holds the sum of its pseudo-header only
	// Parse: for each header 1 + the index of the one after whose content it begins; 0, or none: inside of the one in
	// front of it. If layers are given, a header after raw bytes begins after the content of the last header in
	// front of them that has a length.
	After []int
	Exact bool // Check: nothing follows the outermost IP datagram
	// Build: how many bytes a varint that is a length gets, 1, 2, 4, 8; 0, or nil: as few as it takes.
	Size func() int
}

// after is Options.After of layers.
func after(layers []Layer) (out []int) {
	var hosts []int
	raw := false
	n := 0
	for _, l := range layers {
		if l.Header == nil {
			raw = true
			continue
		}
		host := 0
		if raw && len(hosts) > 0 {
			host = hosts[len(hosts)-1]
			hosts = hosts[:len(hosts)-1]
		}
		out, raw = append(out, host), false
		n++
		if slices.ContainsFunc(l.Header.Fields, func(f *spec.Field) bool {
			return f.Counts != nil && f.Counts.What != "header"
		}) {
			hosts = append(hosts, n)
		}
	}
	return out
}

// Addresses that a frame has which gives none.
var (
	DefaultSource      = [6]byte{2, 0, 0, 0, 0, 1}
	DefaultDestination = [6]byte{2, 0, 0, 0, 0, 2}

	defaultAddresses = map[string]map[int]netip.Addr{ // by role and size
		"source":      {4: netip.MustParseAddr("198.51.100.1"), 16: netip.MustParseAddr("2001:db8::1")},
		"destination": {4: netip.MustParseAddr("192.0.2.1"), 16: netip.MustParseAddr("2001:db8::2")},
	}
)

// Build puts a frame together. It is an error if a field is given that the frame doesn't have, or if a length can't be
// expressed in its unit.
func (hs *Headers) Build(layers []Layer, opt Options) (*Frame, error) {
	b := &builder{hs: hs, layers: layers, after: after(layers), wide: map[length]int{}}
	if opt.Size != nil {
		for i, l := range b.headers() {
			for _, f := range l.Header.Fields {
				b.wide[length{i, f}] = opt.Size()
			}
		}
	}
	for again := true; again; {
		var err error
		if again, err = b.build(); err != nil {
			return nil, err
		}
	}
	for i, sp := range b.spans {
		sp.bound(b.data, limit(b.spans, i, len(b.data)))
	}
	f := &Frame{Data: b.data, Spans: b.spans}
	return f, hs.fillSums(f, opt, func(span int, field *spec.Field) bool { return b.given(span, field) })
}

// headers are the layers that aren't raw bytes.
func (b *builder) headers() []Layer {
	return slices.DeleteFunc(slices.Clone(b.layers), func(l Layer) bool { return l.Header == nil })
}

// build puts the layers together, without checksums. It reports whether that has to be done again, because a length
// needs more room.
func (b *builder) build() (again bool, err error) {
	b.data, b.spans, b.layerOf = nil, nil, nil
	var open []int // spans whose trailers are to come
	closes := func(from int) {
		for len(open) > 0 && open[len(open)-1] >= from {
			b.data = append(b.data, make([]byte, b.spans[open[len(open)-1]].Header.Trailer)...)
			open = open[:len(open)-1]
		}
	}
	for i, l := range b.layers {
		if l.Header == nil {
			b.data = append(b.data, l.Raw...)
			continue
		}
		span := len(b.spans)
		n := b.after[span]
		if n > 0 {
			host := b.spans[n-1]
			host.followed = true
			if !slices.ContainsFunc(host.Places, func(p Place) bool { return p.Field.Counts != nil && p.There }) {
				return false, fmt.Errorf("%s has no length, so that nothing can follow its payload", host.Name())
			}
			closes(n - 1)
		}
		if err := b.header(i); err != nil {
			return false, err
		}
		b.spans[span].After = n
		open = append(open, span)
	}
	closes(0)
	return b.lengths()
}

// FillSums computes all checksums of a frame anew, as far as its lengths reach.
func (hs *Headers) FillSums(f *Frame, opt Options) error {
	return hs.refill(f, opt, func(int, *spec.Field) bool { return false })
}

// FillVerified computes those checksums anew that are verified where a packet comes in.
func (hs *Headers) FillVerified(f *Frame) error {
	return hs.refill(f, Options{}, func(_ int, field *spec.Field) bool { return !field.Checksum.Verify })
}

func (hs *Headers) refill(f *Frame, opt Options, keep func(span int, field *spec.Field) bool) error {
	for i, sp := range f.Spans {
		if sp.End > len(f.Data) {
			return fmt.Errorf("the frame ends inside of %s", sp.Name())
		}
		sp.bound(f.Data, limit(f.Spans, i, len(f.Data)))
	}
	return hs.fillSums(f, opt, keep)
}

// fillSums computes checksums, the innermost first, except those to keep.
func (hs *Headers) fillSums(f *Frame, opt Options, keep func(span int, field *spec.Field) bool) error {
	for i, sp := range slices.Backward(f.Spans) {
		s := &scope{hs, f.Data, f.Spans[:i+1]}
		for _, p := range sp.Places {
			if p.Field.Checksum == nil || !p.There || keep(i, p.Field) {
				continue
			}
			sum, err := s.checksum(&p)
			if err != nil {
				return fmt.Errorf("%s.%s: %w", sp.Name(), p.Field.Name.Value, err)
			}
			p.Put(f.Data, Uint(uint64(sum)))
		}
	}
	if !opt.Partial {
		return nil
	}
	// Whoever leaves the inner checksum to a device computes outer ones as they will be right in the end.
	i, p := hs.partial(f.Data, f.Spans)
	if p == nil || keep(i, p.Field) {
		return nil
	}
	pseudo, err := (&scope{hs, f.Data, f.Spans[:i+1]}).pseudo(p.Field.Checksum)
	if err != nil {
		return err
	}
	p.Put(f.Data, Uint(uint64(fold(pseudo))))
	return nil
}

// partial returns the place of the innermost checksum that may be left to a device, and the index of its span; nil
// if there is none.
func (hs *Headers) partial(frame []byte, spans []*Span) (int, *Place) {
	for i, sp := range slices.Backward(spans) {
		for _, p := range sp.Places {
			if c := p.Field.Checksum; c != nil && c.Offloaded && p.There &&
				!((&scope{hs, frame, spans[:i+1]}).mayBeAbsent(c) && p.Get(frame).Int == 0) {
				return i, &p
			}
		}
	}
	return 0, nil
}

// Partial returns the offsets of the first byte that the innermost offloaded checksum of a frame covers, and of its
// field; zeros if there is none.
func (hs *Headers) Partial(f *Frame) (start, field int) {
	i, p := hs.partial(f.Data, f.Spans)
	if p == nil {
		return 0, 0
	}
	return f.Spans[i].Start, p.Bit / 8
}

// length is a field of a span that is a length.
type length struct {
	span int
	f    *spec.Field
}

type builder struct {
	hs      *Headers
	layers  []Layer
	data    []byte
	spans   []*Span
	layerOf []int // index of each span's layer
	after   []int
	wide    map[length]int // varints that are lengths: how many bytes they take
}

func (b *builder) given(span int, f *spec.Field) bool {
	_, ok := b.layers[b.layerOf[span]].Values[f.Name.Value]
	return ok
}

// header appends a header with all fields but lengths and checksums that are not given.
func (b *builder) header(layer int) error {
	l := b.layers[layer]
	sp := &Span{Header: l.Header, Start: len(b.data)}
	b.spans = append(b.spans, sp)
	b.layerOf = append(b.layerOf, layer)
	span := len(b.spans) - 1
	bit := 8 * sp.Start
	for _, f := range l.Header.Fields {
		name := sp.Name() + "." + f.Name.Value
		s := &scope{b.hs, b.data, b.spans}
		value, given := l.Values[f.Name.Value]
		p := Place{Field: f, Bit: bit, There: true}
		if f.When != nil {
			v, err := s.eval(f.When)
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			p.There = v != 0
		}
		if !p.There {
			if given {
				return fmt.Errorf("%s is given, but its condition doesn't hold", name)
			}
			sp.Places = append(sp.Places, p)
			continue
		}
		if !given {
			value = b.fallback(layer, f)
		}
		switch f.Kind {
		case spec.FieldVarint:
			if value.Bytes == nil {
				value = Bytes(varint(value.Int))
			}
			if n := b.wide[length{span, f}]; n > 0 && f.Counts != nil && !given {
				value = Bytes(make([]byte, n)) // as many as it needs: lengths writes it
			}
			p.Bits = 8 * len(value.Bytes)
		case spec.FieldSized:
			n, err := b.size(s, span, f, value, given)
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			p.Bits = 8 * n
		default:
			p.Bits = f.Width()
		}
		bit += p.Bits
		b.data = append(b.data, make([]byte, max(0, (bit+7)/8-len(b.data)))...)
		p.Put(b.data, value)
		sp.Places = append(sp.Places, p)
	}
	sp.End = (bit + 7) / 8
	return nil
}

// size returns the size of a field whose length others give. If its bytes are given and the field that gives the
// length is not, that field is set to what fits.
func (b *builder) size(s *scope, span int, f *spec.Field, value Value, given bool) (int, error) {
	free := b.free(s, span, f.Size)
	if !given {
		if free != nil && free.Field.Counts != nil {
			return 0, nil // the length will say that there is nothing
		}
		n, err := s.eval(f.Size)
		if err != nil {
			return 0, err
		}
		if n > uint64(f.Max) {
			return 0, fmt.Errorf("a length of %d, its bound is %d", n, f.Max)
		}
		return int(n), nil
	}
	if value.Bytes == nil {
		return b.sizeFor(s, f, value, free)
	}
	if free != nil && free.Field.Counts == nil {
		for v := range uint64(1) << min(free.Bits, 16) {
			free.Put(s.frame, Uint(v))
			if n, err := s.eval(f.Size); err == nil && n == uint64(len(value.Bytes)) {
				return len(value.Bytes), nil
			}
		}
		return 0, fmt.Errorf("%d bytes are given, and no value of %q says so", len(value.Bytes), free.Field.Name.Value)
	}
	return len(value.Bytes), nil
}

// sizeFor returns the size of an integer that is given: what other fields say, or the smallest one that it fits, if the
// field that says so isn't given.
func (b *builder) sizeFor(s *scope, f *spec.Field, value Value, free *Place) (int, error) {
	n, err := s.eval(f.Size)
	if free == nil {
		if err == nil && (n > uint64(f.Max) || bits.Len64(value.Int) > int(8*n)) {
			err = fmt.Errorf("%d doesn't fit into its %d bytes", value.Int, n)
		}
		return int(n), err
	}
	best, size := uint64(0), f.Max+1
	for v := range uint64(1) << min(free.Bits, 16) {
		free.Put(s.frame, Uint(v))
		if n, err := s.eval(f.Size); err == nil && n < uint64(size) && bits.Len64(value.Int) <= int(8*n) {
			best, size = v, int(n)
		}
	}
	if size > f.Max {
		return 0, fmt.Errorf("no value of %q makes room for %d", free.Field.Name.Value, value.Int)
	}
	free.Put(s.frame, Uint(best))
	return size, nil
}

// free returns an integer field of the header itself that an expression depends on and that is not given, or nil.
func (b *builder) free(s *scope, span int, e *spec.Expr) *Place {
	if e.Op == spec.OpName {
		p, sp := s.place(e.Path)
		if p != nil && sp == b.spans[span] && p.Field.Kind == spec.FieldUint && !b.given(span, p.Field) {
			return p
		}
		return nil
	}
	for _, a := range e.Args {
		if p := b.free(s, span, a); p != nil {
			return p
		}
	}
	return nil
}

// fallback is the value of a field that is not given: see the package comment.
func (b *builder) fallback(layer int, f *spec.Field) Value {
	switch f.Role.Value {
	case "hop_limit":
		return Uint(64)
	case "link_source":
		return Bytes(DefaultSource[:])
	case "link_destination":
		return Bytes(DefaultDestination[:])
	}
	if v, ok := b.announces(layer, f); ok {
		return v
	}
	if f.Counts == nil && f.Checksum == nil {
		if v, ok := first(f.Is, f); ok {
			return v
		}
	}
	if a, ok := defaultAddresses[f.Role.Value][f.Bytes]; ok && f.Type == "ip" {
		return Bytes(a.AsSlice())
	}
	switch f.Kind {
	case spec.FieldBytes:
		return Bytes(make([]byte, f.Bytes))
	case spec.FieldSized:
		if !f.SizedUint() {
			return Bytes(nil)
		}
	}
	return Uint(0)
}

// announces returns the value that a field needs for the next header to be recognised.
func (b *builder) announces(layer int, f *spec.Field) (Value, bool) {
	if layer+1 >= len(b.layers) || b.layers[layer+1].Header == nil {
		return Value{}, false
	}
	parent := b.layers[layer].Header.Name.Value
	for _, a := range b.layers[layer+1].Header.After {
		if a.Parent.Value != parent && !slices.Contains(b.hs.groups[a.Parent.Value], parent) {
			continue
		}
		for _, m := range a.Match {
			if m.Field.Path[len(m.Field.Path)-1].Value == f.Name.Value {
				return first(m.Is, f)
			}
		}
	}
	return Value{}, false
}

// lengths fills in the lengths that are not given. It reports whether one needs more bytes than it has.
func (b *builder) lengths() (again bool, err error) {
	limits := make([]int, len(b.spans)) // where the content of what encloses each ends
	for i, sp := range b.spans {
		switch {
		case sp.After > 0:
			limits[i] = limits[sp.After-1]
		case i == 0:
			limits[i] = len(b.data)
		default:
			limits[i] = b.inner(i-1, limits[i-1]) - b.spans[i-1].Header.Trailer
		}
		inner := b.inner(i, limits[i])
		for _, p := range sp.Places {
			k := p.Field.Counts
			if k == nil || !p.There || b.given(i, p.Field) {
				continue
			}
			n := map[string]int{"header": sp.End - sp.Start, "payload": inner - sp.End, "all": inner - sp.Start}[k.What]
			unit := max(k.Unit, 1)
			if n%unit != 0 {
				return false, fmt.Errorf("%s.%s: %d bytes are no multiple of its unit, %d", sp.Name(),
					p.Field.Name.Value, n, unit)
			}
			v := int64(n/unit) + k.Bias
			bits := p.Bits
			if p.Field.Kind == spec.FieldVarint {
				if need := 8 * len(varint(uint64(max(0, v)))); need > bits {
					b.wide[length{i, p.Field}] = need / 8
					return true, nil
				}
				bits -= 2
			}
			if v < 0 || bits < 63 && v>>bits != 0 {
				return false, fmt.Errorf("%s.%s: a length of %d doesn't fit into its %d bits", sp.Name(),
					p.Field.Name.Value, v, bits)
			}
			p.Put(b.data, Uint(uint64(v)))
		}
	}
	return false, nil
}

// inner is where the content of the i-th span ends: where the header begins that follows it, or where what encloses it
// ends.
func (b *builder) inner(i, limit int) int {
	if n := slices.Index(b.after, i+1); n >= 0 {
		return b.spans[n].Start
	}
	return limit
}
