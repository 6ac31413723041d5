package runtime

import (
	"errors"
	"fmt"
	"log/slog"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/runtime/abi"
)

// A relay with programs at tcp/congestion is a congestion control of TCP, which sockets choose by its name. It is not
// attached to interfaces but registered, for all network namespaces. The kernel keeps its programs for as long as a
// flow uses them, so flows outlive Unregister, Close and the process; when the lease has lapsed, Reno's rules control
// them. A relay that adopts a pinned one replaces what is registered: new flows have the new programs, those that run
// keep the old ones, which work on the same tables, events and lease.

// nameOffset is where struct tcp_congestion_ops, as an object declares it, has its name, after pointers to functions.
const (
	nameOffset = 5 * 8
	nameSize   = 16 // TCP_CA_NAME_MAX, with a zero
)

// congests reports whether the relay is a congestion control.
func congests(desc *abi.Desc) bool {
	for _, p := range desc.Programs {
		if p.Hook == abi.HookCongestion {
			return true
		}
	}
	return false
}

// nameAlgorithm gives a congestion control its name, before it is loaded.
func nameAlgorithm(desc *abi.Desc, spec *ebpf.CollectionSpec, opt *Options) error {
	if !congests(desc) {
		if opt.Algorithm != "" {
			return fmt.Errorf("relay %q: Algorithm is for relays with a program at %v", desc.Name, abi.HookCongestion)
		}
		return nil
	}
	m := spec.Maps[abi.MapCongestion]
	if m == nil || m.Type != ebpf.StructOpsMap || len(m.Contents) != 1 {
		return &ObjectError{Relay: desc.Name, Reason: "it has no congestion control"}
	}
	b, ok := m.Contents[0].Value.([]byte)
	if !ok || len(b) != nameOffset+nameSize {
		return &ObjectError{Relay: desc.Name, Reason: "its congestion control has another size"}
	}
	if opt.Algorithm == "" {
		return nil // the relay's name, which is in the object
	}
	if len(opt.Algorithm) >= nameSize {
		return &ValueError{
			Where: fmt.Sprintf("relay %q: Algorithm", desc.Name), Value: opt.Algorithm,
			Reason: fmt.Sprintf("is too long: the kernel takes %d characters", nameSize-1),
		}
	}
	clear(b[nameOffset:])
	copy(b[nameOffset:], opt.Algorithm)
	return nil
}

// Register makes the relay's congestion control known to the kernel, for all network namespaces: sockets choose it by
// its name, which is [Options.Algorithm], with the option TCP_CONGESTION, and new ones by the sysctl
// net.ipv4.tcp_congestion_control. Registering twice does nothing, nor does it if the relay was adopted from one of
// this name that was registered. It is an error that wraps [ErrNotFound] if no
// program of the relay runs at tcp/congestion.
func (r *Relay) Register() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	fail := func(err error) error { return fmt.Errorf("register %q: %w", r.algorithm(), err) }
	switch {
	case r.closed:
		return fail(fmt.Errorf("relay: %w", ErrClosed))
	case !congests(r.desc):
		return fail(fmt.Errorf("a program at %v: %w", abi.HookCongestion, ErrNotFound))
	case r.registered != nil:
		return nil
	}
	l, err := link.AttachStructOps(link.StructOpsOptions{Map: r.coll.Maps[abi.MapCongestion]})
	switch {
	case errors.Is(err, unix.EEXIST):
		return fail(&KernelError{
			Doing: "register a congestion control", Cause: "there is one of this name",
			Fix: "choose another name, or end the process that registered it", Err: err,
		})
	case err != nil:
		return fail(err)
	}
	if r.pins != nil {
		if err := r.pins.AddRegistered(l); err != nil {
			return fail(errors.Join(err, l.Close()))
		}
	}
	r.registered = l
	r.say(slog.LevelInfo, "a congestion control is registered", "name", r.algorithm())
	return nil
}

// adoptRegistered has new flows get this relay's programs, if the one before it is registered. One of another name is
// unregistered: a socket that chose that name asked for something else.
func (r *Relay) adoptRegistered() error {
	l, err := r.pins.Registered()
	if l == nil || err != nil {
		return err
	}
	err = unix.EINVAL
	if congests(r.desc) {
		err = replaceStructOps(l, r.coll.Maps[abi.MapCongestion])
	}
	switch {
	case errors.Is(err, unix.EINVAL):
		return errors.Join(r.pins.DropRegistered(), l.Close())
	case err != nil:
		l.Close()
		return fmt.Errorf("replace the congestion control %q: %w", r.algorithm(), err)
	}
	r.registered = l
	return nil
}

// replaceStructOps has a link register another map. The kernel refuses one of another name (EINVAL).
func replaceStructOps(l link.Link, m *ebpf.Map) error {
	raw, ok := l.(interface{ FD() int })
	if !ok {
		return fmt.Errorf("%T: %w", l, errors.ErrUnsupported)
	}
	const linkUpdate = 29 // BPF_LINK_UPDATE (include/uapi/linux/bpf.h)
	attr := struct{ link, newMap, flags, oldMap uint32 }{link: uint32(raw.FD()), newMap: uint32(m.FD())}
	_, _, errno := unix.Syscall(unix.SYS_BPF, linkUpdate, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr))
	if errno != 0 {
		return errno
	}
	return nil
}

// Unregister takes the name back: no socket can choose the congestion control any more. Flows that have it keep it.
func (r *Relay) Unregister() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.unregister()
}

// unregister is Unregister with r.mu held.
func (r *Relay) unregister() error {
	if r.registered == nil {
		return nil
	}
	var err error
	if r.pins != nil {
		err = r.pins.DropRegistered()
	}
	if err = errors.Join(err, r.registered.Close()); err != nil {
		return fmt.Errorf("unregister %q: %w", r.algorithm(), err)
	}
	r.registered = nil
	r.say(slog.LevelInfo, "a congestion control isn't registered any more", "name", r.algorithm())
	return nil
}

// algorithm is the name of the congestion control.
func (r *Relay) algorithm() string {
	if r.opt.Algorithm != "" {
		return r.opt.Algorithm
	}
	return r.desc.Name
}
