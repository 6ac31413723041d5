package lab

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// patience is enough for an emulated processor.
const patience = 20 * time.Second

// Addr is the client's address.
func (l *Lab) clientAddr(family int) netip.Addr { return l.ClientAddr.Of(family) }

// data is some bytes, the same each time.
func data(n int) []byte {
	p := make([]byte, n)
	source := rand.NewChaCha8([32]byte{1})
	_, _ = source.Read(p) // never fails
	return p
}

// listen opens a UDP socket.
func listen(h *testnet.Host, at netip.AddrPort) (socket *net.UDPConn, err error) {
	err = h.Do(func() (err error) {
		socket, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
		return err
	})
	if err == nil {
		err = socket.SetDeadline(time.Now().Add(patience))
	}
	return socket, err
}

// UDP sends a datagram of that size from the client to the peer, and back.
func (l *Lab) UDP(family, size int) error {
	client, err := listen(l.Client, netip.AddrPortFrom(l.clientAddr(family), 0))
	if err != nil {
		return err
	}
	defer client.Close()
	peer, err := listen(l.Peer, netip.AddrPortFrom(l.Inner.Of(family), 7000))
	if err != nil {
		return err
	}
	defer peer.Close()
	sent, got := data(size), make([]byte, 1<<16)
	if _, err := client.WriteToUDPAddrPort(sent, netip.AddrPortFrom(l.Inner.Of(family), 7000)); err != nil {
		return err
	}
	n, from, err := peer.ReadFromUDPAddrPort(got)
	if err != nil {
		return fmt.Errorf("into the tunnel: %w", err)
	}
	if !bytes.Equal(got[:n], sent) {
		return errors.New("into the tunnel: other bytes than were sent")
	}
	if _, err := peer.WriteToUDPAddrPort(sent, from); err != nil {
		return err
	}
	n, _, err = client.ReadFromUDPAddrPort(got)
	if err != nil {
		return fmt.Errorf("out of the tunnel: %w", err)
	}
	if !bytes.Equal(got[:n], sent) {
		return errors.New("out of the tunnel: other bytes than were sent")
	}
	return nil
}

// Datagrams sends that many datagrams of that size from the client to the peer, as one packet (GSO) that the kernel
// cuts up if it has to, and waits for them. They may arrive in any order: while a capture hasn't read its copy of a
// packet yet, the device at the other end takes that packet another way than the rest (gro_cells_receive).
func (l *Lab) Datagrams(family, size, n int) error {
	peer, err := listen(l.Peer, netip.AddrPortFrom(l.Inner.Of(family), 7000))
	if err != nil {
		return err
	}
	defer peer.Close()
	if err := l.SendDatagrams(family, size, n); err != nil {
		return err
	}
	missing := map[string]int{} // their numbers, by what is in them
	for i, sent := 0, data(size*n); i < n; i++ {
		missing[string(sent[i*size:][:size])] = i + 1
	}
	for got := make([]byte, 1<<16); len(missing) > 0; {
		read, _, err := peer.ReadFromUDPAddrPort(got)
		if err != nil {
			return fmt.Errorf("datagrams %v of %d: %w", slices.Sorted(maps.Values(missing)), n, err)
		}
		if missing[string(got[:read])] == 0 {
			return fmt.Errorf("%d bytes that weren't sent, or came before; datagrams %v of %d haven't come", read,
				slices.Sorted(maps.Values(missing)), n)
		}
		delete(missing, string(got[:read]))
	}
	return nil
}

// Numbers returns which of those datagrams end frames, each the last one of its packet, in the order of the frames.
func Numbers(frames []testnet.Frame, size, n int) (numbers []int) {
	sent := data(size * n)
	for _, f := range frames {
		for i := range n {
			if bytes.HasSuffix(f.Data, sent[i*size:][:size]) {
				numbers = append(numbers, i+1)
			}
		}
	}
	return numbers
}

// SendDatagrams only sends them.
func (l *Lab) SendDatagrams(family, size, n int) error {
	client, err := listen(l.Client, netip.AddrPortFrom(l.clientAddr(family), 0))
	if err != nil {
		return err
	}
	defer client.Close()
	raw, err := client.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) { failed = unix.SetsockoptInt(int(fd), unix.SOL_UDP, unix.UDP_SEGMENT, size) })
	if err := errors.Join(err, failed); err != nil {
		return err
	}
	_, err = client.WriteToUDPAddrPort(data(size*n), netip.AddrPortFrom(l.Inner.Of(family), 7000))
	return err
}

// TCP sends that many bytes from the client to the peer, and then back.
func (l *Lab) TCP(family, size int) error {
	var server net.Listener
	at := netip.AddrPortFrom(l.Inner.Of(family), 7000).String()
	err := l.Peer.Do(func() (err error) {
		server, err = net.Listen("tcp", at)
		return err
	})
	if err != nil {
		return err
	}
	defer server.Close()
	served := make(chan error, 1)
	sent := data(size)
	go func() { served <- answer(server, sent) }()
	var conn net.Conn
	err = l.Client.Do(func() (err error) {
		conn, err = net.DialTimeout("tcp", at, patience)
		return err
	})
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	if _, err := conn.Write(sent); err != nil {
		return fmt.Errorf("into the tunnel: %w", err)
	}
	if err := receive(conn, sent); err != nil {
		return fmt.Errorf("out of the tunnel: %w", err)
	}
	if err := <-served; err != nil {
		return fmt.Errorf("into the tunnel: %w", err)
	}
	return nil
}

// answer receives what is expected on a connection, and sends it back.
func answer(server net.Listener, want []byte) error {
	conn, err := server.Accept()
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	if err := receive(conn, want); err != nil {
		return err
	}
	_, err = conn.Write(want)
	return err
}

func receive(r io.Reader, want []byte) error {
	got := make([]byte, len(want))
	if _, err := io.ReadFull(r, got); err != nil {
		return err
	}
	if sha256.Sum256(got) != sha256.Sum256(want) {
		return errors.New("other bytes than were sent")
	}
	return nil
}

// Ping sends an echo request of that size from the client to the peer, and waits for the reply.
func (l *Lab) Ping(family, size int) error {
	network, request, reply := "ip4:icmp", byte(8), byte(0)
	if family == 6 {
		network, request, reply = "ip6:ipv6-icmp", 128, 129
	}
	var conn net.PacketConn
	err := l.Client.Do(func() (err error) {
		conn, err = net.ListenPacket(network, l.clientAddr(family).String())
		return err
	})
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	message := append([]byte{request, 0, 0, 0, 0x12, 0x34, 0, 1}, data(size)...)
	if family == 4 { // the kernel computes ICMPv6's
		binary.BigEndian.PutUint16(message[2:], Sum(message))
	}
	if _, err := conn.WriteTo(message, &net.IPAddr{IP: l.Inner.Of(family).AsSlice()}); err != nil {
		return err
	}
	got := make([]byte, 1<<16)
	for {
		n, _, err := conn.ReadFrom(got)
		if err != nil {
			return fmt.Errorf("echo reply: %w", err)
		}
		if n == len(message) && got[0] == reply && bytes.Equal(got[4:n], message[4:]) {
			return nil
		}
	}
}

// Sum is the internet checksum (RFC 1071).
func Sum(p []byte) uint16 {
	n := uint32(0)
	for i, b := range p {
		n += uint32(b) << (8 * (1 - i%2))
	}
	for n > 0xFFFF {
		n = n&0xFFFF + n>>16
	}
	return ^uint16(n)
}
