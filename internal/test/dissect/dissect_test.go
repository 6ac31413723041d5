package dissect_test

import (
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/gopacket/gopacket/layers"

	"github.com/fastrelay/fastrelay-gen/internal/test/dissect"
	"github.com/fastrelay/fastrelay-gen/internal/test/offloads"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// send sends a datagram from client to peer.
func send(t *testing.T, l *testnet.Line, family int, payload string) {
	t.Helper()
	err := l.Client.Do(func() error {
		conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(l.PeerAddr.Of(family), 9)))
		if err != nil {
			return err
		}
		defer conn.Close()
		_, err = conn.Write([]byte(payload))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// A capture distinguishes partial from complete checksums, and Check reads both.
func TestCaptureChecksums(t *testing.T) {
	needs.Root(t)
	l, err := testnet.Start(t).Line()
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Relay.SetForwarding(true); err != nil {
		t.Fatal(err)
	}
	for _, offload := range []bool{true, false} {
		if err := offloads.TxChecksum(l.ClientDev, offload); err != nil {
			t.Fatal(err)
		}
		c, err := l.PeerDev.Capture()
		if err != nil {
			t.Fatal(err)
		}
		for _, family := range []int{4, 6} {
			send(t, l, family, "hello")
		}
		udp := func() (found []testnet.Frame) {
			for _, f := range c.Frames() {
				if _, payload, ok := dissect.UDP(f); ok && string(payload) == "hello" {
					found = append(found, f)
				}
			}
			return found
		}
		err = testnet.Until(2*time.Second, "both packets captured", func() bool { return len(udp()) == 2 })
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range udp() {
			if f.Partial != offload {
				t.Errorf("transmit offload %v, but partial is %v", offload, f.Partial)
			}
			if err := dissect.Check(f); err != nil {
				t.Error(err)
			}
			f.Data[len(f.Data)-1] ^= 1
			if err := dissect.Check(f); err == nil && !f.Partial {
				t.Error("a wrong checksum was not found")
			}
			err := dissect.Tshark([]testnet.Frame{f})
			if !f.Partial && (err == nil || !strings.Contains(err.Error(), "objects to 1 of 1")) {
				t.Errorf("tshark did not find a wrong checksum: %v", err)
			}
		}
		if _, err := c.Stop(); err != nil {
			t.Fatal(err)
		}
	}
}

// A decoder finds no fault in the stray packets of FASTRELAY_TEST_NOISE.
func TestNoise(t *testing.T) {
	needs.Root(t)
	t.Setenv("FASTRELAY_TEST_NOISE", "100us")
	l, err := testnet.Start(t).Line()
	if err != nil {
		t.Fatal(err)
	}
	c, err := l.PeerDev.Capture()
	if err != nil {
		t.Fatal(err)
	}
	err = testnet.Until(5*time.Second, "100 stray packets", func() bool { return len(c.Frames()) >= 100 })
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range c.Frames() {
		p := dissect.Packet(f)
		icmp, ok := p.Layer(layers.LayerTypeICMPv6).(*layers.ICMPv6)
		if e := p.ErrorLayer(); e != nil || !ok && p.Layer(layers.LayerTypeARP) == nil {
			t.Errorf("not understood: %v", p)
		} else if ok {
			if err := icmp.SetNetworkLayerForChecksum(p.NetworkLayer()); err != nil {
				t.Fatal(err)
			}
			if err, result := icmp.VerifyChecksum(); err != nil || !result.Valid {
				t.Errorf("checksum %#04x, right is %#04x", result.Actual, result.Correct)
			}
		}
	}
}
