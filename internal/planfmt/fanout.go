package planfmt

import (
	"fmt"
	"reflect"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
)

func (w *writer) fanOut(p *ir.Program, s *ir.FanOut) {
	what := "pass"
	if s.Drop {
		what = "drop"
	}
	text := fmt.Sprintf("fan out to %s%s else %s", s.Group.Name, members(s.Key), toStack(p, s.Miss))
	text += fmt.Sprintf(", %s %s, front %s", what, reason(p, s.Reason), offset(s.Front))
	if s.End != nil {
		text += ", cut off at " + expr(s.End)
	}
	for _, r := range s.Usage {
		text += ", usage " + r.Name
	}
	text += fmt.Sprintf(", no room: %s, fault: drop %s", toStack(p, s.NoRoom), reason(p, s.Fault))
	w.line(s.Pos, "%s", text)
	w.nested(func() {
		w.effects(p, &s.Effects)
		w.line(none, "each %s", s.Row.Name)
		w.each = true
		w.nested(func() { w.block(p, s.Each) })
		w.each = false
	})
}

func (w *writer) copy(p *ir.Program, s *ir.Copy) {
	w.line(s.Pos, "copy %s through %s else %s", reason(p, s.Reason), hop(s.Hop), stop(p, s.Failed))
	w.nested(func() {
		w.effects(p, &s.Effects)
		if s.Rewrite != nil {
			w.rewrite(s.Rewrite)
		}
	})
}

// effects writes changes of state in the order in which they happen, except that records are written where they are
// reserved or would be.
func (w *writer) effects(p *ir.Program, e *ir.Effects) {
	for _, s := range e.Emits {
		text := "emit " + s.Event.Name + members(s.Values)
		if s.Data != nil {
			text += fmt.Sprintf(" with %s from %s", expr(s.Data.Size), offset(s.Data.At))
		}
		if s.Row != nil {
			text += " to " + s.Row.Name
		}
		if s.Event.Required {
			text += " else " + stop(p, s.Full)
		}
		w.line(s.Pos, "%s", text)
	}
	for _, s := range e.Entries {
		w.line(s.Pos, "%s", "entry of "+s.Event.Name+members(s.Values)+" to "+s.Row.Name)
	}
	for _, s := range e.Admits {
		text := fmt.Sprintf("admit %s from %s.%s", expr(s.Cost), s.Row.Name, s.Member.Name)
		if s.Level != nil {
			text += fmt.Sprintf("[%s]", expr(s.Level))
		}
		text += tagged(s)
		if !s.Overdraft {
			text += " else " + stop(p, s.Refused)
		}
		if !s.Overdraft && !s.Asked {
			text += ", contended: " + stop(p, s.Contended)
		}
		if s.Count != nil {
			text += ", refused: " + count(s.Count)
		}
		w.line(s.Pos, "%s", text)
	}
	for _, s := range e.Learns {
		w.learn(p, s)
	}
	w.allocs(e.Allocs)
	for _, s := range e.Lets {
		w.line(s.Pos, "let %s = %s", s.Var.Name, expr(s.Value))
	}
	for _, s := range e.Counts {
		w.line(s.Pos, "%s", count(s))
	}
}

func (w *writer) learn(p *ir.Program, s *ir.Learn) {
	w.line(s.Pos, "learn %s%s = %s else %s", s.Table.Name, members(s.Key), members(s.Value), stop(p, s.Full))
}

// tagged writes the members of a part of a plan that have a tag `text:"WORD"` and are given: the word, and if it
// isn't a switch the expression.
func tagged(part any) (text string) {
	v := reflect.ValueOf(part).Elem()
	for i := range v.NumField() {
		word, ok := v.Type().Field(i).Tag.Lookup("text")
		if !ok || v.Field(i).IsZero() {
			continue
		}
		text += " " + word
		if e, ok := v.Field(i).Interface().(ir.Expr); ok {
			text += " " + expr(e)
		}
	}
	return text
}

func (w *writer) allocs(allocs []*ir.Alloc) {
	for _, s := range allocs {
		w.line(s.Pos, "alloc %s = %s.%s += %d", s.Var.Name, s.Row.Name, s.Member.Name, s.Step)
	}
}

func count(s *ir.Count) string {
	if s.Counter != nil {
		return fmt.Sprintf("count %s += %s", s.Counter.Name, expr(s.By)) + tagged(s)
	}
	return fmt.Sprintf("count %s.%s += %s", s.Row.Name, s.Member.Name, expr(s.By)) + tagged(s)
}

func (w *writer) translate(p *ir.Program, s *ir.Translate) {
	w.line(s.Pos, "translate %s = %s.%s[%s], new: %s, unfinished: %s, full: %s",
		s.Var.Name, s.Row.Name, s.Member.Name, expr(s.Key), expr(s.Value), stop(p, s.Unfinished), stop(p, s.Full))
	w.nested(func() { w.allocs(s.Allocs) })
}

func (w *writer) findElement(s *ir.FindElement) {
	w.line(s.Pos, "find %s, %s, %s = element %s of [%s +%s, at most %d]",
		s.Found.Name, s.Len.Name, s.Value.Name, expr(s.ID), offset(s.At), expr(s.Size), s.SizeMax)
	w.nested(func() {
		for _, f := range s.Forms {
			text := fmt.Sprintf("form id %d length %d", f.IDBits, f.LenBits)
			if f.Bias != 0 {
				text += fmt.Sprintf("%+d", f.Bias)
			}
			if f.Pad >= 0 {
				text += fmt.Sprintf(", pad %d", f.Pad)
			}
			if f.Stop >= 0 {
				text += fmt.Sprintf(", stop %d", f.Stop)
			}
			if f.When != nil {
				text += ", when " + expr(f.When)
			}
			w.line(none, "%s", text)
		}
	})
}
