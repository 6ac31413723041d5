package control

import (
	"flag"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"golang.org/x/net/netutil"

	"github.com/fastrelay/fastrelay-gen/runtime"
)

// Flags are what a server's command line says of those who watch and operate its relay.
type Flags struct {
	Socket  string // path of the control socket, or the name of one in /run/fastrelay
	Metrics string // address:port
}

// Define defines the flags --control and --metrics.
func (f *Flags) Define(flags *flag.FlagSet) {
	flags.StringVar(&f.Socket, "control", "", "`path` of the relay's control socket, or a name: that of one in "+
		"/run/fastrelay")
	flags.StringVar(&f.Metrics, "metrics", "", "`address:port` where anyone may read /metrics; with the control "+
		"socket of the relay's name, unless --control names another")
}

// Control returns what the flags ask for, for the options of one relay; nil: nothing.
func (f Flags) Control() runtime.Control {
	if f == (Flags{}) {
		return nil
	}
	return &Server{Path: f.Socket, Metrics: f.Metrics}
}

// OwnGroups is Control for a process whose receivers are its connections: see [Server].
func (f Flags) OwnGroups() runtime.Control {
	if f == (Flags{}) {
		return nil
	}
	return &Server{Path: f.Socket, Metrics: f.Metrics, OwnGroups: true}
}

// port serves the metrics of a relay to whoever may connect, and nothing else.
type port struct {
	listener net.Listener
	http     *http.Server
	serving  sync.WaitGroup
}

// maxScrapers is how many may be connected at once; others wait.
const maxScrapers = 16

// listenMetrics opens the port of the metrics; nil: none is asked for.
func listenMetrics(address string) (*port, error) {
	if address == "" {
		return nil, nil
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	return &port{listener: netutil.LimitListener(l, maxScrapers)}, nil
}

func (p *port) serve(metrics http.Handler, patience time.Duration) {
	if p == nil {
		return
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", metrics)
	p.http = &http.Server{Handler: mux, ReadTimeout: patience, WriteTimeout: patience, IdleTimeout: time.Minute,
		MaxHeaderBytes: 16 << 10, ErrorLog: slog.NewLogLogger(slog.Default().Handler(), slog.LevelWarn)}
	p.serving.Go(func() { _ = p.http.Serve(p.listener) }) // until close
}

func (p *port) close() {
	if p == nil {
		return
	}
	if p.http != nil {
		_ = p.http.Close()
	}
	_ = p.listener.Close() // it may be closed already
	p.serving.Wait()
}
