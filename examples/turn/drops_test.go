package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/examples/turn/turnrelay"
	"github.com/fastrelay/fastrelay-gen/internal/test/offloads"
	"github.com/fastrelay/fastrelay-gen/internal/test/turnlab"
	"github.com/fastrelay/fastrelay-gen/runtime"
	"github.com/fastrelay/fastrelay-gen/runtime/metrics"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// Frames that a device drops after XDP are counted by device and cause, also while no process has the relay, and the
// next one goes on.
func TestXDPDrops(t *testing.T) {
	path := filepath.Join("/sys/fs/bpf", fmt.Sprintf("fr-drops-%d", unix.Getpid()))
	opt := turnrelay.Options{PinPath: path, Linger: 10 * wait}
	t.Cleanup(func() { _, _ = runtime.Remove(path) }) // there is something only if the test has failed
	f := xdpLine(t, opt, runtime.HookXDP)
	l := f.line
	f.pass("nothing is dropped", 5, true)
	f.dropped()
	long, err := turnlab.UDPFrame(l.ClientDev.MAC, l.RelayIn.MAC, at(l.ClientAddr.V4, 40000),
		at(l.RelayInAddr.V4, turnPort), turnlab.ChannelData(channel, turnlab.Payload(1200)))
	check(t, err)
	inject := func(frame []byte, n int) {
		for range n {
			check(t, l.ClientDev.Inject(frame))
		}
	}

	// Nobody tells the relay of it.
	check(t, l.PeerDev.SetMTU(1000))
	before, _ := f.sent()
	inject(long, 7)
	drop := func(reason string, n uint64) runtime.XDPDrop {
		return runtime.XDPDrop{Interface: l.RelayOut.Name, Reason: reason, Packets: n}
	}
	f.dropped(drop("full", 7))
	var text strings.Builder
	check(t, metrics.Write(&text, f.relay.Runtime()))
	series := `fastrelay_xdp_drops_total{relay="turn",interface="` + l.RelayOut.Name + `",reason="full"} 7`
	if !strings.Contains(text.String(), series+"\n") {
		t.Errorf("metrics have no %s", series)
	}
	if after, _ := f.sent(); after != before+7 {
		t.Errorf("%d packets were sent of 7", after-before)
	}

	// alone has a change cost frames while nobody is there to follow it.
	counts, err := ebpf.LoadPinnedMap(filepath.Join(path, "live", "drops", "fr_drops"), nil)
	check(t, err)
	defer counts.Close()
	alone := func(why unix.Errno, change, undo func() error) {
		t.Helper()
		check(t, errors.Join(f.relay.Close(), change()))
		inject(f.toPeer, 3)
		check(t, testnet.Until(wait, why.Error(), func() bool {
			var n uint64
			return counts.Lookup([]int32{int32(l.RelayOut.Index), -int32(why)}, &n) == nil && n == 3
		}))
		check(t, undo())
		f.load(opt)
	}
	alone(unix.EOPNOTSUPP, func() error { return offloads.GRO(l.PeerDev, false) },
		func() error { return offloads.GRO(l.PeerDev, true) })
	f.dropped(drop("full", 7), drop("unsupported", 3))
	inject(long, 5)
	f.dropped(drop("full", 12), drop("unsupported", 3))
	opt.Linger = 0
	alone(unix.ENETDOWN, func() error { return l.RelayOut.SetUp(false) },
		func() error { return l.RelayOut.SetUp(true) })
	f.dropped(drop("down", 3), drop("full", 12), drop("unsupported", 3))
}

// dropped waits until these drops are counted, and no others.
func (f *frames) dropped(want ...runtime.XDPDrop) {
	f.Helper()
	var got []runtime.XDPDrop
	err := testnet.Until(wait, fmt.Sprintf("drops: %v", want), func() (ok bool) {
		var err error
		got, err = f.relay.Runtime().XDPDrops()
		check(f.T, err)
		return slices.Equal(got, want)
	})
	if err != nil {
		f.Fatalf("%v: %v", err, got)
	}
}
