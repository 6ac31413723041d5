package fanout

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/internal/build"
	"github.com/fastrelay/fastrelay-gen/internal/spectest"
	"github.com/fastrelay/fastrelay-gen/internal/test/measure"
	"github.com/fastrelay/fastrelay-gen/internal/test/turnlab"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/bpftest"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

func TestMain(m *testing.M) {
	Main()
	m.Run()
}

// Each number that a packet may have comes with a right checksum, of which none is 0.
func TestSequence(t *testing.T) {
	from, to := netip.MustParseAddrPort("192.0.2.1:5004"), netip.MustParseAddrPort("192.0.2.2:5006")
	frame, err := turnlab.UDPFrame(make(net.HardwareAddr, 6), make(net.HardwareAddr, 6), from, to, packet(200))
	if err != nil {
		t.Fatal(err)
	}
	const addresses, udp = 14 + 12, 14 + 20
	for n := range 1 << 16 {
		setSequence(frame, uint16(n))
		sum := uint32(unix.IPPROTO_UDP) + uint32(len(frame)-udp)
		for at := addresses; at < len(frame); at += 2 {
			sum += uint32(binary.BigEndian.Uint16(frame[at:]))
		}
		for sum>>16 > 0 {
			sum = sum&0xFFFF + sum>>16
		}
		if field := frame[checksumAt : checksumAt+2]; sum != 0xFFFF || field[0]|field[1] == 0 {
			t.Fatalf("%d: checksum %x is wrong", n, field)
		}
	}
}

// Every variant delivers each packet once to every receiver.
func TestVariantsDeliver(t *testing.T) {
	needs.Root(t)
	const packets = 40 // more than one batch
	for _, v := range Variants {
		t.Run(string(v), func(t *testing.T) {
			receivers := 3
			if v == Forwarding {
				receivers = 1
			}
			p, err := newPath(v, receivers, false)
			if err != nil {
				t.Fatal(err)
			}
			defer p.close()
			s, err := newSink(p.line.PeerDev)
			if err != nil {
				t.Fatal(err)
			}
			defer s.close()
			sender := p.sender(200)
			for sent := 0; sent < packets; sent += 20 {
				if err := sender.Once(20); err != nil {
					t.Fatal(err)
				}
			}
			var got [sinkPorts + 1]uint64
			settled := testnet.Until(5*time.Second, "all copies arrived", func() bool {
				c, err := s.counts()
				if err != nil {
					t.Fatal(err)
				}
				got = *c
				total := uint64(0)
				for _, n := range c {
					total += n
				}
				return total >= uint64(packets*receivers)
			})
			if settled != nil {
				t.Error(settled)
			}
			var want [sinkPorts + 1]uint64
			if v == Bare {
				want[sinkPorts] = uint64(packets * receivers) // all to the port that the packet came to
			} else {
				for i := range receivers {
					want[i] = packets
				}
			}
			if got != want {
				t.Errorf("delivered by port: %v, others %d; want %d to each of %d", got[:receivers], got[sinkPorts],
					packets, receivers)
			}
		})
	}
}

// The tests of the bench's own spec hold in the model and in the kernel.
func TestSpec(t *testing.T) {
	needs.Root(t)
	r, list, err := build.Spec(t.Context(), "rewrite/spec.cue", build.Options{})
	if err := errors.Join(err, list.Err()); err != nil {
		t.Fatal(err)
	}
	inKernel, err := spectest.Kernel(t.Context(), r.Spec, r.Plan, r.Object())
	if err != nil {
		t.Fatal(err)
	}
	outcomes := append(spectest.Model(t.Context(), r.Spec, r.Plan), inKernel...)
	if len(outcomes) != 2*len(r.Spec.Tests) {
		t.Errorf("%d outcomes of %d tests in the model and in the kernel", len(outcomes), len(r.Spec.Tests))
	}
	for _, o := range outcomes {
		if o.Status != spectest.Passed {
			t.Errorf("%s: %s%s", o.Name, o.Why, strings.Join(o.Differences, "\n"))
		}
	}
}

// What is compared is the same work: each relay rewrites each packet in the same way.
func TestVariantsRewrite(t *testing.T) {
	needs.Root(t)
	const packets, receivers = 2, 2
	for _, v := range []Variant{Relay, SFU, Mmsg, GSO} {
		t.Run(string(v), func(t *testing.T) {
			p, err := newPath(v, receivers, false)
			if err != nil {
				t.Fatal(err)
			}
			defer p.close()
			list := receiversAt(netip.AddrPortFrom(p.line.PeerAddr.V4, firstPort), receivers)
			var sockets []int
			for _, to := range list {
				fd, _, err := measure.BlockingSocket(p.line.Peer, to.addr)
				if err != nil {
					t.Fatal(err)
				}
				defer unix.Close(fd)
				if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO,
					&unix.Timeval{Sec: 5}); err != nil {
					t.Fatal(err)
				}
				sockets = append(sockets, fd)
			}
			sent := packet(200)
			sent[1] |= markerBit
			binary.BigEndian.PutUint32(sent[4:], 0xFFFFFFFF) // what is added wraps
			for number := range packets {
				binary.BigEndian.PutUint16(sent[sequence:], uint16(number+1))
				if err := measure.SendTo(p.publisher, sent, p.to); err != nil {
					t.Fatal(err)
				}
				for i, to := range list {
					got := make([]byte, 2048)
					n, from, err := unix.Recvfrom(sockets[i], got, 0)
					if err != nil {
						t.Fatalf("packet %d, receiver %d: %v", number, i, err)
					}
					if port := from.(*unix.SockaddrInet4).Port; port != relayPort {
						t.Errorf("packet %d, receiver %d: from port %d, want %d", number, i, port, relayPort)
					}
					want := bytes.Clone(sent)
					want[1] = markerBit | to.payloadType
					binary.BigEndian.PutUint16(want[sequence:], uint16(number+1)+to.sequence)
					binary.BigEndian.PutUint32(want[4:], 0xFFFFFFFF+to.timestamp)
					binary.BigEndian.PutUint32(want[8:], to.ssrc)
					if v == SFU { // it gives numbers of its own: the first is the receiver's
						binary.BigEndian.PutUint16(want[sequence:], uint16(number)+to.sequence)
					}
					if !bytes.Equal(got[:n], want) {
						t.Errorf("packet %d, receiver %d: %x, want %x", number, i, got[:n], want)
					}
				}
			}
		})
	}
}

func TestSuperPacket(t *testing.T) {
	sized := func(sizes ...int) (packets [][]byte) {
		for _, n := range sizes {
			packets = append(packets, make([]byte, n))
		}
		return packets
	}
	for _, c := range []struct {
		packets [][]byte
		want    []int // lengths of the GSO packets
	}{
		{sized(100), []int{1}},
		{sized(100, 100, 100), []int{3}},
		{sized(100, 100, 40, 100), []int{3, 1}}, // only the last may be shorter
		{sized(100, 200, 200), []int{1, 2}},
		{sized(slices.Repeat([]int{20}, 65)...), []int{64, 1}},   // UDP_MAX_SEGMENTS
		{sized(slices.Repeat([]int{1400}, 50)...), []int{46, 4}}, // an IP packet's size
	} {
		var got []int
		for from := 0; from < len(c.packets); {
			to := superPacket(c.packets, from)
			got = append(got, to-from)
			from = to
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("GSO packets of %v, want %v", got, c.want)
		}
	}
}

// The cheapest thing that can be measured has a cost, and the figures are those of one machine: no more can be said.
func TestMeasureKernel(t *testing.T) {
	needs.Root(t)
	copies, err := MeasureKernel(Options{Rounds: 1, Receivers: []int{4}, Sizes: []int{200}, Progress: t.Output()})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range copies {
		for v, ns := range c.Times {
			if ns < 10 || ns > 100_000 {
				t.Errorf("%s: a copy to %d receivers takes %.0f ns", v, c.Receivers, ns)
			}
		}
	}
}

// Tests that can't prepare themselves fail at once.
func TestUnprepared(t *testing.T) { bpftest.Unprepared(t) }
