package control

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/runtime"
	"github.com/fastrelay/fastrelay-gen/runtime/control/api"
)

const (
	// A client that sends or takes nothing for so long is left.
	usualPatience = 10 * time.Second
	// A request has at most so many bytes. So many more are read, and dropped.
	maxBody, maxDiscard = 1 << 20, 64 << 20
)

type peerKey struct{}

// withPeer notes who connects.
func withPeer(ctx context.Context, c net.Conn) context.Context {
	peer, err := peerOf(c.(*net.UnixConn))
	if err != nil {
		return ctx
	}
	return context.WithValue(ctx, peerKey{}, peer)
}

// View serves what a control socket shows of a relay, and nothing that changes it, until ctx ends: programs with rates,
// sessions, groups, tables, counters, next hops. Events are left out, since who reads them takes them out of the ring.
// View doesn't ask who wants to know: the caller decides who may.
func View(ctx context.Context, r *runtime.Relay) http.Handler {
	s := &Server{relay: r, rates: newRates(r)}
	go s.rates.run(ctx)
	mux := http.NewServeMux()
	for path, f := range s.paths() {
		if strings.HasPrefix(path, "GET ") {
			mux.HandleFunc(path, answering(f))
		}
	}
	return mux
}

// paths are those that answer with a value.
func (s *Server) paths() map[string]func(*http.Request) (any, error) {
	return map[string]func(*http.Request) (any, error){
		"GET /v1":                                               s.overview,
		"GET /v1/programs":                                      s.programs,
		"GET /v1/programs/{program}":                            s.program,
		"GET /v1/counters":                                      s.counters,
		"GET /v1/next-hops":                                     s.nextHops,
		"DELETE /v1/drain":                                      s.endDrain,
		"GET /v1/sessions/{kind}":                               s.listSessions,
		"POST /v1/sessions/{kind}":                              s.openSession,
		"GET /v1/sessions/{kind}/{id}":                          s.getSession,
		"PATCH /v1/sessions/{kind}/{id}":                        s.changeSession,
		"DELETE /v1/sessions/{kind}/{id}":                       s.closeSession,
		"POST /v1/sessions/{kind}/{id}/refresh":                 s.refreshSession,
		"POST /v1/close/{kind}":                                 s.closeSessions,
		"POST /v1/refresh/{kind}":                               s.refreshSessions,
		"GET /v1/groups/{kind}":                                 s.listGroups,
		"POST /v1/groups/{kind}":                                s.openGroup,
		"GET /v1/groups/{kind}/{key}":                           s.getGroup,
		"PATCH /v1/groups/{kind}/{key}":                         s.changeGroup,
		"DELETE /v1/groups/{kind}/{key}":                        s.closeGroup,
		"GET /v1/groups/{kind}/{key}/receivers":                 s.listReceivers,
		"GET /v1/groups/{kind}/{key}/receivers/{id}":            s.getReceiver,
		"GET /v1/tables/{table}":                                s.listRows,
		"GET /v1/tables/{table}/{key}":                          s.getRow,
		"PUT /v1/tables/{table}/{key}":                          s.putRow,
		"PATCH /v1/tables/{table}/{key}":                        s.setRow,
		"DELETE /v1/tables/{table}/{key}":                       s.deleteRow,
		"PUT /v1/programs/{program}/attachments/{interface}":    s.attach,
		"DELETE /v1/programs/{program}/attachments/{interface}": s.detach,
	}
}

// answering serves a path that answers with a value.
func answering(f func(*http.Request) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		out, err := f(r)
		answer(w, out, err)
	}
}

// handler serves all paths.
func (s *Server) handler() http.Handler {
	mux := http.NewServeMux()
	for path, f := range s.paths() {
		mux.HandleFunc(path, answering(f))
	}
	mux.HandleFunc("POST /v1/drain", s.drain)
	mux.HandleFunc("POST /v1/stop", s.stop)
	mux.HandleFunc("GET /v1/events", s.events)
	mux.HandleFunc("GET /v1/openapi.json", s.openAPI)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		answer(w, nil, &api.Problem{Status: http.StatusNotFound, Code: api.CodeNotFound,
			Detail: r.Method + " " + r.URL.Path + " is nothing that this socket has",
			Fix:    "GET /v1/openapi.json has all paths"})
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := allowed(r.Context()); err != nil {
			answer(w, nil, err)
			return
		}
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(s.patience)) // a unix socket has deadlines
		mux.ServeHTTP(w, r)
	})
}

// allowed refuses users other than root and the one of this process. The socket's mode does as well, unless somebody
// has changed it.
func allowed(ctx context.Context) error {
	peer, ok := ctx.Value(peerKey{}).(*unix.Ucred)
	if ok && (peer.Uid == 0 || int(peer.Uid) == os.Geteuid()) {
		return nil
	}
	who := "a user who can't be identified"
	if ok {
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
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	err = d.Decode(into)
	if err == nil && d.More() {
		err = errors.New("more than one value")
	}
	if err != nil {
		p := badRequest("the body isn't what this path takes: " + err.Error())
		var wrong *json.UnmarshalTypeError
		if errors.As(err, &wrong) {
			p.Field = wrong.Field
		}
		return p
	}
	return nil
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
	)
	out := &api.Problem{Detail: err.Error()}
	set := func(status int, code, fix string) { out.Status, out.Code, out.Fix = status, code, fix }
	switch {
	case errors.As(err, &p):
		*out = *p
	case errors.As(err, &field):
		set(http.StatusUnprocessableEntity, api.CodeValue, "GET /v1/openapi.json has the types")
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
	if text := r.URL.Query().Get("limit"); text != "" {
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

// part makes a page of a list that was asked for one item more than fits.
func part[T, V any](all []T, n int, next func(T) string, view func(T) (V, bool)) api.Page[V] {
	out := api.Page[V]{Items: []V{}}
	if len(all) > n {
		all = all[:n]
		out.Next = next(all[n-1])
	}
	for _, one := range all {
		if v, ok := view(one); ok {
			out.Items = append(out.Items, v)
		}
	}
	return out
}
