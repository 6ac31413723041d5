package control

import (
	"fmt"
	"iter"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/fastrelay/fastrelay-gen/runtime"
	"github.com/fastrelay/fastrelay-gen/runtime/abi"
	"github.com/fastrelay/fastrelay-gen/runtime/control/api"
	"github.com/fastrelay/fastrelay-gen/runtime/internal/seek"
)

func sessionID(s *runtime.AnySession) string { return fmt.Sprintf("%d-%d", uint32(s.ID()), s.ID()>>32) }

func parseSessionID(text string) (id uint64, ok bool) {
	var slot, gen uint32
	if n, err := fmt.Sscanf(text, "%d-%d", &slot, &gen); err != nil || n != 2 || gen == 0 {
		return 0, false
	}
	id = uint64(gen)<<32 | uint64(slot)
	return id, fmt.Sprintf("%d-%d", slot, gen) == text
}

func (s *Server) sessionKind(r *http.Request) (*abi.Session, error) {
	var names []string
	all := s.relay.Desc().Sessions
	for i := range all {
		if all[i].Name == r.PathValue("kind") {
			return &all[i], nil
		}
		names = append(names, all[i].Name)
	}
	return nil, notFound("kind of session", r.PathValue("kind"), names)
}

func (s *Server) findSession(kind *abi.Session, text string) (*runtime.AnySession, error) {
	if id, ok := parseSessionID(text); ok {
		if one, err := s.relay.Session(id); err == nil && one.Kind() == kind.Name {
			return one, nil
		}
	}
	p := notFound("open session", text, nil)
	p.Fix = "GET /v1/sessions/" + kind.Name + " has those that are open"
	return nil, p
}

func (s *Server) pathSession(r *http.Request) (*runtime.AnySession, error) {
	kind, err := s.sessionKind(r)
	if err != nil {
		return nil, err
	}
	return s.findSession(kind, r.PathValue("id"))
}

var sessionsFrom = seek.Sessions.(func(*runtime.Relay, uint64) iter.Seq[*runtime.AnySession])

func (s *Server) listSessions(r *http.Request) (any, error) {
	kind, err := s.sessionKind(r)
	if err != nil {
		return nil, err
	}
	after, n, err := page(r)
	if err != nil {
		return nil, err
	}
	from := uint64(0)
	if after != "" {
		id, ok := parseSessionID(after)
		if !ok {
			return nil, badAfter(after)
		}
		from = uint64(uint32(id)) + 1
	}
	all := func(yield func(*runtime.AnySession) bool) {
		for one := range sessionsFrom(s.relay, from) {
			if one.Kind() == kind.Name && !yield(one) {
				return
			}
		}
	}
	hops := s.hopView()
	return part(all, n, sessionID, func(one *runtime.AnySession) (api.Session, bool) {
		v, err := s.session(one, hops)
		return v, err == nil // it ended meanwhile
	}), nil
}

func (s *Server) session(one *runtime.AnySession, hops func(runtime.NextHop) api.NextHop) (api.Session, error) {
	out := api.Session{ID: sessionID(one), Kind: one.Kind(), Fields: api.Object{}, Rows: []api.RowUse{}}
	counts, err := one.Counters()
	if err != nil {
		return out, err
	}
	var desc *abi.Session
	for i, k := range s.relay.Desc().Sessions {
		if k.Name == one.Kind() {
			desc = &s.relay.Desc().Sessions[i]
		}
	}
	for i, v := range one.Values() {
		out.Fields = append(out.Fields, api.Named{Name: desc.Fields[i].Name, Value: s.state(v)})
	}
	for i, c := range counts {
		table := s.relay.Desc().Tables[desc.Rows[i].Table].Name
		out.Rows = append(out.Rows, api.RowUse{Table: table, Packets: c.Packets, Bytes: c.Bytes})
	}
	if last, err := one.LastUsed(); err == nil && !last.IsZero() {
		out.LastUsed = &last
	}
	if end := one.Expires(); !end.IsZero() {
		out.Expires = &end
	}
	out.Hops = views(one.NextHops(), hops)
	return out, nil
}

func (s *Server) openSession(r *http.Request) (any, error) {
	kind, err := s.sessionKind(r)
	if err != nil {
		return nil, err
	}
	lifetime, err := lifetimeOf(r)
	if err != nil {
		return nil, err
	}
	var given api.Object
	if err := read(r, &given); err != nil {
		return nil, err
	}
	fields := api.FieldMembers(kind.Fields)
	values, err := api.DecodeMembers(fields, given)
	if err != nil {
		return nil, err
	}
	if err := whole(fields, values, func(m abi.Member) bool { return m.Kind != abi.KindCounter }); err != nil {
		return nil, err
	}
	states := splitState(fields, values)
	one, err := s.relay.Open(kind.Name, values...)
	if err == nil && lifetime > 0 {
		err = one.RefreshFor(lifetime)
	}
	if err != nil {
		return nil, err
	}
	setStates(one, states)
	out, err := s.session(one, s.hopView())
	return created{out}, err
}

// lifetimeOf reads after how many seconds a session has to end; 0: only when its kind says.
func lifetimeOf(r *http.Request) (time.Duration, error) {
	query := r.URL.Query()
	if !query.Has("lifetime") {
		return 0, nil
	}
	seconds, err := strconv.ParseFloat(query.Get("lifetime"), 64)
	if err != nil {
		seconds = -1
	}
	return lifetime("lifetime", seconds)
}

// longestLifetime is the longest that a session can be given.
const longestLifetime = 366 * 24 * time.Hour

func lifetime(field string, seconds float64) (time.Duration, error) {
	if longest := longestLifetime.Seconds(); !(seconds >= 0 && seconds <= longest) {
		return 0, &api.FieldError{Field: field, Err: fmt.Errorf("must be from 0 to %.0f seconds", longest)}
	}
	return time.Duration(seconds * float64(time.Second)), nil
}

// changeSession changes some fields of a session.
func (s *Server) changeSession(r *http.Request) (any, error) {
	kind, err := s.sessionKind(r)
	if err != nil {
		return nil, err
	}
	one, err := s.findSession(kind, r.PathValue("id"))
	if err != nil {
		return nil, err
	}
	var given api.Object
	if err := read(r, &given); err != nil {
		return nil, err
	}
	fields := api.FieldMembers(kind.Fields)
	values, err := api.DecodeMembers(fields, given)
	if err != nil {
		return nil, err
	}
	states := splitState(fields, values)
	s.patching.Lock()
	defer s.patching.Unlock()
	if slices.ContainsFunc(values, func(v any) bool { return v != nil }) { // for less, no packet misses the session
		if err := one.Change(merge(one.Values(), values)...); err != nil {
			return nil, err
		}
	}
	setStates(one, states)
	return s.session(one, s.hopView())
}

// splitState takes the values of counters, credits and buckets out of those of fields.
func splitState(fields []abi.Member, values []any) (states []any) {
	states = make([]any, len(values))
	for i, m := range fields {
		if m.Kind.IsState() {
			states[i], values[i] = values[i], nil
		}
	}
	return states
}

func setStates(s *runtime.AnySession, states []any) {
	for i, v := range s.Values() {
		setState(v, states[i])
	}
}

// whole checks that a value is given for each member that needs one.
func whole(members []abi.Member, values []any, needed func(abi.Member) bool) error {
	for i, m := range members {
		if values[i] == nil && needed(m) {
			return &api.FieldError{Field: m.Name, Err: fmt.Errorf("is missing")}
		}
	}
	return nil
}

func (s *Server) getSession(r *http.Request) (any, error) {
	one, err := s.pathSession(r)
	if err != nil {
		return nil, err
	}
	return s.session(one, s.hopView())
}

func (s *Server) refreshSession(r *http.Request) (any, error) {
	one, err := s.pathSession(r)
	if err != nil {
		return nil, err
	}
	lifetime, err := lifetimeOf(r)
	if err == nil {
		err = one.RefreshFor(lifetime)
	}
	if err != nil {
		return nil, err
	}
	return s.session(one, s.hopView())
}

// refreshSessions refreshes many sessions, and says which are over.
func (s *Server) refreshSessions(r *http.Request) (any, error) {
	kind, err := s.sessionKind(r)
	if err != nil {
		return nil, err
	}
	var want api.RefreshSessions
	if err := read(r, &want); err != nil {
		return nil, err
	}
	lifetime, err := lifetime("lifetime_seconds", want.Lifetime)
	if err != nil {
		return nil, err
	}
	out := api.Refreshed{Over: []string{}}
	for _, id := range want.IDs {
		if one, err := s.findSession(kind, id); err == nil && one.RefreshFor(lifetime) == nil {
			out.Refreshed++
		} else {
			out.Over = append(out.Over, id)
		}
	}
	return out, nil
}

func (s *Server) closeSession(r *http.Request) (any, error) {
	one, err := s.pathSession(r)
	if err != nil {
		return nil, err
	}
	return nil, one.Close()
}

func (s *Server) closeSessions(r *http.Request) (any, error) {
	kind, err := s.sessionKind(r)
	if err != nil {
		return nil, err
	}
	var want api.CloseSessions
	if err := read(r, &want); err != nil {
		return nil, err
	}
	var all []*runtime.AnySession
	for _, id := range want.IDs {
		one, err := s.findSession(kind, id)
		if err != nil {
			p := problem(err)
			p.Field = "ids"
			return nil, p
		}
		all = append(all, one)
	}
	if err := s.relay.CloseSessions(all...); err != nil {
		return nil, err
	}
	return api.Closed{Closed: len(all)}, nil
}
