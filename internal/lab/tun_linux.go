package lab

import (
	"errors"

	"golang.org/x/sys/unix"
)

// OpenTun makes a tun device, whose packets have no link-layer header, in the thread's network namespace. It ends when
// the file is closed. Facts says that each packet in the file has a struct virtio_net_hdr in front.
func OpenTun(name string, facts bool) (int, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	request, err := unix.NewIfreq(name)
	if err == nil {
		flags := uint16(unix.IFF_TUN | unix.IFF_NO_PI)
		if facts {
			flags |= unix.IFF_VNET_HDR
		}
		request.SetUint16(flags)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, request)
	}
	if err != nil {
		return -1, errors.Join(err, unix.Close(fd))
	}
	return fd, nil
}
