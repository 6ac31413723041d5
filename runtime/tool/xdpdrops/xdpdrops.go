// Package xdpdrops counts frames that are lost after a program at XDP has sent them. The kernel reports them at the
// tracepoints xdp:xdp_devmap_xmit and xdp:xdp_redirect_err, and nowhere else by device and cause.
package xdpdrops

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	"github.com/fastrelay/fastrelay-gen/runtime/tool/bpfload"
)

// Counter counts the drops of frames that come in by some devices. A device has one program at
// XDP, so they are those of that program.
type Counter struct {
	in, counts *ebpf.Map
	links      []link.Link
}

// Device is one of a host.
type Device struct {
	Namespace uint32 // the inode of its network namespace
	Index     uint32
}

// Drop is how many frames were lost of those that were to leave by a device.
type Drop struct {
	Device int // by its index
	// Errno is the kernel's error as a positive number. 0: the device took a part of what it was given: its ring was
	// full, or (a veth) a frame is longer than the far end's MTU.
	Errno  int
	Frames uint64
}

// key is what counts has its entries by.
type key struct {
	Device uint32
	Err    int32
}

var (
	inSpec = &ebpf.MapSpec{Name: "fr_drops_in", Type: ebpf.Hash, KeySize: 8, ValueSize: 1, MaxEntries: 256}
	// What has no room isn't counted: devices, times their errors.
	countsSpec = &ebpf.MapSpec{Name: "fr_drops", Type: ebpf.Hash, KeySize: 8, ValueSize: 8, MaxEntries: 1024}
)

// tracepoints are where the kernel reports drops, and the code that runs there.
var tracepoints = []struct {
	name string
	code func(*Counter, *kernel) (asm.Instructions, error)
}{
	{"xdp_devmap_xmit", (*Counter).atDevice},
	{"xdp_redirect_err", (*Counter).atRedirect},
}

// Known returns why drops can't be counted here; nil if they can.
func Known() error {
	c, err := count()
	if err != nil {
		return err
	}
	return c.Close()
}

// Count counts drops, of frames that come in by no device yet. If there is a folder for pins, it goes on with what is
// pinned there, or pins it.
func Count(pins string) (*Counter, error) {
	if pins == "" {
		return count()
	}
	old := &Counter{}
	if err := old.pinned(pins); err == nil {
		return old, nil
	}
	old.Close()
	// Nothing is there, or not all of it: the process that made it has died.
	if err := os.RemoveAll(pins); err != nil {
		return nil, err
	}
	c, err := count()
	if err != nil {
		return nil, err
	}
	err = os.Mkdir(pins, 0o700)
	for name, one := range c.parts() {
		if err == nil {
			err = one.Pin(filepath.Join(pins, name))
		}
	}
	if err != nil {
		return nil, errors.Join(err, c.Close(), os.RemoveAll(pins))
	}
	return c, nil
}

// parts are what is pinned, by name.
func (c *Counter) parts() map[string]interface{ Pin(path string) error } {
	all := map[string]interface{ Pin(path string) error }{inSpec.Name: c.in, countsSpec.Name: c.counts}
	for i, l := range c.links {
		all[tracepoints[i].name] = l
	}
	return all
}

// pinned opens what is pinned.
func (c *Counter) pinned(pins string) error {
	for _, t := range tracepoints {
		l, err := link.LoadPinnedLink(filepath.Join(pins, t.name), nil)
		if err != nil {
			return err
		}
		c.links = append(c.links, l)
	}
	var err1, err2 error
	c.in, err1 = ebpf.LoadPinnedMap(filepath.Join(pins, inSpec.Name), nil)
	c.counts, err2 = ebpf.LoadPinnedMap(filepath.Join(pins, countsSpec.Name), nil)
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	return errors.Join(inSpec.Compatible(c.in), countsSpec.Compatible(c.counts))
}

func count() (*Counter, error) {
	c := &Counter{}
	if err := c.attach(); err != nil {
		c.Close()
		return nil, fmt.Errorf("trace what devices drop: %w", bpfload.Explained(err))
	}
	return c, nil
}

func (c *Counter) attach() error {
	k, err := newKernel()
	if err != nil {
		return err
	}
	if c.in, err = ebpf.NewMap(inSpec); err != nil {
		return err
	}
	if c.counts, err = ebpf.NewMap(countsSpec); err != nil {
		return err
	}
	for _, t := range tracepoints {
		code, err := t.code(c, k)
		if err != nil {
			return err
		}
		prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
			Name: "fr_drops", Type: ebpf.Tracing, AttachType: ebpf.AttachTraceRawTp, AttachTo: t.name, License: "GPL",
			Instructions: code,
		})
		if err != nil {
			return err
		}
		l, err := link.AttachTracing(link.TracingOptions{Program: prog})
		prog.Close()
		if err != nil {
			return err
		}
		c.links = append(c.links, l)
	}
	return nil
}

// Add has frames counted that come in by a device, too.
func (c *Counter) Add(d Device) error { return c.in.Put(d, uint8(1)) }

// Keep has frames counted only of those devices that keep returns true for.
func (c *Counter) Keep(keep func(d Device) bool) error {
	var d Device
	var value uint8
	var others []Device
	entries := c.in.Iterate()
	for entries.Next(&d, &value) {
		if !keep(d) {
			others = append(others, d)
		}
	}
	err := entries.Err()
	for _, d := range others {
		err = errors.Join(err, c.in.Delete(d))
	}
	return err
}

// Drops returns what was counted, in no order.
func (c *Counter) Drops() (all []Drop, err error) {
	var k key
	var frames uint64
	entries := c.counts.Iterate()
	for entries.Next(&k, &frames) {
		all = append(all, Drop{int(k.Device), -int(k.Err), frames})
	}
	return all, entries.Err()
}

// Close ends it. What is pinned goes on.
func (c *Counter) Close() error {
	errs := []error{c.in.Close(), c.counts.Close()}
	for _, l := range c.links {
		errs = append(errs, l.Close())
	}
	return errors.Join(errs...)
}
