package runtime

import (
	"errors"
	"reflect"

	"github.com/cilium/ebpf"
)

// This file changes many rows of a map with few system calls. Rows are deleted in batches, and those of arrays written;
// rows of hash tables are never inserted in one, see docs/internals.md ("Rows that change hands").

// maxBatch is how many rows a system call changes at most: it holds up whoever waits for the same lock.
const maxBatch = 4096

// batcher is a map of the kernel.
type batcher interface {
	BatchDelete(keys any, opts *ebpf.BatchOptions) (int, error)
	BatchUpdate(keys, values any, opts *ebpf.BatchOptions) (int, error)
	Delete(key any) error
	Put(key, value any) error
}

// deleteKeys deletes rows, and reports which of them were there. After an error those that it doesn't report are as
// they were.
func deleteKeys(m batcher, keys [][]byte) (deleted []bool, err error) {
	deleted = make([]bool, len(keys))
	list := arrays(keys)
	for from := 0; from < len(keys); {
		to := min(from+maxBatch, len(keys))
		n, err := m.BatchDelete(list.Slice(from, to).Interface(), nil)
		if err == nil {
			n = to - from
		} else if n >= to-from { // the kernel hasn't begun, and has left the number as it was
			n = 0
		}
		for i := range n {
			deleted[from+i] = true
		}
		switch from += n; {
		case err == nil:
		case errors.Is(err, ebpf.ErrKeyNotExist): // the kernel stops at a row that isn't there
			from++
		default: // no batches of maps of this type, or something that a single row may not meet
			for ; from < to; from++ {
				err := m.Delete(keys[from])
				if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
					return deleted, err
				}
				deleted[from] = err == nil
			}
		}
	}
	return deleted, nil
}

// putEntries writes entries of an array.
func putEntries(m batcher, indices []uint32, values [][]byte) error {
	list := arrays(values)
	for from := 0; from < len(indices); from += maxBatch {
		to := min(from+maxBatch, len(indices))
		if _, err := m.BatchUpdate(indices[from:to], list.Slice(from, to).Interface(), nil); err == nil {
			continue
		}
		for i := from; i < to; i++ {
			if err := m.Put(indices[i], values[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

// arrays is a slice of arrays with the bytes of each element, all of one size.
func arrays(all [][]byte) reflect.Value {
	size := 0
	if len(all) > 0 {
		size = len(all[0])
	}
	list, memory := byteArrays(size, len(all))
	for i, b := range all {
		copy(memory[i*size:], b)
	}
	return reflect.ValueOf(list)
}
