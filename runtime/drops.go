package runtime

import (
	"cmp"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/runtime/tool/xdpdrops"
)

// A program at XDP hands a frame to a device, and counts it as sent. Where the device then drops it, the kernel says so
// at tracepoints alone, and there the relay counts it.

// drops counts frames that are dropped after XDP; nil: the relay has nothing at XDP.
type drops struct {
	counter   *xdpdrops.Counter // nil: they can't be counted
	why       error             // that is so
	namespace uint32            // of the relay's devices
}

// XDPDrop is how many frames were dropped after a program at XDP had sent them.
type XDPDrop struct {
	Interface string // that they were to leave by, or its index, if it is gone
	// full: its ring was full (or a veth's far end has a smaller MTU); too_long: more than its MTU; down; unsupported:
	// it takes no frames from XDP at present. Others are the kernel's errors, such as enomem.
	Reason  string
	Packets uint64
}

var dropReasons = map[unix.Errno]string{
	0: "full", unix.EMSGSIZE: "too_long", unix.ENETDOWN: "down", unix.EOPNOTSUPP: "unsupported",
	unix.ENXIO: "unsupported", // by a veth whose far end has neither GRO nor a program
}

// countDrops begins to count, or goes on with what is pinned. If that can't be, the relay goes on without.
func (r *Relay) countDrops() {
	if r.frames == nil {
		return
	}
	pin := ""
	if r.pins != nil {
		pin = r.pins.Drops()
	}
	var ns unix.Stat_t
	r.drops = &drops{}
	if r.drops.why = unix.Fstat(int(r.ns), &ns); r.drops.why == nil {
		r.drops.namespace = uint32(ns.Ino)
		r.drops.counter, r.drops.why = xdpdrops.Count(pin)
	}
	if r.drops.why != nil {
		r.say(slog.LevelWarn, "frames that devices drop after XDP can't be counted", "why", r.drops.why)
	}
}

// from has the drops counted of frames that come in by a device.
func (d *drops) from(index int) {
	if d.counter != nil {
		_ = d.counter.Add(xdpdrops.Device{Namespace: d.namespace, Index: uint32(index)}) // or it has no room for more
	}
}

// keep has them counted of frames that come in by devices where programs of the relay run at XDP, and of no others.
func (d *drops) keep(at map[int]*frontDoor) {
	if d != nil && d.counter != nil {
		_ = d.counter.Keep(func(o xdpdrops.Device) bool { // one that is left over counts nothing, unless it comes again
			return o.Namespace == d.namespace && at[int(o.Index)] != nil
		})
	}
}

// adoptDrops ends what the process before has counted without need any more.
func (r *Relay) adoptDrops() error {
	if r.frames == nil {
		return os.RemoveAll(r.pins.Drops())
	}
	r.drops.keep(r.frames.at)
	return nil
}

// close ends it. What is pinned goes on.
func (d *drops) close() {
	if d != nil && d.counter != nil {
		d.counter.Close()
	}
}

// XDPDrops returns how many frames were dropped after programs of this relay had sent them from XDP, by device and
// reason. [AnyProgram.Counts] has them among those that were sent. An error says why they can't be counted here.
func (r *Relay) XDPDrops() (all []XDPDrop, err error) {
	if r.drops == nil {
		return nil, nil
	}
	if r.drops.why != nil {
		return nil, r.drops.why
	}
	var found []xdpdrops.Drop
	if err := r.using(func() (err error) { found, err = r.drops.counter.Drops(); return err }); err != nil {
		return nil, fmt.Errorf("read what devices drop after XDP: %w", err)
	}
	if len(found) == 0 {
		return nil, nil
	}
	names, err := r.Interfaces()
	if err != nil {
		return nil, err
	}
	for _, d := range found {
		errno := unix.Errno(d.Errno)
		one := XDPDrop{
			Interface: cmp.Or(names[d.Device], fmt.Sprint(d.Device)),
			Reason:    cmp.Or(dropReasons[errno], strings.ToLower(unix.ErrnoName(errno)), fmt.Sprint(d.Errno)),
			Packets:   d.Frames,
		}
		same := func(o XDPDrop) bool { return o.Interface == one.Interface && o.Reason == one.Reason }
		if i := slices.IndexFunc(all, same); i >= 0 {
			all[i].Packets += one.Packets
		} else {
			all = append(all, one)
		}
	}
	slices.SortFunc(all, func(a, b XDPDrop) int {
		return cmp.Or(cmp.Compare(a.Interface, b.Interface), cmp.Compare(a.Reason, b.Reason))
	})
	return all, nil
}
