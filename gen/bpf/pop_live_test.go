//go:build linux

package bpf_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"net/netip"
	"testing"
	"time"

	"github.com/fastrelay/fastrelay-gen/internal/test/dissect"
	"github.com/fastrelay/fastrelay-gen/internal/test/offloads"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// A header of variable length goes from after a UDP header whose checksum a device has yet to complete: what follows
// moves by none to three bytes.
func TestPopVariable(t *testing.T) {
	needs.Root(t)
	u := compile(t, "../../golden/pop-variable/spec.cue")
	for _, family := range []int{4, 6} {
		for _, offload := range [][2]bool{{true, true}, {true, false}, {false, true}, {false, false}} {
			t.Run(fmt.Sprintf("IPv%d, sender %v, relay %v", family, offload[0], offload[1]), func(t *testing.T) {
				popVariable(t, u, family, offload)
			})
		}
	}
}

func popVariable(t *testing.T, u *unit, family int, offload [2]bool) {
	line, err := testnet.Start(t).Line()
	if err != nil {
		t.Fatal(err)
	}
	for dev, on := range map[*testnet.Dev]bool{line.ClientDev: offload[0], line.RelayOut: offload[1]} {
		if err := offloads.TxChecksum(dev, on); err != nil {
			t.Fatal(err)
		}
	}
	client, server := netip.AddrPortFrom(line.ClientAddr.Of(family), 40001),
		netip.AddrPortFrom(line.RelayInAddr.Of(family), 443)
	relayed, peer := netip.AddrPortFrom(line.RelayOutAddr.Of(family), 5000),
		netip.AddrPortFrom(line.PeerAddr.Of(family), 6000)
	relay := &turn{u.load(t), u.plan}
	put(t, relay.Maps["fr_lease"], uint32(0), append(binary.LittleEndian.AppendUint64(nil, math.MaxUint64),
		make([]byte, 32)...))
	for _, table := range u.plan.Tables {
		if table.Name == "peers" {
			row := values{"local": relayed, "remote": peer, "hop_remote": hop(1, line.RelayOut, line.PeerDev)}
			put(t, relay.Maps["tbl_peers"], encode(t, &table.Key, values{"id": 7}), encode(t, &table.Value, row))
		}
	}
	relay.attach(t, "strip", line.RelayIn)
	atClient, atPeer := listen(t, line.Client, client), listen(t, line.Peer, peer)
	seen, err := line.PeerDev.Capture()
	if err != nil {
		t.Fatal(err)
	}
	defer seen.Stop()
	sent := 0
	for n := range 4 {
		for _, size := range []int{0, 1, 2, 33, 1200, 1201} {
			payload := bytes.Repeat([]byte{byte(17*n + size + 1)}, size)
			flow := func(kind byte) []byte {
				b := append([]byte{0, 7, kind, 0, 0, 5}, payload...)
				binary.BigEndian.PutUint16(b[3:], checksum(b))
				return b
			}
			tun := append([]byte{byte(n)}, bytes.Repeat([]byte{0xAB}, n)...)
			exchange(t, atClient, server, append(tun, flow(1)...), atPeer, relayed, flow(9))
			sent++
		}
	}
	if got := relay.counts(t, "strip")["sent"]; got != uint64(sent) {
		t.Errorf("%d packets were sent by the relay, want %d: %v", got, sent, relay.counts(t, "strip"))
	}
	if err := testnet.Until(2*time.Second, "all of them at the peer", func() bool {
		return len(arrived(seen)) >= sent
	}); err != nil {
		t.Error(err)
	}
	for _, f := range arrived(seen) {
		if err := dissect.Check(f); err != nil {
			t.Errorf("%v\n%x", err, f.Data)
		}
	}
}

// checksum is the internet checksum of bytes.
func checksum(b []byte) uint16 {
	var sum uint32
	for i, x := range b {
		if i%2 == 0 {
			sum += uint32(x) << 8
		} else {
			sum += uint32(x)
		}
	}
	for sum > 0xFFFF {
		sum = sum>>16 + sum&0xFFFF
	}
	return ^uint16(sum)
}
