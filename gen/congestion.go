package gen

import (
	"slices"
	"strings"

	"github.com/fastrelay/fastrelay-gen/gen/code"
	"github.com/fastrelay/fastrelay-gen/gen/draft"
	"github.com/fastrelay/fastrelay-gen/gen/expr"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// This pass is about the hook without a packet. A program there runs on a record of a TCP socket as others run on a
// frame: its stack is the header "socket", whose fields are facts, and after it the header of what happened, in which
// some fields are decisions. So expressions, lookups, rules, state and tests are those of all programs, and this pass
// says what there is no use for: other headers, actions on packets, and facts about them. What no rule decides, Reno's
// rules decide; to pass the record to the stack means that.

const socketHeader = "socket"

// maxAlgorithm is how many characters the kernel takes as the name of a congestion control (TCP_CA_NAME_MAX).
const maxAlgorithm = 15

// decisionsOf are the fields that rules may set, by the header of what happened.
var decisionsOf = map[string][]string{
	"init": {"cwnd", "pacing"}, "ack": {"cwnd", "pacing", "begin"}, "loss": {"ssthresh"}, "release": nil,
}

func isEvent(h *spec.Header) bool {
	_, ok := decisionsOf[h.Name.Value]
	return ok && h.Std
}

func decides(pl *draft.Field) bool {
	return slices.Contains(decisionsOf[pl.Parent.Decl.Name.Value], pl.Decl.Name.Value)
}

// decisions names the fields that can be set, for messages.
func decisions(header string) string {
	var names []string
	for _, h := range []string{"init", "ack", "loss"} {
		if header != h && header != socketHeader {
			continue
		}
		for _, f := range decisionsOf[h] {
			names = append(names, h+"."+f)
		}
	}
	if names == nil {
		return "fields of init, ack and loss"
	}
	return strings.Join(names, ", ")
}

// checkHook reports a stack that isn't one of the program's hook, and what each event has once. known: all headers of
// the stack are declared.
func checkHook(p *draft.Program, known bool) {
	if !p.Congestion() {
		for _, e := range p.Src.Stack {
			for _, h := range p.Names.Choices(e) {
				if h.Std && (h.Name.Value == socketHeader || isEvent(h)) {
					p.Diags.Add(code.Congestion, e.Pos, "header %q is only at %s", h.Name.Value, ir.Congestion)
					return
				}
			}
		}
		return
	}
	const stack = `the stack is ["socket", "ack"], or another event in the place of "ack": init, loss, release; or ` +
		`several, as in {event: ["ack", "loss"]}`
	errors := p.Diags.Len()
	for i, e := range p.Src.Stack {
		for _, h := range p.Names.Choices(e) {
			switch ok := h.Std && h.Name.Value == socketHeader; {
			case i == 0 && ok && !e.Optional && len(e.Headers) == 1:
			case i == 1 && isEvent(h) && !e.Optional && e.After == nil:
				event(p, h.Name.Value)
			default:
				p.Diags.Add(code.Congestion, e.Pos, "header %q has no place here at %s", h.Name.Value, ir.Congestion).
					WithHint("%s", stack)
				return
			}
		}
	}
	if len(p.Src.Stack) != 2 && known && p.Diags.Len() == errors {
		p.Diags.Add(code.Congestion, p.Src.HookPos, "the stack doesn't say what happens to the socket").
			WithHint("%s", stack)
	}
	if p.Src.Multicast {
		p.Diags.Add(code.Congestion, p.Src.HookPos, "multicast has no meaning at %s", ir.Congestion)
	}
	if n := p.Names.Spec.Name; len(n.Value) > maxAlgorithm {
		p.Diags.Add(code.Congestion, n.Pos, "the name of a relay with a congestion control has at most %d characters",
			maxAlgorithm).WithHint("sockets choose the congestion control by it")
	}
}

// event notes that the program runs at an event of the socket.
func event(p *draft.Program, name string) {
	for _, other := range p.Names.Plan.Programs {
		if slices.Contains(other.On, name) {
			p.Diags.Add(code.Congestion, p.Src.Name.Pos, "two programs run at the event %q of a socket", name).
				WithRelated(other.Pos, "the other one").WithHint("write one program with both programs' rules")
			return
		}
	}
	if !slices.Contains(p.Out.On, name) {
		p.Out.On = append(p.Out.On, name)
	}
}

// checkActions reports actions that a rule of this hook can't have.
func checkActions(p *draft.Program, r *spec.Rule) {
	if !p.Congestion() {
		return
	}
	for _, a := range r.Do {
		if a.Else != nil {
			p.Diags.Add(code.Congestion, a.Else.Pos, "nothing can be dropped at %s: there is no packet",
				ir.Congestion)
		}
		switch a.Kind {
		case spec.ActSet, spec.ActLet, spec.ActCount, spec.ActLearn, spec.ActEmit, spec.ActAdmit, spec.ActPass:
		default:
			p.Diags.Add(code.Congestion, a.Pos, "%s has no meaning at %s: there is no packet", a.Kind, ir.Congestion).
				WithHint("there are set, let, count, learn, emit, admit and pass")
		}
	}
}

// checkRow reports a table whose rows a program of this hook can't look up. It may be interrupted by another one on the
// same processor, so what it reads is copied to its stack, where each access has to be aligned.
func checkRow(s *expr.Scope, t *ir.Table, l *spec.Lookup) {
	if !s.Program.Congestion() || t.Kind == "lpm" {
		return
	}
	for _, m := range t.Value.Members {
		if k := m.Type.One().Kind; k != ir.Uint && k != ir.Bool && !k.IsIndex() || t.Value.Size > maxRow {
			s.Fail(code.Congestion, l.Pos, "at %s rows consist of integers, of at most %d bytes together",
				ir.Congestion,
				maxRow).WithRelated(t.Pos, "the table is declared here")
			return
		}
	}
}

const maxRow = 64 // bytes of a row on the stack
