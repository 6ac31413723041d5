// The gate command is a UDP echo service behind the gate: it accepts connections (a source address and port each),
// adds them to the kernel's table, and removes them when they have been quiet for a while. What a source sends over its
// quota never gets here.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/examples/gate/gaterelay"
	"github.com/fastrelay/fastrelay-gen/runtime"
)

func main() {
	iface := flag.String("interface", "eth0", "where datagrams come in")
	listen := flag.String("listen", "192.0.2.1:4433", "`address` of the service, as it is on the wire")
	quota := flag.Uint("quota", 4, "connections that each source may have")
	quiet := flag.Duration("quiet", 30*time.Second, "how long a connection may be quiet")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	if err := run(ctx, *iface, *listen, uint32(*quota), *quiet); err != nil {
		fmt.Fprintln(os.Stderr, "gate:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, iface, listen string, quota uint32, quiet time.Duration) error {
	at, err := netip.ParseAddrPort(listen)
	if err != nil {
		return fmt.Errorf("-listen: %w", err)
	}
	relay, err := gaterelay.Load(gaterelay.Options{Settings: gaterelay.Settings{Port: new(at.Port()), Quota: &quota}})
	if err != nil {
		return err
	}
	defer relay.Close()
	socket, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
	if err != nil {
		return err
	}
	defer socket.Close()
	if err := relay.Gate.Attach(iface); err != nil {
		return err
	}
	context.AfterFunc(ctx, func() { _ = socket.SetReadDeadline(time.Unix(1, 0)) })
	s := &service{
		relay: relay, socket: socket, at: at, quota: quota, quiet: quiet, open: map[netip.AddrPort]*connection{},
	}
	fmt.Printf("gate on %s, echo service at %s, %d connections for each source\n", iface, at, quota)
	err = s.serve(ctx)
	refused, counting := relay.Gate.Count(gaterelay.GateDropOverQuota)
	fmt.Printf("%d datagrams were refused in the kernel\n", refused.Packets)
	return errors.Join(err, counting)
}

// service is the user-space part: it decides which connections there are.
type service struct {
	relay  *gaterelay.Relay
	socket *net.UDPConn
	at     netip.AddrPort
	quota  uint32
	quiet  time.Duration
	open   map[netip.AddrPort]*connection
}

type connection struct {
	session *gaterelay.ConnectionSession
	last    time.Time
}

// serve echoes datagrams until ctx ends.
func (s *service) serve(ctx context.Context) error {
	buf := make([]byte, 65535)
	for {
		n, from, err := s.socket.ReadFromUDPAddrPort(buf)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		from = netip.AddrPortFrom(from.Addr().Unmap(), from.Port())
		s.forget()
		ok, err := s.accept(from)
		if err != nil {
			return err
		}
		if ok {
			if _, err := s.socket.WriteToUDPAddrPort(buf[:n], from); err != nil {
				fmt.Fprintln(os.Stderr, "gate:", err)
			}
		}
	}
}

// accept finds the connection of a source, or opens one where its quota allows.
func (s *service) accept(from netip.AddrPort) (bool, error) {
	if c := s.open[from]; c != nil {
		c.last = time.Now()
		return true, nil
	}
	row, err := s.source(from.Addr())
	if err != nil {
		return false, err
	}
	// The kernel refuses what is over the quota; a datagram that was on its way before the
	// counter rose is refused here.
	if row.Connections.Load() >= uint64(s.quota) {
		return false, nil
	}
	session, err := s.relay.OpenConnection(gaterelay.Connection{Client: from, Server: s.at})
	if err != nil {
		return false, err
	}
	row.Connections.Add(1)
	s.open[from] = &connection{session, time.Now()}
	return true, nil
}

// source returns the row of a source, a new one where there is none.
func (s *service) source(addr netip.Addr) (gaterelay.SourcesRow, error) {
	row, err := s.relay.Sources.Get(addr)
	if errors.Is(err, runtime.ErrNotFound) {
		if err := s.relay.Sources.Put(addr, gaterelay.SourcesRow{}); err != nil {
			return row, err
		}
		return s.relay.Sources.Get(addr)
	}
	return row, err
}

// forget closes the connections that have been quiet for too long.
func (s *service) forget() {
	for from, c := range s.open {
		if time.Since(c.last) < s.quiet {
			continue
		}
		delete(s.open, from)
		if err := c.session.Close(); err != nil {
			fmt.Fprintln(os.Stderr, "gate:", err)
		}
		if row, err := s.relay.Sources.Get(from.Addr()); err == nil {
			row.Connections.Add(^uint64(0))
		}
	}
}
