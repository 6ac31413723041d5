package runtime

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/safchain/ethtool"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/runtime/abi"
	"github.com/fastrelay/fastrelay-gen/runtime/internal/netdev"
	"github.com/fastrelay/fastrelay-gen/runtime/internal/pins"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/bpfload"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/skbfacts"
)

// A program that runs at XDP, too, is one attachment: at tc/ingress as any other, and in front of that at XDP where
// that is right for the device. So no packet is worse off than at tc/ingress alone, whatever becomes of XDP.
//
// What is right changes while a relay runs: a device takes frames of others or takes none, has another address, takes
// VLAN tags out of frames. The kernel announces it, and the relay follows.

// Hook says at which hooks a program is attached that runs at XDP, too.
type Hook uint8

// Hooks. Others than HookTC mean nothing to a program that doesn't run at XDP.
const (
	HookTC   Hook = iota // at tc/ingress alone
	HookAuto             // at XDP, too, where that is right for the device; on a card only if that is asked for
	HookXDP              // at XDP, too; it is an error if that isn't right for the device
)

var hookNames = []string{"tc", "auto", "xdp"}

// String names the hook.
func (h Hook) String() string {
	if int(h) < len(hookNames) {
		return hookNames[h]
	}
	return fmt.Sprintf("Hook(%d)", uint8(h))
}

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

// frames is what a relay has at XDP.
type frames struct {
	relay  *Relay
	events *nl.NetlinkSocket     // nil: no device was looked at yet
	now    map[int]netdev.Device // what devices can do, as it was found last
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
	return &frames{relay: r}, nil
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

// settle attaches a program at XDP, too, if that is asked for and right for the device, and detaches it there if it
// isn't any more. r.mu is held, and the thread is in the relay's network namespace.
func (r *Relay) settle(p *AnyProgram, a *attachment) {
	was, why := a.xdp != nil, error(nil)
	if a.xdp != nil {
		if info, err := a.xdp.Info(); err == nil && info.XDP() != nil && info.XDP().Ifindex == 0 {
			a.taken = errors.New("another process has taken it away there; attach it again")
			r.leaveXDP(a)
		}
	}
	switch {
	case a.hook == HookTC:
	case a.taken != nil:
		why = a.taken
	default:
		why = r.frames.attach(p, a)
	}
	if a.xdp != nil && (why != nil || a.hook == HookTC) {
		r.leaveXDP(a)
	}
	same := (why == nil) == (a.noXDP == nil) && (why == nil || why.Error() == a.noXDP.Error())
	a.noXDP = why
	if was == (a.xdp != nil) && same {
		return
	}
	if a.xdp != nil {
		r.say(slog.LevelInfo, "packets come to a program at XDP", "program", a.program, "interface", a.name)
	} else if why != nil {
		r.say(slog.LevelInfo, "packets come to a program at tc/ingress, not at XDP", "program", a.program, "interface",
			a.name, "why", why)
	}
}

// leaveXDP detaches a program at XDP.
func (r *Relay) leaveXDP(a *attachment) {
	if a.xdp == nil {
		return
	}
	if err := r.dropXDP(a); err != nil {
		r.log.Warn("a program can't be detached from XDP", "relay", r.desc.Name, "program", a.program, "interface",
			a.name, "error", err)
	}
}

func (r *Relay) dropXDP(a *attachment) (err error) {
	if a.xdp == nil {
		return nil
	}
	if r.pins != nil {
		err = r.pins.DropLink(pinOf(a), a.index)
	}
	err = errors.Join(err, a.xdp.Close())
	a.xdp = nil
	_ = r.coll.Maps[abi.MapMACs].Delete(uint32(a.index)) // no frames come to it any more
	return err
}

// pinOf is what the pin of a link at XDP is called after.
func pinOf(a *attachment) string { return a.program + pinMark + a.hook.String() }

// pinMark tells the pins of links at XDP from others: no program has it in its name.
const pinMark = "@"

// attach attaches a program at XDP, or returns why that isn't right for the device. Nothing is attached twice.
func (f *frames) attach(p *AnyProgram, a *attachment) error {
	switch {
	case p.desc.XDPBase == 0:
		return errNotAtXDP
	case f == nil:
		return netdev.ErrNone
	}
	dev, err := netlink.LinkByIndex(a.index)
	if err != nil {
		return err
	}
	if err := f.look(); err != nil {
		return err
	}
	d := f.now[a.index]
	if err := f.right(a, dev, d); err != nil {
		return err
	}
	mac := make([]byte, 8)
	copy(mac, dev.Attrs().HardwareAddr)
	if err := f.relay.coll.Maps[abi.MapMACs].Put(uint32(a.index), mac); err != nil {
		return fmt.Errorf("the table of addresses of devices: %w", err)
	}
	if a.xdp != nil {
		return nil
	}
	if err := f.open(d); err != nil {
		return err
	}
	prog, err := f.program(p, d)
	if err != nil {
		return err
	}
	defer prog.Close()
	l, err := link.AttachXDP(link.XDPOptions{Program: prog, Interface: a.index, Flags: link.XDPDriverMode})
	if err != nil {
		return fmt.Errorf("attach at XDP: %w", err)
	}
	if f.relay.pins != nil {
		if err := f.relay.pins.AddLink(pinOf(a), a.index, l); err != nil {
			return errors.Join(err, l.Close())
		}
	}
	a.xdp = l
	return nil
}

// look asks what devices can do.
func (f *frames) look() (err error) {
	f.now, err = netdev.Devices()
	return err
}

// adoptXDP goes on with a pinned link, whose program it replaces, or drops it. The thread is in the relay's network
// namespace.
func (r *Relay) adoptXDP(l *pins.Link) error {
	program, hook, _ := strings.Cut(l.Program, pinMark)
	p := r.Program(program)
	info, err := l.Info()
	if p == nil || r.frames == nil || err != nil || info.XDP() == nil {
		return l.Drop()
	}
	a := r.attachedTo(p, int(info.XDP().Ifindex))
	if a == nil || a.hook.UnmarshalText([]byte(hook)) != nil {
		return l.Drop()
	}
	a.xdp = l.Link
	if a.noXDP = r.frames.attach(p, a); a.noXDP == nil {
		a.noXDP = r.frames.replace(p, a)
	}
	if a.noXDP != nil {
		r.leaveXDP(a)
	}
	return nil
}

// replace has a program run at XDP in the place of the one that another process has left there.
func (f *frames) replace(p *AnyProgram, a *attachment) error {
	d := f.now[a.index]
	if err := f.open(d); err != nil {
		return err
	}
	prog, err := f.program(p, d)
	if err != nil {
		return err
	}
	defer prog.Close()
	return a.xdp.Update(prog)
}

// right returns why a program isn't to run at XDP on a device.
func (f *frames) right(a *attachment, dev netlink.Link, d netdev.Device) error {
	attrs := dev.Attrs()
	switch {
	case !d.Has(netdev.Basic | netdev.Redirect):
		return fmt.Errorf("its driver (%s) has no XDP", dev.Type())
	case a.hook == HookAuto && attrs.ParentDevBus != "" && attrs.ParentDevBus != "virtio":
		return errors.New("on a card XDP has to be asked for (hook xdp), since its driver may reset the link")
	case d.Tag: // a program that is bound to it sees the tag
	case dev.Type() == "veth":
		return errors.New("a veth takes VLAN tags out of frames, and shows them at XDP since Linux 6.8")
	case takesTags(attrs.Name):
		return fmt.Errorf("it takes VLAN tags out of frames: ethtool -K %s rxvlan off", attrs.Name)
	}
	if x := attrs.Xdp; a.xdp == nil && x != nil && x.Attached {
		return fmt.Errorf("%v is at XDP there, and lets no other in; detach it first, or stay at tc/ingress",
			frontOf(ebpf.ProgramID(x.ProgId)))
	}
	return nil
}

// takesTags reports whether a device takes VLAN tags out of the frames that it receives, or can't be asked.
func takesTags(name string) bool {
	tool, err := ethtool.NewEthtool()
	if err != nil {
		return true
	}
	defer tool.Close()
	has, err := tool.Features(name)
	return err != nil || has["rx-vlan-hw-parse"] || has["rx-vlan-stag-hw-parse"]
}

// program returns the program that runs at XDP on a device. The caller closes it.
func (f *frames) program(p *AnyProgram, d netdev.Device) (*ebpf.Program, error) {
	if !d.Tag {
		return f.relay.coll.Programs[abi.XDPPrefix+p.desc.Name].Clone()
	}
	name := abi.XDPPrefix + p.desc.Name
	spec := f.relay.object.Copy()
	spec.Programs = map[string]*ebpf.ProgramSpec{name: spec.Programs[name]}
	skbfacts.BoundTo(spec, d.Index)
	coll, err := bpfload.Load(spec, ebpf.CollectionOptions{MapReplacements: f.relay.coll.Maps})
	if err != nil {
		return nil, fmt.Errorf("load the program for the device: %w", err)
	}
	defer coll.Close()
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
	for _, a := range f.relay.attachments {
		if a.lost == nil && a.hook != HookTC {
			f.relay.settle(f.relay.Program(a.program), a)
		}
	}
	return f.open(netdev.Device{})
}

// open lets frames leave by the devices that take them, and by no others. in is a device that programs are about to
// run on: if one gets frames of several buffers, the others have to take such.
func (f *frames) open(in netdev.Device) error {
	needs := netdev.Transmit
	for _, a := range f.relay.attachments {
		if in.Has(netdev.Buffers) || a.xdp != nil && f.now[a.index].Has(netdev.Buffers) {
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
