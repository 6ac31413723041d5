// Package ring reads a BPF ring buffer through its mapped memory. Neither side makes system calls while the reader is
// slower than the programs that write.
package ring

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

	"github.com/fastrelay/fastrelay-gen/runtime/internal/ctxlock"
	"github.com/fastrelay/fastrelay-gen/runtime/internal/mapmem"
)

// Reader reads the kernel's ring of records (include/uapi/linux/bpf.h, kernel/bpf/ringbuf.c). Positions count bytes
// from the beginning of the ring's life; a record is 8 bytes of header, then the data, padded to 8. The kernel writes
// the producer's position when a record is reserved, clears the busy bit in its header when it is committed, and wakes
// the reader only if the reader's position is that of the record, which means that it has read all others. A relay's
// programs don't even wake that one while its flag says that it is awake. So a reader with records left to read costs
// neither side a system call.
//
// To sleep, it stores its position, clears its flag, and checks whether the producer's position is another one; only
// then does it wait. Both sides store before they load, so either the reader sees the record or the kernel the reader.
// It waits in Go's own poller, which takes no thread. If records come faster than one in a pause, the reader pauses
// instead, awake: a timer costs it little, and a wake-up costs the kernel much.
//
// Its methods are called by one goroutine at a time, except for Close, End, Waiting, Size, Wake and Await. One sleeps
// at a time: the flag and the deadline by which it is woken are its own.
type Reader struct {
	mem  *memory
	file *os.File
	raw  syscall.RawConn
	size uint64

	awake  *mapmem.Array // word 0 of entry 0 is its flag
	pos    uint64        // of the next record
	stored uint64        // what the kernel knows of pos
	busy   bool          // records come often

	sleeping *ctxlock.Lock

	Sleeps, Pauses atomic.Uint64 // how often it slept, and how often it paused instead
}

// memory stays mapped until nothing refers to it.
type memory struct {
	consumer []byte // the page with the reader's position
	// the page with the kernel's position, and twice the data, so that a record at the end is in one piece
	producer []byte
	page     int // its size
}

const (
	headerSize = 8
	busyBit    = 1 << 31
	discardBit = 1 << 30
)

// Open maps the ring, and begins where its last reader has released the records. The first word of entry 0 of awake is
// the flag that says to programs whether the reader is awake.
func Open(m *ebpf.Map, awake *mapmem.Array) (_ *Reader, err error) {
	page := os.Getpagesize()
	mem := &memory{page: page}
	fail := func(err error) error { return fmt.Errorf("map the ring of events: %w", err) }
	if mem.consumer, err = unix.Mmap(m.FD(), 0, page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		return nil, fail(err)
	}
	mem.producer, err = unix.Mmap(m.FD(), int64(page), page+2*int(m.MaxEntries()), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		_ = unix.Munmap(mem.consumer) // what was mapped can be unmapped
		return nil, fail(err)
	}
	goruntime.AddCleanup(mem, func(parts [2][]byte) {
		_, _ = unix.Munmap(parts[0]), unix.Munmap(parts[1])
	}, [2][]byte{mem.consumer, mem.producer})
	fd, err := unix.FcntlInt(uintptr(m.FD()), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fail(err)
	}
	if err := unix.SetNonblock(fd, true); err != nil { // Go's poller takes no other
		unix.Close(fd)
		return nil, fail(err)
	}
	r := &Reader{mem: mem, file: os.NewFile(uintptr(fd), "events"), awake: awake, size: uint64(m.MaxEntries()),
		sleeping: ctxlock.New()}
	if r.raw, err = r.file.SyscallConn(); err != nil {
		r.file.Close()
		return nil, fail(err)
	}
	r.pos = atomic.LoadUint64(r.consumer())
	r.stored = r.pos
	return r, nil
}

// Close ends Wait. The memory stays mapped, so all other methods may still be called.
func (r *Reader) Close() { r.file.Close() }

// Size is how many bytes of records the ring holds.
func (r *Reader) Size() uint64 { return r.size }

// Pos is the position of the next record.
func (r *Reader) Pos() uint64 { return r.pos }

func (r *Reader) consumer() *uint64 { return (*uint64)(unsafe.Pointer(&r.mem.consumer[0])) }
func (r *Reader) producer() *uint64 { return (*uint64)(unsafe.Pointer(&r.mem.producer[0])) }

// End is the position after all records that are reserved.
func (r *Reader) End() uint64 {
	defer goruntime.KeepAlive(r.mem)
	return atomic.LoadUint64(r.producer())
}

// Waiting returns how many bytes of records the kernel holds for the reader.
func (r *Reader) Waiting() uint64 {
	defer goruntime.KeepAlive(r.mem)
	return atomic.LoadUint64(r.producer()) - atomic.LoadUint64(r.consumer())
}

func (r *Reader) data() []byte { return r.mem.producer[r.mem.page:] }

// Peek returns the record at a position, the one that Next will return or a later one, and the position of the next; ok
// is false if none is committed there. data is nil for a record that its program has discarded; it is valid until
// the record is released.
func (r *Reader) Peek(at uint64) (data []byte, next uint64, ok bool) {
	defer goruntime.KeepAlive(r.mem)
	if r.End() == at {
		return nil, at, false
	}
	h := atomic.LoadUint32((*uint32)(unsafe.Pointer(&r.data()[at&(r.size-1)])))
	if h&busyBit != 0 {
		return nil, at, false
	}
	size := uint64(h &^ (busyBit | discardBit))
	if h&discardBit == 0 {
		from := at&(r.size-1) + headerSize
		data = r.data()[from : from+size]
	}
	return data, at + (headerSize+size+7)&^7, true
}

// Next returns the next record, in the kernel's memory, and its position; ok is false if there is none now. It releases
// none but those before: this one is valid until the next call of Next or Release, and counts as waiting.
func (r *Reader) Next() (data []byte, at uint64, ok bool) {
	defer goruntime.KeepAlive(r.mem)
	for {
		if r.pos-r.stored >= r.size/4 {
			r.Release()
		}
		at = r.pos
		record, next, ok := r.Peek(at)
		if !ok {
			return nil, 0, false
		}
		r.pos = next
		if record != nil {
			return record, at, true
		}
	}
}

// Release gives the kernel the room of what was read.
func (r *Reader) Release() {
	if r.pos != r.stored {
		atomic.StoreUint64(r.consumer(), r.pos)
		r.stored = r.pos
		goruntime.KeepAlive(r.mem)
	}
}

// pause is how long records may wait for a reader that is awake.
const pause = time.Millisecond

// Wait sleeps until there is a record, or returns an error if ctx or the ring ends. Wake has to be called when
// ctx ends.
func (r *Reader) Wait(ctx context.Context) error {
	r.Release()
	if r.busy {
		r.Pauses.Add(1)
		timer := time.NewTimer(pause)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return ctx.Err()
		}
		if r.End() != r.pos {
			return nil
		}
	}
	began := time.Now()
	err := r.sleep(ctx)
	r.busy = time.Since(began) < pause
	return err
}

// Await sleeps until there is a record that wasn't released, or returns an error if ctx or the ring ends. Wake has
// to be called when ctx ends. Other goroutines may read records meanwhile, and wait for them.
func (r *Reader) Await(ctx context.Context) error {
	return r.sleep(ctx)
}

// LongestSleep is how long the reader sleeps at most. A packet's many records may fill the ring while the reader falls
// asleep, and leave no room for the one that wakes it.
const LongestSleep = time.Second

// sleep waits for the kernel to wake the reader, which has released what it read.
func (r *Reader) sleep(ctx context.Context) error {
	if !r.sleeping.Lock(ctx, nil) {
		return ctx.Err()
	}
	defer r.sleeping.Unlock()
	defer r.awake.Store64(0, 0, 1)
	for {
		r.awake.Store64(0, 0, 0)
		if r.Waiting() != 0 {
			goruntime.Gosched() // it may be a record that is still being written
			return nil
		}
		if err := r.file.SetReadDeadline(time.Now().Add(LongestSleep)); err != nil {
			return err
		}
		if err := ctx.Err(); err != nil { // Wake may have come before the deadline was set
			return err
		}
		err := r.raw.Read(func(uintptr) bool {
			if r.Waiting() != 0 {
				return true
			}
			r.Sleeps.Add(1)
			return false
		})
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
	}
}

// Wake ends a wait whose context is over.
func (r *Reader) Wake() { _ = r.file.SetReadDeadline(time.Unix(1, 0)) }
