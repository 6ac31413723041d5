package bpf

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
)

// A write function turns the packet that came into the one that leaves, and sends it. Its parts, in this order:
//
//	values    everything that the new packet holds is computed from the old one (values.go)
//	checksums likewise, from what changes (sum.go)
//	room      the kernel's helpers that can fail: first those in front of any change
//	cells     the new front, in place, after one check of its bounds
//	the end   partial checksums, the sum of the device, counters, transmission

// forward renders the call of a write function, and the function.
func (f *function) forward(s *ir.Forward) {
	f.quote(s.Pos)
	if h := f.prog.halves[s]; h != nil {
		f.forwardInHalves(s, h)
		return
	}
	w := f.prog.writer(s.Rewrite, &s.Effects)
	w.fwd, w.linked = s, s.Hop != nil && f.prog.ir.L2
	w.known, w.reason = f.known, f.reason
	w.declared, w.scope = maps.Clone(f.declared), f.scope
	w.fx.early = true
	f.cover(s.Pos, &s.Effects)
	w.coverAll(f, s.Pos)
	w.render()
	w.newPointers()
	w.declareConstants()
	w.name = f.path + "_send"
	if w.rw.Family != 0 {
		w.name += fmt.Sprintf("_ipv%d", w.rw.Family)
	}
	w.name = f.prog.unique(w.name)
	f.stmt(s.Pos, "return %s;", f.call(w.function, "int", nil))
}

// writer makes a function that writes.
func (p *program) writer(rw *ir.Rewrite, fx *ir.Effects) *writer {
	w := &writer{function: p.function(), rw: rw}
	if w.rw == nil {
		w.rw = &ir.Rewrite{}
	}
	w.leaves = w.rw.Parts
	w.writes, w.values, w.terms = true, map[string]string{}, map[string]string{}
	w.fx, w.lowered = w.effects(fx), map[*ir.Var]int{}
	return w
}

// assemble puts a function together that others call.
func (f *function) assemble(head string) []string {
	out := []string{head, "{"}
	if f.timed {
		out = append(out, "\t__u64 clock = bpf_ktime_get_ns();")
	}
	if !f.writes {
		out = append(out, f.structures()...)
	}
	out = append(out, f.headerPointers(packetCame, func(p *ir.HeaderPart) bool {
		return fixed(p) || f.writes || f.given[p.At.Base]
	})...)
	if !f.savedDone {
		out = append(out, f.headerPointers(packetSaved, func(*ir.HeaderPart) bool { return true })...)
	}
	out = append(out, f.results()...)
	lines := f.text()
	if len(lines) > 0 && lines[0] == "" {
		lines = lines[1:]
	}
	if len(out) > 2 && !f.declaring {
		out = append(out, "")
	}
	return append(append(out, lines...), "}")
}

// pass returns the parameters of a function that f calls, and the arguments: all that it uses and doesn't set itself.
func (f *function) pass(w *function) (params, args []string) {
	if !f.prog.flow {
		params, args = []string{"struct __sk_buff *skb"}, []string{"skb"}
	}
	add := func(param, arg string) {
		params, args = append(params, param), append(args, arg)
	}
	if w.data || len(w.ptrsUsed) > 0 {
		f.data = true
		add("void *data", "data")
	}
	if w.dataEnd {
		f.dataEnd = true
		add("void *data_end", "data_end")
	}
	if w.saved || len(w.savedUsed) > 0 {
		f.saved = true
		add("void *front", "front")
	}
	if w.leased && !w.writes {
		f.leased = true
		add("const struct fr_lease *lease", "lease")
	}
	if w.now {
		f.usesNow()
		add("__u64 now", "now")
	}
	for _, v := range f.prog.ir.Vars {
		if contains(w.varsUsed, v) && !w.own[v] {
			if v.Type.IsBytes() {
				add("__u64 *"+w.nameOf(v), f.variable(v))
			} else {
				add("__u64 "+w.nameOf(v), f.variable(v))
			}
		}
		if contains(w.ptrsUsed, v) && (w.writes || w.given[v]) {
			use(&f.ptrsUsed, v)
			add("void *"+w.pointerName(v), f.pointerName(v))
		}
		if contains(w.savedUsed, v) {
			use(&f.savedUsed, v)
			add("void *"+w.pointerName(v), f.pointerName(v))
		}
	}
	for _, r := range f.prog.ir.Rows {
		if contains(w.rowsUsed, r) && !w.rowsOwn[r] {
			add(fmt.Sprintf("struct %s *%s", f.vals[r.Table], w.rowName(r)), f.row(r))
		}
	}
	for _, h := range w.hopsUsed {
		if w.routed[h] {
			continue
		}
		use(&f.hopsUsed, h)
		at := ""
		if f.routed[h] {
			at = "&"
		}
		add("struct fr_hop *"+h.hop(), at+h.hop())
		add("struct bpf_fib_lookup *"+h.fib(), at+h.fib())
	}
	return params, args
}

// writer is a write function.
type writer struct {
	*function
	fwd    *ir.Forward // nil where it makes a copy
	copy   *ir.Copy
	rw     *ir.Rewrite
	fx     *effects
	linked bool // link-layer addresses are written
	// values have no names: they are read where they are used, since what they are read from stays
	inPlace     bool
	inner       bool              // it rewrites the packet for a function that makes a copy
	newAt       int               // where the pointers to headers that leave are declared
	beside      map[string]string // names of what is written beside the packet: its priority and its mark
	oldLen      string            // names of the bytes of headers that came, and that leave; empty where they vary
	newLen      string
	cells       []cell
	sums        []*sum
	changed     bool              // the packet has changed: what fails now drops it
	moves       bool              // helpers were called that may have moved the packet
	constants   []string          // offsets and lengths that have names
	constantsAt int               // where they are declared
	checked     int               // bytes of the packet that leaves which are in bounds, since fr_resize
	asked       string            // the variable that says where a checksum is left to a device, where it has asked
	terms       map[string]string // values that only checksums need, by name
	half        *halves           // it is given what depends on the packet that came
	both        *came             // what was computed for another way as well
	// values that are a part of one that was computed: what adds up to the same in a checksum
	within map[string][]summand
}

// coverAll has the deciding function make sure of all that the write function reads in place.
func (w *writer) coverAll(f *function, pos diag.Pos) {
	f.cover(pos, w.rw)
	for _, s := range w.rw.Sums {
		if !s.Fresh {
			f.cover(pos, &ir.Load{Off: s.Old, Bits: 16})
		}
	}
	if w.fwd != nil {
		f.cover(pos, w.fwd.End)
	}
	if w.linked {
		f.need(ir.Off{Const: 14}, f.reason, pos)
	}
	if w.rw.Resize == ir.InPlace {
		for _, c := range w.rw.Stores {
			n := c.Size
			if c.Plain {
				continue // fr_put_uint makes sure itself
			} else if c.Width != nil {
				n = 1 // the packet had an integer of that width there
			}
			f.need(plus(c.Off, n), f.reason, c.Pos)
		}
	}
}

func (w *writer) render() {
	w.declaring = true
	w.line("__u32 len = %s;", w.length())
	w.constantsAt = len(w.lines)
	w.lengths()
	w.fx.before()
	w.compute()
	w.checksums()
	w.once()
	w.goes()
}

// goes renders what comes when all is computed: the packet changes, and leaves.
func (w *writer) goes() {
	rw := w.rw
	w.metadata()
	direct := ""
	if w.linked {
		direct = "direct"
		w.line("int direct = %sstate == FR_HOP_DIRECT;", w.hop(w.fwd.Hop))
	}
	w.room()
	w.front(direct)
	w.link()
	if rw.PopTag && !rw.PopInner {
		w.line("")
		w.line("/* The tag in the metadata belongs to the link that the packet came from. */")
		w.failIf("bpf_skb_vlan_pop(skb)")
	}
	for _, name := range []string{"priority", "mark"} {
		if w.beside[name] != "" {
			w.line("skb->%s = %s;", name, w.beside[name])
		}
	}
	if rw.Summed > 0 {
		w.line("")
		w.line("/* What a device has verified may have been the checksum of a header that has gone. */")
	}
	for range rw.Summed {
		w.line("bpf_csum_level(skb, BPF_CSUM_LEVEL_DEC);")
	}
	w.line("")
	w.line("fr_count(%s, len);", w.prog.reasonName(w.fwd.Reason))
	for _, r := range w.fwd.Usage {
		w.use(r)
	}
	w.fx.after()
	if w.fwd.Hop == nil {
		w.line("return TC_ACT_UNSPEC;")
		return
	}
	w.redirect(w.fwd.Hop, direct)
}

// link makes room for the link-layer header of a packet that came without one. The kernel writes it when the neighbour
// is known, but drops a packet that has no room for it (__bpf_redirect_neigh in net/core/filter.c).
func (w *writer) link() {
	if w.fwd.Hop == nil || w.prog.ir.L2 {
		return
	}
	w.changed = w.changed || w.stored() || w.fwd.End != nil
	w.line("")
	w.line("/* There was no link-layer header: room for the one that the kernel writes. */")
	w.failIf("bpf_skb_change_head(skb, 14, 0)")
}

// metadata computes what is written beside the packet.
func (w *writer) metadata() {
	w.beside = map[string]string{}
	for _, m := range []struct {
		name string
		x    ir.Expr
	}{{"priority", w.rw.Priority}, {"mark", w.rw.Mark}} {
		if m.x != nil {
			w.beside[m.name] = w.names.own("new_" + m.name)
			w.line("__u32 %s = %s;", w.beside[m.name], w.expr(m.x))
		}
	}
}

// failIf renders what becomes of the packet where a helper fails: it passes to the stack while nothing has
// changed. A copy isn't made.
func (w *writer) failIf(cond string) {
	var stop string
	switch {
	case w.inner:
		stop = "return 1;"
	case w.fwd == nil:
		stop = w.ends("refuse", w.copy.Failed)
	case !w.changed:
		stop = w.upFor(w.reasonOf(w.fwd.NoRoom))
	default:
		stop = fmt.Sprintf("return fr_drop(len, %s);", w.reasonOf(w.fwd.Fault))
	}
	w.fails(cond, stop)
}

// fails gives back what was taken.
func (w *writer) fails(cond, stop string) {
	if len(w.fx.undo) == 0 {
		w.line("if (%s)", cond)
		w.line("\t%s", stop)
		return
	}
	w.stopIf(diag.Pos{}, cond, w.fx.undo, stop)
}

// stored reports whether something is stored into the front of the packet that leaves.
func (w *writer) stored() bool {
	return len(w.cells) > 0 || len(w.sums) > 0 || len(w.rw.Blanks) > 0 || w.linked
}

// front renders the stores into the front of the packet that leaves.
func (w *writer) front(direct string) {
	if !w.stored() {
		return
	}
	w.blank()
	if w.moves {
		w.rederive()
	}
	w.usesData()
	var spans []string // a record has no sum of the device's
	if !w.prog.flow {
		spans = w.spans()
	}
	declared := false // the line in front is a declaration
	if len(spans) > 0 {
		shifted := w.shifted()
		w.line("")
		if len(spans) == 1 && shifted == "" {
			w.line("__s64 csum = fr_complete_begin(skb, %s);", spans[0])
			declared = true
		} else {
			w.line("__s64 csum = bpf_csum_update(skb, 0);")
			w.line("if (unlikely(csum >= 0)) {")
			if shifted != "" {
				w.line("\tif (%s)", shifted)
				w.line("\t\tcsum = fr_complete_shifted(csum);")
			}
			for _, p := range spans {
				w.line("\tcsum = fr_complete_without(skb, csum, %s);", p)
			}
			w.line("}")
		}
	}
	if !declared {
		w.line("")
	}
	w.newAt = len(w.lines)
	if direct != "" {
		w.line("if (direct)")
		w.line("\tfr_link(data, %s);", w.hopPointer(w.fwd.Hop))
	}
	w.line("")
	for _, c := range w.cells {
		w.put(c)
	}
	if len(w.cells) > 0 || direct != "" {
		w.changed = true
	}
	for _, s := range w.sums {
		w.stmt(s.Pos, "st16(%s, %s);", w.newPtr(s.New), s.stored())
	}
	for _, s := range w.sums {
		if s.Offloaded && !s.Fresh {
			w.finish(s)
		}
	}
	w.wholes()
	switch {
	case len(spans) == 1:
		w.line("fr_complete_end(skb, csum, %s);", spans[0])
	case len(spans) > 0:
		w.line("if (unlikely(csum >= 0)) {")
		for _, p := range spans[1:] {
			w.line("\tcsum = fr_complete_with(skb, csum, %s);", p)
		}
		w.line("\tfr_complete(skb, csum, %s);", spans[0])
		w.line("}")
	}
}

// put stores a cell.
func (w *writer) put(c cell) {
	if c.width == nil {
		w.stmt(c.pos, "st%d(%s, %s);", c.size*8, w.newPtr(c.off), c.code)
		return
	}
	w.more = true
	if c.when != nil {
		w.stmt(c.pos, "if (%s)", w.expr(c.when))
		w.indent++
		defer func() { w.indent-- }()
	}
	if c.word > 0 {
		limit := uint64(c.off.Const + c.word)
		if c.off.Base != nil {
			limit += c.off.Base.Max
		}
		w.stmt(c.pos, "fr_put_uint(%s, (void *)(long)skb->data_end, %d, %s, %s);",
			w.word(fmt.Sprintf("%s + %s", w.offset(plus(c.off, -c.word)), w.variable(c.width)), limit), c.word, c.code,
			w.variable(c.width))
		return
	}
	w.stmt(c.pos, "fr_put_varint(%s, (void *)(long)skb->data_end, %s, %s);", w.newPtr(c.off), c.code,
		w.variable(c.width))
}

// newPtr is a pointer into the packet that leaves.
func (w *writer) newPtr(o ir.Off) string {
	if s := w.byName(o, packetLeaves); s != "" {
		return s
	}
	return w.raw(o)
}

// newPointers puts the pointers to the headers that leave where the packet is known.
func (w *writer) newPointers() {
	pointers := w.headerPointers(packetLeaves, func(*ir.HeaderPart) bool { return true })
	w.lines = slices.Insert(w.lines, w.newAt, pointers...)
	if w.newAt > 0 && w.lines[w.newAt-1] == "" && w.lines[w.newAt] == "" {
		w.lines = slices.Delete(w.lines, w.newAt, w.newAt+1)
	}
}

// constant names an offset or a length.
func (w *writer) constant(name string, n int) {
	w.constants = append(w.constants, fmt.Sprintf("%s = %d", name, n))
}

// declareConstants puts the constants at the head of the function.
func (w *writer) declareConstants() {
	if len(w.constants) > 0 {
		w.lines = slices.Insert(w.lines, w.constantsAt, "\tconst __u32 "+strings.Join(w.constants, ", ")+";")
	}
}

// unlessEmpty renders a call for a header that has bytes.
func (w *writer) unlessEmpty(b ir.Blank, call string) string {
	if !b.Empty {
		return call
	}
	return w.operand(b.Len) + " && " + call
}

// blank renders the zeros of headers.
func (w *writer) blank() {
	for i, b := range w.rw.Blanks {
		if i == 0 {
			w.line("")
		}
		w.failIf(w.unlessEmpty(b, fmt.Sprintf("fr_blank(skb, %s, %s)", w.offset(b.At), w.expr(b.Len))))
		w.changed, w.moves, w.checked = true, true, 0
	}
}

// spans returns the offsets and sizes of the parts of the front that change, at most 64 bytes each, as arguments.
func (w *writer) spans() (out []string) {
	type span struct{ from, to int }
	spans := map[*ir.Var]*span{}
	var order []*ir.Var
	note := func(o ir.Off, n int) {
		s := spans[o.Base]
		if s == nil {
			s = &span{o.Const, o.Const}
			spans[o.Base] = s
			order = append(order, o.Base)
		}
		s.from, s.to = min(s.from, o.Const), max(s.to, o.Const+n)
	}
	for _, c := range w.cells {
		if c.width != nil {
			out = append(out, fmt.Sprintf("%s, %s", w.offset(c.off), w.variable(c.width)))
			continue
		}
		note(c.off, c.size)
	}
	for _, s := range w.sums {
		note(s.New, 2)
	}
	for _, v := range order {
		s := spans[v]
		if v == nil && w.prog.ir.L2 {
			s.from = max(s.from, 14) // the sum begins after the Ethernet header
		}
		for at := s.from; at < s.to; at += 64 {
			from, size := w.offset(ir.Off{Base: v, Const: at}), fmt.Sprint(min(64, s.to-at))
			if v == nil && at == 14 && w.prog.ir.L2 {
				from = "ETH_HLEN"
				if end := w.end(v, s.to); s.to-at <= 64 && end == w.newLen {
					size = end + " - " + from
				}
			}
			out = append(out, from+", "+size)
		}
	}
	return out
}

// rederive finds the packet again after helpers that may have moved it.
func (w *writer) rederive() {
	if w.checked == 0 {
		w.line("")
		w.line("data = (void *)(long)skb->data;")
		w.usesData()
	}
	begins, ends := map[*ir.Var]int{}, map[*ir.Var]int{}
	var order []*ir.Var
	note := func(o ir.Off, n int) {
		if _, ok := ends[o.Base]; !ok {
			order = append(order, o.Base)
		}
		begins[o.Base], ends[o.Base] = min(begins[o.Base], o.Const), max(ends[o.Base], o.Const+n)
	}
	if w.linked {
		note(ir.Off{}, 12)
	}
	for _, c := range w.cells {
		if c.word == 0 {
			note(c.off, c.least())
		}
	}
	for _, s := range w.sums {
		note(s.New, 2)
	}
	for _, v := range order {
		if v == nil && ends[v] <= w.checked {
			continue
		}
		p := "data"
		if v != nil {
			if begins[v] < 0 {
				w.lowered[v] = -begins[v]
			}
			w.pointerTo(v)
			p = w.base(v)
		}
		w.failIf(fmt.Sprintf("unlikely(%s + %s > (void *)(long)skb->data_end)", p, w.end(v, ends[v]+w.lowered[v])))
	}
}
