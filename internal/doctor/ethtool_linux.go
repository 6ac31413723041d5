package doctor

import (
	"encoding/binary"
	"net"
	"runtime"
	"slices"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// device is a device that merges datagrams for other reasons than a socket that asks for it.
type device struct {
	name     string
	features []string
}

// mergingFeatures have a device merge the datagrams of all flows, so that a router forwards them together.
var mergingFeatures = []string{"rx-udp-gro-forwarding", "rx-gro-list"}

// mergingDevices returns the devices of this network namespace with such a feature.
func mergingDevices() (out []device) {
	all, err := net.Interfaces()
	if err != nil {
		return nil
	}
	for _, dev := range all {
		if on := featuresOn(dev.Name, mergingFeatures); len(on) > 0 {
			out = append(out, device{dev.Name, on})
		}
	}
	return out
}

// featuresOn returns which of the named features of a device are on (linux/ethtool.h: ETHTOOL_GSSET_INFO,
// ETHTOOL_GSTRINGS, ETHTOOL_GFEATURES); none where the kernel doesn't say.
func featuresOn(name string, wanted []string) (on []string) {
	const (
		set    = 4  // ETH_SS_FEATURES
		length = 32 // ETH_GSTRING_LEN
	)
	order := binary.NativeEndian
	info := make([]byte, 20) // struct ethtool_sset_info with one number
	order.PutUint32(info, unix.ETHTOOL_GSSET_INFO)
	order.PutUint64(info[8:], 1<<set)
	if ethtool(name, info) != nil {
		return nil
	}
	count := int(order.Uint32(info[16:]))
	names := make([]byte, 12+count*length) // struct ethtool_gstrings
	order.PutUint32(names, unix.ETHTOOL_GSTRINGS)
	order.PutUint32(names[4:], set)
	order.PutUint32(names[8:], uint32(count))
	blocks := (count + 31) / 32
	state := make([]byte, 8+16*blocks) // struct ethtool_gfeatures: available, requested, active, never changed
	order.PutUint32(state, unix.ETHTOOL_GFEATURES)
	order.PutUint32(state[4:], uint32(blocks))
	if ethtool(name, names) != nil || ethtool(name, state) != nil {
		return nil
	}
	for i := range count {
		feature := strings.TrimRight(string(names[12+i*length:12+(i+1)*length]), "\x00")
		active := order.Uint32(state[8+16*(i/32)+8:])
		if slices.Contains(wanted, feature) && active&(1<<(i%32)) != 0 {
			on = append(on, feature)
		}
	}
	return on
}

// ethtool makes an ethtool call; what the kernel answers is written over the command.
func ethtool(device string, command []byte) error {
	var request struct { // struct ifreq
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte
	}
	copy(request.name[:unix.IFNAMSIZ-1], device)
	request.data = unsafe.Pointer(&command[0])
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
}
