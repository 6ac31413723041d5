//go:build linux

package bpf_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/test/dissect"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// The sum that a device made follows headers that become zeros: in copies, of which some have them and others don't, in
// the packet that came, and in one that is changed. So do their checksums.
func TestBlankOfCompleteChecksums(t *testing.T) {
	needs.Root(t)
	u := compile(t, "../../golden/blank/spec.cue")
	line, relayIn, _ := tunnel(t)
	capture, err := line.PeerDev.Capture()
	if err != nil {
		t.Fatal(err)
	}
	defer capture.Stop()
	came, err := relayIn.Capture()
	if err != nil {
		t.Fatal(err)
	}
	defer came.Stop()
	sums := watchSums(t, line.PeerDev)
	r := &fan{turn{u.load(t), u.plan}}
	put(t, r.Maps["fr_lease"], uint32(0), append(binary.LittleEndian.AppendUint64(nil, math.MaxUint64),
		make([]byte, 32)...))
	client, server := netip.MustParseAddrPort("198.51.100.2:40001"), netip.MustParseAddrPort("198.51.100.1:4433")
	local := netip.AddrPortFrom(line.RelayOutAddr.V4, 4433)
	var receivers []values
	var peers []*net.UDPConn
	for i, acks := range []int{1, 0, 1, 0} {
		remote := netip.AddrPortFrom(line.PeerAddr.V4, uint16(7000+i))
		peers = append(peers, listen(t, line.Peer, remote))
		receivers = append(receivers, values{
			"local": local, "remote": remote, "acks": acks, "dcid": []byte("receiver"),
			"hop_remote": hop(ir.HopDirect, line.RelayOut, line.PeerDev),
		})
	}
	r.openGroup(t, "clients", values{"dcid": []byte("sender__")}, receivers...)
	r.attach(t, "downstream", relayIn)
	left := watchSums(t, relayIn) // after the relay's program
	sender, atServer := listen(t, line.Client, client), listen(t, line.Relay, server)
	compare := func(what string, w watched, frames []testnet.Frame, before int) {
		t.Helper()
		frame := frames[len(frames)-1-before]
		if w.sum < 0 {
			t.Fatalf("%s: the packet came without a sum (%d): this test shows nothing", what, w.sum)
		}
		if want := sumOf(frame.Data[14:]); fold(uint64(w.sum)) != want {
			t.Errorf("%s: the device's sum is %#04x, the packet's %#04x", what, fold(uint64(w.sum)), want)
		}
		if err := dissect.Check(frame); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	acks := [][]byte{
		{2, 5, 0, 0, 5}, {3, 0x40, 5, 0, 2, 5, 1, 0x40, 2, 3, 4, 1, 2, 3}, {2, 0x80, 0, 1, 0, 0x40, 1, 1, 0, 7, 9}, nil,
	}
	n := uint64(0)
	for _, ack := range acks {
		for _, size := range []int{1, 2, 400} {
			n++
			what := fmt.Sprintf("an ACK of %d bytes, %d of data", len(ack), size)
			number := []byte{0, 0, 0, 9}
			rest := append([]byte{8, 5}, bytes.Repeat([]byte{0xA7}, size+16)...)
			packet := func(id string, number, ack []byte) []byte {
				return bytes.Join([][]byte{{0x43}, []byte(id), number, ack, rest}, nil)
			}
			sent := packet("sender__", number, ack)
			if _, err := sender.WriteToUDPAddrPort(sent, server); err != nil {
				t.Fatal(err)
			}
			expect(t, atServer, client, sent)
			for i, peer := range peers {
				want := packet("receiver", number, ack)
				if i%2 == 1 {
					want = packet("receiver", []byte{0, 0, 0, 7}, make([]byte, len(ack)))
				}
				expect(t, peer, local, want)
			}
			if err := testnet.Until(2*time.Second, "all sums", func() bool {
				return sums(t).count >= 4*n && left(t).count >= n && len(arrived(came)) >= int(n) &&
					len(arrived(capture)) >= int(4*n)
			}); err != nil {
				t.Fatal(err)
			}
			for i := range 4 {
				compare(fmt.Sprintf("%s: copy %d", what, 4-i), sums(t, uint64(i)), arrived(capture), i)
			}
			compare(what, left(t), arrived(came), 0)
		}
	}

	// A packet that passes to the stack, in which the last header becomes zeros.
	peersTable := u.plan.Tables[0]
	put(t, r.Maps["tbl_peers"], encode(t, &peersTable.Key, values{"from": client}),
		encode(t, &peersTable.Value, values{"local": local, "remote": local}))
	r.attach(t, "other", relayIn)
	left = watchSums(t, relayIn)
	for i, size := range []int{0, 1, 2, 63, 64, 65, 200} {
		note := append([]byte{byte(size)}, bytes.Repeat([]byte{0x5B}, size)...)
		packet := func(level byte, note []byte) []byte {
			return bytes.Join([][]byte{{2, 0x34, 0x12, 1, 2, 3, 4, 5, level, 1, 0xff}, note, []byte("hi!")}, nil)
		}
		if _, err := sender.WriteToUDPAddrPort(packet(0x7F, note), server); err != nil {
			t.Fatal(err)
		}
		want := packet(0x3F, make([]byte, len(note)))
		expect(t, atServer, client, want)
		err := testnet.Until(2*time.Second, "the sum", func() bool {
			return left(t).count > uint64(i) && len(arrived(came)) > int(n)+i
		})
		if err != nil {
			t.Fatal(err)
		}
		frames := arrived(came)
		data := frames[len(frames)-1].Data
		whole := bytes.Join([][]byte{data[14:40], sumField(data[14:34], want), want}, nil)
		if w := left(t); w.sum < 0 || fold(uint64(w.sum)) != sumOf(whole) {
			t.Errorf("a note of %d bytes: the device's sum is %#04x, the packet's %#04x", size, w.sum, sumOf(whole))
		}
	}
}

// sumField is the checksum of UDP between the ports of the test, over IPv4.
func sumField(ip, payload []byte) []byte {
	length := uint16(8 + len(payload))
	covered := bytes.Join([][]byte{ip[12:20], {0, 17}, binary.BigEndian.AppendUint16(nil, length),
		binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, 40001), 4433),
		binary.BigEndian.AppendUint16(nil, length), {0, 0}, payload}, nil)
	return binary.LittleEndian.AppendUint16(nil, ^sumOf(covered))
}

// The same where room of an odd size was closed in front of the header: the kernel's helper leaves the sum with its
// bytes swapped.
func TestBlankAfterOddPop(t *testing.T) {
	needs.Root(t)
	file := filepath.Join(t.TempDir(), "spec.cue")
	text := `name: "odd"
headers: {
	cookie: fields: [{name: "value", bytes: 9}]
	note: fields: [{name: "size", bits: 8}, {name: "text", bytes: "size", max: 200}]
}
programs: other: {
	hook: "tc/ingress"
	stack: ["eth", "ip", "udp", "cookie", "note", {more: "note"}]
	do: [{pop: "cookie"}, {blank: "more"}, "pass"]
}
`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	u := compile(t, file)
	line, relayIn, _ := tunnel(t)
	r := &fan{turn{u.load(t), u.plan}}
	put(t, r.Maps["fr_lease"], uint32(0), append(binary.LittleEndian.AppendUint64(nil, math.MaxUint64),
		make([]byte, 32)...))
	client, server := netip.MustParseAddrPort("198.51.100.2:40001"), netip.MustParseAddrPort("198.51.100.1:4433")
	sender, atServer := listen(t, line.Client, client), listen(t, line.Relay, server)
	r.attach(t, "other", relayIn)
	left := watchSums(t, relayIn)
	for i, size := range []int{0, 1, 2, 63, 64, 65, 200} {
		note := append([]byte{byte(size)}, bytes.Repeat([]byte{0x5B}, size)...)
		packet := func(cookie, more []byte) []byte {
			return bytes.Join([][]byte{cookie, note, more, []byte("hi!")}, nil)
		}
		if _, err := sender.WriteToUDPAddrPort(packet([]byte("a cookie!"), note), server); err != nil {
			t.Fatal(err)
		}
		want := packet(nil, make([]byte, len(note)))
		expect(t, atServer, client, want)
		err := testnet.Until(2*time.Second, "the sum", func() bool { return left(t).count > uint64(i) })
		if err != nil {
			t.Fatal(err)
		}
		// The IP header sums to FFFF, and so does UDP with its pseudo-header: what is left is that one's complement.
		source, destination := client.Addr().As4(), server.Addr().As4()
		length := binary.BigEndian.AppendUint16(nil, uint16(8+len(want)))
		pseudo := ^sumOf(bytes.Join([][]byte{source[:], destination[:], {0, 17}, length}, nil))
		if w := left(t); w.sum < 0 || fold(uint64(w.sum)) != pseudo {
			t.Errorf("a note of %d bytes: the device's sum is %#04x, the packet's %#04x", size, w.sum, pseudo)
		}
	}
}
