// Package baseline has the channels of a TURN relay written by hand, for TC and for XDP: what the generated relay is
// compared with.
package baseline

import (
	"bytes"
	_ "embed"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"github.com/fastrelay/fastrelay-gen/internal/test/turnlab"
	"github.com/fastrelay/fastrelay-gen/runtime"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

//go:embed bpf/relay.c
var source string

var object = sync.OnceValues(func() ([]byte, error) { return compiled(source) })

// Hook is where the programs run.
type Hook string

// Hooks.
const (
	TC  Hook = "tc"
	XDP Hook = "xdp"
)

// Hooks are all of them.
var Hooks = []Hook{TC, XDP}

// Verdict is what a program returns for a packet that it sends (linux/pkt_cls.h, linux/bpf.h).
func (h Hook) Verdict() uint32 {
	return map[Hook]uint32{TC: 7, XDP: 4}[h]
}

// Relay is a relay by hand, loaded.
type Relay struct {
	ToPeer, ToClient *ebpf.Program

	hook       Hook
	collection *ebpf.Collection
	links      []link.Link
}

// Load loads the programs for a hook.
func Load(hook Hook) (*Relay, error) {
	object, err := object()
	if err != nil {
		return nil, err
	}
	spec, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(object))
	if err != nil {
		return nil, err
	}
	toPeer, toClient := string(hook)+"_to_peer", string(hook)+"_to_client"
	for name := range spec.Programs {
		if name != toPeer && name != toClient {
			delete(spec.Programs, name)
		}
	}
	c, err := ebpf.NewCollection(spec)
	if err != nil {
		return nil, err
	}
	return &Relay{ToPeer: c.Programs[toPeer], ToClient: c.Programs[toClient], hook: hook, collection: c}, nil
}

// Attach attaches the programs to the devices towards the client and towards the peer.
func (r *Relay) Attach(client, peer *testnet.Dev) error {
	return errors.Join(r.attach(client, r.ToPeer), r.attach(peer, r.ToClient))
}

func (r *Relay) attach(dev *testnet.Dev, p *ebpf.Program) error {
	return dev.Host.Do(func() error {
		var l link.Link
		var err error
		if r.hook == XDP {
			l, err = link.AttachXDP(link.XDPOptions{Interface: dev.Index, Program: p, Flags: link.XDPDriverMode})
		} else {
			l, err = link.AttachTCX(link.TCXOptions{Interface: dev.Index, Program: p, Attach: ebpf.AttachTCXIngress})
		}
		if err == nil {
			r.links = append(r.links, l)
		}
		return err
	})
}

// Close unloads the programs.
func (r *Relay) Close() error {
	var err error
	for _, l := range r.links {
		err = errors.Join(err, l.Close())
	}
	r.collection.Close()
	return err
}

// Channel is a channel, whose addresses are IPv4, with the next hops of both directions.
type Channel struct {
	Client, Server, Relayed, Peer netip.AddrPort
	Number                        uint16
	ToClient, ToPeer              Hop
}

// Hop is a device and the link-layer address of what is reached through it.
type Hop struct {
	Dev *testnet.Dev
	MAC net.HardwareAddr
}

// Frames returns a frame of the channel in a direction, as it comes in and as it has to leave.
func (ch Channel) Frames(direction string, payload []byte) (in, out []byte, err error) {
	var err1, err2 error
	client, peer, data := ch.ToClient, ch.ToPeer, turnlab.ChannelData(ch.Number, payload)
	if direction == "to_peer" {
		in, err1 = turnlab.UDPFrame(client.MAC, client.Dev.MAC, ch.Client, ch.Server, data)
		out, err2 = turnlab.UDPFrame(peer.Dev.MAC, peer.MAC, ch.Relayed, ch.Peer, payload)
	} else {
		in, err1 = turnlab.UDPFrame(peer.MAC, peer.Dev.MAC, ch.Peer, ch.Relayed, payload)
		out, err2 = turnlab.UDPFrame(client.Dev.MAC, client.MAC, ch.Server, ch.Client, data)
	}
	return in, out, errors.Join(err1, err2)
}

// OpenIn opens the channel in a generated relay of examples/turn.
func (ch Channel) OpenIn(r *runtime.Relay) error {
	_, err := r.Open("channel", ch.Client, ch.Server, ch.Number, ch.Relayed, ch.Peer)
	return err
}

// Sent returns how many packets a generated program has sent, by hook.
func Sent(p *runtime.AnyProgram) (tc, xdp uint64, err error) {
	all, err1 := p.Count("sent")
	first, err2 := p.XDPCounts()
	for i, c := range first {
		if p.Desc().Reason(i).Name == "sent" {
			xdp = c.Packets
		}
	}
	return all.Packets - xdp, xdp, errors.Join(err1, err2)
}

const mtu = 1500

// key and row are those of bpf/relay.c.
type key = key4

type row struct {
	Src, Dst         [4]byte
	SrcPort, DstPort [2]byte
	Number           [2]byte
	MTU              uint16
	Device           uint32
	MACs             [12]byte
}

// Open registers a channel.
func (r *Relay) Open(ch Channel) error {
	channels := r.collection.Maps["channels"]
	return errors.Join(
		channels.Put(keyOf(ch.Client, ch.Server, ch.Number), rowOf(ch.Relayed, ch.Peer, 0, ch.ToPeer)),
		channels.Put(keyOf(ch.Peer, ch.Relayed, 0), rowOf(ch.Server, ch.Client, ch.Number, ch.ToClient)))
}

func network(n uint16) (b [2]byte) {
	binary.BigEndian.PutUint16(b[:], n)
	return b
}

func keyOf(src, dst netip.AddrPort, number uint16) *key {
	return &key{
		Src: src.Addr().As4(), Dst: dst.Addr().As4(),
		SrcPort: network(src.Port()), DstPort: network(dst.Port()), Number: network(number),
	}
}

func rowOf(src, dst netip.AddrPort, number uint16, hop Hop) *row {
	r := &row{
		Src: src.Addr().As4(), Dst: dst.Addr().As4(),
		SrcPort: network(src.Port()), DstPort: network(dst.Port()), Number: network(number),
		MTU: mtu, Device: uint32(hop.Dev.Index),
	}
	copy(r.MACs[:], hop.MAC)
	copy(r.MACs[6:], hop.Dev.MAC)
	return r
}
