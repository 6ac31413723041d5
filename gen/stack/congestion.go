package stack

import (
	"slices"

	"github.com/fastrelay/fastrelay-gen/gen/code"
	"github.com/fastrelay/fastrelay-gen/gen/draft"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
)

// This pass is about the hook without a packet. A program there runs on a record of a TCP socket as others run on a
// frame: its stack is the header "socket", whose fields are facts, and after it the header of what happened, in which
// some fields are decisions. So expressions, lookups, rules, state and tests are those of all programs, and this pass
// says what there is no use for: other headers, actions on packets, and facts about them. What no rule decides, Reno's
// rules decide; to pass the record to the stack means that.

// maxAlgorithm is how many characters the kernel takes as the name of a congestion control (TCP_CA_NAME_MAX).
const maxAlgorithm = 15

// checkHook reports a stack that isn't one of the program's hook, and what each event has once. known: all headers of
// the stack are declared.
func checkHook(p *draft.Program, known bool) {
	if !p.Congestion() {
		for _, e := range p.Src.Stack {
			for _, h := range p.Names.Choices(e) {
				if h.Std && (h.Name.Value == draft.SocketHeader || draft.IsEvent(h)) {
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
			switch ok := h.Std && h.Name.Value == draft.SocketHeader; {
			case i == 0 && ok && !e.Optional && len(e.Headers) == 1:
			case i == 1 && draft.IsEvent(h) && !e.Optional && e.After == nil:
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
