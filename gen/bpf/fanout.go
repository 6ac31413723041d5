package bpf

import (
	"fmt"
	"maps"
	"math/bits"
	"regexp"
	"slices"
	"strings"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
)

// A fan-out becomes these functions:
//
//	P_fan1   finds the group, saves the front of the packet, computes what all copies share, runs the loop, and
//	         puts the packet right again
//	P_turn1  decides for one receiver: the kernel calls it by bpf_loop
//	P_copy1  makes one copy: it rewrites the packet in place, and has it cloned and sent (copy.go)
//	P_write1 does that part of it, where P_copy1 has something to give back if it fails
//
// Turns read the front that was saved, since the packet holds what the last copy needed. What they need besides is of
// two kinds. Pointers stand in a structure on the stack of the first function, where the verifier knows what they are.
// Numbers stand after the saved front, where it doesn't: else it would look at all turns once more for
// each number that it knows.

// fan is a fan-out that is being written.
type fan struct {
	*ir.FanOut
	prog  string
	name  string
	n     int
	front ir.Off  // FanOut.Front, and the link-layer addresses
	pre   *writer // the function in front of the loop
	all   []*ir.Copy
	local map[*ir.Var]bool // variables that a turn sets
	found map[*ir.Row]bool // rows that a turn looks up

	pointers, numbers []string // members of the two structures
	set               []string // what gives the pointers values
	head              int      // where the first function's lines begin that use what is saved
	wide              int      // words that numbers take beyond one each
	kept              map[string]bool
	zeroed            []ir.Blank     // headers that copies make zeros of
	rests             map[string]int // what of a checksum is the same for all receivers
	tallies           []int          // reasons of copies
}

// same is the type of the numbers that are the same for all receivers.
func (n *fan) same() string { return fmt.Sprintf("struct %s_same%d", n.prog, n.n) }

// keepPointer keeps a pointer of the first function for turns.
func (n *fan) keepPointer(typ, name, value string) string {
	if !n.kept[name] {
		n.kept[name] = true
		n.pointers = append(n.pointers, typ+name+";")
		n.set = append(n.set, fmt.Sprintf(".%s = %s,", name, value))
	}
	return "fan->" + name
}

// keep keeps a number of the first function, and returns how all get at it.
func (n *fan) keep(typ, name, value string) string {
	if !n.kept[name] {
		n.kept[name] = true
		n.numbers = append(n.numbers, typ+" "+name+";")
		n.pre.sameSize = max(n.pre.sameSize, len(n.numbers)+n.wide)
		n.pre.line("same->%s = %s;", name, value)
	}
	return "same->" + name
}

// limit is the largest size of the front.
func (n *fan) limit() int {
	limit := n.front.Const
	if n.front.Base != nil {
		limit += int(n.front.Base.Max)
	}
	return limit
}

// mask bounds an offset into the saved front.
func (n *fan) mask(v *ir.Var) int {
	limit := uint64(n.limit())
	if v.Max > 0 {
		limit = min(limit, v.Max)
	}
	return 1<<bits.Len64(limit) - 1
}

// holds makes the saved front large enough for the verifier, which sees no more of an offset than its mask.
func (f *function) holds(end ir.Off) {
	n := end.Const
	if end.Base != nil {
		n += f.fan.mask(end.Base)
	}
	f.frontSize = max(f.frontSize, (n+7)&^7)
}

// ends is the statement by which a receiver's turn ends without a copy: fr_decline or fr_refuse.
func (f *function) ends(how string, reason int) string {
	return f.endsFor(how, f.prog.reasonName(reason))
}

// endsFor likewise takes the reason as C.
func (f *function) endsFor(how, reason string) string {
	return fmt.Sprintf("return fr_%s(%s, skb->len, %s);", how, f.identity(f.turn.Row), reason)
}

// asItCame is a number that stands beside the packet, as it was before the first copy.
func (f *function) asItCame(name string) string {
	came := "fr_" + name + "(skb)"
	if f.turn != nil && f.turn.sets(name) {
		return f.turn.keep("__u32", "skb_"+name, came)
	}
	return came
}

// sets reports whether a copy sets such a number.
func (n *fan) sets(name string) bool {
	return slices.ContainsFunc(n.all, func(c *ir.Copy) bool {
		return c.Rewrite != nil && (name == "priority" && c.Rewrite.Priority != nil || name == "mark" &&
			c.Rewrite.Mark != nil)
	})
}

// fanOut renders the call of the function that fans out, and all its functions.
func (f *function) fanOut(s *ir.FanOut) {
	f.quote(s.Pos)
	for _, mv := range s.Key {
		f.cover(s.Pos, mv.Value)
	}
	f.cover(s.Pos, &s.Effects)
	f.prog.fans++
	n := &fan{
		FanOut: s, n: f.prog.fans, prog: f.prog.short, name: f.prog.short + "_fan" + fmt.Sprint(f.prog.fans),
		local: map[*ir.Var]bool{}, found: map[*ir.Row]bool{}, kept: map[string]bool{}, rests: map[string]int{},
	}
	n.survey(s.Each)
	if n.front = s.Front; n.front.Base == nil {
		n.front.Const = max(n.front.Const, 14)
	}
	f.need(n.front, f.reason, s.Pos)
	if s.Front.Base != nil && s.Front.Base.Max == 0 || n.limit() > 4096 {
		f.fail("the front of the fan-out at %s has no bound", s.Pos)
		return
	}
	w := f.prog.writer(nil, &s.Effects)
	w.known, w.reason = f.known, f.reason
	w.declared, w.scope, w.inPlace = maps.Clone(f.declared), f.scope, true
	n.pre = w
	n.keepPointer("struct __sk_buff *", "skb", "skb")
	n.keepPointer("struct list_"+ident(s.Group.Name)+" *", "list", "list")

	w.line("__u32 len = skb->len;")
	n.find()
	w.fx.early = true
	w.fx.before()
	if s.End != nil {
		end := w.expr(s.End)
		w.line("")
		w.stopIf(s.Pos, fmt.Sprintf("unlikely(len > %s) && bpf_skb_change_tail(skb, %s, 0)", end, end), w.fx.undo,
			w.up(n.NoRoom))
	}
	size := n.save()
	w.fan = n
	turn := n.receiver(f)
	w.fx.after()
	spans := n.sums(w.function)
	reread := n.reread(spans)
	n.loop(turn, spans)
	n.restore(size, reread)
	saved := append(w.pointers(), w.headerPointers(packetSaved, func(*ir.HeaderPart) bool { return true })...)
	w.lines, w.savedDone = slices.Insert(w.lines, n.head, n.begin(saved)...), true
	w.fan, w.saved, w.savedUsed = nil, false, nil

	params, args := f.pass(w.function)
	p := f.prog
	p.writes = append(p.writes, n.structures())
	p.writes = append(p.writes, turn.copies...)
	p.writes = append(p.writes, turn.text,
		w.assemble(fmt.Sprintf("static __always_inline int %s(%s)", n.name, strings.Join(params, ", "))))
	f.stmt(s.Pos, "return %s(%s);", n.name, strings.Join(args, ", "))
}

// survey notes what a turn sets, and its copies.
func (n *fan) survey(each []ir.Stmt) {
	for s := range ir.Stmts(each) {
		for v := range ir.Sets(s) {
			n.local[v] = true
		}
		switch s := s.(type) {
		case *ir.Lookup:
			n.found[s.Row] = true
		case *ir.Copy:
			n.all = append(n.all, s)
		}
	}
}

// find renders the lookup of the group.
func (n *fan) find() {
	w, name := n.pre, ident(n.Group.Name)
	w.quote(n.Pos)
	w.stmt(n.Pos, "struct group_%s key __attribute__((aligned(8))) = {};", name)
	w.line("struct list_%s *list;", name)
	w.line("")
	w.members(onStack("key"), n.Key, n.Pos)
	w.stmt(n.Pos, "list = list_of_%s(&key);", name)
	w.unless(n.Pos, "!list", n.Miss)
}

// save renders the copy of the front, and returns its size.
func (n *fan) save() string {
	w := n.pre
	size := w.offset(n.front)
	room := n.limit()
	if room == 0 { // no turn makes a copy: every packet has one byte
		size, room = "1", 1
	}
	w.sameSize = max(w.sameSize, 1)
	w.needs["facts"] = "yes"
	if n.front.Base != nil {
		room = 1 << bits.Len(uint(room-1))
		w.line("")
		w.line("__u32 size = fr_size(%s, %d);", size, room)
		size = "size"
	}
	w.frontSize = max(w.frontSize, (room+7)&^7)
	w.line("")
	w.line("/* Copies are made by writing to the packet: what it was is read from here. */")
	w.line("void *front = fr_save_front(skb, %s);", size)
	w.stopIf(n.Pos, "!front", w.fx.undo, w.up(n.NoRoom))
	n.keepPointer("void *", "front", "front")
	n.head = len(w.lines)
	if n.front.Base != nil {
		n.keep("__u32", "size", size)
	}
	return size
}

// pointers makes the pointers to variable offsets of the saved front.
func (f *function) pointers() (out []string) {
	for _, v := range f.prog.ir.Vars {
		if contains(f.savedUsed, v) {
			out = append(out, fmt.Sprintf("\tvoid *%s = fr_pin(front + fr_bound(%s, 0x%x));", f.pointerName(v),
				f.variable(v), f.fan.mask(v)))
		}
	}
	return out
}

// turn is the function that runs once a receiver.
type turn struct {
	*function
	text   []string
	copies [][]string
}

func (n *fan) receiver(outer *function) *turn {
	t := &turn{function: outer.prog.function()}
	t.name = fmt.Sprintf("%s_turn%d", outer.prog.short, n.n)
	t.path, t.fan, t.function.turn = t.name, n, n
	t.last, t.scope = true, outer.scope
	t.sharesNames(n.pre.function)
	t.known.plain, t.reason = outer.known.plain, outer.reason
	t.makes = &t.copies
	t.block(n.Each)
	if len(t.hopsUsed) > 0 || t.data || len(t.ptrsUsed) > 0 {
		t.fail("a turn of the fan-out at %s looks at the packet", n.Pos)
	}
	out := []string{
		fmt.Sprintf("static __noinline long %s(__u32 i, struct %s *fan)", t.name, n.name), "{",
		"\tstruct __sk_buff *skb = fan->skb;",
	}
	pointers := t.pointers()
	at := len(out)
	if t.now {
		n.pre.usesNow()
		out = append(out, "\t__u64 now = "+n.keep("__u64", "now", "now")+";")
	}
	for _, v := range outer.prog.ir.Vars {
		if !contains(t.varsUsed, v) {
			continue
		}
		name := t.nameOf(v)
		switch {
		case t.own[v]:
		case v.Type.IsBytes():
			n.keepBytes(v, name)
			out = append(out, fmt.Sprintf("\t__u64 *%s = same->%s;", name, name))
		default:
			out = append(out, fmt.Sprintf("\t__u64 %s = %s;", name, n.keep("__u64", name, n.pre.variable(v))))
		}
	}
	for _, r := range outer.prog.ir.Rows {
		if r != n.Row && contains(t.rowsUsed, r) {
			name := t.rowName(r)
			typ := fmt.Sprintf("struct %s *", t.vals[r.Table])
			if t.rowsOwn[r] {
				continue
			}
			out = append(out, fmt.Sprintf("\t%s%s = %s;", typ, name, n.keepPointer(typ, name, n.pre.row(r))))
		}
	}
	group, row := ident(n.Group.Name), t.row(n.Row)
	out = append(out, fmt.Sprintf("\tstruct receiver_%s *%s = receiver_of_%s(fan->list, i);", group, row, group))
	out = append(out, pointers...)
	out = append(out, t.headerPointers(packetSaved, func(*ir.HeaderPart) bool { return true })...)
	if t.leased {
		out = append(out, "\tconst struct fr_lease *lease = fr_the_lease();")
	}
	out = append(out, "", fmt.Sprintf("\tif (!%s)", row), "\t\treturn 1;")
	if t.timed {
		out = append(out, fmt.Sprintf("\tif (i %% %d == 0)", clockEvery), "\t\tsame->clock = bpf_ktime_get_ns();")
	}
	body := append(out[at:], t.function.text()...)
	if t.saved || len(pointers) > 0 || mentions(body, "same") {
		out = append(out[:at:at], "\tvoid *front = fan->front;")
		out = append(out, n.begin(nil, body...)...)
	} else {
		out = out[:at:at]
	}
	t.text = append(append(out, body...), "}")
	return t
}

// keepBytes keeps a variable that is a string of bytes, under the name that turns have for it.
func (n *fan) keepBytes(v *ir.Var, name string) {
	if n.kept[name] {
		return
	}
	n.kept[name] = true
	words := (v.Type.Size + 7) / 8
	n.numbers = append(n.numbers, fmt.Sprintf("__u64 %s[%d];", name, words))
	n.wide += words - 1
	value := n.pre.variable(v)
	for i := range words {
		n.pre.line("same->%s[%d] = %s[%d];", name, i, value, i)
	}
	n.pre.sameSize = max(n.pre.sameSize, len(n.numbers)+n.wide)
}

// begin finds the numbers after the saved front, where a function's lines use them; pointers are more lines.
func (n *fan) begin(pointers []string, body ...string) (out []string) {
	if body == nil && len(n.numbers) > 0 || mentions(body, "same") {
		out = append(out, fmt.Sprintf("\t%s *same = front + FR_NEEDS_FRONT;", n.same()))
	}
	return append(out, pointers...)
}

// mentions reports whether lines of C use a pointer.
func mentions(lines []string, name string) bool {
	word := regexp.MustCompile(`\b` + name + `(->|, )`)
	return slices.ContainsFunc(lines, word.MatchString)
}

// structures declares what turns need.
func (n *fan) structures() []string {
	var out []string
	if len(n.numbers) > 0 {
		out = append(out, "/* What is the same for all receivers. */", n.same()+" {")
		for _, s := range n.numbers {
			out = append(out, "\t"+s)
		}
		out = append(out, "};", "")
	}
	out = append(out, fmt.Sprintf("struct %s {", n.name))
	for _, s := range n.pointers {
		out = append(out, "\t"+s)
	}
	return append(out, "};")
}

// reread has the spans read their variables from where they are kept: what no register holds across the loop makes no
// difference to the verifier.
func (n *fan) reread(spans []string) (out []string) {
	for _, p := range spans {
		for _, v := range n.pre.varsUsed {
			word := regexp.MustCompile(`\b` + n.pre.nameOf(v) + `\b`)
			if word.MatchString(p) {
				p = word.ReplaceAllLiteralString(p, n.keep("__u64", n.pre.nameOf(v), n.pre.nameOf(v)))
			}
		}
		out = append(out, p)
	}
	return out
}

// loop renders the loop over the receivers.
func (n *fan) loop(t *turn, spans []string) {
	w := n.pre
	if len(spans) > 0 {
		w.line("")
		w.line("/* Without the bytes that copies change; negative where the device hasn't summed the packet up. */")
		n.keep("__s64", "csum", "bpf_csum_update(skb, 0)")
		w.line("if (unlikely(same->csum >= 0)) {")
		for _, p := range spans {
			w.line("\tsame->csum = fr_complete_without(skb, same->csum, %s);", p)
		}
		for i, b := range n.zeroed {
			at := w.offset(b.At)
			w.line("\tsame->zeroed%d = fr_counted(%s, %s(skb, %s, %s));", i, at, w.sumOf(b.Max), at, w.expr(b.Len))
		}
		w.line("}")
	}
	w.line("")
	for i := range n.tallies {
		n.keep("__u64", tally(i), "0")
	}
	w.line("struct %s fan = {", n.name)
	for _, s := range n.set {
		w.line("\t%s", s)
	}
	w.line("};")
	w.stmt(n.Pos, "bpf_loop(list->count, %s, &fan, 0);", t.name)
}

func tally(i int) string { return fmt.Sprintf("copies%d", i) }

// restore renders the end: the packet is again what it was.
func (n *fan) restore(size string, spans []string) {
	w := n.pre
	w.line("")
	if n.kept["quiet"] {
		w.line("if (same->quiet)")
		w.line("\tfr_wake();")
	}
	if !n.Drop {
		if n.front.Base != nil {
			size = fmt.Sprintf("fr_size(same->size, %d)", 1<<bits.Len(uint(n.limit()-1)))
		}
		w.stopIf(diag.Pos{}, fmt.Sprintf("bpf_skb_store_bytes(skb, 0, front, %s, 0)", size), nil,
			fmt.Sprintf("return fr_drop(len, %s);", w.prog.reasonName(n.Fault)))
		w.completes("same->csum", spans)
		for _, name := range []string{"priority", "mark"} {
			if n.kept["skb_"+name] {
				w.line("skb->%s = same->skb_%s;", name, name)
			}
		}
	}
	w.line("")
	for i, reason := range n.tallies {
		w.line("fr_count_copies(%s, same->%s, skb->len);", w.prog.reasonName(reason), tally(i))
	}
	for _, r := range n.Usage {
		w.use(r)
	}
	w.line("fr_count(%s, len);", w.prog.reasonName(n.Reason))
	if n.Drop {
		w.line("return TC_ACT_SHOT;")
	} else {
		w.line("return TC_ACT_UNSPEC;")
	}
}

// completes renders how a sum of the device becomes the packet's again; csum is without the spans.
func (w *writer) completes(csum string, spans []string) {
	if len(spans) == 0 {
		return
	}
	w.line("if (unlikely(same->csum >= 0))")
	for _, p := range spans[1:] {
		csum = fmt.Sprintf("fr_complete_with(skb, %s, %s)", csum, p)
	}
	w.line("\tfr_complete(skb, %s, %s);", csum, spans[0])
}

// sums returns the offsets and sizes of what copies change, as arguments.
func (n *fan) sums(f *function) []string {
	w := &writer{function: f}
	for _, c := range n.all {
		if c.Rewrite == nil {
			continue
		}
		for _, x := range c.Rewrite.Stores {
			if x := (cell{scalar: scalar{size: x.Size}, off: x.Off, width: x.Width}); !slices.Contains(w.cells, x) {
				w.cells = append(w.cells, x)
			}
		}
		for _, s := range c.Rewrite.Sums {
			w.sums = append(w.sums, w.newSum(s))
		}
	}
	spans := w.spans()
	if len(spans) == 0 && len(n.zeroed) > 0 {
		spans = []string{"0, 0"}
	}
	return spans
}
