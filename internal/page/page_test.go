package page

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/html"

	"github.com/fastrelay/fastrelay-gen/gen"
	"github.com/fastrelay/fastrelay-gen/runtime/control/api"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// view is a control socket that shows one program.
func view(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != "/v1/programs" {
		http.NotFound(w, r)
		return
	}
	_ = json.NewEncoder(w).Encode(api.Programs{Items: []api.Program{{Name: "to_peer", Reasons: []api.Reason{
		{Name: "sent", Packets: 7}, {Name: "pass", Packets: 3},
	}}}})
}

func newPage(t *testing.T) *Page {
	t.Helper()
	const file = "../../examples/turn/spec.cue"
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	s, list := spec.Load(file, text)
	if err := list.Err(); err != nil {
		t.Fatal(err)
	}
	plan, list := gen.Compile(s)
	if err := list.Err(); err != nil {
		t.Fatal(err)
	}
	p, err := New(s, plan, http.HandlerFunc(view))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func ask(p *Page, method, host, path string) *http.Response {
	r := httptest.NewRequest(method, "http://x"+path, nil)
	r.Host = host
	w := httptest.NewRecorder()
	p.Handler().ServeHTTP(w, r)
	return w.Result()
}

// Metrics are there if they are given.
func TestMetrics(t *testing.T) {
	p := newPage(t)
	if got := ask(p, "GET", "localhost", "/metrics"); got.StatusCode != http.StatusNotFound {
		t.Errorf("none are given: %s", got.Status)
	}
	p.Metrics = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "up 1\n") })
	got := ask(p, "GET", "localhost", "/metrics")
	if text, err := io.ReadAll(got.Body); err != nil || string(text) != "up 1\n" {
		t.Errorf("%q, %v", text, err)
	}
}

// A web site whose name leads here gets nothing; neither does who wants to change something.
func TestWhoMayRead(t *testing.T) {
	own, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	p := newPage(t)
	for _, c := range []struct {
		public       bool
		method, host string
		want         int
	}{
		{false, "GET", "127.0.0.1:8080", 200},
		{false, "HEAD", "127.0.0.1:8080", 200},
		{false, "GET", "[::1]:8080", 200},
		{false, "GET", "localhost:8080", 200},
		{false, "GET", "localhost", 200},
		{false, "GET", "evil.example:8080", 421},
		{false, "GET", "127.0.0.1.evil.example", 421},
		{false, "GET", "localhost.evil.example:8080", 421},
		{false, "GET", "192.0.2.1:8080", 421},
		{false, "GET", own + ":8080", 421},
		{false, "GET", "", 421},
		{true, "GET", "192.0.2.1:8080", 200},
		{true, "GET", own + ":8080", 200},
		{true, "GET", "evil.example:8080", 421},
		{false, "POST", "127.0.0.1:8080", 405},
		{false, "DELETE", "127.0.0.1:8080", 405},
		{true, "PUT", "192.0.2.1:8080", 405},
	} {
		p.Public = c.public
		for _, path := range []string{"/", "/v1/programs", "/history.json"} {
			got := ask(p, c.method, c.host, path)
			if own == "localhost" && strings.HasPrefix(c.host, own) {
				continue
			}
			if got.StatusCode != c.want {
				t.Errorf("%v, %s: status %d", c, path, got.StatusCode)
			}
			if got.Header.Get("Content-Security-Policy") != policy ||
				got.Header.Get("Cross-Origin-Resource-Policy") != "same-origin" {
				t.Errorf("%s: %v", path, got.Header)
			}
		}
	}
}

// A parameter that is misspelt is refused, and named; so is a value of another type.
func TestParameters(t *testing.T) {
	p := newPage(t)
	for path, want := range map[string]int{
		"/history.json": 200, "/history.json?after=0": 200, "/history.json?after=7": 200, "/history.json?after=x": 400,
		"/history.json?aftr=7": 400, "/history.json?after=7&after=8": 400, "/?lifetme=30s": 400,
		"/page.js?after=7":  400,
		"/decisions.json?x": 400,
	} {
		if got := ask(p, "GET", "localhost", path); got.StatusCode != want {
			t.Errorf("%s: status %d, want %d", path, got.StatusCode, want)
		}
	}
}

func TestListen(t *testing.T) {
	for _, address := range []string{"0.0.0.0:0", ":0", "[::]:0", "192.0.2.1:0", "example.com:0"} {
		if l, err := (&Page{}).Listen(address); !errors.Is(err, ErrNotLoopback) {
			t.Errorf("%s: %v, %v", address, l, err)
		}
	}
	for _, address := range []string{"127.0.0.1:0", "localhost:0", "127.1.2.3:0"} {
		l, err := (&Page{}).Listen(address)
		if err != nil {
			t.Errorf("%s: %v", address, err)
			continue
		}
		l.Close()
	}
	l, err := (&Page{Public: true}).Listen("0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	if _, err := (&Page{}).Listen("127.0.0.1"); err == nil {
		t.Error("an address without a port")
	}
}

// The page needs nothing from elsewhere, and its policy lets it have nothing: no scripts or styles in the text.
func TestMarkup(t *testing.T) {
	p := newPage(t)
	for z := html.NewTokenizer(strings.NewReader(string(p.main))); ; {
		kind := z.Next()
		if kind == html.ErrorToken {
			break
		}
		token := z.Token()
		for _, a := range token.Attr {
			remote := strings.Contains(a.Val, "//") && a.Key != "xmlns"
			if remote || a.Key == "style" || strings.HasPrefix(a.Key, "on") {
				t.Errorf("<%s %s=%q>", token.Data, a.Key, a.Val)
			}
		}
	}
	for _, want := range []string{"program to_peer", ">channel_data</text>", `data-reason="no_by_channel"`} {
		if !strings.Contains(string(p.main), want) {
			t.Errorf("the page doesn't have %s", want)
		}
	}
	var plan map[string][]struct{ Exits []int }
	if err := json.Unmarshal(p.plan, &plan); err != nil || len(plan["to_peer"]) < 6 {
		t.Errorf("%v: %s", err, p.plan)
	}
}

// The last ten minutes are kept, and a client gets what it doesn't have yet.
func TestHistory(t *testing.T) {
	p := newPage(t)
	var programs api.Programs
	if api.Local(p.view).Get(context.Background(), "/v1/programs", &programs) != nil || len(programs.Items) != 1 {
		t.Fatal(programs)
	}
	begin := time.UnixMilli(1_000_000)
	for i := range kept + 100 {
		programs.Items[0].Reasons[0].Packets = uint64(i)
		p.history.add(begin.Add(time.Duration(i)*time.Second), programs)
	}
	get := func(query string) (out struct{ Samples []sample }) {
		if err := json.NewDecoder(ask(p, "GET", "127.0.0.1", "/history.json"+query).Body).Decode(&out); err != nil {
			t.Fatal(err)
		}
		return out
	}
	all := get("").Samples
	if len(all) != kept || fmt.Sprint(all[0].Packets) != "[[100 3]]" {
		t.Fatalf("%d samples, from %v", len(all), all[0])
	}
	if late := get(fmt.Sprintf("?after=%d", all[kept-3].Time)).Samples; len(late) != 2 {
		t.Errorf("%d samples, want 2", len(late))
	}
	if api.Local(p.view).Get(context.Background(), "/v1/other", &programs) == nil {
		t.Error("an error isn't an answer")
	}
}
