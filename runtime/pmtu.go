package runtime

import (
	"errors"
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

// Path MTUs. A route's MTU is that of its first link. A router further on whose next link is smaller drops packets
// that mustn't be fragmented, and says so by ICMP ("fragmentation needed", "packet too big"). The kernel notes such an
// MTU as an exception to the route, and takes it into account when it is asked for the route. A relay lacks two
// things:
//
//   - The kernel announces no exception, neither when it makes one nor when that expires. So all exceptions are dumped
//     once a second, by one request a family however many sessions there are, and compared with the last dump. Hops to
//     destinations that differ are resolved again, as after a change of a neighbour: the dump says when to ask, the
//     kernel's answer for the route is what counts.
//   - The kernel makes an exception only where a socket of this host could have sent the packet that the error quotes.
//     For tunnels there is none, nor for `fastrelay-gen run`. And an exception for IPv4 is dumped only after something
//     has asked for the route. So the relay receives the errors as well. Where one quotes a packet that a session, a
//     row or a receiver sends, its hop is resolved again, and where the kernel has no exception then, the MTU is kept
//     here for as long as the kernel would keep it.
//
// Anyone can send such an error, with any source. What protects a path is that the quoted packet must be one that the
// relay sends: its addresses match, and its ports where the row has them. An error never raises an MTU, and never
// lowers one below the smallest that the kernel accepts.
//
// A next hop (`send: via`) has no path: the packets that are routed through it keep their source, which is who gets the
// errors about them.

const (
	lookEvery  = time.Second
	lookShare  = 10               // dumps take at most this fraction of the time: slow ones are less frequent
	lookLimit  = 100000           // that a dump may list, in some 0.2 s
	lookRarely = 30 * time.Second // how often all routes are asked for where it lists more, or errors can't be received

	pathLife = 10 * time.Minute // the default of net.ipv4.route.mtu_expires and net.ipv6.route.mtu_expires

	maxQuotes = 4096  // errors kept until they are looked at
	maxPaths  = 65536 // MTUs kept
)

// paths follows the MTUs of paths for the hops.
type paths struct {
	hops   *hops
	log    *slog.Logger
	ask    *routes.Exceptions
	icmp   []*icmp.Listener // none without CAP_NET_RAW
	life   time.Duration
	listed int  // by a dump, at most
	began  bool // run is there
	// Only run uses these.
	known [2]map[routes.Exception]uint32 // what the last dump of each family had
	later [2]time.Time                   // when a family with too many is looked at again
	many  bool                           // that there are too many has been said

	looks, dumps   atomic.Uint64 // a dump is of one family
	taken, ignored atomic.Uint64 // errors

	arrived chan struct{} // capacity 1: something is in quotes
	readers sync.WaitGroup

	mu     sync.Mutex
	quotes map[icmp.Quote]*notice
	own    map[hopKey]pathMTU
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

// newPaths opens its sockets in the network namespace of the calling thread.
func newPaths(h *hops) (*paths, error) {
	p := &paths{
		hops: h, log: h.relay.log, life: pathLife, listed: lookLimit, ask: routes.NewExceptions(h.relay.inNamespace),
		known: [2]map[routes.Exception]uint32{{}, {}}, arrived: make(chan struct{}, 1),
		quotes: map[icmp.Quote]*notice{}, own: map[hopKey]pathMTU{}, stale: map[netip.Addr]bool{},
		again: map[netip.Addr]bool{},
	}
	if err := p.ask.Open(); err != nil {
		return nil, err
	}
	var err error
	if p.icmp, err = icmp.Listen(); err != nil {
		p.log.Warn("path MTUs are those that the kernel has: receiving ICMP errors takes CAP_NET_RAW",
			"relay", h.relay.desc.Name, "error", err)
	}
	return p, nil
}

func (p *paths) start() {
	p.began = true
	for _, l := range p.icmp {
		p.readers.Add(1)
		go p.receive(l)
	}
	p.hops.relay.wg.Add(1)
	go p.run()
}

// close ends those who receive. run ends with the relay.
func (p *paths) close() {
	for _, l := range p.icmp {
		l.Close()
	}
	if !p.began {
		p.ask.Close()
	}
}

// listens says whether errors are received.
func (p *paths) listens() bool { return p != nil && len(p.icmp) > 0 }

// run looks at exceptions each second, and at errors when they come, until the relay is closed.
func (p *paths) run() {
	defer p.hops.relay.wg.Done()
	defer p.ask.Close()
	defer p.readers.Wait()
	const settle = 10 * time.Millisecond // errors come in bursts
	look := time.NewTimer(0)
	defer look.Stop()
	pause := time.NewTimer(0)
	defer pause.Stop()
	<-pause.C
	arrived := p.arrived
	for {
		select {
		case <-p.hops.relay.done:
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
func (p *paths) look(began time.Time) {
	h := p.hops
	h.relay.mu.Lock()
	p.looks.Add(1)
	followed := len(h.byKey)
	h.relay.mu.Unlock()
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
		p.dumps.Add(1)
		now := make(map[routes.Exception]uint32, len(p.known[i]))
		p.mu.Lock()
		limit := p.listed
		p.mu.Unlock()
		err := p.ask.Dump(family, limit, func(e routes.Exception, mtu uint32) { now[e] = mtu })
		if errors.Is(err, routes.ErrTooMany) {
			if !p.many {
				p.log.Warn("path MTUs are looked at every 30 s: this host has too many exceptions to routes",
					"relay", h.relay.desc.Name)
			}
			p.many = true
			p.later[i] = began.Add(lookRarely)
			clear(p.known[i])
			h.routes.Kick(true)
			continue
		}
		// What a dump that was interrupted lacks is asked for in vain, and seen by the next one.
		if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
			p.log.Warn("the host's path MTUs can't be read", "relay", h.relay.desc.Name, "error", err)
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
func (p *paths) mark(to []netip.Addr) {
	if len(to) == 0 {
		return
	}
	want := make(map[netip.Addr]bool, len(to))
	for _, a := range to {
		want[a] = true
	}
	h, any := p.hops, false
	h.relay.mu.Lock()
	p.mu.Lock()
	for key := range h.byKey {
		if want[key.to] {
			p.stale[key.to], any = true, true
		}
	}
	p.mu.Unlock()
	h.relay.mu.Unlock()
	if any {
		h.routes.Kick(false)
	}
}

// recheck has the hops to a destination resolved once more after the next dump: the kernel's answer has an exception
// that may be gone before it is dumped.
func (p *paths) recheck(to netip.Addr, hop Hop) {
	if hop.MTU < p.hops.routes.LinkMTU(hop.Ifindex) {
		p.mu.Lock()
		p.again[to] = true
		p.mu.Unlock()
	}
}

// changes returns the destinations that were marked since the last call.
func (p *paths) changes() map[netip.Addr]bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	some := p.stale
	p.stale = map[netip.Addr]bool{}
	return some
}

// limit lowers a hop's MTU to the one that is kept for its path.
func (p *paths) limit(key hopKey, hop Hop, via routes.Neighbour) Hop {
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
func (p *paths) expire(now time.Time) {
	var over []netip.Addr
	p.mu.Lock()
	for key, own := range p.own {
		if now.After(own.until) {
			delete(p.own, key)
			over = append(over, key.to)
		}
	}
	p.mu.Unlock()
	p.mark(over)
}

// receive reads errors until its listener is closed.
func (p *paths) receive(l *icmp.Listener) {
	defer p.readers.Done()
	for {
		q, mtu, ok, err := l.Receive()
		if err != nil {
			if !errors.Is(err, os.ErrClosed) {
				p.log.Error("ICMP errors can't be received any more", "relay", p.hops.relay.desc.Name, "error", err)
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
func (p *paths) note(q icmp.Quote, mtu int) {
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
func (p *paths) verify() {
	h := p.hops
	p.mu.Lock()
	quotes := p.quotes
	p.quotes = map[icmp.Quote]*notice{}
	p.mu.Unlock()

	// A row may leave open where its packets come from. They come from this host then, or keep a source that gets the
	// errors itself.
	var unknown []icmp.Quote
	h.relay.mu.Lock()
	for q := range quotes {
		if h.byKey[hopKey{to: q.To}] != nil {
			unknown = append(unknown, q)
		}
	}
	h.relay.mu.Unlock()
	local := map[netip.Addr]bool{}
	for _, q := range unknown {
		if _, asked := local[q.From]; !asked {
			local[q.From] = h.routes.Local(q.From)
		}
	}

	h.relay.mu.Lock()
	byHop := map[*hop]quoted{}
	for q, n := range quotes {
		for _, key := range []hopKey{{q.From, q.To}, {to: q.To}} {
			e := h.byKey[key]
			if e == nil || !key.from.IsValid() && !local[q.From] {
				continue
			}
			if byHop[e] == nil {
				byHop[e] = quoted{}
			}
			byHop[e].add(q.Ports, n)
		}
	}
	var to []netip.Addr
	p.mu.Lock()
	for e, about := range byHop {
		if mtu := about.match(e); mtu > 0 && p.keep(e, mtu) {
			to = append(to, e.key.to)
			p.again[e.key.to] = true
		}
	}
	p.mu.Unlock()
	h.relay.mu.Unlock()
	for _, n := range quotes {
		if n.ours {
			p.taken.Add(n.errors)
		} else {
			p.ignored.Add(n.errors)
		}
	}
	p.mark(to)
}

// keep keeps the MTU of a hop's path where it is lower than what is known. It is forgotten when the hop is resolved, if
// the kernel has an exception as well. relay.mu and mu are held.
func (p *paths) keep(e *hop, mtu int) bool {
	if e.now.State != HopDirect && e.now.State != HopNeighbour || mtu >= e.now.MTU {
		return false
	}
	own, has := p.own[e.key]
	if has && own.mtu <= mtu || !has && len(p.own) >= maxPaths {
		return false
	}
	p.own[e.key] = pathMTU{mtu: mtu, ifindex: e.now.Ifindex, via: e.via, until: time.Now().Add(p.life)}
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

// match returns the smallest MTU said about packets that a row of the hop sends; 0: none of them is. relay.mu is held.
func (qs quoted) match(e *hop) int {
	mtu := 0
	for row := range e.rows {
		for _, rh := range row.hops {
			if rh.hop != e {
				continue
			}
			want, ok := row.ports(rh.off)
			if !ok {
				continue
			}
			for _, n := range qs[want] {
				n.ours = true
				if mtu == 0 || n.mtu < mtu {
					mtu = n.mtu
				}
			}
			delete(qs, want) // rows may be many, and errors as well
		}
	}
	return mtu
}

// ports returns the ports of packets that the row sends through the hop at off; false for a next hop, whose packets
// aren't this host's.
func (row *tableRow) ports(off int) (icmp.Ports, bool) {
	members := row.members()
	for _, m := range members {
		if m.Kind != abi.KindHop || m.Off != off {
			continue
		}
		port := func(name string) int32 {
			m := abi.Find(members, name)
			if m == nil || m.Kind != abi.KindEndpoint {
				return icmp.AnyPort
			}
			return int32(abi.Order.Uint16(row.value[m.Off+abi.EndpointPort:]))
		}
		return icmp.Ports{From: port(m.From), To: port(m.To)}, true
	}
	return icmp.Ports{}, false
}

// PathMTUs says how the MTUs of paths are followed. A path's is that of its smallest link, which routers report by ICMP
// errors.
type PathMTUs struct {
	Followed bool   // the relay has next hops, and follows them
	Receives bool   // the relay receives these errors, which takes CAP_NET_RAW; else the kernel alone does
	Kept     int    // MTUs that the relay keeps itself, where the kernel has no socket that an error could be about
	Taken    uint64 // errors about packets that the relay sends
	Ignored  uint64 // other errors: about packets of other programs, forged, or damaged
}

// PathMTUs returns how the MTUs of paths are followed; the zero value where the relay has no next hops to follow.
func (r *Relay) PathMTUs() PathMTUs {
	if r.hops == nil || r.hops.paths == nil {
		return PathMTUs{}
	}
	p := r.hops.paths
	p.mu.Lock()
	defer p.mu.Unlock()
	return PathMTUs{
		Followed: true, Receives: p.listens(), Kept: len(p.own), Taken: p.taken.Load(), Ignored: p.ignored.Load(),
	}
}
