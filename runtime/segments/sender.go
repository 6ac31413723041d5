package segments

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	goruntime "runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/runtime"
	"github.com/fastrelay/fastrelay-gen/runtime/segments/segmentsrelay"
)

// Socket is a UDP socket, as a *net.UDPConn is.
type Socket interface {
	net.Conn
	net.PacketConn
}

// Config says how a sender sends.
type Config struct {
	// Conn is the server's UDP socket, which sends what isn't sent in segments. The sender doesn't close it.
	Conn Socket
	// OneByOne has Conn send all packets, so that both can be compared: the sender makes no devices and loads no relay.
	OneByOne bool
	// Lease, Control and Logger are the relay's: see runtime.Options.
	Lease   time.Duration
	Control runtime.Control
	Logger  *slog.Logger
}

// Sender sends packets to many receivers. Its methods may be called from any goroutine.
type Sender struct {
	single *single
	log    *slog.Logger
	lacks  error // why all is sent one by one
	// What is below is missing then.
	relay  *segmentsrelay.Relay
	pair   *pair
	fd     int      // its datagrams go into the pair; -1: there is none
	back   *os.File // what the relay doesn't take
	reader sync.WaitGroup

	life   sync.RWMutex // held for reading while something is sent, for writing by Close
	closed bool

	mu        sync.Mutex
	last      uint32
	receivers map[uint32]*Receiver

	batches    sync.Pool
	counts     counts
	complained atomic.Bool
}

// New makes a sender in the network namespace of the calling thread. It is no error if that can't have the devices or
// the relay: then Conn sends all packets one by one, and Kernel says why.
func New(c Config) (*Sender, error) {
	if c.Conn == nil {
		return nil, errors.New("segments: Config.Conn is missing: the UDP socket that sends what can't be segmented")
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	s := &Sender{single: newSingle(c.Conn), log: c.Logger, fd: -1, receivers: map[uint32]*Receiver{}}
	s.batches.New = func() any { return &batch{sender: s} }
	if c.OneByOne {
		s.lacks = errOneByOne
		return s, nil
	}
	goruntime.LockOSThread() // all is made in one namespace
	defer goruntime.UnlockOSThread()
	if err := s.start(c); err != nil {
		if errors.Is(err, unix.EPERM) && !errors.As(err, new(*runtime.KernelError)) {
			err = &runtime.KernelError{
				Doing: "send packets in segments", Cause: "this process lacks CAP_NET_RAW or CAP_NET_ADMIN",
				Fix: "run it as root, or give it these capabilities", Err: err,
			}
		}
		s.lacks = errors.Join(err, s.stop())
		s.log.Warn("packets to many receivers are sent one by one", "error", s.lacks)
	}
	return s, nil
}

// errOneByOne is why nothing is sent in segments where that is asked for.
var errOneByOne = errors.New("segments: Config.OneByOne is set")

func (s *Sender) start(c Config) (err error) {
	s.relay, err = segmentsrelay.Load(segmentsrelay.Options{Lease: c.Lease, Control: c.Control, Logger: c.Logger})
	if err != nil {
		return err
	}
	if s.pair, err = newPair(); err != nil {
		return err
	}
	if s.back, err = s.pair.returns(); err != nil {
		return err
	}
	if err := s.relay.Address.Attach(s.pair.out.Attrs().Name); err != nil {
		return err
	}
	if s.fd, err = s.pair.sender(); err != nil {
		return fmt.Errorf("a socket on %s: %w", s.pair.in.Attrs().Name, err)
	}
	s.reader.Go(s.readBack)
	return nil
}

// stop undoes start, or as much of it as was done.
func (s *Sender) stop() error {
	var errs []error
	if s.fd >= 0 {
		errs = append(errs, unix.Close(s.fd))
	}
	if s.back != nil {
		errs = append(errs, s.back.Close())
		s.reader.Wait()
	}
	if s.relay != nil {
		errs = append(errs, s.relay.Close())
	}
	if s.pair != nil {
		errs = append(errs, s.pair.Close())
	}
	s.fd, s.back, s.relay, s.pair = -1, nil, nil, nil
	return errors.Join(errs...)
}

// Close removes the relay and the devices. It waits for calls of Send that have begun; Send and Add return
// net.ErrClosed from then on, and Close does nothing.
func (s *Sender) Close() error {
	s.life.Lock()
	defer s.life.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	return s.stop()
}

// Kernel returns nil if packets are sent in segments, until the sender is closed, or why all are sent one by one: a
// [*runtime.KernelError] if a capability or a feature of the kernel is missing.
func (s *Sender) Kernel() error { return s.lacks }

// Device is the name of the device that segments are sent into; "" if there is none.
func (s *Sender) Device() string {
	s.life.RLock()
	defer s.life.RUnlock()
	if s.pair == nil {
		return ""
	}
	return s.pair.in.Attrs().Name
}

// Receiver is where packets are sent to.
type Receiver struct {
	sender        *Sender
	local, remote netip.AddrPort
	number        uint32
	session       *runtime.AnySession // nil: packets are sent one by one
	path          atomic.Pointer[path]
	closed        atomic.Bool
	single        destination
}

// Remote is the receiver's address; never an IPv4-mapped one.
func (r *Receiver) Remote() netip.AddrPort { return r.remote }

// path is what is known of how packets leave.
type path struct {
	changes  uint64 // of next hops, when it was looked up
	segments bool   // the kernel knows a next hop
	mtu      int    // in bytes of an IP packet
}

// Add adds a receiver: packets to it come from local, which is the address of the server's socket, or the one that the
// receiver has sent to if the socket has none. IPv4-mapped addresses are those of IPv4.
//
// Errors are a [*runtime.ValueError] for an address that no other host has, without a port, or whose family isn't the
// other one's, and for a local one that isn't the socket's, a [*runtime.FullError] (65,536 receivers), net.ErrClosed.
func (s *Sender) Add(local, remote netip.AddrPort) (*Receiver, error) {
	s.life.RLock()
	defer s.life.RUnlock()
	if s.closed {
		return nil, net.ErrClosed
	}
	local = netip.AddrPortFrom(local.Addr().Unmap(), local.Port())
	remote = netip.AddrPortFrom(remote.Addr().Unmap(), remote.Port())
	own, _ := s.single.conn.LocalAddr().(*net.UDPAddr)
	switch {
	case remote.Port() == 0:
		return nil, &runtime.ValueError{Where: "segments: a receiver", Value: remote, Reason: "it has no port"}
	case own != nil && local.IsValid() &&
		(own.Port != int(local.Port()) || !own.IP.IsUnspecified() && !own.IP.Equal(local.Addr().AsSlice())):
		return nil, &runtime.ValueError{Where: "segments: the local address of a receiver", Value: local,
			Reason: fmt.Sprintf("the socket's is %v: packets that aren't sent in segments leave from there", own)}
	}
	r := &Receiver{sender: s, local: local, remote: remote}
	r.single = s.single.destination(local, remote)
	if s.relay == nil || remote.Addr().IsLoopback() { // the kernel sends nothing from a device to this host
		return r, nil
	}
	s.mu.Lock()
	for {
		// A number isn't given again soon: a packet may be on its way to the one who had it.
		if s.last++; s.receivers[s.last] == nil {
			break
		}
	}
	r.number = s.last
	s.receivers[r.number] = r
	s.mu.Unlock()
	var err error
	if r.session, err = s.relay.Runtime().Open("receiver", r.number, local, remote); err != nil {
		s.forget(r)
		return nil, fmt.Errorf("segments: %w", err)
	}
	return r, nil
}

func (s *Sender) forget(r *Receiver) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.receivers, r.number)
}

// Close removes the receiver. Packets to it fail with net.ErrClosed from then on.
func (r *Receiver) Close() error {
	if r.closed.Swap(true) || r.session == nil {
		return nil
	}
	r.sender.forget(r)
	return r.session.Close()
}

// look says how packets leave.
func (r *Receiver) look() *path {
	if r.session == nil {
		return &oneByOne
	}
	changes := r.sender.relay.Runtime().NextHopChanges()
	known := r.path.Load()
	if known == nil || known.changes != changes {
		known = &path{changes: changes}
		for _, hop := range r.session.NextHops() {
			known.segments = hop.State == runtime.HopDirect || hop.State == runtime.HopNeighbour
			known.mtu = hop.MTU
		}
		r.path.Store(known)
	}
	return known
}

var oneByOne path
