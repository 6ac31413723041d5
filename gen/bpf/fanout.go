package bpf

import (
	"fmt"
	"maps"
	"math/bits"
	"slices"

	"github.com/fastrelay/fastrelay-gen/gen/c"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
)

// A fan-out becomes these functions:
//
//	P_fan1   finds the group, saves the front of the packet, computes what all copies share, runs the loop, and
//	         puts the packet right again
//	P_turn1  decides for one receiver: the kernel calls it by bpf_loop
//	P_copy1  makes one copy: it rewrites the packet in place, and has it cloned and sent (copy.go)
//	P_write1 does that part of it, if P_copy1 has something to give back when it fails
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

	pointers, numbers []c.Param // members of the two structures
	set               c.Init    // what gives the pointers values
	head              *c.List   // where the first function's lines begin that use what is saved
	wide              int       // words that numbers take beyond one each
	kept              map[string]bool
	members           map[*c.Local]string // of the structures, by what they keep
	taken             map[string]bool
	filled            []ir.Filled      // headers that copies fill
	rests             map[[3]c.Key]int // what of a checksum is the same for all receivers
	tallies           []int            // reasons of copies
}

// same is a pointer to the numbers that are the same for all receivers.
const same = c.Ident("same")

// sameType is the type of these numbers.
func (n *fan) sameType() string { return fmt.Sprintf("%s_same%d", n.prog, n.n) }

func (n *fan) sameParam() c.Param {
	return c.Param{Type: c.Pointer(c.StructType(n.sameType())), Name: same}
}

// keepPointer keeps a pointer of the first function for turns.
func (n *fan) keepPointer(typ c.Type, name string, value c.Expr) c.Expr {
	if !n.kept[name] {
		n.kept[name] = true
		n.pointers = append(n.pointers, c.Param{Type: typ, Name: c.Ident(name)})
		n.set = append(n.set, c.Member{Name: name, X: value})
	}
	return c.To(c.Ident("fan"), name)
}

// keep keeps a number of the first function, and returns how all get at it.
func (n *fan) keep(typ c.Type, name string, value c.Expr) c.Expr {
	if !n.kept[name] {
		n.kept[name] = true
		n.numbers = append(n.numbers, c.Param{Type: typ, Name: c.Ident(name)})
		n.pre.sameSize = max(n.pre.sameSize, len(n.numbers)+n.wide)
		n.pre.assign(noPos, c.To(same, name), value)
	}
	return c.To(same, name)
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

// ends is what is returned if a receiver's turn ends without a copy: fr_decline or fr_refuse.
func (f *function) ends(how string, reason int) c.Expr {
	return f.endsFor(how, f.prog.reasonName(reason))
}

// endsFor likewise takes the reason as C.
func (f *function) endsFor(how string, reason c.Expr) c.Expr {
	return c.Do("fr_"+how, f.identity(f.turn.Row), ofSKB("len"), reason)
}

// asReceived is a number that stands beside the packet, as it was before the first copy.
func (f *function) asReceived(name string) c.Expr {
	received := c.Do("fr_"+name, skb)
	if f.turn != nil && f.turn.sets(name) {
		return f.turn.keep("__u32", "skb_"+name, received)
	}
	return received
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
		local: map[*ir.Var]bool{}, found: map[*ir.Row]bool{}, kept: map[string]bool{},
		members: map[*c.Local]string{}, taken: map[string]bool{}, rests: map[[3]c.Key]int{},
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
	n.keepPointer("struct __sk_buff *", "skb", skb)
	n.keepPointer(c.Pointer(c.StructType("list_"+ident(s.Group.Name))), "list", c.Ident("list"))

	w.define(noPos, "__u32", frameLen, ofSKB("len"))
	n.find()
	w.fx.early = true
	w.fx.before()
	if s.End != nil {
		end := w.expr(s.End)
		w.gap()
		w.stopIf(s.Pos, c.Join("&&", c.Unlikely(exceeds(frameLen, end)),
			c.Do("bpf_skb_change_tail", skb, end, c.Num(0))), w.fx.undo, w.punt(n.NoRoom))
	}
	size := n.save()
	w.fan = n
	for _, s := range n.Emits {
		if s.Event.Copies != nil {
			n.entries(s.Event)
		}
	}
	turn := n.receiver(f)
	w.fx.after()
	spans := n.sums(w.function)
	reread := n.reread(spans)
	n.loop(turn, spans)
	n.handOver()
	n.restore(size, reread)
	n.head.Body = n.begin(len(n.numbers) > 0)
	n.head.Body = append(n.head.Body, w.savedPointers()...)
	w.savedDone = true
	w.fan = nil

	p := f.prog
	made, args := w.assemble("int", n.name, nil)
	p.functions = append(p.functions, n.structures()...)
	p.functions = append(p.functions, turn.copies...)
	for _, f := range append(turn.copies, turn.made) {
		p.apart[f.(*c.Func)] = true
	}
	p.functions = append(p.functions, turn.made, made)
	f.end(s.Pos, c.Do(n.name, args...))
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
	list := c.Ident("list")
	w.zeroed(n.Pos, "group_"+name, keyName, c.Init{})
	w.define(noPos, c.Pointer(c.StructType("list_"+name)), list, nil)
	w.gap()
	w.members(onStack(keyName), n.Key, n.Pos)
	w.assign(n.Pos, list, c.Do("list_of_"+name, c.Address(keyName)))
	w.unless(n.Pos, c.Not(list), n.Miss)
}

// save renders the copy of the front, and returns its size.
func (n *fan) save() c.Expr {
	w := n.pre
	size := w.offset(n.front)
	room := n.limit()
	if room == 0 { // no turn makes a copy: every packet has one byte
		size, room = c.Num(1), 1
	}
	w.sameSize = max(w.sameSize, 1)
	w.needs["facts"] = "yes"
	if n.front.Base != nil {
		room = 1 << bits.Len(uint(room-1))
		w.gap()
		w.define(noPos, "__u32", c.Ident("size"), c.Do("fr_size", size, c.Dec(room)))
		size = c.Ident("size")
	}
	w.frontSize = max(w.frontSize, (room+7)&^7)
	w.gap()
	w.note("Copies are made by writing to the packet: what it was is read from here.")
	w.define(noPos, "void *", front, c.Do("fr_save_front", skb, size))
	w.stopIf(n.Pos, c.Not(front), w.fx.undo, w.punt(n.NoRoom))
	n.keepPointer("void *", "front", front)
	n.head = w.place()
	if n.front.Base != nil {
		n.keep("__u32", "size", size)
	}
	return size
}

// savedPointers makes the pointers into the saved front.
func (f *function) savedPointers() (out []c.Stmt) {
	headers := f.headerPointers(packetSaved, func(*ir.FieldRun) bool { return true })
	for _, v := range f.prog.ir.Vars {
		if at := f.base(v); c.Count(headers, at)+c.Count(f.body, at) > 0 {
			from := pinned(front, f.variable(v), uint64(f.fan.mask(v)))
			out = append(out, &c.Declare{Type: "void *", Vars: []c.Var{{Name: at, Init: from}}})
		}
	}
	return append(out, headers...)
}

// turn is the function that runs once a receiver.
type turn struct {
	*function
	made   *c.Func
	copies []c.Top
}

func (n *fan) receiver(outer *function) *turn {
	t := &turn{function: outer.prog.function()}
	t.name = fmt.Sprintf("%s_turn%d", outer.prog.short, n.n)
	t.path, t.fan, t.function.turn = t.name, n, n
	t.last, t.scope = true, outer.scope
	t.known.plain, t.reason = outer.known.plain, outer.reason
	t.makes = &t.copies
	t.statements(n.Each)
	g := outer.prog.function()
	pointers := t.savedPointers()
	given := t.prog.inOrder(c.Free(append(pointers, t.body...)))
	for _, x := range given {
		switch of := t.prog.of[x].(type) {
		case *ir.Var:
			name := n.member(x)
			if of.Type.IsBytes() {
				n.keepBytes(of, name)
				g.define(noPos, x.Type, x, c.To(same, name))
			} else {
				g.define(noPos, x.Type, x, n.keep(x.Type, name, x))
			}
		case *ir.Row:
			if of != n.Row {
				g.define(noPos, x.Type, x, n.keepPointer(x.Type, n.member(x), x))
			}
		case recordOf:
			g.define(noPos, x.Type, x, n.keepPointer(x.Type, n.member(x), x))
		default:
			switch x {
			case now:
				g.define(noPos, x.Type, x, n.keep(x.Type, "now", x))
			case front, lease:
			default:
				t.fail("a turn of the fan-out at %s looks at the packet", n.Pos)
			}
		}
	}
	group, row := ident(n.Group.Name), t.row(n.Row)
	g.define(noPos, c.Pointer(c.StructType("receiver_"+group)), row,
		c.Do("receiver_of_"+group, c.To(fanName, "list"), c.Ident("i")))
	g.add(pointers...)
	if slices.Contains(given, lease) {
		g.define(noPos, "const struct fr_lease *", lease, c.Do("fr_the_lease"))
	}
	g.gap()
	g.when(noPos, c.Not(row), func() { g.end(noPos, c.Dec(1)) })
	if t.timed {
		turn := c.Binary{Op: "%", X: c.Ident("i"), Y: c.Dec(clockEvery)}
		g.when(noPos, equals(turn, c.Num(0)), func() {
			g.assign(noPos, c.To(same, "clock"), c.Do("bpf_ktime_get_ns"))
		})
	}
	g.add(t.text()...)
	body := []c.Stmt{define("struct __sk_buff *", skb, c.To(fanName, "skb"))}
	if uses := c.Count(g.body, same) > 0; slices.Contains(given, front) || uses {
		body = append(body, define("void *", front, c.To(fanName, "front")))
		body = append(body, n.begin(uses)...)
	}
	t.made = &c.Func{
		Linkage: c.NoInline, Result: "long", Name: t.name, Params: []c.Param{
			{Type: "__u32", Name: c.Ident("i")}, {Type: c.Pointer(c.StructType(n.name)), Name: fanName},
		},
		Body: append(body, g.body...),
	}
	return t
}

// fanName is a pointer to what turns are given.
const fanName = c.Ident("fan")

// define declares a variable with a value.
func define(typ c.Type, name c.Name, x c.Expr) c.Stmt {
	return &c.Declare{Type: typ, Vars: []c.Var{{Name: name, Init: x}}}
}

// member is what a variable is called in the structures.
func (n *fan) member(x *c.Local) string {
	if n.members[x] == "" {
		name := x.Want
		for i := 2; n.taken[name]; i++ {
			name = fmt.Sprintf("%s_%d", x.Want, i)
		}
		n.members[x], n.taken[name] = name, true
	}
	return n.members[x]
}

// keepBytes keeps a variable that is a string of bytes, under the name that turns have for it.
func (n *fan) keepBytes(v *ir.Var, name string) {
	if n.kept[name] {
		return
	}
	n.kept[name] = true
	words := (v.Type.Size + 7) / 8
	n.numbers = append(n.numbers, c.Param{Type: "__u64", Name: c.Ident(name), Tail: fmt.Sprintf("[%d]", words)})
	n.wide += words - 1
	value := n.pre.variable(v)
	for i := range words {
		n.pre.assign(noPos, c.Index{X: c.To(same, name), At: c.Dec(i)}, c.Index{X: value, At: c.Dec(i)})
	}
	n.pre.sameSize = max(n.pre.sameSize, len(n.numbers)+n.wide)
}

// begin finds the numbers after the saved front, if they are used.
func (n *fan) begin(used bool) []c.Stmt {
	if !used {
		return nil
	}
	at := c.Binary{Op: "+", X: front, Y: c.Ident("FR_NEEDS_FRONT")}
	return []c.Stmt{define(c.Pointer(c.StructType(n.sameType())), same, at)}
}

// structures declares what turns need.
func (n *fan) structures() (out []c.Top) {
	if len(n.numbers) > 0 {
		out = append(out, &c.Struct{Doc: "What is the same for all receivers.", Name: n.sameType(), Members: n.numbers})
	}
	return append(out, &c.Struct{Name: n.name, Members: n.pointers})
}

// reread has the spans read their variables from where they are kept: what no register holds across the loop makes no
// difference to the verifier.
func (n *fan) reread(spans []span) (out []span) {
	kept := func(x c.Expr) c.Expr {
		local, ok := x.(*c.Local)
		if !ok {
			return nil
		}
		if _, ok := n.pre.prog.of[local].(*ir.Var); !ok {
			return nil
		}
		return n.keep("__u64", n.member(local), local)
	}
	for _, s := range spans {
		out = append(out, span{c.Replace(s.at, kept), c.Replace(s.size, kept)})
	}
	return out
}

// loop renders the loop over the receivers.
func (n *fan) loop(t *turn, spans []span) {
	w := n.pre
	if len(spans) > 0 {
		w.gap()
		w.note("Without the bytes that copies change; negative where the device hasn't summed the packet up.")
		sum := n.keep("__s64", "csum", c.Do("bpf_csum_update", skb, c.Num(0)))
		w.when(noPos, isSummed(sum), func() {
			for _, p := range spans {
				w.assign(noPos, sum, p.of("fr_complete_without", sum))
			}
			n.countFilled()
		})
	}
	w.gap()
	for i := range n.tallies {
		n.keep("__u64", tally(i), c.Num(0))
	}
	w.define(noPos, c.StructType(n.name), fanName, n.set)
	w.do(n.Pos, "bpf_loop", c.To(c.Ident("list"), "count"), c.Ident(t.name), c.Address(fanName), c.Num(0))
}

func tally(i int) string { return fmt.Sprintf("copies%d", i) }

// restore renders the end: the packet is again what it was.
func (n *fan) restore(size c.Expr, spans []span) {
	w := n.pre
	w.gap()
	if n.kept["quiet"] {
		w.when(noPos, c.To(same, "quiet"), func() { w.do(noPos, "fr_wake") })
	}
	if !n.Drop {
		if n.front.Base != nil {
			size = c.Do("fr_size", c.To(same, "size"), c.Dec(1<<bits.Len(uint(n.limit()-1))))
		}
		w.stopIf(noPos, c.Do("bpf_skb_store_bytes", skb, c.Num(0), front, size, c.Num(0)), nil,
			c.Do("fr_drop", frameLen, w.prog.reasonName(n.Fault)))
		w.completes(c.To(same, "csum"), spans)
		for _, name := range []string{"priority", "mark"} {
			if n.kept["skb_"+name] {
				w.assign(noPos, ofSKB(name), c.To(same, "skb_"+name))
			}
		}
	}
	w.gap()
	for i, reason := range n.tallies {
		w.do(noPos, "fr_count_copies", w.prog.reasonName(reason), c.To(same, tally(i)), ofSKB("len"))
	}
	for _, r := range n.Usage {
		w.use(r)
	}
	w.do(noPos, "fr_count", w.prog.reasonName(n.Reason), frameLen)
	verdict := c.Ident("TC_ACT_UNSPEC")
	if n.Drop {
		verdict = "TC_ACT_SHOT"
	}
	w.end(noPos, verdict)
}

// completes renders how a sum of the device becomes the packet's again; sum is without the spans.
func (w *writer) completes(sum c.Expr, spans []span) {
	if len(spans) == 0 {
		return
	}
	summed := isSummed(c.To(same, "csum"))
	for _, p := range spans[1:] {
		sum = p.of("fr_complete_with", sum)
	}
	w.when(noPos, summed, func() { w.add(&c.Eval{X: spans[0].of("fr_complete", sum)}) })
}

// sums returns the parts of the front that copies change.
func (n *fan) sums(f *function) []span {
	w := &writer{function: f}
	for _, made := range n.all {
		if made.Rewrite == nil {
			continue
		}
		for _, x := range made.Rewrite.Stores {
			if x := (cell{scalar: scalar{size: x.Size}, off: x.Off, width: x.Width}); !slices.Contains(w.cells, x) {
				w.cells = append(w.cells, x)
			}
		}
		for _, s := range made.Rewrite.Sums {
			w.sums = append(w.sums, w.newSum(s))
		}
	}
	spans := w.spans()
	if len(spans) == 0 && len(n.filled) > 0 {
		spans = []span{{c.Num(0), c.Num(0)}}
	}
	return spans
}
