package outside

import (
	"time"

	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go"
	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go/quicvarint"
)

// An Acked is a packet with nothing but an ACK frame of one range (RFC 9000, section 19.3), as a program writes it into
// an event. Of the packet's number it has as many bytes as the packet.
type Acked struct {
	PN         uint32
	PNSize     uint8
	Size       uint32 // of the UDP payload
	Type       uint8
	Largest    uint64
	Delay      uint64
	First      uint64
	ECT0, ECT1 uint64
	CE         uint64
	Time       time.Time
}

// An ackReader makes of the kernel's events what the library takes instead of the packets.
type ackReader struct {
	largest uint64 // the largest number of those packets
	acked   uint64 // the largest number that was acknowledged
	gap     bool   // a number before one that was acknowledged may be lost
}

// read returns an ACK frame with the number of its packet. Of numbers, the lower bytes are in the packet (RFC 9000,
// section 17.1).
func (r *ackReader) read(e *Acked) quic.ACK {
	number := uint64(e.PN)
	if size := 8 * uint64(e.PNSize); size < 64 {
		number = nearest(r.largest+1, number, 1<<size)
	}
	r.largest = max(r.largest, number)
	r.gap = r.gap || e.Largest-min(e.Largest, e.First) > r.acked+1
	r.acked = max(r.acked, e.Largest)
	b := make([]byte, 0, 32)
	b = append(b, e.Type)
	b = quicvarint.Append(b, e.Largest)
	b = quicvarint.Append(b, e.Delay)
	b = quicvarint.Append(b, 0) // further ranges
	b = quicvarint.Append(b, e.First)
	if e.Type == 3 {
		b = quicvarint.Append(b, e.ECT0)
		b = quicvarint.Append(b, e.ECT1)
		b = quicvarint.Append(b, e.CE)
	}
	return quic.ACK{Number: number, Frame: b, Time: e.Time, Size: int(e.Size)}
}

// nearest returns the number nearest to want that equals low modulo a power of two.
func nearest(want, low, modulus uint64) uint64 {
	n := want&^(modulus-1) | low
	switch {
	case n+modulus/2 <= want:
		return n + modulus
	case n > want+modulus/2 && n >= modulus:
		return n - modulus
	}
	return n
}
