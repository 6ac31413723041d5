package sim

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
	"github.com/fastrelay/fastrelay-gen/runtime/abi"
)

// Tag is a VLAN tag in the packet's metadata.
type Tag struct {
	Proto uint16 // EtherType: 0x8100 or 0x88A8
	TCI   uint16
}

// Packet is a frame and the facts about it that are not in its bytes.
type Packet struct {
	Data     []byte
	VLAN     *Tag // nil: no tag in the metadata
	Partial  Partial
	Verified int    // so many checksums, from the outermost one on, a device has verified (CHECKSUM_UNNECESSARY)
	GSO      uint32 // bytes of payload in a segment of a GSO packet; 0 for an ordinary packet
	Tunnel   bool   // of a GSO packet: each segment begins with a tunnel's headers (SKB_GSO_ENCAP_ALL)
	// of a GSO packet that the kernel can cut with a tunnel's headers in front: the protocol of its segments, 6 or 17
	// (SKB_GSO_TCPV4, SKB_GSO_TCPV6; SKB_GSO_UDP_L4); else 0
	Segments uint8
	Mark     uint32
	Priority uint32
	Proto    uint16 // skb->protocol; 0: what the kernel finds in the frame's EtherType
	// where the kernel takes the transport header to be, in front of which it cuts no packet (__bpf_skb_min_len in
	// net/core/filter.c): the stack of a sender on this host may have guessed, and looks behind the end of a datagram
	Transport int
	Frame     bool  // it comes as the driver has it: a program at XDP takes it, or leaves it to tc/ingress
	Link      uint8 // skb->pkt_type: whom the frame is addressed to, one of ir.ToHost, …; see LinkType
}

// Partial says where a checksum is left to a device (CHECKSUM_PARTIAL), as offsets in the frame. Zero: all checksums
// are complete.
type Partial struct {
	Start int // the first byte that it covers
	Field int // its field, which holds the sum of the pseudo-header
}

// linkProto is skb->protocol: eth_type_trans in net/ethernet/eth.c.
func (p *Packet) linkProto() uint16 {
	if p.Proto != 0 {
		return p.Proto
	}
	if len(p.Data) < 14 {
		return 0
	}
	switch t := binary.BigEndian.Uint16(p.Data[12:]); {
	case t >= 0x600:
		return t
	case len(p.Data) >= 16 && p.Data[14] == 0xff && p.Data[15] == 0xff:
		return 0x0001 // ETH_P_802_3
	}
	return 0x0004 // ETH_P_802_2
}

// LinkType is what skb->pkt_type becomes of a frame that comes to a device with an address (eth_type_trans).
func LinkType(frame []byte, device [6]byte) uint8 {
	if len(frame) < 6 {
		return ir.ToHost
	}
	switch dst := [6]byte(frame); {
	case dst == device:
		return ir.ToHost
	case dst == [6]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}:
		return ir.ToBroadcast
	case dst[0]&1 != 0:
		return ir.ToMulticast
	}
	return ir.ToOther
}

// Verdict is what happens to a packet.
type Verdict string

const (
	VerdictPunt Verdict = "up"   // untouched, to the next program and the stack
	VerdictPass Verdict = "pass" // likewise, by the spec's own word; a rule may have changed it
	VerdictDrop Verdict = "drop"
	VerdictSent Verdict = "sent"
)

// Result is what a run made of a packet.
type Result struct {
	Verdict  Verdict
	Reason   string
	Packet   Packet // as it goes on; for VerdictDrop as it came
	Hop      *Hop   // VerdictSent: how it leaves
	Modified bool   // bytes or metadata differ from what came
	Taken    bool   // at XDP
	Others   bool   // not taken at XDP, where the next program may take it (ir.IsOthers)
	Moved    bool   // headers moved inside the packet, which the kernel does to IP packets only

	Copies []Copy  // what became of each receiver's turn, in the order of the group
	Events []Event // in the order of the ring
}

// Copy is what a receiver of a fan-out got.
type Copy struct {
	Receiver uint32 // identity
	Reason   string
	Sent     bool
	Packet   Packet // Sent: the copy
	Hop      *Hop   // Sent: how it leaves
}

// Event is a record for user space.
type Event struct {
	Event    *ir.Event
	Receiver uint32 // identity; 0: it names none
	Record   []byte // as it is in the ring, but for its time, the first 8 bytes, which are 0
}

// Contradiction is a plan that can't be executed: a fault of the compiler, whatever the spec says.
type Contradiction struct {
	Program string
	Pos     diag.Pos // the place in the spec that the statement comes from
	Err     error
}

func (c *Contradiction) Error() string {
	return fmt.Sprintf("program %q contradicts itself: %v", c.Program, c.Err)
}

func (c *Contradiction) Unwrap() error { return c.Err }

// value is an integer (or boolean) or a byte string.
type value struct {
	u uint64
	b []byte
}

type rowState struct {
	looked, found bool
	value         []byte
}

// run is one packet in one program.
type run struct {
	relay   *Relay
	prog    *program
	packet  *Packet
	in      []byte // the frame as it came; in a fan-out's turns without what is cut off
	size    int    // of the frame as it came
	checked int    // bytes of it that the program may read
	vars    []value
	set     []bool
	rows    []rowState
	arena   []byte
	end     int               // of the payload in the frame as it came, while it is rewritten
	turn    *Copy             // the receiver's turn in a fan-out; nil outside of one
	pending map[*ir.Event]int // records of a fan-out's copies: where in result.Events
	late    []late            // records of a fan-out's copies that may be lost
	front   int               // the bytes of the frame that a fan-out's Each reads or writes
	err     error
	pos     diag.Pos // of the statement in which err was found
	result  Result
}

// Run executes a program on a packet, whose bytes it doesn't change. The result's packet may share them.
func (r *Relay) Run(program string, p Packet) (Result, error) {
	i := slices.IndexFunc(r.plan.Programs, func(prog *ir.Program) bool { return prog.Name == program })
	if i < 0 {
		return Result{}, fmt.Errorf("the plan has no program %q", program)
	}
	prog := r.plan.Programs[i]
	if prog.Hook == ir.XDP { // GSO packets come later
		p.Frame, p.GSO, p.Tunnel = true, 0, false
	}
	if p.Frame && prog.XDP != nil {
		first, err := r.exec(prog.XDP, &p)
		if err != nil || first.Verdict != VerdictPunt {
			first.Taken = true
			return first, err
		}
		res, err := r.exec(prog, &p)
		res.Others = first.Reason == prog.XDP.Reasons[ir.IsOthers].Name
		return res, err
	}
	return r.exec(prog, &p)
}

func (r *Relay) exec(p *ir.Program, packet *Packet) (Result, error) {
	prog, s := r.programs[p], &r.run
	*s = run{
		relay: r, prog: prog, packet: packet, in: packet.Data, size: len(packet.Data), vars: s.vars, set: s.set,
		rows: s.rows, arena: s.arena[:0],
	}
	s.vars = sized(s.vars, len(prog.ir.Vars))
	s.set = sized(s.set, len(prog.ir.Vars))
	s.rows = sized(s.rows, len(prog.ir.Rows))
	if !s.block(prog.body) {
		s.fail("the program ends without a terminal")
	}
	if s.err != nil {
		return Result{}, &Contradiction{Program: p.Title(), Pos: s.pos, Err: s.err}
	}
	return s.result, nil
}

// sized returns s with n zero elements.
func sized[T any](s []T, n int) []T {
	s = slices.Grow(s[:0], n)[:n]
	clear(s)
	return s
}

// block runs statements until one ends the packet's processing, and reports whether one did.
func (r *run) block(nodes []*node) bool {
	for _, n := range nodes {
		n.ran.Hits++
		if w := r.relay.Watch; w != nil {
			w(n.stmt, Moment{r})
		}
		ended := r.stmt(n)
		if r.err != nil && !r.pos.IsValid() {
			r.pos = n.ran.Pos
		}
		if r.err != nil || ended {
			return true
		}
	}
	return false
}

// stmt runs one statement, and reports whether it ended the packet's processing, or in a fan-out the receiver's turn.
func (r *run) stmt(n *node) bool {
	switch s := n.stmt.(type) {
	case *ir.NeedBytes:
		end := r.offset(s.End)
		if end > len(r.in) {
			n.no.Hits++
			return r.stop(s.Reason)
		}
		r.checked = max(r.checked, end)
	case *ir.Let:
		r.assign(s.Var, r.any(s.Value))
	case *ir.Guard:
		if !r.bool(s.Cond) && r.err == nil {
			n.no.Hits++
			return r.stop(s.Reason)
		}
	case *ir.If:
		if r.bool(s.Cond) {
			n.yes.Hits++
			return r.block(n.then)
		}
		n.no.Hits++
		return r.block(n.els)
	case *ir.ReadVarint:
		if !r.varint(s) {
			n.no.Hits++
			return r.stop(s.Reason)
		}
	case *ir.ReadUint:
		if size := r.variable(s.Size).u; size <= uint64(s.Max) {
			r.assign(s.Value, value{u: bigEndian(r.bytesAt(s.At, int(size), s.Field))})
		} else {
			r.fail("%s: an integer of %d bytes, over its bound of %d", s.Field, size, s.Max)
		}
	case *ir.Lookup:
		return r.find(n, s)
	case *ir.Count:
		r.count(s)
	case *ir.Learn:
		if !r.learn(s) && r.err == nil {
			n.no.Hits++
			return r.stop(s.Full)
		}
	case *ir.CheckHop:
		return r.checkHop(n, s)
	case *ir.FindElement:
		if r.findElement(s) {
			n.yes.Hits++
		} else {
			n.no.Hits++
		}
	case *ir.Translate:
		return r.translate(n, s)
	case *ir.Ask:
		_, ok := r.before(n.effects)
		return !ok
	case *ir.Punt:
		r.punt(s.Reason)
		return true
	case *ir.Drop:
		r.drop(n, s)
		return true
	case *ir.Forward:
		r.forward(n, s)
		return true
	case *ir.FanOut:
		r.fanOut(n, s)
		return true
	case *ir.Copy:
		r.copy(n, s)
		return true
	case *ir.Skip:
		r.decline(s.Reason)
		return true
	}
	return false
}

// find looks a row up.
func (r *run) find(n *node, s *ir.Lookup) (ended bool) {
	if r.lookup(s) {
		n.yes.Hits++
		return false
	}
	n.no.Hits++
	switch {
	case s.Row.Optional:
		return false
	case s.Miss < 0:
		r.fail("lookup %q is not optional, but a miss has no reason", s.Row.Name)
		return true
	}
	return r.stop(s.Miss)
}

// stop ends the processing of the packet, which passes to the stack or is dropped, as the reason says, or in a fan-out
// the receiver's turn.
func (r *run) stop(reason int) bool {
	switch {
	case r.turn != nil:
		r.decline(reason)
	case r.prog.ir.Reasons[reason].Kind == ir.Dropped:
		r.finish(VerdictDrop, reason, *r.packet)
	default:
		r.punt(reason)
	}
	return true
}

// punt lets the packet pass to the stack, untouched.
func (r *run) punt(reason int) { r.finish(VerdictPunt, reason, *r.packet) }

func (r *run) drop(n *node, s *ir.Drop) {
	if _, ok := r.before(n.effects); ok {
		r.after(n.effects)
		r.finish(VerdictDrop, s.Reason, *r.packet)
	}
}

func (r *run) finish(v Verdict, reason int, p Packet) {
	if r.err != nil {
		return
	}
	if v != VerdictPunt || !r.prog.ir.ToTC { // else the program at tc/ingress counts it
		r.relay.Reasons[r.prog.tallies[reason]].add(len(r.in))
	}
	r.result.Verdict, r.result.Reason, r.result.Packet = v, r.prog.ir.Reasons[reason].Name, p
}

// varint reads a variable-length integer (RFC 9000 §16); it reports whether the frame has all of it.
func (r *run) varint(s *ir.ReadVarint) bool {
	at := r.offset(s.At)
	if at >= len(r.in) {
		return false
	}
	size := 1 << (r.in[at] >> 6)
	if at+size > len(r.in) {
		return false
	}
	r.checked = max(r.checked, at+size)
	r.assign(s.Value, value{u: bigEndian(r.in[at:at+size]) & (1<<(8*size-2) - 1)})
	r.assign(s.Size, value{u: uint64(size)})
	return true
}

func (r *run) lookup(s *ir.Lookup) bool {
	i, ok := r.prog.rows[s.Row]
	if !ok {
		r.fail("row %q is not declared", s.Row.Name)
		return false
	}
	key := r.layout(&s.Row.Table.Key, s.Key)
	if r.err != nil {
		return false
	}
	v := r.relay.tables[s.Row.Table].lookup(key)
	r.rows[i] = rowState{looked: true, found: v != nil && r.alive(s.Row.Table, v), value: v}
	return r.rows[i].found
}

// alive reports whether a session's row still counts: its generation is the slot's, and the deadline has not passed.
func (r *run) alive(t *ir.Table, v []byte) bool {
	if !t.Bound() {
		return true
	}
	slot, gen, ok := slotOf(t, v)
	if !ok {
		r.fail("table %q: a session's row without slot and generation", t.Name)
		return false
	}
	if slot >= uint32(len(r.relay.Slots)) || gen == 0 {
		return false
	}
	s := r.relay.Slots[slot]
	return s.Gen == gen && r.relay.World.Now < s.Deadline
}

// slotOf returns the hidden members that tie a row to its session.
func slotOf(t *ir.Table, v []byte) (slot, gen uint32, ok bool) {
	found := 0
	for _, m := range t.Value.Members {
		switch {
		case m.Hidden && m.Name == "slot":
			slot = binary.LittleEndian.Uint32(v[m.Off:])
			found++
		case m.Hidden && m.Name == "gen":
			gen = binary.LittleEndian.Uint32(v[m.Off:])
			found++
		}
	}
	return slot, gen, found == 2
}

// layout puts values into the layout of a key or a value.
func (r *run) layout(s *ir.Struct, values []ir.MemberValue) []byte {
	b := r.scratch(s.Size)
	for _, mv := range values {
		m, off, size := mv.Member, mv.Member.Off, mv.Member.Type.Size
		switch {
		case mv.Component == ir.AddrOf:
			size = 16
		case mv.Component == ir.PortOf:
			off, size = off+16, 2
		case m.Type.Kind == ir.Prefix:
			binary.LittleEndian.PutUint32(b[off:], 128)
			off, size = off+4, 16
		}
		if off+size > len(b) {
			r.fail("member %q is outside its structure", m.Name)
			return b
		}
		v := r.any(mv.Value)
		switch {
		case r.err != nil:
			return b
		case mv.Value.Type().IsBytes():
			if len(v.b) != size {
				r.fail("member %q: %d bytes stored in %d", m.Name, len(v.b), size)
				return b
			}
			copy(b[off:], v.b)
		case !fits(v.u, 8*size):
			r.fail("member %q: %d doesn't fit into %d bytes", m.Name, v.u, size)
			return b
		default:
			for i := range size {
				b[off+i] = byte(v.u >> (8 * i))
			}
		}
	}
	return b
}

func (r *run) count(s *ir.Count) {
	by := r.uint(s.By)
	if r.err != nil {
		return
	}
	if s.Counter != nil {
		r.relay.Named[s.Counter.Index] += by
		return
	}
	if c := r.shared(s.Row, s.Member); c != nil {
		*c += by
	}
}

// shared returns the shared counter whose index is in a member of a row, or nil if there is none.
func (r *run) shared(row *ir.Row, m *ir.Member) *uint64 {
	i := littleEndian(r.member(row, m, ir.Whole, 0))
	if r.err != nil || i == 0 || i >= uint64(len(r.relay.Shared)) {
		return nil
	}
	return &r.relay.Shared[i]
}

func (r *run) learn(s *ir.Learn) bool {
	if s.Table.Session != nil {
		r.fail("table %q belongs to a session, and is learned into", s.Table.Name)
		return false
	}
	key, val := r.layout(&s.Table.Key, s.Key), r.layout(&s.Table.Value, s.Value)
	return r.err == nil && r.relay.tables[s.Table].Put(key, val)
}

// hop finds the hop of a packet.
func (r *run) hop(h *ir.HopRef) Hop {
	if h.Row == nil {
		var from netip.Addr // invalid: the kernel chooses the source
		if h.From != nil {
			from, _ = netip.AddrFromSlice(r.bytes(h.From))
		}
		to, _ := netip.AddrFromSlice(r.bytes(h.To))
		if r.err != nil || r.relay.World.Route == nil {
			return Hop{State: ir.HopNone}
		}
		return r.relay.World.Route(from, to)
	}
	b := r.member(h.Row, h.Member, ir.Whole, 0)
	if r.err != nil || len(b) < abi.HopSize {
		r.fail("member %q of row %q is no hop", h.Member.Name, h.Row.Name)
		return Hop{}
	}
	hop := parseHop(b)
	switch {
	case h.Member.Type.Kind == ir.NextHop:
		hop.NextHop = netip.AddrFrom16([16]byte(b[abi.NextHopAddr:]))
	case h.Member.To != nil:
		hop.NextHop = netip.AddrFrom16([16]byte(r.member(h.Row, h.Member.To, ir.AddrOf, 0)))
	}
	return hop
}

func (r *run) checkHop(n *node, s *ir.CheckHop) bool {
	hop := r.hop(s.Hop)
	length := r.uint(s.Length)
	if n.segment != nil && r.packet.GSO != 0 {
		length = uint64(r.packet.GSO) + r.segmentFront(n.segment)
	}
	if r.err != nil {
		return true
	}
	state := hop.State
	if state >= ir.HopStates {
		state = ir.HopNone
	}
	switch {
	case !leaves(state, r.turn != nil):
		n.outcomes[state].Hits++
		return r.stop(s.Reasons[state])
	case length > uint64(hop.MTU):
		n.outcomes[ir.HopStates].Hits++
		return r.stop(s.TooBig)
	case s.Direct && (!leaves(state, true) || !r.takesFrames(hop)):
		n.outcomes[state].Hits++
		return r.stop(s.Reasons[state])
	}
	n.outcomes[state].Hits++
	return false
}

// takesFrames reports whether a frame can leave through a hop.
func (r *run) takesFrames(h Hop) bool {
	return r.relay.World.TakesFrames == nil || r.relay.World.TakesFrames(h.Ifindex)
}

func (r *run) forward(n *node, s *ir.Forward) {
	taken, ok := r.before(n.effects)
	if !ok {
		return
	}
	if r.stuck(s.Rewrite) {
		r.giveBack(taken)
		r.punt(s.NoRoom)
		return
	}
	if r.cutShort(s) {
		r.giveBack(taken)
		return
	}
	out := *r.packet
	addressed := s.Hop != nil && r.prog.ir.L2
	if s.Rewrite != nil {
		out = r.rewrite(s.Rewrite, addressed)
		r.result.Moved = movesHeaders(s.Rewrite)
	}
	if s.End != nil {
		if s.Rewrite != nil && (s.Rewrite.Trim || s.Rewrite.Resize != ir.InPlace) {
			r.fail("a packet is cut off that its rewrite cuts off or resizes")
		}
		out.Data = r.cut(out.Data, s.End)
	}
	verdict := VerdictPass
	var hop *Hop
	if s.Hop != nil {
		verdict = VerdictSent
		h := r.hop(s.Hop)
		hop = &h
		if addressed {
			out.Data = withLinkAddresses(out.Data, h)
		}
	}
	if r.err != nil {
		return
	}
	for _, row := range s.Usage {
		r.use(row)
	}
	r.after(n.effects)
	r.finish(verdict, s.Reason, out)
	r.result.Hop = hop
	r.result.Modified = !bytes.Equal(out.Data, r.in) || out.VLAN != r.packet.VLAN ||
		out.Mark != r.packet.Mark || out.Priority != r.packet.Priority
}

// cutShort ends a packet that would be cut in front of its transport header, which the kernel refuses. A tail is cut
// off before the headers move, unless they are as long as before, or longer.
func (r *run) cutShort(s *ir.Forward) bool {
	w, end := s.Rewrite, len(r.in)
	changed := false
	switch {
	case r.packet.Transport == 0:
		return false
	case s.End != nil:
		end = int(r.uint(s.End))
	case w != nil && w.Trim:
		front := r.offset(w.OldFront)
		by := r.offset(w.NewFront) - front
		end = front + int(r.uint(w.Payload))
		changed = by > 0 || by == 0 && (w.PopInner || w.Family != 0)
	}
	switch {
	case end >= min(len(r.in), r.packet.Transport):
		return false
	case changed:
		r.finish(VerdictDrop, s.Fault, *r.packet)
	default:
		r.punt(s.NoRoom)
	}
	return true
}

// cut returns a frame of the size of the one that came, without the bytes from end on.
func (r *run) cut(frame []byte, end ir.Expr) []byte {
	n := r.uint(end)
	if r.err == nil && (n > uint64(len(r.in)) || len(frame) != len(r.in)) {
		r.fail("a frame of %d bytes is cut off at %d", len(frame), n)
	}
	if r.err == nil && n < uint64(len(r.in)) && r.packet.GSO != 0 {
		r.fail("a GSO packet is cut off")
	}
	if r.err != nil {
		return frame
	}
	return frame[:n:n]
}

// withLinkAddresses returns the frame with the link-layer addresses of a hop whose neighbour is known. If it isn't,
// the kernel replaces the addresses when it has resolved it.
func withLinkAddresses(frame []byte, h Hop) []byte {
	if h.State != ir.HopDirect || len(frame) < linkAddresses {
		return frame
	}
	frame = slices.Clone(frame)
	copy(frame, h.Dst[:])
	copy(frame[6:], h.Src[:])
	return frame
}

// rowOf returns which of its session's rows a row is.
func rowOf(t *ir.Table, v []byte) int {
	for _, m := range t.Value.Members {
		if m.Hidden && m.Name == ir.RowIndex {
			return int(binary.LittleEndian.Uint32(v[m.Off:]))
		}
	}
	return t.Row
}

// use counts the packet in the usage of a row's session.
func (r *run) use(row *ir.Row) {
	state := r.row(row)
	if !state.found {
		r.fail("row %q counts its use, but there is no row", row.Name)
		return
	}
	slot, _, ok := slotOf(row.Table, state.value)
	index := rowOf(row.Table, state.value)
	if !ok || slot >= uint32(len(r.relay.Usage)) || index >= len(r.relay.Usage[slot].Rows) {
		r.fail("row %q counts its use, but has no session", row.Name)
		return
	}
	u := &r.relay.Usage[slot]
	u.Last = r.relay.World.Now
	u.Rows[index].add(len(r.in))
}
