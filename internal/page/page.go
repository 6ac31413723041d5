// Package page serves a page about a relay that runs: the decisions of its programs with live rates, the layouts of its
// headers, its sessions and groups, and a plot of the last ten minutes. The page changes nothing. It reads what the
// control socket shows (package runtime/control), so that it has no numbers of its own; rates between the steps of a
// decision are computed from the counters of reasons, in the browser.
//
// A page on the loopback device can be read by every user of the machine, and, were it not for the checks here, by
// every web site that one of them visits: a site's name may be made to resolve to 127.0.0.1 (DNS rebinding). So a
// request has to name the address, not some host, and answers may be used by this page only.
package page

import (
	"bytes"
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/diagram"
	"github.com/fastrelay/fastrelay-gen/runtime/control/api"
	"github.com/fastrelay/fastrelay-gen/spec"
)

// Page is a page about one relay.
type Page struct {
	// Public pages may be read by other machines, under the address or the name of this one.
	Public bool
	// Metrics are served at /metrics; nil: none are.
	Metrics http.Handler

	view    http.Handler // of the control socket, reading only
	history *history
	main    []byte
	plan    []byte // what the script needs of the decisions
}

//go:embed page.html page.css page.js
var files embed.FS

// program is a program as the page has it.
type program struct {
	Name    string
	Picture template.HTML // of its decision; "": there is none
}

// stage is a step of a decision, for the script.
type stage struct {
	Turn  bool  `json:"turn"`
	Exits []int `json:"exits"`
}

// New makes the page of a relay with a spec. View is what the control socket shows; see control.View.
func New(s *spec.Spec, plan *ir.Plan, view http.Handler) (*Page, error) {
	var programs []program
	var headers []template.HTML
	decisions := map[string][]stage{}
	for i, prog := range s.Programs {
		d := diagram.Decide(s, prog, plan.Programs[i])
		programs = append(programs, program{d.Program, picture("program "+d.Program, d.Picture(true))})
		decisions[d.Program] = []stage{}
		for _, s := range d.Stages {
			one := stage{s.Turn, []int{}}
			for _, e := range s.Exits {
				one.Exits = append(one.Exits, e.Index)
			}
			decisions[d.Program] = append(decisions[d.Program], one)
		}
	}
	for _, h := range s.Headers {
		if !h.Std {
			headers = append(headers, picture("header "+h.Name.Value, diagram.Layout(h)))
		}
	}
	return build(s.Name.Value, programs, headers, decisions, view)
}

// Of makes the page of a relay whose spec isn't known, or that has none: without decisions and headers.
func Of(name string, programs []string, view http.Handler) (*Page, error) {
	var all []program
	for _, p := range programs {
		all = append(all, program{Name: p})
	}
	return build(name, all, nil, map[string][]stage{}, view)
}

func build(name string, programs []program, headers []template.HTML, decisions map[string][]stage, view http.Handler) (
	*Page, error) {
	t, err := template.ParseFS(files, "page.html")
	if err != nil {
		return nil, err
	}
	in := struct {
		Name      string
		Programs  []program
		Headers   []template.HTML
		Decisions bool
	}{name, programs, headers, len(decisions) > 0}
	var b bytes.Buffer
	if err := t.Execute(&b, in); err != nil {
		return nil, err
	}
	text, err := json.Marshal(decisions)
	return &Page{view: view, history: &history{}, main: b.Bytes(), plan: text}, err
}

// picture is a picture for the page. Package diagram has made all text of the spec text of the picture.
func picture(title string, p *diagram.Picture) template.HTML {
	return template.HTML(diagram.SVG(title, p))
}

// ErrNotLoopback says that an address can be reached by other machines.
var ErrNotLoopback = errors.New("other machines can reach this address")

// Listen opens the page's address, HOST:PORT; port 0 is a free one. Unless the page is public, the host has to be this
// machine's loopback.
func (p *Page) Listen(address string) (net.Listener, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	if ip, err := netip.ParseAddr(host); !p.Public && host != "localhost" && (err != nil || !ip.IsLoopback()) {
		return nil, fmt.Errorf("%s: %w", address, ErrNotLoopback)
	}
	return net.Listen("tcp", address)
}

// Serve serves the page until ctx ends.
func (p *Page) Serve(ctx context.Context, l net.Listener) {
	const timeout = 10 * time.Second
	server := &http.Server{Handler: p.Handler(), ReadTimeout: timeout, WriteTimeout: timeout, IdleTimeout: timeout,
		MaxHeaderBytes: 16 << 10}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	recorded := make(chan struct{})
	go func() {
		defer close(recorded)
		p.history.record(ctx, p.view)
	}()
	_ = server.Serve(l) // until it is closed
	<-recorded
}

// policy is what the page may load and do: its own files, and nothing else.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// Handler answers requests.
func (p *Page) Handler() http.Handler {
	mux := http.NewServeMux()
	serve := func(path string, f http.HandlerFunc, query ...string) {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, r *http.Request) {
			if err := api.CheckQuery(r.URL, query...); err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			f(w, r)
		})
	}
	file := func(path, contentType string, text []byte) {
		serve(path, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", contentType)
			_, _ = w.Write(text) // an error means that the client has gone
		})
	}
	embedded := func(name string) []byte {
		text, err := files.ReadFile(name)
		if err != nil {
			panic(err) // it is embedded
		}
		return text
	}
	file("/{$}", "text/html; charset=utf-8", p.main)
	file("/page.css", "text/css; charset=utf-8", embedded("page.css"))
	file("/page.js", "text/javascript; charset=utf-8", embedded("page.js"))
	file("/decisions.json", "application/json", p.plan)
	serve("/history.json", p.history.serve, "after")
	mux.Handle("GET /v1/", p.view)
	mux.Handle("GET /v1", p.view)
	if p.Metrics != nil {
		mux.Handle("GET /metrics", p.Metrics)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cache-Control", "no-store")
		switch {
		case !p.mine(r.Host):
			http.Error(w, "this is the page of a relay, and it has no such name: use its address",
				http.StatusMisdirectedRequest)
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
			h.Set("Allow", "GET, HEAD")
			http.Error(w, "this page changes nothing: use the control socket", http.StatusMethodNotAllowed)
		default:
			mux.ServeHTTP(w, r)
		}
	})
}

// mine reports whether a request that names a host is for this page. A web site whose name was made to resolve to this
// machine's address would name itself.
func (p *Page) mine(host string) bool {
	name := host
	if h, _, err := net.SplitHostPort(host); err == nil {
		name = h
	}
	name = strings.TrimSuffix(strings.TrimPrefix(name, "["), "]")
	if ip, err := netip.ParseAddr(name); err == nil {
		return p.Public || ip.IsLoopback()
	}
	if strings.EqualFold(name, "localhost") {
		return true
	}
	own, err := os.Hostname()
	return p.Public && err == nil && strings.EqualFold(name, own)
}
