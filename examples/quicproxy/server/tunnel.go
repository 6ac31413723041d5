package server

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/fastrelay/fastrelay-gen/examples/quicproxy/capsule"
	"github.com/fastrelay/fastrelay-gen/examples/quicproxy/quicproxyrelay"
)

const (
	virtualSize = 8                      // of a virtual ID, unless the client's own is longer
	maxIDs      = 32                     // that a client may have registered at the same time
	patience    = 10 * time.Second       // with a client that doesn't read its tunnel
	challenges  = 100 * time.Millisecond // between two to one client
)

// virtualID is a virtual ID that stands for one of a target.
type virtualID [virtualSize]byte

// registration is a connection ID that a client has registered.
type registration struct {
	tunnel        *tunnel
	target        bool // the target's; else the client's
	real, virtual []byte
	ready         bool // forwarded packets may use it
	session       *quicproxyrelay.ForwardingSession
}

// tunnel is one client's way to one target.
//
// A registration begins to be forwarded when both sides know the virtual ID and the path is known: the client's address
// for forwarded packets. The path is learned from them. If one comes from another address, the proxy sends a
// challenge there (a zero byte and 8 random ones) that the client returns through the tunnel: so it receives what is
// sent to this address, and wants it (as RFC 9000 §8.2 validates paths). The proxy returns the response. A client that
// has moved and has nothing to send sends a probe: a short header that ends with the virtual ID.
type tunnel struct {
	proxy  *Proxy
	conn   net.Conn
	read   *bufio.Reader
	socket *net.UDPConn // connected to the target
	local  netip.AddrPort
	target netip.AddrPort

	write chan []byte // capsules, in order

	// With the proxy's lock.
	ids        []*registration
	count      uint64 // of all registrations so far
	last       uint64 // the number of the last one that is allowed
	path       netip.AddrPort
	challenge  []byte
	challenged netip.AddrPort
	asked      time.Time // when it was
}

func newTunnel(p *Proxy, conn net.Conn, r *bufio.Reader, socket *net.UDPConn) *tunnel {
	return &tunnel{
		proxy: p, conn: conn, read: r, socket: socket, local: addrPort(socket.LocalAddr()),
		target: addrPort(socket.RemoteAddr()), write: make(chan []byte, 64), last: 1,
	}
}

// run serves the tunnel until the client closes it, or breaks the protocol.
func (t *tunnel) run() error {
	ended := make(chan struct{})
	t.proxy.done.Go(func() { // what is written to the client
		for {
			select {
			case b := <-t.write:
				_ = t.conn.SetWriteDeadline(time.Now().Add(patience))
				if _, err := t.conn.Write(b); err != nil {
					_ = t.conn.Close() // ends readClient, and with it this
				}
			case <-ended:
				return
			}
		}
	})
	t.proxy.done.Go(func() { t.readTarget(ended) })
	err := t.readClient()
	close(ended)
	t.proxy.mu.Lock()
	for len(t.ids) > 0 {
		t.remove(t.ids[0])
	}
	delete(t.proxy.tunnels, t)
	t.proxy.mu.Unlock()
	_, _ = t.conn.Close(), t.socket.Close()
	return err
}

// readClient handles the client's capsules.
func (t *tunnel) readClient() error {
	for {
		kind, content, err := capsule.Read(t.read)
		if err != nil {
			return err
		}
		if kind == capsule.Datagram {
			if len(content) > 0 && content[0] == 0 { // context 0: a UDP payload
				t.proxy.tunnelled.Add(1)
				_, _ = t.socket.Write(content[1:])
			}
			continue
		}
		t.proxy.mu.Lock()
		reply, err := t.handle(kind, content)
		t.proxy.mu.Unlock()
		if err != nil {
			return fmt.Errorf("capsule %#x: %w", uint64(kind), err)
		}
		if len(reply) > 0 {
			t.write <- reply
		}
	}
}

// handle handles a capsule that changes what is registered, and returns what is written in return.
func (t *tunnel) handle(kind capsule.Type, content []byte) ([]byte, error) {
	switch kind {
	case capsule.RegisterClientCID:
		id, err := capsule.ID(content)
		if err != nil {
			return nil, err
		}
		return t.register(id, false)
	case capsule.RegisterTargetCID:
		fields, err := capsule.Fields(content, 2)
		if err != nil {
			return nil, err
		}
		return t.register(fields[0], true)
	case capsule.AckClientVCID:
		fields, err := capsule.Fields(content, 3)
		if err != nil {
			return nil, err
		}
		if r := t.find(fields[0], false); r != nil && bytes.Equal(r.virtual, fields[1]) {
			r.ready = true
			t.offload(r)
		}
	case capsule.CloseClientCID, capsule.CloseTargetCID:
		if r := t.find(content, kind == capsule.CloseTargetCID); r != nil {
			t.remove(r)
			return t.limit(nil), nil
		}
	case capsule.PathResponse:
		if t.challenge != nil && bytes.Equal(content, t.challenge) {
			t.path, t.challenge = t.challenged, nil
			t.proxy.log.Info("path validated", "client", t.conn.RemoteAddr(), "path", t.path)
			for _, r := range t.ids {
				t.offload(r)
			}
			t.proxy.paths.Add(1)
			return capsule.Append(nil, capsule.PathResponse, content), nil
		}
	}
	return nil, nil // others are ignored (RFC 9297 §3.2)
}

// register registers a connection ID. One that is registered gets a new virtual ID.
func (t *tunnel) register(id []byte, target bool) ([]byte, error) {
	if t.count > t.last {
		return nil, errors.New("more connection IDs than MAX_CONNECTION_IDS allows")
	}
	t.count++
	t.proxy.registered.Add(1)
	ack, refusal := capsule.AckClientCID, capsule.CloseClientCID
	if target {
		ack, refusal = capsule.AckTargetCID, capsule.CloseTargetCID
	}
	if r := t.find(id, target); r != nil {
		t.remove(r)
	}
	for _, r := range t.ids {
		if r.target == target && (bytes.HasPrefix(r.real, id) || bytes.HasPrefix(id, r.real)) {
			return t.limit(capsule.Append(nil, refusal, id)), nil
		}
	}
	r := &registration{tunnel: t, target: target, real: bytes.Clone(id), ready: target}
	size := virtualSize
	if !target {
		size = max(size, len(id))
	}
	r.virtual = make([]byte, size)
	for {
		_, _ = rand.Read(r.virtual)
		if !target {
			break
		}
		if key := virtualID(r.virtual); t.proxy.byVirtual[key] == nil {
			t.proxy.byVirtual[key] = r
			break
		}
	}
	t.ids = append(t.ids, r)
	t.offload(r)
	fields := [][]byte{r.real, r.virtual}
	if target {
		fields = append(fields, nil) // no stateless reset token: the proxy sends none
	}
	return t.limit(capsule.AppendFields(nil, ack, fields...)), nil
}

// limit appends the number of the last registration that the client may make now.
func (t *tunnel) limit(b []byte) []byte {
	t.last = max(t.last, t.count+uint64(maxIDs-len(t.ids))-1)
	return capsule.Append(b, capsule.MaxConnectionIDs, capsule.AppendVarint(nil, t.last))
}

func (t *tunnel) find(id []byte, target bool) *registration {
	for _, r := range t.ids {
		if r.target == target && bytes.Equal(r.real, id) {
			return r
		}
	}
	return nil
}

func (t *tunnel) remove(r *registration) {
	t.ids = slices.DeleteFunc(t.ids, func(other *registration) bool { return other == r })
	if r.target {
		delete(t.proxy.byVirtual, virtualID(r.virtual))
	}
	if r.session != nil {
		_ = r.session.Close()
		r.session = nil
	}
}

// offload has the kernel forward what a registration is for, on the tunnel's present path.
func (t *tunnel) offload(r *registration) {
	if r.session != nil {
		_ = r.session.Close()
		r.session = nil
	}
	if t.proxy.relay == nil || !r.ready || !t.path.IsValid() || !swapped(len(r.real)) || !swapped(len(r.virtual)) {
		return
	}
	f := quicproxyrelay.Forwarding{Src: t.path, Dst: t.proxy.local, From: t.local, To: t.target}
	old, now := r.virtual, r.real
	if !r.target {
		f = quicproxyrelay.Forwarding{Src: t.target, Dst: t.local, From: t.proxy.local, To: t.path}
		old, now = r.real, r.virtual
	}
	f.Length, f.NewLength = uint8(len(old)), uint8(len(now))
	f.A, f.B, f.C = words(old)
	f.NewA, f.NewB, f.NewC = words(now)
	var err error
	if r.session, err = t.proxy.relay.Forwarding.Open(f); err != nil {
		r.session = nil
		t.proxy.log.Warn("a connection ID stays in user space", "client", t.conn.RemoteAddr(), "error", err)
	}
}

// swapped reports whether the relay has a header for connection IDs of this length.
func swapped(length int) bool { return slices.Contains([]int{0, 4, 8, 16, 20}, length) }

// words returns a connection ID as the relay's integers.
func words(id []byte) (a, b uint64, c uint32) {
	integer := func(from, to int) (v uint64) {
		for _, x := range id[min(from, len(id)):min(to, len(id))] {
			v = v<<8 | uint64(x)
		}
		return v
	}
	return integer(0, 8), integer(8, 16), uint32(integer(16, 20))
}

// readTarget passes the target's packets on.
func (t *tunnel) readTarget(ended <-chan struct{}) {
	buf := make([]byte, 1<<16)
	out := make([]byte, 0, 1<<16)
	for {
		n, err := t.socket.Read(buf)
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			continue // the target's host has answered that it can't be reached: the client will find out
		}
		packet := buf[:n]
		if virtual, size, path := t.forwarded(packet); virtual != nil {
			out = append(append(append(out[:0], packet[0]), virtual...), packet[1+size:]...)
			t.proxy.toClient.Add(1)
			_, _ = t.proxy.udp.WriteToUDPAddrPort(out, path)
			continue
		}
		t.proxy.tunnelled.Add(1)
		select {
		case t.write <- capsule.Append(nil, capsule.Datagram, []byte{0}, packet):
		case <-ended:
			return
		}
	}
}

// forwarded returns what takes the place of the connection ID of a target's packet, the length of that, and the path;
// nil if the packet has to be tunnelled.
func (t *tunnel) forwarded(packet []byte) (id []byte, length int, path netip.AddrPort) {
	if len(packet) == 0 || packet[0]&0x80 != 0 {
		return nil, 0, netip.AddrPort{}
	}
	t.proxy.mu.RLock()
	defer t.proxy.mu.RUnlock()
	for _, r := range t.ids {
		if !r.target && r.ready && t.path.IsValid() && bytes.HasPrefix(packet[1:], r.real) {
			return r.virtual, len(r.real), t.path
		}
	}
	return nil, 0, netip.AddrPort{}
}

// readClients passes on packets that clients send outside of their tunnels.
func (p *Proxy) readClients() {
	buf := make([]byte, 1<<16)
	out := make([]byte, 0, 1<<16)
	for {
		n, from, err := p.udp.ReadFromUDPAddrPort(buf)
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			continue
		}
		if n <= virtualSize || buf[0]&0x80 != 0 {
			continue
		}
		p.mu.RLock()
		r := p.byVirtual[virtualID(buf[1:1+virtualSize])]
		moved := r != nil && r.tunnel.path != unmap(from)
		p.mu.RUnlock()
		if r == nil {
			continue
		}
		if moved {
			p.validate(r.tunnel, unmap(from))
		}
		if n == 1+virtualSize {
			continue // a probe, nothing for the target
		}
		out = append(append(append(out[:0], buf[0]), r.real...), buf[1+virtualSize:n]...)
		p.toTarget.Add(1)
		_, _ = r.tunnel.socket.Write(out)
	}
}

// validate asks the client whether an address is its own.
func (p *Proxy) validate(t *tunnel, from netip.AddrPort) {
	p.mu.Lock()
	if t.path == from || t.challenged == from && time.Since(t.asked) < challenges {
		p.mu.Unlock()
		return
	}
	if t.challenge == nil || t.challenged != from {
		t.challenge = make([]byte, 8)
		_, _ = rand.Read(t.challenge)
	}
	t.challenged, t.asked = from, time.Now()
	packet := append([]byte{0}, t.challenge...)
	p.mu.Unlock()
	_, _ = p.udp.WriteToUDPAddrPort(packet, from)
}
