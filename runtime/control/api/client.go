package api

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
)

// Client asks a control socket. It may be used by several goroutines.
type Client struct {
	Path string // of the socket
	http *http.Client
}

// NewClient returns a client of a socket. It connects when it is used.
func NewClient(path string) *Client {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}
	return &Client{Path: path, http: &http.Client{Transport: &http.Transport{DialContext: dial}}}
}

// Local returns a client of a handler in the same process, without any connection. A request returns when the handler
// has returned; so it isn't for Events. Path is "this process".
func Local(h http.Handler) *Client {
	return &Client{Path: "this process", http: &http.Client{Transport: local{h}}}
}

// local has a handler serve requests.
type local struct{ http.Handler }

func (l local) RoundTrip(r *http.Request) (*http.Response, error) {
	w := &answer{header: http.Header{}, status: http.StatusOK}
	l.ServeHTTP(w, r.Clone(r.Context())) // a mux changes it
	return &http.Response{
		Status: http.StatusText(w.status), StatusCode: w.status, Header: w.header, Body: io.NopCloser(&w.body),
		Request: r,
	}, nil
}

// answer keeps what a handler answers.
type answer struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (a *answer) Header() http.Header            { return a.header }
func (a *answer) WriteHeader(status int)         { a.status = status }
func (a *answer) Write(text []byte) (int, error) { return a.body.Write(text) }

// Wrap has all requests pass through another transport, which is given the client's own.
func (c *Client) Wrap(wrap func(http.RoundTripper) http.RoundTripper) {
	c.http.Transport = wrap(c.http.Transport)
}

// Close closes connections that aren't in use.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Do sends a request, and reads the answer into out. body and out may be nil. What the relay refuses is a [*Problem].
func (c *Client) Do(ctx context.Context, method, path string, body, out any) error {
	res, err := c.send(ctx, method, path, body)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		return fmt.Errorf("%s: read the answer: %w", c.Path, err)
	}
	if res.StatusCode/100 != 2 {
		return c.problem(res, text)
	}
	if out == nil || len(text) == 0 {
		return nil
	}
	if err := json.Unmarshal(text, out); err != nil {
		return fmt.Errorf("%s: the answer is none of a relay: %w", c.Path, err)
	}
	return nil
}

func (c *Client) send(ctx context.Context, method, path string, body any) (*http.Response, error) {
	var content io.Reader
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		content = bytes.NewReader(text)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://relay"+path, content)
	if err != nil {
		return nil, err
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	res, err := c.http.Do(req)
	if err != nil {
		if u, ok := err.(*url.Error); ok { // which names a host that isn't there
			err = u.Err
		}
		return nil, fmt.Errorf("%s: %w", c.Path, err)
	}
	return res, nil
}

func (c *Client) problem(res *http.Response, text []byte) error {
	p := &Problem{}
	if json.Unmarshal(text, p) != nil || p.Detail == "" {
		return fmt.Errorf("%s: %s: %.200s", c.Path, res.Status, text)
	}
	return p
}

// Get is Do for GET.
func (c *Client) Get(ctx context.Context, path string, out any) error {
	return c.Do(ctx, http.MethodGet, path, nil, out)
}

// All reads all pages of a list.
func All[T any](ctx context.Context, c *Client, path string) ([]T, error) {
	var all []T
	for after := ""; ; {
		var page Page[T]
		query := url.Values{"limit": {fmt.Sprint(MaxPage)}}
		if after != "" {
			query.Set("after", after)
		}
		sep := "?"
		if strings.Contains(path, "?") {
			sep = "&"
		}
		if err := c.Get(ctx, path+sep+query.Encode(), &page); err != nil {
			return nil, err
		}
		all = append(all, page.Items...)
		if after = page.Next; after == "" {
			return all, nil
		}
	}
}

// Events calls f with the events of these names as they come, or with how many were missed; without names, with all. It
// returns when ctx or the relay ends, or with f's error.
func (c *Client) Events(ctx context.Context, names []string, f func(name string, data json.RawMessage) error) error {
	path := "/v1/events"
	if len(names) > 0 {
		path += "?" + url.Values{"event": names}.Encode()
	}
	res, err := c.send(ctx, http.MethodGet, path, nil)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		text, err := io.ReadAll(res.Body)
		if err != nil {
			return err
		}
		return c.problem(res, text)
	}
	lines := bufio.NewScanner(res.Body)
	lines.Buffer(nil, 1<<20)
	name := ""
	for lines.Scan() {
		key, value, _ := strings.Cut(lines.Text(), ": ")
		switch key {
		case "event":
			name = value
		case "data":
			if err := f(name, json.RawMessage(value)); err != nil {
				return err
			}
		}
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return lines.Err()
}

// Escape makes a text a part of a path.
func Escape(text string) string { return url.PathEscape(text) }
