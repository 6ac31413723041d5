// Package draft is the program that is being compiled, as far as it is: what the plan has of it, the names that are
// taken in it, its reasons; and the headers of a path with their fields, as the stages after the stack see them.
package draft

import (
	"fmt"
	"slices"
	"strings"

	"github.com/fastrelay/fastrelay-gen/gen/declare"
	"github.com/fastrelay/fastrelay-gen/gen/fold"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/gen/trace"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// Next is the reason, while an alternative is tried, of what leads to the next one. No plan has it.
const Next = -1

// TooShort is what reason truncated says.
const TooShort = "the packet ends inside a header"

// orElse separates the causes that are counted under one reason.
const orElse = "; or: "

// Stop is what a check does to the packets that it stops.
type Stop int

const (
	PassToStack Stop = iota
	EndTurn          // of a fan-out's receiver: it gets no copy
	TryNext          // alternative of a header
)

// Program is one program that is compiled.
type Program struct {
	Names  *declare.Names
	Diags  *diag.List
	Src    *spec.Program
	Out    *ir.Program
	taken  map[string]int     // how often a name of a variable or row was taken
	Dead   bool               // too many paths: stop
	Lost   map[string]bool    // lookups that are reported: what reads their rows isn't
	Least  map[*ir.Var]int    // how much of the packet is in front of a variable place at least
	Starts map[*ir.Var]bool   // where headers begin after the payload of another one
	Stop   Stop               // what a check does to the packets that it stops, at the place that is compiled
	Trace  *trace.Program     // where in the plan the spec's rules and headers are
	Driver bool               // it runs on frames as the driver has them
	Protos map[*ir.Member]int // of hops of rows: the IP protocol of the packets; 0: several
}

// New returns a program of which nothing is compiled yet. protos is what all programs know of the packets that leave
// through hops of rows.
func New(src *spec.Program, names *declare.Names, protos map[*ir.Member]int, diags *diag.List) *Program {
	out := &ir.Program{Name: src.Name.Value, Hook: src.Hook, Pos: src.Name.Pos}
	return &Program{
		Names: names, Diags: diags, Src: src, Out: out, taken: map[string]int{}, Lost: map[string]bool{},
		Least: map[*ir.Var]int{}, Starts: map[*ir.Var]bool{}, Trace: trace.New(src, out), Protos: protos,
	}
}

// Header is a header on a path.
type Header struct {
	Entry string // what the stack calls it
	Decl  *spec.Header
	Meta  bool // it is in the packet's metadata
	Off   ir.Off
	End   ir.Off // after its last field
	Size  int    // of the header in the frame in bytes; -1 if it varies
	Limit ir.Expr
	Far   int // how much of its offset the payloads in front of it may be
	// inner is the offset at which what the header encloses ends (a trailer included), from
	// its length if it has one.
	Inner    ir.Expr
	Slack    *spec.Counts // the length by which inner may be in front of limit; nil: it isn't
	Payload  ir.Expr      // where the payload ends: inner without the trailer
	Unicast  []*Field     // addresses that are known to be a host's
	Verified bool         // its checksum is known to be right
	Fields   map[string]*Field
	Order    []*Field
}

// Field is a field on a path.
type Field struct {
	Decl    *spec.Field
	Off     ir.Off  // of its first byte
	Bit     int     // of its first bit in that byte
	Segment int     // fields of one segment have fixed distances
	Present ir.Expr // nil: always
	Size    ir.Expr // bytes of a field of variable length; nil: fixed
	Load    ir.Expr // its value; nil for bytes of variable length
	Max     uint64  // upper bound of an integer
	Width   *ir.Var // an integer of variable size: its bytes
	Value   *ir.Var // an integer of variable size, conditional: its value
	Parent  *Header
}

// Emit appends statements to a block.
func Emit(blk *[]ir.Stmt, s ...ir.Stmt) { *blk = append(*blk, s...) }

// Reason returns the index of a reason, which is added when it is new. Its kind and its name say what happened, and
// nothing else: neither depends on what other rules there are. docs/operate.md lists them all. What it says of
// itself is all that it is counted for.
func (p *Program) Reason(name string, kind ir.ReasonKind, doc string, pos diag.Pos) int {
	for i, r := range p.Out.Reasons {
		if r.Name == name && r.Kind == kind {
			if doc != "" && !slices.Contains(strings.Split(r.Doc, orElse), doc) {
				r.Doc += orElse + doc
			}
			return i
		}
	}
	p.Out.Reasons = append(p.Out.Reasons, &ir.Reason{Name: name, Kind: kind, Doc: doc, Pos: pos})
	return len(p.Out.Reasons) - 1
}

// Punted is the reason for a packet to pass to the stack, or for a receiver to get no copy.
func (p *Program) Punted(name, doc string, pos diag.Pos) int {
	if p.Stop == TryNext {
		return Next
	}
	return p.Reason(name, p.Stopped(), doc, pos)
}

// Stopped is what happens to what a reason of punted stops.
func (p *Program) Stopped() ir.ReasonKind {
	if p.Stop == EndTurn {
		return ir.Declined
	}
	return ir.Punted
}

// Unique makes a name for a variable or a row that no other has.
func (p *Program) Unique(name string) string {
	p.taken[name]++
	if n := p.taken[name]; n > 1 {
		return p.Unique(fmt.Sprintf("%s_%d", name, n))
	}
	return name
}

// NewVar returns a new variable of the program. Integers are at most limit.
func (p *Program) NewVar(name string, t ir.Type, limit uint64) *ir.Var {
	v := &ir.Var{Name: p.Unique(name), Type: t, Max: limit}
	p.Out.Vars = append(p.Out.Vars, v)
	return v
}

// Let gives a name to a value.
func (p *Program) Let(blk *[]ir.Stmt, name string, x ir.Expr, limit uint64, pos diag.Pos) *ir.Var {
	v := p.NewVar(name, x.Type(), limit)
	Emit(blk, &ir.Let{Var: v, Value: x, Pos: pos})
	return v
}

// Truncated is the reason of packets that end inside of a header.
func (p *Program) Truncated(pos diag.Pos) int { return p.Punted("truncated", TooShort, pos) }

// SuperPacket is the reason of GSO packets.
func (p *Program) SuperPacket(pos diag.Pos) int {
	return p.Reason("gso_packet", p.Stopped(), "a GSO packet: several datagrams in one buffer", pos)
}

// Pull notes how many bytes from the start of the frame the program reads.
func (p *Program) Pull(end ir.Off) {
	n := end.Const
	if end.Base != nil {
		n += int(end.Base.Max)
	}
	p.Out.Pull = max(p.Out.Pull, n)
}

// AtLeast is how many bytes of the packet are in front of an offset at least.
func (p *Program) AtLeast(o ir.Off) int {
	if o.Base == nil {
		return o.Const
	}
	return p.Least[o.Base] + o.Const
}

// FieldReason is the reason for a packet to be declined because of a field, counted under the field's name or what the
// header says instead. doc is what happened; a field may be reached by several paths.
func (p *Program) FieldReason(h *spec.Header, f *spec.Field, doc string) int {
	name := h.Name.Value + "_" + f.Name.Value
	if f.Reason != nil {
		name = f.Reason.Value
	}
	return p.Punted(name, h.Name.Value+"."+f.Name.Value+" "+doc, f.Name.Pos)
}

// Unfit is the reason if a rule gives a field a value that it can't take.
func (p *Program) Unfit(h *spec.Header, f *spec.Field, why string) int {
	return p.Punted("unfit_"+h.Name.Value+"_"+f.Name.Value, h.Name.Value+"."+f.Name.Value+" "+why, f.Name.Pos)
}

// UnlessAbsent is a condition on a field, which a packet without it meets.
func (pl *Field) UnlessAbsent(cond ir.Expr) ir.Expr {
	if pl.Present == nil {
		return cond
	}
	return fold.Or(fold.Not(pl.Present), cond)
}

// Room is the largest value that an integer of variable size has room for in this packet.
func (pl *Field) Room() ir.Expr { return &ir.Room{Width: pl.Width, Plain: pl.Decl.SizedUint()} }

// Word is an integer of variable size as the upper bytes of 8.
func (pl *Field) Word(x ir.Expr) ir.Expr {
	return &ir.Word{X: x, Width: pl.Width, Plain: pl.Decl.SizedUint()}
}

// Congestion reports whether the program runs at the hook without a packet.
func (p *Program) Congestion() bool { return p.Src.Hook == ir.Congestion }

// Ingress reports whether the program runs on packets that come in.
func (p *Program) Ingress() bool { return p.Src.Receives() }

// SumOK holds if the checksum of a header, which covers nothing else, is right.
func (in *Header) SumOK() *ir.SumOK {
	if in.Size >= 0 {
		return &ir.SumOK{Off: in.Off, Len: in.Size}
	}
	return &ir.SumOK{Off: in.Off, Len: in.Decl.MaxBytes(), Size: fold.Distance(in.End, in.Off)}
}

// Role returns the field of a header that has a role, or nil.
func Role(h *spec.Header, name string) *spec.Field {
	for _, f := range h.Fields {
		if f.Role.Value == name {
			return f
		}
	}
	return nil
}

// Address returns the address of an IP header that has a role, or nil.
func (in *Header) Address(role string) *Field {
	for _, pl := range in.Order {
		if pl.Decl.Role.Value == role && pl.Decl.Type == "ip" {
			return pl
		}
	}
	return nil
}

// Asks reports whether an expression of the program consists of a name, or has it as an operand.
func (p *Program) Asks(name string) bool {
	for e := range p.Names.Spec.Exprs(p.Src) {
		if e.Op == spec.OpName && len(e.Path) == 1 && e.Path[0].Value == name {
			return true
		}
	}
	return false
}

// Follower returns the entry that begins after the payload of another one, or nil.
func (p *Program) Follower(entry string) *spec.StackEntry {
	for _, e := range p.Src.Stack {
		if e.After != nil && e.After.Value == entry {
			return e
		}
	}
	return nil
}

// HostOf returns the header of a path after whose payload an entry begins, or nil.
func HostOf(e *spec.StackEntry, path []*Header) *Header {
	i := slices.IndexFunc(path, func(in *Header) bool { return e.After != nil && in.Entry == e.After.Value })
	if i < 0 {
		return nil
	}
	return path[i]
}

// Encloses reports whether a header of a path is another one or inside of it, and so doesn't begin after its payload.
func (p *Program) Encloses(outer, in *Header, path []*Header) bool {
	for i := slices.Index(path, in); i >= 0; i-- {
		if path[i] == outer {
			return true
		}
		for host := p.host(path[i], path[:i]); host != nil; host = p.host(path[i], path[:i]) {
			if host == outer {
				return false
			}
			i = slices.Index(path, host) // what that one is inside of, this one is, too
		}
	}
	return false
}

// host returns the header after whose payload a header begins, of those in front of it, or nil.
func (p *Program) host(in *Header, front []*Header) *Header {
	i := slices.IndexFunc(p.Src.Stack, func(e *spec.StackEntry) bool { return e.Var.Value == in.Entry })
	return HostOf(p.Src.Stack[i], front)
}
