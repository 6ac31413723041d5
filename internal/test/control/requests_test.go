package control_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"

	"github.com/fastrelay/fastrelay-gen/runtime/control"
	"github.com/fastrelay/fastrelay-gen/runtime/control/api"
)

var everyMethod = []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "BREW"}

// requests sends what a document says is wrong, and looks at the answers.
type requests struct {
	*lab
	doc      *openapi3.T
	http     *http.Client      // of the socket
	siblings map[string]string // values of members that have to be there
	sent     int
}

// send returns the status of the answer, the methods that it allows, and the problem.
func (q *requests) send(method, path, body string) (int, string, api.Problem) {
	q.Helper()
	q.sent++
	var content io.Reader
	if body != "" {
		content = strings.NewReader(body)
	}
	r, err := http.NewRequestWithContext(q.Context(), method, "http://relay"+path, content)
	if err != nil {
		q.Fatal(err)
	}
	res, err := q.http.Do(r)
	if err != nil {
		q.Fatalf("%s %s: %v", method, path, err)
	}
	defer res.Body.Close()
	if res.Header.Get("Content-Type") == "text/event-stream" { // which has no end
		return res.StatusCode, "", api.Problem{}
	}
	text, err := io.ReadAll(res.Body)
	if err != nil {
		q.Fatal(err)
	}
	var p api.Problem
	if res.StatusCode != http.StatusOK && method != "HEAD" {
		_ = json.Unmarshal(text, &p) // of what isn't JSON nothing is found
	}
	return res.StatusCode, res.Header.Get("Allow"), p
}

// wrong sends a request that has to be refused, with a problem that names something.
func (q *requests) wrong(method, path, body, name string, statuses ...int) {
	q.Helper()
	status, _, p := q.send(method, path, body)
	if !slices.Contains(statuses, status) || method != "HEAD" && !strings.Contains(p.Field+" "+p.Detail, name) {
		q.Errorf("%s %s %s: status %d, %v; want one of %v, and a word about %q",
			method, path, body, status, &p, statuses, name)
	}
}

// All that the OpenAPI document of a relay doesn't have is refused, and named: methods, parameters, members, types,
// bodies. Nothing has changed then.
func TestWrongRequests(t *testing.T) {
	l := start(t)
	stopped := 0
	l.server.Stop = func() { stopped++ }
	text, err := api.OpenAPI(l.relay.Desc())
	if err != nil {
		t.Fatal(err)
	}
	doc, err := openapi3.NewLoader().LoadFromData(text)
	if err != nil {
		t.Fatal(err)
	}
	plain := api.NewClient(l.path)
	t.Cleanup(plain.Close)
	q := &requests{lab: l, doc: doc, http: &http.Client{}}
	plain.Wrap(func(next http.RoundTripper) http.RoundTripper { q.http.Transport = next; return next })
	names := q.open()
	q.siblings = map[string]string{"ids": "[]", "limit_seconds": "0", "id": names["/v1/groups/viewers id"],
		"key": `{"publisher":"198.51.100.7:40001","stream":10}`}
	was := q.state()
	view := httptest.NewServer(control.View(t.Context(), l.relay))
	t.Cleanup(view.Close)
	for path, item := range doc.Paths.Map() {
		at := path
		for name, value := range names {
			if prefix, in, _ := strings.Cut(name, " "); strings.HasPrefix(path, prefix) {
				at = strings.ReplaceAll(at, "{"+in+"}", url.PathEscape(value))
			}
		}
		if strings.Contains(at, "{") {
			t.Fatalf("nothing is open for %s", at)
		}
		ops := item.Operations()
		q.methods(at, ops)
		for method, op := range ops {
			q.parameters(method, at, op)
			q.bodies(method, at, op)
		}
		if ops["GET"] != nil && path != "/v1/events" {
			res, err := http.Get(view.URL + at + "?lifetme=30s")
			if err != nil {
				t.Fatal(err)
			}
			res.Body.Close()
			if res.StatusCode != http.StatusBadRequest {
				t.Errorf("View, GET %s with a parameter that nothing has: %s", at, res.Status)
			}
		}
	}
	if now := q.state(); now != was || stopped > 0 {
		t.Errorf("requests that are wrong have changed the relay (%d stops) from\n%s\nto\n%s", stopped, was, now)
	}
	if q.sent < 500 {
		t.Errorf("only %d requests", q.sent)
	}
}

// open opens one of each kind, and returns what paths call them: by the beginning of the path and the parameter.
func (q *requests) open() map[string]string {
	l := q.lab
	flow := fields("left", "198.51.100.7:5000", "right", "203.0.113.1:7000", "volume", 100, "pace",
		fields("per_second", 10, "burst", 4), "shares", []any{5, 6})
	group := do[api.Group](l, "POST", "/v1/groups/viewers", api.OpenGroup{
		Key: fields("publisher", "198.51.100.7:40001", "stream", 9), Receivers: []api.Object{receiver(1)}})
	at := "/v1/groups/viewers/" + api.Escape(group.ID) + "/receivers"
	person := fields("via", "192.0.2.254", "quota", 1000, "shares", []any{5, 6}, "pace", fields("per_second", 10,
		"burst", 3), "code", "00ff01fe", "mac", "02:00:00:00:00:07", "on", true, "kind", 1)
	names := map[string]string{
		"/v1/programs program": "calls", "/v1/programs interface": "nosuch",
		"/v1/sessions/call id":     do[api.Session](l, "POST", "/v1/sessions/call", call(7)).ID,
		"/v1/sessions/flow id":     do[api.Session](l, "POST", "/v1/sessions/flow", flow).ID,
		"/v1/groups/viewers key":   group.ID,
		"/v1/groups/viewers id":    fmt.Sprint(get[api.Page[api.Receiver]](l, at).Items[0].ID),
		"/v1/tables/people key":    do[api.Row](l, "PUT", "/v1/tables/people/198.51.100.7", person).ID,
		"/v1/tables/nets key":      do[api.Row](l, "PUT", "/v1/tables/nets/198.51.100.0%2F24", fields("why", 2)).ID,
		"/v1/tables/ports key":     do[api.Row](l, "PUT", "/v1/tables/ports/5", fields("open", true)).ID,
		"/v1/tables/by_client key": get[api.Page[api.Row]](l, "/v1/tables/by_client").Items[0].ID,
		"/v1/tables/flows key":     get[api.Page[api.Row]](l, "/v1/tables/flows").Items[0].ID,
	}
	return names
}

// state is what is open, and how much is in it.
func (q *requests) state() string {
	var all []any
	for _, path := range []string{"/v1/sessions/call", "/v1/sessions/flow"} {
		for _, s := range get[api.Page[api.Session]](q.lab, path).Items {
			all = append(all, s.ID, s.Fields, fmt.Sprint(s.Expires))
		}
	}
	for _, path := range []string{"people", "nets", "ports", "by_client", "flows"} {
		for _, r := range get[api.Page[api.Row]](q.lab, "/v1/tables/"+path).Items {
			all = append(all, r.ID, r.Value)
		}
	}
	for _, g := range get[api.Page[api.Group]](q.lab, "/v1/groups/viewers").Items {
		all = append(all, g, get[api.Page[api.Receiver]](q.lab, "/v1/groups/viewers/"+api.Escape(g.ID)+"/receivers"))
	}
	return fmt.Sprint(append(all, get[api.Relay](q.lab, "/v1").Draining)...)
}

// methods sends those that a path hasn't.
func (q *requests) methods(path string, ops map[string]*openapi3.Operation) {
	var want []string
	for _, method := range everyMethod {
		if ops[method] != nil || method == "HEAD" && ops["GET"] != nil {
			want = append(want, method)
		}
	}
	for _, method := range everyMethod {
		if slices.Contains(want, method) {
			continue
		}
		status, allow, p := q.send(method, path, "")
		if status != http.StatusMethodNotAllowed || allow != strings.Join(want, ", ") ||
			method != "HEAD" && p.Code != api.CodeMethod {
			q.Errorf("%s %s: status %d, Allow: %q, %v; want 405 and %v", method, path, status, allow, &p, want)
		}
	}
}

// parameters sends some that are misspelt, come twice, or have a value of another type.
func (q *requests) parameters(method, path string, op *openapi3.Operation) {
	body := ""
	if op.RequestBody != nil {
		body = "{}"
	}
	q.wrong(method, path+"?lifetme=30s", body, "lifetme", 400)
	q.wrong(method, path+"?a=%zz", body, "parameters", 400)
	for _, p := range op.Parameters {
		v := p.Value
		if v.In != "query" {
			continue
		}
		for i := range v.Name { // a letter is missing, or large
			q.wrong(method, path+"?"+v.Name[:i]+v.Name[i+1:]+"=1", body, v.Name[:i]+v.Name[i+1:], 400)
		}
		q.wrong(method, path+"?"+strings.ToUpper(v.Name)+"=1", body, strings.ToUpper(v.Name), 400)
		if !v.Schema.Value.Type.Is("array") {
			q.wrong(method, path+"?"+v.Name+"=1&"+v.Name+"=2", body, v.Name, 400)
		}
		if !v.Schema.Value.Type.Is("string") {
			for _, value := range []string{"", "x", "1s", "-1", "NaN"} {
				q.wrong(method, path+"?"+v.Name+"="+value, body, v.Name, 400, 422, 404)
			}
		}
	}
}

// bodies sends bodies with members that aren't known, are null, or are of another type, at any depth; a body where
// there is to be none, or the other way round.
func (q *requests) bodies(method, path string, op *openapi3.Operation) {
	if op.RequestBody == nil {
		q.wrong(method, path, `{"lifetme_seconds":30}`, "body", 400)
		return
	}
	for _, body := range []string{"", "{", "[]", "null", "7", `"x"`, "{} {}", "{}}", `{"lifetme":1} x`} {
		q.wrong(method, path, body, "", 400)
	}
	q.members(method, path, op.RequestBody.Value.Content["application/json"].Schema.Value, func(s string) string {
		return s
	})
}

// members sends wrong ones of an object that around puts into a body.
func (q *requests) members(method, path string, object *openapi3.Schema, around func(string) string) {
	q.wrong(method, path, around(`{"lifetme":1}`), "lifetme", 400)
	for name, ref := range object.Properties {
		in := func(value string) string {
			members := map[string]json.RawMessage{name: json.RawMessage(value)}
			for _, other := range object.Required {
				if v, ok := q.siblings[other]; ok && other != name {
					members[other] = json.RawMessage(v)
				}
			}
			text, err := json.Marshal(members)
			if err != nil {
				q.Fatal(err)
			}
			return around(string(text))
		}
		s := ref.Value
		samples := map[string]string{"string": `"x"`, "integer": "1", "boolean": "true", "object": "{}", "array": "[]"}
		if s.AnyOf != nil || s.Type.Is("integer") || s.Type.Is("number") {
			delete(samples, "integer")
		} else {
			delete(samples, s.Type.Slice()[0])
		}
		for _, value := range samples {
			q.wrong(method, path, in(value), "", 400, 422)
		}
		q.wrong(method, path, in("null"), "", 400, 422)
		switch {
		case s.Type.Is("object"):
			q.members(method, path, s, in)
		case s.Type.Is("array") && s.Items.Value.Type.Is("object"):
			q.members(method, path, s.Items.Value, func(one string) string { return in("[" + one + "]") })
		}
	}
}
