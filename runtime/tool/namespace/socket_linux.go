package namespace

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// PacketSocket opens a raw packet socket on a device of a network namespace. Options are set before it is bound, so
// that nothing is received without them. It receives frames of a protocol (unix.ETH_P_ALL: all, 0: none), from all
// devices if index is 0.
func PacketSocket(ns netns.NsHandle, index int, protocol uint16, options ...func(fd int) error) (int, error) {
	fd := -1
	err := OnThread(ns, func() (err error) {
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		for _, set := range options {
			err = errors.Join(err, set(fd))
		}
		return errors.Join(err, unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: Htons(protocol), Ifindex: index}))
	})
	if err == nil {
		return fd, nil
	}
	if fd >= 0 {
		err = errors.Join(err, unix.Close(fd))
	}
	return -1, fmt.Errorf("packet socket: %w", err)
}

// Option sets an integer option of a socket.
func Option(level, name, value int) func(fd int) error {
	return func(fd int) error { return unix.SetsockoptInt(fd, level, name, value) }
}

// Htons returns v in network byte order.
func Htons(v uint16) uint16 {
	return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, v))
}
