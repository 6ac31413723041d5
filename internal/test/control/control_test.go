package control_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/legacy"

	"github.com/fastrelay/fastrelay-gen/gen/glue"
	"github.com/fastrelay/fastrelay-gen/internal/build"
	"github.com/fastrelay/fastrelay-gen/runtime"
	"github.com/fastrelay/fastrelay-gen/runtime/abi"
	"github.com/fastrelay/fastrelay-gen/runtime/control"
	"github.com/fastrelay/fastrelay-gen/runtime/control/api"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

var compiled = sync.OnceValues(func() (*build.Result, error) {
	r, list, err := build.Spec(context.Background(), "testdata/spec.cue", build.Options{})
	if err == nil && list.Len() > 0 {
		err = errors.New("the spec has mistakes")
	}
	return r, err
})

// lab is a relay with a control socket.
type lab struct {
	testing.TB
	host   *testnet.Host
	relay  *runtime.Relay
	server *control.Server
	path   string
	*api.Client
}

func spec(t testing.TB) (*abi.Desc, []byte) {
	t.Helper()
	needs.Root(t)
	built, err := compiled()
	if err != nil {
		t.Fatal(err)
	}
	desc := glue.Desc(built.Plan)
	return &desc, built.Object()
}

// load loads the relay of the tests.
func load(t testing.TB, server *control.Server, opt runtime.Options) (*runtime.Relay, error) {
	t.Helper()
	desc, object := spec(t)
	opt.Control = server
	opt.Logger = slog.New(slog.NewTextHandler(io.Discard, nil))
	return runtime.Load(desc, object, opt)
}

// lease is longer than a machine stalls: what isn't forwarded meanwhile makes no events.
const lease = time.Minute

// start loads the relay on a host of its own. Every address is behind its router, but for 203.0.113.99, which can't be
// reached.
func start(t testing.TB, set ...func(*control.Server)) *lab {
	t.Helper()
	needs.Root(t)
	l := &lab{TB: t, path: filepath.Join(t.TempDir(), "lab.sock"), host: testnet.Stub(t).Host}
	l.server = control.Socket(l.path)
	for _, f := range set {
		f(l.server)
	}
	err := l.host.Run("ip", "route", "add", "unreachable", "203.0.113.99")
	if err == nil {
		err = l.host.Do(func() (err error) {
			l.relay, err = load(t, l.server, runtime.Options{Lease: lease})
			return err
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.relay.Close(); err != nil {
			t.Error(err)
		}
		if _, err := os.Lstat(l.path); err == nil {
			t.Error("the socket is still there")
		}
	})
	l.Client = checkedClient(t, l.path, l.relay.Desc())
	return l
}

// open opens a session as call has it, without the control socket.
func (l *lab) open(number int) *runtime.AnySession {
	l.Helper()
	c := call(number)
	s, err := l.relay.Open("call", addrPort(c[0]), addrPort(c[1]), number, addrPort(c[3]), addrPort(c[4]))
	if err != nil {
		l.Fatal(err)
	}
	return s
}

// checkedClient returns a client that compares all answers, and all requests that succeed, with the relay's OpenAPI
// document.
func checkedClient(t testing.TB, path string, desc *abi.Desc) *api.Client {
	t.Helper()
	text, err := api.OpenAPI(desc)
	if err != nil {
		t.Fatal(err)
	}
	doc, err := openapi3.NewLoader().LoadFromData(text)
	if err != nil {
		t.Fatal(err)
	}
	router, err := legacy.NewRouter(doc)
	if err != nil {
		t.Fatal(err)
	}
	c := api.NewClient(path)
	t.Cleanup(c.Close)
	c.Wrap(func(next http.RoundTripper) http.RoundTripper { return &checker{t, router, next} })
	return c
}

type checker struct {
	testing.TB
	router routers.Router
	next   http.RoundTripper
}

func (c *checker) RoundTrip(r *http.Request) (*http.Response, error) {
	var body []byte
	if r.Body != nil {
		var err error
		if body, err = io.ReadAll(r.Body); err != nil {
			return nil, err
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
	}
	res, err := c.next.RoundTrip(r)
	if err != nil || res.Header.Get("Content-Type") == "text/event-stream" {
		return res, err
	}
	text, err := io.ReadAll(res.Body)
	res.Body.Close()
	res.Body = io.NopCloser(bytes.NewReader(text))
	if err != nil {
		return res, err
	}
	route, params, err := c.router.FindRoute(r)
	if err != nil {
		if res.StatusCode/100 == 2 {
			c.Errorf("%s %s isn't in the document: %v", r.Method, r.URL, err)
		}
		return res, nil
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	in := &openapi3filter.RequestValidationInput{Request: r, PathParams: params, Route: route}
	if res.StatusCode/100 == 2 {
		if err := openapi3filter.ValidateRequest(r.Context(), in); err != nil {
			c.Errorf("%s %s\n%s\nsucceeds, and isn't as the document says: %v", r.Method, r.URL, body, err)
		}
	}
	err = openapi3filter.ValidateResponse(r.Context(), &openapi3filter.ResponseValidationInput{
		RequestValidationInput: in,
		Status:                 res.StatusCode, Header: res.Header, Body: io.NopCloser(bytes.NewReader(text)),
		Options: &openapi3filter.Options{IncludeResponseStatus: true},
	})
	if err != nil {
		c.Errorf("%s %s: %d %s\nisn't as the document says: %v", r.Method, r.URL, res.StatusCode, text, err)
	}
	return res, nil
}

// get reads a path.
func get[T any](l *lab, path string) (out T) {
	l.Helper()
	if err := l.Get(l.Context(), path, &out); err != nil {
		l.Fatalf("GET %s: %v", path, err)
	}
	return out
}

// do sends a request that has to succeed.
func do[T any](l *lab, method, path string, body any) (out T) {
	l.Helper()
	if err := l.Do(l.Context(), method, path, body, &out); err != nil {
		l.Fatalf("%s %s: %v", method, path, err)
	}
	return out
}

// refused sends a request that has to fail with a problem: its code, its field, and words of its detail or fix.
func (l *lab) refused(method, path string, body any, code, field string, words ...string) *api.Problem {
	l.Helper()
	err := l.Do(l.Context(), method, path, body, nil)
	var p *api.Problem
	if !errors.As(err, &p) {
		l.Fatalf("%s %s: %v, want a problem", method, path, err)
	}
	if p.Code != code || p.Field != field {
		l.Errorf("%s %s: code %q, field %q, want %q, %q: %v", method, path, p.Code, p.Field, code, field, p)
	}
	for _, w := range words {
		if !strings.Contains(p.Detail+"; "+p.Fix, w) {
			l.Errorf("%s %s: %q doesn't say %q", method, path, p.Error(), w)
		}
	}
	return p
}

func call(number int) api.Object {
	o := fields("client", "198.51.100.7:40001", "server", "192.0.2.1:7000", "number", number,
		"local", "192.0.2.1:50000", "peer", "203.0.113.9:7000")
	return o
}

// fields makes an object of names and values.
func fields(pairs ...any) (o api.Object) {
	for i := 0; i < len(pairs); i += 2 {
		o = append(o, api.Named{Name: pairs[i].(string), Value: pairs[i+1]})
	}
	return o
}

func addrPort(m api.Named) netip.AddrPort { return netip.MustParseAddrPort(m.Value.(string)) }
