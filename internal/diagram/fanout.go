package diagram

import (
	"fmt"
	"strings"

	"github.com/fastrelay/fastrelay-gen/spec"
)

// FanOut draws what becomes of a packet that goes to the receivers of a group: the rules, top down, in the order in
// which they are tried for each of them, and where each ends.
func FanOut(g *spec.Group, fo *spec.FanOut) string {
	d := &tree{}
	var key []string
	for _, k := range fo.Key {
		key = append(key, expression(k))
	}
	d.line("packet")
	d.line("  |")
	d.line("  |  %s  (%s)", fo.Group.Value, strings.Join(key, ", "))
	if g.Max > 0 {
		d.line("  |  each of up to %d receivers, in their order:", g.Max)
	} else {
		d.line("  |  each receiver, in their order:")
	}
	for i, r := range fo.Rules {
		d.rule(i+1, r)
	}
	if n := len(fo.Rules); n == 0 || conditional(fo.Rules[n-1]) {
		d.line("  |")
		d.line("  +-- otherwise")
		d.line("  |     no copy (no_rule)")
	}
	d.line("  |")
	if fo.Drop != nil {
		d.line("  V  dropped (%s)", fo.Drop.Value)
	} else {
		d.line("  V  goes on as it came")
	}
	return d.String()
}

type tree struct{ strings.Builder }

func (d *tree) line(format string, args ...any) { fmt.Fprintf(d, format+"\n", args...) }

func conditional(r *spec.Rule) bool { return len(r.Match) > 0 || r.When != nil }

// rule draws the branch of a rule.
func (d *tree) rule(n int, r *spec.Rule) {
	var conditions []string
	for _, m := range r.Match {
		conditions = append(conditions, expression(m.Field)+" is "+constraint(m.Is))
	}
	if r.When != nil {
		conditions = append(conditions, expression(r.When))
	}
	text := strings.Join(conditions, " and ")
	if text == "" {
		text = "always"
	}
	d.line("  |")
	d.line("  +-- %d. %s", n, text)
	for _, l := range r.Lookups {
		d.line("  |     look %s up in %s", l.Var.Value, l.Table.Value)
	}
	for _, a := range r.Do {
		d.line("  |     %s", action(a))
	}
}

// action writes what a rule of a fan-out does.
func action(a *spec.Action) string {
	switch a.Kind {
	case spec.ActSet, spec.ActLet, spec.ActMark:
		return string(a.Kind) + " " + assigns(a.Set)
	case spec.ActBlank:
		return "blank " + a.Header.Value
	case spec.ActEmit:
		return "emit " + a.Event.Value + " {" + assigns(a.Set) + "}"
	case spec.ActAdmit:
		text := "admit " + expression(a.Cost) + " from " + expression(a.Credit)
		for name, value := range a.Members() {
			switch name {
			case "cost", "credit", "count", "by":
			default:
				text += ", " + name + " " + value
			}
		}
		text += "; else no copy"
		if a.Else != nil {
			text += " (" + a.Else.Value + ")"
		}
		if a.Count != nil {
			text += ", and count " + expression(a.Count)
		}
		return text
	case spec.ActCount:
		text := "count " + expression(a.Counter)
		if a.By != nil {
			text += " by " + expression(a.By)
		}
		return text
	case spec.ActSend:
		return "copy" + ends(a)
	case spec.ActDrop:
		return "no copy (" + a.Reason.Value + ")"
	}
	return string(a.Kind)
}

func ends(a *spec.Action) string {
	var text string
	for _, end := range []struct {
		what string
		e    *spec.Expr
	}{{"from", a.From}, {"to", a.To}, {"via", a.Via}} {
		if end.e != nil {
			text += " " + end.what + " " + expression(end.e)
		}
	}
	return text
}

func assigns(list []*spec.Assign) string {
	var out []string
	for _, a := range list {
		out = append(out, expression(a.Target)+" = "+expression(a.Value))
	}
	return strings.Join(out, ", ")
}
