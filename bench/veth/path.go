package veth

import (
	"bytes"
	"errors"
	"fmt"
	"time"

	"github.com/fastrelay/fastrelay-gen/bench/baseline"
	"github.com/fastrelay/fastrelay-gen/examples/turn/lab"
	"github.com/fastrelay/fastrelay-gen/examples/turn/turnrelay"
	"github.com/fastrelay/fastrelay-gen/internal/test/measure"
	"github.com/fastrelay/fastrelay-gen/internal/test/offloads"
	"github.com/fastrelay/fastrelay-gen/internal/test/turnlab"
	"github.com/fastrelay/fastrelay-gen/runtime"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// path is a path with a variant set up on it.
type path struct {
	*lab.Path
	line    *testnet.Line
	channel baseline.Channel
	relay   *runtime.Relay // nil: plain forwarding
}

// newPath sets up a variant on hosts of its own. Packets come with complete checksums, and one by one.
func newPath(v lab.Variant) (_ *path, err error) {
	p := &path{}
	if v == lab.Forwarding {
		p.Path, err = lab.NewPath(v, false)
		return p, err
	}
	start := func(l *testnet.Line, e lab.Ends) (pid int, stop func(), err error) {
		stop = func() {
			if p.relay != nil {
				_ = p.relay.Close() // with the network
			}
		}
		return 0, stop, p.start(v, l, e)
	}
	p.Path, err = lab.NewBaseline(lab.Baseline{Variant: v, Start: start}, false)
	return p, err
}

// start attaches the relay.
func (p *path) start(v lab.Variant, l *testnet.Line, e lab.Ends) error {
	p.line, p.channel = l, baseline.Channel{
		Client: e.Client, Server: e.Server, Relayed: e.Relayed, Peer: e.Peer, Number: turnlab.ChannelNumber,
		ToClient: baseline.Hop{Dev: l.RelayIn, MAC: l.ClientDev.MAC},
		ToPeer:   baseline.Hop{Dev: l.RelayOut, MAC: l.PeerDev.MAC},
	}
	if v == TC {
		return p.attach(runtime.HookTC)
	}
	ends, own := []*testnet.Dev{l.ClientDev, l.PeerDev}, []*testnet.Dev{l.RelayIn, l.RelayOut}
	_, err := baseline.Threads(measure.LoadCPU, ends, func() error { return gro(ends) })
	if err != nil {
		return err
	}
	_, err = baseline.Threads(measure.RelayCPU, own, func() error {
		if v == XDP {
			return p.attach(runtime.HookXDP)
		}
		return errors.Join(gro(own), p.attach(runtime.HookTC))
	})
	return err
}

// gro turns NAPI of veths on.
func gro(devices []*testnet.Dev) (err error) {
	for _, d := range devices {
		err = errors.Join(err, offloads.GRO(d, true))
	}
	return err
}

func (p *path) attach(hook runtime.Hook) error {
	return p.line.Relay.Do(func() error {
		r, err := turnrelay.Load(turnrelay.Options{Lease: time.Minute}) // other work may hold up what renews it
		if err != nil {
			return err
		}
		p.relay = r.Runtime()
		return errors.Join(
			r.ToPeer.AttachAt(p.line.RelayIn.Name, runtime.AttachOptions{Hook: hook}),
			r.ToClient.AttachAt(p.line.RelayOut.Name, runtime.AttachOptions{Hook: hook}),
			p.channel.OpenIn(p.relay))
	})
}

// sent returns how many packets of a direction the hook has sent that is measured, and how many the other one.
func (p *path) sent(direction string) (n, others uint64, err error) {
	tc, xdp, err := baseline.Sent(p.relay.Program(direction))
	if p.Variant == XDP {
		return xdp, tc, err
	}
	return tc, xdp, err
}

// cost is what a packet costs. Before, some have to arrive as a relay has to send them, by the hook that is measured;
// and afterwards the other one has sent none.
func (p *path) cost(direction string, size int, busy *measure.Busy) (float64, error) {
	if p.relay == nil {
		return p.Cost(direction, size, busy)
	}
	if err := p.check(direction, size); err != nil {
		return 0, err
	}
	ns, err := p.Cost(direction, size, busy)
	if _, others, failed := p.sent(direction); failed != nil || others > 0 {
		return 0, errors.Join(failed, fmt.Errorf("the other hook has sent %d packets", others))
	}
	return ns, err
}

// checked is how many packets are looked at.
const checked = 8

func (p *path) check(direction string, size int) (err error) {
	from, to := p.line.ClientDev, p.line.PeerDev
	if direction == "to_client" {
		from, to = to, from
	}
	in, want, err := p.channel.Frames(direction, turnlab.Payload(size))
	if err != nil {
		return err
	}
	before, _, err := p.sent(direction)
	if err != nil {
		return err
	}
	seen, err := to.Capture()
	if err != nil {
		return err
	}
	defer func() {
		_, failed := seen.Stop()
		err = errors.Join(err, failed)
	}()
	for range checked {
		if err := from.Inject(in); err != nil {
			return err
		}
	}
	if err := testnet.Until(2*time.Second, "packets arrive as they have to", func() bool {
		n := 0
		for _, f := range seen.Frames() {
			if bytes.Equal(f.Data, want) {
				n++
			}
		}
		return n == checked
	}); err != nil {
		return err
	}
	if after, _, err := p.sent(direction); err != nil || after-before != checked {
		return errors.Join(err, fmt.Errorf("the hook has sent %d packets of %d", after-before, checked))
	}
	return nil
}

// tcp is the throughput of a connection to the relay's own host, in Mbit/s. The client's device takes GSO packets, if
// the kernel lets it.
func (p *path) tcp() (_ float64, err error) {
	offload := func(on bool) error {
		return errors.Join(offloads.Segmentation(p.line.ClientDev, on), offloads.TxChecksum(p.line.ClientDev, on))
	}
	defer func() { err = errors.Join(err, offload(false)) }()
	if err := offload(true); err != nil {
		return 0, err
	}
	return measure.TCP(p.line.Client, p.line.Relay, p.line.RelayInAddr.V4)
}
