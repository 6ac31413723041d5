package client

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"
)

// Config says what an agent does. All but Idle and Logger are required.
type Config struct {
	Listen netip.AddrPort // where clients connect to
	Proxy  netip.AddrPort
	Target string // host:port, resolved by the proxy
	// Idle is how long a tunnel without packets is kept. 0: one minute.
	Idle time.Duration
	// Logger logs what happens. nil: slog.Default.
	Logger *slog.Logger
}

// Agent is a running agent.
type Agent struct {
	config Config
	log    *slog.Logger
	local  *net.UDPConn
	done   sync.WaitGroup

	mu      sync.Mutex // also of all tunnels
	closed  bool
	tunnels map[*tunnel]bool
	clients map[netip.AddrPort]*tunnel
}

// Start starts an agent. It returns once it listens.
func Start(config Config) (*Agent, error) {
	a := &Agent{
		config: config, log: config.Logger, tunnels: map[*tunnel]bool{}, clients: map[netip.AddrPort]*tunnel{},
	}
	if a.log == nil {
		a.log = slog.Default()
	}
	if a.config.Idle == 0 {
		a.config.Idle = time.Minute
	}
	var err error
	if a.local, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(config.Listen)); err != nil {
		return nil, fmt.Errorf("quicproxy agent: %w", err)
	}
	a.done.Go(a.readClients)
	return a, nil
}

// Close ends the agent and all its tunnels.
func (a *Agent) Close() error {
	err := a.local.Close()
	a.mu.Lock()
	a.closed = true
	for t := range a.tunnels {
		if t.conn != nil {
			_ = t.conn.Close() // its goroutine does the rest
		}
	}
	a.mu.Unlock()
	a.done.Wait()
	return err
}

// Addr returns the address that clients connect to.
func (a *Agent) Addr() netip.AddrPort { return a.local.LocalAddr().(*net.UDPAddr).AddrPort() }

// Rebind moves all tunnels to new sockets for forwarded packets: to a new port, and to the address that the host uses
// now. The proxy follows.
func (a *Agent) Rebind() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	var errs []error
	for t := range a.tunnels {
		if old := t.udp; old != nil {
			if err := t.bind(); err != nil {
				errs = append(errs, err) // the old one goes on
				continue
			}
			errs = append(errs, old.Close())
		}
	}
	return errors.Join(errs...)
}

// readClients passes the clients' packets on.
func (a *Agent) readClients() {
	buf := make([]byte, 1<<16)
	for {
		n, from, err := a.local.ReadFromUDPAddrPort(buf)
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			continue
		}
		if t := a.tunnelOf(from, buf[:n]); t != nil {
			t.outgoing(buf[:n])
		}
	}
}

// tunnelOf returns the tunnel of a client's packet: by its address, by its connection ID if the client has moved, or a
// new one for a new connection.
func (a *Agent) tunnelOf(from netip.AddrPort, packet []byte) *tunnel {
	a.mu.Lock()
	defer a.mu.Unlock()
	if t := a.clients[from]; t != nil {
		return t
	}
	if len(packet) == 0 {
		return nil
	}
	if packet[0]&0x80 == 0 {
		for t := range a.tunnels {
			if t.toTarget.find(packet) != nil {
				delete(a.clients, t.client)
				t.client, a.clients[from] = from, t
				return t
			}
		}
		return nil
	}
	if a.closed {
		return nil
	}
	t := newTunnel(a, from)
	a.tunnels[t], a.clients[from] = true, t
	a.done.Go(func() {
		err := t.run()
		a.log.Info("tunnel closed", "client", from, "error", err)
		a.mu.Lock()
		delete(a.tunnels, t)
		if a.clients[t.client] == t {
			delete(a.clients, t.client)
		}
		a.mu.Unlock()
	})
	return t
}
