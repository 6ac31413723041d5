package baseline

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"sync"

	"github.com/cilium/ebpf"

	"github.com/fastrelay/fastrelay-gen/internal/clang"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

//go:embed bpf/frames.c
var framesSource string

var framesObject = sync.OnceValues(func() ([]byte, error) { return compiled(framesSource) })

// compiled compiles a source. An error holds what clang says.
func compiled(source string) ([]byte, error) {
	object, _, err := clang.Compile(context.Background(), source, "", clang.Options{Warn: true})
	var refused *clang.Error
	if errors.As(err, &refused) {
		return nil, fmt.Errorf("%w\n%s", err, refused.Log)
	}
	return object, err
}

// Step is how much of what the generated relay does at XDP programs by hand do.
type Step string

// Steps. Others than Bare send the same bytes.
const (
	Bare   Step = "bare"   // frames leave as they came
	Lean   Step = "lean"   // the least that relays
	Routes Step = "routes" // the same, and the kernel is asked for the next hop of each packet
	Checks Step = "checks" // all that the generated relay checks, with a lease and rows that may change meanwhile
	All    Step = "all"    // the same, and counters, idle times and ends of sessions
)

// Steps are all of them.
var Steps = []Step{Bare, Lean, Routes, Checks, All}

// Frames are relays by hand at XDP that have their maps in common.
type Frames struct {
	collection *ebpf.Collection
	opened     uint32
}

// LoadFrames loads them, with room for so many sessions.
func LoadFrames(sessions int) (*Frames, error) {
	object, err := framesObject()
	if err != nil {
		return nil, err
	}
	spec, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(object))
	if err != nil {
		return nil, err
	}
	for name, each := range map[string]int{"channels4": 2, "channels6": 2, "slots": 1, "usages": 1} {
		spec.Maps[name].MaxEntries = uint32(each * sessions)
	}
	c, err := ebpf.NewCollection(spec)
	if err != nil {
		return nil, err
	}
	f := &Frames{collection: c}
	forever := [2]uint64{math.MaxUint64}
	if err := c.Maps["leases"].Put(uint32(0), forever); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// Close unloads them.
func (f *Frames) Close() { f.collection.Close() }

// Program returns the program of a direction: "to_peer" or "to_client".
func (f *Frames) Program(s Step, direction string) *ebpf.Program {
	return f.collection.Programs[string(s)+"_"+direction]
}

// Join has frames come in and leave by two devices of a host; a bare redirect leads from one to the other.
func (f *Frames) Join(a, b *testnet.Dev) error {
	one := func(dev, other *testnet.Dev) error {
		index, to := uint32(dev.Index), uint32(other.Index)
		mac := make([]byte, 8)
		copy(mac, dev.MAC)
		return errors.Join(
			f.collection.Maps["macs"].Put(index, mac),
			f.collection.Maps["devices"].Put(index, index),
			f.collection.Maps["across"].Put(index, to))
	}
	return a.Host.Do(func() error { return errors.Join(one(a, b), one(b, a)) })
}

// key4, key6, frameRow and slot are those of bpf/frames.c.
type key4 struct {
	Src, Dst         [4]byte
	SrcPort, DstPort [2]byte
	Number           [2]byte
	_                uint16
}

type key6 struct {
	Src, Dst         [16]byte
	SrcPort, DstPort [2]byte
	Number           [2]byte
	_                uint16
}

type frameRow struct {
	SrcPort, DstPort [2]byte
	Number           [2]byte
	MTU              uint16
	Device           uint32
	Slot, Generation uint32
	MACs             [12]byte
	Src, Dst         [16]byte
}

type slot struct {
	Deadline      uint64
	Generation, _ uint32
}

// generation is that of all sessions: none is opened twice.
const generation = 1

// Open registers a channel, whose addresses are all of one family.
func (f *Frames) Open(ch Channel) error {
	at := f.opened
	f.opened++
	return errors.Join(
		f.collection.Maps["slots"].Put(at, slot{Deadline: math.MaxUint64, Generation: generation}),
		f.put(at, ch.Client, ch.Server, ch.Number, frameRowOf(ch.Relayed, ch.Peer, 0, ch.ToPeer)),
		f.put(at, ch.Peer, ch.Relayed, 0, frameRowOf(ch.Server, ch.Client, ch.Number, ch.ToClient)))
}

func (f *Frames) put(slot uint32, src, dst netip.AddrPort, number uint16, row *frameRow) error {
	row.Slot = slot
	srcPort, dstPort, n := network(src.Port()), network(dst.Port()), network(number)
	if src.Addr().Is4() {
		return f.collection.Maps["channels4"].Put(&key4{
			Src: src.Addr().As4(), Dst: dst.Addr().As4(), SrcPort: srcPort, DstPort: dstPort, Number: n,
		}, row)
	}
	return f.collection.Maps["channels6"].Put(&key6{
		Src: src.Addr().As16(), Dst: dst.Addr().As16(), SrcPort: srcPort, DstPort: dstPort, Number: n,
	}, row)
}

func frameRowOf(src, dst netip.AddrPort, number uint16, hop Hop) *frameRow {
	r := &frameRow{
		SrcPort: network(src.Port()), DstPort: network(dst.Port()), Number: network(number),
		MTU: mtu, Device: uint32(hop.Dev.Index), Generation: generation,
	}
	copy(r.Src[:], src.Addr().AsSlice()) // the first word of an IPv4 address
	copy(r.Dst[:], dst.Addr().AsSlice())
	copy(r.MACs[:], hop.MAC)
	copy(r.MACs[6:], hop.Dev.MAC)
	return r
}

// Sent returns how many frames the program All has sent in a direction.
func (f *Frames) Sent(direction string) (n uint64, err error) {
	at := uint32(0)
	if direction == "to_peer" {
		at = 1
	}
	b, err := f.collection.Maps["counts"].LookupBytes(at)
	for ; len(b) >= 16; b = b[16:] { // of each processor: frames and bytes
		n += binary.NativeEndian.Uint64(b)
	}
	return n, err
}
