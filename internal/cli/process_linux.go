package cli

import (
	"errors"
	"net"

	"golang.org/x/sys/unix"
)

// process is one that listens on a socket.
type process struct{ fd int }

// listener finds the process that listens on a unix socket; nil if this user may not know it.
func listener(socket string) *process {
	c, err := net.Dial("unix", socket)
	if err != nil {
		return nil
	}
	defer c.Close()
	raw, err := c.(*net.UnixConn).SyscallConn()
	if err != nil {
		return nil
	}
	fd := -1
	err2 := raw.Control(func(s uintptr) {
		var peer *unix.Ucred
		if peer, err = unix.GetsockoptUcred(int(s), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			fd, err = unix.PidfdOpen(int(peer.Pid), 0)
		}
	})
	if errors.Join(err, err2) != nil {
		return nil
	}
	return &process{fd}
}

// ended says whether it has.
func (p *process) ended() bool {
	if p == nil {
		return true
	}
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(p.fd), Events: unix.POLLIN}}, 0)
	return err == nil && n > 0
}

func (p *process) close() {
	if p != nil {
		unix.Close(p.fd)
	}
}
