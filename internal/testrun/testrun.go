// Package testrun runs the programs of a compiled object in the kernel, on packets that never see a device
// (BPF_PROG_TEST_RUN). State goes in from a sim.Relay and comes out into one, in the layouts of docs/internals.md, so
// that the kernel and the reference model compare byte for byte.
//
// What such a run can't show: VLAN tags in the metadata, partial checksums, the device and the next hop of a redirect,
// frames that the kernel's own entry refuses (below 14 bytes, IPv4 below 34, IPv6 below 54, more than a page), and
// non-linear data. Redirects are recorded by the kernel and not executed. Clones are sent: a Net takes them when they
// leave (see Capture). internal/test/testlive runs programs on devices, for the rest.
package testrun

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"syscall"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/features"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
	"github.com/fastrelay/fastrelay-gen/runtime/abi"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/bpfload"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/skbfacts"
	"github.com/fastrelay/fastrelay-gen/sim"
)

// Verdicts of a TC program (include/uapi/linux/pkt_cls.h).
const (
	actUnspec   = math.MaxUint32 // -1
	actOK       = 0
	actShot     = 2
	actStolen   = 4
	actRedirect = 7
)

// Relay is a loaded object.
type Relay struct {
	plan  *ir.Plan
	coll  *ebpf.Collection
	progs map[string]*ebpf.Program
	first map[string]*ebpf.Program // at XDP
	ctx   []byte
	out   []byte
	octx  []byte
	cpus  int
	live  map[string]map[int]bool // by array: see mark

	lists   map[string]*lists // by group: see groups.go
	net     *Net              // where copies are taken; nil: nowhere
	copies  []Copy
	sent    []byte // the copies' bytes
	ring    *Ring  // of events; nil if there are none
	events  []Event
	records []byte // the events' bytes
}

// Load loads an object with settings in the layout of ir.Setting.Default; those that are not given take their default.
// The lease is valid for ever. It needs the right to load programs (root).
func Load(plan *ir.Plan, object []byte, settings map[string][]byte) (*Relay, error) {
	spec, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(object))
	if err != nil {
		return nil, fmt.Errorf("read the object: %w", err)
	}
	for _, s := range plan.Settings {
		value := s.Default
		if v, ok := settings[s.Name]; ok {
			value = v
		}
		v := spec.Variables[abi.SettingPrefix+s.Name]
		if v == nil || len(value) != s.Type.Size {
			return nil, fmt.Errorf("setting %q: the object has no variable of %d bytes for it", s.Name, len(value))
		}
		if err := v.Set(value); err != nil {
			return nil, fmt.Errorf("setting %q: %w", s.Name, err)
		}
	}
	for _, t := range plan.Tables {
		if m := spec.Maps[abi.TablePrefix+t.Name]; m != nil && t.Kind == "lru" {
			m.MaxEntries = max(m.MaxEntries, 4096) // evictions are the kernel's choice, and nothing compares with them
		}
	}
	// A plan may ask for less room than the one that the object was made of.
	for name, n := range map[string]int{abi.MapEvents: plan.Ring, abi.MapTranslate: plan.Translations} {
		if m := spec.Maps[name]; m != nil && n > 0 {
			m.MaxEntries = uint32(n)
		}
	}
	watchNext(spec)
	coll, err := bpfload.Load(spec, ebpf.CollectionOptions{})
	if err != nil {
		return nil, fmt.Errorf("load the object: %w", err)
	}
	r := &Relay{
		plan: plan, coll: coll, progs: map[string]*ebpf.Program{}, first: map[string]*ebpf.Program{},
		live: map[string]map[int]bool{},
		ctx:  make([]byte, ctxSize), octx: make([]byte, ctxSize), out: make([]byte, 2*sim.MaxFrame),
		lists: map[string]*lists{},
	}
	for _, g := range plan.Groups {
		if m := spec.Maps[abi.GroupPrefix+g.Name]; m != nil {
			r.lists[g.Name] = &lists{inner: m.InnerMap, byKey: map[string]*list{}}
		}
	}
	if m := coll.Maps[abi.MapEvents]; m != nil {
		if r.ring, err = OpenRing(m); err != nil {
			coll.Close()
			return nil, err
		}
	}
	if r.cpus, err = ebpf.PossibleCPU(); err != nil {
		r.Close()
		return nil, fmt.Errorf("count the processors: %w", err)
	}
	for p := range plan.Flow() {
		of := r.progs
		if p.Hook == ir.XDP {
			of = r.first
		}
		if of[p.Name] = coll.Programs[p.Symbol()]; of[p.Name] == nil && (p.Hook != ir.XDP || skbfacts.Frames()) {
			r.Close()
			return nil, fmt.Errorf("the object has no program %s", p.Symbol())
		}
	}
	if err := r.devmap(); err != nil {
		r.Close()
		return nil, err
	}
	if err := r.put(abi.MapLease, 0, lease(nil)); err != nil {
		r.Close()
		return nil, err
	}
	return r, nil
}

// Program is a loaded program.
func (r *Relay) Program(name string) *ebpf.Program { return cmp.Or(r.progs[name], r.first[name]) }

// Close unloads the object.
func (r *Relay) Close() {
	if r.ring != nil {
		r.ring.Close()
	}
	for _, l := range r.lists {
		l.close()
	}
	r.coll.Close()
}

// Join says that the runs are made in a network that captures, and their results have the copies that it takes.
func (r *Relay) Join(n *Net) { r.net = n }

// Offsets in struct __sk_buff (include/uapi/linux/bpf.h) of what a run may set and see.
const (
	ctxLen      = 0
	ctxMark     = 8
	ctxPriority = 32
	ctxIfindex  = 40
	ctxGSOSize  = 176
	ctxSize     = 192
)

// OnDevice is the context of a run whose packet comes to a device of the thread's network, for programs that a Relay
// doesn't run.
func OnDevice(index int) []byte {
	ctx := make([]byte, ctxSize)
	binary.LittleEndian.PutUint32(ctx[ctxIfindex:], uint32(index))
	return ctx
}

// Result is what the kernel made of a packet.
type Result struct {
	Verdict  sim.Verdict // VerdictPunt also if the spec passes the packet: only the reason shows that
	Data     []byte      // valid until the next run
	Mark     uint32
	Priority uint32
	Copies   []Copy // in the order of sending; only after Join. Valid until the next run
	Others   bool   // at XDP it went to the next program
}

// Event is a record that a program wrote for user space: its time is 0, as in the model, since the clocks differ.
type Event struct {
	Time     uint64 // nanoseconds of the monotonic clock
	Receiver uint32
	ID       int
	Record   []byte
}

// ErrRefused is returned for packets that the kernel's own entry refuses.
var ErrRefused = errors.New("the kernel doesn't run a program on such a packet")

// Shows reports why a run can't show what happens to a packet, or "".
func Shows(p *sim.Packet) string {
	switch {
	case p.VLAN != nil:
		return "the VLAN tag is in the metadata"
	case p.Partial != (sim.Partial{}):
		return "the checksum is partial"
	case len(p.Data) < 14 || len(p.Data) > sim.MaxFrame:
		return fmt.Sprintf("the frame has %d bytes", len(p.Data))
	case p.Link == ir.ToHost && [6]byte(p.Data) == [6]byte{}:
		return "no device has the link-layer address 00:00:00:00:00:00"
	}
	return ""
}

// ShowsResult reports why a run can't show what the model makes of a packet, or "".
//
// The kernel's entry takes the first 14 bytes of every packet for an Ethernet header: if the packet begins with IP,
// what it takes for an EtherType are bytes of an address, and it refuses to move headers of what isn't IP to it. A
// device without Ethernet says IP.
//
// It doesn't say either where the transport header is, as the stack does of what comes from a device. If headers
// don't fit in front of the packet, and it moves to another buffer, the kernel takes that for somewhere in front of the
// packet, and before Linux 6.13 (commit 9ecc4d858b92) it then cuts nothing off.
func ShowsResult(p *ir.Program, in *sim.Packet, want *sim.Result) string {
	return showsResult(p, in, want, cutsAnywhere())
}

func showsResult(p *ir.Program, in *sim.Packet, want *sim.Result, cuts bool) string {
	const front = 64       // NET_SKB_PAD
	const family = 40 - 20 // the IPv6 header stays until there is room for all
	switch end := datagramEnd(in.Data); {
	case want.Moved && !p.L2:
		return "headers move in a packet without a link-layer header"
	case want.Moved && !cuts && len(in.Data) > end && len(want.Packet.Data)-end > front-family:
		return "the packet moves to another buffer, and this kernel then cuts nothing off (before Linux 6.13)"
	}
	return ""
}

// MayHide reports whether ShowsResult has a reason for some result of a packet.
func MayHide(p *ir.Program, in *sim.Packet) bool {
	return !p.L2 || !cutsAnywhere() && len(in.Data) > datagramEnd(in.Data)
}

var cutsAnywhere = sync.OnceValue(func() bool {
	version, err := features.LinuxVersionCode()
	return err == nil && version >= 6<<16|13<<8
})

// datagramEnd is where the IP datagram of a frame ends, as its header says; or where the frame ends, if it has none.
func datagramEnd(frame []byte) int {
	const eth, v4, v6 = 14, 20, 40
	end := len(frame)
	switch {
	case len(frame) >= eth+v4 && frame[12] == 0x08 && frame[13] == 0x00:
		end = eth + int(binary.BigEndian.Uint16(frame[eth+2:]))
	case len(frame) >= eth+v6 && frame[12] == 0x86 && frame[13] == 0xDD:
		end = eth + v6 + int(binary.BigEndian.Uint16(frame[eth+4:]))
	}
	return min(end, len(frame))
}

// Run runs a program on a packet.
func (r *Relay) Run(program string, p *sim.Packet) (Result, error) {
	binary.LittleEndian.PutUint32(r.ctx[ctxMark:], p.Mark)
	binary.LittleEndian.PutUint32(r.ctx[ctxPriority:], p.Priority)
	binary.LittleEndian.PutUint32(r.ctx[ctxGSOSize:], p.GSO)
	opts := ebpf.RunOptions{Data: p.Data, DataOut: r.out[:cap(r.out)], Context: r.ctx, ContextOut: r.octx}
	if r.net != nil {
		r.net.capture.drop()
	}
	others := false
	if first := r.first[program]; first != nil && (p.Frame || r.progs[program] == nil) {
		res, taken, err := r.runFrame(first, program, p)
		if taken || err != nil {
			return res, err
		}
		if r.progs[program] == nil {
			res.Verdict, res.Others = sim.VerdictPunt, false
			return res, nil
		}
		others = res.Others
	}
	act, err := r.progs[program].Run(&opts)
	if errors.Is(err, syscall.EINVAL) {
		return Result{}, fmt.Errorf("%d bytes: %w", len(p.Data), ErrRefused)
	}
	if err != nil {
		return Result{}, fmt.Errorf("run %q: %w", program, err)
	}
	res := Result{
		Data:     opts.DataOut,
		Mark:     binary.LittleEndian.Uint32(r.octx[ctxMark:]),
		Priority: binary.LittleEndian.Uint32(r.octx[ctxPriority:]),
		Others:   others,
	}
	switch act {
	case actUnspec, actOK:
		res.Verdict = sim.VerdictPunt
	case actShot:
		res.Verdict = sim.VerdictDrop
	case actRedirect:
		res.Verdict = sim.VerdictSent
		if !r.hasLink(program) { // room for the link-layer header that the kernel writes
			res.Data = res.Data[min(linkRoom, len(res.Data)):]
		}
	default:
		return Result{}, fmt.Errorf("run %q: unknown verdict %d", program, act)
	}
	if r.net != nil {
		r.copies = r.net.capture.copies(r.copies[:0], &r.sent)
		res.Copies = r.copies
	}
	return res, nil
}

// linkRoom is the size of an Ethernet header.
const linkRoom = 14

// hasLink reports whether a program's packets have a link-layer header.
func (r *Relay) hasLink(program string) bool {
	return !slices.ContainsFunc(r.plan.Programs, func(p *ir.Program) bool { return p.Name == program && !p.L2 })
}

// Events reads the ring empty. What it returns is valid until the next call.
func (r *Relay) Events() []Event {
	if r.ring == nil {
		return nil
	}
	r.events, r.records = r.events[:0], r.records[:0]
	r.ring.Drain(func(record []byte) {
		if len(record) < abi.EventHeader {
			return
		}
		at := len(r.records)
		if n := int(binary.LittleEndian.Uint16(record[abi.EventSize:])); n >= abi.EventHeader && n < len(record) {
			record = record[:n] // it has less of the packet than there is room for
		}
		r.records = append(r.records, record...)
		e := Event{
			Time:     binary.LittleEndian.Uint64(record),
			Receiver: binary.LittleEndian.Uint32(record[8:]),
			ID:       int(binary.LittleEndian.Uint16(record[12:])),
			Record:   r.records[at:len(r.records):len(r.records)],
		}
		clear(e.Record[:8])
		r.events = append(r.events, e)
	})
	return r.events
}
