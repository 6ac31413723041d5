package runtime

import (
	"fmt"
	"iter"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"

	"github.com/fastrelay/fastrelay-gen/runtime/abi"
)

// Count is a number of packets and of their bytes. Bytes are those of whole frames as they came.
type Count struct {
	Packets uint64
	Bytes   uint64
}

// A Program is one program of a relay.
type Program struct {
	relay *Relay
	desc  *abi.Program
	prog  *ebpf.Program
}

// Name returns the program's name in the spec.
func (p *Program) Name() string { return p.desc.Name }

// abi.Desc returns the program's description.
func (p *Program) Desc() *abi.Program { return p.desc }

// Kernel returns the loaded program, for tools that measure and test. It is closed with the relay.
func (p *Program) Kernel() *ebpf.Program { return p.prog }

// Reasons iterates over what became of the packets that the program saw, summed over all processors: every reason, in the
// order of the plan, those that never happened included.
func (p *Program) Reasons() iter.Seq2[abi.Reason, Count] {
	return func(yield func(abi.Reason, Count) bool) {
		for i, reason := range p.desc.Reasons {
			if !yield(reason, p.count(p.desc.Base+i)) {
				return
			}
		}
	}
}

// Count returns what the reasons of a name counted, of whatever kind; zeros where the program has none. [Program.Reasons] has the
// kinds apart, such as packets that went up and receivers that got no copy, both because a credit was used up.
func (p *Program) Count(reason string) Count {
	var n Count
	for i, r := range p.desc.Reasons {
		if r.Name == reason {
			c := p.count(p.desc.Base + i)
			n.Packets, n.Bytes = n.Packets+c.Packets, n.Bytes+c.Bytes
		}
	}
	return n
}

// CountAt returns what the i-th reason of the program counted.
func (p *Program) CountAt(i int) Count {
	if i < 0 || i >= len(p.desc.Reasons) {
		return Count{}
	}
	return p.count(p.desc.Base + i)
}

func (p *Program) count(index int) Count {
	var c Count
	p.relay.eachCPU(abi.MapReasons, index, func(b []byte) {
		c.Packets += abi.Order.Uint64(b)
		c.Bytes += abi.Order.Uint64(b[8:])
	})
	return c
}

// Counters iterates over the named counters of the relay, summed over all processors, in the order of the spec.
func (r *Relay) Counters() iter.Seq2[string, uint64] {
	return func(yield func(string, uint64) bool) {
		for i, name := range r.desc.Counters {
			if !yield(name, r.CounterAt(i)) {
				return
			}
		}
	}
}

// CounterAt returns the i-th named counter.
func (r *Relay) CounterAt(i int) uint64 {
	var n uint64
	if i >= 0 && i < len(r.desc.Counters) {
		r.eachCPU(abi.MapNamed, i, func(b []byte) { n += abi.Order.Uint64(b) })
	}
	return n
}

// eachCPU visits an entry of a per-CPU array on each processor; on none where the relay is closed.
func (r *Relay) eachCPU(name string, index int, visit func([]byte)) {
	m := r.coll.Maps[name]
	var buf []byte
	err := r.using(func() (err error) {
		buf, err = m.LookupBytes(uint32(index))
		return err
	})
	if err != nil {
		return
	}
	for stride := align8(int(m.ValueSize())); len(buf) >= stride; buf = buf[stride:] {
		visit(buf)
	}
}

// Attach attaches the program to the interface of that name, behind the programs that are there already. Attaching twice
// does nothing. Where the interface goes away, the program is attached again to the next one of that name, until Detach;
// see [Options.AttachmentChanged].
func (p *Program) Attach(iface string) error {
	return p.attach(iface, 0)
}

// AttachIndex attaches the program to the interface of that index.
func (p *Program) AttachIndex(ifindex int) error {
	return p.attach("", ifindex)
}

// Detach detaches the program from the interface of that name, and doesn't attach it to a new one any more; nothing happens
// where it isn't attached.
func (p *Program) Detach(iface string) error {
	r := p.relay
	r.mu.Lock()
	defer r.mu.Unlock()
	index := -1 // the interface may have been renamed
	err := r.inNamespace(func() error {
		if l, err := netlink.LinkByName(iface); err == nil {
			index = l.Attrs().Index
		}
		return nil
	})
	if err != nil || r.closed {
		return err
	}
	return r.detach(func(a *attachment) bool {
		return a.program == p.desc.Name && (a.index == index || (index < 0 || a.lost != nil) && a.name == iface)
	})
}

// Attachment says where a program is attached.
type Attachment struct {
	Interface string // its name when the program was attached
	Index     int    // 0 where Lost is set
	How       string // "tcx" or "clsact"

	// Lost says why the program isn't attached at present: the interface has gone, or the new one of that name can't have
	// the program. The relay attaches it again when an interface of that name appears. nil: it is attached.
	Lost error
}

// Attachments returns where the program is attached, in the order in which that was asked for, and where it will be again.
func (p *Program) Attachments() []Attachment {
	p.relay.mu.Lock()
	defer p.relay.mu.Unlock()
	var out []Attachment
	for _, a := range p.relay.attachments {
		if a.program == p.desc.Name {
			out = append(out, a.public())
		}
	}
	return out
}

// DetachAll detaches all programs from all interfaces. The relay stays loaded.
func (r *Relay) DetachAll() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.detach(func(*attachment) bool { return true })
}

// String names the program.
func (p *Program) String() string { return fmt.Sprintf("program %q", p.desc.Name) }
