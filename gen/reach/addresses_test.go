package reach

import (
	"net/netip"
	"testing"

	"github.com/fastrelay/fastrelay-gen/gen/ranges"
)

// in reports whether a set has a value.
func in(s ranges.Set, n ranges.Number) bool { return len(s.And(ranges.Between(n, n))) == 1 }

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
