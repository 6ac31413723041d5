//go:build linux

package bpf_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/fastrelay/fastrelay-gen/gen/glue"
	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/test/dissect"
	"github.com/fastrelay/fastrelay-gen/internal/test/turnlab"
	"github.com/fastrelay/fastrelay-gen/runtime"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
	"github.com/fastrelay/fastrelay-gen/sim"
)

// A tag in a packet's metadata is what BPF_PROG_TEST_RUN can't show. Here frames with tags come in on a real device,
// whose kernel moves the outer tag into the metadata, and go through the kernel and the model: the same reason, and
// what is sent has the same bytes after the link layer and no tag.
func TestTagsOnDevices(t *testing.T) {
	needs.Root(t)
	u := compile(t, "../../golden/vlan/spec.cue")
	line, err := testnet.Start(t).Line()
	if err != nil {
		t.Fatal(err)
	}
	relay := loadRelay(t, u, line.Relay)
	model, err := sim.New(u.plan, nil)
	if err != nil {
		t.Fatal(err)
	}
	const keySize, valueSize = 20, 40 // of tenants: a u12 and an address, and a next hop, with their padding
	for _, family := range []int{4, 6} {
		peer := line.PeerAddr.Of(family)
		if err := line.RelayOut.AddNeighbour(peer, line.PeerDev.MAC); err != nil {
			t.Fatal(err)
		}
		if err := relay.Table("tenants").Put([]any{7, peer}, []any{peer}); err != nil {
			t.Fatal(err)
		}
		key, to := make([]byte, keySize), peer.As16()
		binary.LittleEndian.PutUint16(key, 7)
		copy(key[2:], to[:])
		hop := sim.Hop{
			Ifindex: uint32(line.RelayOut.Index), MTU: 1500, State: ir.HopDirect, Dst: [6]byte(line.PeerDev.MAC),
			Src: [6]byte(line.RelayOut.MAC),
		}
		value := append(hop.Bytes(), to[:]...)
		if !model.Table("tenants").Put(key, append(value, make([]byte, valueSize-len(value))...)) {
			t.Fatal("the model's table takes no row")
		}
	}
	program := relay.Program("forward")
	if err := program.Attach(line.RelayIn.Name); err != nil {
		t.Fatal(err)
	}
	sent := 0
	for _, family := range []int{4, 6} {
		for _, tags := range [][]uint32{
			{}, {0x81000007}, {0x88A80007}, {0x8100E007}, {0x81000008}, {0x81000000}, {0x88A80007, 0x81000007},
			{0x81000007, 0x81000007}, {0x81000007, 0x81000007, 0x81000007},
		} {
			t.Run(fmt.Sprintf("IPv%d, tags %x", family, tags), func(t *testing.T) {
				from := netip.AddrPortFrom(line.ClientAddr.Of(family), 40001)
				plain, err := turnlab.UDPFrame(line.ClientDev.MAC, line.RelayIn.MAC, from,
					netip.AddrPortFrom(line.PeerAddr.Of(family), 443), turnlab.Payload(101))
				if err != nil {
					t.Fatal(err)
				}
				frame, inFrame := bytes.Clone(plain[:12]), bytes.Clone(plain[:12])
				in := sim.Packet{}
				for i, tag := range tags {
					frame = binary.BigEndian.AppendUint32(frame, tag)
					if i == 0 {
						in.VLAN = &sim.Tag{Proto: uint16(tag >> 16), TCI: uint16(tag)}
					} else {
						inFrame = binary.BigEndian.AppendUint32(inFrame, tag)
					}
				}
				frame, in.Data = append(frame, plain[12:]...), append(inFrame, plain[12:]...)
				want, err := model.Run("forward", in)
				if err != nil {
					t.Fatal(err)
				}
				capture, err := line.PeerDev.Capture()
				if err != nil {
					t.Fatal(err)
				}
				defer capture.Stop()
				before := reasons(program)
				if err := line.ClientDev.Inject(frame); err != nil {
					t.Fatal(err)
				}
				awaitReason(t, t.Name(), program, before, want.Reason)
				if want.Verdict != sim.VerdictSent {
					return
				}
				sent++
				if err := testnet.Until(2*time.Second, "the packet arrives as the model says", func() bool {
					return slices.ContainsFunc(capture.Frames(), func(f testnet.Frame) bool {
						return !f.Outgoing && f.VLAN == nil && want.Packet.VLAN == nil && len(f.Data) > 14 &&
							bytes.Equal(f.Data[12:], want.Packet.Data[12:]) && dissect.Check(f) == nil
					})
				}); err != nil {
					t.Errorf("%v\nwant %x %+v", err, want.Packet.Data, want.Packet.VLAN)
					for _, f := range capture.Frames() {
						t.Logf("got  %x %+v", f.Data, f.VLAN)
					}
				}
			})
		}
	}
	if sent < 6 {
		t.Errorf("only %d packets were sent: the test shows too little", sent)
	}
}

// reasons returns the packets of each reason of a program.
func reasons(p *runtime.AnyProgram) map[string]uint64 {
	all := map[string]uint64{}
	counts, err := p.Counts()
	if err != nil {
		panic(err)
	}
	for i, n := range counts {
		all[p.Desc().Reasons[i].Name] += n.Packets
	}
	return all
}

// awaitReason waits until a program has counted one more packet of a reason than before.
func awaitReason(t *testing.T, what string, p *runtime.AnyProgram, before map[string]uint64, reason string) {
	t.Helper()
	var got []string
	if err := testnet.Until(2*time.Second, "the packet is counted", func() bool {
		got = got[:0]
		for name, n := range reasons(p) {
			if n > before[name] {
				got = append(got, name)
			}
		}
		return slices.Contains(got, reason)
	}); err != nil {
		t.Fatalf("%s: %v: it should be %s, the kernel says %v", what, err, reason, got)
	}
}

// loadRelay loads a relay by the runtime, on a host.
func loadRelay(t *testing.T, u *unit, host *testnet.Host) *runtime.Relay {
	t.Helper()
	return loadRelayWith(t, u, host, nil)
}

func loadRelayWith(t *testing.T, u *unit, host *testnet.Host, settings map[string]any) *runtime.Relay {
	t.Helper()
	desc := glue.Desc(u.plan)
	var relay *runtime.Relay
	err := host.Do(func() (err error) {
		relay, err = runtime.Load(&desc, u.object, runtime.Options{Lease: time.Minute, Settings: settings})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { relay.Close() })
	return relay
}
