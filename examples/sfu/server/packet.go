package server

import (
	"encoding/binary"
	"errors"
	"time"

	"github.com/pion/rtp"
	"github.com/pion/rtp/codecs"
)

// VP8 is the payload type of VP8 (RFC 7741), which the spec names, too. Whatever else is sent has no layers.
const VP8 = 96

// Layers are the temporal layers that a stream may have (RFC 7741: TID has two bits).
const Layers = 4

// packet is an RTP packet that a publisher sent.
type packet struct {
	data      []byte
	header    int   // bytes of data in front of the payload
	number    int64 // its sequence number, not wrapped
	timestamp uint32
	layer     uint8
	marker    bool // the last of a frame (RFC 7741 §4.1)
	start     bool // the first of a frame
	key       bool // the first of a frame that needs no other one: where a receiver can begin
	late      bool // it came after its successors, or for the second time
	at        time.Time
}

var errNotRTP = errors.New("not an RTP packet")

// isRTCP distinguishes RTCP from RTP on one port (RFC 5761 §4).
func isRTCP(data []byte) bool {
	return len(data) >= 8 && data[0]>>6 == 2 && data[1]&0x7F >= 64 && data[1]&0x7F <= 95
}

// parse reads what forwarding needs to know. The extension is the one with a packet's layer, or 0. Number, late and at
// are the caller's.
func (p *packet) parse(data []byte, extension uint8) (ssrc uint32, err error) {
	var h rtp.Header
	n, err := h.Unmarshal(data)
	if err != nil || h.Version != 2 {
		return 0, errNotRTP
	}
	p.data, p.header, p.timestamp, p.marker = append(p.data[:0], data...), n, h.Timestamp, h.Marker
	p.layer, p.start, p.key = 0, true, true
	if h.PayloadType == VP8 {
		var v codecs.VP8Packet
		frame, err := v.Unmarshal(data[n:])
		if err != nil || len(frame) == 0 {
			return 0, errNotRTP
		}
		p.layer = v.TID
		p.start = v.S == 1 && v.PID == 0
		p.key = p.start && frame[0]&1 == 0 // RFC 7741 §4.3
	}
	if extension != 0 {
		if e := h.GetExtension(extension); len(e) > 0 {
			p.layer = min(e[0], Layers-1)
		}
	}
	return h.SSRC, nil
}

func (p *packet) sequence() uint16 { return uint16(p.number) }

// copyTo is what a receiver of a stream gets instead of what the publisher sent.
type copyTo struct {
	ssrc        uint32
	payloadType uint8
	sequence    uint16
	timestamp   uint32
}

// rewrite appends the packet's copy to buf: as the kernel does, only what a receiver has of its own is changed.
func (p *packet) rewrite(buf []byte, to copyTo) []byte {
	out := append(buf, p.data...)
	to.put(out[len(buf):])
	return out
}

// rtpHeader is the size of an RTP header without a list of sources and extensions.
const rtpHeader = 12

// padding appends a packet without content that takes the place of this one: a number that nothing else will have.
func (p *packet) padding(buf []byte, to copyTo) []byte {
	const bytes = 4
	out := append(buf, 0xA0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, bytes) // version 2 with padding
	to.put(out[len(buf):])
	return out
}

func (to copyTo) put(b []byte) {
	b[1] = b[1]&0x80 | to.payloadType&0x7F
	binary.BigEndian.PutUint16(b[2:], to.sequence)
	binary.BigEndian.PutUint32(b[4:], to.timestamp)
	binary.BigEndian.PutUint32(b[8:], to.ssrc)
}

// window is how many packets of a stream are kept, and how many numbers of a receiver: a power of two.
const window = 1024

// cache has the last packets of a stream.
type cache struct {
	packets [window]packet
	numbers unwrapper
}

// slot returns where the packet with a number goes. Its data is the memory of the packet that gives way.
func (c *cache) slot(number int64) *packet { return &c.packets[number&(window-1)] }

// get returns a packet, or nil.
func (c *cache) get(number int64) *packet {
	if p := c.slot(number); len(p.data) > 0 && p.number == number {
		return p
	}
	return nil
}

// forget empties the cache when a stream begins anew.
func (c *cache) forget() {
	for i := range c.packets {
		c.packets[i].data = c.packets[i].data[:0]
	}
	c.numbers = unwrapper{}
}
