package runtime

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/netip"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf"

	"github.com/fastrelay/fastrelay-gen/runtime/abi"
	"github.com/fastrelay/fastrelay-gen/runtime/internal/ctxlock"
	"github.com/fastrelay/fastrelay-gen/runtime/internal/pathmtu"
	"github.com/fastrelay/fastrelay-gen/runtime/internal/routes"
)

// HopState says whether and how packets can leave towards an address.
type HopState = abi.HopState

// States of a hop.
const (
	HopNone        = abi.HopNone
	HopDirect      = abi.HopDirect
	HopNeighbour   = abi.HopNeighbour
	HopLocal       = abi.HopLocal
	HopUnreachable = abi.HopUnreachable
	HopBlackhole   = abi.HopBlackhole
	HopProhibit    = abi.HopProhibit
	HopXfrm        = abi.HopXfrm
	HopRule        = abi.HopRule
	HopEncap       = abi.HopEncap
)

// Hop says how packets leave towards an address.
type Hop struct {
	State   HopState
	Ifindex int
	MTU     int // in bytes, of the device, the route or the path
	Dst     [6]byte
	Src     [6]byte
}

// stored is the hop as a row holds it.
func (h Hop) stored() Hop {
	h.MTU = min(h.MTU, math.MaxUint16)
	return h
}

// getHop reads a hop out of a row.
func getHop(buf []byte) Hop {
	return Hop{
		State: HopState(buf[abi.HopAt]), Ifindex: int(abi.Order.Uint32(buf[abi.HopIfindex:])),
		MTU: int(abi.Order.Uint16(buf[abi.HopMTU:])),
		Dst: [6]byte(buf[abi.HopDst:]), Src: [6]byte(buf[abi.HopSrc:]),
	}
}

func (h Hop) put(buf []byte) {
	clear(buf[:abi.HopSize])
	abi.Order.PutUint32(buf[abi.HopIfindex:], uint32(h.Ifindex))
	abi.Order.PutUint16(buf[abi.HopMTU:], uint16(min(h.MTU, math.MaxUint16)))
	buf[abi.HopAt] = byte(h.State)
	copy(buf[abi.HopDst:], h.Dst[:])
	copy(buf[abi.HopSrc:], h.Src[:])
}

// tableRow is a row as it is in the kernel, and the hops in it.
type tableRow struct {
	table    *AnyTable    // nil: a receiver's
	index    int          // which of its session's rows it is
	receiver *AnyReceiver // nil: a table's
	key      []byte
	value    []byte
	hops     []rowHop
}

func (row *tableRow) members() []abi.Member {
	if row.receiver != nil {
		return row.receiver.group.kind.desc.Receiver
	}
	return row.table.desc.Value
}

// rowHop is one hop in a row.
type rowHop struct {
	off     int
	traffic routes.Traffic // all that is known of the packets
	hop     *hop           // while the row is in the kernel
	got     *resolved      // found ahead, so that nothing is asked of the kernel under relay.mu
}

// hopKey is what a hop depends on: traffic, without what makes no difference.
type hopKey = pathmtu.Key

// findHops finds the hops in a row's value, and checks that both ends of each are hosts, and of one family.
func (row *tableRow) findHops() error {
	members := row.members()
	addr := func(name string) netip.Addr { return getAddr(row.value[abi.Find(members, name).Off:]) }
	for _, m := range members {
		switch m.Kind {
		case abi.KindNextHop:
			to := getAddr(row.value[m.Off+abi.NextHopAddr:])
			if !to.IsUnspecified() { // no next hop, as in an empty row of an array
				// routers are known by link-local addresses
				if why := notAHost(to); why != "" && !to.IsLinkLocalUnicast() {
					return &ValueError{Where: strconv.Quote(m.Name), Value: to, Reason: why}
				}
				row.hops = append(row.hops, rowHop{off: m.Off, traffic: routes.Traffic{To: to, Router: true}})
			}
		case abi.KindHop:
			key := routes.Traffic{To: addr(m.To), Flow: row.flow(&m)}
			if why := notAHost(key.To); why != "" {
				return &ValueError{Where: strconv.Quote(m.To), Value: key.To, Reason: why}
			}
			if m.From != "" {
				key.From = addr(m.From)
				if why := notAHost(key.From); why != "" {
					return &ValueError{Where: strconv.Quote(m.From), Value: key.From, Reason: why}
				}
				if key.From.Is4() != key.To.Is4() {
					return &ValueError{
						Where:  fmt.Sprintf("%q and %q", m.From, m.To),
						Value:  fmt.Sprintf("%v and %v", key.From, key.To),
						Reason: "are the source and the destination of one packet, and must be of one IP family",
					}
				}
			}
			row.hops = append(row.hops, rowHop{off: m.Off, traffic: key})
		}
	}
	return nil
}

// link ties a row to its session.
func (row *tableRow) link(slot, gen uint32) {
	for _, m := range row.table.desc.Value {
		switch {
		case !m.Hidden:
		case m.Name == abi.MemberSlot:
			abi.Order.PutUint32(row.value[m.Off:], slot)
		case m.Name == abi.MemberGen:
			abi.Order.PutUint32(row.value[m.Off:], gen)
		case m.Name == abi.MemberRow:
			abi.Order.PutUint32(row.value[m.Off:], uint32(row.index))
		}
	}
}

// hop is what is known about one next hop, and the rows that need it. Guarded by relay.mu.
type hop struct {
	key  hopKey
	now  Hop
	via  routes.Neighbour
	rows map[*tableRow]struct{}
	lost bool // it was there, and is missing
}

// hops keeps the hops of all rows up to date. [routes.Resolver] finds them; what is here records which rows use them,
// and rewrites those.
type hops struct {
	relay  *Relay
	routes *routes.Resolver
	paths  *pathmtu.Paths
	byKey  map[hopKey]*hop
	epoch  uint64 // counts changes of the host's network that were applied
	// changes counts hops that changed while rows had them. It is increased under relay.mu.
	changes atomic.Uint64

	// Held from the kernel's answers until rows have them, so that an older answer never replaces a newer one.
	refreshing *ctxlock.Lock
}

type resolved struct {
	key   hopKey
	hop   Hop
	via   routes.Neighbour
	epoch uint64
}

func newHops(r *Relay) (*hops, error) {
	h := &hops{relay: r, byKey: map[hopKey]*hop{}, refreshing: ctxlock.New()}
	var err error
	if h.routes, err = routes.Open(r.log); err != nil {
		return nil, &KernelError{Doing: "follow the routes of this host", Cause: "netlink can't be used", Err: err}
	}
	log := r.log.With("relay", r.desc.Name)
	if h.paths, err = pathmtu.Open(h, h.routes, r.inNamespace, log); err != nil {
		h.routes.Close()
		return nil, &KernelError{Doing: "follow the path MTUs of this host", Cause: "netlink can't be used", Err: err}
	}
	return h, nil
}

func (h *hops) start() {
	h.relay.wg.Go(h.routes.Listen)
	h.relay.wg.Go(h.follow)
	h.paths.Start()
}

func (h *hops) close() {
	h.paths.Close()
	h.routes.Close()
}

func (h *hops) resolve(key hopKey) (Hop, routes.Neighbour) {
	if f := h.relay.opt.routes; f != nil {
		return f(key.From, key.To), routes.Neighbour{}
	}
	hop, via := h.routes.Resolve(key)
	return Hop(h.paths.Limit(key, hop, via)), via
}

// prepare resolves the hops that are not known yet. relay.mu is not held.
func (h *hops) prepare(rows []*tableRow) {
	for _, row := range rows {
		for i := range row.hops {
			rh := &row.hops[i]
			h.relay.mu.Lock()
			key, epoch := h.routes.Narrow(rh.traffic), h.epoch
			known := h.byKey[key] != nil
			h.relay.mu.Unlock()
			if known {
				continue
			}
			hop, via := h.resolve(key)
			if hop.State != HopDirect {
				h.routes.Probe(via) // so that it is known soon
			}
			h.paths.Recheck(key.To, routes.Hop(hop))
			rh.got = &resolved{key, hop, via, epoch}
		}
	}
}

// use writes the hops into the row's value, and follows them from now on. relay.mu is held.
func (h *hops) use(row *tableRow) {
	h.enter(row)
	for _, rh := range row.hops {
		rh.hop.now.put(row.value[rh.off:])
	}
}

// enter follows the row's hops from now on. relay.mu is held.
func (h *hops) enter(row *tableRow) {
	for i := range row.hops {
		rh := &row.hops[i]
		key := h.routes.Narrow(rh.traffic)
		e := h.byKey[key]
		if e == nil {
			got := rh.got
			if got == nil || got.key != key { // it was known a moment ago, or rules have changed since
				now, via := h.resolve(key)
				got = &resolved{key, now, via, h.epoch}
			}
			e = &hop{key: key, now: got.hop, via: got.via, rows: map[*tableRow]struct{}{}}
			h.byKey[key] = e
			if got.epoch != h.epoch {
				h.routes.Kick(true) // the network changed since: look again
			}
		}
		e.rows[row] = struct{}{}
		rh.hop, rh.got = e, nil
	}
}

// drop stops following the row's hops. relay.mu is held.
func (h *hops) drop(row *tableRow) {
	for i := range row.hops {
		rh := &row.hops[i]
		if rh.hop == nil {
			continue
		}
		delete(rh.hop.rows, row)
		if len(rh.hop.rows) == 0 {
			delete(h.byKey, rh.hop.key)
		}
		rh.hop = nil
	}
}

// apply rewrites the rows of a hop that has changed; receivers get new ones. The kernel replaces a row as a whole, so
// each packet sees the old next hop or the new one. It returns the hop if it was lost, or found again.
func (h *hops) apply(e *hop, now Hop, via routes.Neighbour) (news *NextHop) {
	r := h.relay
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed || h.byKey[e.key] != e {
		return nil
	}
	e.via = via
	if e.now == now {
		return nil
	}
	was := e.public().Missing()
	e.now = now
	if is := e.public(); is.Missing() != was && (!was || e.lost) {
		news, e.lost = &is, !was
	}
	for row := range e.rows {
		h.rewrite(row)
	}
	h.changes.Add(1)
	return news
}

// rewrite gives the kernel a row with its hops as they are now; a receiver gets a new one. relay.mu is held.
func (h *hops) rewrite(row *tableRow) {
	r := h.relay
	if row.receiver != nil {
		r.lists.rehop(row.receiver) // a row isn't changed while a list has it
		return
	}
	for _, rh := range row.hops {
		rh.hop.now.put(row.value[rh.off:])
	}
	// A session's row is ours alone. Another row is what user space put, since nothing else writes hops.
	if err := row.table.update(row.key, row.value, ebpf.UpdateExist); err != nil &&
		!errors.Is(err, ebpf.ErrKeyNotExist) {
		r.log.Error("a row can't follow a change of route", "relay", r.desc.Name, "to", row.hops[0].traffic.To,
			"error", row.table.explain(err))
	}
}

// sayHops is how many next hops that are lost or found at once are logged one by one.
const sayHops = 8

// say logs next hops that were lost or found.
func (h *hops) say(all []NextHop) {
	for i, one := range all {
		if i == sayHops {
			h.relay.say(slog.LevelWarn, "more next hops are lost or found", "count", len(all)-i)
			return
		}
		if one.Missing() {
			h.relay.say(slog.LevelWarn, "a next hop is lost", "to", one.destination(), "state", one.State,
				"rows", one.Rows)
		} else {
			h.relay.say(slog.LevelInfo, "a next hop is found again", "to", one.destination(), "rows", one.Rows)
		}
	}
}

// RefreshRoutes finds the next hops of all rows anew, and returns when the kernel's rows have them, or when ctx ends.
// Changes that the kernel announces are followed without it, within some ten milliseconds.
func (r *Relay) RefreshRoutes(ctx context.Context) error {
	if r.hops != nil {
		r.hops.refresh(ctx, func(*hop) bool { return true })
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return fmt.Errorf("relay %q: %w", r.desc.Name, ErrClosed)
	}
	return nil
}

// refresh resolves the hops that match again.
func (h *hops) refresh(ctx context.Context, match func(*hop) bool) {
	var news []NextHop
	defer func() { h.say(news) }()
	if !h.refreshing.Lock(ctx, h.relay.done) {
		return
	}
	defer h.refreshing.Unlock()
	h.relay.mu.Lock()
	h.epoch++
	var all []*hop
	for _, e := range h.byKey {
		if match(e) {
			all = append(all, e)
		}
	}
	h.relay.mu.Unlock()
	asked := map[routes.Neighbour]bool{}
	for _, e := range all {
		select {
		case <-h.relay.done: // who closes the relay doesn't wait for thousands of them
			return
		case <-ctx.Done():
			return
		default:
		}
		for _, e := range h.regroup(e) {
			now, via := h.resolve(e.key)
			if now.State != HopDirect && !asked[via] {
				asked[via] = true
				h.routes.Probe(via)
			}
			if one := h.apply(e, now, via); one != nil {
				news = append(news, *one)
			}
		}
	}
}

// follow applies the changes that routes announces, until the relay is closed.
func (h *hops) follow() {
	const (
		settle    = 10 * time.Millisecond // changes come in bursts
		keepAlive = 4 * time.Second       // less than the 5 s after which the kernel calls a neighbour unused
	)
	alive, again := time.NewTicker(keepAlive), time.NewTicker(pathmtu.Rarely)
	defer alive.Stop()
	defer again.Stop()
	if h.paths.Receives() {
		again.Stop() // dumps and errors say when to look
	}
	pause := time.NewTimer(0)
	defer pause.Stop()
	<-pause.C
	var rested time.Time
	for {
		select {
		case <-h.relay.done:
			return
		case <-alive.C:
			for _, via := range h.neighbours() {
				h.routes.Probe(via)
			}
			h.relay.lists.catchUp()
			continue
		case <-again.C:
			h.routes.Kick(true)
			continue
		case <-h.routes.Changed():
		}
		pause.Reset(max(settle, time.Until(rested)))
		select {
		case <-h.relay.done:
			return
		case <-pause.C:
		}
		began := time.Now()
		all, some := h.routes.Changes()
		if all {
			h.relay.tellPrograms()
		}
		paths := h.paths.Changes()
		h.refresh(context.Background(), func(e *hop) bool { return all || some[e.via] || paths[e.key.To] })
		// A host whose network never rests must not cost us more than a quarter of a processor.
		rested = time.Now().Add(3 * time.Since(began))
	}
}

// neighbours returns the neighbours that hops lead through.
func (h *hops) neighbours() []routes.Neighbour {
	h.relay.mu.Lock()
	defer h.relay.mu.Unlock()
	seen := map[routes.Neighbour]bool{}
	var out []routes.Neighbour
	for _, e := range h.byKey {
		if e.via.Addr.IsValid() && !seen[e.via] {
			seen[e.via] = true
			out = append(out, e.via)
		}
	}
	return out
}
