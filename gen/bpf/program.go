package bpf

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/fastrelay/fastrelay-gen/gen/c"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
)

// program is what the functions of one program share.
type program struct {
	*renderer
	ir        *ir.Program
	name      string // prog_P
	short     string // P, which the names of its other functions begin with
	vars      map[*ir.Var]bool
	rows      map[*ir.Row]bool
	locals    map[any]*c.Local     // what functions have a variable in C for
	partials  map[*ir.Var]bool     // variables that say where a checksum is left to a device
	read      readers              // variables that something reads
	functions []c.Top              // those that others call
	hops      map[string]*lookedUp // by what is looked up
	flow      bool                 // it runs on a record of a socket instead of a packet
	shared    map[*ir.Forward]*commonWrite
	fits      map[*ir.Forward]*ir.CheckHop // what makes sure that a packet can leave
	lookups   int                          // of a packet, at most, each with a key on the stack
	fans      int                          // functions that fan out
	copies    int                          // functions that make copies
}

// function is a C function that is being written.
type function struct {
	*renderer
	prog   *program
	body   []c.Stmt
	block  *[]c.Stmt         // of the body, that is being written
	height int               // lines, roughly
	quoted map[diag.Pos]bool // lines of the spec that comments have shown
	known  known
	reason int // for which a packet passes to the stack that a check of ours stops

	timed  bool // it reads the monotonic clock
	writes bool // it is a function that writes
	first  bool // before anything is written

	name   string                // in C
	path   string                // what the names of functions begin with that it calls
	last   bool                  // what is rendered ends the packet's way
	values map[valueKey]*c.Local // by how they are computed

	lowered map[*ir.Var]int // bytes by which pointers to variable offsets point lower: the verifier takes none below 0

	declared     map[*ir.Var]bool // variables that are declared where it is at
	scope        []*ir.FieldRun   // what the packet that came is known to have
	leaves       []*ir.FieldRun   // what the packet that leaves has
	headersUsed  []pointer
	savedDone    bool   // the pointers to the front that was saved are declared
	late         []late // runs to which pointers are set in the function
	rowsDeclared map[*ir.Row]bool
	given        map[*ir.Var]bool // pointers to variable offsets that it is given
	routes       []*lookedUp      // route lookups that it makes itself

	checking  *checking  // it makes checks for others
	lastCheck *lastCheck // the last call of functions that check
	asksWhy   bool       // its variable is declared at the head
	outs      []*c.Local // variables that such functions set

	received map[*ir.Forward]*receivedSums // what was computed of the packet that came, for both sides of a branch
	whole    bool                          // a branch is rendered whose sides share that: it isn't split

	// Of a fan-out: what is read is the front that was saved, because copies are made by writing to the packet.
	fan   *fan
	turn  *fan     // it runs once a receiver
	makes *[]c.Top // where functions go that make copies
}

// known is what holds at a place of a function.
type known struct {
	bytes map[*ir.Var]int // bytes that were checked after a base; after the start of the frame for nil
	plain bool            // the packet is not a GSO packet

	partial *ir.Var // where a checksum is left to a device, if the program has asked
}

func (k known) clone() known {
	k.bytes = maps.Clone(k.bytes)
	return k
}

// both is what holds where two ways meet.
func (k known) both(l known) known {
	out := known{bytes: map[*ir.Var]int{}, plain: k.plain && l.plain}
	for v, n := range k.bytes {
		if m, ok := l.bytes[v]; ok {
			out.bytes[v] = min(n, m)
		}
	}
	if k.partial == l.partial {
		out.partial = k.partial
	}
	return out
}

func (r *renderer) program(p *ir.Program) programData {
	prog := &program{
		renderer: r, ir: p, name: p.Symbol(), short: shortName(p.Name),
		flow: p.Hook == ir.Congestion,
		vars: map[*ir.Var]bool{}, rows: map[*ir.Row]bool{}, read: readersOf(p.Body),
		locals: map[any]*c.Local{}, hops: map[string]*lookedUp{}, partials: map[*ir.Var]bool{},
	}
	if prog.frame() {
		prog.short = prog.name
	}
	d := programData{Name: prog.name, Hook: p.Hook}
	for _, s := range p.Paths {
		d.Paths = append(d.Paths, comment(s))
	}
	for _, v := range p.Vars {
		prog.vars[v] = true
	}
	for _, row := range p.Rows {
		prog.rows[row] = true
	}
	prog.lookups = lookups(p.Body)
	prog.survey()
	f := prog.function()
	f.name, f.path, f.last = prog.name, prog.short, true
	f.reason = max(0, slices.IndexFunc(p.Reasons, func(r *ir.Reason) bool { return r.Kind == ir.Punted }))
	f.statements(p.Body)
	entry := f.entry()
	list := append(prog.functions, entry)
	if prog.flow {
		list = append(list, prog.forTests())
		for _, top := range list {
			if g, ok := top.(*c.Func); ok {
				r.apart[g] = true
			}
		}
	}
	r.made.add(prog, entry, list)
	return d
}

// lookups is how many a packet has on its way at most.
func lookups(block []ir.Stmt) (n int) {
	for _, s := range block {
		switch s := s.(type) {
		case *ir.Lookup, *ir.Learn, *ir.Translate:
			n++
		case *ir.If:
			n += max(lookups(s.Then), lookups(s.Else))
		default:
			for inner := range ir.Blocks(s) {
				n += lookups(*inner)
			}
		}
	}
	return n
}

func (p *program) function() *function {
	f := &function{
		renderer: p.renderer, prog: p, known: known{bytes: map[*ir.Var]int{}, plain: p.frame()},
		quoted:   map[diag.Pos]bool{},
		declared: map[*ir.Var]bool{}, rowsDeclared: map[*ir.Row]bool{},
		given:    map[*ir.Var]bool{},
		received: map[*ir.Forward]*receivedSums{},
	}
	f.block = &f.body
	return f
}

// reasonName is where a reason is counted.
func (p *program) reasonName(i int) c.Expr {
	if i < 0 || i >= len(p.ir.Reasons) {
		p.fail("program %q has no reason %d", p.ir.Name, i)
		return c.Num(0)
	}
	if p.ir.ToTC && i <= ir.IsOthers {
		return untaken[i]
	}
	return p.counted(p.reasons[p.number(i)])
}

// number is a reason's number; 0: there is none.
func (p *program) number(i int) int {
	if i < 0 || i >= len(p.ir.Reasons) {
		return 0
	}
	return p.tallies.Number(p.ir, i)
}

// counted is where a reason is counted that is the same in all programs.
func (p *program) counted(reason c.Expr) c.Expr {
	if base := p.bases[p.ir]; base != "" {
		return c.Binary{Op: "+", X: base, Y: reason}
	}
	return reason
}

func use[T comparable](list *[]T, x T) {
	for _, y := range *list {
		if x == y {
			return
		}
	}
	*list = append(*list, x)
}

// front is the pointer to the packet's first byte, or to that of the front that was saved.
func (f *function) front() *c.Local {
	if f.fan != nil {
		return front
	}
	return data
}

// base is the pointer to a variable offset, in the packet or in the front that was saved.
func (f *function) base(v *ir.Var) *c.Local {
	if f.fan != nil {
		return f.prog.localOf(savedAt{v}, func() *c.Local { return own("saved_"+plain(v.Name), "void *") })
	}
	return f.prog.localOf(pointerTo{v}, func() *c.Local { return f.prog.local("at_"+plain(v.Name), "void *") })
}

// quote writes a comment with the line of the spec that the next statements come from, if it
// is another one than before.
func (f *function) quote(pos diag.Pos) {
	at := diag.Pos{File: pos.File, Line: pos.Line}
	if !pos.IsValid() || f.opt.Quote == nil || f.quoted[at] || f.checking != nil {
		return
	}
	f.quoted[at] = true
	q := strings.TrimSpace(f.opt.Quote(pos.File, pos.Line))
	if q == "" {
		return
	}
	f.gap()
	f.add(&c.Note{Pos: pos, Text: comment(q), Short: true})
}

// punt is what is returned if a packet passes to the stack, or a receiver's turn ends. Under a reason of that kind the
// packet is dropped.
func (f *function) punt(reason int) c.Expr {
	if f.turn != nil {
		return f.ends("decline", reason)
	}
	if all := f.prog.ir.Reasons; reason >= 0 && reason < len(all) && all[reason].Kind == ir.Dropped {
		if f.checking != nil {
			f.checking.drops = true
		}
		return f.dropped(reason)
	}
	return f.puntFor(reason)
}

// puntFor is what is returned if a packet passes to the stack for a reason. A function that checks says why.
func (f *function) puntFor(reason int) c.Expr {
	switch {
	case f.checking != nil && !f.prog.ir.ToTC:
		return f.reasons[f.prog.number(reason)]
	}
	return f.stop(f.prog.reasonName(reason))
}

// stop is what is returned if a packet passes to the stack; of one that isn't taken at XDP, it is what says so.
func (f *function) stop(why c.Expr) c.Expr {
	switch {
	case f.prog.ir.ToTC:
		return why
	case f.prog.flow:
		return c.Do("fr_leave", f.length(), why)
	case f.prog.frame():
		return c.Do("fr_xdp_punt", f.length(), why)
	}
	return c.Do("fr_punt", skb, why)
}

// dropped is what is returned if a packet is dropped.
func (f *function) dropped(reason int) c.Expr {
	return c.Do(f.prog.helper("drop"), f.length(), f.prog.reasonName(reason))
}

// length is the length of the packet that came.
func (f *function) length() c.Expr {
	switch {
	case f.prog.frame():
		return whole
	case !f.prog.flow:
		return ofSKB("len")
	}
	return c.Do("fr_length", f.front(), dataEnd)
}

// frameLen is the length of the packet that came.
const frameLen = c.Ident("len")

// Variables that functions of all programs have.
var (
	data    = c.NewLocal("data", "void *")     // a pointer to the packet's first byte
	dataEnd = c.NewLocal("data_end", "void *") // and to the one after its last
	front   = c.NewLocal("front", "void *")    // a pointer to the front of the packet that was saved
	lease   = c.NewLocal("lease", "const struct fr_lease *")
	now     = c.NewLocal("now", "__u64")       // the time, as programs know it
	whole   = c.NewLocal("frame_len", "__u32") // at XDP, the length of the frame: to ask for it takes a call
)

// unless renders a check: under a condition the packet passes to the stack, or the receiver's turn ends.
func (f *function) unless(pos diag.Pos, cond c.Expr, reason int) {
	f.stopIf(pos, cond, nil, f.punt(reason))
}

// stopIf renders the end of a packet's way, or of a receiver's turn, under a condition; undo are calls
// that give back what was taken.
func (f *function) stopIf(pos diag.Pos, cond c.Expr, undo []c.Expr, result c.Expr) {
	f.when(pos, cond, func() {
		f.giveBack(undo)
		f.end(pos, result)
	})
	if len(undo) > 0 {
		f.height++
	}
}

func (f *function) giveBack(calls []c.Expr) {
	for _, x := range calls {
		f.add(&c.Eval{X: x})
	}
}

// entry puts the function together that the kernel calls.
func (f *function) entry() *c.Func {
	out := &c.Func{Linkage: c.Program, Result: f.prog.verdict(), Name: f.prog.name, Params: []c.Param{f.prog.ctx()}}
	if f.prog.frame() {
		out.Linkage = c.XDP
	}
	if f.prog.flow {
		out = &c.Func{Result: "int", Name: f.prog.onRecord(), Params: []c.Param{
			{Type: data.Type, Name: data}, {Type: dataEnd.Type, Name: dataEnd},
		}}
	}
	text := slices.Concat(f.headerPointers(packetReceived, fixed), f.results(), f.text())
	given := c.Free(text)
	g := &function{}
	g.block = &out.Body
	if slices.Contains(given, lease) {
		g.define(noPos, lease.Type, lease, c.Do("fr_the_lease"))
	}
	if slices.Contains(given, now) {
		g.define(noPos, now.Type, now, c.Do("bpf_jiffies64"))
	}
	g.add(f.structures()...)
	if n := f.prog.ir.Pull; n > 0 && !f.prog.flow {
		g.gap()
		g.do(noPos, "fr_pull", skb, c.Dec(n))
	}
	if slices.Contains(given, whole) {
		g.define(noPos, whole.Type, whole, c.Do("bpf_xdp_get_buff_len", xdp))
	}
	if !f.prog.flow && (slices.Contains(given, data) || slices.Contains(given, dataEnd)) {
		begin, end := f.prog.bounds()
		g.define(noPos, data.Type, data, begin)
		g.define(noPos, dataEnd.Type, dataEnd, end)
	}
	g.add(text...)
	return out
}

var skbParam = c.Param{Type: "struct __sk_buff *", Name: skb}

// onRecord is the name of the function that is the program, of one that runs on a record of a socket.
func (p *program) onRecord() string { return p.short + "_on" }

// forTests is the entry of such a program for runs on records in the place of frames.
func (p *program) forTests() *c.Func {
	begin, end := p.bounds()
	return &c.Func{Linkage: c.Program, Result: "int", Name: p.name, Params: []c.Param{skbParam}, Body: []c.Stmt{
		&c.Eval{X: c.Do("fr_pull", skb, c.Dec(ir.RecordSize))},
		&c.Return{X: c.Do(p.onRecord(), begin, end)},
	}}
}

// fixed reports whether a run begins at a fixed offset.
func fixed(p *ir.FieldRun) bool { return p.At.Base == nil }

// structures declares what a function has at its head: pointers to variable offsets, and what it looks up.
func (f *function) structures() (out []c.Stmt) {
	if f.fan == nil {
		out = f.pointersToSet()
	}
	for _, h := range f.routes {
		out = append(out, one("struct fr_hop", h.hop), one("struct bpf_fib_lookup", h.fib))
	}
	return out
}

// pointersToSet declares pointers to variable offsets that the function sets.
func (f *function) pointersToSet() (out []c.Stmt) {
	for _, v := range f.prog.ir.Vars {
		if at := f.base(v); !f.given[v] && c.Count(f.body, at) > 0 {
			out = append(out, variable(at.Type, at))
		}
	}
	return out
}

// one declares a structure, as an array: functions are given a pointer to it.
func one(typ c.Type, name c.Name) c.Stmt {
	return &c.Declare{Type: typ, Vars: []c.Var{{Name: name, Tail: "[1]"}}}
}

// variable declares a variable without a value.
func variable(typ c.Type, name c.Name) c.Stmt {
	return &c.Declare{Type: typ, Vars: []c.Var{{Name: name}}}
}

// results declares the variables that functions which check set.
func (f *function) results() (out []c.Stmt) {
	if len(f.outs) > 0 {
		s := &c.Declare{Type: "__u64"}
		for _, name := range f.outs {
			s.Vars = append(s.Vars, c.Var{Name: name})
		}
		out = append(out, s)
	}
	if f.asksWhy {
		out = append(out, variable(f.prog.whyType(), why))
	}
	return out
}

// declare declares a variable, unless it is declared.
func (f *function) declare(pos diag.Pos, v *ir.Var) {
	if f.declared[v] {
		return
	}
	name := f.variable(v)
	f.declared[v] = true
	s := &c.Declare{Pos: pos, Type: "__u64", Vars: []c.Var{{Name: name}}}
	if v.Type.IsBytes() {
		s.Vars[0].Tail = fmt.Sprintf("[%d]", (v.Type.Size+7)/8)
	}
	f.add(s)
}

// set gives a variable a value, and declares it if this is the first time.
func (f *function) set(pos diag.Pos, v *ir.Var, x c.Expr) {
	name := f.variable(v)
	if f.declared[v] {
		f.assign(pos, name, x)
		return
	}
	f.declared[v] = true
	f.define(pos, "__u64", name, x)
}
