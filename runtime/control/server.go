package control

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"net"
	"net/http"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/runtime"
	"github.com/fastrelay/fastrelay-gen/runtime/control/api"
	"github.com/fastrelay/fastrelay-gen/runtime/metrics"
)

const (
	// A client that sends or takes nothing for so long is left.
	usualPatience = 10 * time.Second
	// A request has at most so many bytes. So many more are read, and dropped.
	maxBody, maxDiscard = 1 << 20, 64 << 20
	// Users who are refused have at most so many connections, on which they are told so.
	maxStrangers = 4
)

// entrance accepts connections, and ends those of other users that are too many: each takes a descriptor.
type entrance struct {
	*net.UnixListener
	strangers atomic.Int32 // connections
}

// visitor is a connection, and who has it; nil: it can't be found out.
type visitor struct {
	*net.UnixConn
	peer *unix.Ucred
	left func()
}

func (e *entrance) Accept() (net.Conn, error) {
	for {
		c, err := e.AcceptUnix()
		if err != nil {
			return nil, err
		}
		v := &visitor{UnixConn: c, left: func() {}}
		if v.peer, err = peerOf(c); err != nil {
			v.peer = nil
		}
		if mine(v.peer) {
			return v, nil
		}
		v.left = sync.OnceFunc(func() { e.strangers.Add(-1) })
		if e.strangers.Add(1) <= maxStrangers {
			return v, nil
		}
		v.Close()
	}
}

func (v *visitor) Close() error {
	defer v.left()
	return v.UnixConn.Close()
}

// mine says whether a user may use the socket: root, and the one of this process.
func mine(peer *unix.Ucred) bool {
	return peer != nil && (peer.Uid == 0 || int(peer.Uid) == os.Geteuid())
}

type peerKey struct{}

// withPeer notes who connects.
func withPeer(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, peerKey{}, c.(*visitor).peer)
}

// Handler serves what a control socket does, in the relay's own process, until ctx ends: for [api.Local]. Events are
// left out, which this process reads itself, and POST /v1/stop refuses. Handler doesn't ask who wants to know, or to
// change the relay: the caller decides who may.
func Handler(ctx context.Context, r *runtime.Relay) http.Handler {
	return local(ctx, r, func(path string) bool { return path != eventsPath })
}

// View serves what a control socket shows of a relay, and nothing that changes it, until ctx ends: programs with rates,
// sessions, groups, tables, counters, next hops. Events are left out, since who reads them takes them out of the ring.
// View doesn't ask who wants to know: the caller decides who may.
func View(ctx context.Context, r *runtime.Relay) http.Handler {
	return local(ctx, r, func(path string) bool { return strings.HasPrefix(path, "GET ") && path != eventsPath })
}

// local serves some paths without a socket.
func local(ctx context.Context, r *runtime.Relay, has func(path string) bool) http.Handler {
	s := &Server{relay: r, rates: newRates(countsOf(r))}
	go s.rates.run(ctx)
	all := s.routes()
	maps.DeleteFunc(all, func(path string, _ route) bool { return !has(path) })
	return s.mux(all)
}

// route is what a path takes with a method, and what serves it. Nothing else is accepted: what a client has misspelt
// would otherwise be ignored without a word, such as the lifetime of a session.
type route struct {
	serve http.HandlerFunc
	query []string // names of the parameters that it takes
	body  bool     // it reads a body
}

// to is a route that answers with a value.
func to(f func(*http.Request) (any, error), query ...string) route {
	return route{query: query, serve: func(w http.ResponseWriter, r *http.Request) {
		out, err := f(r)
		answer(w, out, err)
	}}
}

// with is a route that answers with a value, and reads a body.
func with(f func(*http.Request) (any, error), query ...string) route {
	r := to(f, query...)
	r.body = true
	return r
}

const eventsPath = "GET /v1/events"

// routes are all that the socket of a relay in the kernel has.
func (s *Server) routes() map[string]route {
	all := map[string]route{
		"GET /v1":                    to(s.overview),
		"GET /v1/openapi.json":       {serve: s.openAPI},
		"GET /metrics":               {serve: metrics.Handler(s.relay).ServeHTTP},
		"GET /v1/programs":           to(s.programs),
		"GET /v1/programs/{program}": to(s.program),
		"PUT /v1/programs/{program}/attachments/{interface}":    to(s.attach, "first", "before", "hook"),
		"DELETE /v1/programs/{program}/attachments/{interface}": to(s.detach),
		"GET /v1/counters":                           to(s.counters),
		"GET /v1/next-hops":                          to(s.nextHops, "limit", "after", "missing"),
		"GET /v1/sessions/{kind}":                    to(s.listSessions, "limit", "after"),
		"POST /v1/sessions/{kind}":                   with(s.openSession, "lifetime"),
		"GET /v1/sessions/{kind}/{id}":               to(s.getSession),
		"PATCH /v1/sessions/{kind}/{id}":             with(s.changeSession),
		"DELETE /v1/sessions/{kind}/{id}":            to(s.closeSession),
		"POST /v1/sessions/{kind}/{id}/refresh":      to(s.refreshSession, "lifetime"),
		"POST /v1/close/{kind}":                      with(s.closeSessions),
		"POST /v1/refresh/{kind}":                    with(s.refreshSessions),
		"GET /v1/groups/{kind}":                      to(s.listGroups, "limit", "after"),
		"POST /v1/groups/{kind}":                     with(s.openGroup),
		"GET /v1/groups/{kind}/{key}":                to(s.getGroup),
		"PATCH /v1/groups/{kind}/{key}":              with(s.changeGroup),
		"DELETE /v1/groups/{kind}/{key}":             to(s.closeGroup),
		"GET /v1/groups/{kind}/{key}/receivers":      to(s.listReceivers, "limit", "after"),
		"GET /v1/groups/{kind}/{key}/receivers/{id}": to(s.getReceiver),
		"GET /v1/tables/{table}":                     to(s.listRows, "limit", "after"),
		"GET /v1/tables/{table}/{key}":               to(s.getRow),
		"PUT /v1/tables/{table}/{key}":               with(s.putRow),
		"PATCH /v1/tables/{table}/{key}":             with(s.setRow),
		"DELETE /v1/tables/{table}/{key}":            to(s.deleteRow),
		eventsPath:                                   {serve: s.events, query: []string{"event*"}},
		"POST /v1/drain":                             {serve: s.drain, body: true},
		"DELETE /v1/drain":                           to(s.endDrain),
		"POST /v1/stop":                              {serve: s.stop},
	}
	for path, r := range all {
		if s.OwnGroups && strings.Contains(path, "/v1/groups/") && !strings.HasPrefix(path, "GET ") {
			r.serve = refuseGroups
			all[path] = r
		}
	}
	return all
}

func refuseGroups(w http.ResponseWriter, _ *http.Request) {
	answer(w, nil, &api.Problem{Status: http.StatusConflict, Code: api.CodeRefused,
		Detail: "receivers of this relay are connections of its server, which wouldn't learn of the change",
		Fix:    "end the connections at the server, or its clients"})
}

// mux serves routes.
func (s *Server) mux(all map[string]route) *http.ServeMux {
	mux := http.NewServeMux()
	for path, route := range all {
		mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
			err := api.CheckQuery(r.URL, route.query...)
			if err == nil && !route.body {
				err = refuseBody(r)
			}
			if err != nil {
				answer(w, nil, err)
				return
			}
			route.serve(w, r)
		})
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		if allow := s.methods(mux, r); len(allow) > 0 {
			answer(w, nil, &methodError{r, allow, ""})
			return
		}
		answer(w, nil, &api.Problem{Status: http.StatusNotFound, Code: api.CodeNotFound,
			Detail: r.Method + " " + r.URL.Path + " is nothing that this socket has",
			Fix:    "GET /v1/openapi.json has all paths"})
	})
	return mux
}

// readOnly are the methods of a row that comes and goes with a session.
var readOnly = []string{"GET", "HEAD"}

// methods are those that the path of a request takes.
func (s *Server) methods(mux *http.ServeMux, r *http.Request) (allow []string) {
	for _, method := range []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"} {
		other := &http.Request{Method: method, Host: r.Host, URL: r.URL}
		if _, pattern := mux.Handler(other); pattern != "/" {
			allow = append(allow, method)
		}
	}
	if parts := strings.Split(r.URL.Path, "/"); len(parts) == 5 && parts[2] == "tables" && s.relay != nil {
		if t := s.relay.Table(parts[3]); t != nil && t.Desc().Bound() {
			return readOnly
		}
	}
	return allow
}

// methodError says that a path is there, and doesn't take the method.
type methodError struct {
	request *http.Request
	allow   []string
	why     string
}

func (e *methodError) Error() string {
	return fmt.Sprintf("%s takes %s, not %s", e.request.URL.Path, strings.Join(e.allow, ", "), e.request.Method) + e.why
}

// refuseBody refuses a body if none is read.
func refuseBody(r *http.Request) error {
	if r.Body == nil { // of a request that didn't come from a connection
		return nil
	}
	if n, _ := io.ReadFull(r.Body, make([]byte, 1)); n > 0 { // an error means that there is none
		return badRequest(r.Method + " " + r.URL.Path + " takes no body")
	}
	return nil
}

// handler serves routes.
func (s *Server) handler(all map[string]route) http.Handler {
	mux := s.mux(all)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := allowed(r.Context()); err != nil {
			answer(w, nil, err)
			return
		}
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(s.Patience)) // a unix socket has deadlines
		mux.ServeHTTP(w, r)
	})
}

// allowed refuses users other than root and the one of this process. The socket's mode does as well, unless it was
// changed.
func allowed(ctx context.Context) error {
	peer, _ := ctx.Value(peerKey{}).(*unix.Ucred)
	if mine(peer) {
		return nil
	}
	who := "a user who can't be identified"
	if peer != nil {
		who = fmt.Sprintf("user %d", peer.Uid)
	}
	return &api.Problem{Status: http.StatusForbidden, Code: api.CodeForbidden,
		Detail: fmt.Sprintf("this relay belongs to user %d, and you are %s", os.Geteuid(), who),
		Fix:    "ask as that user, or as root"}
}

// created is an answer with status 201.
type created struct{ body any }

// answer writes an answer, or what is wrong.
func answer(w http.ResponseWriter, out any, err error) {
	status, contentType := http.StatusOK, "application/json"
	switch v := out.(type) {
	case created:
		status, out = http.StatusCreated, v.body
	case nil:
		status = http.StatusNoContent
	}
	if err != nil {
		p := problem(err)
		status, out, contentType = p.Status, p, api.ProblemType
		if wrong, ok := errors.AsType[*methodError](err); ok {
			w.Header().Set("Allow", strings.Join(wrong.allow, ", "))
		}
	}
	if out == nil {
		w.WriteHeader(status)
		return
	}
	text, err := json.Marshal(out)
	if err != nil { // values are numbers and texts; a value of another kind is a mistake in this package
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", contentType)
	w.WriteHeader(status)
	_, _ = w.Write(append(text, '\n')) // an error means that the client has gone
}

// read reads the body of a request into a type of package api.
func read(r *http.Request, into any) error {
	text, err := io.ReadAll(io.LimitReader(r.Body, maxBody+1))
	if err != nil {
		return badRequest("the body can't be read: " + err.Error())
	}
	if len(text) > maxBody {
		_, _ = io.CopyN(io.Discard, r.Body, maxDiscard) // so that the client has sent it all, and reads the answer
		return &api.Problem{Status: http.StatusRequestEntityTooLarge, Code: api.CodeTooLarge,
			Detail: fmt.Sprintf("the body has more than %d bytes", maxBody), Fix: "send it in several requests"}
	}
	fail := func(err error) error { return badRequest("the body isn't what this path takes: " + err.Error()) }
	var v any
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		return fail(err)
	}
	if _, err := d.Token(); err != io.EOF {
		return fail(errors.New("more than one value"))
	}
	if field, wrong := misfit(reflect.TypeOf(into).Elem(), v); wrong != "" {
		p := badRequest(wrong)
		p.Field = field
		return p
	}
	if err := json.Unmarshal(text, into); err != nil {
		p := badRequest("the body isn't what this path takes: " + err.Error())
		var wrong *json.UnmarshalTypeError
		if errors.As(err, &wrong) {
			p.Field = wrong.Field
		}
		return p
	}
	return nil
}

// misfit finds a member that a type of package api doesn't have, one that it needs and isn't there, or a null, which
// encoding/json would all ignore. What is of another type altogether is for json.Unmarshal to refuse.
func misfit(t reflect.Type, v any) (field, wrong string) {
	switch v := v.(type) {
	case nil:
		return "", "null is no value here"
	case []any:
		for i, one := range v {
			if t.Kind() != reflect.Slice {
				break
			}
			if field, wrong := misfit(t.Elem(), one); wrong != "" {
				return field, fmt.Sprintf("at index %d, %s", i, wrong)
			}
		}
	case map[string]any:
		if t.Kind() != reflect.Struct {
			break
		}
		var known, missing []string
		for f := range t.Fields() {
			name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
			known = append(known, name)
			if one, there := v[name]; there {
				if at, wrong := misfit(f.Type, one); wrong != "" {
					return cmp.Or(at, name), name + ": " + wrong
				}
			} else if options != "omitempty" {
				missing = append(missing, name)
			}
		}
		for name := range v {
			if !slices.Contains(known, name) {
				return name, fmt.Sprintf("%q is unknown here; there are %s", name, strings.Join(known, ", "))
			}
		}
		if missing != nil {
			return missing[0], missing[0] + " is missing"
		}
	}
	return "", ""
}

func badRequest(detail string) *api.Problem {
	return &api.Problem{Status: http.StatusBadRequest, Code: api.CodeBadRequest, Detail: detail,
		Fix: "GET /v1/openapi.json has the types"}
}

func notFound(what, name string, known []string) *api.Problem {
	p := &api.Problem{Status: http.StatusNotFound, Code: api.CodeNotFound, Detail: fmt.Sprintf("no %s %q", what, name)}
	if len(known) > 0 {
		p.Fix = fmt.Sprintf("there are %v", known)
	}
	return p
}

// lastMember is the member that the runtime's errors name last: `session "call", "peer"`.
var lastMember = regexp.MustCompile(`(?:^|, | and )"([^"]*)"$`)

// problem says what is wrong in the words of RFC 9457.
func problem(err error) *api.Problem {
	var (
		p         *api.Problem
		value     *runtime.ValueError
		collision *runtime.CollisionError
		exists    *runtime.ExistsError
		full      *runtime.FullError
		kernel    *runtime.KernelError
		field     *api.FieldError
		missing   netlink.LinkNotFoundError
		method    *methodError
	)
	out := &api.Problem{Detail: err.Error()}
	set := func(status int, code, fix string) { out.Status, out.Code, out.Fix = status, code, fix }
	switch {
	case errors.As(err, &p):
		*out = *p
	case errors.As(err, &method):
		set(http.StatusMethodNotAllowed, api.CodeMethod, "GET /v1/openapi.json has all paths and their methods")
	case errors.As(err, &field):
		set(http.StatusUnprocessableEntity, api.CodeValue, "GET /v1/openapi.json has the types")
		if errors.Is(err, api.ErrUnknown) {
			out.Status, out.Code = http.StatusBadRequest, api.CodeBadRequest
		}
		out.Field = field.Field
	case errors.As(err, &value):
		set(http.StatusUnprocessableEntity, api.CodeValue, "give it another value")
		if m := lastMember.FindStringSubmatch(value.Where); m != nil {
			out.Field = m[1]
		}
	case errors.As(err, &collision):
		set(http.StatusConflict, api.CodeExists, "close the other session first")
		out.Other = sessionID(collision.Other)
	case errors.As(err, &exists):
		set(http.StatusConflict, api.CodeExists, "change it, or close it first")
		out.Other = api.KeyText(exists.Group.Key())
	case errors.As(err, &full):
		set(http.StatusConflict, api.CodeFull, "close others first, or raise the size in the spec")
	case errors.Is(err, runtime.ErrDraining):
		set(http.StatusConflict, api.CodeDraining, "DELETE /v1/drain ends that")
	case errors.Is(err, runtime.ErrNotFound), errors.As(err, &missing):
		set(http.StatusNotFound, api.CodeNotFound, "")
	case errors.Is(err, runtime.ErrClosed), errors.Is(err, runtime.ErrExpired):
		set(http.StatusGone, api.CodeClosed, "")
	case errors.As(err, &kernel):
		set(http.StatusInternalServerError, api.CodeRefused, kernel.Fix)
	default:
		set(http.StatusInternalServerError, api.CodeInternal, "")
	}
	out.Type, out.Title = "about:blank", http.StatusText(out.Status)
	return out
}

// page reads which part of a list is asked for.
func page(r *http.Request) (after string, n int, err error) {
	n = api.DefaultPage
	if query := r.URL.Query(); query.Has("limit") {
		text := query.Get("limit")
		if n, err = strconv.Atoi(text); err != nil || n < 1 || n > api.MaxPage {
			p := badRequest(fmt.Sprintf("limit is %q; it must be an integer from 1 to %d", text, api.MaxPage))
			p.Field = "limit"
			return "", 0, p
		}
	}
	return r.URL.Query().Get("after"), n, nil
}

// badAfter is an error of a page whose beginning isn't what the last one has given.
func badAfter(after string) error {
	p := badRequest(fmt.Sprintf("after is %q, which no list has given as next", after))
	p.Field = "after"
	return p
}

// part makes a page of the first n items of a list. An item that has ended meanwhile has no view.
func part[T, V any](all iter.Seq[T], n int, next func(T) string, view func(T) (V, bool)) api.Page[V] {
	out := api.Page[V]{Items: []V{}}
	var last T
	taken := 0
	for one := range all {
		if taken == n {
			out.Next = next(last)
			break
		}
		last = one
		taken++
		if v, ok := view(one); ok {
			out.Items = append(out.Items, v)
		}
	}
	return out
}
