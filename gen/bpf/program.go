package bpf

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/fastrelay/fastrelay-gen/gen/c"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
	"github.com/fastrelay/fastrelay-gen/runtime/abi"
)

// program is what the functions of one program share.
type program struct {
	*renderer
	ir        *ir.Program
	name      string // prog_P
	short     string // P, which the names of its other functions begin with
	vars      map[*ir.Var]bool
	rows      map[*ir.Row]bool
	partials  map[*ir.Var]bool  // variables that say where a checksum is left to a device
	read      readers           // variables that something reads
	reasons   []c.Ident         // enumerators
	functions []c.Top           // those that others call
	hops      map[string]string // route lookups, by what is looked up
	flow      bool              // it runs on a record of a socket instead of a packet
	halves    map[*ir.Forward]*halves
	fits      map[*ir.Forward]*ir.CheckHop // what makes sure that a packet can leave
	inCheck   map[ir.Stmt]bool             // what belongs to checks that may be made elsewhere
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
	reason c.Ident // what a packet passes to the stack under that a check of ours stops

	// What the text refers to, for declarations and parameters.
	varsUsed []*ir.Var
	rowsUsed []*ir.Row
	ptrsUsed []*ir.Var
	hopsUsed []lookedUp
	data     bool
	now      bool
	timed    bool // it reads the monotonic clock
	leased   bool // it uses the relay's lease
	writes   bool // it is a function that writes

	name   string               // in C
	path   string               // what the names of functions begin with that it calls
	last   bool                 // what is rendered ends the packet's way
	values map[valueKey]c.Ident // names of values, by how they are computed

	names      names // that are taken in it
	varNames   map[*ir.Var]string
	rowNames   map[*ir.Row]string
	ptrNames   map[*ir.Var]string // of pointers to variable offsets
	lowered    map[*ir.Var]int    // bytes by which such pointers point lower: the verifier takes no offset below 0
	savedNames map[*ir.Var]string // likewise, in the front that was saved

	dataEnd      bool             // it compares with the end of the packet
	declared     map[*ir.Var]bool // variables that are declared where it is at
	scope        []*ir.HeaderPart // what the packet that came is known to have
	leaves       []*ir.HeaderPart // what the packet that leaves has
	headersUsed  []pointer
	savedDone    bool // the pointers to the front that was saved are declared
	headerNames  map[pointer]string
	late         []late           // parts to which pointers are set in the function
	own          map[*ir.Var]bool // variables that it declares itself
	rowsOwn      map[*ir.Row]bool // rows likewise
	rowsDeclared map[*ir.Row]bool
	given        map[*ir.Var]bool  // pointers to variable offsets that it is given
	routed       map[lookedUp]bool // route lookups that it makes itself

	checking  *checking // it makes checks for others
	lastCheck *c.If     // the last call of a function that checks
	outs      []c.Ident // variables that such functions set

	came    map[*ir.Forward]*came // what was computed of the packet that came, for two ways
	parting bool                  // a branch is rendered where these part

	// Of a fan-out: what is read is the front that was saved, because copies are made by writing to the packet.
	fan       *fan
	turn      *fan     // it runs once a receiver
	makes     *[]c.Top // where functions go that make copies
	saved     bool
	savedUsed []*ir.Var
}

// known is what holds at a place of a function.
type known struct {
	bytes map[*ir.Var]int // bytes that were checked after a base; after the start of the frame for nil
	plain bool            // the packet is not a GSO packet

	partial *ir.Var // where a checksum is left to a device, where the program has asked
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
		renderer: r, ir: p, name: abi.ProgramPrefix + ident(p.Name), short: shortName(p.Name),
		flow: p.Hook == ir.Congestion,
		vars: map[*ir.Var]bool{}, rows: map[*ir.Row]bool{}, read: readersOf(p.Body),
		inCheck: map[ir.Stmt]bool{}, partials: map[*ir.Var]bool{},
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
	for _, reason := range p.Reasons {
		name := r.unique("reason_" + ident(p.Name) + "_" + ident(reason.Name))
		prog.reasons = append(prog.reasons, c.Ident(name))
	}
	d.functions = []c.Top{&c.Enum{
		Doc: "What packets are counted by: indices of fr_reasons.", Names: prog.reasons, First: p.Base,
	}}
	prog.lookups = lookups(p.Body)
	prog.survey()
	f := prog.function()
	f.name, f.path, f.last = prog.name, prog.short, true
	f.reason = c.Ident(fmt.Sprint(p.Base))
	for i, reason := range p.Reasons {
		if reason.Kind == ir.Punted {
			f.reason = prog.reasons[i]
			break
		}
	}
	f.statements(p.Body)
	d.functions = append(append(d.functions, prog.functions...), f.entry())
	if prog.flow {
		d.functions = append(d.functions, prog.forTests())
	}
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
		renderer: p.renderer, prog: p, known: known{bytes: map[*ir.Var]int{}}, quoted: map[diag.Pos]bool{},
		names: names{}, varNames: map[*ir.Var]string{}, declared: map[*ir.Var]bool{}, own: map[*ir.Var]bool{},
		rowsOwn: map[*ir.Row]bool{}, rowsDeclared: map[*ir.Row]bool{},
		headerNames: map[pointer]string{}, given: map[*ir.Var]bool{}, routed: map[lookedUp]bool{},
		came:     map[*ir.Forward]*came{},
		rowNames: map[*ir.Row]string{}, ptrNames: map[*ir.Var]string{}, savedNames: map[*ir.Var]string{},
	}
	f.block = &f.body
	return f
}

// reasonName returns the enumerator of a reason.
func (p *program) reasonName(i int) c.Ident {
	if i < 0 || i >= len(p.reasons) {
		p.fail("program %q has no reason %d", p.ir.Name, i)
		return "0"
	}
	return p.reasons[i]
}

func use[T comparable](list *[]T, x T) {
	for _, y := range *list {
		if x == y {
			return
		}
	}
	*list = append(*list, x)
}

func (f *function) usesVar(v *ir.Var) { use(&f.varsUsed, v) }
func (f *function) usesRow(r *ir.Row) { use(&f.rowsUsed, r) }
func (f *function) usesNow()          { f.now = true }

// usesData notes that a function reads the packet, and returns the pointer to its first byte.
func (f *function) usesData() c.Ident {
	if f.fan != nil {
		f.saved = true
		return "front"
	}
	f.data = true
	return "data"
}

// base is the pointer to a variable offset in the packet.
func (f *function) base(v *ir.Var) c.Ident {
	if f.fan != nil {
		use(&f.savedUsed, v)
	} else {
		use(&f.ptrsUsed, v)
	}
	return f.pointerName(v)
}

// pointerName is what the pointer to a variable offset is called, in the packet or in the front that was saved.
func (f *function) pointerName(v *ir.Var) c.Ident {
	if f.fan != nil {
		return f.savedName(v)
	}
	if f.ptrNames[v] == "" {
		f.ptrNames[v] = f.take("at_" + plain(v.Name))
	}
	return c.Ident(f.ptrNames[v])
}

func (f *function) savedName(v *ir.Var) c.Ident {
	if f.savedNames[v] == "" {
		f.savedNames[v] = f.names.own("saved_" + plain(v.Name))
	}
	return c.Ident(f.savedNames[v])
}

// quote writes a comment with the line of the spec that the next statements come from, where it
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

// up is what is returned where a packet passes to the stack, or a receiver's turn ends. Under a reason of that kind the
// packet is dropped.
func (f *function) up(reason int) c.Expr {
	if f.turn != nil {
		return f.ends("decline", reason)
	}
	name, all := f.prog.reasonName(reason), f.prog.ir.Reasons // the name of one that isn't there is an error
	if reason >= 0 && reason < len(all) && all[reason].Kind == ir.Dropped {
		return c.Do("fr_drop", ofSKB("len"), name)
	}
	return f.upFor(name)
}

// upFor is what is returned where a packet passes to the stack under the name of a reason.
func (f *function) upFor(reason c.Ident) c.Expr { return f.stop(f.why(reason)) }

// why is the name of a reason. In a function that checks it is the same as the name of that reason in other programs.
func (f *function) why(reason c.Ident) c.Expr {
	if f.checking != nil {
		if i := slices.Index(f.prog.reasons, reason); i >= 0 {
			return c.Alias{Name: reason, As: f.prog.ir.Reasons[i].Name}
		}
	}
	return reason
}

// stop is what is returned where a packet passes to the stack.
func (f *function) stop(why c.Expr) c.Expr {
	if f.prog.flow {
		return c.Do("fr_leave", f.length(), why)
	}
	return c.Do("fr_up", skb, why)
}

// length is the length of the packet that came.
func (f *function) length() c.Expr {
	if !f.prog.flow {
		return ofSKB("len")
	}
	f.dataEnd = true
	return c.Do("fr_length", f.usesData(), dataEnd)
}

// Pointers to the packet's first byte, and to the one after its last.
const (
	data    = c.Ident("data")
	dataEnd = c.Ident("data_end")
)

// unless renders a check: under a condition the packet passes to the stack, or the receiver's turn ends.
func (f *function) unless(pos diag.Pos, cond c.Expr, reason int) {
	f.stopIf(pos, cond, nil, f.up(reason))
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
	out := &c.Func{Head: `SEC("tc") int`, Name: f.prog.name, Params: []c.Param{skbParam}}
	if f.prog.flow {
		out = &c.Func{Head: "static __always_inline int", Name: f.prog.onRecord(), Params: []c.Param{
			{Type: "void *", Name: data}, {Type: "void *", Name: dataEnd},
		}}
		f.data, f.ptrsUsed = false, nil // they are its parameters
	}
	g := &function{}
	g.block = &out.Body
	if f.leased {
		g.define(noPos, "const struct fr_lease *", "lease", c.Do("fr_the_lease"))
	}
	if f.now {
		g.define(noPos, "__u64", "now", c.Do("bpf_jiffies64"))
	}
	g.add(f.structures()...)
	if n := f.prog.ir.Pull; n > 0 && !f.prog.flow {
		g.gap()
		g.do(noPos, "fr_pull", skb, c.Dec(n))
	}
	if f.data || len(f.ptrsUsed) > 0 {
		g.define(noPos, "void *", data, packetBegin)
		g.define(noPos, "void *", dataEnd, packetEnd)
	}
	g.add(f.headerPointers(packetCame, fixed)...)
	g.add(f.results()...)
	g.add(f.text()...)
	return out
}

var skbParam = c.Param{Type: "struct __sk_buff *", Name: skb}

// onRecord is the name of the function that is the program, of one that runs on a record of a socket.
func (p *program) onRecord() string { return p.short + "_on" }

// forTests is the entry of such a program for runs on records in the place of frames.
func (p *program) forTests() *c.Func {
	return &c.Func{Head: `SEC("tc") int`, Name: p.name, Params: []c.Param{skbParam}, Body: []c.Stmt{
		&c.Eval{X: c.Do("fr_pull", skb, c.Dec(ir.RecordSize))},
		&c.Return{X: c.Do(p.onRecord(), packetBegin, packetEnd)},
	}}
}

// fixed reports whether a part begins at a fixed offset.
func fixed(p *ir.HeaderPart) bool { return p.At.Base == nil }

// structures declares what a function has at its head: pointers to variable offsets, and what it looks up.
func (f *function) structures() (out []c.Stmt) {
	for _, v := range f.prog.ir.Vars {
		if contains(f.ptrsUsed, v) && !f.given[v] {
			out = append(out, variable("void *", f.pointerName(v)))
		}
	}
	for _, h := range f.hopsUsed {
		if f.routed[h] {
			out = append(out, variable("struct fr_hop", h.hop()), variable("struct bpf_fib_lookup", h.fib()))
		}
	}
	return out
}

// variable declares a variable without a value.
func variable(typ string, name c.Ident) c.Stmt {
	return &c.Declare{Type: typ, Vars: []c.Var{{Name: name}}}
}

// results declares the variables that functions which check set.
func (f *function) results() []c.Stmt {
	if len(f.outs) == 0 {
		return nil
	}
	s := &c.Declare{Type: "__u64"}
	for _, name := range f.outs {
		s.Vars = append(s.Vars, c.Var{Name: name})
	}
	return []c.Stmt{s}
}

func contains[T comparable](list []T, x T) bool {
	for _, y := range list {
		if x == y {
			return true
		}
	}
	return false
}

// declare declares a variable, unless it is declared.
func (f *function) declare(pos diag.Pos, v *ir.Var) {
	if f.declared[v] {
		return
	}
	name := f.variable(v)
	f.declared[v], f.own[v] = true, true
	s := &c.Declare{Pos: pos, Type: "__u64", Vars: []c.Var{{Name: name}}}
	if v.Type.IsBytes() {
		s.Vars[0].Tail = fmt.Sprintf("[%d]", (v.Type.Size+7)/8)
	}
	f.add(s)
}

// set gives a variable a value, and declares it where this is the first time.
func (f *function) set(pos diag.Pos, v *ir.Var, x c.Expr) {
	name := f.variable(v)
	if f.declared[v] {
		f.assign(pos, name, x)
		return
	}
	f.declared[v], f.own[v] = true, true
	f.define(pos, "__u64", name, x)
}
