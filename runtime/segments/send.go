package segments

import (
	"encoding/binary"
	"fmt"
	"math"
	"net"
	"net/netip"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	maxMTU    = math.MaxUint16
	numbered  = 4               // bytes in front of each segment
	maxBytes  = maxMTU - 20 - 8 // of one datagram
	maxPieces = 64              // UDP_MAX_SEGMENTS before Linux 6.9
	ecnMask   = 3
)

// Packet is what one receiver gets.
type Packet struct {
	To      *Receiver
	Payload []byte // of the UDP datagram; it isn't kept or changed
	ECN     uint8  // of the IP header (RFC 3168 §5)
	Err     error  // is set by Send
}

// TooBigError says that a packet is larger than the MTU of the path to its receiver. It is an EMSGSIZE.
type TooBigError struct {
	To      netip.AddrPort
	Payload int // bytes that were to be sent
	Room    int // bytes that a datagram can have
}

func (e *TooBigError) Error() string {
	return fmt.Sprintf("segments: %d bytes to %s: the path's MTU has room for %d", e.Payload, e.To, e.Room)
}

// Unwrap returns unix.EMSGSIZE, which a socket would have returned.
func (e *TooBigError) Unwrap() error { return unix.EMSGSIZE }

// Send sends packets, those of one size and ECN by few system calls, and returns when they have left or wait in a
// device's queue. Of each packet that can't be sent Err says why: a [*TooBigError], or what the server's socket has
// returned. Send returns the first of these; net.ErrClosed if the sender or a receiver's sender is closed. Packets to
// one receiver leave in the order that they have here.
func (s *Sender) Send(packets []Packet) error {
	s.life.RLock()
	defer s.life.RUnlock()
	if s.closed {
		for i := range packets {
			packets[i].Err = net.ErrClosed
		}
		return net.ErrClosed
	}
	b := s.batches.Get().(*batch)
	defer s.batches.Put(b)
	b.packets = packets
	b.send()
	b.packets = nil
	for i := range packets {
		if packets[i].Err != nil {
			return packets[i].Err
		}
	}
	return nil
}

// kind is what the segments of one datagram have in common.
type kind struct {
	size int // of the payload
	ecn  uint8
}

// group are packets of one kind, by their index.
type group struct {
	kind
	packets []int
}

// batch is what one call of Send needs, kept for the next one.
type batch struct {
	sender  *Sender
	packets []Packet
	groups  []group
	used    int // so many of groups are in use
	singles []int
	// placed is which group has a receiver's packets, while there are several groups.
	placed map[*Receiver]int

	numbers [maxPieces * numbered]byte
	buffers [][]byte
	letters letters
}

func (b *batch) send() {
	for i := range b.packets {
		p := &b.packets[i]
		p.Err = nil
		if p.To == nil || p.ECN > ecnMask {
			b.fail(p, fmt.Errorf("segments: packet %d has no receiver, or an ECN of %d", i, p.ECN))
			continue
		}
		if p.To.sender != b.sender {
			b.fail(p, fmt.Errorf("segments: the receiver %s is another sender's", p.To.remote))
			continue
		}
		if p.To.closed.Load() {
			b.fail(p, net.ErrClosed)
			continue
		}
		path := p.To.look()
		if !path.segments {
			b.singles = append(b.singles, i)
			continue
		}
		if room := path.mtu - headers(p.To.remote); len(p.Payload) > room {
			p.Err = &TooBigError{p.To.remote, len(p.Payload), room}
			b.sender.counts.tooBig.Add(1)
			continue
		}
		g := b.place(p)
		g.packets = append(g.packets, i)
	}
	b.flush()
}

// headers returns the bytes of the IP and UDP headers of a packet.
func headers(to netip.AddrPort) int {
	if to.Addr().Is4() {
		return 20 + 8
	}
	return 40 + 8
}

// place returns the group that a packet belongs to. Groups leave one after the other: so if the receiver has a packet
// in another one, that leaves first.
func (b *batch) place(p *Packet) *group {
	k := kind{len(p.Payload), p.ECN & ecnMask}
	at := b.groupOf(k)
	if b.used < 2 {
		return &b.groups[at]
	}
	if len(b.placed) == 0 {
		if b.placed == nil {
			b.placed = map[*Receiver]int{}
		}
		for _, i := range b.groups[0].packets {
			b.placed[b.packets[i].To] = 0
		}
	}
	if in, ok := b.placed[p.To]; ok && in != at {
		b.flush()
		at = b.groupOf(k)
	} else {
		b.placed[p.To] = at
	}
	return &b.groups[at]
}

func (b *batch) groupOf(k kind) int {
	for i := range b.groups[:b.used] {
		if b.groups[i].kind == k {
			return i
		}
	}
	if b.used == len(b.groups) {
		b.groups = append(b.groups, group{})
	}
	b.groups[b.used].kind = k
	b.used++
	return b.used - 1
}

// flush sends all groups, and then what is sent one by one.
func (b *batch) flush() {
	for i := range b.groups[:b.used] {
		g := &b.groups[i]
		most := min(maxPieces, maxBytes/(numbered+g.size))
		for part := range slices.Chunk(g.packets, most) {
			if len(part) < 2 || !b.sendSegments(g.kind, part) {
				b.singles = append(b.singles, part...)
			}
		}
		g.packets = g.packets[:0]
	}
	b.used = 0
	clear(b.placed)
	b.sendSingles()
}

// sendSegments sends packets of one kind as one datagram, and reports whether the kernel took it.
func (b *batch) sendSegments(k kind, part []int) bool {
	b.buffers = b.buffers[:0]
	for n, i := range part {
		p := &b.packets[i]
		number := b.numbers[n*numbered:][:numbered]
		binary.BigEndian.PutUint32(number, p.To.number)
		b.buffers = append(b.buffers, number, p.Payload)
	}
	control := segmentControl(numbered+k.size, k.ecn)
	_, err := unix.SendmsgBuffers(b.sender.fd, b.buffers, control, nil, 0)
	for err == unix.EINTR {
		_, err = unix.SendmsgBuffers(b.sender.fd, b.buffers, control, nil, 0)
	}
	clear(b.buffers)
	c := &b.sender.counts
	if err != nil {
		c.refused.Add(uint64(len(part)))
		b.sender.refused(err)
		return false
	}
	b.sender.complained.Store(false)
	c.sends.Add(1)
	c.segments.Add(uint64(len(part)))
	return true
}

func (b *batch) sendSingles() {
	for _, i := range b.singles {
		p := &b.packets[i]
		b.letters.add(&p.To.single, p.Payload, p.ECN&ecnMask)
	}
	b.sender.single.send(&b.letters, func(n int, err error) {
		if err != nil {
			b.fail(&b.packets[b.singles[n]], err)
		} else {
			b.sender.counts.singles.Add(1)
		}
	})
	b.singles = b.singles[:0]
}

func (b *batch) fail(p *Packet, err error) {
	p.Err = err
	b.sender.counts.failed.Add(1)
}

// segmentControl is the control data of a datagram of segments.
func segmentControl(size int, ecn uint8) []byte {
	b := control(unix.SOL_UDP, unix.UDP_SEGMENT, binary.NativeEndian.AppendUint16(nil, uint16(size)))
	if ecn != 0 {
		b = append(b, control(unix.SOL_IP, unix.IP_TOS, binary.NativeEndian.AppendUint32(nil, uint32(ecn)))...)
	}
	return b
}

// control is one control message (cmsg(3)).
func control(level, kind int32, value []byte) []byte {
	b := make([]byte, unix.CmsgSpace(len(value)))
	h := (*unix.Cmsghdr)(unsafe.Pointer(&b[0]))
	h.Level, h.Type = level, kind
	h.SetLen(unix.CmsgLen(len(value)))
	copy(b[unix.CmsgLen(0):], value)
	return b
}
