package runtime

import (
	"errors"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// A program is attached to a device. When the device goes away (it is deleted, or moved to another network
// namespace), the kernel takes the program along, and a device of the same name that appears later is another one. So
// the relay follows what the kernel announces of devices: an attachment whose device has gone is lost, and waits for
// a device of the name that it had. Attachments keep their places, and those of one device come back in the order in
// which they were made. A device that is renamed keeps its programs, and its attachments have its new name; one that
// gets the name that an attachment waits for is as good as a new one.

// interfaces follows the devices that programs are attached to.
type interfaces struct {
	events *nl.NetlinkSocket
	kick   chan struct{} // capacity 1: something is in gone or news, or everything has to be looked at

	// Guarded by relay.mu.
	gone map[int]bool // devices that the kernel has announced as gone
	news []attachmentNews
}

type attachmentNews struct {
	program string
	now     Attachment
}

// errInterfaceGone is why a program isn't attached.
var errInterfaceGone = errors.New("the interface is gone")

// attachAgain is when an attempt that failed is repeated; otherwise only the kernel's announcements count.
const attachAgain = time.Second

// watchInterfaces begins to follow devices. r.mu is held or no other goroutine knows the relay, and the thread is in
// its network namespace.
func (r *Relay) watchInterfaces() error {
	if r.interfaces != nil {
		return nil
	}
	events, err := nl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK)
	if err != nil {
		return &KernelError{Doing: "follow the interfaces of this host", Cause: "netlink can't be used", Err: err}
	}
	// After a burst that doesn't fit, everything is looked at, so a small buffer is no error.
	_ = events.SetReceiveBufferSize(1<<20, true)
	r.interfaces = &interfaces{events: events, kick: make(chan struct{}, 1), gone: map[int]bool{}}
	if err := r.frames.watch(); err != nil {
		r.interfaces = nil // nothing follows them
		events.Close()
		return err
	}
	r.interfaces.look()
	r.wg.Add(1)
	go func() { defer r.wg.Done(); r.listenInterfaces(r.interfaces) }()
	// Close doesn't wait for this one, which calls AttachmentChanged. A closed relay it leaves alone.
	go r.followInterfaces(r.interfaces)
	return nil
}

// close ends it; nil is none.
func (n *interfaces) close() {
	if n != nil {
		n.events.Close()
	}
}

// look has everything looked at.
func (n *interfaces) look() {
	select {
	case n.kick <- struct{}{}:
	default:
	}
}

// listenInterfaces reads announcements until the relay is closed.
func (r *Relay) listenInterfaces(n *interfaces) {
	for {
		msgs, _, err := n.events.Receive()
		if err != nil {
			select {
			case <-r.done:
				return
			default:
			}
			switch {
			case errors.Is(err, unix.ENOBUFS):
				n.look()
			case errors.Is(err, unix.EINTR), errors.Is(err, unix.EAGAIN):
			default:
				r.log.Error("interfaces can't be followed any more", "relay", r.desc.Name, "error", err)
				return
			}
			continue
		}
		for _, m := range msgs {
			// Bridges announce their ports in a family of their own.
			if (m.Header.Type != unix.RTM_NEWLINK && m.Header.Type != unix.RTM_DELLINK) ||
				len(m.Data) < unix.SizeofIfInfomsg ||
				m.Data[0] != unix.AF_UNSPEC {
				continue
			}
			l, err := netlink.LinkDeserialize(nil, m.Data)
			if err != nil || r.concerns(n, l.Attrs(), m.Header.Type == unix.RTM_DELLINK) {
				n.look()
			}
		}
	}
}

// concerns says whether an announcement matters to an attachment: hosts announce much about devices that are none of
// ours.
func (r *Relay) concerns(n *interfaces, dev *netlink.LinkAttrs, gone bool) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, a := range r.attachments {
		switch {
		case gone && a.lost == nil && a.index == dev.Index:
			n.gone[dev.Index] = true
			return true
		case a.lost == nil && a.index == dev.Index && a.name != dev.Name:
			return true
		case a.lost != nil && (a.name == dev.Name || a.refused == dev.Index):
			return true
		case a.hook != HookTC: // frames may leave by it
			return true
		}
	}
	return false
}

// followInterfaces loses and restores attachments as devices go and come, until the relay is closed.
func (r *Relay) followInterfaces(n *interfaces) {
	again := time.NewTimer(time.Hour)
	defer again.Stop()
	for {
		select {
		case <-r.done:
			return
		case <-n.kick:
		case <-again.C:
		}
		news, failed := r.restore(n)
		for _, v := range news {
			select {
			case <-r.done:
				return
			default:
			}
			switch {
			case r.opt.AttachmentChanged != nil:
				r.opt.AttachmentChanged(v.program, v.now)
			case v.now.Lost != nil:
				r.log.Warn("a program isn't attached any more", "relay", r.desc.Name, "program", v.program,
					"interface", v.now.Interface, "error", v.now.Lost)
			default:
				r.log.Info("a program is attached again", "relay", r.desc.Name, "program", v.program,
					"interface", v.now.Interface)
			}
		}
		if failed || r.wantsXDP() { // the kernel doesn't announce who comes to XDP by a link, and who goes
			again.Reset(attachAgain)
		}
	}
}

// restore finds the attachments whose device has gone, and attaches again if there is a device of the name. It
// returns what has changed since the last call, and whether an attempt failed that may succeed later.
func (r *Relay) restore(n *interfaces) (news []attachmentNews, failed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, false
	}
	err := r.inNamespace(func() error {
		r.noteLost()
		type place struct {
			index  int
			egress bool
		}
		blocked := map[place]bool{} // a program that comes first couldn't be attached yet
		device := once(netlink.LinkByName)
		for _, a := range slices.Clone(r.attachments) {
			if a.lost == nil || errors.Is(a.lost, errTaken) {
				continue
			}
			l, err := device(a.name)
			if err != nil {
				var missing netlink.LinkNotFoundError
				if !errors.As(err, &missing) && gone(err) != nil {
					failed = true
				} else if !errors.Is(a.lost, errInterfaceGone) { // one that couldn't be used has gone as well
					a.refused = 0
					r.lose(a, errInterfaceGone)
				}
				continue
			}
			dev, p := l.Attrs(), r.Program(a.program)
			at := place{dev.Index, a.egress}
			switch {
			case a.refused == dev.Index || blocked[at]:
				continue
			case r.attachedTo(p, dev.Index) != nil: // it was attached to this device under another name
				r.attachments = slices.DeleteFunc(r.attachments, func(b *attachment) bool { return a == b })
				continue
			}
			switch err := r.attachTo(p, a, dev); {
			case err == nil:
				r.settle(a.index) // which may lose it again
				failed = failed || a.lost != nil
				if a.lost == nil {
					r.note(a)
				}
			case errors.Is(err, errNoEthernet):
				a.refused = dev.Index
				r.lose(a, err)
			default:
				failed, blocked[at] = true, true
				if a.lost.Error() != err.Error() {
					r.lose(a, err)
				}
			}
		}
		return r.frames.follow()
	})
	if err != nil {
		r.log.Error("interfaces can't be looked at", "relay", r.desc.Name, "error", err)
		failed = true
	}
	news, n.news = n.news, nil
	return news, failed
}

// once has each name looked up once. A device that appears between two attachments of one name would otherwise get the
// second of them first.
func once(find func(string) (netlink.Link, error)) func(string) (netlink.Link, error) {
	type found struct {
		link netlink.Link
		err  error
	}
	names := map[string]found{}
	return func(name string) (netlink.Link, error) {
		f, ok := names[name]
		if !ok {
			f.link, f.err = find(name)
			names[name] = f
		}
		return f.link, f.err
	}
}

// noteLost notes the names of devices, and marks the attachments whose device has gone as lost: all of a device at
// once, though the kernel may be taking it down right now, since they have to come back in their order. r.mu is held,
// and the thread is in the relay's network namespace.
func (r *Relay) noteLost() {
	n := r.interfaces
	for _, a := range r.attachments {
		n.gone[a.index] = a.lost == nil && (n.gone[a.index] || !a.alive())
	}
	for _, a := range r.attachments {
		if a.lost == nil && n.gone[a.index] {
			// The kernel takes filters along. It keeps a TCX link on a device that was moved to another namespace,
			// where hops lead nowhere.
			r.frames.leave(a.index)
			a.xdp, a.noXDP, a.taken = false, nil, nil
			if a.link != nil {
				if err := r.detachTC(a); err != nil {
					r.log.Warn("a program can't be detached from an interface that is gone", "relay", r.desc.Name,
						"program", a.program, "interface", a.name, "error", err)
				}
			}
			delete(r.qdiscs, a.index)
			a.link, a.filter, a.index = nil, nil, 0
			r.lose(a, errInterfaceGone)
		}
	}
	clear(n.gone)
}

// alive says whether the program is attached in the relay's namespace, where the thread is; a is given the name that
// its device has.
func (a *attachment) alive() bool {
	if a.link != nil {
		if info, err := a.link.Info(); err == nil && info.TCX() != nil && info.TCX().Ifindex == 0 {
			return false
		}
	}
	l, err := netlink.LinkByIndex(a.index)
	var missing netlink.LinkNotFoundError
	switch {
	case errors.As(err, &missing), errors.Is(err, unix.ENODEV):
		return false
	case err != nil: // it can't be asked
		return true
	}
	a.name = l.Attrs().Name
	if a.link != nil || a.mode == AttachXDP {
		return true
	}
	filters, err := netlink.FilterList(l, a.filter.Parent)
	return gone(err) != nil || slices.ContainsFunc(filters, func(f netlink.Filter) bool {
		b, ok := f.(*netlink.BpfFilter)
		return ok && b.Name == a.filter.Name && b.Priority == a.filter.Priority
	})
}

func (r *Relay) lose(a *attachment, err error) {
	a.lost = err
	r.note(a)
}

// note has a change reported.
func (r *Relay) note(a *attachment) {
	r.interfaces.news = append(r.interfaces.news, attachmentNews{a.program, a.public()})
	r.interfaces.look()
}
