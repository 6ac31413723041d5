package server

import (
	"bytes"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
)

// The API answers each mistake with a status and a reason, and changes nothing by it.
func TestAPI(t *testing.T) {
	s, err := Start(Config{
		Addresses: []netip.Addr{netip.MustParseAddr("127.0.0.1")}, NoOffload: true,
		Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	api := httptest.NewServer(s.Handler())
	defer api.Close()
	call := func(method, path, body string) (int, string) {
		t.Helper()
		r, err := http.NewRequest(method, api.URL+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		answer, err := api.Client().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		data, err := io.ReadAll(answer.Body)
		if err != nil {
			t.Fatal(err)
		}
		return answer.StatusCode, string(bytes.TrimSpace(data))
	}
	for _, c := range []struct {
		method, path, body string
		status             int
		say                string
	}{
		{"POST", "/publishers", `{"name": "cam", "ssrc": 7}`, 201, `"server":"127.0.0.1:`},
		{"POST", "/publishers", `{"name": "cam"}`, 409, "the name is taken"},
		{"POST", "/publishers", `{"name": "a/b"}`, 400, "letters, digits"},
		{"POST", "/publishers", `{"name": "x", "ipv6": true}`, 400, "no address of that family"},
		{"POST", "/publishers", `{"name": "x", "adress": "127.0.0.1:1"}`, 400, `unknown field \"adress\"`},
		{"POST", "/publishers", `{`, 400, "invalid"},
		{
			"POST", "/subscribers",
			`{"name": "u", "publisher": "cam", "address": "127.0.0.1:9", "layer": 1, "bandwidth": 500000}`, 201,
			`"bandwidth":500000`,
		},
		{"POST", "/subscribers", `{"name": "u", "address": "127.0.0.1:9"}`, 409, "the name is taken"},
		{"POST", "/subscribers", `{"name": "v"}`, 400, "no address to send to"},
		{"POST", "/subscribers", `{"name": "v", "address": "127.0.0.1:9", "layer": 4}`, 400, "layers are 0 to 3"},
		{"POST", "/subscribers", `{"name": "v", "address": "127.0.0.1:9", "payload_type": 72}`, 400, "payload types"},
		{"PATCH", "/subscribers/u", `{"layer": 0}`, 200, `"name":"u"`},
		{"PATCH", "/subscribers/u", `{"bandwidth": -1}`, 400, "a bandwidth below 0"},
		{"PATCH", "/subscribers/u", `{"address": "127.0.0.1:10"}`, 400, "can't be changed"},
		{"PATCH", "/subscribers/nobody", `{}`, 404, "subscriber nobody"},
		{"DELETE", "/subscribers/u", ``, 204, ""},
		{"DELETE", "/subscribers/u", ``, 404, "subscriber u"},
		{"DELETE", "/publishers/cam", ``, 204, ""},
		{"DELETE", "/publishers/cam", ``, 404, "publisher cam"},
		{"PUT", "/publishers", ``, 405, ""},
	} {
		status, said := call(c.method, c.path, c.body)
		if status != c.status || !strings.Contains(said, c.say) {
			t.Errorf("%s %s %s: %d %s, want %d %s", c.method, c.path, c.body, status, said, c.status, c.say)
		}
	}
	var st Stats
	_, said := call("GET", "/stats", "")
	if err := json.Unmarshal([]byte(said), &st); err != nil || len(st.Publishers) != 0 || len(st.Subscribers) != 0 ||
		st.InKernel || st.Why == "" {
		t.Errorf("counters: %s, %v", said, err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if status, said := call("POST", "/publishers", `{"name": "cam"}`); status != 503 {
		t.Errorf("a server that is closed says %d %s", status, said)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
