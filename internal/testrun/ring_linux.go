package testrun

import (
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// Ring reads a ring buffer of the kernel (kernel/bpf/ringbuf.c) without system calls: programs run in the caller's
// thread here, so that all of their records are there when a run is over.
type Ring struct {
	position []byte // the page with the consumer's position
	records  []byte // the page with the producer's position, and the records, mapped twice in a row
	page     int
	size     int
}

// Bits in the header of a record, next to its length.
const (
	recordBusy    = 1 << 31
	recordDropped = 1 << 30
	recordHeader  = 8
)

// OpenRing maps a ring buffer.
func OpenRing(m *ebpf.Map) (*Ring, error) {
	r := &Ring{page: os.Getpagesize(), size: int(m.MaxEntries())}
	var err error
	if r.position, err = unix.Mmap(m.FD(), 0, r.page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		return nil, fmt.Errorf("map a ring buffer: %w", err)
	}
	if r.records, err = unix.Mmap(m.FD(), int64(r.page), r.page+2*r.size, unix.PROT_READ, unix.MAP_SHARED); err != nil {
		return nil, fmt.Errorf("map a ring buffer: %w, %w", err, unix.Munmap(r.position))
	}
	return r, nil
}

// Close unmaps it.
func (r *Ring) Close() {
	_ = unix.Munmap(r.position)
	_ = unix.Munmap(r.records)
}

func word(b []byte) *uint64 { return (*uint64)(unsafe.Pointer(unsafe.SliceData(b))) }

// Drain hands all records to f, oldest first; a record is only f's until it returns.
func (r *Ring) Drain(f func(record []byte)) {
	at, end := atomic.LoadUint64(word(r.position)), atomic.LoadUint64(word(r.records))
	for at < end {
		record := r.records[r.page+int(at%uint64(r.size)):]
		header := atomic.LoadUint32((*uint32)(unsafe.Pointer(unsafe.SliceData(record))))
		if header&recordBusy != 0 {
			break
		}
		n := int(header &^ recordDropped)
		if header&recordDropped == 0 {
			f(record[recordHeader : recordHeader+n])
		}
		at += uint64(recordHeader+n+7) &^ 7
		atomic.StoreUint64(word(r.position), at)
	}
}
