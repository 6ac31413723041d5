package quic

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/quic-go/quic-go/internal/ackhandler"
	"github.com/quic-go/quic-go/internal/handshake"
	"github.com/quic-go/quic-go/internal/monotime"
	"github.com/quic-go/quic-go/internal/protocol"
	"github.com/quic-go/quic-go/internal/qerr"
	"github.com/quic-go/quic-go/internal/wire"
)

// Outside is what acts on a connection from outside of the library. A nil *Outside is a connection without hooks:
// methods that upstream's files call do nothing then.
type Outside struct {
	conn  *Conn
	hooks *Hooks
	null  atomic.Bool
	turns turnState

	mutex  sync.Mutex // what others hand over to the run loop
	queued []func()
	share  []func() // when the handshake is confirmed
	lease  spans    // of stream numbers

	// The rest is the run loop's.
	path     PathState
	limits   Limits
	levels   int    // of the peer's connection IDs
	number   uint64 // of the packet whose frames are handled
	acks     []ACK  // that were received
	ours     map[uint64]protocol.ConnectionID
	peers    map[uint64]protocol.ConnectionID
	tokens   map[uint64]protocol.StatelessResetToken // of the peer's connection IDs, if they have levels
	streams  map[StreamID]*SendStream                // leased ones that the library sends on
	parked   []StreamID                              // of streams, those of which all is acknowledged; the oldest first
	incoming map[StreamID]*incoming
	requests ackRequests
}

// ask attaches the hooks that ctx carries, and puts what they ask for into our transport parameters.
func (c *Conn) ask(ctx context.Context, params *wire.TransportParameters) {
	hooks, _ := ctx.Value(hooksKey{}).(*Hooks)
	if hooks == nil {
		return
	}
	c.outside = &Outside{
		conn: c, hooks: hooks, path: PathState{LargestAcked: -1},
		ours: map[uint64]protocol.ConnectionID{}, peers: map[uint64]protocol.ConnectionID{},
		tokens:  map[uint64]protocol.StatelessResetToken{},
		streams: map[StreamID]*SendStream{}, incoming: map[StreamID]*incoming{},
	}
	params.FastRelay.NullProtection = hooks.NullProtection
	c.connIDGenerator.levels = min(max(0, hooks.Levels), protocol.MaxActiveConnectionIDs)
	params.FastRelay.ConnectionIDLevels = uint64(c.connIDGenerator.levels)
	c.streamsMap.incomingUniStreams.sparse = hooks.SparseMaxStreams
	c.offerACKFrequency(params)
	if hooks.Turns != nil {
		c.sendQueue = newDirectSender(c.conn)
	}
}

// start is called on the run loop before anything is sent.
func (o *Outside) start() {
	if o == nil {
		return
	}
	c := o.conn
	if o.hooks.Levels > 0 && c.srcConnIDLen < minLevelledLen {
		c.closeLocal(&qerr.TransportError{
			ErrorCode: qerr.InternalError,
			ErrorMessage: fmt.Sprintf("Levels: connection IDs have %d bytes, and need %d",
				c.srcConnIDLen, minLevelledLen),
		})
	}
	if o.hooks.LongNumbers {
		ackhandler.SetLongNumbers(c.sentPacketHandler)
	}
	c.framer.lone = o.hooks.LoneStreamFrames
	handshake.OnKeys(c.cryptoStreamHandler.(handshake.CryptoSetup), o.hooks.SendKeys, o.hooks.ReceiveKeys)
	packer := c.packer.(*packetPacker)
	packer.levelConnID, packer.ackRequests = o.levelConnID, (*requestFate)(o)
	o.watchConnectionIDs()
}

// parametersApplied is called when the peer's transport parameters are known.
func (o *Outside) parametersApplied() {
	if o == nil {
		return
	}
	p := o.conn.peerParams
	o.null.Store(o.hooks.NullProtection && p.FastRelay.NullProtection)
	o.setLevels(p.FastRelay.ConnectionIDLevels)
	o.requests.parametersApplied(p)
	o.conn.connIDManager.changed()
	o.limits = Limits{
		MaxData: uint64(p.InitialMaxData), MaxUniStreams: uint64(p.MaxUniStreamNum),
		MaxStreamData: uint64(p.InitialMaxStreamDataUni), MaxDatagramFrameSize: uint64(max(0, p.MaxDatagramFrameSize)),
	}
	o.limitsChanged()
}

func (o *Outside) limitsChanged() {
	if o.hooks.Limits != nil {
		o.hooks.Limits(o.limits)
	}
}

// later runs f on the run loop.
func (o *Outside) later(f func()) {
	o.mutex.Lock()
	o.queued = append(o.queued, f)
	o.mutex.Unlock()
	o.conn.scheduleSending()
}

// turn is called in each turn of the run loop, before it looks at its timers.
func (o *Outside) turn() {
	if o == nil {
		return
	}
	o.hold()
	o.act()
}

// act does what others handed over.
func (o *Outside) act() {
	o.mutex.Lock()
	queued := o.queued
	o.queued = nil
	if o.conn.handshakeConfirmed {
		queued = append(queued, o.share...)
		o.share = nil
	}
	o.mutex.Unlock()
	for _, f := range queued {
		f()
	}
	o.drain()
	for len(o.acks) > 0 {
		acks := o.acks
		o.acks = nil
		o.receiveACKs(acks)
	}
}

// drain registers what was sent outside. What was received waits for the turn: a packet may be being handled, which a
// later one mustn't overtake.
func (o *Outside) drain() {
	if o == nil || o.hooks.Drain == nil {
		return
	}
	o.acks = append(o.acks, o.hooks.Drain(o.register)...)
}

// register takes note of a packet that was sent outside.
func (o *Outside) register(p OutsidePacket) {
	c := o.conn
	packet := ackhandler.OutsidePacket{
		Number: protocol.PacketNumber(p.Number), Time: monotime.FromTime(p.Time), Size: protocol.ByteCount(p.Size),
		ECN: p.ECN.internal(),
	}
	if p.Frame != nil {
		packet.StreamFrames = p.Frame.sent[:]
	} else {
		sent := &sentOutside{o: o, p: p}
		sent.frames[0].Handler = sent
		packet.Frames = sent.frames[:]
	}
	if err := ackhandler.SentOutside(c.sentPacketHandler, packet); err != nil {
		c.closeLocal(&qerr.TransportError{ErrorCode: qerr.InternalError, ErrorMessage: err.Error()})
		return
	}
	cs := c.cryptoStreamHandler.(handshake.CryptoSetup)
	handshake.CountSentOutside(cs, p.KeyPhase, protocol.PacketNumber(p.Number))
	c.connIDManager.SentPacket()
	if c.firstAckElicitingPacketAfterIdleSentTime.IsZero() {
		c.firstAckElicitingPacketAfterIdleSentTime = monotime.FromTime(p.Time)
	}
}

// sentOutside handles the fate of a packet that was sent outside.
type sentOutside struct {
	o      *Outside
	p      OutsidePacket
	frames [1]ackhandler.Frame
}

func (s *sentOutside) OnAcked(wire.Frame) {
	if s.o.hooks.Acked != nil {
		s.o.hooks.Acked(s.p)
	}
}

func (s *sentOutside) OnLost(wire.Frame) {
	if s.o.hooks.Lost == nil {
		return
	}
	for _, d := range s.o.hooks.Lost(s.p) {
		s.o.send(d)
	}
}

// report hands the state of the path over if it has changed.
func (o *Outside) report() {
	if o == nil || o.hooks.Path == nil || !o.conn.handshakeComplete {
		return
	}
	c := o.conn
	s := ackhandler.PathStateOf(c.sentPacketHandler)
	state := PathState{
		Window: int(s.Window), CongestionWindow: int(s.CongestionWindow), BytesInFlight: int(s.BytesInFlight),
		SmoothedRTT: c.rttStats.SmoothedRTT(), MinRTT: c.rttStats.MinRTT(),
		MaxPacketSize: int(c.maxPacketSize()), LargestAcked: int64(s.LargestAcked), ECN: ECN(s.ECN.ToHeaderBits()),
	}
	if state != o.path {
		o.path = state
		o.hooks.Path(state)
	}
}

// moved is called when the path has changed.
func (o *Outside) moved() {
	if o == nil {
		return
	}
	if o.hooks.Moved != nil {
		o.hooks.Moved(o.conn.LocalAddr(), o.conn.RemoteAddr())
	}
	o.report()
}

// closing is called when the run loop has ended, before CONNECTION_CLOSE is sent.
func (o *Outside) closing(e *closeError) {
	if o == nil {
		return
	}
	o.hold()
	o.turns.ready.Store(false)
	defer o.release()
	for _, token := range o.tokens {
		o.conn.connIDManager.removeStatelessResetToken(token)
	}
	if e.err == nil {
		e = &closeError{err: &qerr.ApplicationError{}}
	}
	if o.hooks.Closing != nil {
		o.hooks.Closing(e.err)
	}
}

// handled is called when the library has handled a frame.
func (o *Outside) handled(frame wire.Frame, err error) error {
	if o == nil || err != nil {
		return err
	}
	switch f := frame.(type) {
	case *wire.MaxDataFrame:
		if limit := uint64(f.MaximumData); limit > o.limits.MaxData {
			o.limits.MaxData = limit
			o.limitsChanged()
		}
	case *wire.MaxStreamsFrame:
		if n := uint64(f.MaxStreamNum); f.Type == protocol.StreamTypeUni && n > o.limits.MaxUniStreams {
			o.limits.MaxUniStreams = n
			o.limitsChanged()
		}
	case *wire.MaxStreamDataFrame:
		if o.hooks.StreamLimit != nil && o.isLeased(f.StreamID) {
			o.hooks.StreamLimit(f.StreamID, uint64(f.MaximumStreamData))
		}
	case *wire.StopSendingFrame:
		if o.hooks.StopSending != nil && o.isLeased(f.StreamID) {
			o.hooks.StopSending(f.StreamID, f.ErrorCode)
		}
	case *wire.NewConnectionIDFrame:
		o.peerIDAdded(f.SequenceNumber, f.ConnectionID)
		o.watchForReset(f.SequenceNumber, f.StatelessResetToken)
	case *wire.RetireConnectionIDFrame:
		o.ourIDRetired(f.SequenceNumber)
	}
	return nil
}

var errNotAnACK = errors.New("what was handed over isn't an ACK frame")

// receiveACKs processes ACK frames that were received outside: the packets they came in are taken note of, and the
// frames are processed as one, with the ranges of all, and with the delay and the ECN counts of the newest one.
// Ranges that only an older frame has are true as well.
func (o *Outside) receiveACKs(acks []ACK) {
	c := o.conn
	var all wire.AckFrame
	var newest monotime.Time
	for i := range acks {
		a := &acks[i]
		pn, at := protocol.PacketNumber(a.Number), monotime.FromTime(a.Time)
		if c.receivedPacketHandler.IsPotentiallyDuplicate(pn, protocol.PacketNumberSpaceAppData) ||
			!handshake.CountReceivedOutside(c.cryptoStreamHandler.(handshake.CryptoSetup), a.KeyPhase, pn) {
			continue
		}
		frameType, l, err := c.frameParser.ParseType(a.Frame, protocol.Encryption1RTT)
		if err == nil && !frameType.IsAckFrameType() {
			err = errNotAnACK
		}
		var ack *wire.AckFrame
		if err == nil {
			ack, _, err = c.frameParser.ParseAckFrame(frameType, a.Frame[l:], protocol.Encryption1RTT, c.version)
		}
		c.sentPacketHandler.ReceivedBytes(protocol.ByteCount(a.Size), at)
		if err == nil {
			c.sentPacketHandler.ReceivedPacket(protocol.Encryption1RTT, at)
			err = c.receivedPacketHandler.ReceivedPacket(pn, a.ECN.internal(), protocol.Encryption1RTT, at, false)
		}
		if err != nil {
			c.closeLocal(err)
			return
		}
		c.largestRcvdAppData = max(c.largestRcvdAppData, pn)
		if len(all.AckRanges) == 0 || ack.LargestAcked() >= all.LargestAcked() {
			all.DelayTime, all.ECT0, all.ECT1, all.ECNCE = ack.DelayTime, ack.ECT0, ack.ECT1, ack.ECNCE
			newest = at
		}
		all.AckRanges = mergeRanges(all.AckRanges, ack.AckRanges)
	}
	if len(all.AckRanges) == 0 {
		return
	}
	c.lastPacketReceivedTime = max(c.lastPacketReceivedTime, newest)
	c.firstAckElicitingPacketAfterIdleSentTime = 0
	c.keepAlivePingSent = false
	if err := c.handleAckFrame(&all, protocol.Encryption1RTT, newest); err != nil {
		c.closeLocal(err)
	}
}

// mergeRanges returns the union of ranges, the highest first, as in an ACK frame.
func mergeRanges(a, b []wire.AckRange) []wire.AckRange {
	all := slices.Concat(a, b)
	slices.SortFunc(all, func(x, y wire.AckRange) int { return cmp.Compare(y.Largest, x.Largest) })
	merged := all[:0]
	for _, r := range all {
		if n := len(merged); n > 0 && r.Largest+1 >= merged[n-1].Smallest {
			merged[n-1].Smallest = min(merged[n-1].Smallest, r.Smallest)
		} else {
			merged = append(merged, r)
		}
	}
	return merged
}
