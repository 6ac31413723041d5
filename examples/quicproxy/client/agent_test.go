package client

import (
	"bufio"
	"bytes"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/fastrelay/fastrelay-gen/examples/quicproxy/capsule"
	"github.com/fastrelay/fastrelay-gen/examples/quicproxy/server"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

const wait = 10 * time.Second

var (
	anywhere = netip.MustParseAddrPort("127.0.0.1:0")
	quiet    = slog.New(slog.DiscardHandler)
)

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func listen(t *testing.T, at netip.AddrPort) *net.UDPConn {
	t.Helper()
	conn, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
	check(t, err)
	t.Cleanup(func() { conn.Close() })
	return conn
}

func receive(t *testing.T, conn *net.UDPConn) ([]byte, netip.AddrPort) {
	t.Helper()
	buf := make([]byte, 2000)
	check(t, conn.SetReadDeadline(time.Now().Add(wait)))
	n, from, err := conn.ReadFromUDPAddrPort(buf)
	check(t, err)
	return buf[:n], from
}

func send(t *testing.T, conn *net.UDPConn, packet []byte, to netip.AddrPort) {
	t.Helper()
	_, err := conn.WriteToUDPAddrPort(packet, to)
	check(t, err)
}

// start starts an agent.
func start(t *testing.T, proxy netip.AddrPort, target net.Addr) *Agent {
	t.Helper()
	a, err := Start(Config{Listen: anywhere, Proxy: proxy, Target: target.String(), Logger: quiet})
	check(t, err)
	t.Cleanup(func() { check(t, a.Close()) })
	return a
}

// long is a packet with a long header.
func long(to, from string) []byte {
	return fmt.Appendf(nil, "\xc0\x00\x00\x00\x01%c%s%c%s", len(to), to, len(from), from)
}

// In any order of moves and packets of either side, each packet arrives once as it was sent. Above all, when the agent
// has moved and the client says nothing: it may have all that it sent acknowledged, and wait for the target.
func TestMoves(t *testing.T) {
	proxy, err := server.Start(server.Config{
		Listen: anywhere, Targets: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}, NoOffload: true,
		Logger: quiet,
	})
	check(t, err)
	t.Cleanup(func() { check(t, proxy.Close()) })
	target, client := listen(t, anywhere), listen(t, anywhere)
	a := start(t, proxy.Addr(), target.LocalAddr())
	var there netip.AddrPort // where the target sends to
	var sent uint64
	carried := func(from *net.UDPConn, to netip.AddrPort, by *net.UDPConn, header string) {
		t.Helper()
		packet := []byte(header)
		if sent++; packet[0]&0x80 == 0 {
			packet = fmt.Appendf(packet, " %d", sent)
		}
		send(t, from, packet, to)
		got, back := receive(t, by)
		if !bytes.Equal(got, packet) {
			t.Fatalf("packet %d: sent %q, received %q", sent, packet, got)
		}
		if by == target {
			there = back
		}
	}
	forth := func(header string) { t.Helper(); carried(client, a.Addr(), target, header) }
	back := func(header string) { t.Helper(); carried(target, there, client, header) }
	stats := func() server.Stats {
		s, err := proxy.Stats()
		check(t, err)
		return s
	}
	forth(string(long("a target", "a client")))
	back(string(long("a client", "a target")))
	for stats().Paths == 0 || stats().ToClient == 0 { // the IDs become known
		forth("\x40a target")
		back("\x40a client")
	}
	random, moves := rand.New(rand.NewPCG(needs.Seed(t), 0)), stats().Paths
	for i := range needs.Of(300, 10_000) {
		before, step := stats(), random.IntN(4)
		if i == 0 {
			step = 0
		}
		switch step {
		case 0:
			check(t, a.Rebind())
			moves++
			check(t, testnet.Until(time.Second, "the proxy follows", func() bool { return stats().Paths == moves }))
			back("\x40a client")
		case 1:
			check(t, client.Close())
			client = listen(t, anywhere)
			forth("\x40a target")
		case 2:
			forth("\x40a target")
		case 3:
			back("\x40a client")
		}
		if s := stats(); s.Tunnelled != before.Tunnelled || s.Paths != moves {
			t.Fatalf("step %d (%d): counters before: %+v\nafter: %+v", i, step, before, s)
		}
	}
}

// A proxy that is written out here loses probes, challenges and responses: the agent goes on until the proxy has said
// that the path of the present socket is validated.
func TestProbes(t *testing.T) {
	udp := listen(t, anywhere)
	proxy := udp.LocalAddr().(*net.UDPAddr).AddrPort()
	listener, err := net.Listen("tcp", proxy.String())
	check(t, err)
	defer listener.Close()
	client := listen(t, anywhere)
	a := start(t, proxy, client.LocalAddr()) // no packet reaches the target
	send(t, client, long("a target", "a client"), a.Addr())
	conn, err := listener.Accept()
	check(t, err)
	defer conn.Close()
	check(t, conn.SetDeadline(time.Now().Add(wait)))
	read := bufio.NewReader(conn)
	_, err = http.ReadRequest(read)
	check(t, err)
	write := func(b []byte) {
		t.Helper()
		_, err := conn.Write(b)
		check(t, err)
	}
	next := func(want capsule.Type) []byte {
		t.Helper()
		for {
			kind, content, err := capsule.Read(read)
			check(t, err)
			if kind == want {
				return content
			}
		}
	}
	write([]byte("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: connect-udp\r\n" +
		"Proxy-QUIC-Forwarding: ?1\r\n\r\n"))
	write(capsule.Append(nil, capsule.MaxConnectionIDs, capsule.AppendVarint(nil, 10)))
	write(capsule.Append(nil, capsule.Datagram, []byte{0}, long("a client", "a target")))
	next(capsule.RegisterTargetCID)
	virtual := []byte("virtual!")
	write(capsule.AppendFields(nil, capsule.AckTargetCID, []byte("a target"), virtual, nil))
	probe := func() netip.AddrPort {
		t.Helper()
		packet, from := receive(t, udp)
		if !bytes.Equal(packet, slices.Concat([]byte{0x40}, virtual)) {
			t.Fatalf("a probe: %q", packet)
		}
		return from
	}
	challenge := func(at netip.AddrPort, content string) {
		t.Helper()
		send(t, udp, []byte("\x00"+content), at)
		if got := next(capsule.PathResponse); string(got) != content {
			t.Fatalf("the response: %q", got)
		}
	}
	validated := func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		for t := range a.tunnels {
			return t.validated
		}
		return false
	}
	probe() // lost
	old := probe()
	challenge(old, "12345678") // this response, too
	probe()
	challenge(old, "23456789")
	check(t, a.Rebind()) // before the proxy has said that it has the response
	write(capsule.Append(nil, capsule.PathResponse, []byte("23456789")))
	write(capsule.Append(nil, capsule.Datagram, []byte("\x00 the agent has read so far")))
	for packet := []byte(nil); string(packet) != " the agent has read so far"; {
		packet, _ = receive(t, client)
	}
	at := probe()
	for at == old { // sent before
		at = probe()
	}
	if validated() {
		t.Fatal("the old path's response has validated the new one")
	}
	challenge(at, "34567890")
	write(capsule.Append(nil, capsule.PathResponse, []byte("34567890")))
	check(t, testnet.Until(time.Second, "the path is validated", validated))
}
