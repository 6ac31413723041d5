package gen

import (
	"slices"
	"strings"

	"github.com/fastrelay/fastrelay-gen/gen/code"
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

func (p *program) congestion() bool { return p.src.Hook == ir.Congestion }

func isEvent(h *spec.Header) bool {
	_, ok := decisionsOf[h.Name.Value]
	return ok && h.Std
}

func decides(pl *fieldRef) bool {
	return slices.Contains(decisionsOf[pl.parent.h.Name.Value], pl.f.Name.Value)
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
func (p *program) checkHook(known bool) {
	if !p.congestion() {
		for _, e := range p.src.Stack {
			for _, h := range p.names.Choices(e) {
				if h.Std && (h.Name.Value == socketHeader || isEvent(h)) {
					p.diags.Add(code.Congestion, e.Pos, "header %q is only at %s", h.Name.Value, ir.Congestion)
					return
				}
			}
		}
		return
	}
	const stack = `the stack is ["socket", "ack"], or another event in the place of "ack": init, loss, release; or ` +
		`several, as in {event: ["ack", "loss"]}`
	errors := p.diags.Len()
	for i, e := range p.src.Stack {
		for _, h := range p.names.Choices(e) {
			switch ok := h.Std && h.Name.Value == socketHeader; {
			case i == 0 && ok && !e.Optional && len(e.Headers) == 1:
			case i == 1 && isEvent(h) && !e.Optional && e.After == nil:
				p.event(h.Name.Value)
			default:
				p.diags.Add(code.Congestion, e.Pos, "header %q has no place here at %s", h.Name.Value, ir.Congestion).
					WithHint("%s", stack)
				return
			}
		}
	}
	if len(p.src.Stack) != 2 && known && p.diags.Len() == errors {
		p.diags.Add(code.Congestion, p.src.HookPos, "the stack doesn't say what happens to the socket").
			WithHint("%s", stack)
	}
	if p.src.Multicast {
		p.diags.Add(code.Congestion, p.src.HookPos, "multicast has no meaning at %s", ir.Congestion)
	}
	if n := p.names.Spec.Name; len(n.Value) > maxAlgorithm {
		p.diags.Add(code.Congestion, n.Pos, "the name of a relay with a congestion control has at most %d characters",
			maxAlgorithm).WithHint("sockets choose the congestion control by it")
	}
}

// event notes that the program runs at an event of the socket.
func (p *program) event(name string) {
	for _, other := range p.names.Plan.Programs {
		if slices.Contains(other.On, name) {
			p.diags.Add(code.Congestion, p.src.Name.Pos, "two programs run at the event %q of a socket", name).
				WithRelated(other.Pos, "the other one").WithHint("write one program with both programs' rules")
			return
		}
	}
	if !slices.Contains(p.out.On, name) {
		p.out.On = append(p.out.On, name)
	}
}

// checkActions reports actions that a rule of this hook can't have.
func (p *program) checkActions(r *spec.Rule) {
	if !p.congestion() {
		return
	}
	for _, a := range r.Do {
		if a.Else != nil {
			p.diags.Add(code.Congestion, a.Else.Pos, "nothing can be dropped at %s: there is no packet",
				ir.Congestion)
		}
		switch a.Kind {
		case spec.ActSet, spec.ActLet, spec.ActCount, spec.ActLearn, spec.ActEmit, spec.ActAdmit, spec.ActPass:
		default:
			p.diags.Add(code.Congestion, a.Pos, "%s has no meaning at %s: there is no packet", a.Kind, ir.Congestion).
				WithHint("there are set, let, count, learn, emit, admit and pass")
		}
	}
}

// checkRow reports a table whose rows a program of this hook can't look up. It may be interrupted by another one on the
// same processor, so what it reads is copied to its stack, where each access has to be aligned.
func (s *scope) checkRow(t *ir.Table, l *spec.Lookup) {
	if !s.p.congestion() || t.Kind == "lpm" {
		return
	}
	for _, m := range t.Value.Members {
		if k := m.Type.One().Kind; k != ir.Uint && k != ir.Bool && !k.IsIndex() || t.Value.Size > maxRow {
			s.fail(code.Congestion, l.Pos, "at %s rows consist of integers, of at most %d bytes together",
				ir.Congestion,
				maxRow).WithRelated(t.Pos, "the table is declared here")
			return
		}
	}
}

const maxRow = 64 // bytes of a row on the stack
