package spec

import (
	"iter"
	"reflect"
	"slices"
	"strings"
	"sync"

	"cuelang.org/go/cue"
	"cuelang.org/go/cue/ast"
	"cuelang.org/go/cue/parser"
	"cuelang.org/go/cue/token"
)

// tags are the members of an action with a tag: `member:"NAME"`. After the name may be "own", if the loader reads
// the member otherwise, or "name", if it does and the member names a counter, which is not computed.
func tags(a *Action, visit func(name, form string, member reflect.Value)) {
	v := reflect.ValueOf(a).Elem()
	for i := range v.NumField() {
		if tag, ok := v.Type().Field(i).Tag.Lookup("member"); ok {
			name, form, _ := strings.Cut(tag, ",")
			visit(name, form, v.Field(i))
		}
	}
}

// tagged reads the members with a tag.
func (l *loader) tagged(a *Action, v cue.Value) {
	tags(a, func(name, form string, member reflect.Value) {
		if form != "" {
			return
		}
		switch m := member.Addr().Interface().(type) {
		case **Expr:
			*m = l.expr(get(v, name))
		case *bool:
			*m = l.bool(get(v, name))
		}
	})
}

// Members are the members with a tag that an action has, as text: an expression, or "true".
func (a *Action) Members() iter.Seq2[string, string] {
	return func(yield func(string, string) bool) {
		more := true
		tags(a, func(name, _ string, member reflect.Value) {
			if !more || member.IsZero() {
				return
			}
			text := "true"
			if e, ok := member.Interface().(*Expr); ok {
				text = e.String()
			}
			more = yield(name, text)
		})
	}
}

// Exprs are the expressions that an action computes, without those in its rules.
func (a *Action) Exprs() (es []*Expr) {
	for _, as := range a.Set {
		es = append(es, as.Value)
	}
	tags(a, func(_, form string, member reflect.Value) {
		if e, ok := member.Interface().(*Expr); ok && e != nil && form != "name" {
			es = append(es, e)
		}
	})
	es = append(append(es, a.Key...), a.Value...)
	if a.FanOut != nil {
		es = append(es, a.FanOut.Key...)
	}
	return es
}

// Optional are the members of a definition of the schema (such as "#Admit") that may be left out, each with whether it
// is a switch (bool). Random specs take them from here.
func Optional(definition string) iter.Seq2[string, bool] {
	return func(yield func(string, bool) bool) {
		for _, f := range definitions()[definition] {
			name, _, err := ast.LabelName(f.Label)
			if err != nil || f.Constraint != token.OPTION {
				continue
			}
			form, _ := f.Value.(*ast.Ident)
			if !yield(name, form != nil && form.Name == "bool") {
				return
			}
		}
	}
}

// isAction reports whether the schema has an action of a name.
func isAction(name string) bool {
	return slices.ContainsFunc(definitions()["#Action"], func(f *ast.Field) bool {
		known, _, err := ast.LabelName(f.Label)
		return err == nil && known == name
	})
}

// definitions are the members of the schema's definitions.
var definitions = sync.OnceValue(func() map[string][]*ast.Field {
	f, err := parser.ParseFile(schemaName, schemaText)
	if err != nil {
		panic(err)
	}
	all := map[string][]*ast.Field{}
	for _, d := range f.Decls {
		definition, ok := d.(*ast.Field)
		if !ok {
			continue
		}
		value := definition.Value
		if choice, ok := value.(*ast.BinaryExpr); ok { // "pass" | {…}
			value = choice.Y
		}
		body, ok := value.(*ast.StructLit)
		name, _, err := ast.LabelName(definition.Label)
		if !ok || err != nil {
			continue
		}
		for _, d := range body.Elts {
			if member, ok := d.(*ast.Field); ok {
				all[name] = append(all[name], member)
			}
		}
	}
	return all
})
