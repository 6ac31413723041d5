package server

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/examples/sfu/sfurelay"
	"github.com/fastrelay/fastrelay-gen/runtime/control"
)

// Config is what a server needs to know. Addresses are needed.
type Config struct {
	// of this host, one of each family at most: where publishers send to, and subscribers get from
	Addresses  []netip.Addr
	Interfaces []string      // where publishers' packets come in; nil: all Ethernet interfaces that are up
	Extension  uint8         // the header extension that says a packet's layer (1 to 14); 0: none does
	NoOffload  bool          // forward in user space only
	State      string        // file that lets a successor go on; "": none
	Pins       string        // where the successor finds the relay, in a BPF file system; needed if there is a State
	Lease      time.Duration // how long the kernel goes on for a server that was killed; 0: one second
	Control    control.Flags // how the relay is watched and operated
	Logger     *slog.Logger  // nil: slog.Default()
}

// Server is a running SFU.
type Server struct {
	config  Config
	log     *slog.Logger
	ssrc    uint32 // of the server's own RTCP
	offload *offload
	closing atomic.Bool
	stop    chan struct{}
	running sync.WaitGroup

	control sync.Mutex // changes of who gets what, one at a time: they wait for the kernel

	apart atomic.Int64 // feeds that user space sends

	mu          sync.Mutex // the names; held for moments
	publishers  map[string]*Publisher
	ports       map[netip.AddrPort]*Publisher // by where they send to
	subscribers map[string]*Subscriber

	saved []byte // the state in the file
}

// Errors of requests.
var (
	ErrName     = errors.New("a name has 1 to 64 letters, digits, dots, - and _")
	ErrExists   = errors.New("the name is taken")
	ErrNotFound = errors.New("no such name")
	ErrInvalid  = errors.New("invalid")
	ErrClosed   = errors.New("the server is closed")
)

// Start starts a server. Without the kernel it forwards in user space, and says so in its log.
func Start(config Config) (*Server, error) {
	if config.Logger == nil {
		config.Logger = slog.Default()
	}
	for i, a := range config.Addresses {
		switch {
		case !a.IsValid() || a.IsUnspecified() || a.Zone() != "":
			return nil, fmt.Errorf("%w: %v is not an address of a host", ErrInvalid, a)
		case slices.ContainsFunc(config.Addresses[:i], func(b netip.Addr) bool { return a.Is4() == b.Is4() }):
			return nil, fmt.Errorf("%w: one address of each family, but %v is another one", ErrInvalid, a)
		}
	}
	if len(config.Addresses) == 0 {
		return nil, fmt.Errorf("%w: no address of this host", ErrInvalid)
	}
	s := &Server{
		config: config, log: config.Logger, ssrc: rand.Uint32() | 1, stop: make(chan struct{}),
		publishers: map[string]*Publisher{}, ports: map[netip.AddrPort]*Publisher{},
		subscribers: map[string]*Subscriber{},
	}
	var err error
	if s.offload, err = startOffload(config, s.relayed); err != nil {
		return nil, err
	}
	if err := s.restore(); err != nil {
		s.closing.Store(true)
		return nil, errors.Join(err, s.closeSockets(), s.offload.close())
	}
	for _, p := range s.publishers {
		s.running.Go(p.run)
	}
	for _, u := range s.subscribers {
		s.running.Go(u.run)
	}
	s.running.Go(s.reports)
	s.running.Go(s.tick)
	return s, nil
}

// Close ends all streams and takes the relay out of the kernel; with a State, the kernel goes on for a while (Linger).
func (s *Server) Close() error {
	s.control.Lock()
	defer s.running.Wait()
	defer s.control.Unlock()
	if s.closing.Swap(true) {
		return nil
	}
	close(s.stop)
	return errors.Join(s.save(), s.closeSockets(), s.offload.close())
}

func (s *Server) closeSockets() error {
	var errs []error
	for _, u := range s.Subscribers() {
		if u.conn != nil {
			errs = append(errs, u.conn.Close())
		}
	}
	for _, p := range s.Publishers() {
		if p.conn != nil {
			errs = append(errs, p.conn.Close())
		}
	}
	return errors.Join(errs...)
}

// changes makes a change that the caller can't wait for.
func (s *Server) changes(f func()) {
	go func() { _ = s.change(func() error { f(); return nil }) }()
}

// change makes a change of who gets what.
func (s *Server) change(f func() error) error {
	s.control.Lock()
	defer s.control.Unlock()
	if s.closing.Load() {
		return ErrClosed
	}
	err := f()
	if failed := s.save(); failed != nil {
		s.log.Error("a successor couldn't go on from here", "error", failed)
	}
	return err
}

// While the kernel sends to all who get a stream, what it reports is for the cache and the history alone, and being
// woken for each packet would cost more than all else that is done with it. So the server looks in rounds. Who needs to
// know of all that has come, such as one who answers a request for a packet, reads first (offload.read).
const round = 4 * time.Millisecond

// reports reads what the kernel reports, until the server is closed.
func (s *Server) reports() {
	for s.offload.await() {
		full := s.offload.nearlyFull()
		s.offload.read()
		if full || s.apart.Load() > 0 {
			continue
		}
		select {
		case <-s.stop:
			return
		case <-time.After(round):
		}
	}
}

// relayed takes a packet that the kernel has relayed.
func (s *Server) relayed(e *sfurelay.PacketEvent) {
	s.mu.Lock()
	p := s.ports[e.Server]
	s.mu.Unlock()
	if p != nil {
		p.receive(e.Content, e.Publisher, e.Time)
	}
}

func (s *Server) tick() {
	ticker := time.NewTicker(period)
	defer ticker.Stop()
	for {
		select {
		case <-s.stop:
			return
		case now := <-ticker.C:
			for _, p := range s.Publishers() {
				p.tick(now)
			}
			_ = s.change(func() error {
				for _, u := range s.Subscribers() {
					s.adapt(u, now)
				}
				return nil
			})
		}
	}
}

// readBuffer is where a burst of packets waits while the cache is busy, in bytes. The kernel may grant less.
const readBuffer = 4 << 20

// longest is the size of a buffer that takes any datagram.
const longest = 64 << 10

// socket opens a port on the address of a family.
func (s *Server) socket(v4 bool) (*net.UDPConn, netip.AddrPort, error) {
	i := slices.IndexFunc(s.config.Addresses, func(a netip.Addr) bool { return a.Is4() == v4 })
	if i < 0 {
		return nil, netip.AddrPort{}, fmt.Errorf("%w: the server has no address of that family", ErrInvalid)
	}
	conn, err := s.listen(netip.AddrPortFrom(s.config.Addresses[i], 0))
	if err != nil {
		return nil, netip.AddrPort{}, err
	}
	return conn, conn.LocalAddr().(*net.UDPAddr).AddrPort(), nil
}

// listen opens a port. What the kernel sends waits for a round, so its buffer is as large as asked for if it may be.
func (s *Server) listen(at netip.AddrPort) (*net.UDPConn, error) {
	conn, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
	if err != nil {
		return nil, err
	}
	if err := setReadBuffer(conn, readBuffer); err != nil {
		s.log.Warn("the receive buffer stays small", "error", err)
	}
	return conn, nil
}

// setReadBuffer asks for more than others may, if the server may (socket(7)).
func setReadBuffer(conn *net.UDPConn, bytes int) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var problem error
	err = raw.Control(func(fd uintptr) {
		if problem = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, bytes); problem != nil {
			problem = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, bytes)
		}
	})
	return errors.Join(err, os.NewSyscallError("setsockopt", problem))
}

func validName(name string) bool {
	return name != "" && len(name) <= 64 && strings.Trim(name,
		"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.") == ""
}

// Publish is a request to publish a stream.
type Publish struct {
	Name    string         `json:"name"`
	Address netip.AddrPort `json:"address,omitzero"` // where it comes from; left out: where the first packet does
	SSRC    uint32         `json:"ssrc,omitempty"`   // left out: that of the first packet
	IPv6    bool           `json:"ipv6,omitempty"`   // if no address is given
	Clock   uint32         `json:"clock,omitempty"`  // of its timestamps, in Hz; left out: 90000
}

// Publish adds a publisher.
func (s *Server) Publish(r Publish) (PublisherStats, error) {
	if !validName(r.Name) {
		return PublisherStats{}, ErrName
	}
	if r.Clock == 0 {
		r.Clock = 90000
	}
	v4 := !r.IPv6
	if r.Address.IsValid() {
		r.Address = netip.AddrPortFrom(r.Address.Addr().Unmap(), r.Address.Port())
		v4 = r.Address.Addr().Is4()
	}
	var p *Publisher
	err := s.change(func() error {
		if s.publisher(r.Name) != nil {
			return fmt.Errorf("%w: %s", ErrExists, r.Name)
		}
		conn, local, err := s.socket(v4)
		if err != nil {
			return err
		}
		p = newPublisher(s, r.Name, r.Clock)
		p.conn, p.local, p.remote, p.ssrc = conn, local, r.Address, r.SSRC
		s.mu.Lock()
		s.publishers[p.name], s.ports[p.local] = p, p
		s.mu.Unlock()
		s.running.Go(p.run)
		return nil
	})
	if err != nil {
		return PublisherStats{}, err
	}
	return p.Stats(), nil
}

// Unpublish removes a publisher. Its subscribers stay, and get what is published under its name next.
func (s *Server) Unpublish(name string) error {
	return s.change(func() error {
		p := s.publisher(name)
		if p == nil {
			return fmt.Errorf("%w: publisher %s", ErrNotFound, name)
		}
		return s.leave(p)
	})
}

func (s *Server) leave(p *Publisher) error {
	if s.publisher(p.name) != p {
		return nil
	}
	err := s.end(p)
	s.mu.Lock()
	delete(s.publishers, p.name)
	delete(s.ports, p.local)
	s.mu.Unlock()
	return errors.Join(err, p.conn.Close())
}

// begin opens a publisher's group when its first packet has come, and gives the stream to those who wait for it.
func (s *Server) begin(p *Publisher) {
	if s.publisher(p.name) != p {
		return
	}
	p.mu.Lock()
	key, highest := stream{p.remote, p.local, p.ssrc}, uint16(p.cache.numbers.highest)
	p.mu.Unlock()
	group, err := s.offload.open(key, highest)
	if err != nil {
		s.log.Warn("a stream stays in user space", "publisher", p.name, "error", err)
	}
	p.mu.Lock()
	p.group, p.begun = group, true
	p.mu.Unlock()
	s.attachAll(p)
}

func (s *Server) attachAll(p *Publisher) {
	for _, u := range s.Subscribers() {
		if u.publisher == p.name {
			s.attach(u, p)
		}
	}
}

// end takes a publisher's stream from all who get it.
func (s *Server) end(p *Publisher) error {
	for _, u := range s.Subscribers() {
		if u.feed != nil && u.feed.pub == p {
			s.detach(u)
		}
	}
	p.mu.Lock()
	group := p.group
	p.group = nil
	p.mu.Unlock()
	if group == nil {
		return nil
	}
	return group.close()
}

// rebegin goes on with a stream whose numbers have jumped.
func (s *Server) rebegin(p *Publisher, sequence uint16) {
	if s.publisher(p.name) != p {
		return
	}
	for _, u := range s.Subscribers() {
		if u.feed != nil && u.feed.pub == p {
			s.detach(u)
		}
	}
	if p.group != nil {
		if err := p.group.begin(sequence); err != nil {
			s.log.Warn("a stream that began anew", "publisher", p.name, "error", err)
		}
	}
	s.attachAll(p)
}

// Subscribe is a request to get a stream, or to change what a subscriber gets.
type Subscribe struct {
	Name        string          `json:"name"`
	Address     *netip.AddrPort `json:"address"` // where to; can't be changed
	Publisher   *string         `json:"publisher"`
	PayloadType *uint8          `json:"payload_type"` // left out: 96; can't be changed
	Layer       *uint8          `json:"layer"`        // the highest one wanted; left out: all
	Bandwidth   *int            `json:"bandwidth"`    // bits a second; left out or 0: no limit
}

func (r *Subscribe) check() error {
	switch {
	case r.Layer != nil && *r.Layer >= Layers:
		return fmt.Errorf("%w: layers are 0 to %d", ErrInvalid, Layers-1)
	case r.Bandwidth != nil && *r.Bandwidth < 0:
		return fmt.Errorf("%w: a bandwidth below 0", ErrInvalid)
	case r.PayloadType != nil && (*r.PayloadType > 127 || *r.PayloadType >= 64 && *r.PayloadType <= 95):
		return fmt.Errorf("%w: payload types are 0 to 63 and 96 to 127", ErrInvalid)
	}
	return nil
}

// Subscribe adds a subscriber. It gets the stream when there is one.
func (s *Server) Subscribe(r Subscribe) (SubscriberStats, error) {
	switch {
	case !validName(r.Name):
		return SubscriberStats{}, ErrName
	case r.Address == nil || !r.Address.IsValid() || r.Address.Port() == 0:
		return SubscriberStats{}, fmt.Errorf("%w: no address to send to", ErrInvalid)
	}
	if err := r.check(); err != nil {
		return SubscriberStats{}, err
	}
	u := &Subscriber{
		name: r.Name, s: s, remote: netip.AddrPortFrom(r.Address.Addr().Unmap(), r.Address.Port()),
		ssrc: rand.Uint32() | 1, payloadType: VP8, layer: Layers - 1, next: uint16(rand.Uint32()),
	}
	if r.PayloadType != nil {
		u.payloadType = *r.PayloadType
	}
	err := s.change(func() error {
		if s.subscriber(r.Name) != nil {
			return fmt.Errorf("%w: %s", ErrExists, r.Name)
		}
		var err error
		if u.conn, u.local, err = s.socket(u.remote.Addr().Is4()); err != nil {
			return err
		}
		s.mu.Lock()
		s.subscribers[u.name] = u
		s.mu.Unlock()
		s.running.Go(u.run)
		s.apply(u, r)
		return nil
	})
	if err != nil {
		return SubscriberStats{}, err
	}
	return u.Stats(), nil
}

// Change changes what a subscriber gets.
func (s *Server) Change(r Subscribe) (SubscriberStats, error) {
	if err := r.check(); err != nil {
		return SubscriberStats{}, err
	}
	var u *Subscriber
	err := s.change(func() error {
		if u = s.subscriber(r.Name); u == nil {
			return fmt.Errorf("%w: subscriber %s", ErrNotFound, r.Name)
		}
		if r.Address != nil || r.PayloadType != nil {
			return fmt.Errorf("%w: the address and the payload type can't be changed", ErrInvalid)
		}
		s.apply(u, r)
		return nil
	})
	if err != nil {
		return SubscriberStats{}, err
	}
	return u.Stats(), nil
}

// Unsubscribe removes a subscriber.
func (s *Server) Unsubscribe(name string) error {
	return s.change(func() error {
		u := s.subscriber(name)
		if u == nil {
			return fmt.Errorf("%w: subscriber %s", ErrNotFound, name)
		}
		return s.unsubscribe(u)
	})
}

func (s *Server) unsubscribe(u *Subscriber) error {
	if s.subscriber(u.name) != u {
		return nil
	}
	s.detach(u)
	s.mu.Lock()
	delete(s.subscribers, u.name)
	s.mu.Unlock()
	return u.conn.Close()
}

// apply does what a request says, of a subscriber that is there.
func (s *Server) apply(u *Subscriber, r Subscribe) {
	now := time.Now()
	if r.Layer != nil {
		u.layer = *r.Layer
	}
	if r.Bandwidth != nil {
		s.limit(u, *r.Bandwidth)
	}
	if r.Publisher != nil && *r.Publisher != u.publisher {
		s.detach(u)
		u.publisher = *r.Publisher
		if p := s.publisher(u.publisher); p != nil {
			s.attach(u, p)
		}
		return
	}
	s.adapt(u, now)
}

// attach gives a subscriber a publisher's stream, from its next key frame on. It does nothing before the stream has
// begun: begin does it then, with the kernel's group.
func (s *Server) attach(u *Subscriber, p *Publisher) {
	now := time.Now()
	p.mu.Lock()
	if !p.begun || u.feed != nil {
		p.mu.Unlock()
		return
	}
	f := &feed{pub: p, sub: u, begun: now, lost: s.offload.lost(), row: row{first: u.next, timestamp: rand.Uint32()}}
	if !u.clock.at.IsZero() {
		f.row.timestamp = u.clock.timestamp + p.ticks(now.Sub(u.clock.at)) - p.present(now)
	}
	f.row.layer = u.fits(p.rates, 0)
	f.row.before = f.row.layer
	f.limit.set(allowance(u.bandwidth))
	group := p.group
	p.mu.Unlock()

	var kernel receiver
	if group != nil && p.local.Addr().Is4() == u.remote.Addr().Is4() { // copies don't change their family
		var err error
		if kernel, err = group.add(f, f.row, u.bandwidth); err != nil {
			s.log.Warn("a subscriber stays in user space", "subscriber", u.name, "error", err)
			kernel = nil
		}
	}
	if kernel == nil {
		s.apart.Add(1)
	}
	p.mu.Lock()
	f.kernel = kernel
	p.feeds = append(p.feeds, f)
	p.askKey(now)
	p.mu.Unlock()
	u.mu.Lock()
	u.feed = f
	u.mu.Unlock()
}

// detach takes a subscriber's stream away, and notes what the next one goes on from.
func (s *Server) detach(u *Subscriber) {
	f := u.feed
	if f == nil {
		return
	}
	p := f.pub
	if f.kernel != nil {
		p.awaitFrame()
		if err := f.kernel.remove(); err != nil {
			s.log.Warn("removing a receiver", "subscriber", u.name, "error", err)
		}
		s.catchUp(f)
	} else {
		s.apart.Add(-1)
	}
	p.mu.Lock()
	p.feeds = slices.DeleteFunc(p.feeds, func(g *feed) bool { return g == f })
	f.gaps = nil
	u.next, u.clock = f.last()
	total := f.sent()
	p.mu.Unlock()
	u.mu.Lock()
	u.feed, u.before = nil, f
	u.stats.Sent.add(total)
	u.mu.Unlock()
}

// catchUp waits until the kernel's events have reported all that it sent: the last number is what the next stream goes
// on from.
func (s *Server) catchUp(f *feed) {
	if await(500*time.Millisecond, func() bool {
		s.offload.read()
		f.pub.mu.Lock()
		defer f.pub.mu.Unlock()
		return f.events >= f.kernel.sent().InKernel && (!f.resumed || s.offload.waiting() == 0)
	}) {
		return
	}
	f.pub.mu.Lock()
	defer f.pub.mu.Unlock()
	// Events were lost. Each of them was one packet, so that the number after them has not been used.
	f.history.last.number += max(0, int64(f.kernel.sent().InKernel)-int64(f.events))
}

// mostBandwidth counts in place of larger bandwidths: more than there is, and small enough to be multiplied.
const mostBandwidth = math.MaxInt / 8

// limit sets a subscriber's bandwidth in bits a second.
func (s *Server) limit(u *Subscriber, bandwidth int) {
	bandwidth = min(bandwidth, mostBandwidth)
	u.bandwidth = bandwidth
	u.mu.Lock()
	u.stats.Bandwidth = bandwidth
	u.mu.Unlock()
	if f := u.feed; f != nil {
		if f.kernel != nil {
			f.kernel.limit(bandwidth)
		}
		f.pub.mu.Lock()
		f.limit.set(allowance(bandwidth))
		f.pub.mu.Unlock()
	}
}

// adapt chooses the layer that fits a subscriber's bandwidth.
func (s *Server) adapt(u *Subscriber, now time.Time) {
	f := u.feed
	if f == nil {
		return
	}
	f.pub.mu.Lock()
	if f.pub.newest == nil { // nothing came yet, since the server began
		f.pub.mu.Unlock()
		return
	}
	layer := u.fits(f.pub.rates, f.row.layer)
	var r row
	changed := layer != f.row.layer
	if changed {
		r = f.change(layer, now)
	} else {
		r, changed = f.settle(now)
	}
	f.pub.mu.Unlock()
	if changed && f.kernel != nil {
		if err := f.kernel.set(r); err != nil {
			s.log.Warn("changing a receiver", "subscriber", u.name, "error", err)
		}
	}
}

// fits returns the highest layer that a subscriber wants and that fits its bandwidth. A layer that it doesn't get at
// present needs more room, so that it doesn't come and go.
func (u *Subscriber) fits(rates [Layers]int, present uint8) uint8 {
	switch {
	case u.bandwidth == 0:
		return u.layer
	case rates == [Layers]int{}: // not measured yet
		return min(present, u.layer)
	}
	best, sum := uint8(0), 0
	for layer := range uint8(Layers) {
		sum += rates[layer]
		room := u.bandwidth
		if layer > present {
			room = u.bandwidth * 4 / 5
		}
		if layer <= u.layer && sum <= room {
			best = layer
		}
	}
	return best
}

func (s *Server) publisher(name string) *Publisher {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.publishers[name]
}

func (s *Server) subscriber(name string) *Subscriber {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.subscribers[name]
}

// Publishers returns the publishers, by name.
func (s *Server) Publishers() []*Publisher {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]*Publisher, 0, len(s.publishers))
	for _, p := range s.publishers {
		list = append(list, p)
	}
	slices.SortFunc(list, func(a, b *Publisher) int { return strings.Compare(a.name, b.name) })
	return list
}

// Subscribers returns the subscribers, by name.
func (s *Server) Subscribers() []*Subscriber {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]*Subscriber, 0, len(s.subscribers))
	for _, u := range s.subscribers {
		list = append(list, u)
	}
	slices.SortFunc(list, func(a, b *Subscriber) int { return strings.Compare(a.name, b.name) })
	return list
}
