package socket

import (
	"bytes"
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/ipv4"
	"golang.org/x/sys/unix"

	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go"
	"github.com/fastrelay/fastrelay-gen/runtime/segments"
)

// An outbox has datagrams that leave together when the connections that were given something to do at once have done
// it: between begin and end. They leave by sendmmsg, or by a sender in segments.
type outbox struct {
	conn   *ipv4.PacketConn // of either family
	sender *segments.Sender // nil: there is none
	sent   atomic.Int64     // what was added

	mu        sync.Mutex
	begun     int                        // calls of begin without end
	waiting   []ipv4.Message             // of capacity outboxSize, whose memory is kept
	latest    map[netip.AddrPort]*joined // for each peer
	joined    []joined                   // for each message that waits
	receivers *segments.Receivers
	packets   []segments.Packet // inSegments'
	// A device may take several in one call only if it computes checksums (else EIO, udp(7)): then all are sent one by
	// one, by the library as well, if it is told at once.
	single bool
	// What couldn't be sent: the next datagram for there returns the error, as the socket would have.
	failed map[netip.AddrPort]error
}

// A joined is a message of datagrams that were added one by one, all but the last one of the same size.
type joined struct {
	message *ipv4.Message
	size    int // of the first one; 0: no more is added
	count   int
}

const (
	outboxSize = 64
	mostJoined = 16       // datagrams in a message, whose memory is kept,
	largest    = 32 << 10 // and bytes: the kernel takes no more than 64 KiB
	fewest     = 32       // datagrams that are worth segments: with 8, sendmmsg costs a seventh less
)

func newOutbox(conn *ipv4.PacketConn, sender *segments.Sender) *outbox {
	o := &outbox{
		conn: conn, sender: sender, waiting: make([]ipv4.Message, outboxSize), failed: map[netip.AddrPort]error{},
		latest: map[netip.AddrPort]*joined{}, joined: make([]joined, 0, outboxSize),
	}
	o.single, _ = strconv.ParseBool(os.Getenv("QUIC_GO_DISABLE_GSO")) // as the library
	if sender != nil {
		o.receivers = segments.NewReceivers(sender)
	}
	for i := range o.waiting {
		o.waiting[i].Buffers = make([][]byte, 1)
	}
	o.waiting = o.waiting[:0]
	return o
}

// begin has datagrams wait for end. Several may have begun.
func (o *outbox) begin() {
	o.mu.Lock()
	o.begun++
	o.mu.Unlock()
}

// end sends what waits, whoever it was that began.
func (o *outbox) end() {
	o.mu.Lock()
	o.begun--
	o.flush()
	o.mu.Unlock()
}

// add takes a datagram, or several of one size (UDP_SEGMENT), with its control data, if datagrams wait; false: it has
// to be sent now, and what was there before it has left. The address stays as it is.
func (o *outbox) add(b, oob []byte, to *net.UDPAddr) (taken bool, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.sent.Add(1)
	at := peer(to)
	if len(o.failed) > 0 {
		if err := o.failed[at]; err != nil {
			delete(o.failed, at)
			return true, err
		}
	}
	if o.begun == 0 {
		return false, nil
	}
	if o.single && several(b, oob) {
		o.flush()
		return false, nil
	}
	if o.join(b, oob, at) {
		return true, nil
	}
	o.waiting = o.waiting[:len(o.waiting)+1]
	m := &o.waiting[len(o.waiting)-1]
	m.Buffers[0], m.OOB, m.Addr = append(m.Buffers[0][:0], b...), append(m.OOB[:0], oob...), to
	j := joined{message: m, count: 1}
	if !o.single && !several(b, oob) {
		j.size = len(b)
	}
	o.joined = append(o.joined, j)
	o.latest[at] = &o.joined[len(o.joined)-1]
	if len(o.waiting) == outboxSize {
		o.flush()
	}
	return true, nil
}

// join adds a datagram to the message that waits for its peer, if both can leave as one.
func (o *outbox) join(b, oob []byte, to netip.AddrPort) bool {
	j := o.latest[to]
	if j == nil || j.size == 0 || len(b) > j.size || j.count == mostJoined ||
		len(j.message.Buffers[0])+len(b) > largest || !bytes.Equal(oob, j.message.OOB) {
		return false
	}
	j.message.Buffers[0] = append(j.message.Buffers[0], b...)
	if j.count++; len(b) < j.size {
		j.close()
	}
	return true
}

// close has the message take no more datagrams.
func (j *joined) close() {
	if j.count > 1 && j.size > 0 {
		j.message.OOB = appendSize(j.message.OOB, j.size)
	}
	j.size = 0
}

// several reports whether a message is several datagrams.
func several(b, oob []byte) bool {
	size, _ := parseControl(oob)
	return size > 0 && len(b) > size
}

func peer(a *net.UDPAddr) netip.AddrPort {
	at := a.AddrPort()
	return netip.AddrPortFrom(at.Addr().Unmap(), at.Port())
}

// flush sends what waits. o.mu is held.
func (o *outbox) flush() {
	for i := range o.joined {
		o.joined[i].close()
	}
	o.joined = o.joined[:0]
	clear(o.latest)
	ms := o.waiting
	if o.sender != nil && len(ms) >= fewest {
		ms = o.inSegments(ms)
	}
	o.write(ms)
	o.waiting = o.waiting[:0]
}

// write sends messages, whatever happens to one of them. One of several datagrams isn't taken if the first is too large
// for the path (EINVAL), which the library tries: then all but that leave.
func (o *outbox) write(ms []ipv4.Message) {
	for len(ms) > 0 {
		n, err := o.conn.WriteBatch(ms, 0)
		if err != nil { // of the first one
			if n = 1; several(ms[0].Buffers[0], ms[0].OOB) {
				o.single = o.single || errors.Is(err, unix.EIO)
				o.write(divided(&ms[0]))
			} else {
				o.fail(peer(ms[0].Addr.(*net.UDPAddr)), err)
			}
		}
		ms = ms[n:]
	}
}

// divided returns the datagrams of a message.
func divided(m *ipv4.Message) (each []ipv4.Message) {
	size, ecn := parseControl(m.OOB)
	for b := range slices.Chunk(m.Buffers[0], size) {
		each = append(each, ipv4.Message{
			Buffers: [][]byte{b}, OOB: Marked(quic.ECN(ecn), m.Addr.(*net.UDPAddr).IP.To4() != nil), Addr: m.Addr,
		})
	}
	return each
}

// inSegments sends what it can, and returns the rest.
func (o *outbox) inSegments(ms []ipv4.Message) (rest []ipv4.Message) {
	o.packets = o.packets[:0]
	for i := range ms {
		r := o.receivers.Of(peer(ms[i].Addr.(*net.UDPAddr)))
		if r == nil {
			ms[len(rest)], ms[i] = ms[i], ms[len(rest)]
			rest = ms[:len(rest)+1]
			continue
		}
		b := ms[i].Buffers[0]
		size, ecn := parseControl(ms[i].OOB)
		if size == 0 {
			size = len(b)
		}
		for len(b) > 0 {
			n := min(size, len(b))
			o.packets = append(o.packets, segments.Packet{To: r, Payload: b[:n], ECN: ecn})
			b = b[n:]
		}
	}
	if o.sender.Send(o.packets) != nil {
		for i := range o.packets {
			if p := &o.packets[i]; p.Err != nil {
				o.fail(p.To.Remote(), p.Err)
			}
		}
	}
	clear(o.packets)
	return rest
}

// fail notes that a datagram wasn't sent. That it was too large is no error: the library tries how much the path takes.
func (o *outbox) fail(to netip.AddrPort, err error) {
	if !errors.Is(err, unix.EMSGSIZE) {
		o.failed[to] = err
	}
}

// sweep forgets peers to whom nothing was sent for a while.
func (o *outbox) sweep(now time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.receivers != nil {
		o.receivers.Sweep(now)
	}
}
