package control_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fastrelay/fastrelay-gen/runtime/control"
	"github.com/fastrelay/fastrelay-gen/runtime/control/api"
)

// The relay at a glance.
func TestOverview(t *testing.T) {
	l := start(t)
	r := get[api.Relay](l, "/v1")
	if r.Name != "lab" || r.Lease.Seconds != lease.Seconds() || r.Lease.Left <= 0 || r.Draining || r.CanStop ||
		r.Levels != 2 {
		t.Errorf("the relay is %+v", r)
	}
	if diff := cmp.Diff(`[{port 7000} {self 192.0.2.1}]`, fmt.Sprint(r.Settings)); diff != "" {
		t.Error(diff)
	}
	if len(r.Programs) != 2 || len(r.Sessions) != 2 || len(r.Tables) != 5 || len(r.Groups) != 1 || len(r.Events) != 2 {
		t.Errorf("it has %+v", r)
	}
	programs := get[api.Programs](l, "/v1/programs").Items
	if len(programs) != 2 || programs[0].Name != "calls" || programs[0].KernelID == 0 || len(programs[0].Reasons) < 10 {
		t.Errorf("programs: %+v", programs)
	}
	if c := get[api.Counters](l, "/v1/counters"); fmt.Sprint(c.Counters) != "[{people 0}]" {
		t.Errorf("counters: %v", c)
	}
	l.refused("GET", "/v1/programs/cals", nil, api.CodeNotFound, "", "calls")
	l.refused("GET", "/v1/nothing", nil, api.CodeNotFound, "", "openapi")
}

// A session is opened, listed, refreshed and closed; the server's own methods see the same one.
func TestSessions(t *testing.T) {
	l := start(t)
	s := do[api.Session](l, "POST", "/v1/sessions/call", call(7))
	if words(s.Fields.Get("client"), s.Fields.Get("number")) != "198.51.100.7:40001 7" || s.Expires == nil {
		t.Errorf("opened %+v", s)
	}
	if len(s.Hops) != 1 || s.Hops[0].State != "direct" || s.Hops[0].To != "203.0.113.9" ||
		s.Hops[0].Interface != "eth0" {
		t.Errorf("its next hops: %+v", s.Hops)
	}
	n := 0
	for one := range l.relay.Sessions() {
		n++
		if fmt.Sprint(one.Values()[2]) != "7" {
			t.Errorf("the server finds %v", one)
		}
	}
	if n != 1 {
		t.Errorf("the server finds %d sessions", n)
	}
	p := l.refused("POST", "/v1/sessions/call", call(7), api.CodeExists, "", "belongs to another session")
	if p.Other != s.ID {
		t.Errorf("in the way is %q, want %q", p.Other, s.ID)
	}
	bad := call(8)
	bad[3].Value = "127.0.0.1:5"
	l.refused("POST", "/v1/sessions/call", bad, api.CodeValue, "local", "loopback")
	bad[3].Value = 5
	l.refused("POST", "/v1/sessions/call", bad, api.CodeValue, "local", "must be an endpoint")
	l.refused("POST", "/v1/sessions/call", call(70000), api.CodeValue, "number", "from 0 to 65535")
	l.refused("POST", "/v1/sessions/call", call(7)[:4], api.CodeValue, "peer", "missing")
	l.refused("POST", "/v1/sessions/call", append(call(7), api.Named{Name: "per", Value: 1}), api.CodeBadRequest,
		"per", "unknown", "peer")
	l.refused("POST", "/v1/sessions/cal", call(7), api.CodeNotFound, "", "call")
	do[api.Session](l, "POST", "/v1/sessions/call/"+s.ID+"/refresh", nil)
	const lifetime, clocks = 7500 * time.Millisecond, 100 * time.Millisecond // the kernel has a clock of its own
	before := time.Now()
	s = do[api.Session](l, "POST", "/v1/sessions/call/"+s.ID+"/refresh?lifetime=7.5", nil)
	if end := s.Expires.Add(-lifetime); end.Before(before.Add(-clocks)) || end.After(time.Now().Add(clocks)) {
		t.Errorf("it ends %v after the request", s.Expires.Sub(before))
	}
	l.refused("POST", "/v1/sessions/call/"+s.ID+"/refresh?lifetime=x", nil, api.CodeValue, "lifetime", "seconds")
	l.refused("POST", "/v1/sessions/call?lifetime=-1", call(9), api.CodeValue, "lifetime")
	do[any](l, "DELETE", "/v1/sessions/call/"+s.ID, nil)
	l.refused("GET", "/v1/sessions/call/"+s.ID, nil, api.CodeNotFound, "", s.ID)
	l.refused("DELETE", "/v1/sessions/call/x", nil, api.CodeNotFound, "")
	a := do[api.Session](l, "POST", "/v1/sessions/call", call(1))
	b := do[api.Session](l, "POST", "/v1/sessions/call", call(2))
	three := api.CloseSessions{IDs: []string{a.ID, "9-9", b.ID}}
	l.refused("POST", "/v1/close/call", three, api.CodeNotFound, "ids", "9-9")
	if l.relay.OpenSessions("call") != 2 {
		t.Error("a part of the sessions was closed")
	}
	if c := do[api.Closed](l, "POST", "/v1/close/call", api.CloseSessions{IDs: []string{a.ID, b.ID}}); c.Closed != 2 {
		t.Errorf("closed %d", c.Closed)
	}
}

// A session is changed as a whole or not at all.
func TestChangeSession(t *testing.T) {
	l := start(t)
	s := do[api.Session](l, "POST", "/v1/sessions/call", call(7))
	do[api.Session](l, "POST", "/v1/sessions/call", call(8))
	at := "/v1/sessions/call/" + s.ID
	now := do[api.Session](l, "PATCH", at, fields("number", 9, "peer", "203.0.113.99:7000"))
	if now.ID != s.ID || words(now.Fields.Get("number"), now.Fields.Get("peer")) != "9 203.0.113.99:7000" ||
		now.Hops[0].Missing == "" {
		t.Errorf("changed to %+v", now)
	}
	if p := l.refused("PATCH", at, fields("number", 8), api.CodeExists, "", "another session"); p.Other == s.ID {
		t.Errorf("in the way is %q", p.Other)
	}
	l.refused("PATCH", at, fields("number", 70000), api.CodeValue, "number", "from 0 to 65535")
	l.refused("PATCH", at, fields("local", "127.0.0.1:5"), api.CodeValue, "local", "loopback")
	l.refused("PATCH", at, fields("per", 1), api.CodeBadRequest, "per", "unknown")
	l.refused("PATCH", "/v1/sessions/call/9-9", fields("number", 1), api.CodeNotFound, "", "9-9")
	if v := get[api.Session](l, at); fmt.Sprint(v.Fields) != fmt.Sprint(now.Fields) {
		t.Errorf("after changes that were refused it is %+v", v)
	}
	if rows := get[api.Page[api.Row]](l, "/v1/tables/by_client").Items; len(rows) != 2 || rows[0].Session == "" {
		t.Errorf("rows: %+v", rows)
	}
	if len(get[api.Page[api.NextHop]](l, "/v1/next-hops").Items) != 2 {
		t.Error("next hops of before the change are followed")
	}
	do[any](l, "DELETE", at, nil)
}

// What a session counts and may spend is given when it is opened, shown, and set; it has two rows in one table.
func TestSessionState(t *testing.T) {
	l := start(t)
	flow := fields("left", "198.51.100.7:5000", "right", "203.0.113.1:7000", "packets", 3, "volume", 100, "pace",
		fields("per_second", 10, "burst", 4), "shares", []any{5, 6})
	s := do[api.Session](l, "POST", "/v1/sessions/flow", flow)
	at := "/v1/sessions/flow/" + s.ID
	check := func(s api.Session, packets, limit, burst, share string) {
		t.Helper()
		got := words(s.Fields.Get("packets"), s.Fields.Get("volume").(map[string]any)["limit"],
			s.Fields.Get("pace").(map[string]any)["burst"], s.Fields.Get("shares").([]any)[1].(map[string]any)["limit"])
		if want := words(packets, limit, burst, share); got != want {
			t.Errorf("it has %s, want %s", got, want)
		}
	}
	check(s, "3", "100", "4", "6")
	if len(s.Rows) != 2 || s.Rows[0].Table != "flows" || s.Rows[1].Table != "flows" {
		t.Errorf("rows: %+v", s.Rows)
	}
	check(do[api.Session](l, "PATCH", at, fields("volume", 200, "shares", []any{5, 7})), "3", "200", "4", "7")
	check(do[api.Session](l, "PATCH", at, fields("right", "203.0.113.1:7001", "packets", 9)), "9", "200", "4", "7")
	check(get[api.Session](l, at), "9", "200", "4", "7")
	for _, row := range get[api.Page[api.Row]](l, "/v1/tables/flows").Items {
		if row.Session != s.ID || words(row.Value.Get("packets")) != "9" {
			t.Errorf("row %+v", row)
		}
	}
	l.refused("PATCH", at, fields("volume", -1), api.CodeValue, "volume", "integer")
	l.refused("PATCH", at, fields("pace", 5), api.CodeValue, "pace", "per_second")
	l.refused("POST", "/v1/sessions/flow", fields("left", "198.51.100.8:5000", "right", "203.0.113.1:7002", "pace",
		fields("per_second", 10, "burst", 4), "shares", []any{5, 6}), api.CodeValue, "volume", "missing")
	flow = fields("left", "203.0.113.1:7001", "right", "203.0.113.1:7002", "volume", 1, "pace",
		fields("per_second", 10, "burst", 4), "shares", []any{5, 6})
	if p := l.refused("POST", "/v1/sessions/flow", flow, api.CodeExists, "", "another session"); p.Other != s.ID {
		t.Errorf("in the way is %q", p.Other)
	}
	do[any](l, "DELETE", at, nil)
	if rows := get[api.Page[api.Row]](l, "/v1/tables/flows").Items; len(rows) > 0 {
		t.Errorf("rows of a session that is closed: %+v", rows)
	}
}

// A client that has to refresh its sessions in time is told which are over; without it they end by themselves.
func TestRefreshMany(t *testing.T) {
	l := start(t)
	a := do[api.Session](l, "POST", "/v1/sessions/call?lifetime=0.2", call(1))
	b := do[api.Session](l, "POST", "/v1/sessions/call?lifetime=30", call(2))
	both := api.RefreshSessions{IDs: []string{a.ID, "9-9", b.ID}, Lifetime: 30}
	l.until("the session ends", func() bool { return l.relay.OpenSessions("call") == 1 })
	done := do[api.Refreshed](l, "POST", "/v1/refresh/call", both)
	if done.Refreshed != 1 || fmt.Sprint(done.Over) != fmt.Sprint([]string{a.ID, "9-9"}) {
		t.Errorf("refreshed %+v", done)
	}
	l.refused("POST", "/v1/refresh/call", api.RefreshSessions{IDs: []string{}, Lifetime: -1}, api.CodeValue,
		"lifetime_seconds")
}

// Lists come in pages; each session that is open all the time is in one of them.
func TestPages(t *testing.T) {
	l := start(t)
	for i := range 250 {
		do[api.Session](l, "POST", "/v1/sessions/call", call(i))
	}
	seen := map[string]bool{}
	pages := 0
	for after := ""; ; {
		p := get[api.Page[api.Session]](l, "/v1/sessions/call?limit=60&after="+after)
		for _, s := range p.Items {
			if seen[s.ID] {
				t.Errorf("%s comes twice", s.ID)
			}
			seen[s.ID] = true
		}
		pages++
		if pages == 2 { // those of the last page, and of one to come
			for _, slot := range []uint64{119, 200} {
				s, err := l.relay.Session(1<<32 | slot)
				if err != nil {
					t.Fatal(err)
				}
				s.Close()
			}
		}
		if after = p.Next; after == "" {
			break
		}
	}
	if pages != 5 || len(seen) != 249 {
		t.Errorf("%d sessions in %d pages", len(seen), pages)
	}
	rows, err := api.All[api.Row](t.Context(), l.Client, "/v1/tables/by_client")
	if err != nil || len(rows) != 248 || rows[0].Session == "" || len(rows[0].Hops) != 1 {
		t.Errorf("%d rows, the first %+v: %v", len(rows), rows[0], err)
	}
	hops := get[api.Page[api.NextHop]](l, "/v1/next-hops")
	if len(hops.Items) != 1 || hops.Items[0].Rows != 248 {
		t.Errorf("next hops: %+v", hops)
	}
	l.refused("GET", "/v1/sessions/call?limit=0", nil, api.CodeBadRequest, "limit")
	l.refused("GET", "/v1/sessions/call?after=x", nil, api.CodeBadRequest, "after")
}

// Why a next hop is missing.
func TestNextHops(t *testing.T) {
	l := start(t)
	lost := call(1)
	lost[4].Value = "203.0.113.99:7000"
	do[api.Session](l, "POST", "/v1/sessions/call", call(2))
	do[api.Session](l, "POST", "/v1/sessions/call", lost)
	hops := get[api.Page[api.NextHop]](l, "/v1/next-hops?missing=true").Items
	if len(hops) != 1 || hops[0].To != "203.0.113.99" || hops[0].State != "unreachable" || hops[0].Missing == "" {
		t.Errorf("missing: %+v", hops)
	}
	first := get[api.Page[api.NextHop]](l, "/v1/next-hops?limit=1")
	second := get[api.Page[api.NextHop]](l, "/v1/next-hops?limit=1&after="+first.Next)
	if len(first.Items) != 1 || len(second.Items) != 1 || first.Items[0].To != "203.0.113.9" || second.Next != "" {
		t.Errorf("in pages: %+v, %+v", first, second)
	}
}

// Rows of all kinds of values are put, changed and removed.
func TestTables(t *testing.T) {
	l := start(t)
	anna := fields("via", "192.0.2.254", "quota", 1000, "shares", []any{5, 6}, "pace", fields("per_second", 10,
		"burst", 3),
		"code", "00ff01fe", "mac", "02:00:00:00:00:07", "on", true, "kind", 1)
	at := "/v1/tables/people/198.51.100.7"
	row := do[api.Row](l, "PUT", at, anna)
	if words(row.Value.Get("code"), row.Value.Get("mac"), row.Value.Get("on")) != "00ff01fe 02:00:00:00:00:07 true" ||
		fmt.Sprint(row.Value.Get("shares").([]any)[1].(map[string]any)["limit"]) != "6" || len(row.Hops) != 1 {
		t.Errorf("put %+v", row)
	}
	row = do[api.Row](l, "PATCH", at, fields("quota", 2000, "kind", 3))
	if got := words(row.Value.Get("kind"), row.Value.Get("via")); got != "3 192.0.2.254" {
		t.Errorf("changed %+v", row)
	}
	if v := row.Value.Get("quota").(map[string]any); fmt.Sprint(v["limit"]) != "2000" {
		t.Errorf("its quota: %+v", v)
	}
	l.refused("PATCH", at, fields("kind", 3, "quota", -1), api.CodeValue, "quota", "integer")
	l.refused("PATCH", at, fields("quota", 5, "via", "127.0.0.1"), api.CodeValue, "via", "loopback")
	if v := get[api.Row](l, at).Value.Get("quota").(map[string]any); fmt.Sprint(v["limit"]) != "2000" {
		t.Errorf("a change that was refused has changed %+v", v)
	}
	l.refused("PUT", at, fields("kind", 3), api.CodeValue, "via", "missing")
	l.refused("PUT", "/v1/tables/people/1.2.3", anna, api.CodeValue, "who", "address")
	l.refused("PATCH", "/v1/tables/people/198.51.100.8", fields("kind", 1), api.CodeNotFound, "")
	l.refused("PUT", "/v1/tables/by_client/x", anna, api.CodeMethod, "", "GET")
	l.refused("GET", "/v1/tables/by_client/x", nil, api.CodeValue, "key", "3 values")
	do[any](l, "DELETE", at, nil)
	l.refused("DELETE", at, nil, api.CodeNotFound, "")
	row = do[api.Row](l, "PUT", "/v1/tables/nets/"+api.Escape("198.51.100.5/24"), fields("why", 2))
	if got := row.Key.Get("net"); got != "198.51.100.0/24" {
		t.Errorf("the row of 198.51.100.5/24 is that of %v", got)
	}
	l.refused("PUT", "/v1/tables/nets/"+api.Escape("::ffff:198.51.100.0/24"), fields("why", 2), api.CodeValue, "net",
		"IPv4-mapped")
	do[api.Row](l, "PUT", "/v1/tables/ports/5", fields("open", true))
	l.refused("PUT", "/v1/tables/ports/99", fields("open", true), api.CodeValue, "")
	for path, want := range map[string]int{"nets": 1, "ports": 1, "people": 0} {
		if rows := get[api.Page[api.Row]](l, "/v1/tables/"+path).Items; len(rows) != want {
			t.Errorf("%s has %d rows", path, len(rows))
		}
	}
}

func receiver(n int) api.Object {
	return fields("local", "192.0.2.1:7000", "remote", fmt.Sprintf("203.0.113.%d:6000", n), "number", n,
		"share", []any{1000, 2000}, "rate", fields("per_second", 100, "burst", 50))
}

// Groups whose receivers are connections of the process aren't changed or closed from outside.
func TestOwnGroups(t *testing.T) {
	l := start(t, func(s *control.Server) { s.OwnGroups = true })
	kind := l.relay.GroupKinds()[0]
	g, err := kind.Open(t.Context(), netip.MustParseAddrPort("198.51.100.7:40001"), uint64(9))
	if err != nil {
		t.Fatal(err)
	}
	at := "/v1/groups/viewers/198.51.100.7:40001,9"
	l.refused("DELETE", at, nil, api.CodeRefused, "", "connections of its server")
	l.refused("PATCH", at, api.ChangeGroup{}, api.CodeRefused, "", "connections of its server")
	l.refused("POST", "/v1/groups/viewers", api.OpenGroup{}, api.CodeRefused, "", "connections of its server")
	if found := get[api.Group](l, at); found.Receivers != 0 || g.Len() != 0 {
		t.Errorf("%+v", found)
	}
	l = start(t)
	key := fields("publisher", "198.51.100.7:40001", "stream", 9)
	do[api.Group](l, "POST", "/v1/groups/viewers", api.OpenGroup{Key: key, Receivers: []api.Object{receiver(1)}})
	l.server.OwnGroups = true
	if got := do[api.Drained](l, "POST", "/v1/drain", api.Drain{Close: true}); got.Closed != 0 || got.Receivers != 1 {
		t.Errorf("%+v", got)
	}
}

// A group is opened with its receivers, and changed in one step.
func TestGroups(t *testing.T) {
	l := start(t)
	key := fields("publisher", "198.51.100.7:40001", "stream", 9)
	g := do[api.Group](l, "POST", "/v1/groups/viewers",
		api.OpenGroup{Key: key, Receivers: []api.Object{receiver(1), receiver(2)}})
	if g.ID != "198.51.100.7:40001,9" || g.Receivers != 2 {
		t.Errorf("opened %+v", g)
	}
	if p := l.refused("POST", "/v1/groups/viewers", api.OpenGroup{Key: key}, api.CodeExists, "",
		"open already"); p.Other != g.ID {
		t.Errorf("in the way is %q", p.Other)
	}
	at := "/v1/groups/viewers/" + api.Escape(g.ID)
	list := get[api.Page[api.Receiver]](l, at+"/receivers?limit=1")
	rest := get[api.Page[api.Receiver]](l, at+"/receivers?after="+list.Next)
	if len(list.Items) != 1 || len(rest.Items) != 1 || rest.Next != "" {
		t.Fatalf("receivers: %+v, %+v", list, rest)
	}
	one, two := list.Items[0], rest.Items[0]
	if v := one.Values.Get("share").([]any)[1].(map[string]any); fmt.Sprint(v["limit"]) != "2000" {
		t.Errorf("its share: %+v", v)
	}
	change := api.ChangeGroup{
		Add:    []api.Object{receiver(3)},
		Set:    []api.ChangeReceiver{{ID: one.ID, Values: fields("number", 77, "share", []any{7, 8})}},
		Remove: []uint32{two.ID},
	}
	changed := do[api.GroupChanged](l, "PATCH", at, change)
	if len(changed.Added) != 1 || changed.Receivers != 2 {
		t.Errorf("changed %+v", changed)
	}
	now := get[api.Receiver](l, fmt.Sprintf("%s/receivers/%d", at, one.ID))
	if v := now.Values.Get("share").([]any)[0].(map[string]any); words(now.Values.Get("number"), v["limit"]) != "77 7" {
		t.Errorf("the receiver is %+v", now)
	}
	// All or nothing.
	bad := receiver(4)
	bad[1].Value = "[2001:db8::1]:6000"
	l.refused("PATCH", at, api.ChangeGroup{Add: []api.Object{receiver(4), bad}, Remove: []uint32{one.ID}},
		api.CodeValue, "remote",
		"one IP family")
	l.refused("PATCH", at, api.ChangeGroup{Remove: []uint32{one.ID, 999}}, api.CodeNotFound, "remove", "999")
	other := fields("publisher", "198.51.100.7:40001", "stream", 10)
	l.refused("POST", "/v1/groups/viewers", api.OpenGroup{Key: other, Receivers: []api.Object{receiver(5), bad}},
		api.CodeValue, "remote")
	if groups := get[api.Page[api.Group]](l, "/v1/groups/viewers"); len(groups.Items) != 1 ||
		groups.Items[0].Receivers != 2 {
		t.Errorf("groups: %+v", groups)
	}
	// Who opens it learns the receivers' IDs, in the order in which it gave them, even if they were in use before.
	again := do[api.Group](l, "POST", "/v1/groups/viewers",
		api.OpenGroup{Key: other, Receivers: []api.Object{receiver(6), receiver(7)}})
	for i, id := range again.Added {
		v := get[api.Receiver](l, fmt.Sprintf("/v1/groups/viewers/%s/receivers/%d", api.Escape(again.ID), id))
		if got := words(v.Values.Get("number")); got != words(receiver(6+i).Get("number")) {
			t.Errorf("receiver %d is that with the number %s", i, got)
		}
	}
	if len(again.Added) != 2 {
		t.Errorf("opened %+v", again)
	}
	first := get[api.Page[api.Group]](l, "/v1/groups/viewers?limit=1")
	if next := get[api.Page[api.Group]](l, "/v1/groups/viewers?after="+api.Escape(first.Next)); len(first.Items) != 1 ||
		len(next.Items) != 1 || next.Items[0].ID == first.Items[0].ID {
		t.Errorf("in pages: %+v, %+v", first, next)
	}
	do[any](l, "DELETE", at, nil)
	l.refused("GET", at, nil, api.CodeNotFound, "")
	l.refused("GET", "/v1/groups/viewers/x", nil, api.CodeValue, "key", "publisher,stream")
}

// words formats values with spaces between them.
func words(values ...any) string { return strings.TrimSpace(fmt.Sprintln(values...)) }
