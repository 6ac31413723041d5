package api

import (
	"reflect"

	"github.com/fastrelay/fastrelay-gen/runtime/abi"
)

// UserSpaceOpenAPI is [OpenAPI] for a relay in user space, whose kinds and settings r has. Its socket has no path that
// opens, changes or attaches anything.
func UserSpaceOpenAPI(r *Relay) ([]byte, error) {
	b := &builder{desc: &abi.Desc{Name: r.Name}, named: map[string]bool{}}
	get := func(id, summary string, out any) op { return op{"get", id, summary, nil, out, 200} }
	b.path("/v1", nil, get("relay", "The relay at a glance", b.fixed(reflect.TypeFor[Relay]())))
	b.path("/v1/openapi.json", nil, get("openapi", "This document", obj("type", "object")))
	b.path("/metrics", nil, get("metrics", "The metrics, as Prometheus reads them", typ("string")))
	b.path("/v1/programs", nil, get("programs", "What is done, and counters by reason with rates",
		b.fixed(reflect.TypeFor[Programs]())))
	b.path("/v1/programs/{program}", []any{b.param("program", "path", enum(r.Programs...))},
		get("program", "One of them", b.fixed(reflect.TypeFor[Program]())))
	b.path("/v1/counters", nil, get("counters", "Counters with names of their own",
		b.fixed(reflect.TypeFor[Counters]())))
	b.path("/v1/next-hops", append([]any{b.param("missing", "query", typ("boolean"))}, b.paging()...),
		get("nextHops", "Nothing: the kernel's stack sends the packets",
			b.page("NextHopPage", b.fixed(reflect.TypeFor[NextHop]()))))
	for _, k := range r.Sessions {
		out := b.name("Session_"+k.Name, b.of(reflect.TypeFor[Session](), fields{
			"fields": b.described(k.Values), "kind": enum(k.Name),
		}))
		at := "/v1/sessions/" + k.Name
		b.path(at, b.paging(), get("list_"+k.Name, "Open sessions", b.page("Sessions_"+k.Name, out)))
		b.path(at+"/{id}", []any{b.param("id", "path", typ("string"))}, get("get_"+k.Name, "One session", out))
	}
	for _, k := range r.Tables {
		out := b.name("Row_"+k.Name, b.of(reflect.TypeFor[Row](), fields{
			"key": b.described(k.Key), "value": b.described(k.Values),
		}))
		at := "/v1/tables/" + k.Name
		b.path(at, b.paging(), get("rows_"+k.Name, "Rows", b.page("Rows_"+k.Name, out)))
		b.path(at+"/{key}", []any{b.param("key", "path", typ("string"))}, get("row_"+k.Name, "One row", out))
	}
	b.drain()
	return b.document(r.Name)
}

// described is the schema of an object with all members of a description.
func (b *builder) described(members []Member) any {
	props, need := Object{}, []string{}
	for _, m := range members {
		var schema any = typ("string")
		var kind abi.Kind
		if kind.UnmarshalText([]byte(m.Kind)) == nil {
			schema = b.value(abi.Member{Kind: kind, Bits: m.Bits, Levels: m.Levels}, nil, output)
		}
		props, need = append(props, Named{m.Name, schema}), append(need, m.Name)
	}
	return obj("type", "object", "additionalProperties", false, "properties", props, "required", need)
}
