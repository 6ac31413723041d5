package live

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"

	"github.com/cilium/ebpf"

	"github.com/fastrelay/fastrelay-gen/bench/baseline"
	"github.com/fastrelay/fastrelay-gen/internal/test/turnlab"
	"github.com/fastrelay/fastrelay-gen/runtime"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// Variant is what relays frames.
type Variant string

// Variants.
const (
	TC      Variant = "TC"
	XDP     Variant = "XDP"
	All     Variant = "by hand, all"
	Checks  Variant = "by hand, checks"
	Lean    Variant = "by hand, lean"
	Routes  Variant = "by hand, routes"
	Bare    Variant = "bare redirect"
	Nothing Variant = "source alone"
)

// Variants are all of them. TC is the generated relay at tc/ingress, XDP the same at XDP; the next ones are
// baseline.Frames. In the last, frames are dropped as soon as they are made.
var Variants = []Variant{TC, XDP, All, Checks, Lean, Routes, Bare, Nothing}

var steps = map[Variant]baseline.Step{
	All: baseline.All, Checks: baseline.Checks, Lean: baseline.Lean, Routes: baseline.Routes, Bare: baseline.Bare,
}

// Directions of a relay.
const (
	toPeer   = "to_peer"
	toClient = "to_client"
)

// lab is a line with all variants on its relay's host: what a frame meets depends on where the source sends it. The
// client's and the peer's devices are far ends.
type lab struct {
	net    *testnet.Net
	line   *testnet.Line
	ends   *Ends
	relay  *runtime.Relay
	hand   *baseline.Frames
	xdp    map[string]*ebpf.Program // the generated ones, by direction
	tc     map[string]*runtime.AnyProgram
	opened map[int][]baseline.Channel // by family
}

// newLab opens so many channels of each of the families, a power of two. The order in which runs use them is random,
// and the same each time. root is the repository's folder, for a relay with more room than examples/turn has.
func newLab(root string, sessions int, families ...int) (_ *lab, err error) {
	l := &lab{xdp: map[string]*ebpf.Program{}, opened: map[int][]baseline.Channel{}}
	defer func() {
		if err != nil {
			l.close()
		}
	}()
	if l.net, err = testnet.New(); err != nil {
		return nil, err
	}
	if l.line, err = l.net.Line(); err != nil {
		return nil, err
	}
	for _, family := range []int{4, 6} {
		err := errors.Join(
			l.line.RelayIn.AddNeighbour(l.line.ClientAddr.Of(family), l.line.ClientDev.MAC),
			l.line.RelayOut.AddNeighbour(l.line.PeerAddr.Of(family), l.line.PeerDev.MAC))
		if err != nil {
			return nil, err
		}
	}
	// Else the kernel says of no route that it may be used.
	if err := l.line.Relay.SetForwarding(true); err != nil {
		return nil, err
	}
	if l.ends, err = NewEnds(sessions); err != nil {
		return nil, err
	}
	if err := errors.Join(l.ends.Sink(l.line.ClientDev), l.ends.Sink(l.line.PeerDev)); err != nil {
		return nil, err
	}
	if l.hand, err = baseline.LoadFrames(sessions * len(families)); err != nil {
		return nil, err
	}
	if err := l.hand.Join(l.line.RelayIn, l.line.RelayOut); err != nil {
		return nil, err
	}
	if err := l.generated(root, sessions*len(families)); err != nil {
		return nil, err
	}
	for _, family := range families {
		if err := l.open(family, sessions); err != nil {
			return nil, err
		}
	}
	return l, nil
}

func (l *lab) close() {
	if l.relay != nil {
		_ = l.relay.Close() // with the network
	}
	for _, p := range l.xdp {
		_ = p.Close()
	}
	if l.hand != nil {
		l.hand.Close()
	}
	if l.ends != nil {
		l.ends.Close()
	}
	if l.net != nil {
		_ = l.net.Close() // what remains is removed by the next network
	}
}

// generated attaches the generated relay at both hooks.
func (l *lab) generated(root string, sessions int) error {
	return l.line.Relay.Do(func() (err error) {
		if l.relay, err = load(root, sessions); err != nil {
			return err
		}
		l.tc = map[string]*runtime.AnyProgram{toPeer: l.relay.Program(toPeer), toClient: l.relay.Program(toClient)}
		for direction, p := range l.tc {
			if l.xdp[direction], err = programAtXDP(p); err != nil {
				return err
			}
			if err := p.AttachAt(l.device(direction).Name, runtime.AttachOptions{Hook: runtime.HookXDP}); err != nil {
				return err
			}
		}
		return nil
	})
}

// programAtXDP returns the program at XDP that belongs to one at tc/ingress, before that is attached: on a veth another
// one is attached, which is bound to the device, and which therefore no program may call.
func programAtXDP(p *runtime.AnyProgram) (*ebpf.Program, error) {
	maps, err := mapsOf(p.Kernel())
	if err != nil {
		return nil, err
	}
	for id := ebpf.ProgramID(0); ; {
		if id, err = ebpf.ProgramGetNextID(id); err != nil {
			return nil, fmt.Errorf("no program at XDP has the maps of %s: %w", p.Name(), err)
		}
		found, err := ebpf.NewProgramFromID(id)
		if err != nil {
			continue // it has gone
		}
		info, err := found.Info()
		if err == nil && info.Type == ebpf.XDP && info.Name == "xdp_"+p.Name() {
			its, err := mapsOf(found)
			if err == nil && slices.ContainsFunc(its, func(m ebpf.MapID) bool { return slices.Contains(maps, m) }) {
				return found, nil
			}
		}
		_ = found.Close()
	}
}

func mapsOf(p *ebpf.Program) ([]ebpf.MapID, error) {
	info, err := p.Info()
	if err != nil {
		return nil, err
	}
	ids, _ := info.MapIDs()
	return ids, nil
}

// device is what frames of a direction come in by.
func (l *lab) device(direction string) *testnet.Dev {
	if direction == toPeer {
		return l.line.RelayIn
	}
	return l.line.RelayOut
}

// ports is how many clients have a port of their own, with a channel for each port of a peer.
const ports = 1 << 14

func (l *lab) open(family, n int) error {
	order := rand.New(rand.NewPCG(1, 2)).Perm(n)
	channels := make([]baseline.Channel, n)
	for i := range n {
		low, high := uint16(i%ports), uint16(i/ports)
		ch := baseline.Channel{
			Client:   netip.AddrPortFrom(l.line.ClientAddr.Of(family), 20000+low),
			Server:   netip.AddrPortFrom(l.line.RelayInAddr.Of(family), 3478),
			Number:   turnlab.ChannelNumber + high,
			Relayed:  netip.AddrPortFrom(l.line.RelayOutAddr.Of(family), 40000+low),
			Peer:     netip.AddrPortFrom(l.line.PeerAddr.Of(family), 7000+high),
			ToClient: baseline.Hop{Dev: l.line.RelayIn, MAC: l.line.ClientDev.MAC},
			ToPeer:   baseline.Hop{Dev: l.line.RelayOut, MAC: l.line.PeerDev.MAC},
		}
		channels[order[i]] = ch
		if err := errors.Join(ch.OpenIn(l.relay), l.hand.Open(ch)); err != nil {
			return err
		}
	}
	l.opened[family] = channels
	return nil
}

// traffic is a kind of frames, one of each channel: as they come in, and as they have to leave.
type traffic struct {
	Traffic
	in, out [][]byte
}

// traffic makes a kind of frames, and has the source make them.
func (l *lab) traffic(direction string, family, size int) (*traffic, error) {
	t := &traffic{Traffic: Traffic{
		Direction: direction, Family: family, Size: size, Sessions: len(l.opened[family]),
	}}
	payload := turnlab.Payload(size)
	for _, ch := range l.opened[family] {
		in, out, err := ch.Frames(direction, payload)
		if err != nil {
			return nil, err
		}
		t.in, t.out = append(t.in, in), append(t.out, out)
	}
	return t, l.ends.Load(t.in)
}

// run has a variant relay n frames.
func (l *lab) run(v Variant, t *traffic, n, keep int) (run, error) {
	source, size := "to_xdp", len(t.out[0])
	var next *ebpf.Program
	switch v {
	case TC:
		source = "to_stack"
	case Nothing:
		source = "to_nothing"
	case XDP:
		next = l.xdp[t.Direction]
	default:
		next = l.hand.Program(steps[v], t.Direction)
		if v == Bare {
			size = len(t.in[0])
		}
	}
	r, err := l.ends.run(l.device(t.Direction), source, next, t.in[0], n, len(t.in)-1, size, keep)
	want := r.made
	if v == Nothing {
		want = 0
	}
	if err == nil && (r.arrived != want || r.made < uint64(n)) {
		err = fmt.Errorf("%d frames made of %d, and %d arrived", r.made, n, r.arrived)
	}
	if err != nil {
		return r, fmt.Errorf("%s, %s: %w", v, t, err)
	}
	return r, nil
}
