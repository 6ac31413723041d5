// Package literal parses values as people write them in specs, in tests of specs, on the command line and in requests
// to a relay's control socket: one place, so that what is an address in one of them is one in all.
package literal

import (
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"github.com/fastrelay/fastrelay-gen/runtime/abi"
)

// Error says that a text isn't what it should be.
type Error struct {
	Text string
	Want string // with its article: "an IP address such as 192.0.2.1"
}

func (e *Error) Error() string { return fmt.Sprintf("%q is not %s", e.Text, e.Want) }

// Rate is the rate of a bucket in units a second, and its burst.
type Rate struct{ PerSecond, Burst uint64 }

// Value parses a value of a kind, as package runtime takes it: of a counter its first value, of a credit its limit, of
// a bucket its [Rate]. Of bytes it parses so many.
func Value(kind abi.Kind, bytes int, text string) (any, error) {
	switch kind {
	case abi.KindUint, abi.KindCounter, abi.KindCredit:
		return Uint(text)
	case abi.KindBool:
		return Bool(text)
	case abi.KindBytes:
		return Bytes(text, bytes)
	case abi.KindMAC:
		return Mac(text)
	case abi.KindAddr, abi.KindNextHop:
		return Addr(text)
	case abi.KindEndpoint:
		return Endpoint(text)
	case abi.KindPrefix:
		return Prefix(text)
	case abi.KindBucket:
		return ParseRate(text)
	}
	return nil, errors.New("can't be given a value")
}

// Uint parses an integer.
func Uint(text string) (uint64, error) {
	n, err := strconv.ParseUint(text, 0, 64)
	if err != nil {
		return 0, &Error{text, "an integer such as 3478 or 0x4001"}
	}
	return n, nil
}

// Bool parses true or false.
func Bool(text string) (bool, error) {
	b, err := strconv.ParseBool(text)
	if err != nil {
		return false, &Error{text, "true or false"}
	}
	return b, nil
}

// ParseRate parses a rate and a burst.
func ParseRate(text string) (r Rate, err error) {
	perSecond, burst, _ := strings.Cut(text, "/")
	var err1, err2 error
	r.PerSecond, err1 = Uint(perSecond)
	r.Burst, err2 = Uint(burst)
	if err1 != nil || err2 != nil {
		return Rate{}, &Error{text, "a rate in units a second and a burst, such as 125000/30000"}
	}
	return r, nil
}

// Addr parses an IP address. A zone is the business of one host, and no packet has one.
func Addr(text string) (netip.Addr, error) {
	a, err := netip.ParseAddr(text)
	if err != nil || a.Zone() != "" {
		return netip.Addr{}, &Error{text, "an IP address such as 192.0.2.1"}
	}
	return a, nil
}

// Endpoint parses an address and a port.
func Endpoint(text string) (netip.AddrPort, error) {
	ap, err := netip.ParseAddrPort(text)
	if err != nil || ap.Addr().Zone() != "" {
		return netip.AddrPort{}, &Error{text, "an endpoint such as 192.0.2.1:3478 or [2001:db8::1]:3478"}
	}
	return ap, nil
}

// Prefix parses a prefix; bits after it are cleared.
func Prefix(text string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(text)
	switch {
	case err != nil:
		return netip.Prefix{}, &Error{text, "a prefix such as 192.0.2.0/24"}
	case p.Addr().Is4In6() && p.Bits() < 96: // most likely the length is meant for the IPv4 address in it
		return netip.Prefix{}, &Error{text, "a prefix such as 192.0.2.0/24; one of IPv4-mapped addresses has a " +
			"length of 96 or more"}
	}
	return p.Masked(), nil
}

// Mac parses a link-layer address of 6 bytes.
func Mac(text string) (net.HardwareAddr, error) {
	m, err := net.ParseMAC(text)
	if err != nil || len(m) != 6 {
		return nil, &Error{text, "a link-layer address such as 02:00:00:00:00:01"}
	}
	return m, nil
}

// Bytes parses n bytes.
func Bytes(text string, n int) ([]byte, error) {
	b, err := hex.DecodeString(text)
	if err != nil || len(b) != n {
		return nil, &Error{text, fmt.Sprintf("%d bytes in hexadecimal digits", n)}
	}
	return b, nil
}

// UpTo parses n bytes at most.
func UpTo(text string, n int) ([]byte, error) {
	b, err := hex.DecodeString(text)
	if err != nil || len(b) > n {
		return nil, &Error{text, fmt.Sprintf("up to %d bytes in hexadecimal digits", n)}
	}
	return b, nil
}

// AnyBytes parses bytes whose number the caller checks.
func AnyBytes(text string) ([]byte, error) {
	b, err := hex.DecodeString(text)
	if err != nil {
		return nil, &Error{text, "bytes in hexadecimal digits"}
	}
	return b, nil
}

// Mapped is a prefix of 16-byte addresses: that of IPv4 is one of mapped addresses.
func Mapped(p netip.Prefix) netip.Prefix {
	p = p.Masked()
	if p.Addr().Is4() {
		return netip.PrefixFrom(netip.AddrFrom16(p.Addr().As16()), p.Bits()+96)
	}
	return p
}
