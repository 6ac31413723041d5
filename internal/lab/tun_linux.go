package lab

import (
	"errors"

	"golang.org/x/sys/unix"
)

// OpenTun makes a tun device, whose packets have no link-layer header, in the thread's network namespace. It ends when
// the file is closed. Facts says that each packet in the file has a struct virtio_net_hdr in front.
func OpenTun(name string, facts bool) (int, error) {
	flags := uint16(unix.IFF_TUN)
	if facts {
		flags |= unix.IFF_VNET_HDR
	}
	return open(name, flags)
}

// OpenTap makes a tap device, whose packets are frames with a struct virtio_net_hdr in front.
func OpenTap(name string) (int, error) { return open(name, unix.IFF_TAP|unix.IFF_VNET_HDR) }

func open(name string, flags uint16) (int, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	request, err := unix.NewIfreq(name)
	if err == nil {
		request.SetUint16(flags | unix.IFF_NO_PI)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, request)
	}
	if err != nil {
		return -1, errors.Join(err, unix.Close(fd))
	}
	return fd, nil
}
