package runtime

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"

	"github.com/fastrelay/fastrelay-gen/runtime/abi"
	"github.com/fastrelay/fastrelay-gen/runtime/internal/mapmem"
)

// Count is a number of packets and of their bytes. Bytes are those of whole frames as they came.
type Count struct {
	Packets uint64
	Bytes   uint64
}

// AnyProgram is one program of a relay.
type AnyProgram struct {
	relay *Relay
	desc  *abi.Program
	prog  *ebpf.Program
}

// Name returns the program's name in the spec.
func (p *AnyProgram) Name() string { return p.desc.Name }

// Desc returns the program's description.
func (p *AnyProgram) Desc() *abi.Program { return p.desc }

// Kernel returns the loaded program, for tools that measure and test. It is closed with the relay.
func (p *AnyProgram) Kernel() *ebpf.Program { return p.prog }

// Counts returns what became of the packets that the program saw, summed over all processors: by reason, in the order
// of the description's Reasons, those that never happened included.
func (p *AnyProgram) Counts() ([]Count, error) {
	out := make([]Count, len(p.desc.Reasons))
	for i := range out {
		var err error
		if out[i], err = p.count(i); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// Count returns what the reasons of a name counted, of whatever kind; an error that wraps [ErrNotFound] if the
// program has none. [AnyProgram.Counts] has the kinds apart, such as packets that were punted and receivers that got no
// copy, both because a credit was used up.
func (p *AnyProgram) Count(reason string) (Count, error) {
	var n Count
	found := false
	for i, r := range p.desc.Reasons {
		if r.Name != reason {
			continue
		}
		c, err := p.count(i)
		if err != nil {
			return Count{}, err
		}
		found, n.Packets, n.Bytes = true, n.Packets+c.Packets, n.Bytes+c.Bytes
	}
	if !found {
		return Count{}, fmt.Errorf("%v: reason %q: %w", p, reason, ErrNotFound)
	}
	return n, nil
}

func (p *AnyProgram) count(i int) (c Count, err error) {
	c, err = p.countFrom(p.desc.Base, i)
	if err != nil || p.desc.XDPBase == 0 {
		return c, err
	}
	x, err := p.countFrom(p.desc.XDPBase, i)
	return Count{c.Packets + x.Packets, c.Bytes + x.Bytes}, err
}

// XDPCounts returns those of Counts that the program saw at XDP; nil if it doesn't run there.
func (p *AnyProgram) XDPCounts() ([]Count, error) {
	switch {
	case p.desc.Hook == abi.HookXDP:
		return p.Counts()
	case p.desc.XDPBase == 0:
		return nil, nil
	}
	out := make([]Count, len(p.desc.Reasons))
	for i := range out {
		var err error
		if out[i], err = p.countFrom(p.desc.XDPBase, i); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (p *AnyProgram) countFrom(base, i int) (c Count, err error) {
	err = p.relay.eachCPU(abi.MapReasons, base+p.desc.Reasons[i].Number, func(b []byte) {
		c.Packets += abi.Order.Uint64(b[abi.ReasonPackets:])
		c.Bytes += abi.Order.Uint64(b[abi.ReasonBytes:])
	})
	return c, err
}

// Counters returns the named counters of the relay, summed over all processors, in the order of the description's
// Counters.
func (r *Relay) Counters() ([]uint64, error) {
	out := make([]uint64, len(r.desc.Counters))
	for i := range out {
		if err := r.eachCPU(abi.MapNamed, i, func(b []byte) { out[i] += abi.Order.Uint64(b) }); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// eachCPU visits an entry of a per-CPU array on each processor.
func (r *Relay) eachCPU(name string, index int, visit func([]byte)) error {
	m := r.coll.Maps[name]
	var buf []byte
	err := r.using(func() (err error) {
		buf, err = m.LookupBytes(uint32(index))
		return err
	})
	if err != nil {
		return fmt.Errorf("read %s: %w", name, err)
	}
	for stride := mapmem.Stride(int(m.ValueSize())); len(buf) >= stride; buf = buf[stride:] {
		visit(buf)
	}
	return nil
}

// Attach attaches the program to the interface of that name, after the programs that are there already. Attaching
// twice does nothing. An interface that is renamed keeps its programs. If it goes away, the program is attached
// again to the next one of the name that it had, until Detach; see [Options.AttachmentChanged].
func (p *AnyProgram) Attach(iface string) error { return p.AttachAt(iface, AttachOptions{}) }

// AttachOptions say how a program is attached.
type AttachOptions struct {
	// First is before the programs that are there already, as AttachFirst has it.
	First bool
	// Before is before one program, as AttachBefore has it.
	Before string
	// Hook is whether packets come to the program at XDP first. Attached again with another one, a program changes.
	Hook Hook
}

// AttachAt is [AnyProgram.Attach] with options.
func (p *AnyProgram) AttachAt(iface string, o AttachOptions) error { return p.attachAt(iface, 0, o) }

// AttachFirst is [AnyProgram.Attach] before the programs that are there already, such as Cilium's, which let no other
// program have the packets that they pass. Programs of one relay that are attached so keep their order. It takes TCX
// (Linux 6.6). It is an error if the program is attached already, behind
// those of others.
func (p *AnyProgram) AttachFirst(iface string) error {
	return p.AttachAt(iface, AttachOptions{First: true})
}

// AttachBefore is [AnyProgram.AttachFirst] before one program, given by its name in the kernel (bpftool net). It is an
// error that wraps [ErrNotFound] if none of that name is there.
func (p *AnyProgram) AttachBefore(iface, program string) error {
	return p.AttachAt(iface, AttachOptions{Before: program})
}

// Detach detaches the program from the interface of that name, and doesn't attach it to a new one any more. The error
// wraps [ErrNotFound] if it isn't attached there.
func (p *AnyProgram) Detach(iface string) error {
	r := p.relay
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil
	}
	var there []string
	err := r.inNamespace(func() error {
		if len(r.attachments) > 0 {
			r.noteLost() // which looks at the names
		}
		for _, a := range r.attachments {
			if a.program == p.desc.Name {
				there = append(there, a.name)
			}
		}
		if l, err := netlink.LinkByName(iface); err == nil && !slices.Contains(there, iface) {
			iface = l.Attrs().Name // it has several
		}
		return nil
	})
	switch {
	case err != nil:
		return err
	case len(there) == 0:
		return fmt.Errorf("%v isn't attached to any interface: %w", p, ErrNotFound)
	case !slices.Contains(there, iface):
		return fmt.Errorf("%v isn't attached to %s, but to %s: %w", p, iface, strings.Join(there, ", "), ErrNotFound)
	}
	return r.detach(func(a *attachment) bool { return a.program == p.desc.Name && a.name == iface })
}

// AttachMode is how a program is attached.
type AttachMode uint8

// How a program is attached.
const (
	AttachTCX    AttachMode = iota + 1 // by a TCX link, since Linux 6.6
	AttachClsact                       // by a filter of the clsact qdisc
	AttachXDP                          // at XDP alone
)

// String names the mode.
func (m AttachMode) String() string {
	switch m {
	case AttachTCX:
		return "tcx"
	case AttachXDP:
		return "xdp"
	case AttachClsact:
		return "clsact"
	}
	return fmt.Sprintf("AttachMode(%d)", uint8(m))
}

// Attachment says where a program is attached.
type Attachment struct {
	Interface string // its name; the last one, if Lost is set
	Index     int    // 0 if Lost is set
	Mode      AttachMode

	// Lost says why the program isn't attached at present: the interface has gone, or the new one of that name can't
	// have the program. The relay attaches it again when an interface of that name appears. nil: it is attached.
	Lost error

	// XDP says that packets come to the program at XDP first.
	XDP bool
	// NoXDP says why they don't, though that was asked for; nil: they do, or it wasn't.
	NoXDP error
}

// Attachments returns where the program is attached, in the order in which that was asked for, and where it will be
// again.
func (p *AnyProgram) Attachments() []Attachment {
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

// DetachAll detaches all programs from all interfaces, and unregisters a congestion control. The relay stays loaded.
func (r *Relay) DetachAll() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return errors.Join(r.detach(func(*attachment) bool { return true }), r.unregister())
}

// String names the program.
func (p *AnyProgram) String() string { return fmt.Sprintf("program %q", p.desc.Name) }
