package client

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/fastrelay/fastrelay-gen/examples/quicproxy/capsule"
	"github.com/fastrelay/fastrelay-gen/examples/quicproxy/socket"
)

const (
	virtualSize = 8 // of a virtual ID, unless the client's own is longer
	keptIDs     = 8 // that are registered in each direction at the same time
	dialLimit   = 10 * time.Second
	probes      = 200 * time.Millisecond // between two of a path that isn't validated
)

// id is a registered connection ID. It has no virtual one before the proxy has answered.
type id struct{ real, virtual []byte }

// ids are the connection IDs of one side, the least recently used first.
type ids struct {
	known    bool // there was a long header
	length   int
	list     []*id
	register capsule.Type
	close    capsule.Type
}

// learn takes over the length of a side's connection IDs from one of its long headers (RFC 8999 §5.1), and returns its
// ID; nil for other packets.
func (s *ids) learn(packet []byte) []byte {
	if len(packet) < 7 || packet[0]&0x80 == 0 {
		return nil
	}
	rest := packet[6:]
	if len(rest) <= int(packet[5]) {
		return nil
	}
	rest = rest[packet[5]:]
	size := int(rest[0])
	if size > capsule.MaxID || len(rest) <= size {
		return nil
	}
	s.known, s.length = true, size
	return rest[1 : 1+size]
}

// of returns the connection ID of a packet with a short header; nil if its length isn't known.
func (s *ids) of(packet []byte) []byte {
	if !s.known || len(packet) < 1+s.length || packet[0]&0x80 != 0 {
		return nil
	}
	return packet[1 : 1+s.length]
}

// find returns the registered ID of a packet with a short header.
func (s *ids) find(packet []byte) *id {
	if real := s.of(packet); real != nil {
		return s.get(real)
	}
	return nil
}

func (s *ids) get(real []byte) *id {
	for _, i := range s.list {
		if bytes.Equal(i.real, real) {
			return i
		}
	}
	return nil
}

func (s *ids) used(i *id) {
	if last := len(s.list) - 1; s.list[last] != i {
		s.remove(i)
		s.list = append(s.list, i)
	}
}

func (s *ids) remove(i *id) {
	s.list = slices.DeleteFunc(s.list, func(other *id) bool { return other == i })
}

// tunnel is a client's way to the target, through the proxy.
type tunnel struct {
	agent *Agent
	used  atomic.Int64 // when a packet passed, in nanoseconds
	write chan []byte  // capsules, in order

	// With the agent's lock.
	client    netip.AddrPort
	conn      net.Conn     // nil before the proxy has answered
	udp       *net.UDPConn // connected to the proxy; nil before it has answered
	challenge []byte       // the last one that came to udp
	validated bool         // the proxy has taken the response to it
	toTarget  ids          // the target's IDs
	toClient  ids          // the client's
	count     uint64       // of all registrations so far
	limit     uint64       // the number of the last one that is allowed
}

func newTunnel(a *Agent, client netip.AddrPort) *tunnel {
	t := &tunnel{
		agent: a, client: client, write: make(chan []byte, 256), limit: 1,
		toTarget: ids{register: capsule.RegisterTargetCID, close: capsule.CloseTargetCID},
		toClient: ids{register: capsule.RegisterClientCID, close: capsule.CloseClientCID},
	}
	t.used.Store(time.Now().UnixNano())
	return t
}

// dial asks the proxy for the tunnel (RFC 9298 §3.2, over HTTP/1.1).
func (t *tunnel) dial() (net.Conn, *bufio.Reader, error) {
	config := t.agent.config
	host, port, err := net.SplitHostPort(config.Target)
	if err != nil {
		return nil, nil, err
	}
	path := "/.well-known/masque/udp/" + strings.ReplaceAll(url.PathEscape(host), ":", "%3A") + "/" + port + "/"
	conn, err := net.DialTimeout("tcp", config.Proxy.String(), dialLimit)
	if err != nil {
		return nil, nil, err
	}
	_ = conn.SetDeadline(time.Now().Add(dialLimit))
	_, err = fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: %v\r\nConnection: Upgrade\r\nUpgrade: connect-udp\r\n"+
		"Capsule-Protocol: ?1\r\nProxy-QUIC-Forwarding: ?1; accept-transform=\"identity\"\r\n"+
		"Proxy-QUIC-Port-Sharing: ?0\r\n\r\n", path, config.Proxy)
	r := bufio.NewReader(conn)
	if err == nil {
		var response *http.Response
		if response, err = http.ReadResponse(r, nil); err == nil {
			switch {
			case response.StatusCode != http.StatusSwitchingProtocols:
				err = fmt.Errorf("the proxy answers %s", response.Status)
			case !strings.HasPrefix(response.Header.Get("Proxy-QUIC-Forwarding"), "?1"):
				err = errors.New("the proxy doesn't forward QUIC packets")
			}
		}
	}
	if err != nil {
		_ = conn.Close()
		return nil, nil, err
	}
	return conn, r, conn.SetDeadline(time.Time{})
}

// run opens the tunnel and serves it until it isn't used any more, or the proxy closes it.
func (t *tunnel) run() error {
	conn, r, err := t.dial()
	if err != nil {
		return err
	}
	defer conn.Close()
	a := t.agent
	a.mu.Lock()
	if a.closed {
		a.mu.Unlock()
		return net.ErrClosed
	}
	t.conn = conn
	err = t.bind()
	a.mu.Unlock()
	if err != nil {
		return err
	}
	defer func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		_ = t.udp.Close()
		t.udp = nil
	}()
	ended := make(chan struct{})
	defer close(ended)
	a.done.Go(func() {
		tick := time.NewTicker(a.config.Idle / 4)
		defer tick.Stop()
		again := time.NewTicker(probes)
		defer again.Stop()
		for {
			select {
			case b := <-t.write:
				if _, err := conn.Write(b); err != nil {
					_ = conn.Close()
				}
			case <-tick.C:
				if time.Since(time.Unix(0, t.used.Load())) > a.config.Idle {
					_ = conn.Close()
				}
			case <-again.C:
				a.mu.Lock()
				t.probe()
				a.mu.Unlock()
			case <-ended:
				return
			}
		}
	})
	for {
		kind, content, err := capsule.Read(r)
		if err == nil {
			err = t.handle(kind, content)
		}
		if err != nil {
			return err
		}
	}
}

// bind opens a socket for forwarded packets, at the address that the host uses now. It needs the lock.
func (t *tunnel) bind() error {
	udp, err := socket.Dial(t.agent.config.Proxy)
	if err != nil {
		return err
	}
	t.udp, t.challenge, t.validated = udp, nil, false
	t.agent.done.Go(func() { t.readProxy(udp) })
	t.probe()
	return nil
}

// probe has the proxy challenge the address of a socket until it is validated. A client that waits for the target sends
// nothing, so without this the target's packets would go to the old address until the connection times out. It needs
// the lock.
func (t *tunnel) probe() {
	if t.udp == nil || t.validated {
		return
	}
	for _, i := range slices.Backward(t.toTarget.list) {
		if i.virtual != nil {
			_, _ = t.udp.Write(replace([]byte{0x40}, 0, i.virtual))
			return
		}
	}
}

// send writes a capsule. It needs the lock, and doesn't wait: what the tunnel can't take is lost.
func (t *tunnel) send(b []byte) {
	select {
	case t.write <- b:
	default:
	}
}

// outgoing passes a client's packet on.
func (t *tunnel) outgoing(packet []byte) {
	t.used.Store(time.Now().UnixNano())
	t.agent.mu.Lock()
	defer t.agent.mu.Unlock()
	if own := t.toClient.learn(packet); own != nil {
		t.registerOnce(&t.toClient, own)
	}
	if real := t.toTarget.of(packet); real != nil {
		if i := t.registerOnce(&t.toTarget, real); i != nil && i.virtual != nil && t.udp != nil {
			t.toTarget.used(i)
			_, _ = t.udp.Write(replace(packet, len(real), i.virtual))
			return
		}
	}
	t.send(capsule.Append(nil, capsule.Datagram, []byte{0}, packet))
}

// replace returns a packet with a short header that has another connection ID.
func replace(packet []byte, size int, id []byte) []byte {
	return append(append(append(make([]byte, 0, len(packet)+capsule.MaxID), packet[0]), id...), packet[1+size:]...)
}

// registerOnce registers a connection ID if it isn't, and returns it; nil if it can't be registered now.
func (t *tunnel) registerOnce(s *ids, real []byte) *id {
	if i := s.get(real); i != nil {
		return i
	}
	if len(s.list) >= keptIDs {
		oldest := s.list[0]
		s.remove(oldest)
		t.send(capsule.Append(nil, s.close, oldest.real))
	}
	if t.count > t.limit {
		return nil // the proxy raises the limit soon
	}
	t.count++
	i := &id{real: bytes.Clone(real)}
	s.list = append(s.list, i)
	if s == &t.toTarget {
		t.send(capsule.AppendFields(nil, s.register, real, nil)) // the stateless reset token is encrypted
	} else {
		t.send(capsule.Append(nil, s.register, real))
	}
	return i
}

// handle handles a capsule of the proxy.
func (t *tunnel) handle(kind capsule.Type, content []byte) error {
	t.agent.mu.Lock()
	defer t.agent.mu.Unlock()
	switch kind {
	case capsule.Datagram:
		if len(content) > 1 && content[0] == 0 {
			packet := content[1:]
			if real := t.toTarget.learn(packet); real != nil {
				t.registerOnce(&t.toTarget, real)
			} else if own := t.toClient.of(packet); own != nil {
				t.registerOnce(&t.toClient, own)
			}
			t.deliver(packet)
		}
	case capsule.AckClientCID:
		fields, err := capsule.Fields(content, 2)
		if err != nil {
			return err
		}
		if i := t.toClient.get(fields[0]); i != nil && len(fields[1]) == max(virtualSize, len(i.real)) {
			i.virtual = fields[1]
			t.send(capsule.AppendFields(nil, capsule.AckClientVCID, i.real, i.virtual, nil))
		}
	case capsule.AckTargetCID:
		fields, err := capsule.Fields(content, 3)
		if err != nil {
			return err
		}
		if i := t.toTarget.get(fields[0]); i != nil && len(fields[1]) > 0 {
			i.virtual = fields[1]
		}
	case capsule.PathResponse:
		if t.challenge != nil && bytes.Equal(content, t.challenge) {
			t.validated = true
		}
	case capsule.CloseClientCID:
		t.drop(&t.toClient, content)
	case capsule.CloseTargetCID:
		t.drop(&t.toTarget, content)
	case capsule.MaxConnectionIDs:
		limit, err := capsule.Integer(content)
		if err != nil || limit < 1 {
			return errors.Join(errors.New("a wrong MAX_CONNECTION_IDS"), err)
		}
		t.limit = max(t.limit, limit)
	}
	return nil // others are ignored (RFC 9297 §3.2)
}

// drop forgets a connection ID that the proxy has closed.
func (t *tunnel) drop(s *ids, real []byte) {
	if i := s.get(real); i != nil {
		s.remove(i)
	}
}

// deliver sends a packet to the client. It needs the lock.
func (t *tunnel) deliver(packet []byte) {
	t.used.Store(time.Now().UnixNano())
	_, _ = t.agent.local.WriteToUDPAddrPort(packet, t.client)
}

// readProxy passes on what the proxy sends outside of the tunnel.
func (t *tunnel) readProxy(udp *net.UDPConn) {
	buf := make([]byte, 1<<16)
	for {
		n, err := udp.Read(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err == nil {
			t.incoming(udp, buf[:n])
		}
	}
}

// incoming handles a packet that the proxy sent outside of the tunnel: a challenge, or one with a virtual ID.
func (t *tunnel) incoming(udp *net.UDPConn, packet []byte) {
	t.agent.mu.Lock()
	defer t.agent.mu.Unlock()
	if len(packet) == 9 && packet[0] == 0 {
		if udp == t.udp { // else the address is left
			t.challenge = bytes.Clone(packet[1:])
			t.send(capsule.Append(nil, capsule.PathResponse, t.challenge))
		}
		return
	}
	for _, i := range t.toClient.list {
		if i.virtual != nil && len(packet) > 0 && packet[0]&0x80 == 0 && bytes.HasPrefix(packet[1:], i.virtual) {
			t.toClient.used(i)
			t.deliver(replace(packet, len(i.virtual), i.real))
			return
		}
	}
}
