package cli

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/http/httputil"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/net/netutil"

	"github.com/fastrelay/fastrelay-gen/internal/diag"
	"github.com/fastrelay/fastrelay-gen/internal/page"
	"github.com/fastrelay/fastrelay-gen/runtime/control/api"
)

// maxBrowsers is how many connections the page of a running relay has at once; others wait.
const maxBrowsers = 64

func (a *app) pageCommand() *cobra.Command {
	var f controlFlags
	address, public := "127.0.0.1:8080", false
	cmd := &cobra.Command{
		Use:   "page",
		Short: "Serve a page about a running relay",
		Long: `Serves the page of ` + "`run --http`" + ` about a relay that another server runs, until the command
is ended: counters by reason with their last ten minutes, sessions, groups, and the tables of a relay in user
space. It reads the relay's control socket, and changes nothing. There are no pictures of decisions and headers,
since the spec isn't known.`,
		Example: `  sudo fastrelay-gen page --socket moq`,
		Args:    exactly(),
	}
	cmd.Flags().StringVar(&address, "http", address, "where the page is served")
	cmd.Flags().BoolVar(&public, "http-public", false, "the page's address may be one that other machines reach")
	return a.onRelay(cmd, &f, func(l *live, _ []string) error { return l.page(address, public) })
}

// page serves the page until the command is ended.
func (l *live) page(address string, public bool) error {
	view := socketView(l.client.Path)
	p, err := page.Of(l.info.Name, l.info.Programs, view)
	if err != nil {
		return err
	}
	p.Public, p.Metrics = public, view
	listener, err := listenPage(p, address)
	if err != nil {
		return err
	}
	url := "http://" + listener.Addr().String() + "/"
	if err := l.print(map[string]string{"page": url}, "a page about "+l.info.Name+" is at "+url+"\n"); err != nil {
		return errors.Join(err, listener.Close())
	}
	p.Serve(l.ctx, netutil.LimitListener(listener, maxBrowsers))
	return nil
}

// listenPage opens a page's address.
func listenPage(p *page.Page, address string) (net.Listener, error) {
	l, err := p.Listen(address)
	switch {
	case errors.Is(err, page.ErrNotLoopback):
		return nil, usage("--http %v", err).
			hint("--http 127.0.0.1:8080, or --http-public if others may see the addresses of all sessions")
	case err != nil:
		return nil, &diag.Diagnostic{Code: codeRun, Message: "--http " + address + ": " + err.Error(),
			Hint: "--http 127.0.0.1:0 takes a free port"}
	}
	return l, nil
}

// socketView shows what a control socket does: to read, and without events, which never end.
func socketView(path string) http.Handler {
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host, r.Out.Host = "http", "relay", "relay"
		},
		Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", path)
		}},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			refuse(w, http.StatusBadGateway, api.CodeInternal, err.Error())
		},
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/v1/events") || r.Method != http.MethodGet && r.Method != http.MethodHead {
			refuse(w, http.StatusNotFound, api.CodeNotFound, "a page has no "+r.Method+" "+r.URL.Path)
			return
		}
		proxy.ServeHTTP(w, r)
	})
}

// refuse says what is wrong as a control socket does.
func refuse(w http.ResponseWriter, status int, code, detail string) {
	w.Header().Set("Content-Type", api.ProblemType)
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(api.Problem{Type: "about:blank", Title: http.StatusText(status), Status: status,
		Detail: detail, Code: code}) // an error means that the client has gone
}
