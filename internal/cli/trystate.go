package cli

import (
	"encoding/json"
	"fmt"

	"github.com/fastrelay/fastrelay-gen/internal/diag"
	"github.com/fastrelay/fastrelay-gen/runtime/control/api"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// stateOf is the state of a running relay, as a test has it.
func (l *live) stateOf(s *spec.Spec, program spec.Name) (*spec.Test, error) {
	if l.info.Name != s.Name.Value {
		return nil, &diag.Diagnostic{Code: codeRelay,
			Message: fmt.Sprintf("relay %q runs there, and the spec is %q", l.info.Name, s.Name.Value),
			Hint:    "fastrelay-gen ps lists the relays of this machine"}
	}
	t := &spec.Test{Name: program, Program: program, Settings: values(l.info.Settings)}
	if lapsed(&l.info) {
		t.Conditions = append(t.Conditions, spec.Lapsed)
	}
	number := map[string]int{} // of the sessions, by their IDs
	for _, k := range l.info.Sessions {
		all, err := api.All[api.Session](l.ctx, l.client, "/v1/sessions/"+k.Name)
		if err != nil {
			return nil, controlError(l.client.Path, err)
		}
		for _, one := range all {
			number[one.ID] = len(t.Sessions)
			t.Sessions = append(t.Sessions, &spec.TestSession{Session: spec.Name{Value: k.Name},
				Fields: values(one.Fields)})
		}
	}
	for _, k := range l.info.Tables {
		if k.Session != "" {
			continue // its rows are those of sessions
		}
		all, err := api.All[api.Row](l.ctx, l.client, "/v1/tables/"+k.Name)
		if err != nil {
			return nil, controlError(l.client.Path, err)
		}
		for _, one := range all {
			of, open := number[one.Session]
			if !open {
				of = -1
			}
			t.Rows = append(t.Rows, &spec.TestRow{Table: spec.Name{Value: k.Name},
				Values: append(values(one.Key), values(one.Value)...), Of: of})
		}
	}
	for _, k := range l.info.Groups {
		all, err := api.All[api.Group](l.ctx, l.client, "/v1/groups/"+k.Name)
		if err != nil {
			return nil, controlError(l.client.Path, err)
		}
		for _, one := range all {
			g := &spec.TestGroup{Group: spec.Name{Value: k.Name}, Key: values(one.Key)}
			path := "/v1/groups/" + k.Name + "/" + api.Escape(one.ID) + "/receivers"
			receivers, err := api.All[api.Receiver](l.ctx, l.client, path)
			if err != nil {
				return nil, controlError(l.client.Path, err)
			}
			for _, r := range receivers {
				g.Receivers = append(g.Receivers, values(r.Values))
			}
			t.Groups = append(t.Groups, g)
		}
	}
	return t, nil
}

// values are those of an object as a test has them.
func values(o api.Object) (all []*spec.TestValue) {
	for _, m := range o {
		v := &spec.TestValue{Name: spec.Name{Value: m.Name}}
		if list, ok := m.Value.([]any); ok {
			v.Value.Kind = spec.LitList
			for _, one := range list {
				v.Value.List = append(v.Value.List, literalOf(one))
			}
		} else {
			v.Value = literalOf(m.Value)
		}
		all = append(all, v)
	}
	return all
}

// literalOf is a single value. Of a credit it is what remains, of a bucket the burst.
func literalOf(v any) spec.Literal {
	switch v := v.(type) {
	case bool:
		return spec.Literal{Kind: spec.LitBool, Bool: v}
	case json.Number:
		var n uint64
		if json.Unmarshal([]byte(v.String()), &n) == nil {
			return spec.Literal{Kind: spec.LitInt, Int: n}
		}
	case map[string]any:
		for _, name := range []string{"burst", "available"} {
			if n, ok := v[name]; ok {
				return literalOf(n)
			}
		}
	}
	return spec.Literal{Kind: spec.LitString, Text: fmt.Sprint(v)}
}
