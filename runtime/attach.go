package runtime

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/runtime/abi"
	"github.com/fastrelay/fastrelay-gen/runtime/internal/nldump"
	"github.com/fastrelay/fastrelay-gen/runtime/internal/routes"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/bpfload"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/namespace"
)

// attachment is a program on an interface: a TCX link if the kernel has them (6.6), else a filter of a clsact qdisc.
// Both let the next program on the device decide when ours doesn't, and both run after those that were there before,
// unless the attachment is to be first.
type attachment struct {
	program string
	name    string // of the interface when the program was attached; it is looked for when the interface has gone
	index   int    // 0: lost
	egress  bool
	first   bool   // before the programs of others
	before  string // before the program of that name; "": none
	mode    AttachMode
	link    link.Link          // TCX
	filter  *netlink.BpfFilter // clsact
	lost    error              // why the program isn't attached at present; nil: it is
	hook    Hook               // whether it is to run at XDP, too
	xdp     bool               // it does
	noXDP   error              // why not
	taken   error              // that another process has taken it away from XDP
	behind  error              // that another program comes first, and not at XDP
	was     error              // AttachXDP: why it was lost before
	refused int                // the index of an interface of that name that the program can't be attached to; 0: none
}

// public is what callers see of it.
func (a *attachment) public() Attachment {
	return Attachment{a.name, a.index, a.mode, a.lost, a.xdp, a.noXDP}
}

// inNamespace runs f in the relay's network namespace.
func (r *Relay) inNamespace(f func() error) error { return namespace.Within(r.ns, f) }

func (p *AnyProgram) attach(name string, index int) error {
	return p.attachAt(name, index, AttachOptions{})
}

func (p *AnyProgram) attachAt(name string, index int, o AttachOptions) error {
	r := p.relay
	switch {
	case p.desc.Hook == abi.HookXDP:
		o.Hook = HookXDP
	case p.desc.XDPBase == 0 && o.Hook == HookAuto:
		o.Hook = HookTC
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	what := name
	if name == "" {
		what = fmt.Sprintf("interface %d", index)
	}
	fail := func(err error) error { return fmt.Errorf("attach %s to %s: %w", p.desc.Name, what, err) }
	if p.desc.Hook == abi.HookCongestion {
		return fail(fmt.Errorf("it runs at %v, not at an interface: Register it", p.desc.Hook))
	}
	if p.desc.Hook == abi.HookXDP && (o.First || o.Before != "") {
		return fail(errors.New("it runs at XDP, before all that is at tc/ingress: Attach it"))
	}
	if r.closed {
		return fail(fmt.Errorf("relay: %w", ErrClosed))
	}
	err := r.inNamespace(func() error {
		// First listen, then look: an interface that goes away in between is seen, not missed.
		if err := r.watchInterfaces(); err != nil {
			return err
		}
		l, err := findLink(name, index)
		if err != nil {
			return err
		}
		r.noteLost()
		if a := r.attachedTo(p, l.Attrs().Index); a != nil {
			if err := r.stands(a, o.First, o.Before); err != nil {
				return err
			}
			return r.hookAt(p, a, o.Hook)
		}
		a := &attachment{program: p.desc.Name, name: l.Attrs().Name, egress: p.desc.Hook == abi.HookEgress}
		// One that waits for this interface has its place in the order already.
		i := slices.IndexFunc(r.attachments, func(b *attachment) bool {
			return b.lost != nil && b.program == a.program && b.name == a.name
		})
		if i >= 0 {
			a = r.attachments[i]
		}
		a.first, a.before = o.First, o.Before
		if a.before != "" && !r.opt.Clsact {
			if err := isThere(a, l.Attrs().Index); err != nil {
				return err
			}
		}
		if err := r.attachTo(p, a, l.Attrs()); err != nil {
			return err
		}
		if i < 0 {
			r.attachments = append(r.attachments, a)
			r.say(slog.LevelInfo, "a program is attached", "program", a.program, "interface", a.name, "how", a.mode)
		} else {
			r.note(a)
		}
		if err := r.hookAt(p, a, o.Hook); err != nil {
			return errors.Join(err, r.detachOne(a))
		}
		return nil
	})
	if refusal := bpfload.Explain(err); refusal != nil {
		err = &KernelError{Doing: "attach a program", Cause: refusal.Cause, Fix: refusal.Fix, Err: refusal.Err}
	}
	if err != nil {
		return fail(err)
	}
	return nil
}

// hookAt has a program that is attached run at XDP, too, or not any more. It is an error if that isn't right for the
// device, and was asked for.
func (r *Relay) hookAt(p *AnyProgram, a *attachment, hook Hook) error {
	if hook == HookXDP && !p.desc.AtXDP() {
		return errNotAtXDP
	}
	was := a.hook
	a.hook, a.taken = hook, nil
	r.settle(a.index)
	r.interfaces.look() // from now on it is looked at again and again
	if err := a.noXDP; hook == HookXDP && err != nil {
		a.hook = was
		if a.mode != AttachXDP {
			r.settle(a.index)
		}
		return err
	}
	return nil
}

func (r *Relay) attachedTo(p *AnyProgram, index int) *attachment {
	for _, a := range r.attachments {
		if a.program == p.desc.Name && a.index == index {
			return a
		}
	}
	return nil
}

// errNoEthernet: the program can't be attached to such an interface.
var errNoEthernet = errors.New("its frames have no Ethernet header")

// attachTo attaches a program to an interface. r.mu is held, and the thread is in the relay's network namespace.
func (r *Relay) attachTo(p *AnyProgram, a *attachment, dev *netlink.LinkAttrs) error {
	if p.desc.L2 && !routes.HasEthernet(dev) {
		return fmt.Errorf("%w (%s), and the spec's stack begins with one", errNoEthernet, dev.EncapType)
	}
	a.index = dev.Index
	if p.desc.Hook == abi.HookXDP {
		a.mode, a.hook, a.was = AttachXDP, HookXDP, a.lost
		a.lost, a.refused = nil, 0
		r.warn(p, a)
		return nil // settle does it
	}
	err := error(ebpf.ErrNotSupported)
	if !r.opt.Clsact {
		err = r.attachTCX(p, a)
	}
	if errors.Is(err, ebpf.ErrNotSupported) {
		if a.first || a.before != "" {
			err = errors.New("it can't be before other programs there without TCX, which Linux has since 6.6; " +
				"Attach it")
		} else {
			err = r.attachFilter(p, a)
		}
	}
	if err != nil {
		a.index = 0
		return err
	}
	a.lost, a.refused = nil, 0
	r.warn(p, a)
	return nil
}

func findLink(name string, index int) (netlink.Link, error) {
	var l netlink.Link
	var err error
	if name != "" {
		l, err = netlink.LinkByName(name)
	} else {
		l, err = netlink.LinkByIndex(index)
	}
	if err == nil {
		return l, nil
	}
	var missing netlink.LinkNotFoundError
	if !errors.As(err, &missing) && !errors.Is(err, unix.ENODEV) {
		return nil, err
	}
	text := "there is no such interface"
	if all, err := nldump.List(netlink.LinkList); err == nil {
		var names []string
		for _, l := range all {
			names = append(names, l.Attrs().Name)
		}
		slices.Sort(names)
		text += "; this network namespace has " + strings.Join(names, ", ")
	}
	return nil, errors.New(text)
}

func (r *Relay) attachTCX(p *AnyProgram, a *attachment) error {
	at := ebpf.AttachTCXIngress
	if a.egress {
		at = ebpf.AttachTCXEgress
	}
	l, err := link.AttachTCX(link.TCXOptions{Interface: a.index, Program: p.prog, Attach: at, Anchor: r.anchor(a)})
	if err != nil {
		return err
	}
	a.link, a.mode = l, AttachTCX
	if r.pins != nil {
		if err := r.pins.AddLink(a.program, a.index, a.link); err != nil {
			a.link = nil
			l.Close()
			return err
		}
	}
	return nil
}

// anchor is the place of an attachment among the programs on its interface. Those of the relay that are first keep
// their order.
func (r *Relay) anchor(a *attachment) link.Anchor {
	if !a.first && a.before == "" {
		return link.Tail()
	}
	at := link.Head()
	if a.before != "" { // the first place is before it as well, should it not be there yet
		if id := idOf(a); id != 0 {
			return link.BeforeProgramByID(id)
		}
		return at
	}
	for _, b := range r.attachments {
		if b != a && b.first && b.link != nil && b.index == a.index && b.egress == a.egress {
			at = link.AfterLink(b.link)
		}
	}
	return at
}

// filterPrefix begins the name of each of our filters, so that no others are touched.
const filterPrefix = "fastrelay:"

func (r *Relay) filterName(program string) string { return filterPrefix + r.desc.Name + ":" + program }

func filterParent(egress bool) uint32 {
	if egress {
		return netlink.HANDLE_MIN_EGRESS
	}
	return netlink.HANDLE_MIN_INGRESS
}

// attachFilter adds a clsact filter after those that are there, so that the order is that of TCX.
func (r *Relay) attachFilter(p *AnyProgram, a *attachment) error {
	l := &netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: a.index, Name: a.name}}
	made, err := addClsact(l, a.egress)
	if err != nil {
		return err
	}
	if made {
		r.qdiscs[a.index] = true
	}
	parent := filterParent(a.egress)
	filters, err := nldump.List(func() ([]netlink.Filter, error) { return netlink.FilterList(l, parent) })
	if err != nil {
		return errors.Join(fmt.Errorf("list its filters: %w", err), r.dropClsact(a.index))
	}
	last := 0
	for _, f := range filters {
		if b, ok := f.(*netlink.BpfFilter); ok && b.Name == r.filterName(p.desc.Name) && r.dead(b) {
			if err := netlink.FilterDel(b); err != nil {
				return fmt.Errorf("remove the filter that a dead process left: %w", err)
			}
			continue
		}
		last = max(last, int(f.Attrs().Priority))
	}
	if last >= 0xfffe {
		return errors.Join(fmt.Errorf("no filter can come after the one of priority %d", last), r.dropClsact(a.index))
	}
	f := &netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{
			LinkIndex: a.index, Parent: parent, Handle: 1, Protocol: unix.ETH_P_ALL, Priority: uint16(last + 1),
		},
		Fd:           p.prog.FD(),
		Name:         r.filterName(p.desc.Name),
		DirectAction: true,
	}
	if err := netlink.FilterAdd(f); err != nil {
		return errors.Join(fmt.Errorf("add a filter: %w", err), r.dropClsact(a.index))
	}
	a.filter, a.mode = f, AttachClsact
	return nil
}

// addClsact makes sure that the interface has the qdisc, and says whether it is new.
func addClsact(l netlink.Link, egress bool) (made bool, err error) {
	q := &netlink.Clsact{
		QdiscAttrs: netlink.QdiscAttrs{
			LinkIndex: l.Attrs().Index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT,
		},
	}
	switch err = netlink.QdiscAdd(q); {
	case err == nil:
		return true, nil
	case !errors.Is(err, unix.EEXIST) && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.EBUSY):
		return false, fmt.Errorf("add a clsact qdisc: %w", err)
	}
	all, listErr := nldump.List(func() ([]netlink.Qdisc, error) { return netlink.QdiscList(l) })
	if listErr != nil {
		return false, fmt.Errorf("list its qdiscs: %w", listErr)
	}
	for _, q := range all {
		if q.Attrs().Parent != netlink.HANDLE_CLSACT {
			continue
		}
		// An ingress qdisc would take filters of egress for its own.
		if q.Type() == "clsact" || q.Type() == "ingress" && !egress {
			return false, nil
		}
		return false, fmt.Errorf("it has a qdisc of type %s, which can't run programs on egress; replace it by clsact",
			q.Type())
	}
	return false, fmt.Errorf("add a clsact qdisc: %w", err)
}

// dropClsact removes the qdisc if it is ours and has no filters.
func (r *Relay) dropClsact(index int) error {
	if !r.qdiscs[index] {
		return nil
	}
	l := &netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: index}}
	for _, egress := range []bool{false, true} {
		filters, err := netlink.FilterList(l, filterParent(egress))
		if err != nil || len(filters) > 0 {
			return gone(err)
		}
	}
	delete(r.qdiscs, index)
	return gone(netlink.QdiscDel(&netlink.Clsact{
		QdiscAttrs: netlink.QdiscAttrs{
			LinkIndex: index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT,
		},
	}))
}

// dead says whether a filter belongs to a relay whose lease has lapsed.
func (r *Relay) dead(f *netlink.BpfFilter) bool {
	lease := mapOfProgram(ebpf.ProgramID(f.Id), abi.MapLease)
	if lease == nil {
		return false
	}
	defer lease.Close()
	b, err := lease.LookupBytes(uint32(0))
	return err == nil && len(b) >= 8 && abi.Order.Uint64(b[abi.LeaseDeadline:]) <= r.clock.now()
}

// mapOfProgram opens the map of that name that a loaded program uses; nil if it can't.
func mapOfProgram(id ebpf.ProgramID, name string) *ebpf.Map {
	prog, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return nil
	}
	defer prog.Close()
	info, err := prog.Info()
	if err != nil {
		return nil
	}
	ids, _ := info.MapIDs()
	for _, id := range ids {
		m, err := ebpf.NewMapFromID(id)
		if err != nil {
			continue
		}
		if info, err := m.Info(); err == nil && info.Name == name {
			return m
		}
		m.Close()
	}
	return nil
}

// detach detaches what matches. An interface that is gone took its programs along. r.mu is held.
func (r *Relay) detach(match func(*attachment) bool) error {
	if len(r.attachments) == 0 {
		return nil
	}
	return r.inNamespace(func() error {
		var errs []error
		var rest []*attachment
		for _, a := range r.attachments {
			if !match(a) {
				rest = append(rest, a)
				continue
			}
			if err := r.detachOne(a); err != nil {
				errs = append(errs, fmt.Errorf("detach %s from %s: %w", a.program, a.name, err))
				rest = append(rest, a)
				continue
			}
			r.say(slog.LevelInfo, "a program is detached", "program", a.program, "interface", a.name)
		}
		r.attachments = rest
		return errors.Join(errs...)
	})
}

func (r *Relay) detachOne(a *attachment) error {
	all := r.attachments
	r.attachments = slices.DeleteFunc(slices.Clone(all), func(b *attachment) bool { return a == b })
	if a.lost != nil {
		return nil
	}
	r.settle(a.index) // the others go on without it
	err := r.detachTC(a)
	if err != nil {
		r.attachments = all
		r.settle(a.index)
	}
	return err
}

func (r *Relay) detachTC(a *attachment) error {
	if a.mode == AttachXDP {
		return nil // settle has done it
	}
	if a.link != nil {
		if r.pins != nil {
			if err := r.pins.DropLink(a.program, a.index); err != nil {
				return err
			}
		}
		return a.link.Close()
	}
	if err := gone(netlink.FilterDel(a.filter)); err != nil {
		return err
	}
	return r.dropClsact(a.index)
}

// gone forgives errors that mean that something is not there any more.
func gone(err error) error {
	if errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINVAL) {
		return nil
	}
	return err
}

// releaseAttachments lets go of the attachments, and of the name of a congestion control, which stay. r.mu is held.
func (r *Relay) releaseAttachments() {
	for _, a := range r.attachments {
		if a.link != nil {
			a.link.Close() // its pin keeps it
		}
	}
	r.frames.release()
	r.attachments = nil
	if r.registered != nil {
		r.registered.Close() // likewise
	}
	r.registered = nil
}
