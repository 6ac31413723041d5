package outside

import (
	"encoding/binary"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fastrelay/fastrelay-gen/examples/quic/socket"
	"github.com/fastrelay/fastrelay-gen/examples/quicfork/quic-go"
)

// A Sealer sends packets on a protected connection, as the kernel does on others: the library learns of them
// afterwards. It costs a header and a seal, and no turn of the connection's run loop for each packet.
type Sealer struct {
	Socket  *socket.Socket
	Counter atomic.Uint64 // the next packet number, for the library, too (quic.Outside.ShareNumbers)

	mu     sync.Mutex   // a packet number belongs to the keys of its time
	keys   *quic.Sealer // nil: none may be sent
	id     quic.ConnectionID
	remote *net.UDPAddr
	packet []byte
}

// SetKeys takes the keys of a key phase (quic.Hooks.SendKeys). Packets that are sent from now on are protected by them.
func (s *Sealer) SetKeys(k *quic.Sealer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keys = k
}

// KeyPhase returns the key phase; false: no packet may be sent.
func (s *Sealer) KeyPhase() (phase uint64, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.keys == nil {
		return 0, false
	}
	return s.keys.Phase, true
}

// SetID takes the connection ID of packets.
func (s *Sealer) SetID(id quic.ConnectionID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.id = id
}

// SetRemote takes the peer's address.
func (s *Sealer) SetRemote(a netip.AddrPort) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.remote = net.UDPAddrFromAddrPort(a)
}

// Stop has it send no more.
func (s *Sealer) Stop() { s.SetKeys(nil) }

// Overhead is what a packet has at most beside a stream's data: its header with a number of 4 bytes; type, stream ID
// and offset of a frame that ends with the packet; the tag.
const Overhead = 1 + 20 + 4 + 1 + 8 + 8 + 16

// AtOnce is how many packets are sealed at once: the library's pacer lets so many go, too. More are the library's,
// which paces them.
const AtOnce = 10

// Send sends a packet with a frame, which is appended to its header. ok is false if there are no keys any more.
func (s *Sealer) Send(frame func(b []byte) []byte, ecn quic.ECN) (p quic.OutsidePacket, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.keys == nil || s.remote == nil {
		return p, false
	}
	number := s.Counter.Add(1) - 1
	b := append(append(s.packet[:0], 0x43), s.id.Bytes()...) // RFC 9000, section 17.3.1
	at := len(b)
	b = frame(binary.BigEndian.AppendUint32(b, uint32(number)))
	b = s.keys.Seal(b, at, number)
	s.packet = b
	p = quic.OutsidePacket{Number: number, Time: time.Now(), Size: len(b), KeyPhase: s.keys.Phase, ECN: ecn}
	v4 := s.remote.IP.To4() != nil
	_, _, _ = s.Socket.WriteMsgUDP(b, socket.Marked(ecn, v4), s.remote) // else it is lost as others are
	return p, true
}
