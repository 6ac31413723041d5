package quic

import (
	"context"
	"net"
	"sync/atomic"
	"time"

	"github.com/quic-go/quic-go/internal/ackhandler"
	"github.com/quic-go/quic-go/internal/handshake"
	"github.com/quic-go/quic-go/internal/protocol"
)

// Hooks let something outside of the library, a program in the kernel or a sender of sealed batches, take part in a
// connection: it sends some packets, and handles some that arrive. All members are optional. They are given to a
// connection by its context: see [WithHooks].
//
// Functions are called on the connection's run loop, or by Turns, one at a time. They must not block, and must not call
// methods of the connection that wait for the run loop; methods of [Outside] don't, but for [Outside.ShareNumbers].
// Slices are the function's until it returns.
//
// A connection with hooks offers the peer ACK_FREQUENCY (draft-ietf-quic-ack-frequency-07, min_ack_delay 1 ms), and
// acknowledges as the peer asks: see [Outside.RequestACKs].
type Hooks struct {
	// NullProtection asks the peer to do without packet and header protection of 1-RTT packets (RFC 9001, section 5).
	// It is done if both ends ask, by a transport parameter, which the handshake authenticates; otherwise packets are
	// protected as ever, and [Outside.NullProtection] says so. The handshake stays encrypted. The tag is 16 zeros,
	// the key phase 0, and there are no key updates. Null protection authenticates nothing: it is for networks that
	// protect themselves.
	NullProtection bool
	// Levels, at most 4, makes the first byte of connection IDs that this end issues their level, from 0, the most
	// urgent. A peer of the fork sends packets on the connection ID of their level, which is their most urgent
	// stream's urgency (RFC 9218) on a scale of as many levels as there are; packets without streams are of the most
	// urgent level if they have DATAGRAM frames, and of any level otherwise. Levels aren't retired after a number of
	// packets. There are fewer where the peer's active_connection_id_limit (RFC 9000, section 18.2) allows fewer. A
	// connection whose own connection IDs are shorter than 8 bytes is closed: what remains of them has to be
	// unpredictable.
	Levels int
	// LongNumbers makes the packet numbers of 1-RTT packets 4 bytes long (RFC 9000, section 17.1), which is what a
	// relay copies with the least work.
	LongNumbers bool
	// LoneStreamFrames puts at most one STREAM frame into a packet, which is what a relay in the kernel forwards.
	LoneStreamFrames bool
	// SparseMaxStreams sends MAX_STREAMS frames for unidirectional streams (RFC 9000, section 19.11) for a quarter of
	// the window at a time, and not for each stream that ends: they would share packets with what the peer sends.
	SparseMaxStreams bool

	// Turns, if it isn't nil, takes turns of the connection's run loop from when the handshake is confirmed: between
	// Begin and End the connection's goroutine isn't woken for packets and for what is to be sent; End does what there
	// is to do. What takes a turn writes the packets, so a write to the Transport's Conn has to wait for no reader.
	Turns *Turns

	// Drain registers the packets that were sent outside since it was called before, and returns ACK frames out of
	// packets that the library didn't get, which are processed in that turn, with their ranges merged. It is called
	// before each ACK is processed, before timers are, and after [Outside.Notify]: an ACK for a packet that isn't
	// registered closes the connection (RFC 9000, section 13.1).
	Drain func(register func(OutsidePacket)) []ACK
	// Acked and Lost say what happened to a registered packet. The library sends the data that Lost returns, now.
	Acked func(OutsidePacket)
	Lost  func(OutsidePacket) []StreamData

	// Path is called when what may be sent on the path has changed: after each ACK, after each Drain that registered a
	// packet, and after a change of the path.
	Path func(PathState)
	// Limits is called when the peer's transport parameters are known, and when MAX_DATA or MAX_STREAMS arrives.
	Limits func(Limits)
	// StreamLimit is called when MAX_STREAM_DATA arrives for a leased stream (RFC 9000, section 19.10).
	StreamLimit func(id StreamID, limit uint64)
	// StopSending is called when STOP_SENDING arrives for a leased stream, which has to be reset then, with
	// [Outside.Reset] (RFC 9000, section 3.5).
	StopSending func(StreamID, StreamErrorCode)

	// ConnectionID is called when a connection ID, ours or the peer's, is added, becomes the active one, or is retired.
	ConnectionID func(ConnectionIDChange)
	// Moved is called when the path has changed: after NAT rebinding or a migration of the peer (RFC 9000, section
	// 9), or ours. All packets of the old path were declared lost, and the congestion window is a new one.
	Moved func(local, remote net.Addr)
	// SendKeys and ReceiveKeys hand over the keys of a key phase when they are installed, and when they roll, before
	// a packet number is allocated for them: packets with higher numbers must not have older keys (RFC 9001, section
	// 6.4). So what sends outside allocates its numbers, with the keys that go with them, under a lock that SendKeys
	// takes as well.
	SendKeys    func(*Sealer)
	ReceiveKeys func(*Opener)
	// Closing is called once, when the connection closes, before CONNECTION_CLOSE is sent: when it returns, nothing
	// may be sent outside any more (RFC 9000, section 10.2).
	Closing func(error)

	// StreamFrame is given the STREAM frames of all unidirectional streams that the peer opens, in the order they
	// arrive in. The library counts them, for flow control and to end streams, but doesn't reassemble:
	// AcceptUniStream doesn't return these streams. Frames all of whose bytes were handed over are left out.
	StreamFrame func(StreamFrame)
	// StreamReset is called when such a stream is reset.
	StreamReset func(id StreamID, code StreamErrorCode, finalSize uint64)
	// Datagram is given the DATAGRAM frames (RFC 9221), which ReceiveDatagram doesn't return then.
	Datagram func(ReceivedDatagram)
}

type hooksKey struct{}

// WithHooks returns a context for Dial, or for a [Transport]'s ConnContext to return, with hooks for that connection.
func WithHooks(ctx context.Context, hooks *Hooks) context.Context {
	return context.WithValue(ctx, hooksKey{}, hooks)
}

// An OutsidePacket is a 1-RTT packet that was sent outside of the library. It holds a frame that elicits an ACK.
type OutsidePacket struct {
	Number   uint64 // allocated from the counter given to ShareNumbers
	Time     time.Time
	Size     int    // of the UDP payload
	KeyPhase uint64 // the Phase of the Sealer; 0 with null protection
	ECN      ECN    // how the packet was marked; PathState says how it may be
	User     any    // the library keeps it
	// Frame is the frame that it holds if that was taken from a stream ([SendStream.TakeNext]): what is lost is sent
	// again then, without Acked and Lost.
	Frame *OutsideFrame
}

// StreamData is data of a stream.
type StreamData struct {
	ID      StreamID
	Offset  uint64
	Data    []byte
	Fin     bool
	Urgency int8 // 0, the most urgent, to 7 (RFC 9218)
}

// A StreamFrame is a STREAM frame that was received.
type StreamFrame struct {
	ID     StreamID
	Offset uint64
	Data   []byte
	Fin    bool
	Level  int // of the connection ID that the packet came on; -1 without Hooks.Levels
	Time   time.Time
}

// A ReceivedDatagram is a DATAGRAM frame that was received.
type ReceivedDatagram struct {
	Data   []byte
	Number uint64 // of the packet
	Level  int    // of the connection ID that the packet came on; -1 without Hooks.Levels
}

// PathState says what may be sent on the path.
type PathState struct {
	// Window is how many bytes may be sent now: CongestionWindow less BytesInFlight (RFC 9002, section 7), and 0
	// while as many packets are tracked as the library tracks. Packets that weren't registered yet have to be
	// subtracted.
	Window, CongestionWindow, BytesInFlight int
	SmoothedRTT, MinRTT                     time.Duration
	// MaxPacketSize is the largest UDP payload that the path takes (RFC 9000, section 14).
	MaxPacketSize int
	// LargestAcked is the largest packet number acknowledged, or -1: a number's size follows from it (RFC 9000, section
	// 17.1).
	LargestAcked int64
	// ECN says how packets are to be marked (RFC 9000, section 13.4).
	ECN ECN
}

// ECN is a codepoint of the IP header (RFC 3168, section 5).
type ECN uint8

// The codepoints.
const (
	NotECT ECN = iota
	ECT1
	ECT0
	CE
)

func (e ECN) internal() protocol.ECN { return protocol.ParseECNHeaderBits(byte(e) & 3) }

// Limits are those that the peer has set (RFC 9000, section 4).
type Limits struct {
	MaxData              uint64 // of all streams; see LeaseData
	MaxUniStreams        uint64 // how many; see LeaseUniStreams
	MaxStreamData        uint64 // of a unidirectional stream, at first; later ones arrive as StreamLimit
	MaxDatagramFrameSize uint64 // RFC 9221, section 3; 0 if the peer takes no DATAGRAM frames
}

// A ConnectionIDChange says what happens to a connection ID (RFC 9000, section 5.1).
type ConnectionIDChange struct {
	Event    ConnectionIDEvent
	Ours     bool // packets to us carry it; otherwise packets to the peer do
	ID       ConnectionID
	Sequence uint64
	Level    int // -1 for one without a level
}

// A ConnectionIDEvent is what happens to a connection ID.
type ConnectionIDEvent uint8

// What happens to connection IDs. One of the peer's is active: packets that have no level carry it.
const (
	ConnectionIDAdded ConnectionIDEvent = iota
	ConnectionIDActive
	ConnectionIDRetired
)

// A Sealer protects packets of one key phase: see [Hooks].
type Sealer = handshake.Sealer

// An Opener opens packets of one key phase: see [Hooks].
type Opener = handshake.Opener

// An ACK is an ACK frame out of a packet that held nothing else, and that the library doesn't get.
type ACK struct {
	Number   uint64 // the number of the packet
	KeyPhase uint64 // the Phase of the Opener; 0 with null protection
	Frame    []byte // as received, with its type (RFC 9000, section 19.3)
	Time     time.Time
	Size     int // of the packet
	ECN      ECN // of the packet
}

// Outside returns what acts on a connection from outside of the library; nil if the connection has no hooks.
func (c *Conn) Outside() *Outside { return c.outside }

// ShareNumbers makes counter the source of the connection's packet numbers, for the library as for others: it holds
// the next number, and adding 1 to it allocates the number that was there. It may be in memory that is mapped
// from a BPF map. ShareNumbers waits until the handshake is confirmed (RFC 9001, section 4.1.2). From then on,
// numbers are 4 bytes long. It can be done once.
func (o *Outside) ShareNumbers(ctx context.Context, counter *atomic.Uint64) error {
	shared := make(chan error, 1)
	o.mutex.Lock()
	o.share = append(o.share, func() { shared <- ackhandler.ShareNumbers(o.conn.sentPacketHandler, counter) })
	o.mutex.Unlock()
	o.Notify()
	select {
	case err := <-shared:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-o.conn.ctx.Done():
		return context.Cause(o.conn.ctx)
	}
}

// Notify makes the run loop call Drain soon.
func (o *Outside) Notify() { o.conn.scheduleSending() }

// NullProtection reports whether both ends asked for null protection. It is known when the handshake is complete.
func (o *Outside) NullProtection() bool { return o.null.Load() }

// LeaseUniStreams takes up to n stream IDs, first, first+4 and so on, of the ones that the peer allows; the library
// doesn't open these streams. If there are fewer, STREAMS_BLOCKED is sent, and Limits is called when there
// are more.
func (o *Outside) LeaseUniStreams(n int) (first StreamID, leased int) { return o.leaseUniStreams(n) }

// LeaseData takes up to n bytes of the connection's flow control credit (RFC 9000, section 4.1): so many may be sent
// on leased streams, outside or by Send, each byte once. If there are fewer, DATA_BLOCKED is sent, and Limits is
// called when there are more.
func (o *Outside) LeaseData(n uint64) (leased uint64) { return o.leaseData(n) }

// ReturnData gives back credit that wasn't used.
func (o *Outside) ReturnData(n uint64) { o.returnData(n) }

// Send makes the library send data of leased streams: what is blocked outside, or too large. The data has to be
// within what was leased and within the stream's limit, and stays the library's.
func (o *Outside) Send(data ...StreamData) {
	o.later(func() {
		for _, d := range data {
			o.send(d)
		}
	})
}

// Reset abandons a leased stream (RFC 9000, section 19.4): finalSize is the offset after all bytes that were sent,
// outside or by Send, and counts in flow control. Lost must not return data of the stream any more.
func (o *Outside) Reset(id StreamID, code StreamErrorCode, finalSize uint64) {
	o.later(func() { o.reset(id, code, finalSize) })
}

// RequestACKs asks the peer for an ACK after so many packets that elicit one, or after the delay if that is sooner, in
// an ACK_FREQUENCY frame (draft-ietf-quic-ack-frequency-07); until then it acknowledges as RFC 9000 says. A packet that
// is missing is reported at once when the second one after it arrives, which is when loss detection is about to
// declare it lost. The last request holds, and is sent again if it is lost. A delay that is less than the peer's
// min_ack_delay is raised to it; the largest one that the peer may follow counts in timeouts for probes (RFC 9002,
// section 6.2). RequestACKs returns false if the peer doesn't offer it, which is known when the handshake is complete.
func (o *Outside) RequestACKs(packets int, delay time.Duration) bool {
	if !o.requests.offered.Load() {
		return false
	}
	o.later(func() { o.requestACKs(packets, delay) })
	return true
}
