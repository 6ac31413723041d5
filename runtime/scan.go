package runtime

import (
	"bytes"
	"errors"
	"reflect"
	"slices"
	"unsafe"

	"github.com/cilium/ebpf"

	"github.com/fastrelay/fastrelay-gen/runtime/abi"
)

// scanRows is how many rows are read by one system call.
const scanRows = 4096

// rowBytes is a row as the kernel has it.
type rowBytes struct{ key, value []byte }

// scan reads the rows as bytes, as each does, thousands of them with one system call if the kernel can (hashes and
// arrays since Linux 5.6, LPM tables since 5.17): who adopts a relay has to look at all of it while packets flow. The
// result may be kept.
func (t *AnyTable) scan() (rows []rowBytes, err error) {
	all, ok := t.readBatches()
	if !ok {
		for row, err := range t.each() {
			if err != nil {
				return nil, err
			}
			rows = append(rows, row)
		}
		return rows, nil
	}
	if t.desc.Kind != abi.TableArray {
		return all, nil
	}
	zero := make([]byte, t.m.ValueSize())
	return slices.DeleteFunc(all, func(row rowBytes) bool { return bytes.Equal(row.value, zero) }), nil
}

// readBatches reads the table; ok is false if that isn't possible in batches.
func (t *AnyTable) readBatches() (rows []rowBytes, ok bool) {
	if t.desc.PerCPU {
		return nil, false
	}
	ks, vs := int(t.m.KeySize()), int(t.m.ValueSize())
	n := min(scanRows, t.desc.Size)
	var cursor ebpf.MapBatchCursor
	for {
		keys, k := byteArrays(ks, n)
		values, v := byteArrays(vs, n)
		var got int
		err := t.relay.using(func() (err error) {
			got, err = t.m.BatchLookup(&cursor, keys, values, nil)
			return err
		})
		end := errors.Is(err, ebpf.ErrKeyNotExist)
		if err != nil && !end {
			return nil, false
		}
		for i := range got {
			rows = append(rows, rowBytes{k[i*ks : (i+1)*ks : (i+1)*ks], v[i*vs : (i+1)*vs : (i+1)*vs]})
		}
		if end {
			return rows, true
		}
	}
}

// byteArrays makes a slice of n arrays of that many bytes, which the ebpf package hands to the kernel as it is, and
// its memory.
func byteArrays(size, n int) (arrays any, memory []byte) {
	v := reflect.MakeSlice(reflect.SliceOf(reflect.ArrayOf(size, reflect.TypeFor[byte]())), n, n)
	return v.Interface(), unsafe.Slice((*byte)(v.UnsafePointer()), size*n)
}
