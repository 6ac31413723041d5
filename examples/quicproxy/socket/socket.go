// Package socket opens UDP sockets that never fragment: a packet over the MTU is lost, so that the path MTU
// discovery of QUIC (RFC 9000 §14) finds a size that fits, with the longest connection ID of the path.
package socket

import (
	"context"
	"net"
	"net/netip"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Listen opens a socket at an address.
func Listen(at netip.AddrPort) (*net.UDPConn, error) {
	conn, err := (&net.ListenConfig{Control: whole}).ListenPacket(context.Background(), "udp", at.String())
	if err != nil {
		return nil, err
	}
	return conn.(*net.UDPConn), nil
}

// Dial opens a socket that is connected to an address.
func Dial(to netip.AddrPort) (*net.UDPConn, error) {
	conn, err := (&net.Dialer{Control: whole}).Dial("udp", to.String())
	if err != nil {
		return nil, err
	}
	return conn.(*net.UDPConn), nil
}

func whole(network, _ string, c syscall.RawConn) error {
	level, option, value := unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO
	if strings.HasSuffix(network, "6") {
		level, option, value = unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_DO
	}
	var set error
	if err := c.Control(func(fd uintptr) { set = unix.SetsockoptInt(int(fd), level, option, value) }); err != nil {
		return err
	}
	return set
}
