package main

import (
	"context"
	"net"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/pion/logging"
	"github.com/pion/turn/v5"

	"github.com/fastrelay/fastrelay-gen/internal/test/turnlab"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// echo answers all datagrams of a socket until it is closed.
func echo(c *net.UDPConn) {
	buf := make([]byte, 64<<10)
	for {
		n, from, err := c.ReadFromUDPAddrPort(buf)
		if err != nil {
			return
		}
		_, _ = c.WriteToUDPAddrPort(buf[:n], from)
	}
}

// pion's client sends its first packets as Send indications, until the server has answered its ChannelBind; from then
// on all of them take the kernel's path.
func TestPionClient(t *testing.T) {
	needs.Root(t)
	l := line(t)
	b := &bed{T: t, line: l, server: serveLine(t, l)}
	for _, f := range []struct{ family, requested int }{{4, 1}, {6, 2}} {
		peer := udpSocket(t, l.Peer, at(l.PeerAddr.Of(f.family), 0))
		go echo(peer)
		conn := udpSocket(t, l.Client, at(l.ClientAddr.Of(f.family), 0))
		server := at(l.RelayInAddr.Of(f.family), turnPort).String()
		client, err := turn.NewClient(&turn.ClientConfig{
			STUNServerAddr: server, TURNServerAddr: server, Conn: conn,
			Username: turnlab.User, Password: turnlab.Password, Realm: turnlab.Realm,
			LoggerFactory: logging.NewDefaultLoggerFactory(),
		})
		check(t, err)
		t.Cleanup(client.Close)
		check(t, client.Listen())
		relayed, err := client.Allocate()
		check(t, err)
		ping := func() bool {
			_, err := relayed.WriteTo([]byte("ping"), peer.LocalAddr())
			check(t, err)
			check(t, relayed.SetReadDeadline(time.Now().Add(wait)))
			buf := make([]byte, 100)
			n, from, err := relayed.ReadFrom(buf)
			check(t, err)
			return string(buf[:n]) == "ping" && from.String() == peer.LocalAddr().String()
		}
		before, _ := sent(b.stats())
		check(t, testnet.Until(wait, "the client uses its channel", func() bool {
			if !ping() {
				t.Fatal("the echo is wrong")
			}
			now, _ := sent(b.stats())
			return now > before
		}))
		b.inKernel(100, func() {
			for range 100 {
				if !ping() {
					t.Fatal("the echo is wrong")
				}
			}
		})
		check(t, relayed.Close())
		check(t, testnet.Until(wait, "the channel ends", func() bool { return b.stats().InKernel == 0 }))
	}
}

var lostPackets = regexp.MustCompile(`Total lost packets (\d+)`)

// coturn's client and peer: several clients with a channel each, whose messages come back. None is lost, and all took
// the kernel's path.
func TestCoturnClient(t *testing.T) {
	needs.Root(t)
	const clients, messages, size, peerPort = 4, 50, 170, 3480
	for _, family := range []int{4, 6} {
		t.Run("IPv"+strconv.Itoa(family), func(t *testing.T) {
			l := line(t)
			b := &bed{T: t, line: l, server: serveLine(t, l)}
			ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
			defer cancel()
			peer := l.Peer.Command(ctx, "turnutils_peer", "-L", l.PeerAddr.Of(family).String(), "-p",
				strconv.Itoa(peerPort))
			check(t, testnet.StartChild(peer))
			defer func() {
				cancel()
				_ = peer.Wait() // killed
			}()
			args := []string{
				"-u", turnlab.User, "-w", turnlab.Password, "-e", l.PeerAddr.Of(family).String(), "-r",
				strconv.Itoa(peerPort),
				"-n", strconv.Itoa(messages), "-m", strconv.Itoa(clients), "-l", strconv.Itoa(size), "-z", "5", "-c",
				"-L", l.ClientAddr.Of(family).String(),
			}
			if family == 6 {
				args = append(args, "-x")
			}
			out, err := l.Client.Command(ctx, "turnutils_uclient",
				append(args, l.RelayInAddr.Of(family).String())...).CombinedOutput()
			if err != nil {
				t.Fatalf("turnutils_uclient: %v\n%s", err, out)
			}
			last := lostPackets.FindAllSubmatch(out, -1)
			if len(last) == 0 || string(last[len(last)-1][1]) != "0" {
				t.Errorf("packets were lost:\n%s", out)
			}
			s := b.stats()
			toPeer, toClient := sent(s)
			if want := uint64(clients * messages); toPeer < want || toClient < want {
				t.Errorf("the kernel sent %d packets to the peer and %d to the clients, want %d each\n%v\n%s", toPeer,
					toClient, want, s, out)
			}
			// What is left for user space are requests and their answers.
			if s.UserReceived > 20*clients {
				t.Errorf("user space received %d packets\n%v", s.UserReceived, s)
			}
		})
	}
}
