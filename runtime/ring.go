package runtime

import (
	"context"
	"errors"
	"fmt"
	"os"
	goruntime "runtime"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// ring reads the kernel's ring of records (include/uapi/linux/bpf.h, kernel/bpf/ringbuf.c). Positions count bytes from
// the beginning of the ring's life; a record is 8 bytes of header, then the data, padded to 8. The kernel writes the
// producer's position when a record is reserved, clears the busy bit in its header when it is committed, and wakes the
// reader only if the reader's position is that of the record: one that has caught up; and a relay's programs don't wake
// one that says it is awake (entry 0 of fr_lost). So a reader that is behind costs neither side a system call.
//
// To sleep, it stores its position, says that it isn't awake, and looks whether the producer's position is another one;
// only then it waits. Both sides store before they load, so that either the reader sees the record or the kernel the
// reader. Waiting is Go's own poller, so that it takes no thread. Where records come faster than one in a pause, the
// reader pauses instead, awake: a timer costs it little, and a wake-up the kernel much.
//
// Its methods are called by one goroutine at a time, but for close and waiting.
type ring struct {
	mem  *ringMemory
	file *os.File
	raw  syscall.RawConn
	size uint64

	awake  *mapping // fr_lost
	pos    uint64   // of the next record
	stored uint64   // what the kernel knows of pos
	busy   bool     // records come often

	waits, pauses atomic.Uint64 // how often it went to sleep
}

// ringMemory stays mapped until nobody refers to it.
type ringMemory struct {
	consumer []byte // the page with the reader's position
	producer []byte // the page with the kernel's position, and twice the data, so that a record at the end is in one piece
	page     int
}

const (
	ringHeader  = 8
	ringBusy    = 1 << 31
	ringDiscard = 1 << 30
)

func newRing(m *ebpf.Map, awake *mapping) (_ *ring, err error) {
	page := os.Getpagesize()
	mem := &ringMemory{page: page}
	fail := func(err error) error { return fmt.Errorf("map the ring of events: %w", err) }
	if mem.consumer, err = unix.Mmap(m.FD(), 0, page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		return nil, fail(err)
	}
	if mem.producer, err = unix.Mmap(m.FD(), int64(page), page+2*int(m.MaxEntries()), unix.PROT_READ, unix.MAP_SHARED); err != nil {
		_ = unix.Munmap(mem.consumer) // what was mapped can be unmapped
		return nil, fail(err)
	}
	goruntime.AddCleanup(mem, func(parts [2][]byte) { _, _ = unix.Munmap(parts[0]), unix.Munmap(parts[1]) }, [2][]byte{mem.consumer, mem.producer})
	fd, err := unix.FcntlInt(uintptr(m.FD()), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fail(err)
	}
	if err := unix.SetNonblock(fd, true); err != nil { // Go's poller takes no other
		unix.Close(fd)
		return nil, fail(err)
	}
	r := &ring{mem: mem, file: os.NewFile(uintptr(fd), "events"), awake: awake, size: uint64(m.MaxEntries())}
	if r.raw, err = r.file.SyscallConn(); err != nil {
		r.file.Close()
		return nil, fail(err)
	}
	r.pos = atomic.LoadUint64(r.consumer())
	r.stored = r.pos
	return r, nil
}

func (r *ring) close() { r.file.Close() }

func (r *ring) consumer() *uint64 { return (*uint64)(unsafe.Pointer(&r.mem.consumer[0])) }
func (r *ring) producer() *uint64 { return (*uint64)(unsafe.Pointer(&r.mem.producer[0])) }

// end is the position behind all records that are reserved.
func (r *ring) end() uint64 {
	defer goruntime.KeepAlive(r.mem)
	return atomic.LoadUint64(r.producer())
}

// waiting returns how many bytes of records the kernel holds for the reader.
func (r *ring) waiting() uint64 {
	defer goruntime.KeepAlive(r.mem)
	return atomic.LoadUint64(r.producer()) - atomic.LoadUint64(r.consumer())
}

// header returns the header of the next record; ok is false where none is committed.
func (r *ring) header() (h uint32, ok bool) {
	if r.end() == r.pos {
		return 0, false
	}
	h = atomic.LoadUint32((*uint32)(unsafe.Pointer(&r.data()[r.pos&(r.size-1)])))
	return h, h&ringBusy == 0
}

func (r *ring) data() []byte { return r.mem.producer[r.mem.page:] }

// next appends the data of the next record to buf, and returns its position; ok is false where there is none now.
func (r *ring) next(buf []byte) (data []byte, at uint64, ok bool) {
	defer goruntime.KeepAlive(r.mem)
	for {
		h, ok := r.header()
		if !ok {
			return buf, 0, false
		}
		size := uint64(h &^ (ringBusy | ringDiscard))
		at = r.pos
		if h&ringDiscard == 0 {
			from := at&(r.size-1) + ringHeader
			buf = append(buf, r.data()[from:from+size]...)
		}
		r.pos += (ringHeader + size + 7) &^ 7
		if r.pos-r.stored >= r.size/4 {
			r.release()
		}
		if h&ringDiscard == 0 {
			return buf, at, true
		}
	}
}

// release gives the kernel the room of what was read.
func (r *ring) release() {
	if r.pos != r.stored {
		atomic.StoreUint64(r.consumer(), r.pos)
		r.stored = r.pos
		goruntime.KeepAlive(r.mem)
	}
}

// pause is how long records may wait for a reader that is awake.
const pause = time.Millisecond

// wait sleeps until there is a record, or returns an error where ctx or the ring ends. wake has to be called when ctx
// ends.
func (r *ring) wait(ctx context.Context) error {
	r.release()
	if r.busy {
		r.pauses.Add(1)
		timer := time.NewTimer(pause)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return ctx.Err()
		}
		if r.end() != r.pos {
			return nil
		}
	}
	began := time.Now()
	err := r.sleep(ctx)
	r.awake.store64(0, 0, 1)
	r.busy = time.Since(began) < pause
	return err
}

// longestSleep is how long the reader sleeps at most. A packet's many records may fill the ring while the reader falls
// asleep, and leave no room for the one that wakes it.
const longestSleep = time.Second

// sleep waits for the kernel to wake the reader.
func (r *ring) sleep(ctx context.Context) error {
	for {
		r.awake.store64(0, 0, 0)
		if r.end() != r.pos {
			goruntime.Gosched() // it may be a record that is still being written
			return nil
		}
		if err := r.file.SetReadDeadline(time.Now().Add(longestSleep)); err != nil {
			return err
		}
		if err := ctx.Err(); err != nil { // wake may have come before the deadline was set
			return err
		}
		err := r.raw.Read(func(uintptr) bool {
			if r.end() != r.pos {
				return true
			}
			r.waits.Add(1)
			return false
		})
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
	}
}

// wake ends a wait whose context is over.
func (r *ring) wake() { _ = r.file.SetReadDeadline(time.Unix(1, 0)) }
