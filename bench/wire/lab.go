package wire

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	goruntime "runtime"
	"time"

	"github.com/fastrelay/fastrelay-gen/bench/baseline"
	"github.com/fastrelay/fastrelay-gen/bench/live"
	"github.com/fastrelay/fastrelay-gen/examples/turn/turnrelay"
	"github.com/fastrelay/fastrelay-gen/internal/test/measure"
	"github.com/fastrelay/fastrelay-gen/internal/test/offloads"
	"github.com/fastrelay/fastrelay-gen/internal/test/turnlab"
	"github.com/fastrelay/fastrelay-gen/runtime"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// Directions of a relay.
const (
	toPeer   = "to_peer"
	toClient = "to_client"
)

// Addresses of the relay, and of both its ends, which are where frames are made.
var (
	relayAddr  = netip.MustParseAddr("192.0.2.1")
	clientAddr = netip.MustParseAddr("192.0.2.2")
	peerAddr   = netip.MustParseAddr("192.0.2.3")
)

// lab has two ports, each on a host of its own:
//
//	source ——— relay
type lab struct {
	net         *testnet.Net
	source, own *testnet.Dev
	giveBack    []func() error
	ends        *live.Ends
	relay       *runtime.Relay
	channel     baseline.Channel
}

// newLab makes a lab with given ports, or with a veth.
func newLab(ports []string) (_ *lab, err error) {
	l := &lab{}
	defer func() {
		if err != nil {
			l.close()
		}
	}()
	if l.net, err = testnet.New(); err != nil {
		return nil, err
	}
	if err := l.plug(ports); err != nil {
		return nil, err
	}
	err = errors.Join(l.own.AddAddr(relayAddr.String()+"/24"),
		l.own.AddNeighbour(clientAddr, l.source.MAC), l.own.AddNeighbour(peerAddr, l.source.MAC),
		l.own.Host.SetForwarding(true)) // else the kernel says of no route that it may be used
	if err != nil {
		return nil, err
	}
	if l.ends, err = live.NewEnds(1); err != nil {
		return nil, err
	}
	// The far end has a processor of its own, if there is one.
	far := measure.LoadCPU
	if goruntime.NumCPU() > measure.RelayCPU+1 {
		far = measure.RelayCPU + 1
	}
	// GRO, as drivers of cards have it; only so does NAPI poll a veth.
	if err := errors.Join(l.ends.Sink(l.source), poll(l.source, far), offloads.GRO(l.own, true)); err != nil {
		return nil, err
	}
	there, here := baseline.Hop{Dev: l.own, MAC: l.source.MAC}, netip.AddrPortFrom(relayAddr, 3478)
	l.channel = baseline.Channel{
		Client: netip.AddrPortFrom(clientAddr, 40000), Server: here, Number: turnlab.ChannelNumber,
		Relayed: netip.AddrPortFrom(relayAddr, 50000), Peer: netip.AddrPortFrom(peerAddr, 7000),
		ToClient: there, ToPeer: there,
	}
	return l, l.own.Host.Do(func() error {
		r, err := turnrelay.Load(turnrelay.Options{Lease: time.Minute}) // other work may hold up what renews it
		if err != nil {
			return err
		}
		l.relay = r.Runtime()
		return l.channel.OpenIn(l.relay)
	})
}

// plug puts the ports into hosts.
func (l *lab) plug(ports []string) error {
	source, err1 := l.net.Host("source")
	relay, err2 := l.net.Host("relay")
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	if ports == nil {
		var err error
		l.source, l.own, err = l.net.Join(source, "wire0", relay, "wire1")
		return err
	}
	for i, dev := range []**testnet.Dev{&l.source, &l.own} {
		d, giveBack, err := borrow(ports[i], []*testnet.Host{source, relay}[i])
		if giveBack != nil {
			l.giveBack = append(l.giveBack, giveBack)
		}
		if err != nil {
			return err
		}
		*dev = d
	}
	return errors.Join(l.source.Ready(), l.own.Ready())
}

func (l *lab) close() {
	if l.relay != nil {
		_ = l.relay.Close() // with the network
	}
	if l.ends != nil {
		l.ends.Close()
	}
	for _, giveBack := range l.giveBack {
		_ = giveBack() // or the kernel does, when the host ends
	}
	if l.net != nil {
		_ = l.net.Close() // what remains is removed by the next network
	}
}

func (l *lab) drivers() (string, error) {
	source, err1 := offloads.Driver(l.source)
	own, err2 := offloads.Driver(l.own)
	return source + ", " + own, errors.Join(err1, err2)
}

// poll has NAPI poll a device in threads on a processor. Drivers make these anew when a program comes or goes.
func poll(dev *testnet.Dev, cpu int) error {
	if err := dev.SetThreaded(); err != nil {
		return err
	}
	pids, err := pollers(dev)
	for _, pid := range pids {
		err = errors.Join(err, measure.Prefer(pid, cpu), measure.SetRealTime(pid, 2))
	}
	return err
}

func pollers(dev *testnet.Dev) ([]int, error) {
	pids, err := baseline.Pollers(dev.Name + "-")
	if err == nil && len(pids) == 0 {
		err = fmt.Errorf("no thread polls %s", dev.Name)
	}
	return pids, err
}

// traffic is a kind of frames, which the relay relays at a hook.
type traffic struct {
	*lab
	in, out []byte
	program *runtime.AnyProgram
	hook    runtime.Hook
}

// attach attaches the relay's program for a direction, and looks at what comes back.
func (l *lab) attach(direction string, hook runtime.Hook, size int) (*traffic, error) {
	if err := l.relay.DetachAll(); err != nil {
		return nil, err
	}
	in, out, err := l.channel.Frames(direction, turnlab.Payload(size))
	if err != nil {
		return nil, err
	}
	t := &traffic{l, in, out, l.relay.Program(direction), hook}
	err = l.own.Host.Do(func() error {
		return t.program.AttachAt(l.own.Name, runtime.AttachOptions{Hook: hook})
	})
	if err != nil {
		return nil, err
	}
	return t, errors.Join(l.own.Ready(), l.source.Ready(), poll(l.own, measure.RelayCPU), t.check())
}

const checked = 64

// check has frames relayed, which have to come back byte by byte as a relay has to send them, by the hook.
func (t *traffic) check() error {
	tc, xdp, err := baseline.Sent(t.program)
	if err != nil {
		return err
	}
	if _, err := t.ends.Offer(t.source, t.in, len(t.out), checked, 10_000, checked); err != nil {
		return err
	}
	frames, err := t.ends.Kept(checked)
	if err != nil {
		return err
	}
	for i, f := range frames {
		if !bytes.Equal(f, t.out) {
			return fmt.Errorf("%s: frame %d is\n%x, not\n%x", names[t.hook], i, f, t.out)
		}
	}
	tcNow, xdpNow, err := baseline.Sent(t.program)
	want := map[runtime.Hook][2]uint64{runtime.HookTC: {checked, 0}, runtime.HookXDP: {0, checked}}[t.hook]
	if got := [2]uint64{tcNow - tc, xdpNow - xdp}; err == nil && got != want {
		err = fmt.Errorf("%s: TC and XDP have sent %d frames, not %d", names[t.hook], got, want)
	}
	return err
}

// offer has the source send so many frames at a rate, 0: as fast as it can. ns is what one that came back took of the
// relay's processor: of the threads that poll its port.
func (t *traffic) offer(n int, rate float64) (o live.Offered, ns float64, err error) {
	before, err := t.used()
	if err != nil {
		return o, 0, err
	}
	if o, err = t.ends.Offer(t.source, t.in, len(t.out), n, rate, 0); err != nil {
		return o, 0, err
	}
	after, err := t.used()
	return o, float64(after-before) / max(float64(o.Arrived), 1), err
}

// used is the CPU time that the relay's threads have used so far.
func (t *traffic) used() (all time.Duration, err error) {
	pids, err := pollers(t.own)
	for _, pid := range pids {
		d, failed := measure.CPUTime(pid)
		all, err = all+d, errors.Join(err, failed)
	}
	return all, err
}
