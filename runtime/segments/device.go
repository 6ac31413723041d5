package segments

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"github.com/safchain/ethtool"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/runtime/tool/namespace"
)

const (
	// offload is the feature of a device that takes datagrams with UDP_SEGMENT whole. A veth has it.
	offload = "tx-udp-segmentation"
	// noAddress has no IPv6 address generated (IN6_ADDR_GEN_MODE_NONE, linux/if_link.h).
	noAddress = 1
	// maxPairs is how many senders a namespace may have.
	maxPairs = 256
)

// Addresses on the way through the devices (RFC 3927), which no device has.
var (
	inside = [4]byte{169, 254, 83, 1}
	behind = unix.SockaddrInet4{Addr: [4]byte{169, 254, 83, 2}, Port: 9}
)

// pair is a pair of devices: what is sent into one is received by the other.
type pair struct {
	netlink *netlink.Handle // of the network namespace
	in, out netlink.Link
	lock    io.Closer // held while this process has the pair
}

// newPair makes a pair, or takes the place of one that a dead process left.
func newPair() (_ *pair, err error) {
	for n := range maxPairs {
		name, peer := fmt.Sprint("frseg", n), fmt.Sprint("frsegpeer", n)
		// The kernel removes a socket's abstract name with its process, and has a space of names for each network
		// namespace.
		lock, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: "@fastrelay/segments/" + name, Net: "unixgram"})
		if errors.Is(err, unix.EADDRINUSE) {
			continue
		}
		if err != nil {
			return nil, err
		}
		p := &pair{lock: lock}
		if p.netlink, err = netlink.NewHandle(unix.NETLINK_ROUTE); err != nil {
			return nil, errors.Join(err, lock.Close())
		}
		if err = p.make(name, peer); err == nil {
			return p, nil
		}
		err = errors.Join(err, p.Close())
		if !errors.Is(err, errTaken) {
			return nil, fmt.Errorf("make the devices %s and %s: %w", name, peer, err)
		}
	}
	return nil, fmt.Errorf("this network namespace has %d senders", maxPairs)
}

// errTaken says that a device has the name of a sender's, and is of another kind.
var errTaken = errors.New("there is such a device")

func (p *pair) make(name, peer string) error {
	old, err := p.netlink.LinkByName(name)
	switch _, missing := err.(netlink.LinkNotFoundError); {
	case missing:
	case err != nil:
		return err
	case old.Type() != "veth":
		return errTaken
	default:
		if err := p.netlink.LinkDel(old); err != nil {
			return err
		}
	}
	veth := &netlink.Veth{LinkAttrs: netlink.NewLinkAttrs(), PeerName: peer}
	veth.Name, veth.MTU, veth.PeerMTU = name, maxMTU, maxMTU
	if err := p.netlink.LinkAdd(veth); err != nil {
		return err
	}
	if p.in, err = p.netlink.LinkByName(name); err != nil {
		return err
	}
	if p.out, err = p.netlink.LinkByName(peer); err != nil {
		return err
	}
	tool, err := ethtool.NewEthtool()
	if err != nil {
		return err
	}
	defer tool.Close()
	// tx-scatter-gather stays on, though a segment's bytes would be in one place without it: the kernel would need 64
	// KiB in one place for each datagram.
	if err := tool.Change(name, map[string]bool{offload: false}); err != nil {
		return fmt.Errorf("turn off %s: %w", offload, err)
	}
	if on, err := tool.Features(name); err != nil || on[offload] {
		return errors.Join(err, fmt.Errorf("%s can't be turned off", offload))
	}
	for _, link := range []netlink.Link{p.in, p.out} {
		// Without IPv6 in the kernel there is nothing to turn off.
		if err := p.netlink.LinkSetIP6AddrGenMode(link, noAddress); err != nil &&
			!errors.Is(err, unix.EAFNOSUPPORT) && !errors.Is(err, unix.EINVAL) {
			return err
		}
		if err := p.netlink.LinkSetUp(link); err != nil {
			return err
		}
	}
	err = p.netlink.NeighSet(&netlink.Neigh{
		LinkIndex: p.in.Attrs().Index, State: netlink.NUD_PERMANENT,
		IP: behind.Addr[:], HardwareAddr: p.out.Attrs().HardwareAddr,
	})
	return errors.Join(err, p.ready())
}

// ready waits until the kernel says that both devices are up: before, it drops what is sent into one.
func (p *pair) ready() error {
	const limit = 10 * time.Second
	links, done := make(chan netlink.LinkUpdate), make(chan struct{})
	err := netlink.LinkSubscribeWithOptions(links, done, netlink.LinkSubscribeOptions{ListExisting: true})
	if err != nil {
		return fmt.Errorf("follow devices: %w", err)
	}
	defer func() {
		close(done)
		go func() { // who reads for us may wait with one more
			for range links {
			}
		}()
	}()
	late := time.NewTimer(limit)
	defer late.Stop()
	for {
		select {
		case l, ok := <-links:
			if !ok {
				return errors.New("the kernel tells of devices no more")
			}
			if now := l.Attrs(); now.Index == p.in.Attrs().Index && now.OperState == netlink.OperUp {
				return nil
			}
		case <-late.C:
			return fmt.Errorf("they weren't up within %s", limit)
		}
	}
}

// Close deletes the devices.
func (p *pair) Close() error {
	var err error
	if p.in != nil {
		if err = p.netlink.LinkDel(p.in); errors.Is(err, unix.ENODEV) {
			err = nil // another program has deleted it
		}
	}
	p.netlink.Close()
	return errors.Join(err, p.lock.Close())
}

// sender opens the socket whose datagrams go into the pair.
func (p *pair) sender() (int, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	err = errors.Join(
		unix.BindToDevice(fd, p.in.Attrs().Name),
		unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_TRANSPARENT, 1), // no device has its address
		unix.Bind(fd, &unix.SockaddrInet4{Addr: inside}),
		unix.Connect(fd, &behind),
	)
	if err != nil {
		return -1, errors.Join(err, unix.Close(fd))
	}
	return fd, nil
}

// returns opens a socket that receives what the relay doesn't take, from its IP header on: of one protocol of one
// device, the kernel gives packet sockets what programs at tc/ingress have passed.
func (p *pair) returns() (*os.File, error) {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("packet socket: %w", err)
	}
	at := &unix.SockaddrLinklayer{Protocol: namespace.Htons(unix.ETH_P_IP), Ifindex: p.out.Attrs().Index}
	if err := unix.Bind(fd, at); err != nil {
		return nil, errors.Join(fmt.Errorf("packet socket: %w", err), unix.Close(fd))
	}
	return os.NewFile(uintptr(fd), "returns of "+p.out.Attrs().Name), nil
}

// open returns what came back: the number of its receiver, and its payload; false if it is no datagram of a sender.
func open(packet []byte) (number uint32, payload []byte, ours bool) {
	const udp = 8
	if len(packet) < 20 {
		return 0, nil, false
	}
	at := int(packet[0]&15)*4 + udp
	if packet[9] != unix.IPPROTO_UDP || len(packet) < at+numbered || [4]byte(packet[16:]) != behind.Addr {
		return 0, nil, false
	}
	end := at - udp + int(binary.BigEndian.Uint16(packet[at-udp+4:]))
	if end < at+numbered || end > len(packet) {
		return 0, nil, false
	}
	return binary.BigEndian.Uint32(packet[at:]), packet[at+numbered : end], true
}
