package quic

import (
	"slices"

	"github.com/quic-go/quic-go/internal/ackhandler"
	"github.com/quic-go/quic-go/internal/monotime"
	"github.com/quic-go/quic-go/internal/protocol"
	"github.com/quic-go/quic-go/internal/wire"
)

// A span is the integers from first to before end.
type span struct{ first, end uint64 }

// Spans are ascending, and don't touch.
type spans []span

// add adds a span, and reports whether that added anything.
func (s *spans) add(first, end uint64) bool {
	if first >= end {
		return false
	}
	// the ones that touch the new one are from i on, before j
	i, _ := slices.BinarySearchFunc(*s, first, func(x span, first uint64) int {
		if x.end < first {
			return -1
		}
		return 1
	})
	j := i
	for j < len(*s) && (*s)[j].first <= end {
		j++
	}
	if j == i {
		*s = slices.Insert(*s, i, span{first, end})
		return true
	}
	if j == i+1 && (*s)[i].first <= first && end <= (*s)[i].end {
		return false
	}
	*s = slices.Replace(*s, i, j, span{min(first, (*s)[i].first), max(end, (*s)[j-1].end)})
	return true
}

func (s spans) contains(n uint64) bool {
	_, found := slices.BinarySearchFunc(s, n, func(x span, n uint64) int {
		switch {
		case x.end <= n:
			return -1
		case n < x.first:
			return 1
		}
		return 0
	})
	return found
}

// Leased streams

func (o *Outside) leaseUniStreams(n int) (first StreamID, leased int) {
	m := o.conn.streamsMap.outgoingUniStreams
	m.mutex.Lock()
	defer m.mutex.Unlock()
	first = m.nextStream
	if m.closeErr != nil || n <= 0 {
		return first, 0
	}
	if m.nextStream <= m.maxStream { // those who wait for a stream come first
		leased = min(n, max(0, int((m.maxStream-m.nextStream)/4)+1-len(m.openQueue)))
	}
	if leased < n {
		m.maybeSendBlockedFrame()
	}
	m.nextStream += 4 * StreamID(leased)
	o.mutex.Lock()
	o.lease.add(uint64(first)/4, uint64(first)/4+uint64(leased))
	o.mutex.Unlock()
	return first, leased
}

func (o *Outside) isLeased(id StreamID) bool {
	if protocol.StreamTypeOf(id) != protocol.StreamTypeUni || protocol.StreamInitiator(id) != o.conn.perspective {
		return false
	}
	o.mutex.Lock()
	defer o.mutex.Unlock()
	return o.lease.contains(uint64(id) / 4)
}

func (o *Outside) leaseData(n uint64) uint64 {
	f := o.conn.connFlowController
	f.sendMutex.Lock()
	leased := min(protocol.ByteCount(n), max(0, f.sendWindow-f.bytesSent))
	f.bytesSent += leased
	f.sendMutex.Unlock()
	if uint64(leased) < n {
		if blocked, limit := f.IsNewlyBlocked(); blocked {
			o.conn.queueControlFrame(&wire.DataBlockedFrame{MaximumData: limit})
		}
	}
	return uint64(leased)
}

func (o *Outside) returnData(n uint64) {
	f := o.conn.connFlowController
	f.sendMutex.Lock()
	f.bytesSent -= min(protocol.ByteCount(n), f.bytesSent)
	f.sendMutex.Unlock()
	o.conn.scheduleSending()
}

// parked is how many streams are kept of which all is acknowledged: more may be sent soon.
const parked = 8

// sendStream returns the stream that carries what the library sends on a leased stream. It is there from the first such
// data until all of it is acknowledged, and for a while after. For the library all of it is retransmissions, which flow
// control doesn't count again, and its end was sent.
func (o *Outside) sendStream(id StreamID) *SendStream {
	if s, ok := o.streams[id]; ok {
		if i := slices.Index(o.parked, id); i >= 0 {
			o.parked = slices.Delete(o.parked, i, i+1)
			s.mutex.Lock()
			s.completed = false
			s.mutex.Unlock()
		}
		return s
	}
	c := o.conn
	var s *SendStream
	s = newSendStream(c.ctx, id, &uniStreamSender{
		streamSender: c,
		onStreamCompletedImpl: func() {
			c.framer.RemoveActiveStream(id)
			over := id
			if s.resetErr == nil {
				if o.parked = append(o.parked, id); len(o.parked) <= parked {
					return
				}
				over = o.parked[0]
				o.parked = slices.Delete(o.parked, 0, 1)
			}
			o.streams[over].ctxCancel(nil)
			delete(o.streams, over)
		},
		onHasStreamControlFrameImpl: c.onHasStreamControlFrame,
	}, c.newFlowController(id), false)
	s.finSent = true
	o.streams[id] = s
	return s
}

// send sends data of a leased stream.
func (o *Outside) send(d StreamData) {
	s := o.sendStream(d.ID)
	s.mutex.Lock()
	s.priorityValue.Store(encodeStreamPriority(max(0, min(d.Urgency, 7)), true, 0))
	abandoned := s.resetErr != nil
	if !abandoned {
		s.retransmissionQueue = append(s.retransmissionQueue, &wire.StreamFrame{
			StreamID: d.ID, Offset: protocol.ByteCount(d.Offset), Data: d.Data, Fin: d.Fin, DataLenPresent: true,
		})
	}
	s.mutex.Unlock()
	if !abandoned {
		o.conn.onHasStreamRetransmission(d.ID, s)
	}
}

func (o *Outside) reset(id StreamID, code StreamErrorCode, finalSize uint64) {
	s := o.sendStream(id)
	s.mutex.Lock()
	s.writeOffset = protocol.ByteCount(finalSize)
	s.mutex.Unlock()
	s.CancelWrite(code)
}

// Streams whose frames are handed over

// incoming is what is known of a stream whose frames are handed over.
type incoming struct {
	received spans
	highest  protocol.ByteCount
	final    protocol.ByteCount // -1 if it isn't known
}

// isHandedOver reports whether the frames of a stream are handed over.
func (o *Outside) isHandedOver(id StreamID) bool {
	return o != nil && o.hooks.StreamFrame != nil && protocol.StreamTypeOf(id) == protocol.StreamTypeUni &&
		protocol.StreamInitiator(id) != o.conn.perspective
}

// openIncoming returns a stream that the peer has opened, and what is known of it; nil if the stream has ended.
func (o *Outside) openIncoming(id StreamID) (*ReceiveStream, *incoming, error) {
	m := o.conn.streamsMap.incomingUniStreams
	m.mutex.Lock()
	m.nextStreamToAccept = max(m.nextStreamToAccept, id+4) // before it is there: AcceptStream may be waiting
	m.mutex.Unlock()
	s, err := m.GetOrOpenStream(id)
	if err != nil || s == nil {
		return nil, nil, err
	}
	in := o.incoming[id]
	if in == nil {
		in = &incoming{final: -1}
		o.incoming[id] = in
	}
	return s, in, nil
}

// handleStreamFrame hands a STREAM frame over, or to its stream.
func (c *Conn) handleStreamFrame(f *wire.StreamFrame, connID protocol.ConnectionID, now monotime.Time) error {
	o := c.outside
	if !o.isHandedOver(f.StreamID) {
		return c.streamsMap.HandleStreamFrame(f, now)
	}
	defer f.PutBack()
	s, in, err := o.openIncoming(f.StreamID)
	if err != nil || s == nil {
		return err
	}
	end := f.Offset + f.DataLen()
	if err := s.flowController.UpdateHighestReceived(end, f.Fin, now); err != nil {
		return err
	}
	isNew := in.received.add(uint64(f.Offset), uint64(end))
	if f.Fin && in.final < 0 {
		in.final, isNew = end, true
	}
	if isNew {
		o.hooks.StreamFrame(StreamFrame{
			ID: f.StreamID, Offset: uint64(f.Offset), Data: f.Data, Fin: f.Fin,
			Level: o.ourLevel(connID), Time: now.ToTime(),
		})
	}
	if end > in.highest { // what was handed over is read, also where a frame before it is missing: nothing is kept
		more, moreConn := s.flowController.AddBytesRead(end - in.highest)
		in.highest = end
		if more {
			s.mutex.Lock()
			s.queuedMaxStreamData = true
			s.mutex.Unlock()
			c.onHasStreamControlFrame(f.StreamID, s)
		}
		if moreConn {
			c.onHasConnectionData()
		}
	}
	if in.final == 0 || len(in.received) == 1 && in.received[0] == (span{0, uint64(in.final)}) {
		delete(o.incoming, f.StreamID)
		c.onStreamCompleted(f.StreamID)
	}
	return nil
}

// handleResetStreamFrame hands a RESET_STREAM frame over, or to its stream.
func (c *Conn) handleResetStreamFrame(f *wire.ResetStreamFrame, now monotime.Time) error {
	o := c.outside
	if !o.isHandedOver(f.StreamID) {
		return c.streamsMap.HandleResetStreamFrame(f, now)
	}
	s, _, err := o.openIncoming(f.StreamID)
	if err != nil || s == nil {
		return err
	}
	if err := s.flowController.UpdateHighestReceived(f.FinalSize, true, now); err != nil {
		return err
	}
	s.flowController.Abandon()
	c.onHasConnectionData()
	delete(o.incoming, f.StreamID)
	if o.hooks.StreamReset != nil {
		o.hooks.StreamReset(f.StreamID, f.ErrorCode, uint64(f.FinalSize))
	}
	c.onStreamCompleted(f.StreamID)
	return nil
}

// receiving notes the number of the packet whose frames are handled next.
func (o *Outside) receiving(pn protocol.PacketNumber) {
	if o != nil {
		o.number = uint64(pn)
	}
}

// handleDatagram hands a DATAGRAM frame over, or queues it.
func (c *Conn) handleDatagram(f *wire.DatagramFrame, connID protocol.ConnectionID) error {
	if o := c.outside; o != nil && o.hooks.Datagram != nil {
		o.hooks.Datagram(ReceivedDatagram{Data: f.Data, Number: o.number, Level: o.ourLevel(connID)})
		return nil
	}
	return c.handleDatagramFrame(f)
}

// isDue reports whether it is time to allow the peer streams up to max: a quarter of the window at a time, or any if
// the peer has used up nearly all it may.
func (m *incomingStreamsMap[T]) isDue(maxStream protocol.StreamID) bool {
	if !m.sparse {
		return true
	}
	quarter := 4 * protocol.StreamID(m.maxNumStreams/4)
	return maxStream >= m.maxStream+quarter || m.maxStream < m.nextStreamToOpen+quarter/2
}

// rest returns what a packet with a STREAM frame has room for, in further ones.
func (f *framer) rest(maxLen protocol.ByteCount) protocol.ByteCount {
	if f.lone {
		return 0
	}
	return maxLen
}

// TryWriteNext is TryWriteAll if all that was written before was sent; else it returns ErrWouldBlock. So no more than
// what it takes waits to be sent. Nothing else may write at the same time.
func (s *SendStream) TryWriteNext(p []byte) error {
	s.mutex.Lock()
	waits := s.nextFrame != nil || s.dataForWriting != nil
	s.mutex.Unlock()
	if waits {
		return ErrWouldBlock
	}
	return s.TryWriteAll(p)
}

// TryWriteNext is [SendStream.TryWriteNext].
func (s *Stream) TryWriteNext(p []byte) error { return s.sendStr.TryWriteNext(p) }

// An OutsideFrame is a STREAM frame of a stream that the library sends, in a packet that it doesn't send.
type OutsideFrame struct {
	stream *SendStream
	frame  wire.StreamFrame
	sent   [1]ackhandler.StreamFrame
}

// TakeNext is TryWriteNext for a packet that is sent outside: it returns the frame with p, or nil, if TryWriteNext
// would return an error. The frame is in flight from then on: it has to be in a packet that is registered, or be
// abandoned. p stays the library's.
func (s *SendStream) TakeNext(p []byte) *OutsideFrame {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if len(p) == 0 || s.resetErr != nil || s.shutdownErr != nil || s.finishedWriting || s.nextFrame != nil ||
		s.dataForWriting != nil || !s.flowController.TryAddBytesSent(protocol.ByteCount(len(p))) {
		return nil
	}
	f := &OutsideFrame{stream: s, frame: wire.StreamFrame{StreamID: s.streamID, Offset: s.writeOffset, Data: p}}
	f.sent[0] = ackhandler.StreamFrame{Frame: &f.frame, Handler: (*sendStreamAckHandler)(s)}
	s.writeOffset += f.frame.DataLen()
	s.numOutstandingFrames++
	return f
}

// TakeNext is [SendStream.TakeNext].
func (s *Stream) TakeNext(p []byte) *OutsideFrame { return s.sendStr.TakeNext(p) }

// Append appends the frame to a packet, which has to end with it: it has no length (RFC 9000, section 19.8).
func (f *OutsideFrame) Append(b []byte) []byte {
	b, _ = f.frame.Append(b, protocol.Version1) // it fails without data
	return b
}

// Abandon has the library send the frame, since no packet has it.
func (f *OutsideFrame) Abandon() { f.sent[0].Handler.OnLost(&f.frame) }
