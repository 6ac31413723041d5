// Package quicproxy measures the QUIC proxy (examples/quicproxy): its relay in the kernel, beside the same proxy in
// user space.
package quicproxy

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/examples/quicproxy/capsule"
	"github.com/fastrelay/fastrelay-gen/examples/quicproxy/command"
	"github.com/fastrelay/fastrelay-gen/internal/test/measure"
	"github.com/fastrelay/fastrelay-gen/internal/test/offloads"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// role is the environment variable that makes a copy of the running program a proxy.
const role = "FASTRELAY_QUICPROXY"

// Main lets the program that calls it first of all be started again as a proxy. In this case it doesn't return.
func Main() {
	if os.Getenv(role) != "" {
		os.Exit(command.Run(os.Args[1:], os.Stdout, os.Stderr))
	}
}

const (
	targetPort = 4433
	proxyPort  = 443
	headerSize = 1 + 8 // of what is sent: both sides' IDs on arrival have 8 bytes
	patience   = 5     // seconds to wait for a packet while a path is set up
)

// path is a client, a proxy and a target, with a connection between them whose IDs are registered. The bench is both
// endpoints.
type path struct {
	net            *testnet.Net
	line           *testnet.Line
	proxy          *exec.Cmd
	conn           net.Conn // the tunnel
	client, target int      // sockets
	relayed        netip.AddrPort
	virtual, own   []byte // connection IDs of packets to the target, and to the client
}

// newPath sets a path up. The target's connection ID has realSize bytes.
func newPath(realSize int, offload bool) (_ *path, err error) {
	p := &path{client: -1, target: -1, own: []byte("clientID")}
	defer func() {
		if err != nil {
			p.close()
		}
	}()
	if p.net, err = testnet.New(); err != nil {
		return nil, err
	}
	l, err := p.net.Line()
	if err != nil {
		return nil, err
	}
	p.line = l
	err = errors.Join(
		l.RelayIn.SetReceiveCPU(measure.RelayCPU), l.RelayOut.SetReceiveCPU(measure.RelayCPU),
		l.ClientDev.SetReceiveCPU(measure.LoadCPU), l.PeerDev.SetReceiveCPU(measure.LoadCPU),
		offloads.Segmentation(l.ClientDev, false), offloads.Segmentation(l.PeerDev, false),
		offloads.TxChecksum(l.ClientDev, false), offloads.TxChecksum(l.PeerDev, false),
		// While a sink is attached, no host answers neighbour solicitations.
		l.RelayIn.AddNeighbour(l.ClientAddr.V4, l.ClientDev.MAC), l.RelayOut.AddNeighbour(l.PeerAddr.V4, l.PeerDev.MAC),
		l.ClientDev.AddNeighbour(l.RelayInAddr.V4, l.RelayIn.MAC),
		l.PeerDev.AddNeighbour(l.RelayOutAddr.V4, l.RelayOut.MAC),
	)
	if err != nil {
		return nil, err
	}
	if err := p.serve(offload); err != nil {
		return nil, err
	}
	at := netip.AddrPortFrom(l.PeerAddr.V4, targetPort)
	if p.target, _, err = measure.BlockingSocket(l.Peer, at); err != nil {
		return nil, err
	}
	if p.client, _, err = measure.BlockingSocket(l.Client, netip.AddrPortFrom(l.ClientAddr.V4, 0)); err != nil {
		return nil, err
	}
	for _, fd := range []int{p.client, p.target} {
		limit := &unix.Timeval{Sec: patience}
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, limit); err != nil {
			return nil, err
		}
	}
	return p, p.connect(realSize)
}

// serve starts the proxy, and waits until it listens.
func (p *path) serve(offload bool) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	args := []string{
		"proxy", "--listen", p.at().String(), "--target", p.line.PeerAddr.V4.String() + "/32",
		"--interfaces", "eth0,eth1",
	}
	if !offload {
		args = append(args, "--no-offload")
	}
	cmd := p.line.Relay.Command(context.Background(), self, args...)
	cmd.Env = append(os.Environ(), role+"=1")
	var say strings.Builder
	cmd.Stderr = &say
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := testnet.StartChild(cmd); err != nil {
		return err
	}
	p.proxy = cmd
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		_ = cmd.Wait()
		return fmt.Errorf("the proxy ended at once: %s", say.String())
	}
	return measure.Prefer(cmd.Process.Pid, measure.RelayCPU)
}

func (p *path) at() netip.AddrPort { return netip.AddrPortFrom(p.line.RelayInAddr.V4, proxyPort) }

// connect opens the tunnel, registers an ID of each side, and validates the path.
func (p *path) connect(realSize int) error {
	err := p.line.Client.Do(func() (err error) {
		p.conn, err = net.Dial("tcp", p.at().String())
		return err
	})
	if err != nil {
		return err
	}
	request := fmt.Sprintf("GET /.well-known/masque/udp/%v/%d/ HTTP/1.1\r\nHost: proxy\r\nConnection: Upgrade\r\n"+
		"Upgrade: connect-udp\r\nCapsule-Protocol: ?1\r\n\r\n", p.line.PeerAddr.V4, targetPort)
	if _, err := p.conn.Write([]byte(request)); err != nil {
		return err
	}
	r := bufio.NewReader(p.conn)
	response, err := http.ReadResponse(r, nil)
	if err != nil || response.StatusCode != http.StatusSwitchingProtocols {
		return errors.Join(errors.New("the proxy opens no tunnel"), err)
	}
	b := capsule.Append(nil, capsule.RegisterClientCID, p.own)
	b = capsule.AppendFields(b, capsule.RegisterTargetCID, []byte("the ID of the target")[:realSize], nil)
	if _, err := p.conn.Write(b); err != nil {
		return err
	}
	var virtual []byte // the client's
	for virtual == nil || p.virtual == nil {
		kind, content, err := capsule.Read(r)
		if err != nil {
			return err
		}
		switch kind {
		case capsule.AckClientCID:
			fields, err := capsule.Fields(content, 2)
			if err != nil {
				return err
			}
			virtual = fields[1]
		case capsule.AckTargetCID:
			fields, err := capsule.Fields(content, 3)
			if err != nil {
				return err
			}
			p.virtual = fields[1]
		}
	}
	buf := make([]byte, 2000)
	// One that ends with the ID is a probe, which goes no further.
	if err := measure.SendTo(p.client, p.packet(p.virtual, headerSize+1), p.at()); err != nil {
		return err
	}
	_, from, err := unix.Recvfrom(p.target, buf, 0)
	if err != nil {
		return fmt.Errorf("to the target: %w", err)
	}
	v4, ok := from.(*unix.SockaddrInet4)
	if !ok {
		return errors.New("to the target: another address family")
	}
	p.relayed = netip.AddrPortFrom(netip.AddrFrom4(v4.Addr), uint16(v4.Port))
	n, _, err := unix.Recvfrom(p.client, buf, 0)
	if err != nil {
		return fmt.Errorf("the challenge: %w", err)
	}
	b = capsule.AppendFields(nil, capsule.AckClientVCID, p.own, virtual, nil)
	if _, err := p.conn.Write(capsule.Append(b, capsule.PathResponse, buf[1:n])); err != nil {
		return err
	}
	// Until the proxy has read that, the target's packets come through the tunnel.
	limit := &unix.Timeval{Usec: 10_000}
	if err := unix.SetsockoptTimeval(p.client, unix.SOL_SOCKET, unix.SO_RCVTIMEO, limit); err != nil {
		return err
	}
	return testnet.Until(patience*time.Second, "the proxy forwards to the client", func() bool {
		if measure.SendTo(p.target, p.packet(p.own, headerSize), p.relayed) != nil {
			return false
		}
		n, _, err := unix.Recvfrom(p.client, buf, 0)
		return err == nil && n == headerSize && string(buf[1:n]) == string(virtual)
	})
}

// packet is a packet with a short header.
func (p *path) packet(id []byte, size int) []byte {
	return append(append([]byte{0x40}, id...), make([]byte, size-1-len(id))...)
}

func (p *path) close() {
	if p.proxy != nil {
		_ = p.proxy.Process.Kill()
		_ = p.proxy.Wait() // killed
	}
	if p.conn != nil {
		_ = p.conn.Close()
	}
	for _, fd := range []int{p.client, p.target} {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
	if p.net != nil {
		_ = p.net.Close() // what remains is removed by the next network
	}
}
