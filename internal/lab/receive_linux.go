//go:build linux

package lab

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/runtime/tool/namespace"
)

// maxFlows is how many flows are counted by their addresses at each host; packets of all others are counted together.
const maxFlows = 8

// Arrival is what has arrived at a host, with one pair of addresses.
type Arrival struct {
	Host     string
	From, To string // "192.0.2.1:50000"; empty for all flows that are not counted by themselves
	Protocol string // "UDP", "TCP", "IP protocol 47", "EtherType 88b5"
	Packets  uint64
	Bytes    uint64 // whole frames
}

type flow struct{ from, to, protocol string }

// receiver counts what arrives at a host.
type receiver struct {
	host string
	fd   int
	stop int // an eventfd
	done sync.WaitGroup

	mu     sync.Mutex
	flows  []Arrival // in the order of their first packets
	known  map[flow]int
	others Arrival
}

func receive(host *host, index int) (*receiver, error) {
	r := &receiver{host: host.name, known: map[flow]int{}, fd: -1, stop: -1}
	var err error
	if r.fd, err = namespace.PacketSocket(host.ns, index, unix.ETH_P_ALL,
		namespace.Option(unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 4<<20), nonblocking); err == nil {
		r.stop, err = unix.Eventfd(0, unix.EFD_CLOEXEC)
	}
	if err != nil {
		return nil, errors.Join(err, r.close())
	}
	r.done.Add(1)
	go r.run()
	return r, nil
}

func nonblocking(fd int) error { return unix.SetNonblock(fd, true) }

func (r *receiver) run() {
	defer r.done.Done()
	buf := make([]byte, 64<<10)
	wait := []unix.PollFd{{Fd: int32(r.fd), Events: unix.POLLIN}, {Fd: int32(r.stop), Events: unix.POLLIN}}
	for {
		if _, err := unix.Poll(wait, -1); err != nil && !errors.Is(err, unix.EINTR) || wait[1].Revents != 0 {
			return
		}
		for r.next(buf) {
		}
	}
}

// next counts the next frame, and reports whether there is one. A frame that is no longer in the socket's queue has
// been counted when the lock is free.
func (r *receiver) next(buf []byte) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	n, from, err := unix.Recvfrom(r.fd, buf, 0)
	if err != nil {
		return false
	}
	if at, ok := from.(*unix.SockaddrLinklayer); ok && at.Pkttype != unix.PACKET_OUTGOING {
		r.count(buf[:n])
	}
	return true
}

// drain waits until all frames that have arrived are counted, for at most a second.
func (r *receiver) drain() {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(time.Second); time.Now().Before(deadline); <-tick.C {
		if waiting, err := unix.IoctlGetInt(r.fd, unix.TIOCINQ); err != nil || waiting == 0 {
			return
		}
	}
}

func (r *receiver) count(frame []byte) {
	f, ok := flowOf(frame)
	if !ok {
		return
	}
	into := &r.others
	i, known := r.known[f]
	if !known && len(r.flows) < maxFlows {
		i, known = len(r.flows), true
		r.known[f] = i
		r.flows = append(r.flows, Arrival{Host: r.host, From: f.from, To: f.to, Protocol: f.protocol})
	}
	if known {
		into = &r.flows[i]
	}
	into.Packets++
	into.Bytes += uint64(len(frame))
}

// flowOf reads the outermost addresses of a frame, with the ports of UDP and TCP. What hosts send for themselves
// (ARP, neighbour discovery, multicast listener reports) is no flow.
func flowOf(frame []byte) (f flow, ok bool) {
	h, ok := outermost(frame)
	switch {
	case !ok, h.etherType == unix.ETH_P_ARP, h.to.Is6() && h.next == 0 && h.to.IsMulticast():
		return f, false
	case !h.to.IsValid():
		return flow{protocol: fmt.Sprintf("EtherType %04x", h.etherType)}, true
	case h.to.Is6() && h.next == unix.IPPROTO_ICMPV6 && len(h.payload) > 0 && h.payload[0] >= 130:
		return f, false
	}
	f = flow{h.from.String(), h.to.String(), protocols[h.next]}
	if (h.next == unix.IPPROTO_TCP || h.next == unix.IPPROTO_UDP) && len(h.payload) >= 4 {
		f.from = netip.AddrPortFrom(h.from, binary.BigEndian.Uint16(h.payload)).String()
		f.to = netip.AddrPortFrom(h.to, binary.BigEndian.Uint16(h.payload[2:])).String()
	}
	if f.protocol == "" {
		f.protocol = fmt.Sprintf("IP protocol %d", h.next)
	}
	return f, true
}

var protocols = map[byte]string{
	unix.IPPROTO_ICMP: "ICMP", unix.IPPROTO_TCP: "TCP", unix.IPPROTO_UDP: "UDP", unix.IPPROTO_ICMPV6: "ICMPv6",
}

// headers are the outermost headers of a frame.
type headers struct {
	etherType uint16
	from, to  netip.Addr // invalid if it isn't IP
	next      byte       // the protocol in the IP packet
	payload   []byte
}

func outermost(frame []byte) (h headers, ok bool) {
	if len(frame) < 14 {
		return h, false
	}
	proto, data := binary.BigEndian.Uint16(frame[12:]), frame[14:]
	for (proto == unix.ETH_P_8021Q || proto == unix.ETH_P_8021AD) && len(data) >= 4 {
		proto, data = binary.BigEndian.Uint16(data[2:]), data[4:]
	}
	h.etherType = proto
	switch {
	case proto == unix.ETH_P_IP && len(data) >= 20 && len(data) >= int(data[0]&15)*4:
		h.from, h.to = netip.AddrFrom4([4]byte(data[12:])), netip.AddrFrom4([4]byte(data[16:]))
		h.next, h.payload = data[9], data[int(data[0]&15)*4:]
	case proto == unix.ETH_P_IPV6 && len(data) >= 40:
		h.from, h.to = netip.AddrFrom16([16]byte(data[8:])), netip.AddrFrom16([16]byte(data[24:]))
		h.next, h.payload = data[6], data[40:]
	}
	return h, true
}

// Source returns the source in a frame's outermost IP header; the zero Addr if it has none.
func Source(frame []byte) netip.Addr {
	h, _ := outermost(frame)
	return h.from
}

// Arrived returns what has arrived at the hosts.
func (n *Network) Arrived() []Arrival {
	var all []Arrival
	for _, r := range n.receivers {
		r.mu.Lock()
		all = append(all, r.flows...)
		if r.others.Packets > 0 {
			r.others.Host = r.host
			all = append(all, r.others)
		}
		r.mu.Unlock()
	}
	return all
}

// String is the flow in words.
func (a Arrival) String() string {
	switch {
	case a.Protocol == "":
		return "other flows"
	case a.From == "":
		return a.Protocol
	}
	return strings.Join([]string{a.Protocol, a.From, "->", a.To}, " ")
}

func (r *receiver) close() error {
	if r.stop >= 0 {
		if _, err := unix.Write(r.stop, binary.NativeEndian.AppendUint64(nil, 1)); err != nil {
			return err
		}
	}
	r.done.Wait()
	var errs []error
	for _, fd := range slices.DeleteFunc([]int{r.fd, r.stop}, func(fd int) bool { return fd < 0 }) {
		errs = append(errs, unix.Close(fd))
	}
	return errors.Join(errs...)
}
