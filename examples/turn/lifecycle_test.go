package main

import (
	"errors"
	"net"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/fastrelay/fastrelay-gen/internal/test/dissect"
	"github.com/fastrelay/fastrelay-gen/internal/test/turnlab"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// second is another client with its own channel to another peer on the same hosts. What it sends arrives after
// everything that was sent before on the same path, so that absence is known without waiting.
type second struct {
	client *turnlab.Client
	peer   *net.UDPConn
}

func (b *bed) second() *second {
	b.Helper()
	s := &second{
		client: dial(b.T, b.line.Client, b.line.ClientAddr.V4, at(b.line.RelayInAddr.V4, turnPort)),
		peer:   udpSocket(b.T, b.line.Peer, at(b.line.PeerAddr.V4, 0)),
	}
	check(b.T, s.client.Open(channel, addrOf(s.peer)))
	roundTrip(b.T, s.client, channel, s.peer, 1)
	return s
}

// stale sends packets both ways on the bed's first channel and fails if any of them arrives.
func (b *bed) stale(s *second) {
	b.Helper()
	drain(b.peer)
	drain(b.client.Conn)
	for range 20 {
		check(b.T, b.client.Send(channel, []byte("stale")))
		_, err := b.peer.WriteToUDPAddrPort([]byte("stale"), b.client.Relayed)
		check(b.T, err)
	}
	roundTrip(b.T, s.client, channel, s.peer, 5)
	if n := drain(b.peer); n > 0 {
		b.Errorf("%d packets still reached the peer", n)
	}
	if n := drain(b.client.Conn); n > 0 {
		b.Errorf("%d packets still reached the client", n)
	}
}

// drain reads what has arrived already and counts it.
func drain(c *net.UDPConn) (n int) {
	buf := make([]byte, 2048)
	for {
		_ = c.SetReadDeadline(time.Now().Add(time.Millisecond))
		if _, err := c.Read(buf); errors.Is(err, os.ErrDeadlineExceeded) {
			return n
		} else if err == nil {
			n++
		}
	}
}

// Refreshing a channel and its allocation changes nothing for the packets that flow.
func TestRefresh(t *testing.T) {
	needs.Root(t)
	b := newBed(t, 4, 4)
	b.roundTrip(1)
	for range 3 {
		check(t, b.client.Bind(channel, addrOf(b.peer)))
		check(t, b.client.Refresh(10*time.Minute))
		b.inKernel(1, func() { b.roundTrip(64) })
	}
	if s := b.stats(); s.Channels != 1 || s.InKernel != 1 {
		t.Errorf("counters: %+v", s)
	}
}

// A bound number can't be given to another peer, nor a peer another number (RFC 8656 §12.1); after the channel has
// expired both can, and nothing takes the old path.
func TestRebindAfterExpiry(t *testing.T) {
	needs.Root(t)
	b := newBed(t, 4, 4, "--channel-lifetime", "1s")
	b.roundTrip(1)
	other := udpSocket(t, b.line.Peer, at(b.line.PeerAddr.V4, 0))
	var refused *turnlab.RequestError
	if err := b.client.Bind(channel, addrOf(other)); !errors.As(err, &refused) || refused.Code != 400 {
		t.Errorf("the number was bound to another peer as well: %v", err)
	}
	if err := b.client.Bind(channel+1, addrOf(b.peer)); !errors.As(err, &refused) || refused.Code != 400 {
		t.Errorf("the peer was bound to another number as well: %v", err)
	}
	b.inKernel(1, func() { b.roundTrip(64) })
	check(t, testnet.Until(5*time.Second, "the channel expires", func() bool { return b.stats().Channels == 0 }))
	if s := b.stats(); s.InKernel != 0 {
		t.Errorf("%d sessions outlive their channels", s.InKernel)
	}
	check(t, b.client.Bind(channel, addrOf(other)))
	drain(b.peer)
	roundTrip(t, b.client, channel, other, 10)
	if n := drain(b.peer); n > 0 {
		t.Errorf("%d packets went to the old peer", n)
	}
}

// An expired channel forwards nothing in either direction.
func TestExpiry(t *testing.T) {
	needs.Root(t)
	b := newBed(t, 4, 4, "--channel-lifetime", "1s")
	b.roundTrip(1)
	check(t, testnet.Until(5*time.Second, "the channel expires", func() bool { return b.stats().Channels == 0 }))
	drain(b.peer)
	check(t, b.client.Send(channel, []byte("stale")))
	s := b.second()
	roundTrip(t, s.client, channel, s.peer, 5)
	if n := drain(b.peer); n > 0 {
		t.Errorf("%d packets still reached the peer", n)
	}
}

// TURN has no idle time: a channel that was quiet for several leases is as good as ever.
func TestQuietChannel(t *testing.T) {
	needs.Root(t)
	b := newBed(t, 4, 4)
	b.roundTrip(1)
	quiet := time.Now().Add(3 * time.Second)
	check(t, testnet.Until(5*time.Second, "three seconds", func() bool { return time.Now().After(quiet) }))
	b.inKernel(1, func() { b.roundTrip(64) })
}

// An allocation that its client ends takes its channels with it.
func TestDeallocate(t *testing.T) {
	needs.Root(t)
	b := newBed(t, 4, 4)
	s := b.second()
	b.roundTrip(1)
	check(t, b.client.Refresh(0))
	b.stale(s)
	check(t, testnet.Until(wait, "one allocation is left", func() bool {
		st := b.stats()
		return st.Allocations == 1 && st.InKernel == 1
	}))
}

// A channel that ends while packets flow both ways ends between two packets: what was forwarded is whole, and
// after the answer nothing is forwarded.
func TestCloseWhileFlowing(t *testing.T) {
	needs.Root(t)
	b := newBed(t, 4, 4)
	s := b.second()
	b.roundTrip(1)
	relayed, stop := b.client.Relayed, make(chan struct{})
	capture, err := b.line.PeerDev.Capture()
	check(t, err)
	var flows sync.WaitGroup
	for _, send := range []func() error{
		func() error { return b.client.Send(channel, []byte("flowing")) },
		func() error { _, err := b.peer.WriteToUDPAddrPort([]byte("flowing"), relayed); return err },
	} {
		flows.Go(func() {
			pace := time.NewTicker(100 * time.Microsecond) // at full speed the server's answers would be lost
			defer pace.Stop()
			for {
				select {
				case <-stop:
					return
				case <-pace.C:
					_ = send() // refused once no socket listens there
				}
			}
		})
	}
	p0, c0 := sent(b.stats())
	check(t, testnet.Until(wait, "packets flow both ways", func() bool {
		p, c := sent(b.stats())
		return p > p0+1000 && c > c0+1000
	}))
	check(t, b.client.Refresh(0))
	p1, c1 := sent(b.stats())
	roundTrip(t, s.client, channel, s.peer, 5)
	close(stop)
	flows.Wait()
	p2, c2 := sent(b.stats())
	if p2-p1 > 1 || c2-c1 > 1 { // the round trip of the second channel
		t.Errorf("after the end %d packets were forwarded to the peer, %d to the client", p2-p1-1, c2-c1-1)
	}
	b.stale(s)
	frames, err := capture.Stop()
	check(t, err)
	for _, f := range frames {
		if err := dissect.Check(f); err != nil {
			t.Fatal(err)
		}
	}
}

// A server that is killed leaves programs and rows behind; its lease lapses within a second, and then nothing is
// forwarded. One that starts afterwards begins anew.
func TestKilled(t *testing.T) {
	needs.Root(t)
	b := newBed(t, 4, 4)
	check(t, b.line.Relay.SetForwarding(true))
	b.inKernel(1, func() { b.roundTrip(1) })
	direct := udpSocket(t, b.line.Client, at(b.line.ClientAddr.V4, 0))
	b.server.Kill()
	killed, sent, last := time.Now(), []time.Time{}, time.Time{} // last is when the last that arrived was sent
	lost := func() (all bool) {
		number := strconv.Itoa(len(sent))
		sent = append(sent, time.Now())
		_ = b.client.Send(channel, []byte(number)) // refused, since no socket listens
		// The barrier: an ordinary packet to the peer, routed.
		_, err := direct.WriteToUDPAddrPort([]byte("barrier "+number), addrOf(b.peer))
		check(t, err)
		check(t, b.peer.SetReadDeadline(time.Now().Add(wait)))
		buf := make([]byte, 100)
		for all = true; ; {
			n, err := b.peer.Read(buf)
			check(t, err)
			if string(buf[:n]) == "barrier "+number {
				return all
			}
			if i, err := strconv.Atoi(string(buf[:n])); err == nil && i < len(sent) {
				all, last = false, sent[i]
			}
		}
	}
	inARow := 0
	check(t, testnet.Until(wait, "the lease lapses", func() bool {
		if inARow++; !lost() {
			inARow = 0
		}
		return inARow == 4
	}))
	if took := last.Sub(killed); took > 1050*time.Millisecond {
		t.Errorf("packets were forwarded for %v after the server's death", took)
	}
	b.server = serveLine(t, b.line)
	if !lost() {
		t.Error("the new server's relay forwards the old one's channel")
	}
	b.client = dial(t, b.line.Client, b.line.ClientAddr.V4, at(b.line.RelayInAddr.V4, turnPort))
	check(t, b.client.Open(channel, addrOf(b.peer)))
	b.roundTrip(1)
	b.inKernel(1, func() { b.roundTrip(64) })
}

// A server that is asked to end takes its relay along.
func TestStopped(t *testing.T) {
	needs.Root(t)
	b := newBed(t, 4, 4)
	b.roundTrip(1)
	check(t, b.server.Stop())
	drain(b.peer)
	check(t, b.line.Relay.SetForwarding(true))
	_ = b.client.Send(channel, []byte("stale")) // refused, since no socket listens
	// The barrier: an ordinary packet to the peer, routed.
	direct := udpSocket(t, b.line.Client, at(b.line.ClientAddr.V4, 0))
	_, err := direct.WriteToUDPAddrPort([]byte("barrier"), addrOf(b.peer))
	check(t, err)
	buf := make([]byte, 100)
	check(t, b.peer.SetReadDeadline(time.Now().Add(wait)))
	n, err := b.peer.Read(buf)
	check(t, err)
	if string(buf[:n]) != "barrier" {
		t.Errorf("a stopped server's relay forwarded %q", buf[:n])
	}
}
