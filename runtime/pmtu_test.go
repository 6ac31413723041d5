package runtime

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/runtime/abi"
	"github.com/fastrelay/fastrelay-gen/runtime/internal/icmp"
	"github.com/fastrelay/fastrelay-gen/runtime/internal/pathmtu"
	"github.com/fastrelay/fastrelay-gen/runtime/internal/routes"
)

// If the host has no socket that an error could be about, the kernel ignores it, and the relay keeps the MTU.
func TestPathMTUKept(t *testing.T) {
	for _, c := range pathCases() {
		t.Run(c.family, func(t *testing.T) {
			b := network(t)
			r := b.load(t, Options{})
			c.open(t, r)
			b.report(t, c.error)
			c.is(t, "an error", c.mtu)
			if got := r.PathMTUs(); got != (PathMTUs{Followed: true, Receives: true, Kept: 1, Taken: 1}) {
				t.Errorf("%+v", got)
			}
			// A session that is opened later has it from the start.
			other := slices.Clone(c.values)
			own := c.error.from.Addr()
			other[1], other[3] = netip.AddrPortFrom(own, 999), netip.AddrPortFrom(own, 51000)
			late, err := r.Open("flow", other...)
			if err != nil {
				t.Fatal(err)
			}
			if got := hopIn(t, late, 0).MTU; got != c.mtu {
				t.Errorf("a session that is opened later begins with %d", got)
			}

			// It is kept for a while, and forgotten if the route is another.
			r.RefreshRoutes(bg)
			c.is(t, "after a refresh", c.mtu)
			r.hops.paths.Age(9 * time.Minute)
			looks := r.hops.paths.Looks.Load()
			until(t, 5*time.Second, "two looks", func() bool { return r.hops.paths.Looks.Load() >= looks+2 })
			c.is(t, "9 minutes later", c.mtu)
			r.hops.paths.Age(time.Minute)
			c.is(t, "when it has expired", 1500)

			b.report(t, c.error)
			c.is(t, "the error again", c.mtu)
			if err := b.there.AddAddr(c.gateway.String()); err != nil {
				t.Fatal(err)
			}
			b.ip(t, "route", "add", c.error.to.Addr().String(), "via", c.gateway.Addr().String(), "dev", "in0")
			c.is(t, "by another gateway", 1500)
			if kept := r.PathMTUs().Kept; kept != 0 {
				t.Errorf("%d MTUs are kept for nothing", kept)
			}
			b.report(t, c.error)
			c.is(t, "the error once more", c.mtu)
		})
	}
}

// If the host has a socket, the kernel makes an exception, and the relay has the kernel's MTU, until the exception
// goes.
func TestPathMTUOfKernel(t *testing.T) {
	for _, c := range pathCases() {
		t.Run(c.family, func(t *testing.T) {
			b := network(t)
			r := b.load(t, Options{})
			b.udp(t, c.listen)
			c.open(t, r)
			b.report(t, c.error)
			c.is(t, "an error", c.mtu)
			if got := r.PathMTUs(); got != (PathMTUs{Followed: true, Receives: true, Taken: 1}) {
				t.Errorf("%+v", got)
			}
			b.ip(t, c.flush...) // perhaps before any dump has had the exception
			c.is(t, "without the exception", 1500)
			b.report(t, c.error)
			c.is(t, "the error again", c.mtu)
			b.seen(t, r)
			b.ip(t, c.flush...)
			c.is(t, "without the exception", 1500)
			// One that was there before the session, and goes before any dump.
			if err := c.session.Close(); err != nil {
				t.Fatal(err)
			}
			b.report(t, c.error)
			until(t, 3*time.Second, "the kernel's exception", func() bool {
				hop, _ := r.hops.routes.Resolve(hopKey{From: c.error.from.Addr(), To: c.error.to.Addr()})
				return hop.MTU == c.mtu
			})
			c.open(t, r)
			if got := hopIn(t, c.session, 0).MTU; got != c.mtu {
				t.Errorf("a session begins with %d", got)
			}
			b.ip(t, c.flush...)
			c.is(t, "without the exception", 1500)
		})
	}
}

// seen waits until exceptions were dumped once more.
func (b *bench) seen(t testing.TB, r *Relay) {
	t.Helper()
	n := r.hops.paths.Dumps.Load()
	until(t, 3*time.Second, "another dump", func() bool { return r.hops.paths.Dumps.Load() >= n+4 })
}

// withoutRaw runs f on a thread without CAP_NET_RAW.
func withoutRaw(f func() error) error {
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var caps [2]unix.CapUserData
	if err := unix.Capget(&head, &caps[0]); err != nil {
		return err
	}
	all := caps
	caps[0].Effective &^= 1 << unix.CAP_NET_RAW
	if err := unix.Capset(&head, &caps[0]); err != nil {
		return err
	}
	err := f()
	if back := unix.Capset(&head, &all[0]); back != nil {
		panic(back) // the thread may be another goroutine's next
	}
	return err
}

// Without the right to receive errors, the relay says so, and follows the exceptions that the kernel shows.
func TestPathMTUWithoutRights(t *testing.T) {
	for _, c := range pathCases() {
		t.Run(c.family, func(t *testing.T) {
			b := network(t)
			var log bytes.Buffer
			var r *Relay
			if err := b.host.Do(func() error {
				return withoutRaw(func() (err error) {
					r, err = Load(flowDesc(), build(t), Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
					return err
				})
			}); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := r.Close(); err != nil {
					t.Error(err)
				}
			})
			if text := log.String(); strings.Count(text, "level=WARN") != 1 || !strings.Contains(text, "CAP_NET_RAW") {
				t.Errorf("it says %q", text)
			}
			conn := b.udp(t, c.listen)
			c.open(t, r)
			b.report(t, c.error)
			// A datagram of the server's own makes the kernel look at the route: then the exception is in dumps.
			if _, err := conn.WriteToUDPAddrPort([]byte{0}, c.error.to); err != nil {
				t.Fatal(err)
			}
			c.is(t, "an exception", c.mtu)
			if got := r.PathMTUs(); got != (PathMTUs{Followed: true}) {
				t.Errorf("%+v", got)
			}
			b.seen(t, r)
			b.ip(t, c.flush...)
			c.is(t, "without the exception", 1500)
		})
	}
}

// Errors that quote something else than what a session sends change nothing.
func TestPathMTUForged(t *testing.T) {
	for _, c := range pathCases() {
		t.Run(c.family, func(t *testing.T) {
			b := network(t)
			r := b.load(t, Options{})
			// Sessions that are over count as little as those that never were.
			over, err := r.Open("flow", map[string][]any{"IPv4": flow(2), "IPv6": flow6(2)}[c.family]...)
			if err != nil {
				t.Fatal(err)
			}
			c.open(t, r)
			if err := over.Close(); err != nil {
				t.Fatal(err)
			}
			own, peer := c.error.from, c.error.to
			port := func(a netip.AddrPort, n uint16) netip.AddrPort { return netip.AddrPortFrom(a.Addr(), n) }
			v4 := c.family == "IPv4"
			at, protocol := 8, 8+6 // the quoted packet
			if v4 {
				protocol = at + 9
			}
			counted := []tooBig{
				{from: port(own, 50002), to: peer},
				{from: own, to: port(peer, 7002)},
				{from: port(own, 0), to: port(peer, 0)},
				{from: port(own, 50002), to: port(peer, 7002)}, // the session that is over
				{from: own, to: netip.AddrPortFrom(c.elsewhere, peer.Port())},
				{from: port(own, peer.Port()), to: port(peer, own.Port())},
				{from: own, to: peer, change: func(b []byte) { b[protocol] = unix.IPPROTO_ICMP }}, // no ports
				{from: own, to: peer, change: func(b []byte) { b[at] = 0x55 }},
			}
			dropped := []tooBig{{from: own, to: peer, change: func(b []byte) { b[0] = 1 }}} // another type
			if v4 {
				counted = append(counted,
					tooBig{from: own, to: peer, change: func(b []byte) { b[2] = 1 }},      // the checksum
					tooBig{from: own, to: peer, change: func(b []byte) { b[at] = 0x43 }},  // the quoted header's length
					tooBig{from: own, to: peer, change: func(b []byte) { b[at+7] = 0x9 }}, // a later fragment
				)
				dropped = append(dropped, tooBig{from: own, to: peer, change: func(b []byte) { b[1] = 3 }})
			} else {
				dropped = append(dropped, tooBig{from: own, to: peer, change: func(b []byte) { b[2] = 1 }})
				counted = append(counted, tooBig{from: own, to: peer, mtu: 1279})
				counted = append(counted, tooBig{from: own, to: peer, mtu: 1 << 20})
			}
			for i := range counted {
				if counted[i].mtu == 0 {
					counted[i].mtu = c.mtu
				}
			}
			for i := range dropped {
				dropped[i].mtu = c.mtu
			}
			b.report(t, append(dropped, counted...)...)
			all := uint64(len(counted))
			until(t, 3*time.Second, "all are looked at", func() bool { return r.PathMTUs().Ignored == all })
			// These are about what is sent, and yet no news.
			b.report(t, tooBig{from: own, to: peer, mtu: 1500}, tooBig{from: own, to: peer, mtu: 9000})
			until(t, 3*time.Second, "all are looked at", func() bool { return r.PathMTUs().Taken == 2 })
			r.RefreshRoutes(bg)
			if got := hopIn(t, c.session, 0).MTU; got != 1500 {
				t.Errorf("the MTU became %d", got)
			}
			if got := r.PathMTUs(); got.Kept != 0 || got.Ignored != all {
				t.Errorf("%+v, want %d ignored", got, all)
			}
			// The right one counts, an MTU is never raised, and never lower than the kernel takes.
			b.report(t, c.error)
			c.is(t, "the right one", c.mtu)
			b.report(t, tooBig{from: own, to: peer, mtu: 1400})
			until(t, 3*time.Second, "it is looked at", func() bool { return r.PathMTUs().Taken == 4 })
			r.RefreshRoutes(bg)
			c.is(t, "a larger one", c.mtu)
			if v4 {
				b.report(t, tooBig{from: own, to: peer, mtu: 68})
				c.is(t, "a tiny one", 552)
			}
		})
	}
}

// The copies of a receiver follow as well.
func TestPathMTUOfReceivers(t *testing.T) {
	b := network(t)
	var r *Relay
	if err := b.host.Do(func() (err error) {
		r, err = Load(groupsDesc(), buildFile(t, "fan"), quiet(Options{}))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	g := openGroup(t, r, 7)
	anna, bert := add(t, g, 1, 1), add(t, g, 2, 2)
	v := subscriber(1, 1)
	about := tooBig{from: v[0].(netip.AddrPort), to: v[1].(netip.AddrPort), mtu: 1000}
	is := func(what string, mtu int) {
		t.Helper()
		until(t, soon, what, func() bool { return anna.Hops()[0].MTU == mtu })
		if got := bert.Hops()[0].MTU; got != 1500 {
			t.Errorf("%s: the other's MTU became %d", what, got)
		}
		r.lists.mu.Lock()
		at := anna.at
		r.lists.mu.Unlock()
		row, err := g.kind.rows.LookupBytes(at)
		if err != nil || getHop(row[36:]).MTU != mtu {
			t.Errorf("%s: the kernel has %+v, %v", what, getHop(row[36:]), err)
		}
	}
	until(t, 3*time.Second, "the next hop is known", func() bool { return anna.Hops()[0].State == HopDirect })
	b.report(t, tooBig{from: about.from, to: netip.AddrPortFrom(about.to.Addr(), 1), mtu: 1000})
	until(t, 3*time.Second, "it is looked at", func() bool { return r.PathMTUs().Ignored == 1 })
	is("a forged error", 1500)
	b.report(t, about)
	is("an error", 1000)
	if err := anna.Set(bg, subscriber(1, 3)...); err != nil {
		t.Fatal(err)
	}
	is("after a change", 1000)
}

// Rows that leave open where their packets come from take errors about packets of this host alone, and next hops none.
func TestPathMTUWithoutSource(t *testing.T) {
	b := network(t)
	r := b.load(t, Options{})
	to := netip.MustParseAddrPort("203.0.113.9:7000")
	hop := abi.Member{Name: "hop_to", Kind: abi.KindHop, Size: 20, Off: 36, Hidden: true, To: "to"}
	row := follow(t, r, hop, netip.AddrPort{}, to)
	gateway := netip.MustParseAddr("192.0.2.254")
	if err := r.Table("routes").Put([]any{netip.MustParsePrefix("10.0.0.0/8")}, []any{gateway}); err != nil {
		t.Fatal(err)
	}
	mtu := func(key hopKey) int {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.hops.byKey[key].now.MTU
	}
	own := netip.MustParseAddrPort("192.0.2.1:5000")
	other := netip.MustParseAddrPort("198.51.100.7:5000")
	b.report(t, tooBig{from: other, to: to, host: own.Addr(), mtu: 1000}, // of another host
		tooBig{from: own, to: netip.AddrPortFrom(to.Addr(), 7001), mtu: 1000},
		tooBig{from: own, to: netip.AddrPortFrom(gateway, 7000), mtu: 1000})
	until(t, 3*time.Second, "all are looked at", func() bool { return r.PathMTUs().Ignored == 3 })
	r.RefreshRoutes(bg)
	if far, near := mtu(row.hops[0].hop.key), mtu(hopKey{To: gateway, Router: true}); far != 1500 || near != 1500 {
		t.Errorf("MTUs of %d and %d", far, near)
	}
	b.report(t, tooBig{from: own, to: to, mtu: 1000})
	until(t, soon, "the MTU", func() bool { return mtu(row.hops[0].hop.key) == 1000 })
}

// follow makes the relay follow a hop between two endpoints, as a row with that member would. The kernel has no such
// row.
func follow(t testing.TB, r *Relay, hop abi.Member, from, to netip.AddrPort) *tableRow {
	t.Helper()
	members := []abi.Member{
		{Name: "from", Kind: abi.KindEndpoint, Size: 18}, {Name: "to", Kind: abi.KindEndpoint, Size: 18, Off: 18}, hop,
	}
	table := &AnyTable{
		relay: r, desc: &abi.Table{Name: "hops", Value: members, ValueSize: 56}, m: r.Table("by_client").m,
	}
	row := &tableRow{table: table, key: make([]byte, 40), value: make([]byte, 56)}
	for off, e := range map[int]netip.AddrPort{0: from, 18: to} {
		if e.IsValid() {
			addr := e.Addr().As16()
			copy(row.value[off:], addr[:])
			abi.Order.PutUint16(row.value[off+16:], e.Port())
		}
	}
	if err := row.findHops(); err != nil {
		t.Fatal(err)
	}
	r.hops.prepare([]*tableRow{row})
	r.mu.Lock()
	defer r.mu.Unlock()
	r.hops.use(row)
	return row
}

// followMany makes the relay follow n hops, as sessions with n peers do.
func followMany(t testing.TB, r *Relay, n int) (keys []hopKey) {
	t.Helper()
	hop := abi.Member{Name: "hop_to", Kind: abi.KindHop, Size: 20, Off: 36, Hidden: true, To: "to", From: "from"}
	for i := range n {
		to := netip.AddrFrom4([4]byte{203, 0, byte(113 + i>>8), byte(i)})
		from := netip.AddrPortFrom(netip.MustParseAddr("192.0.2.1"), uint16(10000+i))
		keys = append(keys, follow(t, r, hop, from, netip.AddrPortFrom(to, 7000)).hops[0].hop.key)
	}
	return keys
}

// However many sessions there are, following their paths takes one request a family and second; without any, none.
func TestPathMTURequests(t *testing.T) {
	b := network(t)
	b.ip(t, "route", "add", "203.0.0.0/16", "via", "192.0.2.254", "dev", "in0")
	r := b.load(t, Options{})
	paths, resolver := r.hops.paths, r.hops.routes
	until(t, 5*time.Second, "looks", func() bool { return paths.Looks.Load() >= 2 })
	if n := paths.Dumps.Load(); n != 0 {
		t.Errorf("%d requests without sessions", n)
	}
	const sessions = 10000
	keys := followMany(t, r, sessions)
	until(t, 30*time.Second, "the network is at rest", func() bool {
		asked := resolver.Requests.Load()
		b.seen(t, r)
		return resolver.AtRest() && resolver.Requests.Load() == asked
	})
	began, dumps, asked := time.Now(), paths.Dumps.Load(), resolver.Requests.Load()
	until(t, 10*time.Second, "eight requests", func() bool { return paths.Dumps.Load() >= dumps+8 })
	if took := time.Since(began); took < 2*time.Second { // a look may be late, and the next one on time
		t.Errorf("eight requests within %v, two a second are enough", took)
	}
	if n := resolver.Requests.Load() - asked; n != 0 {
		t.Errorf("%d requests for routes of %d sessions, none is needed", n, sessions)
	}
	// An error costs a request for the path that it is about.
	asked = resolver.Requests.Load()
	from, to := netip.MustParseAddrPort("192.0.2.1:17777"), netip.AddrPortFrom(keys[7777].To, 7000)
	b.report(t, tooBig{from: from, to: to, mtu: 1000})
	mtu := func(key hopKey) int {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.hops.byKey[key].now.MTU
	}
	until(t, soon, "the MTU", func() bool { return mtu(keys[7777]) == 1000 })
	if n := resolver.Requests.Load() - asked; n != 1 {
		t.Errorf("%d requests for the route of one path", n)
	}
	for i, key := range keys {
		if i != 7777 && mtu(key) != 1500 {
			t.Fatalf("path %d has an MTU of %d", i, mtu(key))
		}
	}
}

// A flood of errors with guessed ports costs little, and what is true among them counts.
func TestPathMTUFlood(t *testing.T) {
	b := network(t)
	b.ip(t, "route", "add", "203.0.0.0/16", "via", "192.0.2.254", "dev", "in0")
	r := b.load(t, Options{})
	keys := followMany(t, r, 1000)
	from, to := netip.MustParseAddrPort("192.0.2.1:9999"), netip.AddrPortFrom(keys[500].To, 7000)
	about := tooBig{from: from, to: to, mtu: 1000}
	stop := make(chan struct{})
	var flood sync.WaitGroup
	flood.Go(func() {
		for i := range 60000 {
			select {
			case <-stop:
				return
			default:
				e := about
				e.from = netip.AddrPortFrom(about.from.Addr(), uint16(20000+i%40000))
				b.report(t, e)
			}
		}
	})
	until(t, 5*time.Second, "a flood", func() bool { return r.PathMTUs().Ignored > 2000 })
	if got := r.PathMTUs(); got.Taken != 0 || got.Kept != 0 {
		t.Errorf("%+v", got)
	}
	close(stop)
	flood.Wait()
	about.from = netip.AddrPortFrom(about.from.Addr(), 10500)
	until(t, soon, "the true one", func() bool {
		b.report(t, about) // as a router does for each packet that is too big: the flood may have filled the queue
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.hops.byKey[keys[500]].now.MTU == 1000
	})
}

// If exceptions are too many to be dumped, all routes are asked for, now and then; errors count as before.
func TestPathMTUTooMany(t *testing.T) {
	b := network(t)
	var log bytes.Buffer
	r := b.load(t, Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	r.hops.paths.ListAtMost(-1)
	c := pathCases()[0]
	b.udp(t, c.listen)
	asked := r.hops.routes.Requests.Load()
	c.open(t, r) // which asks once
	until(t, 3*time.Second, "all routes are asked for", func() bool { return r.hops.routes.Requests.Load() >= asked+2 })
	b.report(t, c.error)
	c.is(t, "an error", c.mtu)
	if got := r.PathMTUs(); got.Taken != 1 {
		t.Errorf("%+v", got)
	}
	looks := r.hops.paths.Looks.Load()
	until(t, 3*time.Second, "another look", func() bool { return r.hops.paths.Looks.Load() >= looks+2 })
	if n := r.hops.paths.Dumps.Load(); n != 2 {
		t.Errorf("%d dumps, want one of each family and no more for a while", n)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(log.String(), "too many exceptions"); n != 1 {
		t.Errorf("it says so %d times:\n%s", n, &log)
	}
	// A dump that is given up leaves nothing behind that the next one would read.
	x := routes.NewExceptions(b.host.Do)
	defer x.Close()
	for i, limit := range []int{pathmtu.DumpLimit, -1, pathmtu.DumpLimit, pathmtu.DumpLimit} {
		var got []netip.Addr
		err := x.Dump(unix.AF_INET, limit, func(e routes.Exception, mtu uint32) {
			if mtu == uint32(c.mtu) {
				got = append(got, e.Dst())
			}
		})
		if limit < 0 {
			if !errors.Is(err, routes.ErrTooMany) {
				t.Errorf("dump %d: %v", i, err)
			}
		} else if err != nil || !slices.Contains(got, c.error.to.Addr()) {
			t.Errorf("dump %d: %v, %v", i, got, err)
		}
	}
}

// The ports of what a row sends, as its members say them.
func TestPathMTUOfRows(t *testing.T) {
	ep := abi.Member{Kind: abi.KindEndpoint, Size: 18}
	addr := abi.Member{Kind: abi.KindAddr, Size: 16}
	from := netip.MustParseAddrPort("192.0.2.1:5000")
	to := netip.MustParseAddrPort("203.0.113.9:7000")
	ports := func(from, to int32) []icmp.Ports { return []icmp.Ports{{From: from, To: to}} }
	for _, tt := range []struct {
		name     string
		from, to *abi.Member
		want     []icmp.Ports
	}{
		{"endpoints", &ep, &ep, ports(5000, 7000)},
		{"addresses, as of a tunnel", &addr, &addr, ports(icmp.AnyPort, icmp.AnyPort)},
		{"from an address to an endpoint", &addr, &ep, ports(icmp.AnyPort, 7000)},
		{"from an endpoint to an address", &ep, &addr, ports(5000, icmp.AnyPort)},
		{"to an endpoint", nil, &ep, ports(icmp.AnyPort, 7000)},
		{"to an address", nil, &addr, ports(icmp.AnyPort, icmp.AnyPort)},
		{"a next hop", nil, nil, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			value := make([]byte, 80)
			a, b := from.Addr().As16(), to.Addr().As16()
			copy(value, a[:])
			copy(value[18:], b[:])
			abi.Order.PutUint16(value[16:], from.Port())
			abi.Order.PutUint16(value[34:], to.Port())
			var members []abi.Member
			next := abi.Member{Kind: abi.KindHop, Size: 20, Off: 36, Hidden: true}
			if tt.from != nil {
				m := *tt.from
				m.Name, next.From = "from", "from"
				members = append(members, m)
			}
			if tt.to != nil {
				m := *tt.to
				m.Off = 18
				m.Name, next.To = "to", "to"
				members = append(members, m, next)
			} else {
				members = append(members, abi.Member{Kind: abi.KindNextHop, Size: 36, Off: 36})
			}
			row := &tableRow{table: &AnyTable{desc: &abi.Table{Value: members}}, value: value}
			e := &hop{rows: map[*tableRow]struct{}{row: {}}}
			copy(value[36+abi.NextHopAddr:], b[:])
			if err := row.findHops(); err != nil || len(row.hops) != 1 {
				t.Fatal(row.hops, err)
			}
			row.hops[0].hop = e
			if got := slices.Collect(e.Ports()); !slices.Equal(got, tt.want) {
				t.Errorf("ports %v, want %v", got, tt.want)
			}
		})
	}
}

// A dump of many exceptions, which is done once a second and family.
func BenchmarkExceptions(b *testing.B) {
	for _, count := range []int{1, 10, 1000} {
		b.Run(fmt.Sprintf("%d routes", count), func(b *testing.B) {
			n := network(b)
			// Routes that are alike share a next hop, and its exceptions.
			n.ip(b, "route", "add", "203.0.0.0/16", "via", "192.0.2.254", "dev", "in0", "metric", "7")
			r := n.load(b, Options{})
			n.udp(b, "0.0.0.0:5000")
			makeExceptions(b, n, r, 8000)
			var batch strings.Builder
			for i := range count - 1 {
				fmt.Fprintf(&batch, "route add 10.%d.%d.0/24 via 192.0.2.254 dev in0 metric 7\n", i>>8, i&255)
			}
			cmd := n.host.Command(b.Context(), "ip", "-batch", "-")
			cmd.Stdin = strings.NewReader(batch.String())
			if out, err := cmd.CombinedOutput(); err != nil {
				b.Fatalf("%v: %s", err, out)
			}
			x := routes.NewExceptions(r.inNamespace)
			defer x.Close()
			listed, given := 0, 0
			now := map[routes.Exception]uint32{}
			for b.Loop() {
				listed = 0
				clear(now)
				err := x.Dump(unix.AF_INET, pathmtu.DumpLimit, func(e routes.Exception, mtu uint32) {
					listed++
					now[e] = mtu
				})
				if errors.Is(err, routes.ErrTooMany) {
					given++
				} else if err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(len(now)), "exceptions")
			b.ReportMetric(float64(listed), "listed")
			b.ReportMetric(float64(given)/float64(b.N), "given-up/op")
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(listed), "ns/listed")
		})
	}
}

// makeExceptions makes the kernel note MTUs of paths to so many destinations.
func makeExceptions(b *testing.B, n *bench, r *Relay, count int) {
	b.Helper()
	for i := range count {
		to := netip.AddrFrom4([4]byte{203, 0, byte(i >> 8), byte(i)})
		from := netip.MustParseAddrPort("192.0.2.1:5000")
		n.report(b, tooBig{from: from, to: netip.AddrPortFrom(to, 7000), mtu: 1000})
		until(b, time.Second, "an exception", func() bool {
			hop, _ := r.hops.routes.Resolve(hopKey{To: to})
			return hop.MTU == 1000
		})
	}
}
