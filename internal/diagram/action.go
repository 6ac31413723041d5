package diagram

import (
	"strings"

	"github.com/fastrelay/fastrelay-gen/spec"
)

// action writes what a rule of a fan-out does.
func action(a *spec.Action) string {
	if a.Kind.OnHeader() {
		return string(a.Kind) + " " + a.Header.Value
	}
	switch a.Kind {
	case spec.ActSet, spec.ActLet, spec.ActMark:
		return string(a.Kind) + " " + assigns(a.Set)
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
