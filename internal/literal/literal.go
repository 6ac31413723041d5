// Package literal parses values as people write them in specs, in tests of specs and on the command line: one place, so
// that what is an address in one of them is one in all.
package literal

import (
	"encoding/hex"
	"fmt"
	"net"
	"net/netip"
)

// Addr parses an IP address. A zone is the business of one host, and no packet has one.
func Addr(text string) (netip.Addr, error) {
	a, err := netip.ParseAddr(text)
	if err != nil || a.Zone() != "" {
		return netip.Addr{}, fmt.Errorf("%q is not an IP address such as 192.0.2.1", text)
	}
	return a, nil
}

// Endpoint parses an address and a port.
func Endpoint(text string) (netip.AddrPort, error) {
	ap, err := netip.ParseAddrPort(text)
	if err != nil || ap.Addr().Zone() != "" {
		return netip.AddrPort{}, fmt.Errorf("%q is not an endpoint such as 192.0.2.1:3478 or [2001:db8::1]:3478", text)
	}
	return ap, nil
}

// Prefix parses a prefix; bits after it are cleared.
func Prefix(text string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(text)
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("%q is not a prefix such as 192.0.2.0/24", text)
	}
	return p.Masked(), nil
}

// Mac parses a link-layer address of 6 bytes.
func Mac(text string) (net.HardwareAddr, error) {
	m, err := net.ParseMAC(text)
	if err != nil || len(m) != 6 {
		return nil, fmt.Errorf("%q is not a link-layer address such as 02:00:00:00:00:01", text)
	}
	return m, nil
}

// Bytes parses n bytes.
func Bytes(text string, n int) ([]byte, error) {
	b, err := hex.DecodeString(text)
	if err != nil || len(b) != n {
		return nil, fmt.Errorf("%q is not %d bytes in hexadecimal digits", text, n)
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
