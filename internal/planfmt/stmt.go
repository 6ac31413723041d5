package planfmt

import (
	"fmt"
	"strings"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/runtime/abi"
)

func (w *writer) block(p *ir.Program, body []ir.Stmt) {
	for _, s := range body {
		w.stmt(p, s)
	}
}

func (w *writer) stmt(p *ir.Program, s ir.Stmt) {
	switch s := s.(type) {
	case *ir.NeedBytes:
		what := ""
		if s.Run != nil {
			what = " (" + s.Run.Header + ")"
		}
		w.line(s.Pos, "need %s bytes%s else %s", offset(s.End), what, stop(p, s.Reason))
	case *ir.Let:
		w.line(s.Pos, "let %s = %s", s.Var.Name, expr(s.Value))
	case *ir.Guard:
		w.line(s.Pos, "guard %s else %s", expr(s.Cond), stop(p, s.Reason))
	case *ir.If:
		w.branch(p, s)
	case *ir.ReadVarint:
		w.line(s.Pos, "varint %s, %s = [%s] else %s", s.Value.Name, s.Size.Name, offset(s.At), stop(p, s.Reason))
	case *ir.ReadUint:
		w.line(s.Pos, "let %s = [%s +%s]", s.Value.Name, offset(s.At), s.Size.Name)
	case *ir.Lookup:
		miss := "optional"
		if s.Miss >= 0 {
			miss = "else " + stop(p, s.Miss)
		}
		w.line(s.Pos, "lookup %s = %s%s %s, if rows change %s", s.Row.Name, s.Row.Table.Name, members(s.Key), miss,
			stop(p, s.Changing))
	case *ir.Count:
		w.line(s.Pos, "%s", count(s))
	case *ir.Learn:
		w.learn(p, s)
	case *ir.CheckHop:
		w.line(s.Pos, "check hop %s for %s bytes", hop(s.Hop), expr(s.Length))
		w.nested(func() {
			for i, r := range s.Reasons {
				state := abi.HopState(i)
				if state != ir.HopDirect && (state != ir.HopNeighbour || w.each || s.Direct) {
					w.line(none, "%s: %s", hopStates[i], stop(p, r))
				}
			}
			w.line(none, "over the MTU: %s", stop(p, s.TooBig))
		})
	case *ir.FindElement:
		w.findElement(s)
	case *ir.Translate:
		w.translate(p, s)
	case *ir.Ask:
		w.line(s.Pos, "ask")
		w.nested(func() { w.effects(p, &s.Effects) })
	case *ir.Punt:
		w.line(s.Pos, "%s", toStack(p, s.Reason))
	case *ir.Drop:
		w.line(s.Pos, "drop %s", reason(p, s.Reason))
		w.nested(func() { w.effects(p, &s.Effects) })
	case *ir.Forward:
		w.forward(p, s)
	case *ir.FanOut:
		w.fanOut(p, s)
	case *ir.Copy:
		w.copy(p, s)
	case *ir.Skip:
		w.line(s.Pos, "skip %s", reason(p, s.Reason))
	default:
		w.line(none, "unknown statement %T", s)
	}
}

var hopStates = [ir.HopStates]string{
	ir.HopNone: "none", ir.HopDirect: "direct", ir.HopNeighbour: "neighbour", ir.HopLocal: "local",
	ir.HopUnreachable: "unreachable", ir.HopBlackhole: "blackhole", ir.HopProhibit: "prohibit",
	ir.HopXfrm: "xfrm", ir.HopRule: "rule", ir.HopEncap: "encap", ir.HopForwardingOff: "forwarding_off",
}

func (w *writer) branch(p *ir.Program, s *ir.If) {
	note := ""
	if s.Note != "" {
		note = " (" + s.Note + ")"
	}
	w.line(s.Pos, "if %s%s", expr(s.Cond), note)
	w.nested(func() { w.block(p, s.Then) })
	if len(s.Else) > 0 {
		w.line(none, "else")
		w.nested(func() { w.block(p, s.Else) })
	}
}

func (w *writer) forward(p *ir.Program, s *ir.Forward) {
	text := "forward " + reason(p, s.Reason)
	if s.Hop != nil {
		text += " through " + hop(s.Hop)
	}
	if s.End != nil {
		text += ", cut off at " + expr(s.End)
	}
	for _, r := range s.Usage {
		text += ", usage " + r.Name
	}
	if s.NoRoom >= 0 {
		text += ", no room: " + toStack(p, s.NoRoom)
	}
	if s.Fault >= 0 {
		text += ", fault: drop " + reason(p, s.Fault)
	}
	w.line(s.Pos, "%s", text)
	w.nested(func() {
		w.effects(p, &s.Effects)
		if s.Rewrite != nil {
			w.rewrite(s.Rewrite)
		}
	})
}

var resizes = map[ir.Resize]string{
	ir.InPlace: "in place", ir.MoveHeaders: "move headers", ir.MovePayload: "move payload",
	ir.MoveEither: "move payload where a checksum is partial, else headers",
}

func (w *writer) rewrite(r *ir.Rewrite) {
	text := "rewrite " + resizes[r.Resize]
	if r.Family != 0 {
		text += fmt.Sprintf(", to IPv%d", r.Family)
	}
	if r.PopTag {
		text += ", pop the tag"
	}
	if r.PopInner {
		text += ", pop the tag in the frame"
	}
	text += fmt.Sprintf(", l2 %d", r.L2)
	text += fmt.Sprintf(", front %s -> %s", offset(r.OldFront), offset(r.NewFront))
	if r.Unmoved != (ir.Off{}) {
		text += ", unmoved " + offset(r.Unmoved)
	}
	if r.Payload != nil {
		text += ", payload " + expr(r.Payload)
	}
	if r.Trim {
		text += ", trim"
	}
	if r.Summed > 0 {
		text += fmt.Sprintf(", checksums gone: %d", r.Summed)
	}
	if e := r.Encap; e != nil {
		text += fmt.Sprintf(", segments in IPv%d", e.Family)
		if e.UDP {
			text += " and UDP"
		}
		if e.Ethernet {
			text += " and Ethernet"
		}
		text += " after " + expr(e.Front)
	}
	w.line(r.Pos, "%s", text)
	w.nested(func() {
		if len(r.Runs) > 0 {
			var parts []string
			for _, part := range r.Runs {
				parts = append(parts, part.Header+" at "+offset(part.At))
			}
			w.line(none, "headers %s", strings.Join(parts, ", "))
		}
		if r.Priority != nil {
			w.line(none, "priority = %s", expr(r.Priority))
		}
		if r.Mark != nil {
			w.line(none, "mark = %s", expr(r.Mark))
		}
		for _, f := range r.Filled {
			w.line(f.Pos, "[%s +%s] = %s, at most %d  (%s)", offset(f.At), operand(f.Len), f.With.Text, f.Max, f.Header)
		}
		for _, c := range r.Stores {
			w.cell(c)
		}
		for _, s := range r.Sums {
			w.sum(s)
		}
	})
}

func (w *writer) cell(c ir.Store) {
	order := ""
	if c.Little {
		order = " little"
	}
	note := ""
	if c.Note != "" {
		note = "  (" + c.Note + ")"
	}
	size := fmt.Sprint(c.Size)
	if c.Width != nil {
		size = "varint " + c.Width.Name
		if c.Plain {
			size = c.Width.Name
		}
	}
	if c.If != nil {
		note = " if " + expr(c.If) + note
	}
	w.line(c.Pos, "[%s +%s%s] = %s%s", offset(c.Off), size, order, expr(c.Value), note)
}

func (w *writer) sum(s *ir.Sum) {
	text := "checksum " + s.Name
	if s.Whole != nil {
		text += fmt.Sprintf(" at %s, over all from %s on", offset(s.New), offset(*s.Whole))
	} else if s.Fresh {
		text += fmt.Sprintf(" at %s, fresh", offset(s.New))
	} else {
		text += fmt.Sprintf(" %s -> %s", offset(s.Old), offset(s.New))
	}
	for _, flag := range []struct {
		on   bool
		name string
	}{{s.Absent, "absent"}, {s.Optional, "optional"}, {s.Offloaded, "offloaded"}} {
		if flag.on {
			text += ", " + flag.name
		}
	}
	if s.Swap != nil {
		text += ", swap " + expr(s.Swap)
	}
	w.line(s.Pos, "%s", text)
	w.nested(func() {
		w.terms("old", s.OldTerms)
		w.terms("new", s.NewTerms)
		w.terms("old pseudo", s.OldPseudo)
		w.terms("new pseudo", s.NewPseudo)
		if s.Tail {
			text := fmt.Sprintf("tail to %s, at most %d", offset(s.TailEnd), s.TailMax)
			if s.TailOdd != nil {
				text += ", odd " + expr(s.TailOdd)
			}
			w.line(none, "%s", text)
		}
	})
}

func (w *writer) terms(what string, terms []ir.Term) {
	if len(terms) > 0 {
		w.line(none, "%s: %s", what, summands(terms))
	}
}

func summands(terms []ir.Term) string {
	var out []string
	for _, t := range terms {
		text := ""
		if t.New != nil {
			text = "checksum " + t.New.Name + ":2"
		} else if t.Region {
			text = fmt.Sprintf("bytes[%s +%s, at most %d]", offset(t.At), expr(t.Len), t.Max)
		} else {
			text = fmt.Sprintf("%s:%d", expr(t.Value), t.Size)
		}
		if t.Odd {
			text += " odd"
		}
		if t.OddIf != nil {
			text += " odd if " + operand(t.OddIf)
		}
		out = append(out, text)
	}
	return strings.Join(out, ", ")
}

// members writes the members of a key or a value: {client.addr: …, client.port: …}.
func members(list []ir.MemberValue) string {
	var out []string
	for _, m := range list {
		name := m.Member.Name + part(m.Component)
		out = append(out, name+": "+expr(m.Value))
	}
	return "{" + strings.Join(out, ", ") + "}"
}

func hop(h *ir.HopRef) string {
	if h.Row != nil {
		return fmt.Sprintf("%s.%s (IPv%d)", h.Row.Name, h.Member.Name, h.Family)
	}
	flow := ""
	if h.Proto != 0 {
		flow = fmt.Sprintf(", protocol %d, ports %s, %s", h.Proto, optional(h.FromPort), optional(h.ToPort))
	}
	return fmt.Sprintf("route(%s, %s%s) (IPv%d)", optional(h.From), optional(h.To), flow, h.Family)
}

func optional(e ir.Expr) string {
	if e == nil {
		return "-"
	}
	return expr(e)
}
