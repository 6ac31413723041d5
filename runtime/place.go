package runtime

import (
	"cmp"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"github.com/fastrelay/fastrelay-gen/runtime/abi"
	"github.com/fastrelay/fastrelay-gen/runtime/internal/nldump"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/forwarding"
)

// Place says where a program is attached, and what there keeps packets from being forwarded.
type Place struct {
	Attachment
	// The IP versions of packets whose routes the program looks up (`via: "route"`, or a destination that no row has),
	// and which the interface doesn't forward: the kernel finds no route for them. They count as forwarding_off.
	NoForwarding []int
	// The programs of others that have packets first: what they end doesn't come to this one.
	Front []Front
}

// Front is a program of another, as the kernel names it.
type Front struct {
	Name string
	ID   uint32
}

func (f Front) String() string { return fmt.Sprintf("%s (program %d)", f.Name, f.ID) }

// Places returns what [AnyProgram.Attachments] does, with what is found now.
func (p *AnyProgram) Places() ([]Place, error) {
	r := p.relay
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []Place
	err := r.inNamespace(func() error {
		for _, a := range r.attachments {
			if a.program == p.desc.Name {
				out = append(out, r.place(p, a))
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("look at the interfaces of %s: %w", p.desc.Name, err)
	}
	return out, nil
}

// place looks at an attachment. Nothing is known of an interface that is going away right now. r.mu is held, and the
// thread is in the relay's network namespace.
func (r *Relay) place(p *AnyProgram, a *attachment) Place {
	out := Place{Attachment: a.public()}
	if a.lost != nil {
		return out
	}
	out.Front = r.front(a)
	if len(p.desc.Lookups) == 0 {
		return out
	}
	dev, err := netlink.LinkByIndex(a.index) // it may have another name now
	if err != nil {
		return out
	}
	for _, version := range p.desc.Lookups {
		if on, err := forwarding.On(dev.Attrs().Name, version); err == nil && !on {
			out.NoForwarding = append(out.NoForwarding, version)
		}
	}
	return out
}

// warn says what keeps packets from being forwarded where a program was attached. r.mu is held, and the thread is in
// the relay's network namespace.
func (r *Relay) warn(p *AnyProgram, a *attachment) {
	for _, version := range r.place(p, a).NoForwarding {
		r.say(slog.LevelWarn, "an interface doesn't forward packets, and the program looks up their routes",
			"program", p.desc.Name, "interface", a.name, "version", fmt.Sprint("IPv", version),
			"mend", forwarding.Mend(a.name, version))
	}
}

// front returns the programs of others that run before an attachment's. TCX programs run before filters of clsact.
func (r *Relay) front(a *attachment) (out []Front) {
	if a.mode == AttachXDP { // it comes before all of them
		return nil
	}
	for _, f := range chain(a) {
		if r.owns(f.ID) {
			if f.ID == r.kernelID(a.program) {
				return out
			}
			continue
		}
		out = append(out, f)
	}
	if a.filter == nil {
		return out
	}
	l := &netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: a.index, Name: a.name}}
	filters, err := nldump.List(func() ([]netlink.Filter, error) { return netlink.FilterList(l, a.filter.Parent) })
	if err != nil {
		return out
	}
	for _, f := range filters {
		if f.Attrs().Priority >= a.filter.Priority {
			continue
		}
		switch b, ok := f.(*netlink.BpfFilter); {
		case ok && !r.owns(uint32(b.Id)):
			out = append(out, Front{b.Name, uint32(b.Id)})
		case !ok && f.Attrs().Handle != 0: // u32 lists its hash tables, too
			out = append(out, Front{Name: "a filter of type " + f.Type()})
		}
	}
	return out
}

// chain lists the TCX programs on an attachment's interface, in their order; none if the kernel has no TCX.
func chain(a *attachment) (out []Front) {
	at := ebpf.AttachTCXIngress
	if a.egress {
		at = ebpf.AttachTCXEgress
	}
	found, err := link.QueryPrograms(link.QueryOptions{Target: a.index, Attach: at})
	if err != nil {
		return nil
	}
	for _, p := range found.Programs {
		out = append(out, frontOf(p.ID))
	}
	return out
}

// frontOf names a program.
func frontOf(id ebpf.ProgramID) Front {
	f := Front{ID: uint32(id)}
	if prog, err := ebpf.NewProgramFromID(id); err == nil {
		if info, err := prog.Info(); err == nil {
			f.Name = info.Name
		}
		prog.Close()
	}
	return f
}

// idOf returns the ID of the program that an attachment is to be before; 0 if it isn't there.
func idOf(a *attachment) ebpf.ProgramID {
	for _, f := range chain(a) {
		if f.Name == a.before {
			return ebpf.ProgramID(f.ID)
		}
	}
	return 0
}

// isThere returns an error if the program that an attachment is to be before isn't on an interface.
func isThere(a *attachment, index int) error {
	there := &attachment{index: index, egress: a.egress, before: a.before}
	if idOf(there) != 0 {
		return nil
	}
	var names []string
	for _, f := range chain(there) {
		names = append(names, f.String())
	}
	return fmt.Errorf("TCX program %q: %w; there are: %s", a.before, ErrNotFound,
		cmp.Or(strings.Join(names, ", "), "none"))
}

// stands returns an error if an attachment isn't at the place that is asked for. One that is gets it again on an
// interface that is made anew, also if another process had attached it.
func (r *Relay) stands(a *attachment, first bool, before string) error {
	if before == "" && !first {
		return nil
	}
	for _, f := range r.front(a) {
		if first || f.Name == before {
			return fmt.Errorf("it is attached already, behind %v; detach it first", f)
		}
	}
	a.first, a.before = first, before
	return nil
}

func (r *Relay) kernelID(program string) uint32 {
	prog := r.Program(program).prog
	if prog == nil {
		return 0
	}
	info, err := prog.Info()
	if err != nil {
		return 0
	}
	id, _ := info.ID()
	return uint32(id)
}

func (r *Relay) owns(id uint32) bool {
	return slices.ContainsFunc(r.desc.Programs, func(p abi.Program) bool { return r.kernelID(p.Name) == id })
}
