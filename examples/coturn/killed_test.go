package coturn

import (
	"net"
	"testing"
)

// Another client gets the relayed address of one whose server was killed, and what peers send to it.
func TestServerKilled(t *testing.T) {
	b := newBed(t, usual, 0, "--min-port", "50000", "--max-port", "50000")
	old, peer := b.client()
	b.coturn.kill()
	b.until("its channel has ended", func() bool { return b.relay.Runtime().OpenSessions("channel") == 0 })
	b.startCoturn()
	next, _ := b.client()
	if next.Relayed != old.Relayed {
		t.Fatalf("the next client has %v, the one before %v", next.Relayed, old.Relayed)
	}
	b.check(next.Bind(number+1, peer.LocalAddr().(*net.UDPAddr).AddrPort()))
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
