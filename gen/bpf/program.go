package bpf

import (
	"fmt"
	"maps"
	"regexp"
	"strings"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
	"github.com/fastrelay/fastrelay-gen/runtime/abi"
)

// program is what the functions of one program share.
type program struct {
	*renderer
	ir       *ir.Program
	name     string // prog_P
	short    string // P, which the names of its other functions begin with
	vars     map[*ir.Var]bool
	rows     map[*ir.Row]bool
	partials map[*ir.Var]bool // variables that say where a checksum is left to a device
	read     readers          // variables that something reads
	reasons  []string         // enumerators
	writes   [][]string
	hops     map[string]string // route lookups, by what is looked up
	flow     bool              // it runs on a record of a socket instead of a packet
	halves   map[*ir.Forward]*halves
	fits     map[*ir.Forward]*ir.CheckHop // what makes sure that a packet can leave
	inCheck  map[ir.Stmt]bool             // what belongs to checks that may be made elsewhere
	lookups  int                          // of a packet, at most, each with a key on the stack
	fans     int                          // functions that fan out
	copies   int                          // functions that make copies
}

// function is a C function that is being written.
type function struct {
	*renderer
	prog   *program
	lines  []string
	indent int
	quoted map[diag.Pos]bool // lines of the spec that comments have shown
	known  known
	reason string // what a packet passes to the stack under that a check of ours stops

	// What the text refers to, for declarations and parameters.
	varsUsed  []*ir.Var
	rowsUsed  []*ir.Row
	ptrsUsed  []*ir.Var
	hopsUsed  []lookedUp
	data      bool
	now       bool
	timed     bool              // it reads the monotonic clock
	leased    bool              // it uses the relay's lease
	writes    bool              // it is a function that writes
	declaring bool              // its first line is a declaration
	name      string            // in C
	path      string            // what the names of functions begin with that it calls
	last      bool              // what is rendered ends the packet's way
	values    map[string]string // names of values, by how they are computed

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
	late         []*ir.HeaderPart // parts to which pointers are set in lines of the function
	own          map[*ir.Var]bool // variables that it declares itself
	rowsOwn      map[*ir.Row]bool // rows likewise
	rowsDeclared map[*ir.Row]bool
	given        map[*ir.Var]bool  // pointers to variable offsets that it is given
	routed       map[lookedUp]bool // route lookups that it makes itself

	checking  *checking // it makes checks for others
	lastCheck [2]string // the lines of the last call of a function that checks
	outs      []string  // variables that such functions set

	came    map[*ir.Forward]*came // what was computed of the packet that came, for two ways
	parting bool                  // a branch is rendered where these part

	// Of a fan-out: what is read is the front that was saved, because copies are made by writing to the packet.
	fan       *fan
	turn      *fan        // it runs once a receiver
	makes     *[][]string // where functions go that make copies
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
		prog.reasons = append(prog.reasons, name)
	}
	d.Reasons = enumerators(prog.reasons, p.Base)
	prog.lookups = lookups(p.Body)
	prog.survey()
	f := prog.function()
	f.name, f.path, f.last = prog.name, prog.short, true
	f.reason = fmt.Sprint(p.Base)
	for i, reason := range p.Reasons {
		if reason.Kind == ir.Punted {
			f.reason = prog.reasons[i]
			break
		}
	}
	f.block(p.Body)
	d.Functions = append(prog.writes, f.entry())
	if prog.flow {
		d.Functions = append(d.Functions, prog.forTests())
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

// enumerators puts enumerators into as few lines as they fit; the first is base, and each is one more
// than the one in front of it.
func enumerators(names []string, base int) (lines []string) {
	line := ""
	for i, name := range names {
		if i == 0 && base > 0 {
			name += fmt.Sprintf(" = %d", base)
		}
		if line != "" && 8+len(line)+len(name)+2 > maxColumns {
			lines, line = append(lines, line), ""
		}
		if line != "" {
			line += " "
		}
		line += name + ","
	}
	if line == "" {
		return lines
	}
	return append(lines, line)
}

func (p *program) function() *function {
	return &function{
		renderer: p.renderer, prog: p, indent: 1, known: known{bytes: map[*ir.Var]int{}}, quoted: map[diag.Pos]bool{},
		names: names{}, varNames: map[*ir.Var]string{}, declared: map[*ir.Var]bool{}, own: map[*ir.Var]bool{},
		rowsOwn: map[*ir.Row]bool{}, rowsDeclared: map[*ir.Row]bool{},
		headerNames: map[pointer]string{}, given: map[*ir.Var]bool{}, routed: map[lookedUp]bool{},
		came:     map[*ir.Forward]*came{},
		rowNames: map[*ir.Row]string{}, ptrNames: map[*ir.Var]string{}, savedNames: map[*ir.Var]string{},
	}
}

// reasonName returns the enumerator of a reason.
func (p *program) reasonName(i int) string {
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
func (f *function) usesData() string {
	if f.fan != nil {
		f.saved = true
		return "front"
	}
	f.data = true
	return "data"
}

// base is the pointer to a variable offset in the packet.
func (f *function) base(v *ir.Var) string {
	if f.fan != nil {
		use(&f.savedUsed, v)
	} else {
		use(&f.ptrsUsed, v)
	}
	return f.pointerName(v)
}

// pointerName is what the pointer to a variable offset is called, in the packet or in the front that was saved.
func (f *function) pointerName(v *ir.Var) string {
	if f.fan != nil {
		return f.savedName(v)
	}
	if f.ptrNames[v] == "" {
		f.ptrNames[v] = f.take("at_" + plain(v.Name))
	}
	return f.ptrNames[v]
}

func (f *function) savedName(v *ir.Var) string {
	if f.savedNames[v] == "" {
		f.savedNames[v] = f.names.own("saved_" + plain(v.Name))
	}
	return f.savedNames[v]
}

// line writes a line of the function; an empty one stays empty.
func (f *function) line(format string, args ...any) {
	s := fmt.Sprintf(format, args...)
	if s != "" {
		s = strings.Repeat("\t", f.indent) + s
	}
	f.lines = append(f.lines, s)
}

// stmt writes a line that belongs to a line of the spec.
func (f *function) stmt(pos diag.Pos, format string, args ...any) {
	f.line(format, args...)
	last := &f.lines[len(f.lines)-1]
	*last = f.at(pos, *last)
}

// opens matches a line that opens a block.
var opens = regexp.MustCompile(`\{( /\*.*)?(\x00.*)?$`)

// gap writes an empty line, unless a block begins here.
func (f *function) gap() {
	if n := len(f.lines); n == 0 || f.lines[n-1] != "" && !opens.MatchString(f.lines[n-1]) {
		f.line("")
	}
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
	text := "/* " + comment(q)
	if limit := maxColumns - 8*f.indent - len(" */"); width(text) > limit {
		text = string([]rune(text)[:limit-len("...")]) + "..."
	}
	f.stmt(pos, "%s */", text)
}

// up is the statement by which a packet passes to the stack, or a receiver's turn ends. Under a reason of that kind the
// packet is dropped.
func (f *function) up(reason int) string {
	if f.turn != nil {
		return f.ends("decline", reason)
	}
	name, all := f.prog.reasonName(reason), f.prog.ir.Reasons // the name of one that isn't there is an error
	if reason >= 0 && reason < len(all) && all[reason].Kind == ir.Dropped {
		return fmt.Sprintf("return fr_drop(skb->len, %s);", name)
	}
	return f.upFor(name)
}

// upFor is the statement by which a packet passes to the stack; reason is C.
func (f *function) upFor(reason string) string { return f.stop(f.why(reason)) }

// why is the name of a reason, which a function that checks marks.
func (f *function) why(reason string) string {
	if f.checking != nil {
		return whyMark + reason + whyMark
	}
	return reason
}

// stop is the statement by which a packet passes to the stack; why is C.
func (f *function) stop(why string) string {
	if f.prog.flow {
		return fmt.Sprintf("return fr_leave(%s, %s);", f.length(), why)
	}
	return fmt.Sprintf("return fr_up(skb, %s);", why)
}

// length is the length of the packet that came.
func (f *function) length() string {
	if !f.prog.flow {
		return "skb->len"
	}
	f.dataEnd = true
	return fmt.Sprintf("fr_length(%s, data_end)", f.usesData())
}

// unless renders a check: under a condition the packet passes to the stack, or the receiver's turn ends.
func (f *function) unless(pos diag.Pos, cond string, reason int) {
	f.stopIf(pos, cond, nil, f.up(reason))
}

// stopIf renders the end of a packet's way, or of a receiver's turn, under a condition; undo is
// what has to be given back.
func (f *function) stopIf(pos diag.Pos, cond string, undo []string, stop string) {
	if len(undo) == 0 {
		f.stmt(pos, "if (%s)", cond)
		f.stmt(pos, "\t%s", stop)
		return
	}
	f.stmt(pos, "if (%s) {", cond)
	f.indent++
	for _, u := range undo {
		f.line("%s", u)
	}
	f.stmt(pos, "%s", stop)
	f.indent--
	f.line("}")
}

// entry puts the function together that the kernel calls.
func (f *function) entry() []string {
	head := fmt.Sprintf("SEC(\"tc\") int %s(struct __sk_buff *skb)", f.prog.name)
	if f.prog.flow {
		head = fmt.Sprintf("static __always_inline int %s(void *data, void *data_end)", f.prog.onRecord())
	}
	out := []string{head, "{"}
	if f.prog.flow {
		f.data, f.ptrsUsed = false, nil // they are its parameters
	}
	if f.leased {
		out = append(out, "\tconst struct fr_lease *lease = fr_the_lease();")
	}
	if f.now {
		out = append(out, "\t__u64 now = bpf_jiffies64();")
	}
	out = append(out, f.structures()...)
	if !f.prog.flow {
		out = append(out, "")
	}
	if n := f.prog.ir.Pull; n > 0 && !f.prog.flow {
		out = append(out, fmt.Sprintf("\tfr_pull(skb, %d);", n))
	}
	if f.data || len(f.ptrsUsed) > 0 {
		out = append(out, "\tvoid *data = (void *)(long)skb->data;", "\tvoid *data_end = (void *)(long)skb->data_end;")
	}
	if pointers := f.headerPointers(packetCame, fixed); len(pointers) > 0 {
		out = append(out, pointers...)
	}
	out = append(out, f.results()...)
	return append(append(out, f.text()...), "}")
}

// onRecord is the name of the function that is the program, of one that runs on a record of a socket.
func (p *program) onRecord() string { return p.short + "_on" }

// forTests is the entry of such a program for runs on records in the place of frames.
func (p *program) forTests() []string {
	return []string{
		fmt.Sprintf("SEC(\"tc\") int %s(struct __sk_buff *skb)", p.name),
		"{",
		fmt.Sprintf("\tfr_pull(skb, %d);", ir.RecordSize),
		fmt.Sprintf("\treturn %s((void *)(long)skb->data, (void *)(long)skb->data_end);", p.onRecord()),
		"}",
	}
}

// fixed reports whether a part begins at a fixed offset.
func fixed(p *ir.HeaderPart) bool { return p.At.Base == nil }

// structures declares what a function has at its head: pointers to variable offsets, and what it looks up.
func (f *function) structures() (out []string) {
	for _, v := range f.prog.ir.Vars {
		if contains(f.ptrsUsed, v) && !f.given[v] {
			out = append(out, "\tvoid *"+f.pointerName(v)+";")
		}
	}
	for _, h := range f.hopsUsed {
		if f.routed[h] {
			out = append(out, fmt.Sprintf("\tstruct fr_hop %s;", h.hop()),
				fmt.Sprintf("\tstruct bpf_fib_lookup %s;", h.fib()))
		}
	}
	return out
}

// results declares the variables that functions which check set.
func (f *function) results() []string {
	if len(f.outs) == 0 {
		return nil
	}
	return []string{"\t__u64 " + strings.Join(f.outs, ", ") + ";"}
}

func contains[T comparable](list []T, x T) bool {
	for _, y := range list {
		if x == y {
			return true
		}
	}
	return false
}

// declare is the declaration of a variable.
func (f *function) declare(v *ir.Var) string {
	f.declared[v], f.own[v] = true, true
	if v.Type.IsBytes() {
		return fmt.Sprintf("__u64 %s[%d]", f.nameOf(v), (v.Type.Size+7)/8)
	}
	return "__u64 " + f.nameOf(v)
}
