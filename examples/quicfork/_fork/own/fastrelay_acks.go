package quic

import (
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/quic-go/quic-go/internal/ackhandler"
	"github.com/quic-go/quic-go/internal/qerr"
	"github.com/quic-go/quic-go/internal/wire"
)

// minAckDelay is the smallest delay that a peer may ask for, and maxAckDelay the largest one that is used: that of the
// transport parameter max_ack_delay (RFC 9000, section 18.2).
const (
	minAckDelay = time.Millisecond
	maxAckDelay = (1<<14 - 1) * time.Millisecond
)

// reorderingThreshold is what peers are asked for: one less than the packet threshold of loss detection (RFC 9002,
// section 6.1.1), so that a packet is reported missing before it is declared lost.
const reorderingThreshold = 2

// ackRequests is what the peer was asked for.
type ackRequests struct {
	offered atomic.Bool // the peer takes ACK_FREQUENCY

	// The rest is the run loop's.
	least time.Duration             // the peer's min_ack_delay
	delay time.Duration             // of the newest request that was acknowledged, or the peer's max_ack_delay
	next  uint64                    // sequence number
	open  []*wire.AckFrequencyFrame // not acknowledged, the newest one last
}

// offerACKFrequency puts the offer into our transport parameters, and has its frames parsed.
func (c *Conn) offerACKFrequency(params *wire.TransportParameters) {
	least := minAckDelay
	params.MinAckDelay = &least
	c.frameParser.TakeAckFrequency()
	ackhandler.SetAckFrequency(&c.receivedPacketHandler)
}

// parametersApplied is called when the peer's transport parameters are known.
func (r *ackRequests) parametersApplied(p *wire.TransportParameters) {
	r.delay = p.MaxAckDelay
	if p.MinAckDelay != nil {
		r.least = *p.MinAckDelay
		r.offered.Store(true)
	}
}

// requestACKs sends an ACK_FREQUENCY frame.
func (o *Outside) requestACKs(packets int, delay time.Duration) {
	r := &o.requests
	f := &wire.AckFrequencyFrame{
		SequenceNumber: r.next, AckElicitingThreshold: uint64(max(1, packets) - 1),
		RequestMaxAckDelay:  max(r.least, min(delay, maxAckDelay)).Truncate(time.Microsecond),
		ReorderingThreshold: reorderingThreshold,
	}
	r.next++
	r.open = append(r.open, f)
	o.setMaxAckDelay()
	o.conn.queueControlFrame(f)
}

// setMaxAckDelay makes timeouts that of the longest delay that the peer may follow now.
func (o *Outside) setMaxAckDelay() {
	longest := o.requests.delay
	for _, f := range o.requests.open {
		longest = max(longest, f.RequestMaxAckDelay)
	}
	o.conn.rttStats.SetMaxAckDelay(longest)
}

// requestFate handles what happens to ACK_FREQUENCY frames.
type requestFate Outside

// OnAcked is called when the peer has a request: it follows no older one any more.
func (o *requestFate) OnAcked(frame wire.Frame) {
	f, r := frame.(*wire.AckFrequencyFrame), &o.requests
	if i := slices.Index(r.open, f); i >= 0 {
		r.delay, r.open = f.RequestMaxAckDelay, r.open[i+1:]
		(*Outside)(o).setMaxAckDelay()
	}
}

// OnLost is called when a request is lost, or is to be sent again as a probe.
func (o *requestFate) OnLost(frame wire.Frame) {
	f, r := frame.(*wire.AckFrequencyFrame), &o.requests
	if f.SequenceNumber+1 == r.next && slices.Contains(r.open, f) {
		o.conn.queueControlFrame(f)
	}
}

// handleAckFrequencyFrame takes the peer's request.
func (c *Conn) handleAckFrequencyFrame(f *wire.AckFrequencyFrame) error {
	if f.RequestMaxAckDelay < minAckDelay {
		return &qerr.TransportError{
			ErrorCode: qerr.ProtocolViolation, FrameType: uint64(wire.FrameTypeAckFrequency),
			ErrorMessage: fmt.Sprintf("ACK_FREQUENCY asks for a delay of %v, and min_ack_delay is %v",
				f.RequestMaxAckDelay, minAckDelay),
		}
	}
	limited := *f
	limited.RequestMaxAckDelay = min(f.RequestMaxAckDelay, maxAckDelay)
	ackhandler.FollowAckFrequency(&c.receivedPacketHandler, &limited)
	return nil
}
