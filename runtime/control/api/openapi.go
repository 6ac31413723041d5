package api

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/fastrelay/fastrelay-gen/runtime/abi"
)

// OpenAPI returns the document that describes the control socket of a relay, in OpenAPI 3.0. The same description gives
// the same bytes.
func OpenAPI(desc *abi.Desc) ([]byte, error) {
	b := &builder{desc: desc, named: map[string]bool{}}
	b.paths()
	return b.document(desc.Name)
}

// document returns the document of a relay with a name.
func (b *builder) document(name string) ([]byte, error) {
	doc := obj(
		"openapi", "3.0.3",
		"info", obj("title", "Relay "+name, "version", "1",
			"description", "The control socket of the relay: HTTP on a unix socket, whose host may be anything."),
		"servers", []any{obj("url", "http://relay/")},
		"paths", b.out,
		"components", obj("schemas", b.schemas),
	)
	text, err := json.MarshalIndent(doc, "", "  ")
	if err != nil {
		return nil, err
	}
	return append(text, '\n'), nil
}

// obj makes an object of names and values in turn.
func obj(pairs ...any) Object {
	var o Object
	for i := 0; i+1 < len(pairs); i += 2 {
		o = append(o, Named{pairs[i].(string), pairs[i+1]})
	}
	return o
}

// builder makes the document.
type builder struct {
	desc    *abi.Desc
	out     Object // paths
	schemas Object
	named   map[string]bool
}

func (b *builder) paths() {
	d := b.desc
	b.path("/v1", nil, op{"get", "relay", "The relay at a glance", nil, b.of(reflect.TypeFor[Relay](), fields{
		"settings": b.settings(),
	}), 200})
	b.path("/v1/openapi.json", nil, op{"get", "openapi", "This document", nil, obj("type", "object"), 200})
	b.path("/metrics", nil, op{"get", "metrics", "The metrics, as Prometheus reads them", nil, typ("string"), 200})
	b.path("/v1/programs", nil, op{"get", "programs", "Programs, attachments, and counters by reason with rates", nil,
		b.fixed(reflect.TypeFor[Programs]()), 200})
	program := b.param("program", "path", enum(programNames(d)...))
	b.path("/v1/programs/{program}", []any{program},
		op{"get", "program", "One program", nil, b.fixed(reflect.TypeFor[Program]()), 200})
	iface := b.param("interface", "path", typ("string"))
	b.path("/v1/programs/{program}/attachments/{interface}",
		[]any{program, iface, b.param("first", "query", typ("boolean")), b.param("before", "query", typ("string")),
			b.param("hook", "query", enum("tc", "auto", "xdp"))},
		op{"put", "attach", "Attach a program to an interface; first: before the programs of others, before: of one " +
			"of them; hook: whether packets come to it at XDP first, auto by default: if that is right for the device",
			nil, b.fixed(reflect.TypeFor[Program]()), 200})
	b.path("/v1/programs/{program}/attachments/{interface}", []any{program, iface},
		op{"delete", "detach", "Detach it", nil, b.fixed(reflect.TypeFor[Program]()), 200})
	b.path("/v1/counters", nil, op{"get", "counters", "The named counters of the spec", nil,
		b.of(reflect.TypeFor[Counters](), fields{"counters": b.counters()}), 200})
	b.path("/v1/next-hops", append([]any{
		b.param("missing", "query", typ("boolean")),
	}, b.paging()...), op{"get", "nextHops", "Next hops that rows need; missing: only those without one", nil,
		b.page("NextHopPage", b.fixed(reflect.TypeFor[NextHop]())), 200})
	for i := range d.Sessions {
		b.sessions(&d.Sessions[i])
	}
	for i := range d.Groups {
		b.groups(&d.Groups[i])
	}
	for i := range d.Tables {
		b.table(&d.Tables[i])
	}
	if len(d.Events) > 0 {
		b.events()
	}
	b.drain()
}

// drain adds what a relay's end has.
func (b *builder) drain() {
	b.path("/v1/drain", nil,
		op{"post", "drain", "Take nothing new, and wait until nothing is open", b.fixed(reflect.TypeFor[Drain]()),
			b.fixed(reflect.TypeFor[Drained]()), 200},
		op{"delete", "endDrain", "Take new sessions, groups and receivers again", nil, nil, 204})
	b.path("/v1/stop", nil, op{"post", "stop", "End the relay's process, where it offers that", nil, nil, 202})
}

func (b *builder) sessions(d *abi.Session) {
	members := FieldMembers(d.Fields)
	in := b.name("Fields_"+d.Name, b.object(members, d.Fields, input, newRequired))
	shown := b.name("Fields_"+d.Name, nil)
	if slices.ContainsFunc(members, func(m abi.Member) bool { return m.Kind.IsState() }) {
		shown = b.name("OpenFields_"+d.Name, b.object(members, d.Fields, output, allRequired))
	}
	out := b.name("Session_"+d.Name, b.of(reflect.TypeFor[Session](), fields{"fields": shown, "kind": enum(d.Name)}))
	at := "/v1/sessions/" + d.Name
	id := b.param("id", "path", pattern(`^[0-9]+-[0-9]+$`))
	some := b.name("FieldValues_"+d.Name, b.object(members, d.Fields, input, noneRequired))
	lifetime := []any{b.param("lifetime", "query", append(typ("number"), Named{"minimum", 0}))}
	b.path(at, b.paging(), op{"get", "list_" + d.Name, "Open sessions", nil, b.page("Sessions_"+d.Name, out), 200})
	b.path(at, lifetime, op{"post", "open_" + d.Name,
		"Open a session; it ends after so many seconds unless it is refreshed", in, out, 201})
	b.path(at+"/{id}", []any{id},
		op{"get", "get_" + d.Name, "One session", nil, out, 200},
		op{"patch", "change_" + d.Name, "Change some fields of a session, all or nothing", some, out, 200},
		op{"delete", "close_" + d.Name, "Close a session", nil, nil, 204})
	b.path(at+"/{id}/refresh", append([]any{id}, lifetime...), op{"post", "refresh_" + d.Name,
		"Give a session its whole lifetime and idle time again, or so many seconds", nil, out, 200})
	b.path("/v1/refresh/"+d.Name, nil, op{"post", "refresh_many_" + d.Name,
		"Refresh sessions; those that are over are named", b.fixed(reflect.TypeFor[RefreshSessions]()),
		b.fixed(reflect.TypeFor[Refreshed]()), 200})
	b.path("/v1/close/"+d.Name, nil, op{"post", "close_many_" + d.Name, "Close sessions in one step",
		b.fixed(reflect.TypeFor[CloseSessions]()), b.fixed(reflect.TypeFor[Closed]()), 200})
}

func (b *builder) groups(d *abi.Group) {
	key := b.name("Key_"+d.Name, b.object(Members(d.Key), nil, input, allRequired))
	members := Members(d.Receiver)
	add := b.name("NewReceiver_"+d.Name, b.object(members, nil, input, newRequired))
	change := b.name("ReceiverValues_"+d.Name, b.object(members, nil, input, noneRequired))
	values := b.object(members, nil, output, allRequired)
	receiver := b.name("Receiver_"+d.Name, b.of(reflect.TypeFor[Receiver](), fields{"values": values}))
	group := b.name("Group_"+d.Name, b.of(reflect.TypeFor[Group](), fields{"key": key, "kind": enum(d.Name)}))
	open := b.name("OpenGroup_"+d.Name, b.of(reflect.TypeFor[OpenGroup](), fields{
		"key": key, "receivers": list(add),
	}))
	one := b.of(reflect.TypeFor[ChangeReceiver](), fields{"values": change})
	set := b.name("ChangeGroup_"+d.Name, b.of(reflect.TypeFor[ChangeGroup](), fields{
		"add": list(add), "set": list(one),
	}))
	at := "/v1/groups/" + d.Name
	id := b.param("key", "path", typ("string"))
	b.path(at, b.paging(), op{"get", "list_" + d.Name, "Open groups", nil, b.page("Groups_"+d.Name, group), 200})
	b.path(at, nil, op{"post", "open_" + d.Name, "Open a group with its receivers, all or nothing", open, group, 201})
	b.path(at+"/{key}", []any{id},
		op{"get", "get_" + d.Name, "One group", nil, group, 200},
		op{"patch", "change_" + d.Name, "Add, change and remove receivers in one step", set,
			b.fixed(reflect.TypeFor[GroupChanged]()), 200},
		op{"delete", "close_" + d.Name, "Close a group", nil, nil, 204})
	b.path(at+"/{key}/receivers", append([]any{id}, b.paging()...), op{"get", "receivers_" + d.Name,
		"The receivers of a group", nil, b.page("Receivers_"+d.Name, receiver), 200})
	b.path(at+"/{key}/receivers/{id}", []any{id, b.param("id", "path", integer(1))},
		op{"get", "receiver_" + d.Name, "One receiver", nil, receiver, 200})
}

func (b *builder) table(d *abi.Table) {
	key := b.name("Key_table_"+d.Name, b.object(Members(d.Key), nil, input, allRequired))
	members := Members(d.Value)
	row := b.name("Row_"+d.Name, b.of(reflect.TypeFor[Row](), fields{
		"key": key, "value": b.object(members, nil, output, allRequired),
	}))
	at := "/v1/tables/" + d.Name
	id := b.param("key", "path", typ("string"))
	b.path(at, b.paging(), op{"get", "rows_" + d.Name, "Rows", nil, b.page("Rows_"+d.Name, row), 200})
	b.path(at+"/{key}", []any{id}, op{"get", "row_" + d.Name, "One row", nil, row, 200})
	if d.Bound() {
		return
	}
	whole := b.name("NewRow_"+d.Name, b.object(members, nil, input, newRequired))
	some := b.name("RowValues_"+d.Name, b.object(members, nil, input, noneRequired))
	b.path(at+"/{key}", []any{id},
		op{"put", "put_" + d.Name, "Put a row, or replace it", whole, row, 200},
		op{"patch", "set_" + d.Name, "Change some values of a row", some, row, 200},
		op{"delete", "delete_" + d.Name, "Remove a row", nil, nil, 204})
}

func (b *builder) events() {
	var kinds []any
	for _, e := range b.desc.Events {
		with := fields{
			"event": enum(e.Name), "fields": b.object(Members(e.Fields), nil, output, allRequired), "copies": nil,
		}
		if c := e.Copies; c != nil {
			with["copies"] = list(b.name("Copy_"+e.Name, b.of(reflect.TypeFor[EventCopy](), fields{
				"values": b.object(Members(c.Values), nil, output, allRequired),
			})))
		}
		kinds = append(kinds, b.name("Event_"+e.Name, b.of(reflect.TypeFor[Event](), with)))
	}
	b.name("Event", obj("oneOf", kinds))
	b.fixed(reflect.TypeFor[Missed]())
	var names []string
	for _, e := range b.desc.Events {
		names = append(names, e.Name)
	}
	get := obj("operationId", "events", "summary",
		"Events as they come: server-sent events, whose data is an Event, or a Missed where the event is \"missed\"",
		"parameters", []any{b.param("event", "query", list(enum(names...)))},
		"responses", obj("200", obj("description", "a stream",
			"content", obj("text/event-stream", obj("schema", typ("string")))),
			"default", b.problem()))
	b.out = append(b.out, Named{"/v1/events", obj("get", get)})
}

// op is an operation on a path. in and out are schemas of bodies, nil if there is none.
type op struct {
	method, id, summary string
	in, out             any
	status              int
}

// path adds operations to a path, which may be there already. All of them have the parameters.
func (b *builder) path(at string, params []any, ops ...op) {
	i := 0
	for i < len(b.out) && b.out[i].Name != at {
		i++
	}
	if i == len(b.out) {
		b.out = append(b.out, Named{at, Object{}})
	}
	all := b.out[i].Value.(Object)
	for _, o := range ops {
		x := obj("operationId", o.id, "summary", o.summary)
		if params != nil {
			x = append(x, Named{"parameters", params})
		}
		if o.in != nil {
			x = append(x, Named{"requestBody", obj("required", true, "content",
				obj("application/json", obj("schema", o.in)))})
		}
		answer := obj("description", o.summary)
		if o.out != nil {
			answer = append(answer, Named{"content", obj("application/json", obj("schema", o.out))})
		}
		status := map[int]string{200: "200", 201: "201", 202: "202", 204: "204"}[o.status]
		x = append(x, Named{"responses", obj(status, answer, "default", b.problem())})
		all = append(all, Named{o.method, x})
	}
	b.out[i].Value = all
}

func (b *builder) problem() any {
	return obj("description", "what is wrong, and what to do", "content",
		obj(ProblemType, obj("schema", b.of(reflect.TypeFor[Problem](), fields{"code": enum(Codes...)}))))
}

func (b *builder) param(name, in string, schema any) any {
	return obj("name", name, "in", in, "required", in == "path", "schema", schema)
}

func (b *builder) paging() []any {
	limit := append(integer(1), Named{"maximum", MaxPage}, Named{"default", DefaultPage})
	return []any{b.param("limit", "query", limit), b.param("after", "query", typ("string"))}
}

// Sizes of pages.
const (
	DefaultPage = 100
	MaxPage     = 1000
)

func (b *builder) page(name string, item any) any {
	return b.name(name, obj("type", "object", "additionalProperties", false, "required", []string{"items"},
		"properties", obj("items", list(item), "next", typ("string"))))
}

func (b *builder) settings() any {
	var members []abi.Member
	for _, s := range b.desc.Settings {
		members = append(members, abi.Member{Name: s.Name, Kind: s.Kind, Bits: s.Bits, Size: s.Size})
	}
	return b.object(members, nil, output, allRequired)
}

func (b *builder) counters() any {
	var members []abi.Member
	for _, name := range b.desc.Counters {
		members = append(members, abi.Member{Name: name, Kind: abi.KindUint, Bits: 64, Size: 8})
	}
	return b.object(members, nil, output, allRequired)
}

// direction of a value.
type direction bool

const (
	input  direction = false
	output direction = true
)

// required says which members have to be there.
type required int

const (
	allRequired  required = iota
	newRequired           // what has no value to begin with
	noneRequired          // a change
)

// object is the schema of an object with a value for each member. ranges are those of a session's fields.
func (b *builder) object(members []abi.Member, ranges []abi.Field, to direction, must required) any {
	props, need := Object{}, []string{}
	for i, m := range members {
		var only [][2]uint64
		if ranges != nil {
			only = ranges[i].Ranges
		}
		props = append(props, Named{m.Name, b.value(m, only, to)})
		if must == allRequired || must == newRequired && m.Kind != abi.KindCounter {
			need = append(need, m.Name)
		}
	}
	out := obj("type", "object", "additionalProperties", false, "properties", props)
	if len(need) > 0 {
		out = append(out, Named{"required", need})
	}
	return out
}

func (b *builder) value(m abi.Member, ranges [][2]uint64, to direction) any {
	one := b.single(m, ranges, to)
	if m.Levels == 0 {
		return one
	}
	return append(list(one), Named{"minItems", m.Levels}, Named{"maxItems", m.Levels})
}

func (b *builder) single(m abi.Member, ranges [][2]uint64, to direction) any {
	switch m.Kind {
	case abi.KindUint:
		if len(ranges) == 1 {
			return obj("type", "integer", "minimum", ranges[0][0], "maximum", ranges[0][1])
		}
		if len(ranges) > 1 {
			var any []any
			for _, r := range ranges {
				any = append(any, obj("type", "integer", "minimum", r[0], "maximum", r[1]))
			}
			return obj("anyOf", any)
		}
		if m.Bits > 0 && m.Bits < 64 {
			return append(integer(0), Named{"maximum", uint64(1)<<m.Bits - 1})
		}
		return integer(0)
	case abi.KindBool:
		return typ("boolean")
	case abi.KindBytes:
		return append(pattern("^[0-9a-fA-F]*$"), Named{"minLength", 2 * m.Size / m.Count()},
			Named{"maxLength", 2 * m.Size / m.Count()})
	case abi.KindData:
		return append(pattern("^[0-9a-fA-F]*$"), Named{"maxLength", 2 * m.Size})
	case abi.KindMAC:
		return pattern("^([0-9a-fA-F]{2}:){5}[0-9a-fA-F]{2}$")
	case abi.KindAddr, abi.KindNextHop:
		return pattern("^[0-9a-fA-F:.]+$")
	case abi.KindEndpoint:
		return pattern(`^([0-9.]+|\[[0-9a-fA-F:.]+\]):[0-9]{1,5}$`)
	case abi.KindPrefix:
		return pattern("^[0-9a-fA-F:.]+/[0-9]{1,3}$")
	case abi.KindCredit:
		if to == output {
			return b.fixed(reflect.TypeFor[Credit]())
		}
	case abi.KindBucket:
		if to == output {
			return b.fixed(reflect.TypeFor[Bucket]())
		}
		return b.fixed(reflect.TypeFor[Rate]())
	}
	return integer(0)
}

// fields are schemas of members of a Go type that the spec decides on, by their names in JSON.
type fields map[string]any

// fixed names the schema of a Go type that is the same for all specs.
func (b *builder) fixed(t reflect.Type) any { return b.name(t.Name(), b.of(t, nil)) }

// name adds a schema to the components, unless it is there, and refers to it.
func (b *builder) name(name string, schema any) any {
	if schema != nil && !b.named[name] {
		b.named[name] = true
		b.schemas = append(b.schemas, Named{name, schema})
	}
	return obj("$ref", "#/components/schemas/"+name)
}

// of is the schema of a Go type as encoding/json writes it.
func (b *builder) of(t reflect.Type, special fields) any {
	switch {
	case t == reflect.TypeFor[time.Time]():
		return obj("type", "string", "format", "date-time")
	case t == reflect.TypeFor[Object]():
		return obj("type", "object")
	}
	switch t.Kind() {
	case reflect.Pointer:
		return b.of(t.Elem(), nil)
	case reflect.String:
		return typ("string")
	case reflect.Bool:
		return typ("boolean")
	case reflect.Float64:
		return typ("number")
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Struct {
			return list(b.fixed(t.Elem()))
		}
		return list(b.of(t.Elem(), nil))
	case reflect.Struct:
		return b.structure(t, special)
	}
	return integer(0)
}

func (b *builder) structure(t reflect.Type, special fields) any {
	props, need := Object{}, []string{}
	for i := range t.NumField() {
		f := t.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		schema, ok := special[name]
		switch {
		case !ok:
			schema = b.of(f.Type, nil)
		case schema == nil: // the relay doesn't have it
			continue
		}
		props = append(props, Named{name, schema})
		if options != "omitempty" {
			need = append(need, name)
		}
	}
	out := obj("type", "object", "additionalProperties", false, "properties", props)
	if len(need) > 0 {
		out = append(out, Named{"required", need})
	}
	return out
}

func typ(name string) Object { return obj("type", name) }

func integer(least int) Object { return obj("type", "integer", "minimum", least) }

func pattern(p string) Object { return obj("type", "string", "pattern", p) }

func list(of any) Object { return obj("type", "array", "items", of) }

func enum(values ...string) Object { return obj("type", "string", "enum", values) }

func programNames(d *abi.Desc) []string {
	var names []string
	for _, p := range d.Programs {
		names = append(names, p.Name)
	}
	return names
}
