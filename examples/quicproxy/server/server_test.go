package server

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"testing"
	"time"

	"github.com/fastrelay/fastrelay-gen/examples/quicproxy/capsule"
)

// client is a client of a proxy on this host, which forwards in user space.
type client struct {
	*testing.T
	proxy  *Proxy
	target *net.UDPConn
	conn   net.Conn
	read   *bufio.Reader
	limit  uint64 // of registrations
}

const wait = 10 * time.Second

func newClient(t *testing.T) *client {
	t.Helper()
	local := netip.MustParseAddrPort("127.0.0.1:0")
	targets := []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}
	proxy, err := Start(Config{Listen: local, Targets: targets, NoOffload: true})
	check(t, err)
	t.Cleanup(func() { check(t, proxy.Close()) })
	c := &client{T: t, proxy: proxy, target: listen(t), limit: 1}
	response := c.open("127.0.0.1", c.target.LocalAddr().(*net.UDPAddr).Port)
	if response.StatusCode != http.StatusSwitchingProtocols || response.Header.Get("Proxy-QUIC-Forwarding") == "" {
		t.Fatalf("the proxy answers %s %v", response.Status, response.Header)
	}
	return c
}

func listen(t *testing.T) *net.UDPConn {
	t.Helper()
	conn, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	check(t, err)
	t.Cleanup(func() { conn.Close() })
	check(t, conn.SetDeadline(time.Now().Add(wait)))
	return conn
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// open asks for a tunnel.
func (c *client) open(host string, port int) *http.Response {
	c.Helper()
	conn, err := net.Dial("tcp", c.proxy.Addr().String())
	check(c.T, err)
	c.Cleanup(func() { conn.Close() })
	check(c.T, conn.SetDeadline(time.Now().Add(wait)))
	_, err = fmt.Fprintf(conn, "GET /.well-known/masque/udp/%s/%d/ HTTP/1.1\r\nHost: proxy\r\nConnection: Upgrade\r\n"+
		"Upgrade: connect-udp\r\nCapsule-Protocol: ?1\r\n\r\n", host, port)
	check(c.T, err)
	c.conn, c.read = conn, bufio.NewReader(conn)
	response, err := http.ReadResponse(c.read, nil)
	check(c.T, err)
	return response
}

func (c *client) send(b []byte) {
	c.Helper()
	_, err := c.conn.Write(b)
	check(c.T, err)
}

// next returns the next capsule, except for those that raise the limit.
func (c *client) next() (capsule.Type, []byte) {
	c.Helper()
	for {
		kind, content, err := capsule.Read(c.read)
		check(c.T, err)
		if kind != capsule.MaxConnectionIDs {
			return kind, content
		}
		c.limit, err = capsule.Integer(content)
		check(c.T, err)
	}
}

// registered registers an ID and returns the virtual one.
func (c *client) registered(id string, target bool) []byte {
	c.Helper()
	want, fields := capsule.AckClientCID, 2
	if target {
		want, fields = capsule.AckTargetCID, 3
		c.send(capsule.AppendFields(nil, capsule.RegisterTargetCID, []byte(id), nil))
	} else {
		c.send(capsule.Append(nil, capsule.RegisterClientCID, []byte(id)))
	}
	kind, content := c.next()
	f, err := capsule.Fields(content, fields)
	if kind != want || err != nil || string(f[0]) != id || len(f[1]) < 8 ||
		len(f[1]) < len(id) && !target || string(f[1]) == id {
		c.Fatalf("the answer to %q: %#x %q %v", id, kind, content, err)
	}
	return f[1]
}

func (c *client) receive(conn *net.UDPConn) (string, netip.AddrPort) {
	c.Helper()
	buf := make([]byte, 2000)
	n, from, err := conn.ReadFromUDPAddrPort(buf)
	check(c.T, err)
	return string(buf[:n]), from
}

// The exchange of the draft: packets are tunnelled, then forwarded to the target, and to the client once it has
// acknowledged its virtual ID and answered the challenge. Then the client moves, and has nothing to send but a probe.
func TestExchange(t *testing.T) {
	c := newClient(t)
	c.send(capsule.Append(nil, capsule.Datagram, []byte("\x00\xc0 a long header")))
	packet, proxy := c.receive(c.target)
	if packet != "\xc0 a long header" {
		t.Fatalf("through the tunnel: %q", packet)
	}
	toClient, toTarget := c.registered("client's ID", false), c.registered("target", true)
	udp := listen(t)
	_, err := udp.WriteToUDPAddrPort(append(append([]byte{0x41}, toTarget...), "forth"...), c.proxy.Addr())
	check(t, err)
	if packet, _ = c.receive(c.target); packet != "\x41targetforth" {
		t.Fatalf("to the target: %q", packet)
	}
	challenge, _ := c.receive(udp)
	back := func() {
		_, err := c.target.WriteToUDPAddrPort([]byte("\x42client's IDback"), proxy)
		check(t, err)
	}
	tunnelled := func(when string) {
		t.Helper()
		back()
		if kind, content := c.next(); kind != capsule.Datagram || string(content) != "\x00\x42client's IDback" {
			t.Fatalf("%s: %#x %q", when, kind, content)
		}
	}
	tunnelled("before the acknowledgement")
	c.send(capsule.AppendFields(nil, capsule.AckClientVCID, []byte("client's ID"), toClient, nil))
	c.send(capsule.Append(nil, capsule.PathResponse, []byte("a wrong one")))
	c.registered("another", true) // answered: what was sent before is handled
	tunnelled("before the challenge is answered")
	validated := func(udp *net.UDPConn, challenge string) {
		t.Helper()
		c.send(capsule.Append(nil, capsule.PathResponse, []byte(challenge)[1:]))
		if kind, content := c.next(); kind != capsule.PathResponse || string(content) != challenge[1:] {
			t.Fatalf("the path is validated: %#x %q", kind, content)
		}
		back()
		packet, from := c.receive(udp)
		if packet != "\x42"+string(toClient)+"back" || from != c.proxy.Addr() {
			t.Fatalf("to the client: %q from %v", packet, from)
		}
	}
	validated(udp, challenge)
	moved := listen(t)
	probe := append([]byte{0x40}, toTarget...)
	_, err = moved.WriteToUDPAddrPort(probe, c.proxy.Addr())
	check(t, err)
	challenge, _ = c.receive(moved)
	validated(moved, challenge)
	_, err = moved.WriteToUDPAddrPort(append(probe, "again"...), c.proxy.Addr())
	check(t, err)
	if packet, _ = c.receive(c.target); packet != "\x40targetagain" {
		t.Fatalf("to the target after a probe: %q", packet)
	}
	c.send(capsule.Append(nil, capsule.CloseClientCID, []byte("client's ID")))
	c.registered("a third one", true)
	tunnelled("after the ID was closed")
}

// A prefix of an ID, or a longer one, can't be told from it in a packet: it is refused. The same ID again gets another
// virtual one.
func TestConflicts(t *testing.T) {
	c := newClient(t)
	first := c.registered("12345678", false)
	for _, id := range []string{"1234", "123456789", ""} {
		c.send(capsule.Append(nil, capsule.RegisterClientCID, []byte(id)))
		if kind, content := c.next(); kind != capsule.CloseClientCID || string(content) != id {
			t.Errorf("%q: %#x %q", id, kind, content)
		}
	}
	if again := c.registered("12345678", false); bytes.Equal(again, first) {
		t.Error("the same virtual ID again")
	}
	c.registered("1234", true) // the target's: no conflict
}

// A client that registers more than it may loses its tunnel; one that closes what it doesn't need goes on.
func TestLimit(t *testing.T) {
	c := newClient(t)
	for i := range 5 * maxIDs {
		id := fmt.Sprintf("target %03d", i)
		c.registered(id, true)
		c.send(capsule.Append(nil, capsule.CloseTargetCID, []byte(id)))
	}
	for i := range maxIDs {
		c.registered(fmt.Sprintf("again %03d", i), true)
	}
	c.send(capsule.AppendFields(nil, capsule.RegisterTargetCID, []byte("too many"), nil))
	for {
		kind, content, err := capsule.Read(c.read)
		if err == io.EOF {
			return
		}
		if err != nil || kind != capsule.MaxConnectionIDs {
			t.Fatalf("the answer to a registration too many: %#x %q %v", kind, content, err)
		}
	}
}

// Clients only reach what they may.
func TestRefusals(t *testing.T) {
	c := newClient(t)
	for host, want := range map[string]int{"127.0.0.2": http.StatusForbidden, "%3A%3A1": http.StatusForbidden} {
		if response := c.open(host, 4433); response.StatusCode != want {
			t.Errorf("%s: %s", host, response.Status)
		}
	}
	if response := c.open("127.0.0.1", 0); response.StatusCode != http.StatusForbidden {
		t.Errorf("port 0: %s", response.Status)
	}
	response, err := http.Get("http://" + c.proxy.Addr().String() + "/.well-known/masque/udp/127.0.0.1/4433/")
	check(t, err)
	defer response.Body.Close()
	if response.StatusCode != http.StatusBadRequest {
		t.Errorf("without an upgrade: %s", response.Status)
	}
	for _, config := range []Config{
		{}, {Listen: netip.MustParseAddrPort("0.0.0.0:443")}, {Listen: netip.MustParseAddrPort("127.0.0.1:443")},
	} {
		if p, err := Start(config); err == nil {
			t.Errorf("%+v starts %v", config, p.Close())
		}
	}
}
