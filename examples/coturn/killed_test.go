package coturn

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

var (
	// onePort has coturn give the same relayed address to one client after the other.
	onePort = []string{"--min-port", "50000", "--max-port", "50000"}
	// longHold has sessions end because the helper ends them, and not by themselves.
	longHold = []string{"--hold", "600"}
	// noRoom has the helper miss what it doesn't read at once.
	noRoom = append([]string{"--buffer", "4096"}, longHold...)
)

// Another client gets the relayed address of one whose server was killed, and what peers send to it.
func TestServerKilled(t *testing.T) {
	b := newBed(t, usual, onePort, nil)
	old, peer := b.client()
	b.coturn.kill()
	b.until("its channel has ended", func() bool { return b.relay.Runtime().OpenSessions("channel") == 0 })
	b.startCoturn()
	next, _ := b.client()
	if next.Relayed != old.Relayed {
		t.Fatalf("the next client has %v, the one before %v", next.Relayed, old.Relayed)
	}
	b.check(next.Bind(number+1, address(peer)))
	b.until("its channels are in the kernel", func() bool { return b.relay.Runtime().OpenSessions("channel") == 2 })
	_, err := peer.WriteToUDPAddrPort([]byte("secret"), next.Relayed)
	b.check(err)
	if _, payload, err := next.Receive(wait); err != nil || string(payload) != "secret" {
		t.Errorf("the next client got %q: %v", payload, err)
	}
	if old.Refresh(usual) == nil {
		t.Error("the old client has an allocation")
	}
	if _, payload, err := old.Receive(0); err == nil {
		t.Errorf("the old client got %q", payload)
	}
}

// What the helper has no room for is noticed: the session of an allocation ends whose end was missed.
func TestMissed(t *testing.T) {
	b := newBed(t, usual, onePort, noRoom)
	old, peer := b.client()
	b.stopHelper()
	for range 100 {
		b.check(old.Bind(number, address(peer)))
	}
	b.check(old.Refresh(0))
	b.until("its socket is closed", func() bool { return len(b.sockets()) == 0 })
	next, err := b.dial()
	b.check(err)
	defer next.Close()
	b.check(next.Open(number, address(peer)))
	if next.Relayed != old.Relayed {
		t.Fatalf("the next client has %v, the one before %v", next.Relayed, old.Relayed)
	}
	b.check(b.helper.cmd.Process.Signal(syscall.SIGCONT))
	b.until("the helper notices it", func() bool { return strings.Contains(b.helper.said(), "messages were missed") })
	b.until("its channel has ended", func() bool { return b.relay.Runtime().OpenSessions("channel") == 0 })
	_, err = peer.WriteToUDPAddrPort([]byte("secret"), next.Relayed)
	b.check(err)
	if _, payload, err := next.Receive(wait); err != nil || string(payload) != "secret" {
		t.Errorf("the next client got %q: %v", payload, err)
	}
	if old.Refresh(usual) == nil {
		t.Error("the old client has an allocation")
	}
	if _, payload, err := old.Receive(0); err == nil {
		t.Errorf("the old client got %q", payload)
	}
}

// That a socket was closed can be missed, too.
func TestMissedSockets(t *testing.T) {
	b := newBed(t, usual, nil, noRoom)
	b.client()
	b.stopHelper()
	for range 100 {
		b.check(b.line.Relay.Do(func() error {
			s, err := net.ListenUDP("udp4", nil)
			if err == nil {
				err = s.Close()
			}
			return err
		}))
	}
	b.until("the kernel has no room for more", func() bool {
		sockets, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/netlink", b.helper.cmd.Process.Pid))
		b.check(err)
		for line := range strings.Lines(string(sockets)) { // sk Eth Pid Groups Rmem Wmem Dump Locks Drops Inode
			if f := strings.Fields(line); f[1] == "4" && f[8] != "0" {
				return true
			}
		}
		return false
	})
	b.coturn.kill()
	b.check(b.helper.cmd.Process.Signal(syscall.SIGCONT))
	b.until("the channel has ended", func() bool { return b.relay.Runtime().OpenSessions("channel") == 0 })
}

// stopHelper has the helper do nothing until SIGCONT.
func (b *bed) stopHelper() {
	b.Helper()
	b.check(b.helper.cmd.Process.Signal(syscall.SIGSTOP))
	b.until("the helper is stopped", func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", b.helper.cmd.Process.Pid))
		b.check(err)
		return strings.Contains(string(stat), ") T ")
	})
}

// sockets returns the addresses of coturn's open sockets for peers, in order.
func (b *bed) sockets() (out []netip.AddrPort) {
	b.check(b.line.Relay.Do(func() error {
		sockets, err := netlink.SocketDiagUDP(unix.AF_INET)
		for _, s := range sockets {
			at, _ := netip.AddrFromSlice(s.ID.Source)
			if at = at.Unmap(); at == b.line.RelayOutAddr.V4 && s.ID.SourcePort != port && s.ID.SourcePort != port+1 {
				out = append(out, netip.AddrPortFrom(at, s.ID.SourcePort))
			}
		}
		return err
	}))
	slices.SortFunc(out, netip.AddrPort.Compare)
	return out
}
