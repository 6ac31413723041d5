package bpf

import (
	"fmt"
	"maps"
	"slices"

	"github.com/fastrelay/fastrelay-gen/gen/c"
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
	if h := f.prog.shared[s]; h != nil {
		f.forwardShared(s, h)
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
	f.end(s.Pos, f.callTo(w.function, f.prog.verdict(), nil))
}

// writer makes a function that writes.
func (p *program) writer(rw *ir.Rewrite, fx *ir.Effects) *writer {
	w := &writer{function: p.function(), rw: rw}
	if w.rw == nil {
		w.rw = &ir.Rewrite{}
	}
	w.leaves = w.rw.Runs
	w.writes, w.values, w.terms = true, map[valueKey]*c.Local{}, map[*c.Local]c.Expr{}
	w.fx, w.lowered = w.effects(fx), map[*ir.Var]int{}
	return w
}

// assemble puts a function together that others call; params is what it gets besides what it mentions and doesn't
// declare. It returns the arguments for that.
func (f *function) assemble(result c.Type, name string, params []c.Param) (out *c.Func, args []c.Expr) {
	out = &c.Func{Result: result, Name: name}
	g := &function{}
	g.block = &out.Body
	if f.timed {
		g.define(noPos, "__u64", c.Ident("clock"), c.Do("bpf_ktime_get_ns"))
	}
	headers := f.headerPointers(packetReceived, func(p *ir.FieldRun) bool {
		return fixed(p) || f.writes || f.given[p.At.Base]
	})
	if !f.savedDone {
		headers = append(headers, f.headerPointers(packetSaved, func(*ir.FieldRun) bool { return true })...)
	}
	text := f.text()
	if !f.writes {
		g.add(f.structures()...)
	}
	g.add(slices.Concat(headers, f.results(), text)...)
	free := slices.DeleteFunc(c.Free(out.Body), func(x *c.Local) bool {
		return slices.ContainsFunc(params, func(p c.Param) bool { return p.Name == c.Name(x) })
	})
	free = f.prog.inOrder(free)
	if !f.prog.flow {
		out.Params = append(out.Params, f.prog.ctx())
	}
	for _, x := range free {
		out.Params = append(out.Params, c.Param{Type: x.Type, Name: x})
	}
	out.Params = append(out.Params, params...)
	return out, f.prog.arguments(free)
}

// arguments are what functions are given: the packet, and variables.
func (p *program) arguments(variables []*c.Local) (out []c.Expr) {
	if !p.flow {
		out = append(out, p.given())
	}
	for _, x := range variables {
		out = append(out, x)
	}
	return out
}

// inOrder puts variables in the order that parameters have: what all programs have, then as the plan has them.
func (p *program) inOrder(list []*c.Local) []*c.Local {
	order := p.order()
	rank := func(x *c.Local) int {
		if i := slices.Index(order, x); i >= 0 {
			return i
		}
		return len(order)
	}
	slices.SortStableFunc(list, func(x, y *c.Local) int { return rank(x) - rank(y) })
	return list
}

// order are the variables that functions may be given.
func (p *program) order() []*c.Local {
	out := []*c.Local{data, dataEnd, front, lease, now, base}
	for _, v := range p.ir.Vars {
		out = append(out, p.locals[v], p.locals[pointerTo{v}], p.locals[savedAt{v}])
	}
	for _, r := range p.ir.Rows {
		out = append(out, p.locals[r])
	}
	return out
}

// paramType is the type of a variable that is a parameter.
func paramType(v *ir.Var) c.Type {
	if v.Type.IsBytes() {
		return "__u64 *"
	}
	return "__u64"
}

// writer is a write function.
type writer struct {
	*function
	fwd    *ir.Forward // nil if it makes a copy
	copy   *ir.Copy
	rw     *ir.Rewrite
	fx     *effects
	linked bool // link-layer addresses are written
	// values have no names: they are read where they are used, since what they are read from stays
	inPlace     bool
	inner       bool                // it rewrites the packet for a function that makes a copy
	newAt       *c.List             // where the pointers to headers that leave are declared
	beside      map[string]*c.Local // what is written beside the packet: its priority and its mark
	oldLen      *c.Local            // the bytes of headers that came, and that leave; nil if they vary
	newLen      *c.Local
	cells       []cell
	sums        []*sum
	changed     bool                // the packet has changed: what fails now drops it
	moves       bool                // helpers were called that may have moved the packet
	constants   []c.Var             // offsets and lengths that have names
	constantsAt *c.List             // where they are declared
	checked     int                 // bytes of the packet that leaves which are in bounds, since fr_resize
	asked       *c.Local            // the variable that says where a checksum is left to a device, if it has asked
	terms       map[*c.Local]c.Expr // values that only checksums need
	common      *commonWrite        // other statements use it as well: it is given what depends on the packet that came
	both        *receivedSums       // what was computed for another way as well
	// values that are a part of one that was computed: what adds up to the same in a checksum
	within map[valueKey][]summand
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
		for _, st := range w.rw.Stores {
			n := st.Size
			if st.Plain {
				continue // fr_put_uint makes sure itself
			} else if st.Width != nil {
				n = 1 // the packet had an integer of that width there
			}
			f.need(st.Off.Plus(n), f.reason, st.Pos)
		}
	}
}

func (w *writer) render() {
	w.define(noPos, "__u32", frameLen, w.length())
	w.constantsAt = w.place()
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
	direct := c.Ident("")
	if w.linked && !w.prog.frame() {
		direct = "direct"
		w.define(noPos, "int", direct, w.isDirect(w.fwd.Hop))
	}
	w.room()
	w.front(direct)
	w.link()
	if rw.PopTag && !rw.PopInner {
		w.gap()
		w.note("The tag in the metadata belongs to the link that the packet came from.")
		w.failIf(c.Do("bpf_skb_vlan_pop", skb))
	}
	for _, name := range []string{"priority", "mark"} {
		if w.beside[name] != nil {
			w.assign(noPos, ofSKB(name), w.beside[name])
		}
	}
	if rw.Summed > 0 {
		w.gap()
		w.note("What a device has verified may have been the checksum of a header that has gone.")
	}
	for range rw.Summed {
		w.do(noPos, "bpf_csum_level", skb, c.Ident("BPF_CSUM_LEVEL_DEC"))
	}
	w.gap()
	w.do(noPos, "fr_count", w.prog.reasonName(w.fwd.Reason), frameLen)
	for _, r := range w.fwd.Usage {
		w.use(r)
	}
	w.fx.after()
	switch {
	case w.fwd.Hop == nil && w.prog.frame():
		w.end(noPos, c.Ident("XDP_PASS"))
		return
	case w.fwd.Hop == nil:
		w.end(noPos, c.Ident("TC_ACT_UNSPEC"))
		return
	case w.prog.frame():
		w.end(noPos, c.Ident("XDP_REDIRECT")) // the check of the hop has said where
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
	w.gap()
	w.note("There was no link-layer header: room for the one that the kernel writes.")
	w.failIf(c.Do("bpf_skb_change_head", skb, c.Dec(14), c.Num(0)))
}

// metadata computes what is written beside the packet.
func (w *writer) metadata() {
	w.beside = map[string]*c.Local{}
	for _, m := range []struct {
		name string
		x    ir.Expr
	}{{"priority", w.rw.Priority}, {"mark", w.rw.Mark}} {
		if m.x != nil {
			w.beside[m.name] = own("new_"+m.name, "")
			w.define(noPos, "__u32", w.beside[m.name], w.expr(m.x))
		}
	}
}

// failIf renders what happens to the packet if a helper fails: it passes to the stack while nothing has
// changed. A copy isn't made.
func (w *writer) failIf(cond c.Expr) {
	var result c.Expr
	switch {
	case w.inner:
		result = c.Num(1)
	case w.fwd == nil:
		result = w.ends("refuse", w.copy.Failed)
	case !w.changed:
		result = w.stop(w.reasonOf(w.fwd.NoRoom))
	default:
		result = c.Do(w.prog.helper("drop"), frameLen, w.reasonOf(w.fwd.Fault))
	}
	w.fails(cond, result)
}

// fails gives back what was taken.
func (w *writer) fails(cond, result c.Expr) { w.stopIf(noPos, cond, w.fx.undo, result) }

// stored reports whether something is stored into the front of the packet that leaves.
func (w *writer) stored() bool {
	return len(w.cells) > 0 || len(w.sums) > 0 || len(w.rw.Filled) > 0 || w.linked
}

// front renders the stores into the front of the packet that leaves.
func (w *writer) front(direct c.Ident) {
	if !w.stored() {
		return
	}
	shifted := w.shifted()
	if len(w.rw.Filled) > 0 && shifted != nil {
		w.unshift(shifted)
		shifted = nil
	}
	w.fill()
	if w.moves {
		w.rederive()
	}
	var spans []span // a record has no sum of the device's, and neither has a frame
	if !w.prog.flow && !w.prog.frame() {
		spans = w.spans()
	}
	spread := len(spans) > 0 // what the device has summed up is put right in several steps
	if len(spans) > 0 {
		spread = len(spans) > 1 || shifted != nil
		w.gap()
		if spread {
			w.define(noPos, "__s64", csum, c.Do("bpf_csum_update", skb, c.Num(0)))
			w.when(noPos, isSummed(csum), func() {
				if shifted != nil {
					w.when(noPos, shifted, func() {
						w.assign(noPos, csum, c.Do("fr_complete_shifted", csum))
					})
				}
				for _, p := range spans {
					w.assign(noPos, csum, p.of("fr_complete_without", csum))
				}
			})
		} else {
			w.define(noPos, "__s64", csum, c.Do("fr_complete_begin", skb, spans[0].at, spans[0].size))
		}
	}
	if len(spans) != 1 || spread {
		w.gap()
	}
	w.newAt = w.place()
	link := func() { w.do(noPos, "fr_link", data, w.hop(w.fwd.Hop)) }
	switch {
	case direct != "":
		w.when(noPos, direct, link)
	case w.linked:
		link()
	}
	w.gap()
	for _, x := range w.cells {
		w.put(x)
	}
	if len(w.cells) > 0 || w.linked {
		w.changed = true
	}
	for _, s := range w.sums {
		w.do(s.Pos, "st16", w.newPtr(s.New), s.stored())
	}
	for _, s := range w.sums {
		if s.Offloaded && !s.Fresh {
			w.finish(s)
		}
	}
	w.wholes()
	switch {
	case len(spans) == 1:
		w.add(&c.Eval{X: spans[0].of("fr_complete_end", csum)})
	case len(spans) > 0:
		w.when(noPos, isSummed(csum), func() {
			for _, p := range spans[1:] {
				w.assign(noPos, csum, p.of("fr_complete_with", csum))
			}
			w.add(&c.Eval{X: spans[0].of("fr_complete", csum)})
		})
	}
}

// isSummed is the condition that the device has summed the packet up.
func isSummed(sum c.Expr) c.Expr {
	return c.Unlikely(c.Binary{Op: ">=", X: sum, Y: c.Num(0)})
}

// put stores a cell.
func (w *writer) put(x cell) {
	if x.width == nil {
		w.add(&c.Eval{Pos: x.pos, X: c.Bytes("st", x.size, w.newPtr(x.off), x.code)})
		return
	}
	w.more = true
	if x.when != nil {
		cond := w.expr(x.when)
		w.when(x.pos, cond, func() { w.putVarying(x) })
	} else {
		w.putVarying(x)
	}
}

// putVarying stores a cell of a size that packets give.
func (w *writer) putVarying(x cell) {
	width := w.variable(x.width)
	_, end := w.prog.bounds()
	if x.word == 0 {
		w.do(x.pos, "fr_put_varint", w.newPtr(x.off), end, x.code, width)
		return
	}
	limit := uint64(x.off.Const + x.word)
	if x.off.Base != nil {
		limit += x.off.Base.Max
	}
	at := w.word(c.Binary{Op: "+", X: w.offset(x.off.Plus(-x.word)), Y: width}, limit)
	w.do(x.pos, "fr_put_uint", at, end, c.Dec(x.word), x.code, width)
}

// newPtr is a pointer into the packet that leaves.
func (w *writer) newPtr(o ir.Off) c.Expr {
	if x := w.byName(o, packetLeaves); x != nil {
		return x
	}
	return w.raw(o)
}

// newPointers puts the pointers to the headers that leave where the packet is known.
func (w *writer) newPointers() {
	pointers := w.headerPointers(packetLeaves, func(*ir.FieldRun) bool { return true })
	if w.newAt != nil { // else nothing is stored
		w.newAt.Body = pointers
	}
}

// constant names an offset or a length.
func (w *writer) constant(name *c.Local, n int) {
	w.constants = append(w.constants, c.Var{Name: name, Init: c.Dec(n)})
}

// declareConstants puts the constants at the head of the function.
func (w *writer) declareConstants() {
	if len(w.constants) > 0 {
		w.constantsAt.Body = []c.Stmt{&c.Declare{Type: "const __u32", Vars: w.constants}}
	}
}

// span is a part of the front that changes.
type span struct{ at, size c.Expr }

// of calls a helper on a part and the sum of the device.
func (s span) of(helper string, sum c.Expr) c.Expr { return c.Do(helper, skb, sum, s.at, s.size) }

// csum is the sum of the device.
const csum = c.Ident("csum")

// spans returns the parts of the front that change, at most 64 bytes each.
func (w *writer) spans() (out []span) {
	type bounds struct{ from, to int }
	spans := map[*ir.Var]*bounds{}
	var order []*ir.Var
	note := func(o ir.Off, n int) {
		s := spans[o.Base]
		if s == nil {
			s = &bounds{o.Const, o.Const}
			spans[o.Base] = s
			order = append(order, o.Base)
		}
		s.from, s.to = min(s.from, o.Const), max(s.to, o.Const+n)
	}
	for _, x := range w.cells {
		if x.width != nil {
			out = append(out, span{w.offset(x.off), w.variable(x.width)})
			continue
		}
		note(x.off, x.size)
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
			part := span{w.offset(ir.Off{Base: v, Const: at}), c.Dec(min(64, s.to-at))}
			if v == nil && at == 14 && w.prog.ir.L2 {
				part.at = c.Ident("ETH_HLEN")
				if s.to-at <= 64 && w.isEnd(v, s.to) {
					part.size = c.Binary{Op: "-", X: w.newLen, Y: part.at}
				}
			}
			out = append(out, part)
		}
	}
	return out
}

// rederive finds the packet again after helpers that may have moved it.
func (w *writer) rederive() {
	if w.checked == 0 {
		w.gap()
		begin, _ := w.prog.bounds()
		w.assign(noPos, data, begin)
	}
	begins, ends := map[*ir.Var]int{}, map[*ir.Var]int{}
	var order []*ir.Var
	note := func(o ir.Off, n int) {
		if _, ok := ends[o.Base]; !ok {
			order = append(order, o.Base)
			ends[o.Base] = o.Const + n // which may be before the base
		}
		begins[o.Base], ends[o.Base] = min(begins[o.Base], o.Const), max(ends[o.Base], o.Const+n)
	}
	if w.linked {
		note(ir.Off{}, 12)
	}
	for _, x := range w.cells {
		if x.word == 0 {
			note(x.off, x.least())
		}
	}
	for _, s := range w.sums {
		note(s.New, 2)
	}
	for _, v := range order {
		if v == nil && ends[v] <= w.checked {
			continue
		}
		p := data
		if v != nil {
			if begins[v] < 0 {
				w.lowered[v] = -begins[v]
			}
			w.pointerTo(v)
			p = w.base(v)
		}
		end := c.Binary{Op: "+", X: p, Y: w.endOf(v, ends[v]+w.lowered[v])}
		_, packetEnd := w.prog.bounds()
		w.failIf(c.Unlikely(exceeds(end, packetEnd)))
	}
}
