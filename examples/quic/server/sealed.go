package server

import (
	"encoding/binary"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fastrelay/fastrelay-gen/examples/quic/outside"
	"github.com/fastrelay/fastrelay-gen/examples/quic/socket"
	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go"
	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go/quicvarint"
)

// A sealer sends packets with a STREAM frame each on a protected connection, as the kernel does on others: the library
// learns of them afterwards. It costs a header and a seal, and no turn of the connection's run loop for each packet.
type sealer struct {
	udp     *socket.Socket
	counter atomic.Uint64 // the next packet number, for the library, too

	mu     sync.Mutex   // a packet number belongs to the keys of its time
	keys   *quic.Sealer // nil: none may be sent
	id     quic.ConnectionID
	remote *net.UDPAddr
	packet []byte
}

// setKeys takes the keys of a key phase. Packets that are sent from now on are protected by them.
func (s *sealer) setKeys(k *quic.Sealer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keys = k
}

// setID takes the connection ID of packets.
func (s *sealer) setID(id quic.ConnectionID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.id = id
}

func (s *sealer) setRemote(a netip.AddrPort) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.remote = net.UDPAddrFromAddrPort(a)
}

// stop has it send no more.
func (s *sealer) stop() { s.setKeys(nil) }

// A frame's type says that it has an offset, and ends with the packet (RFC 9000, section 19.8).
const streamType = 0x08 | 0x04

// overhead is what a packet has at most beside a stream's data: type, stream ID, offset, a number of 4 bytes, the tag.
const overhead = 1 + 20 + 4 + 1 + 8 + 8 + 16

// send sends data of a stream, of which a packet has to have room for all. ok is false if there are no keys any more.
func (s *sealer) send(d *quic.StreamData, ecn quic.ECN) (p quic.OutsidePacket, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.keys == nil || s.remote == nil {
		return p, false
	}
	number := s.counter.Add(1) - 1
	b := append(append(s.packet[:0], 0x43), s.id.Bytes()...) // RFC 9000, section 17.3.1
	at := len(b)
	b = binary.BigEndian.AppendUint32(b, uint32(number))
	kind := byte(streamType)
	if d.Fin {
		kind |= 0x01
	}
	b = quicvarint.Append(append(b, kind), uint64(d.ID))
	b = append(quicvarint.Append(b, d.Offset), d.Data...)
	b = s.keys.Seal(b, at, number)
	s.packet = b
	p = quic.OutsidePacket{Number: number, Time: time.Now(), Size: len(b), KeyPhase: s.keys.Phase, ECN: ecn}
	v4 := s.remote.IP.To4() != nil
	_, _, _ = s.udp.WriteMsgUDP(b, socket.Marked(ecn, v4), s.remote) // else it is lost as others are
	return p, true
}

// atOnce is how many packets are sealed at once: the library's pacer lets so many go, too. More are the library's,
// which paces them.
const atOnce = 10

// seal sends what is to be sent if that is cheaper (see the package's comment), and returns the rest, for the library.
// room is the congestion window's.
func (u *subscriber) seal(give []quic.StreamData, room int) (rest []quic.StreamData) {
	most := u.packetSize - overhead
	if u.sealer == nil || most <= 0 {
		return give
	}
	packets, bytes := 0, 0
	for _, d := range give {
		packets += max(1, (len(d.Data)+most-1)/most)
		bytes += len(d.Data)
	}
	if packets > atOnce || packets > 1 && bytes/packets < most/2 {
		return give
	}
	for i := range give {
		for d := &give[i]; ; {
			part := *d
			if len(part.Data) > most {
				part.Data, part.Fin = part.Data[:most], false
			}
			if len(part.Data)+overhead > room {
				return give[i:]
			}
			p, ok := u.sealer.send(&part, u.ecn)
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
