package control

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"slices"

	"github.com/fastrelay/fastrelay-gen/runtime"
	"github.com/fastrelay/fastrelay-gen/runtime/control/api"
	"github.com/fastrelay/fastrelay-gen/runtime/metrics"
)

// UserSpace is a relay that forwards in user space, as a [Server] shows it: see [Server.Show]. Its methods may be
// called by several goroutines at once; what they return isn't changed later.
type UserSpace interface {
	// Relay returns the name, whether the relay is being drained, its settings, and its kinds of sessions and tables
	// with how many are open, which each kind of sessions has to say. The server adds what is the process's, and the
	// programs.
	Relay() api.Relay
	// Programs returns what was counted since the start, by program and reason: always the same reasons in the same
	// order. The server adds rates.
	Programs() []api.Program
	// Counters returns counters with names of their own.
	Counters() api.Object
	// Sessions returns the sessions of a kind that are open.
	Sessions(kind string) []api.Session
	// Rows returns the rows of a table.
	Rows(table string) []api.Row
	// Drain takes nothing new, has clients leave, and waits until no session is open. If ctx ends before, it returns
	// ctx's error, and the relay goes on so.
	Drain(ctx context.Context) error
	// EndDrain has the relay take new sessions again.
	EndDrain()
	// CloseSessions closes all sessions, and returns how many there were.
	CloseSessions() int
	// WriteMetrics writes series of the relay's own, in the text format of Prometheus.
	WriteMetrics(w io.Writer) error
}

// Show serves a relay in user space until Close: what Listen and Serve do for one in the kernel. Such a relay has no
// lease, no attachments to change, and what clients can open only by its protocol.
func (s *Server) Show(u UserSpace) error {
	if err := s.listen(u.Relay().Name); err != nil {
		return err
	}
	all := &userSpace{UserSpace: u, server: s}
	s.serve(all.routes(), all.counts, metrics.UserSpace(all.whole, u.WriteMetrics))
	return nil
}

// userSpace serves what the socket of a relay in user space has.
type userSpace struct {
	UserSpace
	server *Server
}

func (u *userSpace) routes() map[string]route {
	return map[string]route{
		"GET /v1":                      to(func(*http.Request) (any, error) { return u.overview(), nil }),
		"GET /v1/openapi.json":         {serve: u.openAPI},
		"GET /metrics":                 {serve: metrics.UserSpace(u.whole, u.WriteMetrics).ServeHTTP},
		"GET /v1/programs":             to(u.programs),
		"GET /v1/programs/{program}":   to(u.program),
		"GET /v1/counters":             to(u.counters),
		"GET /v1/next-hops":            to(noHops, "limit", "after", "missing"),
		"GET /v1/sessions/{kind}":      to(u.listSessions, "limit", "after"),
		"GET /v1/sessions/{kind}/{id}": to(u.getSession),
		"GET /v1/tables/{table}":       to(u.listRows, "limit", "after"),
		"GET /v1/tables/{table}/{key}": to(u.getRow),
		"POST /v1/drain": {body: true, serve: func(w http.ResponseWriter, r *http.Request) {
			serveDrain(w, r, u.drain)
		}},
		"DELETE /v1/drain": to(func(*http.Request) (any, error) { u.EndDrain(); return nil, nil }),
		"POST /v1/stop":    {serve: u.server.stop},
	}
}

// overview is the relay at a glance. What it doesn't have is an empty list.
func (u *userSpace) overview() api.Relay {
	r := u.Relay()
	r.PID, r.Started, r.CanStop = os.Getpid(), started, u.server.Stop != nil
	r.Programs = []string{}
	for _, p := range u.Programs() {
		r.Programs = append(r.Programs, p.Name)
	}
	r.Sessions, r.Groups = append([]api.Kind{}, r.Sessions...), []api.Kind{}
	r.Tables, r.Events = append([]api.Kind{}, r.Tables...), []api.LostKind{}
	return r
}

// whole is all that metrics are made of.
func (u *userSpace) whole() (api.Relay, []api.Program, api.Object) {
	return u.Relay(), u.Programs(), u.UserSpace.Counters()
}

func (u *userSpace) openAPI(w http.ResponseWriter, _ *http.Request) {
	r := u.overview()
	text, err := api.UserSpaceOpenAPI(&r)
	if err != nil {
		answer(w, nil, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(text) // an error means that the client has gone
}

// counts are the programs' counters.
func (u *userSpace) counts() (all [][]runtime.Count, _ error) {
	for _, p := range u.Programs() {
		var counts []runtime.Count
		for _, r := range p.Reasons {
			counts = append(counts, runtime.Count{Packets: r.Packets, Bytes: r.Bytes})
		}
		all = append(all, counts)
	}
	return all, nil
}

// rated are the programs with rates.
func (u *userSpace) rated() []api.Program {
	all := slices.Clone(u.Programs())
	for i, p := range all {
		all[i].Reasons = slices.Clone(p.Reasons)
		for n := range p.Reasons {
			r := &all[i].Reasons[n]
			r.PPS, r.BPS = u.server.rates.of(i, n)
		}
	}
	return all
}

func (u *userSpace) programs(*http.Request) (any, error) { return api.Programs{Items: u.rated()}, nil }

func (u *userSpace) program(r *http.Request) (any, error) {
	name, names := r.PathValue("program"), []string{}
	for _, p := range u.rated() {
		if p.Name == name {
			return p, nil
		}
		names = append(names, p.Name)
	}
	return nil, notFound("program", name, names)
}

func (u *userSpace) counters(*http.Request) (any, error) {
	return api.Counters{Counters: u.UserSpace.Counters()}, nil
}

// noHops are the next hops of a relay whose packets the kernel's stack sends.
func noHops(*http.Request) (any, error) { return api.Page[api.NextHop]{Items: []api.NextHop{}}, nil }

// known refuses the name of a kind that there isn't.
func known(what, name string, kinds []api.Kind) error {
	var names []string
	for _, k := range kinds {
		if k.Name == name {
			return nil
		}
		names = append(names, k.Name)
	}
	return notFound(what, name, names)
}

func (u *userSpace) sessions(r *http.Request) ([]api.Session, error) {
	kind := r.PathValue("kind")
	if err := known("session", kind, u.Relay().Sessions); err != nil {
		return nil, err
	}
	return u.Sessions(kind), nil
}

func (u *userSpace) rows(r *http.Request) ([]api.Row, error) {
	table := r.PathValue("table")
	if err := known("table", table, u.Relay().Tables); err != nil {
		return nil, err
	}
	return u.Rows(table), nil
}

func sessionName(s api.Session) string { return s.ID }

func rowName(r api.Row) string { return r.ID }

func (u *userSpace) listSessions(r *http.Request) (any, error) {
	return listed(r, u.sessions, sessionName)
}

func (u *userSpace) listRows(r *http.Request) (any, error) { return listed(r, u.rows, rowName) }

func (u *userSpace) getSession(r *http.Request) (any, error) {
	return one(r, u.sessions, sessionName, "session", r.PathValue("id"))
}

func (u *userSpace) getRow(r *http.Request) (any, error) {
	return one(r, u.rows, rowName, "row", r.PathValue("key"))
}

// listed is a page of what all returns, in the order of the names.
func listed[T any](r *http.Request, all func(*http.Request) ([]T, error), name func(T) string) (any, error) {
	after, n, err := page(r)
	if err != nil {
		return nil, err
	}
	items, err := all(r)
	if err != nil {
		return nil, err
	}
	items = slices.DeleteFunc(slices.Clone(items), func(v T) bool { return after != "" && name(v) <= after })
	slices.SortFunc(items, func(a, b T) int { return cmp.Compare(name(a), name(b)) })
	return part(slices.Values(items), n, name, func(v T) (T, bool) { return v, true }), nil
}

// one is what has a name.
func one[T any](r *http.Request, all func(*http.Request) ([]T, error), name func(T) string, what, want string) (any,
	error) {
	items, err := all(r)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(items, func(v T) bool { return name(v) == want })
	if i < 0 {
		return nil, notFound(what, want, nil)
	}
	return items[i], nil
}

// drain drains until ctx ends.
func (u *userSpace) drain(ctx context.Context, closeRest bool) (out api.Drained, err error) {
	err = u.Drain(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		err = nil
		if closeRest {
			return api.Drained{Drained: true, Closed: u.CloseSessions()}, nil
		}
	}
	for _, k := range u.Relay().Sessions {
		out.Sessions += *k.Open
	}
	out.Drained = out.Sessions == 0
	return out, err
}
