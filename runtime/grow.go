package runtime

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/cilium/ebpf"

	"github.com/fastrelay/fastrelay-gen/runtime/abi"
	"github.com/fastrelay/fastrelay-gen/runtime/internal/mapmem"
)

// A relay grows when a process adopts it whose tables are larger. The programs that are attached go on with the old
// maps until each is replaced, and what they count or learn there after it was copied would be lost. So the lease is
// ended before anything is copied: until all programs are replaced, packets pass to the stack, and nothing changes. A
// process that dies meanwhile leaves old maps, new ones that are whole, or some of both, which are the same but for
// their sizes; the next one goes on with them.

// grow copies maps into the larger ones that have been made.
func (r *Relay) grow(smaller map[string]*ebpf.Map) error {
	for _, p := range r.desc.Programs {
		if p.Hook == abi.HookCongestion {
			return errors.New("flows keep the programs of a congestion control, with their tables, until they end")
		}
	}
	r.leaseMu.Lock()
	r.leasePaused, r.leaseMine = true, 0
	r.lease.Store64(0, abi.LeaseDeadline, 0)
	r.leaseMu.Unlock()
	r.paused = time.Now()
	if err := r.grace(); err != nil { // of programs that have seen the lease
		return err
	}
	for name, m := range smaller {
		if err := copyMap(r.coll.Maps[name], m); err != nil {
			return fmt.Errorf("copy %s: %w", name, err)
		}
	}
	r.grew = slices.Sorted(maps.Keys(smaller))
	return nil
}

// resume begins the lease, or goes on with it.
func (r *Relay) resume() error {
	r.leaseMu.Lock()
	r.leasePaused = false
	r.leaseMu.Unlock()
	return r.renew(r.opt.Lease)
}

// copyMap copies what is in a map that nothing changes into a larger one.
func copyMap(to, from *ebpf.Map) error {
	size := int(from.ValueSize())
	zero := make([]byte, size)
	array := from.Type() == ebpf.Array || from.Type() == ebpf.PerCPUArray
	perCPU := slices.Contains([]ebpf.MapType{ebpf.PerCPUArray, ebpf.PerCPUHash, ebpf.LRUCPUHash}, from.Type())
	var cursor any
	for {
		key, err := from.NextKeyBytes(cursor)
		if err != nil || key == nil {
			return err
		}
		cursor = key
		value, err := from.LookupBytes(key)
		if err != nil {
			return err
		}
		if !perCPU {
			if !array || !bytes.Equal(value, zero) {
				err = to.Put(key, value)
			}
		} else {
			var all [][]byte
			for part := range slices.Chunk(value, mapmem.Stride(size)) {
				all = append(all, part[:size])
			}
			err = to.Put(key, all)
		}
		if err != nil {
			return err
		}
	}
}
