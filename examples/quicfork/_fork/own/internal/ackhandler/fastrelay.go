package ackhandler

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/quic-go/quic-go/internal/monotime"
	"github.com/quic-go/quic-go/internal/protocol"
	"github.com/quic-go/quic-go/internal/wire"
)

// outsideNumbers is what a connection has to know about packet numbers when others send packets on it as well.
type outsideNumbers struct {
	long        bool           // packet numbers are encoded in 4 bytes
	counter     *atomic.Uint64 // the next packet number, if it is shared
	allocated   protocol.PacketNumber
	isAllocated bool
}

func (n *outsideNumbers) next() protocol.PacketNumber {
	return protocol.PacketNumber(n.counter.Add(1) - 1)
}

func (n *outsideNumbers) size(
	space protocol.PacketNumberSpace, size protocol.PacketNumberLen,
) protocol.PacketNumberLen {
	if n.long && space == protocol.PacketNumberSpaceAppData {
		return protocol.PacketNumberLen4
	}
	return size
}

// SetLongNumbers makes packet numbers of application data 4 bytes long.
func SetLongNumbers(sph SentPacketHandler) { sph.(*sentPacketHandler).outside.long = true }

// ShareNumbers makes counter the source of packet numbers. The handshake has to be confirmed, so that all packet
// numbers are those of 1-RTT packets. What follows is 4 bytes long: how many packets are on their way isn't known.
func ShareNumbers(sph SentPacketHandler, counter *atomic.Uint64) error {
	h := sph.(*sentPacketHandler)
	if h.outside.counter != nil { // a number must not be used twice
		return errors.New("the packet numbers are shared already")
	}
	counter.Store(uint64(h.pns.next))
	h.outside.counter, h.outside.long = counter, true
	return nil
}

// AllocatePacketNumber returns the number of the packet that is about to be written: the one that was peeked, or one
// from the shared counter. It is allocated as late as here because a number that is allocated has to be used before
// the keys change (RFC 9001, section 6.4), and because packets with higher numbers may be on their way already.
func (h *sentPacketHandler) AllocatePacketNumber(peeked protocol.PacketNumber) protocol.PacketNumber {
	n := &h.outside
	if n.counter == nil {
		return peeked
	}
	if h.pns.packetsUntilSkip == 0 { // against ACKs for packets that weren't received: RFC 9000, section 21.4
		h.hist.SkippedPacket(n.next())
		h.pns.generateNewSkip()
	} else {
		h.pns.packetsUntilSkip--
	}
	n.allocated, n.isAllocated = n.next(), true
	return n.allocated
}

// pop returns the number that was allocated, or else allocates one, which isn't used.
func (n *outsideNumbers) pop() (protocol.PacketNumber, bool) {
	if n.counter == nil {
		return 0, false
	}
	if n.isAllocated {
		n.isAllocated = false
		return n.allocated, true
	}
	return n.next(), true
}

// An OutsidePacket is a 1-RTT packet that others sent on this connection's path. It elicits an ACK.
type OutsidePacket struct {
	Number protocol.PacketNumber
	Time   monotime.Time
	Size   protocol.ByteCount
	ECN    protocol.ECN
	Frames []Frame
	// StreamFrames are as in packets that the library sends.
	StreamFrames []StreamFrame
}

// SentOutside registers a packet: it counts in bytes in flight, in congestion control and in loss detection as if the
// library had sent it.
func SentOutside(sph SentPacketHandler, o OutsidePacket) error {
	h := sph.(*sentPacketHandler)
	if h.outside.counter == nil || uint64(o.Number) >= h.outside.counter.Load() {
		return fmt.Errorf("outside packet %d: its number wasn't allocated from the shared counter", o.Number)
	}
	if i, ok := h.hist.getIndex(o.Number); ok && h.hist.packets[i] != nil {
		return fmt.Errorf("outside packet %d: another packet has this number", o.Number)
	}
	h.bytesSent += o.Size
	h.connStats.BytesSent.Add(uint64(o.Size))
	h.connStats.PacketsSent.Add(1)
	space := h.appDataPackets
	space.largestSent = max(space.largestSent, o.Number)
	space.lastAckElicitingPacketTime = max(space.lastAckElicitingPacketTime, o.Time)
	space.numOutstanding++
	if h.minPNToRelaxReordering == protocol.InvalidPacketNumber {
		h.minPNToRelaxReordering = o.Number
	}

	p := getPacket()
	p.SendTime = o.Time
	p.EncryptionLevel = protocol.Encryption1RTT
	p.Length = o.Size
	p.LargestAcked = protocol.InvalidPacketNumber
	p.Frames, p.StreamFrames = o.Frames, o.StreamFrames
	p.includedInBytesInFlight = true
	p.outside = true
	h.bytesInFlight += o.Size
	// time and numbers only go forward here: packets may be registered late
	h.congestion.OnPacketSent(space.lastAckElicitingPacketTime, h.bytesInFlight, space.largestSent, o.Size, true)
	if o.ECN == protocol.ECNCE { // a copy of a packet that was marked before counts as one that is marked on this path
		o.ECN = protocol.ECT0
	}
	if h.ecnTracker != nil {
		h.ecnTracker.SentPacket(o.Number, o.ECN)
	}
	p.ecn = o.ECN
	h.hist.insertOutside(o.Number, p)
	if h.qlogger != nil {
		h.qlogMetricsUpdated()
	}
	h.setLossDetectionTimer(o.Time)
	return nil
}

// insertOutside adds a packet at any place. As ever, packets holds a slot for each number from the first to the
// highest, and its first slot isn't empty.
func (h *sentPacketHistory) insertOutside(pn protocol.PacketNumber, p *packet) {
	switch {
	case pn > h.highestPacketNumber:
		h.SentPacket(pn, p)
		return
	case len(h.packets) == 0:
		h.packets = append(h.packets, make([]*packet, h.highestPacketNumber-pn+1)...)
		h.firstPacketNumber = pn
	case pn < h.firstPacketNumber:
		h.packets = append(make([]*packet, h.firstPacketNumber-pn), h.packets...)
		h.firstPacketNumber = pn
	}
	h.packets[pn-h.firstPacketNumber] = p
	h.numOutstanding++
}

// marking returns how a packet was marked. For packets that others sent, the range of numbers doesn't say it.
func (e *ecnTracker) marking(p packetWithPacketNumber) protocol.ECN {
	if p.packet != nil && p.outside {
		return p.ecn
	}
	return e.ecnMarking(p.PacketNumber)
}

// A PathState says what may be sent.
type PathState struct {
	CongestionWindow, BytesInFlight, Window protocol.ByteCount
	LargestAcked                            protocol.PacketNumber
	ECN                                     protocol.ECN
}

// PathStateOf returns what may be sent now.
func PathStateOf(sph SentPacketHandler) PathState {
	h := sph.(*sentPacketHandler)
	s := PathState{
		CongestionWindow: h.congestion.GetCongestionWindow(), BytesInFlight: h.bytesInFlight,
		LargestAcked: h.appDataPackets.largestAcked, ECN: protocol.ECNNon,
	}
	if h.hist.Len() < protocol.MaxOutstandingSentPackets {
		s.Window = max(0, s.CongestionWindow-s.BytesInFlight)
	}
	// while ECN is tested, only the library marks: the tracker counts on it that the packets tested have adjacent
	// numbers
	if t, ok := h.ecnTracker.(*ecnTracker); ok && t.state == ecnStateCapable {
		s.ECN = protocol.ECT0
	}
	return s
}

// ackFrequency is how 1-RTT packets are acknowledged: at first as by upstream, then as the peer asks.
type ackFrequency struct {
	hooks bool // the connection has hooks

	asked      bool
	sequence   uint64
	threshold  uint64 // with more packets an ACK is due
	delay      time.Duration
	reordering protocol.PacketNumber

	first monotime.Time // when the first packet that isn't acknowledged was received
}

// SetAckFrequency has a connection acknowledge as its peer will ask.
func SetAckFrequency(h *ReceivedPacketHandler) {
	h.appDataPackets.frequency = ackFrequency{hooks: true, delay: MaxAckDelay}
}

// FollowAckFrequency has it acknowledge as a frame asks, unless that is older than the last one.
func FollowAckFrequency(h *ReceivedPacketHandler, f *wire.AckFrequencyFrame) {
	p := &h.appDataPackets.frequency
	if p.asked && f.SequenceNumber <= p.sequence {
		return
	}
	p.asked, p.sequence, p.threshold = true, f.SequenceNumber, f.AckElicitingThreshold
	p.delay, p.reordering = f.RequestMaxAckDelay, f.ReorderingThreshold
	if t := &h.appDataPackets; !t.ackAlarm.IsZero() {
		t.ackAlarm = p.first.Add(p.delay)
	}
}

// QueueACK makes an ACK due, with the packet that is handled now.
func QueueACK(h *ReceivedPacketHandler) {
	h.appDataPackets.ackQueued, h.appDataPackets.ackAlarm = true, 0
}

// alarm returns when an ACK is due at the latest.
func (h *appDataReceivedPacketTracker) alarm(rcvTime monotime.Time) monotime.Time {
	f := &h.frequency
	if !f.hooks {
		return rcvTime.Add(MaxAckDelay)
	}
	if h.ackAlarm.IsZero() {
		f.first = rcvTime
	}
	return f.first.Add(f.delay)
}

// isDue reports whether a packet makes an ACK due.
func (h *appDataReceivedPacketTracker) isDue(pn protocol.PacketNumber, ecn protocol.ECN, wasMissing bool) bool {
	f := &h.frequency
	if !f.asked {
		return h.shouldQueueACK(pn, ecn, wasMissing)
	}
	return uint64(h.ackElicitingPacketsReceivedSinceLastAck) > f.threshold || ecn == protocol.ECNCE ||
		f.reordering > 0 && h.isReordered(pn, wasMissing)
}

// isReordered reports whether a packet number is so far from the largest one, or from one that is missing, that the
// peer wants to know: by the reordering threshold. What the last ACK has said isn't said again.
func (h *appDataReceivedPacketTracker) isReordered(pn protocol.PacketNumber, wasMissing bool) bool {
	far := h.frequency.reordering
	if h.lastAck == nil {
		return false
	}
	said := h.lastAck.LargestAcked() - far // the largest number that it reported as missing if it was
	if wasMissing {
		return pn <= said
	}
	if h.largestObserved < far {
		return false
	}
	missing := h.packetHistory.HighestMissingUpTo(h.largestObserved - far)
	return missing != protocol.InvalidPacketNumber && missing > said
}
