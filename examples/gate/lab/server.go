package lab

import (
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"

	"github.com/fastrelay/fastrelay-gen/examples/gate/gate"
	"github.com/fastrelay/fastrelay-gen/examples/gate/quicgo"
	"github.com/fastrelay/fastrelay-gen/internal/test/selfsigned"
)

// Variant says where new connections are limited.
type Variant string

// The variants.
const (
	NoGate    Variant = "no gate"
	UserSpace Variant = "user space"
	Kernel    Variant = "gate"
)

// Variants are all of them.
var Variants = []Variant{NoGate, UserSpace, Kernel}

const hostName = "gate.test"

// Server is an HTTP/3 server: stock quic-go, with the gate by its public hooks.
type Server struct {
	Gate   *gate.Gate // nil: another variant
	Filter *Filter    // nil: another variant

	transport *quic.Transport
	http      *http3.Server
	socket    *net.UDPConn
	ended     chan error
}

// Serve starts a server in the network namespace of the calling thread. GET /BYTES returns as many.
func Serve(v Variant, c gate.Config) (_ *Server, err error) {
	certificate, err := selfsigned.Certificate(hostName)
	if err != nil {
		return nil, err
	}
	s := &Server{ended: make(chan error, 1)}
	if s.socket, err = net.ListenUDP("udp4", &net.UDPAddr{IP: Addr.AsSlice(), Port: Port}); err != nil {
		return nil, err
	}
	s.transport = &quic.Transport{Conn: s.socket}
	config := &quic.Config{MaxIdleTimeout: 30 * time.Second}
	switch v {
	case Kernel:
		if s.Gate, err = gate.Start(c); err != nil {
			return nil, errors.Join(err, s.socket.Close())
		}
		hooks := quicgo.New(s.Gate, c.Logger)
		hooks.Install(s.transport)
		config = hooks.Config(config)
	case UserSpace:
		s.Filter = NewFilter(s.socket, c.Quotas)
		s.transport.Conn = s.Filter
		hooks := quicgo.New(s.Filter, c.Logger)
		hooks.Install(s.transport)
		config = hooks.Config(config)
	case NoGate:
	}
	tlsConfig := &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{certificate}}
	listener, err := s.transport.ListenEarly(http3.ConfigureTLSConfig(tlsConfig), config)
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	content := make([]byte, 1<<20)
	s.http = &http3.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n, err := strconv.Atoi(r.URL.Path[1:])
		if err != nil || n < 0 || n > len(content) {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write(content[:n]) // an error says that the client has gone
	})}
	go func() { s.ended <- s.http.ServeListener(listener) }()
	return s, nil
}

// Dropped returns the number of packets that were refused.
func (s *Server) Dropped() (uint64, error) {
	switch {
	case s.Gate != nil:
		return s.Gate.Dropped()
	case s.Filter != nil:
		return s.Filter.Dropped.Load(), nil
	}
	return 0, nil
}

// Close ends the server and its gate.
func (s *Server) Close() error {
	var errs []error
	if s.http != nil {
		errs = append(errs, s.http.Close())
		if err := <-s.ended; !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, quic.ErrServerClosed) {
			errs = append(errs, err)
		}
	}
	errs = append(errs, s.transport.Close(), s.socket.Close())
	if s.Gate != nil {
		errs = append(errs, s.Gate.Close())
	}
	return errors.Join(errs...)
}
