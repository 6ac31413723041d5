package quic

import (
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quic-go/quic-go/internal/monotime"
	"github.com/quic-go/quic-go/internal/protocol"
)

// Turns are taken for connections by whoever reads their packets, one connection after the other: see [Hooks.Turns].
// Waking the goroutine of each connection for each packet, and another one for what it sends, costs more than what they
// do. The zero value is ready.
type Turns struct {
	mutex sync.Mutex
	begun int // calls of Begin without End
	next  int // of waiting
	// connections for which there is something to do
	waiting []*Outside
}

// Begin makes connections for which there is something to do wait for End. Several may have begun.
func (t *Turns) Begin() {
	t.mutex.Lock()
	t.begun++
	t.mutex.Unlock()
}

// End does what there is to do, until nothing is left, whoever it was that began.
func (t *Turns) End() {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	for t.next < len(t.waiting) {
		o := t.waiting[t.next]
		t.waiting[t.next] = nil
		if t.next++; t.next == len(t.waiting) {
			t.next, t.waiting = 0, t.waiting[:0]
		}
		o.turns.waits = false
		t.mutex.Unlock()
		o.takeTurn()
		t.mutex.Lock()
	}
	t.begun--
}

// add makes a connection wait; false without a Begin.
func (t *Turns) add(o *Outside) bool {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	if t.begun == 0 {
		return false
	}
	if !o.turns.waits {
		o.turns.waits = true
		t.waiting = append(t.waiting, o)
	}
	return true
}

// turnState is what a connection needs for others to take its turns.
type turnState struct {
	mutex sync.Mutex  // held by who takes a turn
	held  bool        // by the run loop, which alone knows
	ready atomic.Bool // others may take turns
	waits bool        // guarded by the Turns' mutex
}

// hold is called by the run loop before it does anything. While it waits for something to do, others take turns: from
// when the handshake is confirmed.
func (o *Outside) hold() {
	if o == nil || o.hooks.Turns == nil {
		return
	}
	if s := &o.turns; !s.held {
		s.mutex.Lock()
		s.held = true
	}
	o.turns.ready.Store(o.conn.handshakeConfirmed)
}

// release is called by the run loop before it waits.
func (o *Outside) release() {
	if o == nil || o.hooks.Turns == nil || !o.turns.held {
		return
	}
	o.turns.held = false
	o.turns.mutex.Unlock()
}

// soon reports whether a turn is taken soon. Otherwise the run loop has to be woken.
func (o *Outside) soon() bool {
	return o != nil && o.hooks.Turns != nil && o.turns.ready.Load() && o.hooks.Turns.add(o)
}

// takeTurn does what a turn of the run loop does, but for what only time brings about, for which the run loop has its
// timer.
func (o *Outside) takeTurn() {
	o.turns.mutex.Lock()
	defer o.turns.mutex.Unlock()
	if !o.turns.ready.Load() {
		o.wake()
		return
	}
	if err := o.conn.takeTurn(); err != nil {
		o.conn.setCloseError(&closeError{err: err})
	}
}

// wake wakes the run loop.
func (o *Outside) wake() {
	select {
	case o.conn.sendingScheduled <- struct{}{}:
	default:
	}
}

func (c *Conn) takeTurn() error {
	for !c.receivedPackets.Empty() {
		if _, err := c.handlePackets(); err != nil {
			return err
		}
	}
	c.outside.act()
	now := monotime.Now()
	if timeout := c.sentPacketHandler.GetLossDetectionTimeout(); !timeout.IsZero() && !timeout.After(now) {
		if err := c.sentPacketHandler.OnLossDetectionTimeout(now); err != nil {
			return err
		}
	}
	if c.closeErr.Load() != nil || c.sendQueue.WouldBlock() || c.framer.QueuedTooManyControlFrames() {
		c.outside.wake()
		return nil
	}
	c.blocked = blockModeNone
	if err := c.triggerSending(now); err != nil {
		return err
	}
	c.outside.report()
	if c.pacingDeadline != deadlineSendImmediately {
		c.maybeResetTimer()
	} else if !c.outside.soon() {
		c.outside.wake()
	}
	return nil
}

// A loopTimer is a run loop's. If turns are taken, it isn't set to a later time: it fires, and is set then. Each turn
// would set it otherwise.
type loopTimer struct {
	*time.Timer
	late bool
	at   monotime.Time // when it fires
	want monotime.Time // when there will be something to do
}

func (o *Outside) newTimer(d time.Duration) *loopTimer {
	return &loopTimer{Timer: time.NewTimer(d), late: o != nil && o.hooks.Turns != nil}
}

// Reset sets the timer.
func (t *loopTimer) Reset(d time.Duration) {
	if t.late {
		now := monotime.Now()
		t.want = now.Add(d)
		if now.Before(t.at) && !t.want.Before(t.at) {
			return
		}
		t.at = t.want
	}
	t.Timer.Reset(d)
}

// early is called by the run loop when its timer has fired. It reports whether there is nothing to do yet.
func (o *Outside) early() bool {
	if o == nil || o.hooks.Turns == nil {
		return false
	}
	o.hold()
	return monotime.Now().Before(o.conn.timer.want)
}

// A directSender has packets written by who takes a turn: others would have to be woken.
type directSender struct {
	conn   sendConn
	closed chan struct{}
	failed chan error
}

func newDirectSender(conn sendConn) *directSender {
	return &directSender{conn: conn, closed: make(chan struct{}), failed: make(chan error, 1)}
}

func (s *directSender) Send(p *packetBuffer, gsoSize uint16, ecn protocol.ECN) {
	if err := s.conn.Write(p.Data, gsoSize, ecn); err != nil && !isSendMsgSizeErr(err) {
		select {
		case s.failed <- err:
		default:
		}
	}
	p.Release()
}

func (s *directSender) SendProbe(p *packetBuffer, to net.Addr, info packetInfo) {
	s.conn.WriteTo(p.Data, to, info)
}

// Run waits for an error.
func (s *directSender) Run() error {
	select {
	case <-s.closed:
		return nil
	case err := <-s.failed:
		return err
	}
}

func (s *directSender) WouldBlock() bool           { return false }
func (s *directSender) Available() <-chan struct{} { return nil }
func (s *directSender) Close()                     { close(s.closed) }
