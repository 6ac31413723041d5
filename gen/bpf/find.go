package bpf

import (
	"fmt"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
)

// Statements that find something which may not be there: translations, and elements of lists.

func (f *function) translate(s *ir.Translate) {
	f.quote(s.Pos)
	f.cover(s.Pos, s.Key, s.Value)
	f.declares([]ir.Stmt{s})
	f.line("{")
	f.indent++
	f.stmt(s.Pos, "struct fr_translation_key key = { .key = %s, .space = %s->%s };", f.expr(s.Key), f.row(s.Row),
		member(s.Member))
	f.line("struct fr_translation *translation = NULL;")
	f.stmt(s.Pos, "int how = fr_translation(&key, &translation);")
	f.line("")
	f.unless(s.Pos, "how == FR_TRANSLATING", s.Unfinished)
	f.unless(s.Pos, "how == FR_TRANSLATIONS_FULL || !translation", s.Full)
	f.stmt(s.Pos, "if (how == FR_TRANSLATE) {")
	f.indent++
	for _, d := range s.Allocs {
		f.alloc(d)
	}
	f.stmt(s.Pos, "fr_translated(translation, %s);", f.expr(s.Value))
	f.indent--
	f.line("}")
	if f.prog.read.vars[s.Var] {
		f.stmt(s.Pos, "%s = translation->value;", f.variable(s.Var))
	}
	f.indent--
	f.line("}")
}

func (f *function) findElement(s *ir.FindElement) {
	if f.fan != nil {
		f.fail("a list of elements is searched for each receiver, at %s", s.Pos)
		return
	}
	if !f.prog.read.vars[s.Found] && !f.prog.read.vars[s.Len] && !f.prog.read.vars[s.Value] {
		return
	}
	f.more, f.needs["elements"] = true, "yes"
	f.quote(s.Pos)
	f.cover(s.Pos, s.Size, s.ID)
	form, always := "FR_NO_FORM", false
	for i := len(s.Forms) - 1; i >= 0; i-- {
		shape := s.Forms[i]
		text := fmt.Sprintf("FR_FORM(%d, %d, %d, %d)", (shape.IDBits+shape.LenBits)/8, shape.Bias, orNone(shape.Pad),
			orNone(shape.Stop))
		if shape.When == nil {
			form, always = text, true
			continue
		}
		f.cover(s.Pos, shape.When)
		form = fmt.Sprintf("%s ? %s : %s", f.operand(shape.When), text, form)
	}
	f.declares([]ir.Stmt{s})
	f.line("{")
	f.indent++
	at := f.offset(s.At)
	f.stmt(s.Pos, "__u64 form = %s;", form)
	find := fmt.Sprintf("fr_find_element(skb, %s, %s + %s, form, %s)", at, at, f.operand(s.Size), f.expr(s.ID))
	if !always {
		find = "form == FR_NO_FORM ? 0 : " + find
	}
	f.stmt(s.Pos, "__u64 element = %s;", find)
	f.line("")
	if f.prog.read.vars[s.Found] {
		f.stmt(s.Pos, "%s = element != 0;", f.variable(s.Found))
	}
	if f.prog.read.vars[s.Len] {
		f.stmt(s.Pos, "%s = element ? (__u32)element - 1 : 0;", f.variable(s.Len))
	}
	if f.prog.read.vars[s.Value] {
		f.stmt(s.Pos, "%s = element ? fr_leading(skb, element >> 32, (__u32)element - 1) : 0;", f.variable(s.Value))
	}
	f.indent--
	f.line("}")
}

// orNone is an identifier, or one that no element has.
func orNone(id int) int {
	if id < 0 {
		return 256
	}
	return id
}
