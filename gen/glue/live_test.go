//go:build linux

package glue_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/gen/glue"
	"github.com/fastrelay/fastrelay-gen/internal/build"
	"github.com/fastrelay/fastrelay-gen/runtime"
	"github.com/fastrelay/fastrelay-gen/runtime/abi"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/bpftest"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// fan writes into each copy which version of its receiver's row it was made with, and how many the receiver got before.
const fan = `
name: "fan"
headers: tag: fields: [{name: "number", bits: 32}, {name: "version", bits: 32}, {name: "place", bits: 64}]
groups: subscribers: {
	key: server: "endpoint"
	receiver: {local: "endpoint", remote: "endpoint", version: "u32", place: "counter", credit: "credit"}
	max: 16, receivers: 64, size: 4
}
events: sent: fields: {number: "u32", version: "u32"}
programs: forward: {
	hook: "tc/ingress"
	stack: ["eth", "ip", "udp", "tag"]
	do: [{fan_out: {
		group: subscribers: ["udp.dst"]
		each: [
			{admit: {credit: "r.credit", cost: "1"}},
			{set: {"tag.version": "r.version", "tag.place": "alloc(r.place)"}},
			{emit: sent: {number: "tag.number", version: "r.version"}},
			{send: {from: "r.local", to: "r.remote"}},
		]
		then: drop: "done"
	}}]
}
`

// host is a host with the relay on a cable to another, where all receivers are.
type host struct {
	relay     *runtime.Relay
	in, there *testnet.Dev
	sock      int // sends frames from there
}

func live(t *testing.T) *host {
	t.Helper()
	needs.Root(t)
	file := filepath.Join(t.TempDir(), "spec.cue")
	if err := os.WriteFile(file, []byte(fan), 0o600); err != nil {
		t.Fatal(err)
	}
	built, list, err := build.Spec(t.Context(), file, build.Options{})
	if err != nil || list.Len() > 0 {
		t.Fatal(err, list)
	}
	net := testnet.Start(t)
	here, err1 := net.Host("relay")
	far, err2 := net.Host("far")
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	h := &host{}
	if h.in, h.there, err = net.Join(here, "in0", far, "out0"); err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{
		h.in.AddAddr("192.0.2.1/24"), h.there.AddAddr("192.0.2.254/24"), h.in.AddRoute("203.0.113.0/24", "192.0.2.254"),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if h.sock, err = h.there.PacketSocket(0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(h.sock) })
	desc := glue.Desc(built.Plan)
	if err := here.Do(func() error {
		h.relay, err = runtime.Load(&desc, built.Object(), runtime.Options{})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.relay.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := h.relay.Program("forward").Attach("in0"); err != nil {
		t.Fatal(err)
	}
	return h
}

// frame is the packet with a number.
func (h *host) frame(number uint32) []byte {
	b := slices.Concat(h.in.MAC, h.there.MAC, []byte{
		8, 0, 0x45, 0, 0, 44, 0, 0, 0, 0, 64, 17, 0, 0, 198, 51, 100, 7, 192, 0, 2, 1,
	})
	b = binary.BigEndian.AppendUint16(b, 40000)
	b = binary.BigEndian.AppendUint16(b, 5004)
	b = append(b, 0, 24, 0, 0)
	b = binary.BigEndian.AppendUint32(b, number)
	b = append(b, make([]byte, 12)...)
	sum := uint32(0)
	for i := 14; i < 34; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	binary.BigEndian.PutUint16(b[24:], ^uint16(sum+sum>>16))
	return b
}

// must returns a value that has to be there.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// seen returns how many packets the program has seen.
func (h *host) seen() (n uint64) {
	p := h.relay.Program("forward")
	for i, count := range must(p.Counts()) {
		reason := p.Desc().Reasons[i]
		if reason.Kind != abi.ReasonCopied && reason.Kind != abi.ReasonDeclined {
			n += count.Packets
		}
	}
	return n
}

func row(place byte, version int) []any {
	return []any{
		netip.MustParseAddrPort("192.0.2.1:5004"),
		netip.AddrPortFrom(netip.AddrFrom4([4]byte{203, 0, 113, place}), 6000), version,
	}
}

// From a spec to the wire: while packets flow, receivers come, go and change, all in steps. Each packet reaches the
// receivers of one step, each of them once, with its values of that step; numbers are allocated without gaps, in order;
// user space gets an event for every copy.
func TestStepsOnTheWire(t *testing.T) {
	h := live(t)
	group, err := h.relay.GroupKind("subscribers").Open(t.Context(), netip.MustParseAddrPort("192.0.2.1:5004"))
	if err != nil {
		t.Fatal(err)
	}
	const receivers = 8
	var all []*runtime.AnyReceiver
	join := func(c *runtime.AnyChange, place byte, version int) error {
		v, err := c.Add(row(place, version)...)
		if err == nil {
			v.State(1).(*runtime.Credit).SetLimit(1 << 30)
			all = append(all, v)
		}
		return err
	}
	if err := group.Change(t.Context(), func(c *runtime.AnyChange) error {
		for place := range byte(receivers) {
			if err := join(c, place, 0); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	for began := time.Now(); slices.ContainsFunc(all, func(v *runtime.AnyReceiver) bool {
		return v.Hops()[0].State != runtime.HopDirect
	}); {
		if time.Since(began) > time.Minute {
			t.Fatal("the gateway isn't found")
		}
	}
	capture, err := h.there.Capture()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var reported atomic.Uint64
	var reader, changes sync.WaitGroup
	reader.Go(func() {
		for ev, err := range h.relay.Events(ctx) {
			if err != nil {
				return
			}
			if ev.Receiver == nil {
				t.Errorf("packet %d went to an unknown receiver", ev.Uint(0))
			}
			reported.Add(1)
		}
	})
	var stop atomic.Bool
	var version atomic.Int64
	changes.Go(func() {
		for place := byte(receivers); !stop.Load(); place = (place + 1) % 250 {
			version := int(version.Add(1))
			err := group.Change(t.Context(), func(c *runtime.AnyChange) error {
				old := rand.IntN(len(all))
				c.Remove(all[old])
				all = slices.Delete(all, old, old+1)
				for _, v := range all {
					if err := c.Set(v, v.Values()[0], v.Values()[1], version); err != nil {
						return err
					}
				}
				return join(c, place, version)
			})
			if err != nil {
				t.Error(err)
				return
			}
		}
	})
	packets := uint32(0)
	for ; packets < 2000 || version.Load() < 60 && packets < 200_000; packets++ {
		var refused error
		if full := testnet.Until(5*time.Second, "room in a processor's queue, which others fill", func() bool {
			refused = unix.Sendto(h.sock, h.frame(packets), 0, &unix.SockaddrLinklayer{Ifindex: h.there.Index})
			return refused != unix.ENOBUFS
		}); full != nil || refused != nil {
			t.Fatal(full, refused)
		}
		for packets%16 == 15 && reported.Load()+32*receivers < uint64(packets)*receivers { // so that no queue runs over
			goruntime.Gosched()
		}
	}
	stop.Store(true)
	changes.Wait()
	for began := time.Now(); h.seen() < uint64(packets) || reported.Load() < uint64(packets)*receivers; {
		if time.Since(began) > time.Minute {
			t.Fatalf("%d of %d packets were seen, %d of %d copies reported, %d lost", h.seen(), packets,
				reported.Load(), packets*receivers, h.relay.Lost(1))
		}
	}
	cancel()
	reader.Wait()
	var frames []testnet.Frame
	for began := time.Now(); len(copies(frames)) < int(packets)*receivers && time.Since(began) < time.Minute; {
		frames = capture.Frames()
	}
	if _, err := capture.Stop(); err != nil {
		t.Fatal(err)
	}
	type packet struct {
		version uint32
		to      map[string]bool
	}
	found := map[uint32]*packet{}
	next := map[string]uint64{}
	versions := map[uint32]bool{}
	for _, f := range copies(frames) {
		number, version, place := binary.BigEndian.Uint32(f[42:]), binary.BigEndian.Uint32(f[46:]),
			binary.BigEndian.Uint64(f[50:])
		to := fmt.Sprint(f[30:34])
		p := found[number]
		if p == nil {
			p = &packet{version, map[string]bool{}}
			found[number] = p
		}
		if p.version != version || p.to[to] {
			t.Fatalf("packet %d: versions %d and %d, to %s before: %v", number, p.version, version, to, p.to[to])
		}
		p.to[to] = true
		versions[version] = true
		// A place in the network is given to one receiver after another; each begins at 0.
		if place != next[to] && place != 0 {
			t.Fatalf("packet %d to %s is its number %d, not %d", number, to, place, next[to])
		}
		next[to] = place + 1
	}
	for number, p := range found {
		if len(p.to) != receivers {
			t.Errorf("packet %d reached %d receivers", number, len(p.to))
		}
	}
	if len(found) != int(packets) || len(versions) < 20 {
		t.Errorf("%d of %d packets, %d versions", len(found), packets, len(versions))
	}
	t.Logf("%d packets, %d of %d versions", len(found), len(versions), version.Load())
}

// copies returns the frames that the relay has sent to receivers.
func copies(frames []testnet.Frame) (out [][]byte) {
	for _, f := range frames {
		if b := f.Data; !f.Outgoing && len(b) == 58 && b[12] == 8 && b[23] == 17 && b[30] == 203 {
			out = append(out, b)
		}
	}
	return out
}

// Tests that can't prepare themselves fail at once.
func TestUnprepared(t *testing.T) { bpftest.Unprepared(t) }
