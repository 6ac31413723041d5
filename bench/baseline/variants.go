package baseline

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/fastrelay/fastrelay-gen/examples/turn/lab"
	"github.com/fastrelay/fastrelay-gen/internal/test/measure"
	"github.com/fastrelay/fastrelay-gen/internal/test/offloads"
	"github.com/fastrelay/fastrelay-gen/internal/test/turnlab"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// Variants of a path.
const (
	TCByHand  lab.Variant = "TC by hand"
	XDPByHand lab.Variant = "XDP by hand"
	NAT       lab.Variant = "nftables NAT"
	Coturn    lab.Variant = "coturn"
)

// Variants are all of them, ready to be set up. NAT sends payloads from the same addresses as the others, but can't
// take out or put in the header of a channel.
var Variants = []lab.Baseline{
	{Variant: TCByHand, Start: startTC},
	{Variant: XDPByHand, Start: startXDP},
	{Variant: NAT, Traffic: lab.Payloads, Start: startNAT},
	{Variant: Coturn, Traffic: lab.Asked, Start: startCoturn},
}

// Variant is the variant of a path with the programs for a hook.
func (h Hook) Variant() lab.Variant {
	return map[Hook]lab.Variant{TC: TCByHand, XDP: XDPByHand}[h]
}

func startTC(l *testnet.Line, e lab.Ends) (int, func(), error) {
	stop, err := start(TC, l, e)
	return 0, stop, err
}

func start(hook Hook, l *testnet.Line, e lab.Ends) (stop func(), err error) {
	r, err := Load(hook)
	if err != nil {
		return nil, err
	}
	stop = func() { _ = r.Close() }
	return stop, errors.Join(r.Attach(l.RelayIn, l.RelayOut), r.Open(Channel{
		Client: e.Client, Server: e.Server, Relayed: e.Relayed, Peer: e.Peer, Number: turnlab.ChannelNumber,
		ToClient: Hop{l.RelayIn, l.ClientDev.MAC}, ToPeer: Hop{l.RelayOut, l.PeerDev.MAC},
	}))
}

// startXDP: a veth runs XDP where NAPI polls it, which is the sender's processor, and takes what XDP sends only if its
// other end has NAPI, too. So all devices get threads of their own, on the processors where packets of the other
// variants are handled.
func startXDP(l *testnet.Line, e lab.Ends) (pid int, stop func(), err error) {
	ends := []*testnet.Dev{l.ClientDev, l.PeerDev}
	_, err = Threads(measure.LoadCPU, ends, func() error {
		return errors.Join(offloads.GRO(ends[0], true), offloads.GRO(ends[1], true))
	})
	if err != nil {
		return 0, nil, err
	}
	_, err = Threads(measure.RelayCPU, []*testnet.Dev{l.RelayIn, l.RelayOut}, func() (err error) {
		stop, err = start(XDP, l, e)
		return err
	})
	return 0, stop, err
}

// Threads has NAPI of devices, which turnOn turns on, run in threads on one processor, and returns these: one of each
// queue. They go before what measures the processor.
func Threads(cpu int, devices []*testnet.Dev, turnOn func() error) (pids []int, err error) {
	before, err := Pollers("")
	if err != nil {
		return nil, err
	}
	if err := turnOn(); err != nil {
		return nil, err
	}
	for _, d := range devices {
		if err := d.SetThreaded(); err != nil {
			return nil, err
		}
	}
	after, err := Pollers("")
	if err != nil {
		return nil, err
	}
	for _, pid := range after {
		if !slices.Contains(before, pid) {
			pids = append(pids, pid)
			err = errors.Join(err, measure.Prefer(pid, cpu), measure.SetRealTime(pid, 2))
		}
	}
	if len(pids) < len(devices) {
		err = errors.Join(err, fmt.Errorf("%d devices have %d threads of NAPI", len(devices), len(pids)))
	}
	return pids, err
}

// Pollers returns the kernel's threads that poll a device, or all whose names begin so.
func Pollers(device string) (pids []int, err error) {
	files, err := filepath.Glob("/proc/[0-9]*/comm")
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil || !strings.HasPrefix(string(text), "napi/"+device) {
			continue // or it has ended
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(f)))
		if err != nil {
			return nil, err
		}
		pids = append(pids, pid)
	}
	return pids, err
}

// startNAT translates both ways by rules, so that either end may send first.
func startNAT(l *testnet.Line, e lab.Ends) (int, func(), error) {
	rules := fmt.Sprintf(`table ip relay {
	chain in {
		type nat hook prerouting priority dstnat;
		ip saddr %[1]s udp sport %[2]d udp dport %[4]d dnat to %[7]s:%[8]d
		ip saddr %[7]s udp sport %[8]d udp dport %[6]d dnat to %[1]s:%[2]d
	}
	chain out {
		type nat hook postrouting priority srcnat;
		ip daddr %[7]s udp dport %[8]d snat to %[5]s:%[6]d
		ip daddr %[1]s udp dport %[2]d snat to %[3]s:%[4]d
	}
}`, e.Client.Addr(), e.Client.Port(), e.Server.Addr(), e.Server.Port(), e.Relayed.Addr(), e.Relayed.Port(),
		e.Peer.Addr(), e.Peer.Port())
	nft := l.Relay.Command(context.Background(), "nft", "-f", "-")
	nft.Stdin = strings.NewReader(rules)
	if out, err := nft.CombinedOutput(); err != nil {
		return 0, nil, fmt.Errorf("nft: %w\n%s", err, out)
	}
	return 0, nil, l.Relay.SetForwarding(true)
}

func startCoturn(l *testnet.Line, _ lab.Ends) (int, func(), error) {
	dir, err := os.MkdirTemp("", "bench-coturn-")
	if err != nil {
		return 0, nil, err
	}
	coturn := l.Relay.Command(context.Background(), "turnserver", lab.Coturn(l, dir)...)
	ready := &watch{text: lab.CoturnReady}
	coturn.Stdout, coturn.Stderr = ready, ready
	if err := testnet.StartChild(coturn); err != nil {
		_ = os.RemoveAll(dir)
		return 0, nil, err
	}
	stop := func() {
		_ = coturn.Process.Kill()
		_ = coturn.Wait() // killed
		_ = os.RemoveAll(dir)
	}
	return coturn.Process.Pid, stop, testnet.Until(20*time.Second, "coturn is ready", ready.seen.Load)
}

// watch looks for a text in what a program writes.
type watch struct {
	text, last string
	seen       atomic.Bool
}

func (w *watch) Write(b []byte) (int, error) {
	w.last += string(b)
	if strings.Contains(w.last, w.text) {
		w.seen.Store(true)
	}
	w.last = w.last[max(0, len(w.last)-len(w.text)):]
	return len(b), nil
}
