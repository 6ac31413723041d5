// Package restart is two processes at one address: one that is drained, and its successor.
package restart

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go"
)

// A Generation is one process's of those that follow each other at an address. Two may be there at a time: the first,
// which is drained, and its successor. Both sockets are in one group of the kernel's (SO_REUSEPORT), which a filter
// routes by the first bytes of connection IDs, since an address may change and a hash of it differs with each socket:
// packets with an ID of one generation go to its socket, those that begin connections to the successor's.
//
// The kernel appends a socket to its group, and when one is closed, the last takes its place. So the first process's is
// number 0 and the successor's number 1, until that becomes the first. While there are two, no third may come.
//
// Its methods are called in this order: Take, Control, Join; Close at the end.
type Generation struct {
	file  *os.File // with the locks; closing it unlocks them
	tag   byte
	first bool // no other process is there

	stop    chan struct{}
	closing sync.Once
	waiting sync.WaitGroup
}

// Bytes of the file that are locked.
const (
	lockFirst     = iota
	lockSuccessor // while a process comes, and as long as it isn't the first
	lockTag0      // of connection IDs
	lockTag1
)

// Connection IDs begin with tagBytes, and the generation's tag.
var tagBytes = [2]byte{0xfa, 0x57}

const (
	connectionID = 8 // bytes
	look         = 100 * time.Millisecond
)

// Take takes a place by locks in a file, which all processes at the address name. It is made if it isn't there.
func Take(file string) (*Generation, error) {
	f, err := os.OpenFile(file, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	g := &Generation{file: f, stop: make(chan struct{})}
	fail := func(err error) (*Generation, error) { return nil, errors.Join(err, f.Close()) }
	switch ok, err := g.lock(lockSuccessor); {
	case err != nil:
		return fail(err)
	case !ok:
		return fail(fmt.Errorf("%s: a relay and its successor run; wait until the first of them has ended", file))
	}
	if g.first, err = g.lock(lockFirst); err != nil {
		return fail(err)
	}
	for tag := range 2 {
		ok, err := g.lock(lockTag0 + int64(tag))
		if ok || err != nil {
			g.tag = byte(tag)
			if err != nil {
				return fail(err)
			}
			return g, nil
		}
	}
	return fail(fmt.Errorf("%s: both kinds of connection IDs are in use", file))
}

// lock reports whether a byte could be locked.
func (g *Generation) lock(at int64) (bool, error) {
	err := g.fcntl(at, unix.F_WRLCK)
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
		return false, nil
	}
	return err == nil, err
}

func (g *Generation) fcntl(at int64, kind int16) error {
	lock := unix.Flock_t{Type: kind, Start: at, Len: 1}
	return unix.FcntlFlock(g.file.Fd(), unix.F_OFD_SETLK, &lock)
}

// Control prepares a socket that isn't bound yet; see [net.ListenConfig].
func (g *Generation) Control(_, _ string, c syscall.RawConn) error {
	var err error
	return errors.Join(c.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
	}), err)
}

// Join has the kernel route packets, when the socket is bound. What has come to it before is dropped: it may be the
// other process's, whose clients send it again.
func (g *Generation) Join(c syscall.RawConn) error {
	if g.first {
		if err := attach(c, all); err != nil {
			return err
		}
		return g.fcntl(lockSuccessor, unix.F_UNLCK)
	}
	if err := attach(c, g.filter()); err != nil {
		return err
	}
	if err := discard(c); err != nil {
		return err
	}
	g.waiting.Go(func() { g.succeed(c) })
	return nil
}

// succeed waits until the first process is gone, and is the first then.
func (g *Generation) succeed(c syscall.RawConn) {
	ticker := time.NewTicker(look)
	defer ticker.Stop()
	for {
		select {
		case <-g.stop:
			return
		case <-ticker.C:
		}
		if ok, _ := g.lock(lockFirst); ok {
			if attach(c, all) == nil { // else the socket is closed
				_ = g.fcntl(lockSuccessor, unix.F_UNLCK) // as it was locked
			}
			return
		}
	}
}

// Close gives the place up. The socket has to be closed already.
func (g *Generation) Close() error {
	var err error
	g.closing.Do(func() {
		close(g.stop)
		g.waiting.Wait()
		err = g.file.Close()
	})
	return err
}

// GenerateConnectionID returns a connection ID of the generation; see [quic.ConnectionIDGenerator].
func (g *Generation) GenerateConnectionID() (quic.ConnectionID, error) {
	var id [connectionID]byte
	_, _ = rand.Read(id[:]) // never fails
	copy(id[:], tagBytes[:])
	id[len(tagBytes)] = g.tag
	return quic.ConnectionIDFromBytes(id[:]), nil
}

// ConnectionIDLen returns how long connection IDs are.
func (g *Generation) ConnectionIDLen() int { return connectionID }

// all has every packet go to socket 0, also while there is a socket 1 that has no filter yet.
var all = []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: 0}}

// filter returns the program that chooses the socket of a packet, which begins with the header of QUIC (RFC 9000 §17):
// 1 for those of this generation and for long headers of none, which begin connections; 0 for those of the other one,
// and for short headers of none. What is too short is the other one's, as a load beyond the end returns 0.
func (g *Generation) filter() []unix.SockFilter {
	const (
		long      = 0x80 // of the first byte
		shortID   = 1    // where the connection ID is
		longID    = 6
		load      = unix.BPF_LD | unix.BPF_ABS
		jump      = unix.BPF_JMP | unix.BPF_K
		firstTags = 0xffffff00
	)
	tag := func(tag byte) uint32 { return uint32(tagBytes[0])<<24 | uint32(tagBytes[1])<<16 | uint32(tag)<<8 }
	return []unix.SockFilter{
		0: {Code: load | unix.BPF_B, K: 0},
		1: {Code: jump | unix.BPF_JSET, K: long, Jt: 3}, // to 5
		2: {Code: load | unix.BPF_W, K: shortID},
		3: {Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: firstTags},
		4: {Code: jump | unix.BPF_JEQ, K: tag(g.tag), Jt: 3, Jf: 4}, // of a connection that there is: to 8 or 9
		5: {Code: load | unix.BPF_W, K: longID},
		6: {Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: firstTags},
		7: {Code: jump | unix.BPF_JEQ, K: tag(1 - g.tag), Jt: 1}, // to 9
		8: {Code: unix.BPF_RET | unix.BPF_K, K: 1},
		9: {Code: unix.BPF_RET | unix.BPF_K, K: 0},
	}
}

func attach(c syscall.RawConn, filter []unix.SockFilter) error {
	var err error
	err2 := c.Control(func(fd uintptr) {
		err = unix.SetsockoptSockFprog(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_REUSEPORT_CBPF,
			&unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]})
	})
	return errors.Join(err, err2)
}

// discard drops what waits in a socket.
func discard(c syscall.RawConn) error {
	var err error
	err2 := c.Control(func(fd uintptr) {
		var b [1]byte
		for err == nil {
			_, _, err = unix.Recvfrom(int(fd), b[:], unix.MSG_DONTWAIT|unix.MSG_TRUNC)
		}
	})
	if errors.Is(err, unix.EAGAIN) {
		err = nil
	}
	return errors.Join(err, err2)
}
