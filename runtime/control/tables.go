package control

import (
	"fmt"
	"iter"
	"net/http"
	"slices"

	"github.com/fastrelay/fastrelay-gen/runtime"
	"github.com/fastrelay/fastrelay-gen/runtime/abi"
	"github.com/fastrelay/fastrelay-gen/runtime/control/api"
	"github.com/fastrelay/fastrelay-gen/runtime/internal/seek"
)

// state shows what a row refers to: a number, a credit or a bucket, or a list of them.
func (s *Server) state(v any) any {
	levels := max(s.relay.Desc().Levels, 1)
	refused := func(of func(int) uint64) []uint64 {
		out := make([]uint64, levels)
		for i := range out {
			out[i] = of(i)
		}
		return out
	}
	switch v := v.(type) {
	case *runtime.Counter:
		return v.Load()
	case *runtime.Credit:
		return api.Credit{
			Limit: v.Limit(), Spent: v.Spent(), Available: v.Available(), Debt: v.Debt(), Refused: refused(v.Refused),
		}
	case *runtime.Bucket:
		rate := v.Rate()
		return api.Bucket{
			PerSecond: rate.PerSecond, Burst: rate.Burst, Available: v.Available(), Debt: v.Debt(),
			Refused: refused(v.Refused),
		}
	case []*runtime.Credit:
		return all(v, s.state)
	case []*runtime.Bucket:
		return all(v, s.state)
	}
	return api.Encode(v)
}

func all[T any](list []T, one func(any) any) []any {
	out := []any{}
	for _, v := range list {
		out = append(out, one(v))
	}
	return out
}

// setState gives a counter its value, a credit its limit, a bucket its rate; nil leaves it as it is.
func setState(state, v any) {
	if v == nil {
		return
	}
	switch state := state.(type) {
	case *runtime.Counter:
		state.Store(v.(uint64))
	case *runtime.Credit:
		state.SetLimit(v.(uint64))
	case *runtime.Bucket:
		state.SetRate(runtime.Rate(v.(api.Rate)))
	case []*runtime.Credit:
		for i, c := range state {
			setState(c, v.([]any)[i])
		}
	case []*runtime.Bucket:
		for i, b := range state {
			setState(b, v.([]any)[i])
		}
	}
}

func (s *Server) table(r *http.Request) (*runtime.AnyTable, error) {
	if t := s.relay.Table(r.PathValue("table")); t != nil {
		return t, nil
	}
	var names []string
	for _, t := range s.relay.Tables() {
		names = append(names, t.Desc().Name)
	}
	return nil, notFound("table", r.PathValue("table"), names)
}

// pathRow returns the table and the key of a path.
func (s *Server) pathRow(r *http.Request) (*runtime.AnyTable, []any, error) {
	t, err := s.table(r)
	if err != nil {
		return nil, nil, err
	}
	key, err := api.ParseKey(t.Desc().Key, r.PathValue("key"))
	if err != nil {
		return nil, nil, keyError(err)
	}
	return t, key, nil
}

// ownRow is pathRow for a change: rows that end with sessions come and go with them.
func (s *Server) ownRow(r *http.Request) (*runtime.AnyTable, []any, error) {
	t, err := s.table(r)
	if err == nil && t.Desc().Bound() {
		err = &methodError{r, readOnly, fmt.Sprintf(": rows of table %q come and go with sessions; close the session",
			t.Desc().Name)}
	}
	if err != nil {
		return nil, nil, err
	}
	return s.pathRow(r)
}

func (s *Server) row(t *runtime.AnyTable, info runtime.RowInfo, hops func(runtime.NextHop) api.NextHop) api.Row {
	out := api.Row{
		ID: api.KeyText(info.Key), Key: object(api.Members(t.Desc().Key), info.Key), Value: api.Object{},
		Hops: views(info.Hops, hops),
	}
	if info.Session != nil {
		out.Session = sessionID(info.Session)
	}
	for i, m := range visible(t.Desc().Value) {
		if m.Kind != abi.KindTranslation {
			out.Value = append(out.Value, api.Named{Name: m.Name, Value: s.state(info.Value[i])})
		}
	}
	return out
}

func visible(members []abi.Member) []abi.Member {
	return slices.DeleteFunc(slices.Clone(members), func(m abi.Member) bool { return m.Hidden })
}

var rowsAfter = seek.Rows.(func(*runtime.AnyTable, []any) (iter.Seq[runtime.RowInfo], error))

func (s *Server) listRows(r *http.Request) (any, error) {
	t, err := s.table(r)
	if err != nil {
		return nil, err
	}
	after, n, err := page(r)
	if err != nil {
		return nil, err
	}
	var key []any
	if after != "" {
		if key, err = api.ParseKey(t.Desc().Key, after); err != nil {
			return nil, badAfter(after)
		}
	}
	rows, err := rowsAfter(t, key)
	if err != nil {
		return nil, err
	}
	hops := s.hopView()
	return part(rows, n, func(row runtime.RowInfo) string { return api.KeyText(row.Key) },
		func(row runtime.RowInfo) (api.Row, bool) { return s.row(t, row, hops), true }), nil
}

func (s *Server) getRow(r *http.Request) (any, error) {
	t, key, err := s.pathRow(r)
	if err != nil {
		return nil, err
	}
	return s.readRow(t, key)
}

func (s *Server) readRow(t *runtime.AnyTable, key []any) (any, error) {
	info, err := t.Row(key...)
	if err != nil {
		return nil, err
	}
	return s.row(t, info, s.hopView()), nil
}

func (s *Server) putRow(r *http.Request) (any, error) { return s.writeRow(r, true) }

func (s *Server) setRow(r *http.Request) (any, error) { return s.writeRow(r, false) }

// writeRow puts a whole row, or changes values of one that is there.
func (s *Server) writeRow(r *http.Request, replace bool) (any, error) {
	t, key, err := s.ownRow(r)
	if err != nil {
		return nil, err
	}
	var given api.Object
	if err := read(r, &given); err != nil {
		return nil, err
	}
	members := api.Members(t.Desc().Value)
	values, err := api.DecodeMembers(members, given)
	if err == nil && replace {
		err = whole(members, values, func(m abi.Member) bool { return m.Kind != abi.KindCounter })
	}
	if err != nil {
		return nil, err
	}
	s.patching.Lock()
	defer s.patching.Unlock()
	var row, states []any // in the order of all visible members, nil if a value stays
	plain := replace
	i := 0
	for _, m := range visible(t.Desc().Value) {
		var v any
		if m.Kind != abi.KindTranslation {
			v = values[i]
			i++
		}
		if m.Kind.IsState() {
			row, states = append(row, nil), append(states, v)
			continue
		}
		plain = plain || v != nil
		row, states = append(row, v), append(states, nil)
	}
	if !replace {
		was, err := t.Get(key...)
		if err != nil {
			return nil, err
		}
		for i, m := range visible(t.Desc().Value) {
			if row[i] == nil && !m.Kind.IsState() {
				row[i] = was[i]
			}
		}
	}
	if plain {
		if err := t.Put(key, row); err != nil {
			return nil, err
		}
	}
	now, err := t.Get(key...)
	if err != nil {
		return nil, err
	}
	for i, v := range states {
		setState(now[i], v)
	}
	return s.readRow(t, key)
}

func (s *Server) deleteRow(r *http.Request) (any, error) {
	t, key, err := s.ownRow(r)
	if err != nil {
		return nil, err
	}
	return nil, t.Delete(key...)
}
