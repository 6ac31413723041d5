package turnlab

import (
	"net/netip"
	"testing"

	"github.com/fastrelay/fastrelay-gen/internal/test/dissect"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

func TestUDPFrame(t *testing.T) {
	mac := []byte{2, 0, 0, 0, 0, 1}
	for _, a := range []string{"192.0.2.1", "2001:db8::1"} {
		addr := netip.AddrPortFrom(netip.MustParseAddr(a), 3478)
		for _, size := range []int{0, 1, 999} {
			f, err := UDPFrame(mac, mac, addr, addr, Payload(size))
			if err != nil {
				t.Fatal(err)
			}
			if err := dissect.Check(testnet.Frame{Data: f}); err != nil {
				t.Errorf("%s, %d bytes: %v", a, size, err)
			}
		}
	}
}
