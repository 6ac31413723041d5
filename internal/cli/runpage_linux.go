package cli

import (
	"context"
	"errors"
	"net"
	"sync"

	"golang.org/x/net/netutil"
	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/internal/build"
	"github.com/fastrelay/fastrelay-gen/internal/page"
	"github.com/fastrelay/fastrelay-gen/runtime"
	"github.com/fastrelay/fastrelay-gen/runtime/control"
	"github.com/fastrelay/fastrelay-gen/runtime/metrics"
)

// site is the page about a relay (run --http). Its methods do nothing if there is none.
type site struct {
	listener net.Listener // nil: there is no page
	public   bool
	wg       sync.WaitGroup
}

// openSite opens the page's address, before anything is loaded.
func openSite(opt runOptions) (*site, error) {
	s := &site{public: opt.httpPublic}
	if opt.http == "" {
		if opt.httpPublic {
			return nil, usage("--http-public needs --http").see("fastrelay-gen run --help")
		}
		return s, nil
	}
	l, err := listenPage(&page.Page{Public: opt.httpPublic}, opt.http)
	if err != nil {
		return nil, err
	}
	if s.listener, err = limit(l); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return s, nil
}

// limit leaves most of the process's descriptors to others than the page: whoever may connect can open as many
// connections as they like. Those that are too many wait until others have ended.
func limit(l net.Listener) (net.Listener, error) {
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		return nil, err
	}
	return netutil.LimitListener(l, int(min(256, max(1, files.Cur/4)))), nil
}

func (s *site) close() {
	if s.listener != nil {
		_ = s.listener.Close() // if it is closed already, so much the better
	}
}

// serve serves the page until ctx ends, and returns its address.
func (s *site) serve(ctx context.Context, r *build.Result, relay *runtime.Relay) (string, error) {
	if s.listener == nil {
		return "", nil
	}
	p, err := page.New(r.Spec, r.Plan, control.View(ctx, relay))
	if err != nil {
		return "", err
	}
	p.Public, p.Metrics = s.public, metrics.Handler(relay)
	s.wg.Go(func() { p.Serve(ctx, s.listener) })
	return "http://" + s.listener.Addr().String() + "/", nil
}

// wait waits until no client reads the relay for the page, after ctx has ended.
func (s *site) wait() { s.wg.Wait() }
