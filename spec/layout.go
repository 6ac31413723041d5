package spec

// Place is where a field of a header is, as far as its declaration says that. A header is a list of segments: inside of
// one all distances are fixed, and a field of variable size or presence ends it. Such a field belongs to the segment
// that it ends.
type Place struct {
	Field   *Field
	Segment int // 0 begins with the header
	Bit     int // from the start of the segment
}

// Layout returns the places of a header's fields, in their order.
func (h *Header) Layout() []Place {
	places := make([]Place, 0, len(h.Fields))
	segment, bit := 0, 0
	for _, f := range h.Fields {
		places = append(places, Place{f, segment, bit})
		if f.Varies() {
			segment, bit = segment+1, 0
		} else {
			bit += f.Width()
		}
	}
	return places
}

// Varies reports whether packets differ in the size or the presence of a field.
func (f *Field) Varies() bool { return f.When != nil || f.Kind == FieldSized || f.Kind == FieldVarint }

// Width is how many bits a field has, if it is there, that is no FieldSized and no FieldVarint.
func (f *Field) Width() int {
	if f.Kind == FieldBytes {
		return 8 * f.Bytes
	}
	return f.Bits
}

// MaxBytes is how many bytes a field may have that has whole ones.
func (f *Field) MaxBytes() int {
	switch f.Kind {
	case FieldVarint:
		return 8
	case FieldSized:
		return f.Max
	}
	return f.Width() / 8
}

// MinBytes is how many bytes a header has at least.
func (h *Header) MinBytes() int {
	bits := 0
	for _, f := range h.Fields {
		switch {
		case !f.Varies():
			bits += f.Width()
		case f.Kind == FieldVarint && f.When == nil:
			bits += 8
		}
	}
	return bits / 8
}

// MaxBytes is how many bytes a header has at most.
func (h *Header) MaxBytes() int {
	bits := 0
	for _, f := range h.Fields {
		if f.Varies() {
			bits += 8 * f.MaxBytes()
		} else {
			bits += f.Width()
		}
	}
	return bits / 8
}

// Varies reports whether packets differ in the size of a header.
func (h *Header) Varies() bool {
	for _, f := range h.Fields {
		if f.Varies() {
			return true
		}
	}
	return false
}
