package warn

import (
	"github.com/fastrelay/fastrelay-gen/gen/code"
	"github.com/fastrelay/fastrelay-gen/gen/trace"
	"github.com/fastrelay/fastrelay-gen/internal/diag"
)

// Untaken warns of a program that is to run at XDP, which takes nothing of it.
func Untaken(t *trace.Program, diags *diag.List) {
	if !t.Src.XDP || t.Out.XDP != nil {
		return
	}
	w := diags.Warn(code.Untaken, t.Src.HookPos, "XDP takes no packets of program %q: it leaves all to tc/ingress",
		t.Out.Name)
	for _, l := range t.Out.Left {
		w.WithRelated(l.Pos, "it leaves %s", l.What)
	}
	w.WithHint("hook: \"tc/ingress\" does the same; XDP takes what a rule sends or drops, if it does nothing else " +
		"that XDP leaves")
}
