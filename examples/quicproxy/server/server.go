package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fastrelay/fastrelay-gen/examples/quicproxy/quicproxyrelay"
	"github.com/fastrelay/fastrelay-gen/examples/quicproxy/socket"
	"github.com/fastrelay/fastrelay-gen/runtime"
	"github.com/fastrelay/fastrelay-gen/runtime/control"
)

// Config says what a proxy does. Listen and Targets are required.
type Config struct {
	// Listen is the address for tunnels (TCP) and for forwarded packets (UDP). It can't be unspecified: the kernel
	// looks packets up by it.
	Listen netip.AddrPort
	// Targets are the addresses that clients may reach.
	Targets []netip.Prefix
	// Interfaces are the devices that clients and targets are behind.
	Interfaces []string
	// Hook is whether packets come to the relay at XDP first: by default at tc/ingress alone.
	Hook runtime.Hook
	// Lease is how long the kernel goes on forwarding without this process. 0: one second.
	Lease time.Duration
	// NoOffload keeps everything in user space.
	NoOffload bool
	// Control says how the relay is watched and operated.
	Control control.Flags
	// Logger logs what happens. nil: slog.Default.
	Logger *slog.Logger
}

// Proxy is a running proxy.
type Proxy struct {
	config Config
	log    *slog.Logger
	relay  *quicproxyrelay.Relay // nil if there is none
	http   *http.Server
	udp    *net.UDPConn
	local  netip.AddrPort
	done   sync.WaitGroup

	mu        sync.RWMutex // also of all tunnels
	closed    bool
	tunnels   map[*tunnel]bool
	byVirtual map[virtualID]*registration // what clients use in place of their targets' IDs

	registered, paths, toTarget, toClient, tunnelled atomic.Uint64
}

// Start starts a proxy. It returns once it listens.
func Start(config Config) (_ *Proxy, err error) {
	p := &Proxy{
		config: config, log: config.Logger, tunnels: map[*tunnel]bool{}, byVirtual: map[virtualID]*registration{},
	}
	if p.log == nil {
		p.log = slog.Default()
	}
	if !config.Listen.IsValid() || config.Listen.Addr().IsUnspecified() {
		return nil, fmt.Errorf("quicproxy: %v is no address of this host to listen on", config.Listen)
	}
	if len(config.Targets) == 0 {
		return nil, errors.New("quicproxy: no targets are allowed, so there is nothing to forward")
	}
	listener, err := net.Listen("tcp", config.Listen.String())
	if err != nil {
		return nil, fmt.Errorf("quicproxy: %w", err)
	}
	p.local = addrPort(listener.Addr())
	defer func() {
		if err == nil {
			return
		}
		_ = listener.Close()
		if p.udp != nil {
			_ = p.udp.Close()
		}
		if p.relay != nil {
			_ = p.relay.Close()
		}
	}()
	if p.udp, err = socket.Listen(p.local); err != nil {
		return nil, fmt.Errorf("quicproxy: %w", err)
	}
	if !config.NoOffload {
		if err = p.load(); err != nil {
			return nil, fmt.Errorf("quicproxy: the kernel can't forward packets: %w", err)
		}
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /.well-known/masque/udp/{host}/{port}/{$}", p.connect)
	p.http = &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	p.done.Go(func() { _ = p.http.Serve(listener) })
	p.done.Go(p.readClients)
	return p, nil
}

// load loads the relay and attaches all its programs to all interfaces.
func (p *Proxy) load() error {
	relay, err := quicproxyrelay.Load(quicproxyrelay.Options{
		Lease: p.config.Lease, Logger: p.log, Control: p.config.Control.Control(),
	})
	if err != nil {
		return err
	}
	p.relay = relay
	if len(p.config.Interfaces) == 0 {
		return errors.New("no interface is named")
	}
	for _, name := range p.config.Interfaces {
		for _, program := range relay.Runtime().Programs() {
			if err := program.AttachAt(name, runtime.AttachOptions{Hook: p.config.Hook}); err != nil {
				return err
			}
		}
	}
	return nil
}

// Close ends the proxy: nothing is forwarded any more when it returns.
func (p *Proxy) Close() error {
	var err error
	if p.relay != nil {
		err = p.relay.Close()
	}
	p.mu.Lock()
	p.closed = true
	for t := range p.tunnels {
		_ = t.conn.Close() // its goroutine does the rest
	}
	p.mu.Unlock()
	err = errors.Join(err, p.http.Close(), p.udp.Close())
	p.done.Wait()
	return err
}

// Addr returns the address that the proxy listens on.
func (p *Proxy) Addr() netip.AddrPort { return p.local }

// connect answers a request for a tunnel (RFC 9298 §3.2, over HTTP/1.1).
func (p *Proxy) connect(w http.ResponseWriter, r *http.Request) {
	refuse := func(status int, err error) {
		p.log.Info("tunnel refused", "client", r.RemoteAddr, "target", r.URL.Path, "error", err)
		http.Error(w, err.Error(), status)
	}
	if r.Header.Get("Upgrade") != "connect-udp" || r.Header.Get("Capsule-Protocol") != "?1" {
		refuse(http.StatusBadRequest, errors.New("want Upgrade: connect-udp, with Capsule-Protocol: ?1"))
		return
	}
	target, err := p.resolve(r.Context(), r.PathValue("host"), r.PathValue("port"))
	if err != nil {
		refuse(http.StatusForbidden, err)
		return
	}
	// A socket of its own for each tunnel: no other client's packets arrive on it, so those with an unknown ID can be
	// tunnelled.
	out, err := socket.Dial(target)
	if err != nil {
		refuse(http.StatusBadGateway, err)
		return
	}
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		_ = out.Close()
		refuse(http.StatusInternalServerError, err)
		return
	}
	t := newTunnel(p, conn, buffered.Reader, out)
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		_, _ = conn.Close(), out.Close()
		return
	}
	p.tunnels[t] = true
	p.done.Add(1) // inside the lock: Close hasn't begun to wait
	p.mu.Unlock()
	defer p.done.Done()
	_, err = conn.Write([]byte("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: connect-udp\r\n" +
		"Capsule-Protocol: ?1\r\nProxy-QUIC-Forwarding: ?1; transform=\"identity\"\r\n" +
		"Proxy-QUIC-Port-Sharing: ?0\r\n\r\n"))
	p.log.Info("tunnel opened", "client", conn.RemoteAddr(), "target", target)
	if err == nil {
		err = t.run()
	}
	p.log.Info("tunnel closed", "client", conn.RemoteAddr(), "target", target, "error", err)
}

// resolve returns the address of a target, if clients may reach it.
func (p *Proxy) resolve(ctx context.Context, host, port string) (netip.AddrPort, error) {
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil || number == 0 {
		return netip.AddrPort{}, fmt.Errorf("%q is not a port", port)
	}
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return netip.AddrPort{}, err
	}
	for _, a := range addrs {
		a = a.Unmap()
		for _, allowed := range p.config.Targets {
			if allowed.Contains(a) {
				return netip.AddrPortFrom(a, uint16(number)), nil
			}
		}
	}
	return netip.AddrPort{}, fmt.Errorf("%q is not an allowed target", host)
}

func addrPort(a net.Addr) netip.AddrPort {
	var ap netip.AddrPort
	switch a := a.(type) {
	case *net.TCPAddr:
		ap = a.AddrPort()
	case *net.UDPAddr:
		ap = a.AddrPort()
	}
	return unmap(ap)
}

func unmap(a netip.AddrPort) netip.AddrPort { return netip.AddrPortFrom(a.Addr().Unmap(), a.Port()) }

// Stats are a proxy's counters.
type Stats struct {
	Tunnels    int    `json:"tunnels"`
	Registered uint64 `json:"registered"` // connection IDs, of all tunnels so far
	InKernel   int    `json:"in_kernel"`  // those that the kernel swaps now
	Paths      uint64 `json:"paths"`      // clients' addresses that answered a challenge so far

	// Packets that user space forwarded: by their virtual IDs, and through tunnels, in both directions.
	ToTarget  uint64 `json:"to_target"`
	ToClient  uint64 `json:"to_client"`
	Tunnelled uint64 `json:"tunnelled"`

	// Sent is how many packets each program of the kernel has sent, and SentAtXDP how many of all these at XDP.
	Sent      map[string]uint64 `json:"sent,omitempty"`
	SentAtXDP uint64            `json:"sent_at_xdp,omitempty"`
}

// Kernel is the number of packets that the kernel has sent.
func (s Stats) Kernel() (n uint64) {
	for _, v := range s.Sent {
		n += v
	}
	return n
}

// Stats returns the proxy's counters.
func (p *Proxy) Stats() (Stats, error) {
	p.mu.RLock()
	s := Stats{Tunnels: len(p.tunnels)}
	p.mu.RUnlock()
	s.Registered, s.Paths = p.registered.Load(), p.paths.Load()
	s.ToTarget, s.ToClient, s.Tunnelled = p.toTarget.Load(), p.toClient.Load(), p.tunnelled.Load()
	if p.relay == nil {
		return s, nil
	}
	for range p.relay.Forwarding.All() {
		s.InKernel++
	}
	s.Sent = map[string]uint64{}
	for _, program := range p.relay.Runtime().Programs() {
		counts, err := program.Counts()
		if err != nil {
			return s, err
		}
		atXDP, err := program.XDPCounts()
		if err != nil {
			return s, err
		}
		for i, n := range counts {
			if program.Desc().Reason(i).Name == "sent" {
				s.Sent[program.Name()] += n.Packets
				s.SentAtXDP += atXDP[i].Packets
			}
		}
	}
	return s, nil
}
