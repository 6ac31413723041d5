package testnet

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Features of a device, as ethtool names them: which work on packets is offloaded to it.

// SetTxChecksum sets whether the device completes the checksums of what it sends (a veth doesn't: its packets go on
// with CHECKSUM_PARTIAL), or software does before.
func (d *Dev) SetTxChecksum(on bool) error {
	return d.wrap("tx checksum", d.setFeature("tx-checksum-ip-generic", on))
}

// SetSegmentation sets whether the device takes GSO packets of UDP (UDP_SEGMENT) and TCP, or the kernel segments them
// before.
func (d *Dev) SetSegmentation(on bool) error {
	var errs []error
	for _, name := range []string{"tx-udp-segmentation", "tx-tcp-segmentation", "tx-tcp6-segmentation"} {
		errs = append(errs, d.setFeature(name, on))
	}
	return d.wrap("segmentation", errors.Join(errs...))
}

// setFeature switches one feature (linux/ethtool.h: ETHTOOL_GSSET_INFO, ETHTOOL_GSTRINGS, ETHTOOL_SFEATURES). It is
// no error if the kernel leaves it as it is because other features require that.
func (d *Dev) setFeature(name string, on bool) error {
	const (
		set    = 4  // ETH_SS_FEATURES
		length = 32 // ETH_GSTRING_LEN
	)
	order := binary.NativeEndian
	info := make([]byte, 20) // struct ethtool_sset_info with one number
	order.PutUint32(info, unix.ETHTOOL_GSSET_INFO)
	order.PutUint64(info[8:], 1<<set)
	if err := d.ethtool(info); err != nil {
		return err
	}
	count := int(order.Uint32(info[16:]))
	names := make([]byte, 12+count*length) // struct ethtool_gstrings
	order.PutUint32(names, unix.ETHTOOL_GSTRINGS)
	order.PutUint32(names[4:], set)
	order.PutUint32(names[8:], uint32(count))
	if err := d.ethtool(names); err != nil {
		return err
	}
	for i := range count {
		if !bytes.Equal(bytes.TrimRight(names[12+i*length:12+(i+1)*length], "\x00"), []byte(name)) {
			continue
		}
		blocks := (count + 31) / 32
		change := make([]byte, 8+8*blocks) // struct ethtool_sfeatures: which bits count, and their values
		order.PutUint32(change, unix.ETHTOOL_SFEATURES)
		order.PutUint32(change[4:], uint32(blocks))
		order.PutUint32(change[8+8*(i/32):], 1<<(i%32))
		if on {
			order.PutUint32(change[12+8*(i/32):], 1<<(i%32))
		}
		return d.ethtool(change)
	}
	return fmt.Errorf("the kernel has no feature %q", name)
}

// ethtool makes an ethtool call; what the kernel answers is written over the command.
func (d *Dev) ethtool(command []byte) error {
	var request struct { // struct ifreq
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte
	}
	copy(request.name[:unix.IFNAMSIZ-1], d.Name)
	request.data = unsafe.Pointer(&command[0])
	return d.Host.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&request)))
		runtime.KeepAlive(command)
		if errno != 0 {
			return errno
		}
		return nil
	})
}
