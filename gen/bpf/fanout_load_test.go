//go:build linux

package bpf_test

import (
	"errors"
	"math"
	"net/netip"
	goruntime "runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/internal/test/turnlab"
	"github.com/fastrelay/fastrelay-gen/internal/testrun"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/bpftest"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/needs"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// creditOf is the first of the credits of the i-th receiver, of four levels and a bucket.
func creditOf(i int) int { return 1 + 5*i }

// spenders are receivers that spend credits and allocate numbers, after a line's relay.
func spenders(line *testnet.Line, n int) (out []values) {
	local := netip.AddrPortFrom(line.RelayOutAddr.V4, 5004)
	for i := range n {
		out = append(out, values{
			"local": local, "remote": netip.AddrPortFrom(line.PeerAddr.V4, uint16(10000+i)), "mode": 4,
			"hop_remote": hop(ir.HopDirect, line.RelayOut, line.PeerDev), "credit": creditOf(i), "next": 1 + i,
		})
	}
	return out
}

// A packet that goes to thousands fills a queue: the kernel refuses the rest. What it refuses has its credit back, and
// is counted. The queue is the device's own: that of the processor (net.core.netdev_max_backlog) holds other tests'
// packets too.
func TestBursts(t *testing.T) {
	needs.Root(t)
	u := compile(t, "testdata/fanout.cue")
	// So slow that the device takes as many bytes again as its queue holds after 0.4 s, not while copies are made.
	const rate, queue, copy = 1_000_000, 50_000, 250
	t.Run("64 receivers", func(t *testing.T) {
		if _, failed := burst(t, u, 64, nil); failed > 0 {
			t.Errorf("%d copies were refused", failed)
		}
	})
	t.Run("4096 receivers, a short queue", func(t *testing.T) {
		short := func(out *testnet.Dev) error { return out.SetRate(rate, queue) }
		if copied, _ := burst(t, u, 4096, short); copied == 0 || copied > 2*queue/copy {
			t.Errorf("%d copies were taken, and the queue holds %d", copied, queue/copy)
		}
	})
}

// burst sends a packet to that many receivers, through a device that prepare may change, and returns how many copies
// the kernel has taken, and refused.
func burst(t *testing.T, u *unit, receivers int, prepare func(out *testnet.Dev) error) (copied, failed uint64) {
	t.Helper()
	line, err := testnet.Start(t).Line()
	if err == nil && prepare != nil {
		err = prepare(line.RelayOut)
	}
	if err != nil {
		t.Fatal(err)
	}
	r := loadFan(t, u)
	for i := range receivers {
		r.setCredit(t, creditOf(i), credit{Limit: math.MaxUint64})
	}
	r.openGroup(t, "viewers", values{"port": 5004, "kind": 1}, spenders(line, receivers)...)
	arrives := watchSums(t, line.PeerDev)
	r.attach(t, "view", line.RelayIn)
	client, server := netip.AddrPortFrom(line.ClientAddr.V4, 40001), netip.AddrPortFrom(line.RelayInAddr.V4, 5004)
	sender, atServer := listen(t, line.Client, client), listen(t, line.Relay, server)
	sent := media(0, 1, 2, []byte(strings.Repeat("frame", 40)))
	if _, err := sender.WriteToUDPAddrPort(sent, server); err != nil {
		t.Fatal(err)
	}
	expect(t, atServer, client, sent)
	for i := range receivers {
		use := r.usage(t, 1+i)
		spent, _ := r.spent(t, creditOf(i))
		switch {
		case use.packets+use.failed != 1 || use.declined != use.failed:
			t.Errorf("receiver %d: %+v", i, use)
		case spent != use.packets*uint64(len(sent)):
			t.Errorf("receiver %d: %+v, and %d were spent", i, use, spent)
		}
		copied, failed = copied+use.packets, failed+use.failed
	}
	got := r.counts(t, "view")
	if got["copy"] != copied || got["refused_by_device"] != failed || got["pass"] != 1 {
		t.Errorf("%d copies and %d refused, but the reasons are %v", copied, failed, got)
	}
	if err := testnet.Until(5*time.Second, "all copies", func() bool {
		return arrives(t).count >= copied
	}); err != nil {
		t.Error(err)
	}
	if n := arrives(t).count; n != copied {
		t.Errorf("%d packets arrived, %d copies were made", n, copied)
	}
	return copied, failed
}

// Processors that spend one credit and allocate from one counter at once spend and allocate exactly.
func TestContention(t *testing.T) {
	needs.Root(t)
	u := compile(t, "testdata/fanout.cue")
	line, err := testnet.Start(t).Line()
	if err != nil {
		t.Fatal(err)
	}
	client, server := netip.AddrPortFrom(line.ClientAddr.V4, 40001), netip.AddrPortFrom(line.RelayInAddr.V4, 5004)
	datagram := media(0, 1, 2, []byte("contended"))
	frame, err := turnlab.UDPFrame(line.ClientDev.MAC, line.RelayIn.MAC, client, server, datagram)
	if err != nil {
		t.Fatal(err)
	}
	const packets, allowed = 20000, 12000 // each packet asks twice
	const repeat = 50                     // runs in one call, whose copies the queue of a processor holds
	r := loadFan(t, u)
	r.setCredit(t, creditOf(0), credit{Limit: allowed*uint64(len(datagram)) + 1})
	both := spenders(line, 2)
	both[1]["credit"], both[1]["next"] = both[0]["credit"], both[0]["next"]
	r.openGroup(t, "viewers", values{"port": 5004, "kind": 1}, both...)
	var group sync.WaitGroup
	errs := make([]error, 2)
	for i := range errs {
		group.Go(func() {
			errs[i] = line.Relay.Do(func() error {
				var here, all unix.CPUSet
				if err := unix.SchedGetaffinity(0, &all); err != nil {
					return err
				}
				defer unix.SchedSetaffinity(0, &all)
				here.Set(i % goruntime.NumCPU())
				if err := unix.SchedSetaffinity(0, &here); err != nil {
					return err
				}
				for range packets / 2 / repeat {
					opts := ebpf.RunOptions{Data: frame, Repeat: repeat, Context: testrun.OnDevice(line.RelayIn.Index)}
					if _, err := bpftest.Run(r.Programs["prog_view"], opts); err != nil {
						return err
					}
				}
				return nil
			})
		})
	}
	group.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	reasons := r.counts(t, "view")
	spent, refused := r.spent(t, creditOf(0))
	// What the device refuses has its credit back, too late perhaps for the packets that come then: if other work
	// keeps the processor from emptying its queue, there are fewer copies.
	copies, full := reasons["copy"], reasons["refused_by_device"] > 0
	if copies > allowed || copies < allowed && !full || spent != copies*uint64(len(datagram)) {
		t.Errorf("%d copies, want %d, and %d bytes were spent: %v", copies, allowed, spent, reasons)
	}
	if n := reasons["refused_credit"]; n != refused[0] {
		t.Errorf("%d were refused, the credit counted %v", n, refused)
	}
	if all := reasons["copy"] + reasons["refused_credit"] + reasons["contended"] +
		reasons["refused_by_device"]; all != 2*packets {
		t.Errorf("%d turns of %d: %v", all, 2*packets, reasons)
	}
	var given uint64
	if err := r.Maps["fr_shared"].Lookup(uint32(1), &given); err != nil {
		t.Fatal(err)
	}
	if want := reasons["copy"] + reasons["refused_by_device"]; given != want {
		t.Errorf("%d numbers were allocated, want %d", given, want)
	}
}
