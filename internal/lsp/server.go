package lsp

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
)

// Server serves one editor.
type Server struct {
	// Check returns the diagnostics of a text, as the JSON of `vet --format json`. It ends when ctx does.
	Check func(ctx context.Context, text string) ([]byte, error)
	// Explain is where a code is explained: an address, or "".
	Explain func(code string) string
	Version string
	// Wait is how long a document has to rest before it is checked.
	Wait time.Duration

	conn        *conn
	slots       chan struct{} // taken while a check runs
	docs        map[string]*document
	utf8        bool
	initialised bool
	down        bool // shut down
	checks      sync.WaitGroup
}

// ErrNoShutdown is returned if the client ended without the request to shut down.
var ErrNoShutdown = errors.New("the editor ended without a shutdown request")

// Serve reads requests until the client says exit, or the stream ends.
func (s *Server) Serve(ctx context.Context, in io.Reader, out io.Writer) error {
	s.conn = &conn{in: bufio.NewReader(in), out: out}
	s.docs, s.slots = map[string]*document{}, make(chan struct{}, most)
	ctx, cancel := context.WithCancel(ctx)
	defer s.checks.Wait()
	defer cancel()
	for {
		m, err := s.conn.read()
		var bad *rpcError
		switch {
		case errors.As(err, &bad):
			if err := s.conn.reply(nil, nil, bad); err != nil {
				return err
			}
			continue
		case errors.Is(err, io.EOF):
			return s.ended()
		case err != nil:
			return err
		}
		if m.Method == "exit" {
			return s.ended()
		}
		if err := s.handle(ctx, m); err != nil {
			return err
		}
	}
}

func (s *Server) ended() error {
	if s.down {
		return nil
	}
	return ErrNoShutdown
}

// handle answers a request, or takes note of a notification. The error is of the stream.
func (s *Server) handle(ctx context.Context, m *message) error {
	if m.Method == "" {
		return nil // a response, and nothing was asked
	}
	result, failed := s.call(ctx, m.Method, m.Params)
	if m.ID == nil {
		return nil // a notification gets no answer
	}
	return s.conn.reply(m.ID, result, failed)
}

func (s *Server) call(ctx context.Context, method string, params json.RawMessage) (any, *rpcError) {
	switch {
	case method == "initialize":
		return s.initialise(params)
	case !s.initialised:
		return nil, &rpcError{notInitialised, "the first request has to be initialize"}
	case s.down:
		return nil, &rpcError{invalidRequest, "the server was shut down"}
	}
	switch method {
	case "initialized", "$/cancelRequest", "$/setTrace", "textDocument/didSave", "workspace/didChangeConfiguration",
		"workspace/didChangeWatchedFiles":
		return nil, nil
	case "shutdown":
		s.down = true
		for _, d := range s.docs {
			d.cancel()
		}
		return nil, nil
	case "textDocument/didOpen":
		var p struct {
			Document item `json:"textDocument"`
		}
		if err := json.Unmarshal(params, &p); err != nil {
			return nil, &rpcError{invalidParams, err.Error()}
		}
		d := &document{uri: p.Document.URI, version: p.Document.Version, cancel: func() {}}
		d.set(p.Document.Text)
		if old := s.docs[d.uri]; old != nil {
			old.cancel()
		}
		s.docs[d.uri] = d
		s.check(ctx, d, 0)
		return nil, nil
	case "textDocument/didChange":
		return nil, s.changed(ctx, params)
	case "textDocument/didClose":
		var p struct {
			Document identifier `json:"textDocument"`
		}
		if err := json.Unmarshal(params, &p); err != nil {
			return nil, &rpcError{invalidParams, err.Error()}
		}
		if d := s.docs[p.Document.URI]; d != nil {
			d.cancel()
			delete(s.docs, d.uri)
			s.publish(&published{URI: d.uri, Version: d.version, Diagnostics: []diagnostic{}})
		}
		return nil, nil
	case "textDocument/hover", "textDocument/definition", "textDocument/completion":
		var p at
		if err := json.Unmarshal(params, &p); err != nil {
			return nil, &rpcError{invalidParams, err.Error()}
		}
		d := s.docs[p.Document.URI]
		if d == nil {
			return nil, &rpcError{invalidParams, "the document isn't open: " + p.Document.URI}
		}
		return s.look(d, method, d.offset(p.Position, s.utf8)), nil
	}
	if strings.HasPrefix(method, "$/") {
		return nil, nil
	}
	return nil, &rpcError{unknownMethod, "unknown method " + method}
}

func (s *Server) initialise(params json.RawMessage) (any, *rpcError) {
	var p struct {
		Capabilities struct {
			General struct {
				Encodings []string `json:"positionEncodings"`
			} `json:"general"`
		} `json:"capabilities"`
	}
	if err := json.Unmarshal(params, &p); err != nil {
		return nil, &rpcError{invalidParams, err.Error()}
	}
	if s.initialised {
		return nil, &rpcError{invalidRequest, "the server is initialised already"}
	}
	s.initialised = true
	s.utf8 = slices.Contains(p.Capabilities.General.Encodings, "utf-8")
	encoding := "utf-16"
	if s.utf8 {
		encoding = "utf-8"
	}
	type object = map[string]any
	return object{
		"capabilities": object{
			"positionEncoding":   encoding,
			"textDocumentSync":   object{"openClose": true, "change": 2}, // incremental
			"hoverProvider":      true,
			"definitionProvider": true,
			"completionProvider": object{"triggerCharacters": []string{".", "\""}},
		},
		"serverInfo": object{"name": "fastrelay-gen", "version": s.Version},
	}, nil
}

func (s *Server) changed(ctx context.Context, params json.RawMessage) *rpcError {
	var p struct {
		Document identifier `json:"textDocument"`
		Changes  []change   `json:"contentChanges"`
	}
	if err := json.Unmarshal(params, &p); err != nil {
		return &rpcError{invalidParams, err.Error()}
	}
	d := s.docs[p.Document.URI]
	if d == nil {
		return &rpcError{invalidParams, "the document isn't open: " + p.Document.URI}
	}
	if p.Document.Version != nil {
		d.version = *p.Document.Version
	}
	for _, c := range p.Changes {
		if c.Range == nil {
			d.set(c.Text)
			continue
		}
		from, to := d.offset(c.Range.Start, s.utf8), d.offset(c.Range.End, s.utf8)
		d.set(d.text[:from] + c.Text + d.text[max(from, to):])
	}
	s.check(ctx, d, s.Wait)
	return nil
}

// specText is what a CUE file has that is a spec.
var specText = regexp.MustCompile(`(?m)^(programs|headers|sessions|tables)\b|"` + regexp.QuoteMeta(importPath))

const importPath = "github.com/fastrelay/fastrelay-gen/spec"

// isSpec reports whether a document is a spec: editors send all files of CUE.
func isSpec(d *document) bool {
	u, err := url.Parse(d.uri)
	if err == nil && strings.Contains(u.Path, "/cue.mod/") {
		return false
	}
	return err == nil && path.Base(u.Path) == "spec.cue" || specText.MatchString(d.text)
}

// most is how many checks run at once: an editor may open a whole folder.
const most = 4

// check checks a document once it has rested for a while, and publishes what is found, unless it has changed meanwhile.
func (s *Server) check(ctx context.Context, d *document, wait time.Duration) {
	d.cancel()
	snapshot := *d
	if !isSpec(d) {
		d.cancel = func() {}
		s.publish(&published{URI: d.uri, Version: d.version, Diagnostics: []diagnostic{}})
		return
	}
	ctx, d.cancel = context.WithCancel(ctx)
	s.checks.Go(func() {
		rest := time.NewTimer(wait)
		defer rest.Stop()
		select {
		case <-ctx.Done():
			return
		case <-rest.C:
		}
		select {
		case <-ctx.Done():
			return
		case s.slots <- struct{}{}:
		}
		defer func() { <-s.slots }()
		report, err := s.Check(ctx, snapshot.text)
		if ctx.Err() != nil {
			return
		}
		found, err2 := s.diagnostics(&snapshot, report)
		if err = errors.Join(err, err2); err2 != nil {
			found = []diagnostic{{Severity: 1, Source: source, Message: "the spec can't be checked: " + err.Error()}}
		}
		s.publish(&published{URI: d.uri, Version: snapshot.version, Diagnostics: found})
	})
}

func (s *Server) publish(p *published) {
	_ = s.conn.notify("textDocument/publishDiagnostics", p) // if the editor is gone, the next read says so
}

const source = "fastrelay-gen"

// place is a place of a report: lines and columns count from 1, in bytes.
type place struct {
	File   string `json:"file"`
	Line   int    `json:"line"`
	Column int    `json:"column"`
	Length int    `json:"length"`
}

func (s *Server) diagnostics(d *document, report []byte) ([]diagnostic, error) {
	var r struct {
		Diagnostics []struct {
			place
			Severity string `json:"severity"`
			Code     string `json:"code"`
			Message  string `json:"message"`
			Label    string `json:"label"`
			Hint     string `json:"hint"`
			Related  []struct {
				place
				Text string `json:"text"`
			} `json:"related"`
		} `json:"diagnostics"`
	}
	if err := json.Unmarshal(report, &r); err != nil {
		return nil, err
	}
	out := []diagnostic{}
	for _, m := range r.Diagnostics {
		one := diagnostic{Range: s.span(d, m.place), Severity: 1, Code: m.Code, Source: source, Message: m.Message}
		if m.Severity == "warning" {
			one.Severity = 2
		}
		if s.Explain != nil && m.Code != "" {
			if at := s.Explain(m.Code); at != "" {
				one.Description = &href{at}
			}
		}
		for _, more := range []string{m.Label, m.Hint} {
			if more != "" {
				one.Message += "\n" + more
			}
		}
		for _, rel := range m.Related {
			if rel.File == "-" {
				one.Related = append(one.Related, related{location{d.uri, s.span(d, rel.place)}, rel.Text})
			} else {
				one.Message += "\n" + rel.Text + ": " + rel.File
			}
		}
		out = append(out, one)
	}
	return out, nil
}

// span is the range of a place. What has no place is the first line's business.
func (s *Server) span(d *document, p place) span {
	if p.Line < 1 {
		p = place{Line: 1, Column: 1}
	}
	from := p.Column - 1
	return span{d.position(p.Line-1, from, s.utf8), d.position(p.Line-1, from+max(p.Length, 1), s.utf8)}
}
