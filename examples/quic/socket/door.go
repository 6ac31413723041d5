package socket

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/vishvananda/netns"
	"golang.org/x/net/ipv4"
	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/examples/quic/socket/internal/unpolled"
	"github.com/fastrelay/fastrelay-gen/runtime/tool/namespace"
)

// A source is a socket that datagrams are read from.
type source struct {
	*unpolled.Descriptor
	batch *ipv4.PacketConn
}

// A Door is a socket for one publisher's datagrams, on the server's address and connected to the publisher's. They are
// read at once, while those that come to the server's own socket wait for a while: these are ACKs, mostly.
type Door struct {
	source
	doors  *doors
	remote netip.AddrPort // guarded by the doors' mutex
}

// doors are those of a socket.
type doors struct {
	waiter *waiter
	own    *udp // the server's
	local  netip.AddrPort
	ns     netns.NsHandle // where it is

	patience patience

	mu  sync.Mutex
	all map[int]*Door // by file descriptor
}

func newDoors(w *waiter, own *udp, local netip.AddrPort, longest time.Duration) (*doors, error) {
	ns, err := netns.Get()
	if err != nil {
		return nil, fmt.Errorf("network namespace: %w", err)
	}
	return &doors{
		waiter: w, own: own, local: local, ns: ns, all: map[int]*Door{},
		patience: patience{longest: max(longest, 0), few: fewByDoor},
	}, nil
}

// Open opens a door, for a peer of a socket that listens at one address. Until it is closed, or connected to another
// peer, the socket itself gets no datagrams of the peer.
func (s *Socket) Open(remote netip.AddrPort) (*Door, error) { return s.doors.open(remote) }

// Doors returns the peers that have a door.
func (s *Socket) Doors() (peers []netip.AddrPort) {
	s.doors.mu.Lock()
	defer s.doors.mu.Unlock()
	for _, d := range s.doors.all {
		peers = append(peers, d.remote)
	}
	return peers
}

func (s *doors) open(remote netip.AddrPort) (_ *Door, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	family := unix.AF_INET6
	if s.local.Addr().Is4() {
		family = unix.AF_INET
	}
	var fd int
	if err := namespace.Within(s.ns, func() (err error) {
		fd, err = unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		return os.NewSyscallError("socket", err)
	}); err != nil {
		return nil, err
	}
	u := s.own.Another(fd)
	d := &Door{source: source{u.File, ipv4.NewPacketConn(u)}, doors: s}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.Descriptor.Close())
		}
	}()
	size, err := s.own.File.Get(unix.SOL_SOCKET, unix.SO_RCVBUF)
	if err != nil {
		return nil, err
	}
	// As the library has set the server's own.
	if d.Set(unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, size/2) != nil { // the kernel doubles it (socket(7))
		err = d.Set(unix.SOL_SOCKET, unix.SO_RCVBUF, size/2)
	}
	_ = d.Set(unix.IPPROTO_IP, unix.IP_RECVTOS, 1)
	_ = d.Set(unix.IPPROTO_IPV6, unix.IPV6_RECVTCLASS, 1)
	// Two sockets have one address only if both allow it when the second one is bound. No other program's is.
	err = errors.Join(err,
		d.Set(unix.SOL_SOCKET, unix.SO_REUSEADDR, 1),
		s.own.File.Set(unix.SOL_SOCKET, unix.SO_REUSEADDR, 1),
		os.NewSyscallError("bind", unix.Bind(fd, unpolled.Sockaddr(s.local))),
		s.own.File.Set(unix.SOL_SOCKET, unix.SO_REUSEADDR, 0),
		d.connect(remote),
	)
	if err == nil {
		err = s.waiter.listen(d.Descriptor, true)
	}
	if err != nil {
		return nil, err
	}
	s.all[fd] = d
	return d, nil
}

// Connect has the door be another peer's.
func (d *Door) Connect(remote netip.AddrPort) error {
	d.doors.mu.Lock()
	defer d.doors.mu.Unlock()
	return d.connect(remote)
}

func (d *Door) connect(remote netip.AddrPort) error {
	var problem error
	err := d.Control(func(fd uintptr) { problem = unix.Connect(int(fd), unpolled.Sockaddr(remote)) })
	if err = errors.Join(err, os.NewSyscallError("connect", problem)); err == nil {
		d.remote = remote
	}
	return err
}

// Close closes the door. What it has received, and wasn't read, is lost.
func (d *Door) Close() error {
	d.doors.mu.Lock()
	delete(d.doors.all, d.FD())
	d.doors.mu.Unlock()
	return d.Descriptor.Close()
}

// of returns the door with a file descriptor, nil if there is none.
func (s *doors) of(fd int) *Door {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all[fd]
}

// Close is called when the server closes.
func (s *doors) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ns.Close()
}
