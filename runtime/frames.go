package runtime

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/runtime/abi"
	"github.com/fastrelay/fastrelay-gen/runtime/internal/pins"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/bpfload"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/netdev"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/skbfacts"
)

// A program that runs at XDP, too, is one attachment: at tc/ingress as any other, and in front of that at XDP where
// that is right for the device. So no packet is worse off than at tc/ingress alone, whatever becomes of XDP.
//
// What is right changes while a relay runs: a device takes frames of others or takes none, has another address, takes
// VLAN tags out of frames. The kernel announces it, and the relay follows.

// Hook says at which hooks a program is attached that runs at XDP, too.
type Hook uint8

// Hooks. For a program that doesn't run at XDP, HookAuto is HookTC.
const (
	HookTC   Hook = iota // at tc/ingress alone
	HookAuto             // at XDP, too, where that is right for the device, which isn't a card or a veth
	HookXDP              // at XDP, too, also on a card or a veth; it is an error if that isn't right for the device
)

var hookNames = []string{"tc", "auto", "xdp"}

// String names the hook.
func (h Hook) String() string {
	if int(h) < len(hookNames) {
		return hookNames[h]
	}
	return fmt.Sprintf("Hook(%d)", uint8(h))
}

// MarshalText writes what UnmarshalText reads.
func (h Hook) MarshalText() ([]byte, error) { return []byte(h.String()), nil }

// UnmarshalText reads tc, auto or xdp.
func (h *Hook) UnmarshalText(text []byte) error {
	for i, name := range hookNames {
		if string(text) == name {
			*h = Hook(i)
			return nil
		}
	}
	return fmt.Errorf("is %q; it must be one of %s", text, strings.Join(hookNames, ", "))
}

// A device has one program at XDP. If several of a relay's are attached to one, they are loaded as one: each gets what
// those before it leave to tc/ingress, in the order that they have there.

// frames is what a relay has at XDP.
type frames struct {
	relay  *Relay
	events *nl.NetlinkSocket     // nil: no device was looked at yet
	now    map[int]netdev.Device // what devices can do, as it was found last
	at     map[int]*frontDoor    // devices that programs run at, by index
}

// frontDoor is what runs at XDP on a device.
type frontDoor struct {
	link     link.Link
	pin      string
	programs []*AnyProgram // nil: those of another process, which are to be replaced
}

var errNotAtXDP = errors.New("the program doesn't run at XDP: its hook in the spec isn't [\"xdp\", \"tc/ingress\"]")

// newFrames returns nil if the relay has nothing at XDP, or the kernel doesn't say what its devices can do there.
func newFrames(r *Relay) (*frames, error) {
	if !r.desc.AtXDP() || !skbfacts.Frames() {
		return nil, nil
	}
	switch err := netdev.Known(); {
	case errors.Is(err, netdev.ErrNone):
		return nil, nil
	case err != nil:
		return nil, &KernelError{Doing: "ask what devices can do at XDP", Cause: "netlink can't be used", Err: err}
	}
	return &frames{relay: r, at: map[int]*frontDoor{}}, nil
}

// watch begins to follow what devices can do. r.mu is held or no other goroutine knows the relay, and the thread is in
// its network namespace.
func (f *frames) watch() (err error) {
	if f == nil {
		return nil
	}
	if f.events, err = netdev.Watch(); err != nil {
		return err
	}
	f.relay.wg.Add(1)
	go func() {
		defer f.relay.wg.Done()
		for {
			_, _, err := f.events.Receive()
			select {
			case <-f.relay.done:
				return
			default:
			}
			if err != nil && !errors.Is(err, unix.ENOBUFS) && !errors.Is(err, unix.EINTR) &&
				!errors.Is(err, unix.EAGAIN) {
				f.relay.log.Error("what devices can do at XDP can't be followed any more", "relay",
					f.relay.desc.Name, "error", err)
				return
			}
			f.relay.interfaces.look()
		}
	}()
	return nil
}

// close ends it; nil is none.
func (f *frames) close() {
	if f != nil && f.events != nil {
		f.events.Close()
	}
}

// settle has the programs that are attached to a device run at XDP, too, as far as that is asked for and right for the
// device, and no others. r.mu is held, and the thread is in the relay's network namespace.
func (r *Relay) settle(index int) {
	all := r.inOrder(index)
	var programs []*AnyProgram
	var first error // that a program gets packets before those that follow, and not at XDP
	hook := HookTC
	for _, a := range all {
		a.behind = first
		switch {
		case a.mode == AttachXDP: // nothing at tc/ingress comes before it
			a.behind = nil
			if a.taken == nil {
				programs, hook = append(programs, r.Program(a.program)), HookXDP
			}
		case a.hook == HookTC || a.taken != nil:
			first = cmp.Or(first, fmt.Errorf("%s comes first there, and runs at tc/ingress", a.program))
		case first == nil:
			programs, hook = append(programs, r.Program(a.program)), max(hook, a.hook)
		}
	}
	var why error
	switch {
	case r.frames == nil:
		why = netdev.ErrNone
	case r.frames.taken(index):
		why = errTaken
		for _, a := range all {
			a.taken = errTaken
		}
	case len(programs) > 0:
		why = r.frames.run(index, programs, hook)
	}
	if r.frames != nil && (why != nil || len(programs) == 0) {
		r.frames.leave(index)
	}
	for _, a := range all {
		was, said := a.xdp, a.noXDP
		a.noXDP = nil
		if a.hook != HookTC {
			a.noXDP = cmp.Or(a.taken, a.behind, why)
		}
		a.xdp = a.hook != HookTC && a.noXDP == nil
		switch {
		case a.mode == AttachXDP && a.noXDP != nil:
			a.index, a.lost = 0, a.noXDP
			if was || a.was != nil && a.was.Error() != a.lost.Error() {
				r.note(a)
			}
		case a.mode == AttachXDP:
			a.was = nil
		case a.xdp && !was:
			r.say(slog.LevelInfo, "packets come to a program at XDP", "program", a.program, "interface", a.name)
		case a.noXDP != nil && (said == nil || said.Error() != a.noXDP.Error()):
			r.say(slog.LevelInfo, "packets come to a program at tc/ingress, not at XDP", "program", a.program,
				"interface", a.name, "why", a.noXDP)
		}
	}
}

// inOrder returns what is attached to a device, in the order in which packets come to it: the kernel knows that of
// TCX, and filters of clsact have that in which they were attached.
func (r *Relay) inOrder(index int) (all []*attachment) {
	for _, a := range r.attachments {
		if a.lost == nil && a.index == index && !a.egress {
			all = append(all, a)
		}
	}
	if len(all) < 2 {
		return all
	}
	place := map[uint32]int{}
	for i, f := range chain(all[0]) {
		place[f.ID] = i
	}
	sortSome(all, func(a *attachment) bool { return a.mode != AttachXDP },
		func(a *attachment) int { return place[r.kernelID(a.program)] })
	return all
}

// sortSome sorts those of a list that are asked for by their places, and leaves the others where they are.
func sortSome(all []*attachment, some func(*attachment) bool, place func(*attachment) int) {
	var at []int
	var sorted []*attachment
	for i, a := range all {
		if some(a) {
			at, sorted = append(at, i), append(sorted, a)
		}
	}
	slices.SortStableFunc(sorted, func(a, b *attachment) int { return cmp.Compare(place(a), place(b)) })
	for i, a := range sorted {
		all[at[i]] = a
	}
}

var errTaken = errors.New("another process has taken it away there; attach it again")

// taken reports whether another process has detached what ran on a device.
func (f *frames) taken(index int) bool {
	door := f.at[index]
	if door == nil {
		return false
	}
	info, err := door.link.Info()
	return err == nil && info.XDP() != nil && info.XDP().Ifindex == 0
}

// leave has nothing run at XDP on a device.
func (f *frames) leave(index int) {
	if f == nil || f.at[index] == nil {
		return
	}
	door := f.at[index]
	delete(f.at, index)
	err := errors.Join(door.link.Detach(), door.link.Close()) // Close alone lets it go later
	if f.relay.pins != nil {
		err = errors.Join(f.relay.pins.DropLink(door.pin, index), err)
	}
	if err != nil {
		f.relay.log.Warn("programs can't be detached from XDP", "relay", f.relay.desc.Name, "interface", index,
			"error", err)
	}
	_ = f.relay.coll.Maps[abi.MapMACs].Delete(uint32(index)) // no frames come in by it any more
	f.relay.drops.keep(f.at)
}

// release lets go of what runs at XDP, which stays.
func (f *frames) release() {
	if f != nil {
		for _, door := range f.at {
			door.link.Close() // its pin keeps it
		}
		clear(f.at)
	}
}

// pinMark begins the names of pins of links at XDP: no program is called so. What follows is the hook.
const pinMark = "@"

// run has programs run at XDP on a device, or returns why that isn't right for it.
func (f *frames) run(index int, programs []*AnyProgram, hook Hook) error {
	dev, err := netlink.LinkByIndex(index)
	if err != nil {
		return err
	}
	if err := f.look(); err != nil {
		return err
	}
	d, door := f.now[index], f.at[index]
	if err := f.right(dev, d, hook); err != nil {
		return err
	}
	mac := make([]byte, 8)
	copy(mac, dev.Attrs().HardwareAddr)
	if err := f.relay.coll.Maps[abi.MapMACs].Put(uint32(index), mac); err != nil {
		return fmt.Errorf("the table of addresses of devices: %w", err)
	}
	f.relay.drops.from(index)
	if err := f.open(d); err != nil {
		return err
	}
	pin := pinOf(hook, programs)
	if door != nil && door.pin != pin && f.relay.pins != nil {
		if err := f.relay.pins.AddLink(pin, index, door.link); err != nil { // which moves it
			return err
		}
		door.pin = pin
	}
	if door != nil && slices.Equal(door.programs, programs) {
		return nil
	}
	prog, err := f.program(programs, d)
	if err != nil {
		return err
	}
	defer prog.Close()
	if door != nil {
		door.programs = programs
		return door.link.Update(prog)
	}
	l, err := link.AttachXDP(link.XDPOptions{Program: prog, Interface: index, Flags: link.XDPDriverMode})
	if err != nil {
		f.relay.drops.keep(f.at)
		return fmt.Errorf("attach at XDP: %w", err)
	}
	door = &frontDoor{l, pin, programs}
	if f.relay.pins != nil {
		if err := f.relay.pins.AddLink(door.pin, index, l); err != nil {
			return errors.Join(err, l.Close())
		}
	}
	f.at[index] = door
	return nil
}

// pinOf is the name of the pin of a link at XDP. Links of TC say which programs run at both hooks; if others do, it
// says which they are, and in which order.
func pinOf(hook Hook, programs []*AnyProgram) string {
	pin := pinMark + hook.String()
	if slices.ContainsFunc(programs, func(p *AnyProgram) bool { return p.desc.Hook == abi.HookXDP }) {
		for _, p := range programs {
			pin += pinMark + p.desc.Name
		}
	}
	return pin
}

// look asks what devices can do.
func (f *frames) look() (err error) {
	f.now, err = netdev.Devices()
	return err
}

// adoptXDP goes on with a pinned link, whose programs it replaces by those that are attached to the device, or drops
// it. The thread is in the relay's network namespace.
func (r *Relay) adoptXDP(l *pins.Link) error {
	var hook Hook
	names := strings.Split(l.Program, pinMark)[1:]
	info, err := l.Info()
	if r.frames == nil || err != nil || info.XDP() == nil || hook.UnmarshalText([]byte(names[0])) != nil {
		return l.Drop()
	}
	index, there := int(info.XDP().Ifindex), false
	for _, a := range r.attachments {
		if a.index == index && r.Program(a.program).desc.XDPBase > 0 {
			a.hook, there = hook, true
		}
	}
	for _, name := range names[1:] {
		p, dev := r.Program(name), (netlink.Link)(nil)
		if p != nil && p.desc.Hook == abi.HookXDP {
			dev, err = netlink.LinkByIndex(index)
		}
		if dev == nil || err != nil {
			continue
		}
		there = true
		r.attachments = append(r.attachments, &attachment{
			program: name, name: dev.Attrs().Name, index: index, mode: AttachXDP, hook: HookXDP, xdp: true,
		})
	}
	sortSome(r.attachments, func(a *attachment) bool { return a.index == index && len(names) > 1 },
		func(a *attachment) int { return slices.Index(names, a.program) })
	if !there {
		return l.Drop()
	}
	r.frames.at[index] = &frontDoor{link: l.Link, pin: l.Program}
	r.settle(index)
	return nil
}

// right returns why a program isn't to run at XDP on a device.
func (f *frames) right(dev netlink.Link, d netdev.Device, hook Hook) error {
	if err := d.Refuses(dev, hook == HookXDP); err != nil {
		return err
	}
	if id := netdev.Occupant(dev); f.at[d.Index] == nil && id != 0 {
		return fmt.Errorf("%v is at XDP there, and lets no other in; detach it first, or stay at tc/ingress",
			frontOf(ebpf.ProgramID(id)))
	}
	return nil
}

// program returns what runs at XDP on a device: each program on what those before it have left. The caller closes it.
func (f *frames) program(programs []*AnyProgram, d netdev.Device) (*ebpf.Program, error) {
	name := abi.XDPPrefix + programs[0].desc.Name
	if len(programs) == 1 && !d.Tag {
		return f.relay.coll.Programs[name].Clone()
	}
	spec := f.relay.object.Copy()
	var all []*ebpf.ProgramSpec
	for _, p := range programs {
		all = append(all, spec.Programs[abi.XDPPrefix+p.desc.Name])
	}
	spec.Programs = map[string]*ebpf.ProgramSpec{name: bpfload.InTurn(all)}
	if d.Tag {
		if err := skbfacts.BoundTo(spec, d.Index); err != nil {
			return nil, err
		}
	}
	coll, err := bpfload.Load(spec, ebpf.CollectionOptions{MapReplacements: f.relay.coll.Maps})
	if err != nil {
		return nil, fmt.Errorf("load the program for the device: %w", err)
	}
	defer coll.Close()
	if d.Tag {
		if err := skbfacts.Unmoved(spec.Programs[name], coll.Programs[name]); err != nil {
			return nil, err
		}
	}
	return coll.DetachProgram(name), nil
}

// follow brings what the kernel's programs know of devices up to date. r.mu is held, and the thread is in the relay's
// network namespace.
func (f *frames) follow() error {
	if f == nil || f.now == nil {
		return nil
	}
	if err := f.look(); err != nil {
		return err
	}
	done := map[int]bool{}
	for _, a := range f.relay.attachments {
		if a.lost == nil && a.hook != HookTC && !done[a.index] {
			done[a.index] = true
			f.relay.settle(a.index)
		}
	}
	return f.open(netdev.Device{})
}

// wantsXDP reports whether a program is to run at XDP on some device.
func (r *Relay) wantsXDP() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.frames != nil && slices.ContainsFunc(r.attachments, func(a *attachment) bool { return a.hook != HookTC })
}

// open lets frames leave by the devices that take them, and by no others. in is a device that programs are about to
// run on: if one gets frames of several buffers, the others have to take such.
func (f *frames) open(in netdev.Device) error {
	needs := netdev.Transmit
	if in.Has(netdev.Buffers) {
		needs |= netdev.TransmitBuffer
	}
	for index := range f.at {
		if f.now[index].Has(netdev.Buffers) {
			needs |= netdev.TransmitBuffer
		}
	}
	devmap := f.relay.coll.Maps[abi.MapDevmap]
	var index uint32
	var value [2]uint32
	var gone []uint32
	for entries := devmap.Iterate(); entries.Next(&index, &value); {
		if !f.now[int(index)].Has(needs) {
			gone = append(gone, index)
		}
	}
	for _, index := range gone {
		if err := devmap.Delete(index); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("the table of devices that take frames: %w", err)
		}
	}
	for _, d := range f.now {
		index := uint32(d.Index)
		if !d.Has(needs) || devmap.Lookup(index, &value) == nil {
			continue // who replaces an entry loses a frame in between
		}
		err := devmap.Put(index, [2]uint32{index})
		if errors.Is(err, unix.E2BIG) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENODEV) {
			continue // the table is full, or the device has gone: its packets leave from tc/ingress
		}
		if err != nil {
			return fmt.Errorf("the table of devices that take frames: %w", err)
		}
	}
	return nil
}
