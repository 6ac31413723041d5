package lab

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"

	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// Load is what clients do.
type Load struct {
	Bytes     int           // of each answer
	Reconnect int           // requests of a connection; 0: all
	Patience  time.Duration // with a request; 0: ten seconds
	Server    netip.AddrPort
	Host      *testnet.Host
	Move      bool // clients change their port after half of a connection's requests, and go on
}

// Result is what they saw.
type Result struct {
	Requests  int
	Failed    int
	Durations []time.Duration // in order, of all requests, those that failed included
	Took      time.Duration
	Err       error // the last one
}

// Quantile returns a quantile of the durations.
func (r Result) Quantile(q float64) time.Duration {
	if len(r.Durations) == 0 {
		return 0
	}
	return r.Durations[min(int(q*float64(len(r.Durations))), len(r.Durations)-1)]
}

// Mean returns the average duration.
func (r Result) Mean() time.Duration {
	var sum time.Duration
	for _, d := range r.Durations {
		sum += d
	}
	return sum / time.Duration(max(len(r.Durations), 1))
}

// PerSecond returns how many requests succeeded in a second.
func (r Result) PerSecond() float64 { return float64(r.Requests-r.Failed) / r.Took.Seconds() }

// Run has all clients send requests, one after the other, until ctx ends.
func (l Load) Run(ctx context.Context) (all Result, err error) {
	if l.Patience == 0 {
		l.Patience = 10 * time.Second
	}
	var mu sync.Mutex
	var wait sync.WaitGroup
	begin := time.Now()
	for i := range Clients {
		wait.Go(func() {
			r := l.client(ctx, ClientAddr(i))
			mu.Lock()
			defer mu.Unlock()
			all.Requests += r.Requests
			all.Failed += r.Failed
			all.Durations = append(all.Durations, r.Durations...)
			if r.Err != nil {
				all.Err = fmt.Errorf("client %d: %w", i, r.Err)
			}
		})
	}
	wait.Wait()
	all.Took = time.Since(begin)
	slices.Sort(all.Durations)
	return all, nil
}

// client is one client.
func (l Load) client(ctx context.Context, addr netip.Addr) (r Result) {
	var c *Client
	defer func() {
		if c != nil {
			c.Close()
		}
	}()
	for n := 0; ctx.Err() == nil; n++ {
		begin := time.Now()
		err := func() (err error) {
			if l.Reconnect > 0 && n%l.Reconnect == 0 && c != nil {
				c.Close()
				c = nil
			}
			if c == nil {
				if c, err = Dial(l.Host, addr, l.Server); err != nil {
					return err
				}
			}
			if l.Move && l.Reconnect > 0 && n%l.Reconnect == l.Reconnect/2 {
				if err := c.Move(ctx); err != nil {
					return fmt.Errorf("move: %w", err)
				}
			}
			// A request that has begun is finished.
			request, stop := context.WithTimeout(context.WithoutCancel(ctx), l.Patience)
			defer stop()
			return c.Get(request, l.Bytes)
		}()
		r.Requests++
		r.Durations = append(r.Durations, time.Since(begin))
		if err != nil {
			r.Failed++
			r.Err = err
			if c != nil {
				c.Close()
				c = nil
			}
		}
	}
	return r
}

// Client is an HTTP/3 client with an address of its own.
type Client struct {
	host      *testnet.Host
	addr      netip.Addr
	server    netip.AddrPort
	transport []*quic.Transport
	http      *http3.Transport
	conn      *quic.Conn
}

// Dial makes a client. It connects with the first request.
func Dial(host *testnet.Host, addr netip.Addr, server netip.AddrPort) (*Client, error) {
	c := &Client{host: host, addr: addr, server: server}
	t, err := c.socket()
	if err != nil {
		return nil, err
	}
	c.http = &http3.Transport{
		TLSClientConfig: &tls.Config{
			ServerName: hostName, InsecureSkipVerify: true, //nolint:gosec // the lab's certificate is of no authority
			MinVersion: tls.VersionTLS13,
		},
		QUICConfig: &quic.Config{MaxIdleTimeout: 30 * time.Second, HandshakeIdleTimeout: 30 * time.Second},
		Dial: func(ctx context.Context, _ string, tc *tls.Config, qc *quic.Config) (*quic.Conn, error) {
			conn, err := t.DialEarly(ctx, net.UDPAddrFromAddrPort(server), tc, qc)
			c.conn = conn
			return conn, err
		},
	}
	return c, nil
}

// socket opens a socket for the client.
func (c *Client) socket() (*quic.Transport, error) {
	var s *net.UDPConn
	err := c.host.Do(func() (err error) {
		s, err = net.ListenUDP("udp4", &net.UDPAddr{IP: c.addr.AsSlice()})
		return err
	})
	if err != nil {
		return nil, err
	}
	t := &quic.Transport{Conn: s}
	c.transport = append(c.transport, t)
	return t, nil
}

// Get requests so many bytes.
func (c *Client) Get(ctx context.Context, n int) error {
	url := fmt.Sprintf("https://%s/%d", c.server, n)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return err
	}
	request.Host = hostName
	answer, err := c.http.RoundTrip(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	got, err := io.Copy(io.Discard, answer.Body)
	switch {
	case err != nil:
		return err
	case answer.StatusCode != http.StatusOK:
		return fmt.Errorf("%s", answer.Status)
	case got != int64(n):
		return fmt.Errorf("%d bytes instead of %d", got, n)
	}
	return nil
}

// Move has the connection go on from another port, with another connection ID.
func (c *Client) Move(ctx context.Context) error {
	t, err := c.socket()
	if err != nil {
		return err
	}
	path, err := c.conn.AddPath(t)
	if err != nil {
		return err
	}
	probe, stop := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer stop()
	if err := path.Probe(probe); err != nil {
		return err
	}
	return path.Switch()
}

// Close ends the client's connections.
func (c *Client) Close() {
	_ = c.http.Close()
	for _, t := range c.transport {
		_ = t.Close()
		_ = t.Conn.Close()
	}
}
