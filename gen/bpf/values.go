package bpf

import (
	"fmt"
	"slices"
	"strings"

	"github.com/fastrelay/fastrelay-gen/gen/c"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
)

// What a write function writes: the stores into the packet that leaves, and their values. A value is cut into scalars
// that fit a register. One that is read from the packet that came is computed before the packet changes, and has a
// name. One that is simply read from a row is read where it is needed: to keep it on the stack would cost more.

// cell is a store into the front of the packet that leaves.
type cell struct {
	scalar
	off   ir.Off
	width *ir.Var // only so many of its bytes are stored: the first ones, or (word) the last ones of a word
	word  int
	when  ir.Expr // nothing is stored if this doesn't hold; nil: it always is
	note  string
	pos   diag.Pos
}

// stores cuts the cells of the rewrite into stores. What is only copied is copied in as few as there are.
func (w *writer) stores() (out []cell) {
	for _, st := range w.rw.Stores {
		off, note, value := st.Off, st.Note, st.Value
		if st.Plain {
			s := scalar{size: 8, code: w.expr(value), want: noted(note), le: true}
			out = append(out, cell{s, off, st.Width, st.Size, st.If, note, st.Pos})
			continue
		}
		if st.Width != nil {
			value = &ir.Word{X: st.Value, Width: st.Width}
		}
		parts := w.wire(value, st.Size, st.Little)
		for i, s := range parts {
			if s.want = noted(st.Note); i > 0 {
				s.want += fmt.Sprintf("_%d", off.Const-st.Off.Const)
			}
			out = append(out, cell{s, off, st.Width, 0, st.If, note, st.Pos})
			off, note = off.Plus(s.size), ""
		}
	}
	for i := 0; i+1 < len(out); {
		a, b := out[i], out[i+1]
		both, ok := w.join(a.scalar, b.scalar)
		if !ok || b.off != a.off.Plus(a.size) || a.width != nil || b.width != nil {
			i++
			continue
		}
		if b.note != "" {
			a.note += ", " + b.note
		}
		out = slices.Replace(out, i, i+2, cell{scalar: both, off: a.off, note: a.note, pos: a.pos})
		i = max(i-1, 0)
	}
	return out
}

// least is how many bytes of a cell are stored at least.
func (x *cell) least() int {
	if x.when != nil {
		return 0
	}
	if x.width != nil {
		return 1
	}
	return x.size
}

// compute gives the values of all cells names.
func (w *writer) compute() {
	w.cells = w.stores()
	for i := range w.cells {
		x := &w.cells[i]
		x.code = w.value(x.scalar, x.note, x.pos)
	}
}

// scalar is a part of a value that fits a register, in the order of bytes that it has in the packet.
type scalar struct {
	size int
	code c.Expr
	lit  bool
	v    uint64  // if lit
	load *ir.Off // if it is a part of the packet that came, as it is
	want string  // what it is called, if nothing better is known
	le   bool    // little endian
	row  bool    // it comes from rows and variables: it can be read again after the packet has changed
	// if it is a constant that is the number of a protocol: how that is written in a sum
	protocol c.Expr
}

// packet is a part of the packet that came.
func (w *writer) packet(o ir.Off, size int) scalar {
	return scalar{size: size, code: c.Bytes("ld", size, w.ptr(o)), load: &o}
}

// join makes one scalar of two, as large as both, that are constants or neighbours in the packet that came.
func (w *writer) join(a, b scalar) (scalar, bool) {
	if a.lit && b.lit && a.size == b.size && a.size <= 4 && !a.le && !b.le {
		both := literal(reverse(a.v, a.size)<<(8*a.size)|reverse(b.v, b.size), 2*a.size, false)
		both.want = a.want
		return both, true
	}
	if a.load == nil || b.load == nil || a.size != b.size || a.size > 4 || *b.load != (*a.load).Plus(a.size) {
		return scalar{}, false
	}
	both := w.packet(*a.load, 2*a.size)
	both.want = a.want
	return both, true
}

// wire cuts a value into scalars.
func (w *writer) wire(e ir.Expr, size int, little bool) []scalar {
	row := lasting(e)
	if e.Type().IsBytes() {
		b := w.bytes(e)
		from := 0
		if e.Type().Kind == ir.Addr && size == 4 {
			from = 12
		} else if b.size != size {
			w.fail("%d bytes are written as %d", b.size, size)
			return nil
		}
		var out []scalar
		done := 0
		sizes := pieces(0, size)
		if size == 16 && b.mem != nil && !b.ro && !w.inPlace { // in a copy, clang would keep more on the stack
			sizes = []int{16}
		}
		for _, n := range sizes {
			s := scalar{size: n, code: b.load(from+done, n), row: row}
			if from == 12 {
				s.code = b.ipv4()
			}
			if l, ok := e.(*ir.LoadBytes); ok && (b.v4 == nil || from == 12) {
				s = w.packet(l.Off.Plus(done), n)
				if s.want = "old_" + ident(l.Field); done > 0 {
					s.want += fmt.Sprintf("_%d", done)
				}
			}
			if b.fixed != nil {
				s.lit, s.v = true, littleEndian(b.fixed[from+done:from+done+n])
			}
			out = append(out, s)
			done += n
		}
		return out
	}
	switch size {
	case 1, 2, 4, 8:
	default:
		w.fail("an integer of %d bytes", size)
		return nil
	}
	switch e := e.(type) {
	case *ir.Const:
		return []scalar{literal(e.V, size, little)}
	case *ir.Load:
		if e.Bit == 0 && e.Bits == 8*size && (e.Little == little || size == 1) {
			s := w.packet(e.Off, size)
			s.want, s.le = "old_"+ident(e.Field), little
			return []scalar{s}
		}
	}
	if size == 1 || little {
		return []scalar{{size: size, code: w.expr(e), le: little, row: row}}
	}
	return []scalar{{size: size, code: c.Do(swaps[size], w.expr(e)), row: row}}
}

// lasting reports whether an expression has the same value after the packet has changed.
func lasting(e ir.Expr) bool {
	for e := range ir.Exprs(e) {
		if _, counter := e.(*ir.CounterValue); counter {
			return false
		}
	}
	return !ofPacket(e)
}

// swaps are the macros that put an integer into the order of bytes that packets have.
var swaps = map[int]string{2: "bpf_htons", 4: "bpf_htonl", 8: "bpf_cpu_to_be64"}

// literal is a constant.
func literal(v uint64, size int, little bool) scalar {
	if size == 1 || little {
		return scalar{size: size, code: c.Num(v), lit: true, v: v, le: little}
	}
	return scalar{size: size, code: c.Do(swaps[size], c.Num(v)), lit: true, v: reverse(v, size)}
}

// reverse swaps the bytes of an integer of size bytes.
func reverse(v uint64, size int) (out uint64) {
	for range size {
		out = out<<8 | v&0xff
		v >>= 8
	}
	return out
}

// maxInPlace is the size of the largest value that is read again in place of having a name; a variable counts twice.
const maxInPlace = 7

// isCheap reports whether a value costs no more than a register: it is read from memory, and little is done with it.
func isCheap(x c.Expr) bool {
	size := 0
	for y := range c.All(x) {
		size++
		switch y := y.(type) {
		case c.Call:
			if !isRead(y) {
				return false
			}
		case c.Name:
			size++
		case c.Number:
			if y.V >= 1<<31 { // it takes a register
				size += 2
			}
		}
	}
	return isRead(x) && size <= maxInPlace
}

// valueKey tells values apart.
type valueKey struct {
	size int
	code c.Key
}

func keyOf(s scalar) valueKey { return valueKey{s.size, c.KeyOf(s.code)} }

// value gives a scalar a name, unless it is a constant. One that was computed before keeps its name.
func (w *writer) value(s scalar, note string, pos diag.Pos) c.Expr {
	if s.lit {
		return s.code
	}
	if w.inPlace || s.row && isCheap(s.code) {
		if isRead(s.code) {
			return s.code
		}
		return c.Cast{Type: wireType(s), X: s.code}
	}
	key := keyOf(s)
	if name, ok := w.values[key]; ok {
		return name
	}
	want := s.want
	if note != "" {
		want = noted(note)
	}
	if want == "" {
		want = "value"
	}
	name := w.prog.local(want, "")
	w.values[key] = name
	w.define(pos, wireType(s), name, s.code)
	return name
}

// term gives a scalar of a checksum a name, unless it turns out that it is needed only once.
func (w *writer) term(s scalar, pos diag.Pos) c.Expr {
	_, known := w.values[keyOf(s)]
	x := w.value(s, "", pos)
	if name, ok := x.(*c.Local); ok && !known && !s.lit && !w.inPlace && isRead(s.code) {
		w.terms[name] = s.code
	}
	return x
}

// once puts values that are needed only once where they are needed: they are read from the packet that came, which
// doesn't change in between.
func (w *writer) once() {
	for _, s := range slices.Clone(w.body) {
		name := w.declares(s)
		if name == nil || c.Count(w.body, name) != 2 {
			continue
		}
		c.ReplaceIn(w.body, func(x c.Expr) c.Expr {
			if x == c.Expr(name) {
				return w.terms[name]
			}
			return nil
		})
		w.body = slices.DeleteFunc(w.body, func(t c.Stmt) bool { return t == s })
	}
}

// declares is the value that only checksums need which a statement declares, or nil.
func (w *writer) declares(s c.Stmt) *c.Local {
	d, ok := s.(*c.Declare)
	if !ok || len(d.Vars) != 1 {
		return nil
	}
	if x, ok := d.Vars[0].Name.(*c.Local); ok && w.terms[x] != nil {
		return x
	}
	return nil
}

// wireType is the type of a scalar as it is in the packet.
func wireType(s scalar) c.Type {
	if s.size == 1 || s.le {
		return cType(s.size)
	}
	return c.Type(fmt.Sprintf("__be%d", 8*s.size))
}

// noted makes a name of a note, "ipv4: version ihl, udp: length": of more than three fields the first and the last.
func noted(note string) string {
	var words []string
	for _, part := range strings.Split(note, ", ") {
		header, fields, ok := strings.Cut(part, ": ")
		for i, field := range strings.Fields(fields) {
			if i == 0 && ok {
				field = header + "_" + field
			}
			words = append(words, field)
		}
	}
	if len(words) > 3 {
		words = []string{words[0], "to", words[len(words)-1]}
	}
	return strings.Join(words, "_")
}

// reads are functions that read memory, or swap the bytes of what was read.
var reads = []string{
	"ld8", "ld16", "ld32", "ld64", "ld128", "ldv8", "ldv16", "ldv32", "ldv64", "fr_v4", "fr_setting_v4", "bpf_htons",
	"bpf_htonl", "bpf_cpu_to_be64",
}

// isRead reports whether a value is a call of such a function.
func isRead(x c.Expr) bool {
	call, ok := x.(c.Call)
	return ok && slices.Contains(reads, call.Name)
}
