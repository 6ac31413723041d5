package server

import (
	"github.com/fastrelay/fastrelay-gen/examples/quic/outside"
	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go"
	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go/quicvarint"
)

// A frame's type says that it has an offset, and ends with the packet (RFC 9000, section 19.8).
const streamType = 0x08 | 0x04

func appendStream(b []byte, d *quic.StreamData) []byte {
	kind := byte(streamType)
	if d.Fin {
		kind |= 0x01
	}
	b = quicvarint.Append(append(b, kind), uint64(d.ID))
	return append(quicvarint.Append(b, d.Offset), d.Data...)
}

// seal sends what is to be sent if that is cheaper (see the package's comment), and returns the rest, for the library.
// room is the congestion window's.
func (u *subscriber) seal(give []quic.StreamData, room int) (rest []quic.StreamData) {
	most := u.packetSize - outside.Overhead
	if u.sealer == nil || most <= 0 {
		return give
	}
	packets, bytes := 0, 0
	for _, d := range give {
		packets += max(1, (len(d.Data)+most-1)/most)
		bytes += len(d.Data)
	}
	if packets > outside.AtOnce || packets > 1 && bytes/packets < most/2 {
		return give
	}
	for i := range give {
		for d := &give[i]; ; {
			part := *d
			if len(part.Data) > most {
				part.Data, part.Fin = part.Data[:most], false
			}
			if len(part.Data)+outside.Overhead > room {
				return give[i:]
			}
			p, ok := u.sealer.Send(func(b []byte) []byte { return appendStream(b, &part) }, u.ecn)
			if !ok {
				return give[i:]
			}
			to := d.Offset + uint64(len(part.Data))
			s := outside.Span{From: d.Offset, To: end(d.Offset, uint64(len(part.Data)), part.Fin)}
			p.User = copied{u.byID[d.ID], s, to}
			room -= p.Size
			u.Sent(p)
			u.stats.SealedPackets++
			if len(part.Data) == len(d.Data) {
				break
			}
			d.Data, d.Offset = d.Data[len(part.Data):], to
		}
	}
	u.feed.server.sealed()
	return nil
}
