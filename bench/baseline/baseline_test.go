package baseline

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/fastrelay/fastrelay-gen/examples/turn/lab"
	"github.com/fastrelay/fastrelay-gen/examples/turn/turnrelay"
	"github.com/fastrelay/fastrelay-gen/internal/test/turnlab"
	"github.com/fastrelay/fastrelay-gen/internal/testrun"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/bpftest"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// Equal work: the relays by hand send the same bytes as the generated one, with and without a UDP checksum, and pass
// the same packets to the stack.
func TestSameBytes(t *testing.T) {
	needs.Root(t)
	l, err := testnet.Start(t).Line()
	check(t, err)
	check(t, l.RelayIn.AddNeighbour(l.ClientAddr.V4, l.ClientDev.MAC))
	check(t, l.RelayOut.AddNeighbour(l.PeerAddr.V4, l.PeerDev.MAC))
	var relay *turnrelay.Relay
	check(t, l.Relay.Do(func() (err error) {
		relay, err = turnrelay.Load(turnrelay.Options{})
		return err
	}))
	defer relay.Close()
	ch := Channel{
		Client: netip.AddrPortFrom(l.ClientAddr.V4, 40000), Server: netip.AddrPortFrom(l.RelayInAddr.V4, 3478),
		Relayed: netip.AddrPortFrom(l.RelayOutAddr.V4, 50000), Peer: netip.AddrPortFrom(l.PeerAddr.V4, 7000),
		Number:   turnlab.ChannelNumber,
		ToClient: Hop{l.RelayIn, l.ClientDev.MAC}, ToPeer: Hop{l.RelayOut, l.PeerDev.MAC},
	}
	_, err = relay.Channel.Open(turnrelay.Channel{
		Client: ch.Client, Server: ch.Server, Number: ch.Number, Relayed: ch.Relayed, Peer: ch.Peer,
	})
	check(t, err)
	run := func(p *ebpf.Program, dev *testnet.Dev, frame []byte) (verdict uint32, out []byte) {
		o := &ebpf.RunOptions{Data: frame, DataOut: make([]byte, len(frame)+256)}
		if p.Type() == ebpf.SchedCLS {
			o.Context = testrun.OnDevice(dev.Index)
		}
		check(t, l.Relay.Do(func() (err error) {
			verdict, err = p.Run(o)
			return err
		}))
		return verdict, o.DataOut
	}
	for _, hook := range Hooks {
		byHand, err := Load(hook)
		check(t, err)
		defer byHand.Close()
		check(t, byHand.Open(ch))
		same := func(what string, p, generated *ebpf.Program, dev *testnet.Dev, frame []byte, sent bool) {
			t.Helper()
			verdict, out := run(p, dev, frame)
			if (verdict == hook.Verdict()) != sent {
				t.Errorf("%s, %s: verdict %d", hook, what, verdict)
			}
			if v, want := run(generated, dev, frame); (v == TC.Verdict()) != sent || !bytes.Equal(out, want) {
				t.Errorf("%s, %s:\n%x, not what the generated relay makes (%d):\n%x", hook, what, out, v, want)
			}
		}
		for size := range 300 {
			payload := turnlab.Payload(size + 18) // less is padded by Ethernet
			up, err := turnlab.UDPFrame(l.ClientDev.MAC, l.RelayIn.MAC, ch.Client, ch.Server,
				turnlab.ChannelData(ch.Number, payload))
			check(t, err)
			down, err := turnlab.UDPFrame(l.PeerDev.MAC, l.RelayOut.MAC, ch.Peer, ch.Relayed, payload)
			check(t, err)
			both := func(what string, sent bool) {
				t.Helper()
				what = fmt.Sprintf("%d bytes, %s", len(payload), what)
				same(what, byHand.ToPeer, relay.ToPeer.Kernel(), l.RelayIn, up, sent)
				same(what+", back", byHand.ToClient, relay.ToClient.Kernel(), l.RelayOut, down, sent)
			}
			const ipSum, udpSum = 24, 40
			// A checksum that comes out as 0 is sent as FFFF: the payload makes up for what it was.
			word := func(b []byte) uint32 { return uint32(binary.BigEndian.Uint16(b)) }
			_, out := run(relay.ToPeer.Kernel(), l.RelayIn, up)
			sum := word(payload) + word(out[udpSum:])
			binary.BigEndian.PutUint16(payload, uint16(sum+sum>>16))
			zero, err := turnlab.UDPFrame(l.ClientDev.MAC, l.RelayIn.MAC, ch.Client, ch.Server,
				turnlab.ChannelData(ch.Number, payload))
			check(t, err)
			if _, out := run(relay.ToPeer.Kernel(), l.RelayIn, zero); word(out[udpSum:]) != 0xFFFF {
				t.Errorf("checksum %#x, want 0xffff", word(out[udpSum:]))
			}
			same("a checksum of 0", byHand.ToPeer, relay.ToPeer.Kernel(), l.RelayIn, zero, true)
			change := func(at int, by uint16) {
				for _, frame := range [][]byte{up, down} {
					binary.BigEndian.PutUint16(frame[at:], binary.BigEndian.Uint16(frame[at:])+by)
				}
			}
			both("as sent", true)
			change(udpSum, 1)
			both("wrong checksum", true)
			clear(up[udpSum : udpSum+2])
			clear(down[udpSum : udpSum+2])
			both("no checksum", true)
			change(ipSum, 1)
			both("wrong checksum of IP", false)
		}
	}
}

// Each variant delivers packets in both directions.
func TestVariants(t *testing.T) {
	needs.Root(t)
	for _, b := range Variants {
		t.Run(string(b.Variant), func(t *testing.T) {
			p, err := lab.NewBaseline(b, false)
			check(t, err)
			defer p.Close()
			for _, direction := range []string{"to_peer", "to_client"} {
				if _, _, err := p.Delays(direction, 120, 40, 1000); err != nil {
					t.Errorf("%s: %v", direction, err)
				}
			}
		})
	}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Tests that can't be set up fail at once.
func TestUnprepared(t *testing.T) { bpftest.Unprepared(t) }
