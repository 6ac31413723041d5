package bpf

import (
	"github.com/fastrelay/fastrelay-gen/gen/c"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
)

// Statements that find something which may not be there: translations, and elements of lists.

func (f *function) translate(s *ir.Translate) {
	f.quote(s.Pos)
	f.cover(s.Pos, s.Key, s.Value)
	f.declares([]ir.Stmt{s})
	f.scoped(func() {
		how, translation := c.Ident("how"), c.Ident("translation")
		f.define(s.Pos, "struct fr_translation_key", keyName, c.Init{
			{Name: "key", X: f.expr(s.Key)}, {Name: "space", X: c.To(f.row(s.Row), member(s.Member))},
		})
		f.define(noPos, "struct fr_translation *", translation, c.Ident("NULL"))
		f.define(s.Pos, "int", how, c.Do("fr_translation", c.Address(keyName), c.Address(translation)))
		f.gap()
		f.unless(s.Pos, equals(how, c.Ident("FR_TRANSLATING")), s.Unfinished)
		full := equals(how, c.Ident("FR_TRANSLATIONS_FULL"))
		f.unless(s.Pos, c.Join("||", full, c.Not(translation)), s.Full)
		f.when(s.Pos, equals(how, c.Ident("FR_TRANSLATE")), func() {
			for _, d := range s.Allocs {
				f.alloc(d)
			}
			f.do(s.Pos, "fr_translated", translation, f.expr(s.Value))
		})
		if f.prog.read.vars[s.Var] {
			f.assign(s.Pos, f.variable(s.Var), c.To(translation, "value"))
		}
	})
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
	form, always := c.Expr(c.Ident("FR_NO_FORM")), false
	for i := len(s.Forms) - 1; i >= 0; i-- {
		shape := s.Forms[i]
		own := c.Do("FR_FORM", c.Dec((shape.IDBits+shape.LenBits)/8), c.Dec(shape.Bias), c.Dec(orNone(shape.Pad)),
			c.Dec(orNone(shape.Stop)))
		if shape.When == nil {
			form, always = own, true
			continue
		}
		f.cover(s.Pos, shape.When)
		form = c.Choice{If: f.expr(shape.When), Then: own, Else: form}
	}
	f.declares([]ir.Stmt{s})
	f.scoped(func() {
		at, formName, element := f.offset(s.At), c.Ident("form"), c.Ident("element")
		f.define(s.Pos, "__u64", formName, form)
		find := c.Expr(c.Do("fr_find_element", skb, at, c.Binary{Op: "+", X: at, Y: f.expr(s.Size)}, formName,
			f.expr(s.ID)))
		if !always {
			find = c.Choice{If: equals(formName, c.Ident("FR_NO_FORM")), Then: c.Num(0), Else: find}
		}
		f.define(s.Pos, "__u64", element, find)
		f.gap()
		length := c.Plus(c.Cast{Type: "__u32", X: element}, -1)
		for _, part := range []struct {
			v *ir.Var
			x c.Expr
		}{
			{s.Found, c.Binary{Op: "!=", X: element, Y: c.Num(0)}},
			{s.Len, c.Choice{If: element, Then: length, Else: c.Num(0)}},
			{s.Value, c.Choice{
				If: element, Then: c.Do("fr_leading", skb, shifted(">>", element, 32), length), Else: c.Num(0),
			}},
		} {
			if f.prog.read.vars[part.v] {
				f.assign(s.Pos, f.variable(part.v), part.x)
			}
		}
	})
}

// orNone is an identifier, or one that no element has.
func orNone(id int) int {
	if id < 0 {
		return 256
	}
	return id
}
