package segments

import (
	"sync/atomic"

	"github.com/fastrelay/fastrelay-gen/runtime/segments/segmentsrelay"
)

// Stats says what became of packets. Segments less Relayed and Returned are on their way, or lost.
type Stats struct {
	Sends    uint64 // datagrams with UDP_SEGMENT
	Segments uint64 // packets in them
	Relayed  uint64 // of Segments: left for their receivers
	Returned uint64 // of Segments: came back since the relay couldn't send them, and were sent one by one
	Single   uint64 // packets that were sent one by one at once
	Refused  uint64 // of Single and Failed: had been in a datagram that the kernel refused
	TooBig   uint64 // packets that the MTU has no room for
	Failed   uint64 // packets that couldn't be sent
}

type counts struct {
	sends, segments, returned, singles, refused, tooBig, failed atomic.Uint64
}

// Stats returns what was counted since the sender was made. Relayed is 0 after Close.
func (s *Sender) Stats() (Stats, error) {
	s.life.RLock()
	defer s.life.RUnlock()
	c := &s.counts
	out := Stats{
		Sends: c.sends.Load(), Segments: c.segments.Load(), Returned: c.returned.Load(), Single: c.singles.Load(),
		Refused: c.refused.Load(), TooBig: c.tooBig.Load(), Failed: c.failed.Load(),
	}
	if s.relay == nil {
		return out, nil
	}
	sent, err := s.relay.Address.Count(segmentsrelay.AddressSent)
	out.Relayed = sent.Packets
	return out, err
}

// refused logs why the kernel refused a datagram, once until it takes another one.
func (s *Sender) refused(err error) {
	if s.complained.CompareAndSwap(false, true) {
		s.log.Warn("the kernel refuses segments, which are sent one by one", "device", s.Device(), "error", err)
	}
}

// readBack sends what the relay couldn't send one by one, until back is closed.
func (s *Sender) readBack() {
	buf := make([]byte, maxMTU)
	var one letters
	for {
		n, err := s.back.Read(buf)
		if err != nil {
			return
		}
		number, payload, ours := open(buf[:n])
		if !ours {
			continue
		}
		s.mu.Lock()
		to := s.receivers[number]
		s.mu.Unlock()
		if to == nil {
			continue // it is gone
		}
		one.add(&to.single, payload, buf[1]&ecnMask)
		s.single.send(&one, func(_ int, err error) {
			if err != nil {
				s.counts.failed.Add(1)
			} else {
				s.counts.returned.Add(1)
			}
		})
	}
}
