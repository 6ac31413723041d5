package quic

import (
	"github.com/quic-go/quic-go/internal/protocol"
	"github.com/quic-go/quic-go/internal/wire"
)

// minLevelledLen is how long connection IDs have to be for their first byte to be a level: what remains has to be
// unpredictable.
const minLevelledLen = 8

// Our connection IDs

// levelled puts a level into a connection ID that is about to be issued: the one that the fewest have.
func (m *connIDGenerator) levelled(id protocol.ConnectionID) protocol.ConnectionID {
	if m.levels == 0 {
		return id
	}
	var have [protocol.MaxActiveConnectionIDs]int
	for seq, id := range m.activeSrcConnIDs {
		if level := int(id.Bytes()[0]); seq > 0 && level < m.levels {
			have[level]++
		}
	}
	best := 0
	for level := range m.levels {
		if have[level] < have[best] {
			best = level
		}
	}
	b := id.Bytes()
	b[0] = byte(best)
	return protocol.ParseConnectionID(b)
}

// limitLevels is called with the number of connection IDs that the peer keeps.
func (m *connIDGenerator) limitLevels(limit uint64) { m.levels = int(min(uint64(m.levels), limit)) }

// ourLevel returns the level of a connection ID of ours, or -1.
func (o *Outside) ourLevel(id protocol.ConnectionID) int {
	if o.conn.connIDGenerator.levels == 0 || id.Len() == 0 || int(id.Bytes()[0]) >= o.conn.connIDGenerator.levels {
		return -1
	}
	return int(id.Bytes()[0])
}

// The peer's connection IDs

// setLevels is called with the number of levels that the peer's connection IDs have. The peer leaves out what we
// don't keep.
func (o *Outside) setLevels(levels uint64) {
	o.levels = int(min(levels, protocol.MaxActiveConnectionIDs))
	o.conn.connIDManager.levels = o.levels
}

// levelConnID returns the connection ID of a packet's level.
func (o *Outside) levelConnID(pl *payload) (protocol.ConnectionID, bool) {
	if o.levels == 0 {
		return protocol.ConnectionID{}, false
	}
	urgency := int8(8)
	if pl.numDatagramFrames > 0 {
		urgency = 0
	}
	for _, f := range pl.streamFrames {
		if h, ok := f.Handler.(*sendStreamAckHandler); ok {
			u, _, _ := (*SendStream)(h).priority()
			urgency = min(urgency, u)
		}
	}
	if urgency == 8 {
		return protocol.ConnectionID{}, false
	}
	return o.conn.connIDManager.forLevel(int(urgency) * o.levels / 8)
}

func (h *connIDManager) forLevel(level int) (protocol.ConnectionID, bool) {
	h.pathMx.Lock()
	defer h.pathMx.Unlock()
	if h.activeSequenceNumber > 0 && h.activeConnectionID.Bytes()[0] == byte(level) {
		return h.activeConnectionID, true
	}
	for _, e := range h.queue {
		if e.ConnectionID.Bytes()[0] == byte(level) {
			return e.ConnectionID, true
		}
	}
	return protocol.ConnectionID{}, false
}

// connID returns the connection ID of a packet's level, if there is one, or else id.
func (p *packetPacker) connID(id protocol.ConnectionID, pl *payload) protocol.ConnectionID {
	if p.levelConnID == nil {
		return id
	}
	if level, ok := p.levelConnID(pl); ok && level.Len() == id.Len() {
		return level
	}
	return id
}

// What happens to connection IDs

// watchConnectionIDs follows connection IDs by the frames that announce and retire them.
func (o *Outside) watchConnectionIDs() {
	c := o.conn
	c.connIDManager.onActive = o.peerIDActive
	toPeer := c.connIDManager.queueControlFrame
	c.connIDManager.queueControlFrame = func(f wire.Frame) {
		toPeer(f)
		if f, ok := f.(*wire.RetireConnectionIDFrame); ok { // not only on the run loop
			o.later(func() { o.peerIDRetired(f.SequenceNumber) })
		}
	}
	issue := c.connIDGenerator.queueControlFrame
	c.connIDGenerator.queueControlFrame = func(f wire.Frame) {
		issue(f)
		if f, ok := f.(*wire.NewConnectionIDFrame); ok {
			o.ourIDAdded(f.SequenceNumber, f.ConnectionID)
		}
	}
	o.ourIDAdded(0, c.connIDGenerator.activeSrcConnIDs[0])
}

func (o *Outside) connectionID(e ConnectionIDEvent, ours bool, seq uint64, id protocol.ConnectionID, levels int) {
	if o.hooks.ConnectionID == nil {
		return
	}
	level := -1
	if seq > 0 && id.Len() > 0 && int(id.Bytes()[0]) < levels {
		level = int(id.Bytes()[0])
	}
	o.hooks.ConnectionID(ConnectionIDChange{Event: e, Ours: ours, ID: id, Sequence: seq, Level: level})
}

func (o *Outside) ourIDAdded(seq uint64, id protocol.ConnectionID) {
	o.ours[seq] = id
	o.connectionID(ConnectionIDAdded, true, seq, id, o.conn.connIDGenerator.levels)
}

func (o *Outside) ourIDRetired(seq uint64) {
	if id, ok := o.ours[seq]; ok {
		delete(o.ours, seq)
		o.connectionID(ConnectionIDRetired, true, seq, id, o.conn.connIDGenerator.levels)
	}
}

// peerIDAdded is called when a connection ID was announced, also again, or after it was retired.
func (o *Outside) peerIDAdded(seq uint64, id protocol.ConnectionID) {
	h := o.conn.connIDManager
	h.pathMx.Lock()
	isKept := h.isInUse(seq)
	for _, e := range h.queue {
		isKept = isKept || e.SequenceNumber == seq
	}
	h.pathMx.Unlock()
	if _, known := o.peers[seq]; known || !isKept {
		return
	}
	o.peers[seq] = id
	o.connectionID(ConnectionIDAdded, false, seq, id, o.levels)
}

// peerIDActive is called when a connection ID has become the active one; it may be before it is known that it was
// added.
func (o *Outside) peerIDActive(seq uint64, id protocol.ConnectionID) {
	if _, known := o.peers[seq]; !known {
		o.peers[seq] = id
		o.connectionID(ConnectionIDAdded, false, seq, id, o.levels)
	}
	o.connectionID(ConnectionIDActive, false, seq, id, o.levels)
}

func (o *Outside) peerIDRetired(seq uint64) {
	if id, ok := o.peers[seq]; ok {
		delete(o.peers, seq)
		o.connectionID(ConnectionIDRetired, false, seq, id, o.levels)
	}
	if token, ok := o.tokens[seq]; ok {
		delete(o.tokens, seq)
		o.conn.connIDManager.removeStatelessResetToken(token)
	}
}

// watchForReset is called when a connection ID was announced. Levels are used before they become the active connection
// ID, so a stateless reset may carry their tokens (RFC 9000, section 10.3.1).
func (o *Outside) watchForReset(seq uint64, token protocol.StatelessResetToken) {
	if _, isKept := o.peers[seq]; isKept && o.levels > 0 {
		o.tokens[seq] = token
		o.conn.connIDManager.addStatelessResetToken(token)
	}
}

func (h *connIDManager) changed() {
	if h.onActive != nil {
		h.onActive(h.activeSequenceNumber, h.activeConnectionID)
	}
}
