package control_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/routers/legacy"

	"github.com/fastrelay/fastrelay-gen/runtime/control"
	"github.com/fastrelay/fastrelay-gen/runtime/control/api"
)

// chat is a relay in user space, with sessions that don't end by themselves.
type chat struct {
	sessions []api.Session
	draining atomic.Bool
	packets  atomic.Uint64
	closed   atomic.Bool
}

func (c *chat) Relay() api.Relay {
	open, rooms := len(c.sessions), 2
	if c.closed.Load() {
		open = 0
	}
	return api.Relay{
		Name: "chat", Draining: c.draining.Load(), Settings: fields("motd", "hello"),
		Sessions: []api.Kind{{Name: "user", Values: []api.Member{{Name: "remote", Kind: "endpoint"}}, Open: &open,
			Limit: 10}},
		Tables: []api.Kind{{Name: "rooms", Key: []api.Member{{Name: "name", Kind: api.KindText}},
			Values: []api.Member{{Name: "users", Kind: "uint", Bits: 64}}, Open: &rooms}},
	}
}

func (c *chat) Programs() []api.Program {
	return []api.Program{{Name: "messages", Hook: "user space",
		Attachments: []api.Attachment{{Interface: "192.0.2.1:7000", How: "tcp", Attached: true}},
		Reasons: []api.Reason{
			{Name: "said", Kind: "sent", Packets: c.packets.Load(), Bytes: 100 * c.packets.Load()},
			{Name: "rude", Kind: "drop", Packets: 1},
		},
	}}
}

func (c *chat) Counters() api.Object { return fields("logins", uint64(7)) }

func (c *chat) Sessions(string) []api.Session { return c.sessions }

func (c *chat) Rows(string) (all []api.Row) {
	for _, name := range []string{"b,c", "a"} {
		all = append(all, api.Row{
			ID: name, Key: fields("name", name), Value: fields("users", 3), Hops: []api.NextHop{},
		})
	}
	return all
}

func (c *chat) Drain(ctx context.Context) error {
	c.draining.Store(true)
	<-ctx.Done()
	return ctx.Err()
}

func (c *chat) EndDrain() { c.draining.Store(false) }

func (c *chat) CloseSessions() int {
	c.closed.Store(true)
	return len(c.sessions)
}

func (c *chat) WriteMetrics(w io.Writer) error {
	_, err := io.WriteString(w, "chat_rooms 2\n")
	return err
}

// showChat serves a relay in user space; its client compares all answers with the document that the relay serves.
func showChat(t *testing.T, users int, change func(*control.Server)) (*lab, *chat) {
	t.Helper()
	c := &chat{}
	for i := range users {
		c.sessions = append(c.sessions, api.Session{ID: fmt.Sprint(i), Kind: "user", Rows: []api.RowUse{},
			Fields: fields("remote", fmt.Sprintf("198.51.100.7:%d", 1+i)), Hops: []api.NextHop{}})
	}
	l := &lab{TB: t, path: filepath.Join(t.TempDir(), "chat.sock")}
	l.server = control.Socket(l.path)
	if change != nil {
		change(l.server)
	}
	if err := l.server.Show(c); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.server.Close(); err != nil {
			t.Error(err)
		}
	})
	l.Client = api.NewClient(l.path)
	t.Cleanup(l.Client.Close)
	doc, err := openapi3.NewLoader().LoadFromData(document(l))
	if err != nil {
		t.Fatal(err)
	}
	if err := doc.Validate(t.Context()); err != nil {
		t.Fatal(err)
	}
	router, err := legacy.NewRouter(doc)
	if err != nil {
		t.Fatal(err)
	}
	l.Client.Wrap(func(next http.RoundTripper) http.RoundTripper { return &checker{t, router, next} })
	return l, c
}

func document(l *lab) []byte {
	o := get[api.Object](l, "/v1/openapi.json")
	text, err := o.MarshalJSON()
	if err != nil {
		l.Fatal(err)
	}
	return text
}

// A relay in user space shows what it has, as the document says that it serves.
func TestUserSpace(t *testing.T) {
	l, _ := showChat(t, 12, nil)
	r := get[api.Relay](l, "/v1")
	if r.Name != "chat" || r.PID == 0 || r.Lease != nil || r.Kernel != "" || r.CanStop || *r.Sessions[0].Open != 12 ||
		!slices.Equal(r.Programs, []string{"messages"}) || r.Settings.Get("motd") != "hello" {
		t.Errorf("%+v", r)
	}
	p := get[api.Programs](l, "/v1/programs")
	if len(p.Items) != 1 || p.Items[0].Reasons[1].Name != "rude" ||
		p.Items[0].Attachments[0].Interface != "192.0.2.1:7000" {
		t.Errorf("%+v", p)
	}
	if one := get[api.Program](l, "/v1/programs/messages"); one.Reasons[1].Packets != 1 {
		t.Errorf("%+v", one)
	}
	if c := get[api.Counters](l, "/v1/counters"); fmt.Sprint(c.Counters.Get("logins")) != "7" {
		t.Errorf("%+v", c)
	}
	if h := get[api.Page[api.NextHop]](l, "/v1/next-hops?missing=true"); len(h.Items) != 0 {
		t.Errorf("%+v", h)
	}
	var ids []string
	for at := "/v1/sessions/user?limit=5"; at != ""; {
		page := get[api.Page[api.Session]](l, at)
		for _, s := range page.Items {
			ids = append(ids, s.ID)
		}
		if at = ""; page.Next != "" {
			at = "/v1/sessions/user?limit=5&after=" + page.Next
		}
	}
	if got := strings.Join(ids, " "); got != "0 1 10 11 2 3 4 5 6 7 8 9" {
		t.Errorf("sessions %s", got)
	}
	if s := get[api.Session](l, "/v1/sessions/user/11"); s.Fields.Get("remote") != "198.51.100.7:12" {
		t.Errorf("%+v", s)
	}
	rows := get[api.Page[api.Row]](l, "/v1/tables/rooms")
	if len(rows.Items) != 2 || rows.Items[0].ID != "a" || rows.Items[1].Key.Get("name") != "b,c" {
		t.Errorf("%+v", rows)
	}
	if row := get[api.Row](l, "/v1/tables/rooms/b,c"); row.ID != "b,c" {
		t.Errorf("%+v", row)
	}
	l.refused("GET", "/v1/sessions/robot", nil, api.CodeNotFound, "", "user")
	l.refused("GET", "/v1/sessions/user/12", nil, api.CodeNotFound, "")
	l.refused("GET", "/v1/tables/halls", nil, api.CodeNotFound, "", "rooms")
	l.refused("GET", "/v1/tables/rooms/d", nil, api.CodeNotFound, "")
	l.refused("GET", "/v1/programs/other", nil, api.CodeNotFound, "", "messages")
	l.refused("GET", "/v1/sessions/user?limit=0", nil, api.CodeBadRequest, "limit")
	l.refused("POST", "/v1/sessions/user", fields(), api.CodeMethod, "", "GET")
	l.refused("DELETE", "/v1/tables/rooms/a", nil, api.CodeMethod, "", "GET")
	l.refused("GET", "/v1/events", nil, api.CodeNotFound, "")
	l.refused("POST", "/v1/stop", nil, api.CodeRefused, "", "stop the server itself")
}

// A drain ends with its limit, and closes what is left if it is asked to; it can be undone.
func TestUserSpaceDrain(t *testing.T) {
	l, _ := showChat(t, 3, nil)
	left := do[api.Drained](l, "POST", "/v1/drain", api.Drain{})
	if left != (api.Drained{Sessions: 3}) || !get[api.Relay](l, "/v1").Draining {
		t.Errorf("%+v", left)
	}
	do[any](l, "DELETE", "/v1/drain", nil)
	if get[api.Relay](l, "/v1").Draining {
		t.Error("it is drained still")
	}
	all := do[api.Drained](l, "POST", "/v1/drain", api.Drain{Close: true})
	if all != (api.Drained{Drained: true, Closed: 3}) {
		t.Errorf("%+v", all)
	}
	l.refused("POST", "/v1/drain", fields("limit_seconds", -1), api.CodeValue, "limit_seconds")
}

// The end of the process is the server's business.
func TestUserSpaceStop(t *testing.T) {
	stopped := make(chan struct{})
	l, _ := showChat(t, 0, func(s *control.Server) { s.Stop = func() { close(stopped) } })
	if !get[api.Relay](l, "/v1").CanStop {
		t.Error("it can't be stopped")
	}
	do[any](l, "POST", "/v1/stop", nil)
	<-stopped
	if err := control.Socket(l.path).Show(&chat{}); !errors.Is(err, control.ErrTaken) {
		t.Errorf("a second one at the same path: %v", err)
	}
}

// Metrics are those that all relays have, by the same names, and the relay's own, also at a port.
func TestUserSpaceMetrics(t *testing.T) {
	l, _ := showChat(t, 2, func(s *control.Server) { s.Metrics = "127.0.0.1:0" })
	answer, err := http.Get("http://" + l.server.MetricsAddr().String() + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		"fastrelay_build_info{", "process_open_fds ",
		`fastrelay_packets_total{relay="chat",program="messages",reason="rude",kind="drop"} 1`,
		`fastrelay_bytes_total{relay="chat",program="messages",reason="said",kind="sent"} 0`,
		`fastrelay_counter_total{relay="chat",name="logins"} 7`,
		`fastrelay_sessions{relay="chat",kind="user"} 2`, `fastrelay_sessions_limit{relay="chat",kind="user"} 10`,
		`fastrelay_attached{relay="chat",program="messages",interface="192.0.2.1:7000",how="tcp"} 1`,
		`fastrelay_draining{relay="chat"} 0`, "chat_rooms 2",
	} {
		if !strings.Contains("\n"+string(text), "\n"+line) {
			t.Errorf("no line begins with %q in\n%s", line, text)
		}
	}
	if strings.Contains(string(text), "lease") {
		t.Error("a relay in user space has a lease")
	}
	if get := control.Socket("none"); get.MetricsAddr() != nil {
		t.Errorf("an address without a port: %v", get.MetricsAddr())
	}
}
