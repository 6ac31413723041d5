// Package pathmtu follows the MTUs of the paths to a relay's destinations. A route's MTU is that of its first link. A
// router further on whose next link is smaller drops packets that mustn't be fragmented, and says so by ICMP
// ("fragmentation needed", "packet too big"). The kernel notes such an MTU as an exception to the route, and takes it
// into account when it is asked for the route. A relay lacks two things:
//
//   - The kernel announces no exception, neither when it makes one nor when that expires. So all exceptions are dumped
//     once a second, by one request a family however many sessions there are, and compared with the last dump. Hops to
//     destinations that differ are resolved again, as after a change of a neighbour: the dump says when to ask, the
//     kernel's answer for the route is what counts.
//   - The kernel makes an exception only if a socket of this host could have sent the packet that the error quotes.
//     For tunnels there is none, nor for `fastrelay-gen run`. And an exception for IPv4 is dumped only after something
//     has asked for the route. So the relay receives the errors as well. If one quotes a packet that a session, a
//     row or a receiver sends, its hop is resolved again, and if the kernel has no exception then, the MTU is kept
//     here for as long as the kernel would keep it.
//
// Anyone can send such an error, with any source. What protects a path is that the quoted packet must be one that the
// relay sends: its addresses match, and its ports if the row has them. An error never raises an MTU, and never
// lowers one below the smallest that the kernel accepts.
//
// A next hop (`send: via`) has no path: the packets that are routed through it keep their source, which is who gets the
// errors about them.
package pathmtu

import (
	"errors"
	"iter"
	"log/slog"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/runtime/abi"
	"github.com/fastrelay/fastrelay-gen/runtime/internal/icmp"
	"github.com/fastrelay/fastrelay-gen/runtime/internal/routes"
)

// DumpLimit is how many exceptions a dump may list, which takes some 0.2 s.
const DumpLimit = 100000

// Rarely is how often all routes are asked for if a dump would list more, or if errors can't be received.
const Rarely = 30 * time.Second

const (
	lookEvery = time.Second
	lookShare = 10 // dumps take at most this fraction of the time: slow ones are less frequent

	pathLife = 10 * time.Minute // the default of net.ipv4.route.mtu_expires and net.ipv6.route.mtu_expires

	maxQuotes = 4096  // errors kept until they are looked at
	maxPaths  = 65536 // MTUs kept
)

// Key says which packets a next hop is for.
type Key = routes.Traffic

// Hops are the next hops of a relay. All other methods, and those of each [Hop], are called while they are locked.
type Hops interface {
	sync.Locker
	Len() int
	Keys() iter.Seq[Key]
	Find(Key) Hop // nil: there is none
}

// Hop is one of them.
type Hop interface {
	// Now returns what is known of the hop, and the neighbour that it leads to.
	Now() (routes.Hop, routes.Neighbour)
	// Ports are the ports of packets that rows send through the hop, with [icmp.AnyPort] if a row leaves one open.
	Ports() iter.Seq[icmp.Ports]
}

// Paths follows the MTUs of paths for hops. It locks the hops first, then itself.
type Paths struct {
	Looks, Dumps atomic.Uint64 // a dump is of one family

	hops   Hops
	routes *routes.Resolver
	log    *slog.Logger
	ask    *routes.Exceptions
	icmp   []*icmp.Listener // none without CAP_NET_RAW

	// Only run uses these.
	known [2]map[routes.Exception]uint32 // what the last dump of each family had
	later [2]time.Time                   // when a family with too many is looked at again
	many  bool                           // that there are too many was logged

	taken, ignored atomic.Uint64 // errors

	arrived chan struct{} // capacity 1: something is in quotes
	over    chan struct{}
	running sync.WaitGroup

	mu     sync.Mutex
	listed int // by a dump, at most
	quotes map[icmp.Quote]*notice
	own    map[Key]pathMTU
	stale  map[netip.Addr]bool // destinations whose MTU may be another
	again  map[netip.Addr]bool // destinations whose exception no dump may have had
}

// notice is what an error says.
type notice struct {
	mtu    int
	errors uint64 // that said so
	ours   bool   // the relay sends such packets
}

// pathMTU is an MTU that the relay keeps, and the route that it is an exception to.
type pathMTU struct {
	mtu     int
	ifindex int
	via     routes.Neighbour
	until   time.Time
}

// Open opens its sockets in the network namespace of the calling thread, which inside enters again.
func Open(hops Hops, resolver *routes.Resolver, inside func(func() error) error, log *slog.Logger) (*Paths, error) {
	p := &Paths{
		hops: hops, routes: resolver, log: log, ask: routes.NewExceptions(inside), listed: DumpLimit,
		known: [2]map[routes.Exception]uint32{{}, {}}, arrived: make(chan struct{}, 1), over: make(chan struct{}),
		quotes: map[icmp.Quote]*notice{}, own: map[Key]pathMTU{}, stale: map[netip.Addr]bool{},
		again: map[netip.Addr]bool{},
	}
	if err := p.ask.Open(); err != nil {
		return nil, err
	}
	var err error
	if p.icmp, err = icmp.Listen(); err != nil {
		log.Warn("path MTUs are those that the kernel has: receiving ICMP errors takes CAP_NET_RAW", "error", err)
	}
	return p, nil
}

// Start begins to follow, until Close.
func (p *Paths) Start() {
	for _, l := range p.icmp {
		p.running.Go(func() { p.receive(l) })
	}
	p.running.Go(p.run)
}

// Close ends what Start has begun. The hops aren't locked.
func (p *Paths) Close() {
	close(p.over)
	for _, l := range p.icmp {
		l.Close()
	}
	p.running.Wait()
	p.ask.Close()
}

// Receives reports whether errors are received.
func (p *Paths) Receives() bool { return len(p.icmp) > 0 }

// Counts returns how many MTUs are kept here, and how many errors were about packets that the relay sends, or not.
func (p *Paths) Counts() (kept int, taken, ignored uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.own), p.taken.Load(), p.ignored.Load()
}

// ListAtMost makes a dump give up that lists more, for tests.
func (p *Paths) ListAtMost(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.listed = n
}

// Age makes the MTUs that are kept older, for tests.
func (p *Paths) Age(by time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for key, own := range p.own {
		own.until = own.until.Add(-by)
		p.own[key] = own
	}
}

// run looks at exceptions each second, and at errors when they come.
func (p *Paths) run() {
	const settle = 10 * time.Millisecond // errors come in bursts
	look := time.NewTimer(0)
	defer look.Stop()
	pause := time.NewTimer(0)
	defer pause.Stop()
	<-pause.C
	arrived := p.arrived
	for {
		select {
		case <-p.over:
			return
		case <-look.C:
			began := time.Now()
			p.expire(began)
			p.look(began)
			took := time.Since(began)
			look.Reset(max(lookEvery-took, (lookShare-1)*took))
		case <-arrived:
			began := time.Now()
			p.verify()
			// A flood of errors must not cost more than a quarter of a processor.
			pause.Reset(max(settle, 3*time.Since(began)))
			arrived = nil
		case <-pause.C:
			arrived = p.arrived
		}
	}
}

// look dumps the exceptions of both families, and marks the destinations of those that came, changed or went. Of a
// family with too many, all routes are asked for instead, and it is looked at again later.
func (p *Paths) look(began time.Time) {
	p.hops.Lock()
	p.Looks.Add(1)
	followed := p.hops.Len()
	p.hops.Unlock()
	if followed == 0 {
		clear(p.known[0])
		clear(p.known[1])
		return
	}
	// An exception that comes and goes between two dumps is in none of them.
	var changed []netip.Addr
	p.mu.Lock()
	for to := range p.again {
		changed = append(changed, to)
	}
	clear(p.again)
	p.mu.Unlock()
	for i, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		if began.Before(p.later[i]) {
			continue
		}
		p.Dumps.Add(1)
		now := make(map[routes.Exception]uint32, len(p.known[i]))
		p.mu.Lock()
		limit := p.listed
		p.mu.Unlock()
		err := p.ask.Dump(family, limit, func(e routes.Exception, mtu uint32) { now[e] = mtu })
		if errors.Is(err, routes.ErrTooMany) {
			if !p.many {
				p.log.Warn("path MTUs are looked at every 30 s: this host has too many exceptions to routes")
			}
			p.many = true
			p.later[i] = began.Add(Rarely)
			clear(p.known[i])
			p.routes.Kick(true)
			continue
		}
		// What a dump that was interrupted lacks is asked for in vain, and seen by the next one.
		if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
			p.log.Warn("the host's path MTUs can't be read", "error", err)
			continue
		}
		for e, mtu := range now {
			if old, had := p.known[i][e]; !had || old != mtu {
				changed = append(changed, e.Dst())
			}
		}
		for e := range p.known[i] {
			if _, has := now[e]; !has {
				changed = append(changed, e.Dst())
			}
		}
		p.known[i] = now
	}
	p.mark(changed)
}

// mark has the hops to these destinations resolved again.
func (p *Paths) mark(to []netip.Addr) {
	if len(to) == 0 {
		return
	}
	want := make(map[netip.Addr]bool, len(to))
	for _, a := range to {
		want[a] = true
	}
	any := false
	p.hops.Lock()
	p.mu.Lock()
	for key := range p.hops.Keys() {
		if want[key.To] {
			p.stale[key.To], any = true, true
		}
	}
	p.mu.Unlock()
	p.hops.Unlock()
	if any {
		p.routes.Kick(false)
	}
}

// Recheck has the hops to a destination resolved once more after the next dump: the kernel's answer has an exception
// that may be gone before it is dumped.
func (p *Paths) Recheck(to netip.Addr, hop routes.Hop) {
	if hop.MTU < p.routes.LinkMTU(hop.Ifindex) {
		p.mu.Lock()
		p.again[to] = true
		p.mu.Unlock()
	}
}

// Changes returns the destinations that were marked since the last call.
func (p *Paths) Changes() map[netip.Addr]bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	some := p.stale
	p.stale = map[netip.Addr]bool{}
	return some
}

// Limit lowers a hop's MTU to the one that is kept for its path.
func (p *Paths) Limit(key Key, hop routes.Hop, via routes.Neighbour) routes.Hop {
	p.mu.Lock()
	defer p.mu.Unlock()
	own, ok := p.own[key]
	switch {
	case !ok:
	case own.ifindex != hop.Ifindex || own.via != via: // another path
		delete(p.own, key)
	case hop.MTU <= own.mtu: // the kernel knows, and will say when this ends
		delete(p.own, key)
	default:
		hop.MTU = own.mtu
	}
	return hop
}

// expire forgets MTUs that were kept for long enough: the path may have changed, and if not, the next error says so.
func (p *Paths) expire(now time.Time) {
	var over []netip.Addr
	p.mu.Lock()
	for key, own := range p.own {
		if now.After(own.until) {
			delete(p.own, key)
			over = append(over, key.To)
		}
	}
	p.mu.Unlock()
	p.mark(over)
}

// receive reads errors until its listener is closed.
func (p *Paths) receive(l *icmp.Listener) {
	for {
		q, mtu, ok, err := l.Receive()
		if err != nil {
			if !errors.Is(err, os.ErrClosed) {
				p.log.Error("ICMP errors can't be received any more", "error", err)
			}
			return
		}
		if !ok {
			p.ignored.Add(1)
			continue
		}
		p.note(q, mtu)
	}
}

// note keeps an error until it is looked at.
func (p *Paths) note(q icmp.Quote, mtu int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.quotes[q]
	switch {
	case n != nil:
		n.mtu = min(n.mtu, mtu)
	case len(p.quotes) == maxQuotes:
		p.ignored.Add(1)
		return
	default:
		n = &notice{mtu: mtu}
		p.quotes[q] = n
	}
	n.errors++
	select {
	case p.arrived <- struct{}{}:
	default:
	}
}

// verify finds the hops that packets such as those quoted are sent to, and lowers their MTUs.
func (p *Paths) verify() {
	p.mu.Lock()
	quotes := p.quotes
	p.quotes = map[icmp.Quote]*notice{}
	p.mu.Unlock()

	// A row may leave open where its packets come from. They come from this host then, or keep a source that gets the
	// errors itself.
	var unknown []icmp.Quote
	p.hops.Lock()
	for q := range quotes {
		for _, key := range keys(netip.Addr{}, q) {
			if p.hops.Find(key) != nil {
				unknown = append(unknown, q)
				break
			}
		}
	}
	p.hops.Unlock()
	local := map[netip.Addr]bool{}
	for _, q := range unknown {
		if _, asked := local[q.From]; !asked {
			local[q.From] = p.routes.Local(q.From)
		}
	}

	p.hops.Lock()
	byKey := map[Key]quoted{}
	for q, n := range quotes {
		for _, key := range append(keys(q.From, q), keys(netip.Addr{}, q)...) {
			if p.hops.Find(key) == nil || !key.From.IsValid() && !local[q.From] {
				continue
			}
			if byKey[key] == nil {
				byKey[key] = quoted{}
			}
			byKey[key].add(q.Ports, n)
		}
	}
	var to []netip.Addr
	p.mu.Lock()
	for key, about := range byKey {
		hop := p.hops.Find(key)
		if mtu := about.match(hop.Ports()); mtu > 0 && p.keep(key, hop, mtu) {
			to = append(to, key.To)
			p.again[key.To] = true
		}
	}
	p.mu.Unlock()
	p.hops.Unlock()
	for _, n := range quotes {
		if n.ours {
			p.taken.Add(n.errors)
		} else {
			p.ignored.Add(n.errors)
		}
	}
	p.mark(to)
}

// keys returns the keys of the hops that the packet of a quote may have been sent through: rows know more or less of
// what they send.
func keys(from netip.Addr, q icmp.Quote) []Key {
	out := []Key{{From: from, To: q.To}}
	if q.Ports.From == icmp.AnyPort {
		return out
	}
	source, dest := uint16(q.Ports.From), uint16(q.Ports.To)
	for _, proto := range []uint8{0, unix.IPPROTO_UDP, unix.IPPROTO_TCP} {
		for _, f := range []routes.Flow{
			{Proto: proto, FromPort: source, ToPort: dest}, {Proto: proto, FromPort: source},
			{Proto: proto, ToPort: dest}, {Proto: proto},
		} {
			if f != (routes.Flow{}) {
				out = append(out, Key{From: from, To: q.To, Flow: f})
			}
		}
	}
	return out
}

// keep keeps the MTU of a hop's path if it is lower than what is known. It is forgotten when the hop is resolved, if
// the kernel has an exception as well. mu is held.
func (p *Paths) keep(key Key, h Hop, mtu int) bool {
	now, via := h.Now()
	if now.State != abi.HopDirect && now.State != abi.HopNeighbour || mtu >= now.MTU {
		return false
	}
	own, has := p.own[key]
	if has && own.mtu <= mtu || !has && len(p.own) >= maxPaths {
		return false
	}
	p.own[key] = pathMTU{mtu: mtu, ifindex: now.Ifindex, via: via, until: time.Now().Add(pathLife)}
	return true
}

// quoted are the quotes with a hop's addresses, by their ports and by those that a row may leave open.
type quoted map[icmp.Ports][]*notice

var anyPorts = icmp.Ports{From: icmp.AnyPort, To: icmp.AnyPort}

func (qs quoted) add(p icmp.Ports, n *notice) {
	qs[anyPorts] = append(qs[anyPorts], n)
	if p.From == icmp.AnyPort {
		return
	}
	for _, k := range []icmp.Ports{p, {From: p.From, To: icmp.AnyPort}, {From: icmp.AnyPort, To: p.To}} {
		qs[k] = append(qs[k], n)
	}
}

// match returns the smallest MTU said about packets with some of these ports; 0: none is.
func (qs quoted) match(sent iter.Seq[icmp.Ports]) int {
	mtu := 0
	for want := range sent {
		for _, n := range qs[want] {
			n.ours = true
			if mtu == 0 || n.mtu < mtu {
				mtu = n.mtu
			}
		}
		delete(qs, want) // rows may be many, and errors as well
	}
	return mtu
}
