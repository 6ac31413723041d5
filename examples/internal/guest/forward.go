package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/fastrelay/fastrelay-gen/gen/glue"
	"github.com/fastrelay/fastrelay-gen/runtime"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// Ports and the channel of the one session that is opened.
const (
	clientPort  = 40001
	serverPort  = 3478
	relayedPort = 50000
	peerPort    = 7000
	channel     = 0x4001
)

// patience is enough for an emulated processor, neighbour resolution included.
const patience = 20 * time.Second

// forward attaches the TURN relay between two devices, and sends a message there and back for each combination of
// address families. Then another relay adopts its state, as after a restart of the process, and a device is
// replaced by another of its name. It returns how the programs were attached.
func (r *relay) forward(clsact bool) (how string, err error) {
	network, err := testnet.New()
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, network.Close()) }()
	line, err := network.Line()
	if err != nil {
		return "", err
	}
	desc := glue.Desc(r.plan)
	defer os.RemoveAll(pinPath) // after a failure
	opt := runtime.Options{
		Clsact: clsact, Lease: time.Minute, PinPath: pinPath, Linger: time.Minute,
		Logger: slog.New(slog.DiscardHandler),
	}
	load := func() (loaded *runtime.Relay, err error) {
		err = line.Relay.Do(func() (err error) {
			loaded, err = runtime.Load(&desc, r.object, opt)
			return err
		})
		return loaded, err
	}
	loaded, err := load()
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, loaded.Close()) }()
	toPeer, toClient := loaded.Program("to_peer"), loaded.Program("to_client")
	if err := errors.Join(toPeer.Attach(line.RelayIn.Name), toClient.Attach(line.RelayOut.Name)); err != nil {
		return "", err
	}
	for _, c := range []struct{ client, peer int }{{4, 4}, {6, 6}, {4, 6}, {6, 4}} {
		if err := talk(loaded, line, c.client, c.peer); err != nil {
			return "", fmt.Errorf("client IPv%d, peer IPv%d: %w", c.client, c.peer, err)
		}
	}
	for _, p := range []*runtime.AnyProgram{toPeer, toClient} {
		if n, err := p.Count("sent"); err != nil || n.Packets != 4 {
			return "", errors.Join(err, fmt.Errorf("%v counted %d packets as sent, not 4", p, n.Packets))
		}
	}
	mode := toPeer.Attachments()[0].Mode
	at := func(port uint16) netip.AddrPort { return netip.AddrPortFrom(line.PeerAddr.Of(4), port) }
	if _, err := loaded.Open("channel", at(1), at(2), channel, at(3), at(4)); err != nil {
		return "", err
	}
	if err := loaded.Close(); err != nil {
		return "", err
	}
	opt.Linger = 0
	next, err := load()
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, next.Close()) }()
	if n := next.OpenSessions("channel"); n != 1 {
		return "", fmt.Errorf("%d sessions were adopted, not 1", n)
	}
	if err := talk(next, line, 4, 4); err != nil {
		return "", fmt.Errorf("after the adoption: %w", err)
	}
	return mode.String(), replaced(network, line, next.Program("to_peer"), mode)
}

// pinPath is where the relay is pinned.
const pinPath = "/sys/fs/bpf/fastrelay-testkernel"

// replaced deletes the device that a program is attached to and makes another of that name, to which the program
// has to be attached then.
func replaced(network *testnet.Net, line *testnet.Line, p *runtime.AnyProgram, mode runtime.AttachMode) error {
	if err := line.Relay.Do(func() error {
		old := netlink.LinkAttrs{Name: line.RelayIn.Name, Index: line.RelayIn.Index}
		return netlink.LinkDel(&netlink.Device{LinkAttrs: old})
	}); err != nil {
		return err
	}
	missed := func() bool { return p.Attachments()[0].Lost != nil }
	if err := testnet.Until(patience, "the device is missed", missed); err != nil {
		return err
	}
	dev, _, err := network.Join(line.Relay, line.RelayIn.Name, line.Client, "again")
	if err != nil {
		return err
	}
	return testnet.Until(patience, "the program is attached to the new device", func() bool {
		at := p.Attachments()
		return len(at) == 1 && at[0] == runtime.Attachment{Interface: dev.Name, Index: dev.Index, Mode: mode}
	})
}

// talk opens a channel and sends a message through it in both directions.
func talk(loaded *runtime.Relay, line *testnet.Line, clientFamily, peerFamily int) error {
	at := func(a testnet.Addrs, family int, port uint16) netip.AddrPort {
		return netip.AddrPortFrom(a.Of(family), port)
	}
	client, server := at(line.ClientAddr, clientFamily, clientPort), at(line.RelayInAddr, clientFamily, serverPort)
	relayed, peer := at(line.RelayOutAddr, peerFamily, relayedPort), at(line.PeerAddr, peerFamily, peerPort)

	session, err := loaded.Open("channel", client, server, channel, relayed, peer)
	if err != nil {
		return err
	}
	defer session.Close()
	clientSocket, err := listen(line.Client, client)
	if err != nil {
		return err
	}
	defer clientSocket.Close()
	peerSocket, err := listen(line.Peer, peer)
	if err != nil {
		return err
	}
	defer peerSocket.Close()

	message := []byte("through the kernel")
	framed := binary.BigEndian.AppendUint16(nil, channel)
	framed = binary.BigEndian.AppendUint16(framed, uint16(len(message)))
	framed = append(framed, message...)
	if err := pass(clientSocket, server, framed, peerSocket, relayed, message); err != nil {
		return fmt.Errorf("to the peer: %w", err)
	}
	if err := pass(peerSocket, relayed, message, clientSocket, server, framed); err != nil {
		return fmt.Errorf("to the client: %w", err)
	}
	return session.Close()
}

func listen(h *testnet.Host, at netip.AddrPort) (socket *net.UDPConn, err error) {
	err = h.Do(func() (err error) {
		socket, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
		return err
	})
	return socket, err
}

// pass sends a datagram on one socket, and expects another on the other.
func pass(out *net.UDPConn, to netip.AddrPort, sent []byte, in *net.UDPConn, from netip.AddrPort, want []byte) error {
	if _, err := out.WriteToUDPAddrPort(sent, to); err != nil {
		return err
	}
	return receive(in, from, want)
}

// receive expects a datagram on a socket.
func receive(in *net.UDPConn, from netip.AddrPort, want []byte) error {
	if err := in.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	got := make([]byte, 16<<10)
	n, sender, err := in.ReadFromUDPAddrPort(got)
	if err != nil {
		return err
	}
	sender = netip.AddrPortFrom(sender.Addr().Unmap(), sender.Port())
	if sender != from || !bytes.Equal(got[:n], want) {
		return fmt.Errorf("%x came from %s, expected was %x from %s", got[:n], sender, want, from)
	}
	return nil
}

// checkForwarding attaches the relay in every way that this kernel has: by TCX since Linux 6.6, and by clsact.
func checkForwarding(rep *reporter, dir string) {
	how := ""
	forward := func(clsact bool) {
		rep.check(dir, "forward", func() (string, error) {
			r, err := read(dir)
			if err != nil {
				return "", err
			}
			how, err = r.forward(clsact)
			return "8 packets forwarded by " + how, err
		})
	}
	if forward(false); how == "tcx" {
		forward(true)
	}
}
