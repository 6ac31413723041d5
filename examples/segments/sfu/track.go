package sfu

import (
	"sync"

	"github.com/pion/rtp"
	"github.com/pion/webrtc/v4"
)

// remembered is how many packets of a track can be sent again.
const remembered = 512

// track is what a publisher sends of one kind, to all subscribers. All get the same sequence numbers, so one history
// serves all.
type track struct {
	*webrtc.TrackLocalStaticRTP

	mu          sync.Mutex
	subscribers map[webrtc.SSRC]binding // by what they know the track as
	history     [remembered]*rtp.Packet // by sequence number
}

// binding is how one subscriber is sent to.
type binding struct {
	writer      webrtc.TrackLocalWriter
	payloadType webrtc.PayloadType
}

func newTrack(kind webrtc.RTPCodecType, name string) (*track, error) {
	to, err := webrtc.NewTrackLocalStaticRTP(codecs[kind].RTPCodecCapability, kind.String(), name)
	return &track{TrackLocalStaticRTP: to, subscribers: map[webrtc.SSRC]binding{}}, err
}

// Bind is called by a subscriber's connection when it can be sent to.
func (t *track) Bind(c webrtc.TrackLocalContext) (webrtc.RTPCodecParameters, error) {
	codec, err := t.TrackLocalStaticRTP.Bind(c)
	if err == nil {
		t.mu.Lock()
		t.subscribers[c.SSRC()] = binding{c.WriteStream(), codec.PayloadType}
		t.mu.Unlock()
	}
	return codec, err
}

// Unbind is called when it ends.
func (t *track) Unbind(c webrtc.TrackLocalContext) error {
	t.mu.Lock()
	delete(t.subscribers, c.SSRC())
	t.mu.Unlock()
	return t.TrackLocalStaticRTP.Unbind(c)
}

// send sends a packet to all subscribers, and remembers it.
func (t *track) send(p *rtp.Packet) error {
	t.mu.Lock()
	t.history[p.SequenceNumber%remembered] = p
	t.mu.Unlock()
	return t.WriteRTP(p)
}

// resend sends packets to a subscriber again (RFC 4585 §6.2.1).
func (t *track) resend(to webrtc.SSRC, numbers []uint16) {
	for _, n := range numbers {
		t.mu.Lock()
		p, b := t.history[n%remembered], t.subscribers[to]
		t.mu.Unlock()
		if b.writer == nil || p == nil || p.SequenceNumber != n {
			continue // the subscriber or the packet is gone
		}
		header := p.Header
		header.SSRC, header.PayloadType = uint32(to), uint8(b.payloadType)
		_, _ = b.writer.WriteRTP(&header, p.Payload) // the subscriber asks again
	}
}
