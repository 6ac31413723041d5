package reach

import (
	"math/rand/v2"
	"net/netip"
	"testing"
)

// in reports whether a set has a value.
func in(s set, n number) bool { return len(s.and(between(n, n))) == 1 }

// The sets of addresses are what the model takes for them, at their bounds and one beyond.
func TestAddresses(t *testing.T) {
	var all []netip.Addr
	for _, text := range []string{
		"0.0.0.0", "0.255.255.255", "10.0.0.1", "127.0.0.0", "127.255.255.255", "223.255.255.255", "224.0.0.0",
		"239.255.255.255", "240.0.0.0", "255.255.255.255", "::", "::1", "fe80::1", "ff00::", "2001:db8::1",
		"ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "::ffff:0:0", "::fffe:ffff:ffff", "0:0:0:0:0:1::",
	} {
		a := netip.MustParseAddr(text)
		all = append(all, a, a.Next(), a.Prev())
	}
	broadcast := netip.MustParseAddr("255.255.255.255")
	for _, a := range all {
		if !a.IsValid() { // beyond the last one
			continue
		}
		n := ofAddr(a.As16())
		u := netip.AddrFrom16(a.As16()).Unmap()
		group := u.IsMulticast() || u == broadcast
		host := !group && !u.IsLoopback() && !u.IsUnspecified() && !(u.Is4() && u.As4()[0] == 0)
		if in(multicast, n) != group || in(unicast, n) != host || in(v4, n) != u.Is4() {
			t.Errorf("%s: multicast %v, unicast %v, IPv4 %v", a, in(multicast, n), in(unicast, n), in(v4, n))
		}
	}
}

// Sets are what their operations say: on numbers about the bounds of 64 bits, which wrap around.
func TestSets(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	value := func() uint64 { return uint64(rng.IntN(24)) - 8 } // some below 0
	random := func() (s set) {
		for range 1 + rng.IntN(4) {
			lo, hi := value(), value()
			s = s.or(between(small(min(lo, hi)), small(max(lo, hi))))
		}
		return s
	}
	for range 20_000 {
		x, y, v, c := random(), random(), value(), value()
		n := small(v)
		for what, ok := range map[string]bool{
			"or":   in(x.or(y), n) == (in(x, n) || in(y, n)),
			"and":  in(x.and(y), n) == (in(x, n) && in(y, n)),
			"not":  in(x.not(), n) != in(x, n),
			"plus": in(x.plus(c), small(v+c)) == in(x, n),
		} {
			if !ok {
				t.Fatalf("%s: %v, %v, of %d and %d", what, x, y, v, c)
			}
		}
	}
}
