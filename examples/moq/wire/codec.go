package wire

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math/bits"
	"slices"
)

// Parse returns the message of a draft that b begins with, and what follows it. The message shares nothing with b. It
// returns ErrIncomplete if b ends too early, an *Error for a violation, and a message with a *Rejection for a request
// that has to be refused.
func Parse(d Draft, b []byte) (m Message, rest []byte, err error) {
	c := cursor{b: b}
	t := Type(c.varint())
	if c.short {
		return nil, b, ErrIncomplete
	}
	l, ok := d.table()[t]
	if !ok {
		return nil, b, violation("a message of the unknown type %#x", uint64(t))
	}
	body := c.bytes(uint64(c.uint8())<<8 | uint64(c.uint8()))
	if c.short {
		return nil, b, ErrIncomplete
	}
	m, fields := l.make()
	p := parser{cursor: cursor{b: body}, draft: d, message: t}
	for _, f := range fields {
		f.parse(&p)
	}
	switch {
	case p.err != nil:
	case p.short:
		p.fail("ends within its fields")
	case p.at < len(body):
		p.fail("has %d bytes after its fields", len(body)-p.at)
	}
	if p.err != nil {
		return nil, b, p.err
	}
	if p.rejection != nil {
		return m, b[c.at:], p.rejection
	}
	return m, b[c.at:], nil
}

// Append appends a message of a draft, in its shortest encoding. It refuses what the draft doesn't have, or forbids.
func Append(b []byte, d Draft, m Message) ([]byte, error) {
	l, ok := d.table()[m.Type()]
	if !ok {
		return b, fmt.Errorf("draft %d has no message of type %#x", d, uint64(m.Type()))
	}
	w := writer{draft: d, message: m.Type()}
	w.b = append(AppendVarint(b, uint64(m.Type())), 0, 0)
	start := len(w.b)
	for _, f := range l.fields(m) {
		f.append(&w)
	}
	n := len(w.b) - start
	if n > MaxMessage {
		w.fail("has %d bytes; at most %d are allowed", n, MaxMessage)
	}
	if w.err != nil {
		return b, w.err
	}
	binary.BigEndian.PutUint16(w.b[start-2:], uint16(n))
	return w.b, nil
}

// Reader reads the messages of a control stream, whose first one is SETUP, or of one direction of a request stream. It
// reads no further than the message that it returns.
type Reader struct {
	r     io.Reader
	draft Draft
	buf   []byte
}

// NewReader returns a Reader of a draft.
func NewReader(r io.Reader, d Draft) *Reader { return &Reader{r: r, draft: d} }

// Next returns the next message. It returns io.EOF if the stream ends before it, an *Error if the stream ends within it
// or it is a violation, a message with a *Rejection for a request that has to be refused, and the stream's own errors.
func (r *Reader) Next() (Message, error) {
	if err := r.fill(0, 1); err != nil {
		return nil, err
	}
	header := bits.LeadingZeros8(^r.buf[0]) + 1 + 2
	if err := r.fill(1, header); err != nil {
		return nil, err
	}
	if m, _, err := Parse(r.draft, r.buf); err != ErrIncomplete {
		return m, err
	}
	body := int(binary.BigEndian.Uint16(r.buf[header-2:]))
	if err := r.fill(header, header+body); err != nil {
		return nil, err
	}
	m, _, err := Parse(r.draft, r.buf)
	return m, err
}

// fill reads until the buffer, which has from bytes of the message, has to bytes. It grows with what has come, not with
// what is announced.
func (r *Reader) fill(from, to int) error {
	for r.buf = r.buf[:from]; len(r.buf) < to; {
		n := min(to, max(512, 2*len(r.buf)))
		at := len(r.buf)
		r.buf = slices.Grow(r.buf, n-at)[:n]
		got, err := io.ReadFull(r.r, r.buf[at:])
		r.buf = r.buf[:at+got]
		switch {
		case err == nil:
		case (err == io.EOF || err == io.ErrUnexpectedEOF) && len(r.buf) > 0:
			return violation("a stream that ends within a message")
		default:
			return err
		}
	}
	return nil
}

// field is a pointer to a member of a message, of a type that says how it is encoded.
type field interface {
	parse(p *parser)
	append(w *writer)
}

// parser takes fields from a message's body. The first failure is kept, and what follows it is of no account.
type parser struct {
	cursor
	draft     Draft
	message   Type
	err       error
	rejection *Rejection
}

func (p *parser) fail(format string, args ...any) {
	p.failWith(ProtocolViolation, format, args...)
}

func (p *parser) failWith(code SessionCode, format string, args ...any) {
	if p.err == nil {
		p.err = &Error{code, p.message.String() + " " + fmt.Sprintf(format, args...)}
	}
}

func (p *parser) reject(code RequestCode, format string, args ...any) {
	if p.rejection == nil {
		p.rejection = &Rejection{code, p.message.String() + " " + fmt.Sprintf(format, args...)}
	}
}

// text takes a length and so many bytes, at most limit.
func (p *parser) text(limit int, what string) string {
	n := p.varint()
	if n > uint64(limit) {
		p.fail("has a %s of %d bytes; at most %d are allowed", what, n, limit)
		p.short = true
	}
	return string(p.bytes(n))
}

// within has parse take all of the next n bytes.
func (p *parser) within(n uint64, parse func(*parser)) {
	inner := parser{cursor: cursor{b: p.bytes(n)}, draft: p.draft, message: p.message}
	if p.short {
		return
	}
	parse(&inner)
	switch {
	case inner.err != nil:
	case inner.short:
		inner.fail("has a value that ends within its fields")
	case inner.at < len(inner.b):
		inner.fail("has a value with %d bytes after its fields", len(inner.b)-inner.at)
	}
	if p.err == nil {
		p.err = inner.err
	}
	if p.rejection == nil {
		p.rejection = inner.rejection
	}
}

// writer appends fields to a message.
type writer struct {
	b       []byte
	draft   Draft
	message Type
	err     error
}

func (w *writer) fail(format string, args ...any) {
	if w.err == nil {
		w.err = fmt.Errorf("%v of draft %d %s", w.message, w.draft, fmt.Sprintf(format, args...))
	}
}

func (w *writer) varint(v uint64) { w.b = AppendVarint(w.b, v) }

func (w *writer) text(s string, limit int, what string) {
	if len(s) > limit {
		w.fail("has a %s of %d bytes; at most %d are allowed", what, len(s), limit)
	}
	w.varint(uint64(len(s)))
	w.b = append(w.b, s...)
}

// within appends the length of what it has appended before it.
func (w *writer) within(appendTo func(*writer)) {
	inner := writer{draft: w.draft, message: w.message}
	appendTo(&inner)
	if w.err == nil {
		w.err = inner.err
	}
	w.varint(uint64(len(inner.b)))
	w.b = append(w.b, inner.b...)
}

type (
	varint uint64 // a variable-length integer
	octet  uint8  // a byte
	flag   bool   // a byte that is 0 or 1
	reason string // at most MaxReason bytes, after their length
	uri    string // at most MaxURI bytes, after their length
)

func (v *varint) parse(p *parser)  { *v = varint(p.varint()) }
func (v *varint) append(w *writer) { w.varint(uint64(*v)) }

func (o *octet) parse(p *parser)  { *o = octet(p.uint8()) }
func (o *octet) append(w *writer) { w.b = append(w.b, byte(*o)) }

func (f *flag) parse(p *parser) {
	v := p.uint8()
	if v > 1 {
		p.fail("has %d for a value that is 0 or 1", v)
	}
	*f = v == 1
}

func (f *flag) append(w *writer) {
	v := byte(0)
	if *f {
		v = 1
	}
	w.b = append(w.b, v)
}

func (r *reason) parse(p *parser)  { *r = reason(p.text(MaxReason, "reason")) }
func (r *reason) append(w *writer) { w.text(string(*r), MaxReason, "reason") }

func (u *uri) parse(p *parser)  { *u = uri(p.text(MaxURI, "URI")) }
func (u *uri) append(w *writer) { w.text(string(*u), MaxURI, "URI") }

func (l *Location) parse(p *parser)  { *l = Location{p.varint(), p.varint()} }
func (l *Location) append(w *writer) { w.varint(l.Group); w.varint(l.Object) }

func (n *Namespace) parse(p *parser) {
	count := p.varint()
	if count > MaxNamespaceFields {
		p.fail("has a namespace of %d fields; at most %d are allowed", count, MaxNamespaceFields)
		return
	}
	*n = nil
	for range count {
		*n = append(*n, p.text(MaxTrackName, "field of a namespace"))
	}
	if err := n.check(); err != nil && !p.short && p.err == nil {
		p.err = err
	}
}

func (n *Namespace) append(w *writer) {
	if err := n.check(); err != nil {
		w.fail("has %v", err)
	}
	w.varint(uint64(len(*n)))
	for _, f := range *n {
		w.text(f, MaxTrackName, "field of a namespace")
	}
}

func (t *Track) parse(p *parser) {
	t.Namespace.parse(p)
	t.Name = p.text(MaxTrackName, "track name")
	if err := t.check(); err != nil && !p.short && p.err == nil {
		p.err = err
	}
}

func (t *Track) append(w *writer) {
	if err := t.check(); err != nil {
		w.fail("has %v", err)
	}
	t.Namespace.append(w)
	w.text(t.Name, MaxTrackName, "track name")
}

// Track properties are all that is left of a message.
func (p *Properties) parse(from *parser) {
	if from.short {
		return
	}
	*p = bytes.Clone(from.rest())
	if err := p.checkTrack(false); err != nil && from.err == nil {
		from.err = err
	}
}

func (p *Properties) append(w *writer) {
	if err := p.checkTrack(false); err != nil {
		w.fail("has %v", err)
	}
	w.b = append(w.b, *p...)
}
