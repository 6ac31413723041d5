package fanout

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// reader reads datagrams from a socket, with one system call all that are there.
type reader struct {
	fd      int
	batch   [readBatch]mmsghdr
	iov     [readBatch]unix.Iovec
	buffers [readBatch][2048]byte
}

const readBatch = 64

func newReader(fd int) *reader {
	r := &reader{fd: fd}
	for i := range r.batch {
		r.iov[i].Base = &r.buffers[i][0]
		r.iov[i].SetLen(len(r.buffers[i]))
		r.batch[i].hdr.Iov = &r.iov[i]
		r.batch[i].hdr.SetIovlen(1)
	}
	return r
}

// read returns how many datagrams came, of which packet has each. With MSG_WAITFORONE it waits for the first, with
// MSG_DONTWAIT for none (recvmmsg(2)).
func (r *reader) read(flags uintptr) (int, error) {
	for {
		n, _, errno := unix.Syscall6(unix.SYS_RECVMMSG, uintptr(r.fd), uintptr(unsafe.Pointer(&r.batch[0])), readBatch,
			flags, 0, 0)
		switch errno {
		case 0:
			return int(n), nil
		case unix.EINTR:
		default:
			return 0, errno
		}
	}
}

func (r *reader) packet(i int) []byte { return r.buffers[i][:r.batch[i].len] }
