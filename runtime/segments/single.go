package segments

import (
	"encoding/binary"
	"net"
	"net/netip"

	"golang.org/x/net/ipv4"
	"golang.org/x/sys/unix"
)

// single sends packets by the server's socket.
type single struct {
	conn *ipv4.PacketConn // for sendmmsg, of either family
	any  bool             // the socket has no address of its own
}

func newSingle(conn Socket) *single {
	at, ok := conn.LocalAddr().(*net.UDPAddr)
	return &single{ipv4.NewPacketConn(conn), ok && at.IP.IsUnspecified()}
}

// destination is a receiver as the socket has it.
type destination struct {
	addr    net.Addr
	control [ecnMask + 1][]byte // by ECN
}

func (s *single) destination(local, remote netip.AddrPort) destination {
	d := destination{addr: net.UDPAddrFromAddrPort(remote)}
	for ecn := range d.control {
		v4 := remote.Addr().Is4()
		switch {
		case !s.any || !local.Addr().IsValid() || local.Addr().IsUnspecified():
		case v4:
			d.control[ecn] = unix.PktInfo4(&unix.Inet4Pktinfo{Spec_dst: local.Addr().As4()})
		default:
			d.control[ecn] = unix.PktInfo6(&unix.Inet6Pktinfo{Addr: local.Addr().As16()})
		}
		if ecn == 0 {
			continue
		}
		value := binary.NativeEndian.AppendUint32(nil, uint32(ecn))
		if v4 {
			d.control[ecn] = append(d.control[ecn], control(unix.SOL_IP, unix.IP_TOS, value)...)
		} else {
			d.control[ecn] = append(d.control[ecn], control(unix.SOL_IPV6, unix.IPV6_TCLASS, value)...)
		}
	}
	return d
}

// letters are datagrams of one call of sendmmsg, whose memory is kept.
type letters []ipv4.Message

func (l *letters) add(to *destination, payload []byte, ecn uint8) {
	if n := len(*l); n < cap(*l) {
		*l = (*l)[:n+1]
	} else {
		*l = append(*l, ipv4.Message{Buffers: make([][]byte, 1)})
	}
	m := &(*l)[len(*l)-1]
	if m.Buffers == nil { // append has made room for it
		m.Buffers = make([][]byte, 1)
	}
	m.Buffers[0], m.Addr, m.OOB = payload, to.addr, to.control[ecn]
}

// send sends all letters, says of each whether it was sent, and forgets them.
func (s *single) send(l *letters, sent func(n int, err error)) {
	for at := 0; at < len(*l); {
		n, err := s.conn.WriteBatch((*l)[at:], 0)
		for range max(n, 0) {
			sent(at, nil)
			at++
		}
		if err != nil && n <= 0 { // of the first one
			sent(at, err)
			at++
		}
	}
	for i := range *l {
		(*l)[i].Buffers[0], (*l)[i].Addr, (*l)[i].OOB = nil, nil, nil
	}
	*l = (*l)[:0]
}
